/* Reading and packing examples. */
#include "train/data/examples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "train/data/example_text.h"
#include "train/data/shuffle.h"

#define FILE_BYTES ((size_t)8 << 30)
#define ORDER_STREAM 0x6578616D706Cu

struct carry_examples {
    carry_examples_options options;
    carry_example_ids tokens;
    size_t *start; /* [count + 1]: the index of each example's first token */
    int64_t count, room;
    int64_t cut, learned;
    uint32_t crc;
    int64_t epoch; /* epoch of the current packing; -1: none */
    int64_t *row;  /* [rows + 1]: the first example of each row, in the order of the epoch */
    int64_t rows;
};

bool carry_examples_are(const char *path) {
    const size_t length = strcspn(path, "\n");
    return length > 6 && strncmp(path + length - 6, ".jsonl", 6) == 0;
}

/* Ends the current example, whose tokens were appended last. */
static carry_status finish(carry_ctx *ctx, carry_examples *e, const char *name) {
    const size_t from = e->start[e->count];
    size_t length = e->tokens.ids.count - from;
    const size_t most = (size_t)e->options.length + 1;
    if (length > most && !e->options.cuts) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%s has %zu tokens and a row holds %zu: use a larger --length, or --long-examples cut", name,
                          length, most);
    }
    if (length > most) {
        length = e->tokens.ids.count = most + from;
        length -= from;
        e->cut++;
    }
    int64_t learned = 0;
    for (size_t i = from + 1; i < from + length; i++) {
        learned += e->tokens.learned[i];
    }
    if (learned == 0) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s: no token is learned%s", name,
                          length == most ? ": its prompt fills the row, use a larger --length" : "");
    }
    e->learned += learned;
    if (e->count + 2 > e->room) {
        const int64_t room = 2 * e->room + 64;
        size_t *grown = realloc(e->start, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %lld examples", (long long)e->count);
        }
        e->start = grown;
        e->room = room;
    }
    e->start[++e->count] = from + length;
    return CARRY_OK;
}

static bool is_blank(const char *line, size_t length) {
    return strspn(line, " \t\r\n") >= length;
}

static carry_status read_file(carry_ctx *ctx, carry_examples *e, carry_example_reader *reader, const char *path) {
    char *text;
    size_t length;
    CARRY_TRY(carry_file_read(ctx, &text, &length, path, FILE_BYTES));
    carry_status status = CARRY_OK;
    int64_t number = 0;
    e->crc = carry_crc32c(e->crc, text, length);
    for (size_t at = 0; at < length && status == CARRY_OK;) {
        const char *newline = memchr(text + at, '\n', length - at);
        const size_t bytes = newline != NULL ? (size_t)(newline - (text + at)) : length - at;
        char name[512];
        number++;
        if (!is_blank(text + at, bytes)) {
            (void)snprintf(name, sizeof name, "%.440s, line %lld", path, (long long)number);
            status = carry_example_read(reader, &e->tokens, text + at, bytes, name);
            status = status == CARRY_OK ? finish(ctx, e, name) : status;
        }
        at += bytes + 1;
    }
    free(text);
    return status;
}

static carry_status read_all(carry_ctx *ctx, carry_examples *e, const char *const *paths, int count) {
    carry_example_reader reader;
    CARRY_TRY(carry_example_reader_open(ctx, &reader, e->options.tokenizer));
    carry_status status = CARRY_OK;
    for (int i = 0; i < count && status == CARRY_OK; i++) {
        if (!carry_examples_are(paths[i])) {
            status = carry_fail(ctx, CARRY_EARGUMENT,
                                "%s is not a .jsonl file: examples and texts cannot be mixed in one run", paths[i]);
        }
        status = status == CARRY_OK ? read_file(ctx, e, &reader, paths[i]) : status;
    }
    carry_example_reader_close(&reader);
    if (status == CARRY_OK && e->count == 0) {
        status = carry_fail(ctx, CARRY_EFORMAT, "%s has no examples", paths[0]);
    }
    return status;
}

carry_status carry_examples_open(carry_ctx *ctx, carry_examples **examples, const char *const *paths, int count,
                                 const carry_examples_options *options) {
    *examples = NULL;
    carry_examples *e = calloc(1, sizeof *e);
    size_t *start = calloc(64, sizeof *start);
    if (e == NULL || start == NULL) {
        free(e);
        free(start);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: examples");
    }
    e->options = *options;
    e->start = start;
    e->room = 64;
    e->epoch = -1;
    const carry_status status = read_all(ctx, e, paths, count);
    if (status != CARRY_OK) {
        carry_examples_free(e);
        return status;
    }
    const uint64_t also[] = {options->seed, carry_tokenizer_crc(options->tokenizer), (uint64_t)options->length,
                             options->in_order};
    e->crc = carry_crc32c(e->crc, also, sizeof also);
    *examples = e;
    return CARRY_OK;
}

void carry_examples_free(carry_examples *e) {
    if (e != NULL) {
        carry_example_ids_free(&e->tokens);
        free(e->start);
        free(e->row);
        free(e);
    }
}

int64_t carry_examples_count(const carry_examples *e) {
    return e->count;
}

int64_t carry_examples_cut(const carry_examples *e) {
    return e->cut;
}

int64_t carry_examples_learned(const carry_examples *e) {
    return e->learned;
}

uint32_t carry_examples_crc(const carry_examples *e) {
    return e->crc;
}

/* The index of the example at position `index` of the epoch. */
static int64_t at_place(const carry_examples *e, int64_t index) {
    return e->options.in_order ? index
                               : carry_shuffle(e->options.seed, ORDER_STREAM + (uint64_t)e->epoch, e->count, index);
}

static int64_t places_of(const carry_examples *e, int64_t example) {
    return (int64_t)(e->start[example + 1] - e->start[example]) - 1;
}

/* Packs the epoch into rows: a new row starts when an example does not fit into the last. */
static void pack(carry_examples *e, int64_t epoch) {
    int64_t used = 0;
    int64_t held = 0;
    e->epoch = epoch;
    e->rows = 0;
    for (int64_t i = 0; i < e->count; i++) {
        const int64_t places = places_of(e, at_place(e, i));
        if (i == 0 || used + places > e->options.length || held == CARRY_EXAMPLES_OF_A_ROW - 1) {
            e->row[e->rows++] = i;
            used = held = 0;
        }
        used += places;
        held++;
    }
    e->row[e->rows] = e->count;
}

static carry_status open_rows(carry_ctx *ctx, void *state, int64_t epoch, int64_t window, int64_t length, bool padded,
                              int64_t *rows, int64_t *windows) {
    carry_examples *e = state;
    (void)padded;
    if (length != e->options.length || window != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "examples were packed into rows of %lld tokens, not %lld",
                          (long long)e->options.length, (long long)length);
    }
    if (e->row == NULL) {
        e->row = malloc(((size_t)e->count + 1) * sizeof *e->row);
        if (e->row == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the rows of %lld examples", (long long)e->count);
        }
    }
    if (e->epoch != epoch) {
        pack(e, epoch);
    }
    *rows = e->rows;
    *windows = 1;
    return CARRY_OK;
}

static void take_row(const void *state, int64_t row, int64_t length, int64_t *input, int64_t *label) {
    const carry_examples *e = state;
    int64_t at = 0;
    for (int64_t i = e->row[row]; i < e->row[row + 1]; i++) {
        const int64_t example = at_place(e, i);
        const size_t from = e->start[example];
        const int64_t places = places_of(e, example);
        for (int64_t j = 0; j < places; j++, at++) {
            input[at] = e->tokens.ids.id[from + (size_t)j];
            label[at] = e->tokens.learned[from + (size_t)j + 1] ? (int64_t)e->tokens.ids.id[from + (size_t)j + 1]
                                                                : CARRY_NO_LABEL;
        }
    }
    for (; at < length; at++) {
        input[at] = 0;
        label[at] = CARRY_NO_LABEL;
    }
}

static int64_t take_cuts(const void *state, int64_t row, int64_t length, int64_t *starts) {
    const carry_examples *e = state;
    int64_t at = 0;
    int64_t count = 0;
    for (int64_t i = e->row[row]; i < e->row[row + 1]; i++) {
        starts[count++] = at;
        at += places_of(e, at_place(e, i));
    }
    if (at < length) {
        starts[count++] = at;
    }
    return count;
}

carry_source carry_examples_source(carry_examples *e) {
    return (carry_source){.vocabulary = carry_tokenizer_size(e->options.tokenizer),
                          .end = -1,
                          .state = e,
                          .most_cuts = CARRY_EXAMPLES_OF_A_ROW,
                          .open = open_rows,
                          .row = take_row,
                          .cuts = take_cuts};
}
