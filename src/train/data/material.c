/* Texts, tokenizers and tasks of a run. */
#include "train/data/material.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/file.h"
#include "core/span.h"
#include "file/checkpoint_files.h"

#define TOKENIZER_BYTES ((int64_t)4 << 20) /* bytes of text on which a tokenizer is trained */
#define WINDOW_BYTES ((int64_t)4 << 20)    /* of text tokenized before the first step: a fraction of a second */
#define PATHS 256
#define LENGTH 256 /* default tokens of a row */
#define EXAMPLE_LENGTH 1024
#define EXAM_SEED 0x6578616D696E65u
#define HELD_MOST 64
#define ROWS_LEAST 20 /* minimum rows of a text for some to be held out */

/* Splits the list, in place, into paths and counts them. */
static carry_status split_paths(carry_ctx *ctx, char *list, const char **paths, int *count) {
    char *rest = NULL;
    *count = 0;
    for (char *at = strtok_r(list, "\n", &rest); at != NULL; at = strtok_r(NULL, "\n", &rest)) {
        if (*count == PATHS) {
            return carry_fail(ctx, CARRY_ESIZE, "more than %d texts are named: name the folder that holds them", PATHS);
        }
        paths[(*count)++] = at;
    }
    return CARRY_OK;
}

static int64_t vocabulary_for(int64_t bytes) {
    return bytes < 1 << 16 ? 512 : bytes < 1 << 18 ? 1024 : bytes < 1 << 20 ? 2048 : 4096;
}

static carry_status feed(carry_ctx *ctx, carry_trainer *trainer, const carry_text *text) {
    carry_bytes bytes = {0};
    carry_status status = CARRY_OK;
    int64_t fed = 0;
    for (int64_t i = 0; i < carry_text_blocks(text) && fed < TOKENIZER_BYTES && status == CARRY_OK; i++) {
        bool ends_file;
        bytes.count = 0;
        status = carry_text_read(ctx, text, i, &bytes, &ends_file);
        status = status == CARRY_OK ? carry_trainer_feed(ctx, trainer, bytes.at, bytes.count) : status;
        fed += (int64_t)bytes.count;
    }
    free(bytes.at);
    return status;
}

static carry_status train_tokenizer(carry_ctx *ctx, carry_tokenizer **tokenizer, const carry_train_options *options) {
    CARRY_SPAN(ctx, "train", "tokenizer");
    static const char *const added[] = {CARRY_END_OF_TEXT};
    char list[CARRY_TRAIN_PATHS];
    const char *paths[PATHS];
    carry_text *text = NULL;
    carry_trainer *trainer = NULL;
    memcpy(list, options->data, sizeof list);
    int count;
    CARRY_TRY(split_paths(ctx, list, paths, &count));
    CARRY_TRY(carry_text_open(ctx, &text, paths, count, &(carry_text_options){.take_binary = options->binary}));
    const int64_t size = options->vocab > 0 ? options->vocab : vocabulary_for(carry_text_bytes(text));
    carry_status status =
        carry_trainer_new(ctx, &trainer, &(carry_trainer_options){.size = size, .added = added, .added_count = 1});
    status = status == CARRY_OK ? feed(ctx, trainer, text) : status;
    status = status == CARRY_OK ? carry_trainer_finish(ctx, trainer, tokenizer) : status;
    carry_trainer_free(trainer);
    carry_text_free(text);
    return status;
}

/* Rank 0 trains a tokenizer; the others receive it. */
static carry_status share_tokenizer(carry_comm *comm, carry_tokenizer **tokenizer, const carry_train_options *options) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    char *text = NULL;
    size_t length = 0;
    if (carry_comm_rank(comm) == 0) {
        CARRY_TRY(train_tokenizer(ctx, tokenizer, options));
        if (carry_comm_size(comm) == 1) {
            return CARRY_OK;
        }
        CARRY_TRY(carry_tokenizer_write(ctx, *tokenizer, &text, &length));
    }
    uint64_t bytes = length;
    carry_status status = carry_broadcast(comm, &bytes, sizeof bytes, 0);
    if (status == CARRY_OK && text == NULL) {
        text = bytes <= CARRY_TOKENIZER_BYTES ? malloc(bytes + 1) : NULL;
        status = text != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: a tokenizer");
    }
    status = status == CARRY_OK ? carry_broadcast(comm, text, bytes, 0) : status;
    if (status == CARRY_OK && *tokenizer == NULL) {
        status = carry_tokenizer_parse(ctx, tokenizer, text, bytes, "the tokenizer of rank 0");
    }
    free(text);
    return status;
}

static carry_status find_tokenizer(carry_comm *comm, carry_material *m, const carry_train_options *options,
                                   const char *folder) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    char path[CARRY_FILE_PATH];
    struct stat about;
    if (options->tokenizer[0] != '\0' && folder == NULL) {
        return carry_tokenizer_open(ctx, &m->tokenizer, options->tokenizer);
    }
    if (folder != NULL) {
        CARRY_TRY(carry_file_in(ctx, path, folder, CARRY_TOKENIZER_FILE));
        if (stat(path, &about) != 0) {
            return carry_fail(ctx, CARRY_ENOTFOUND, "%s has no %s: name one with --tokenizer", folder,
                              CARRY_TOKENIZER_FILE);
        }
        return carry_tokenizer_open(ctx, &m->tokenizer, path);
    }
    return share_tokenizer(comm, &m->tokenizer, options);
}

/* The number of rows held out if the text is one window. open_held leaves one more row out of training, since later
   epochs start their rows up to one row's length later. */
static int64_t held_rows(int64_t rows) {
    const int64_t held = rows / 20 < HELD_MOST ? rows / 20 : HELD_MOST;
    return held;
}

static carry_status open_held(carry_ctx *ctx, void *state, int64_t epoch, int64_t window, int64_t length, bool padded,
                              int64_t *rows, int64_t *windows) {
    const carry_held_out *h = state;
    CARRY_TRY(h->source.open(ctx, h->source.state, epoch, window, length, false, rows, windows));
    (void)padded; /* only whole rows are split */
    if (*windows == 1 && *rows >= ROWS_LEAST) {
        const int64_t whole = (carry_corpus_tokens(h->source.state) - 1) / length; /* as in the first epoch */
        const int64_t held = held_rows(whole);
        *rows = h->is_examined ? held : whole - held - 1;
    } else if (h->is_examined) {
        *rows = 0;
    }
    return CARRY_OK;
}

static void take_row(const void *state, int64_t row, int64_t length, int64_t *input, int64_t *label) {
    const carry_held_out *h = state;
    if (h->is_examined) {
        const int64_t whole = (carry_corpus_tokens(h->source.state) - 1) / length;
        row += whole - held_rows(whole);
    }
    h->source.row(h->source.state, row, length, input, label);
}

static carry_source share_rows(carry_held_out *held, carry_corpus *corpus, bool is_examined) {
    *held = (carry_held_out){.source = carry_corpus_source(corpus), .is_examined = is_examined};
    carry_source source = held->source;
    source.state = held;
    source.open = open_held;
    source.row = take_row;
    return source;
}

static carry_status open_corpus(carry_ctx *ctx, carry_corpus **corpus, const carry_material *m,
                                const carry_train_options *options, bool is_examined) {
    char list[CARRY_TRAIN_PATHS];
    const char *paths[PATHS];
    const bool own = is_examined && options->eval_data[0] != '\0';
    memcpy(list, options->data, sizeof list);
    if (own) {
        memcpy(list, options->eval_data, sizeof options->eval_data);
    }
    int count;
    CARRY_TRY(split_paths(ctx, list, paths, &count));
    return carry_corpus_open(ctx, corpus, paths, count,
                             &(carry_corpus_options){.tokenizer = m->tokenizer,
                                                     .window_bytes = WINDOW_BYTES,
                                                     .take_binary = options->binary,
                                                     .in_order = is_examined,
                                                     .seed = (uint64_t)options->seed});
}

static carry_status open_text(carry_comm *comm, carry_material *m, carry_train_options *options, const char *folder) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    CARRY_TRY(find_tokenizer(comm, m, options, folder));
    CARRY_TRY(open_corpus(ctx, &m->corpus, m, options, false));
    m->crc = carry_corpus_crc(m->corpus);
    m->length = options->length > 0 ? options->length : LENGTH;
    const bool shares = carry_train_holds_back(options);
    m->source = shares ? share_rows(&m->held, m->corpus, false) : carry_corpus_source(m->corpus);
    CARRY_TRY(carry_corpus_load(ctx, m->corpus, 0, 0));
    m->can_hold_back =
        carry_corpus_windows(m->corpus) == 1 && (carry_corpus_tokens(m->corpus) - 1) / m->length >= ROWS_LEAST;
    const double share = (double)carry_text_bytes(carry_corpus_text(m->corpus)) /
                         fmax(1.0, (double)carry_corpus_window_bytes(m->corpus));
    int64_t rows;
    int64_t windows;
    CARRY_TRY(m->source.open(ctx, m->source.state, 0, 0, m->length, false, &rows, &windows));
    m->rows_of_epoch = (double)rows * share;
    if (rows < 1 || carry_corpus_tokens(m->corpus) <= m->length) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "the text has %lld tokens, too few for a row of %lld and what follows it: a longer text is "
                          "needed, or a smaller --length",
                          (long long)carry_corpus_tokens(m->corpus), (long long)m->length);
    }
    return CARRY_OK;
}

static carry_status open_example_file(carry_ctx *ctx, carry_examples **examples, const carry_material *m,
                                      const carry_train_options *options, bool is_examined) {
    char list[CARRY_TRAIN_PATHS];
    const char *paths[PATHS];
    int count;
    memcpy(list, options->data, sizeof list);
    if (is_examined) {
        memcpy(list, options->eval_data, sizeof options->eval_data);
    }
    CARRY_TRY(split_paths(ctx, list, paths, &count));
    return carry_examples_open(ctx, examples, paths, count,
                               &(carry_examples_options){.tokenizer = m->tokenizer,
                                                         .length = m->length,
                                                         .cuts = strcmp(options->long_examples, "cut") == 0,
                                                         .in_order = options->in_order || is_examined,
                                                         .seed = (uint64_t)options->seed});
}

static carry_status open_examples(carry_comm *comm, carry_material *m, carry_train_options *options,
                                  const char *folder) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    int64_t rows;
    int64_t windows;
    CARRY_TRY(find_tokenizer(comm, m, options, folder));
    m->length = options->length > 0 ? options->length : EXAMPLE_LENGTH;
    CARRY_TRY(open_example_file(ctx, &m->examples, m, options, false));
    m->crc = carry_examples_crc(m->examples);
    m->source = carry_examples_source(m->examples);
    CARRY_TRY(m->source.open(ctx, m->source.state, 0, 0, m->length, false, &rows, &windows));
    m->rows_of_epoch = (double)rows;
    return CARRY_OK;
}

static carry_status open_task(carry_ctx *ctx, carry_material *m, const carry_train_options *options) {
    const carry_task_size size = {.length = options->length,
                                  .vocabulary = options->vocab,
                                  .pairs = options->pairs,
                                  .fewest = options->fewest_pairs};
    CARRY_TRY(carry_task_open(ctx, &m->rows, &m->source, options->task, size, (uint64_t)options->seed));
    m->task = m->rows.task;
    m->length = m->rows.size.length;
    m->rows_of_epoch = INFINITY;
    return CARRY_OK;
}

carry_status carry_material_open(carry_comm *comm, carry_material *material, carry_train_options *options,
                                 const char *folder) {
    *material = (carry_material){0};
    if (options->task[0] != '\0') {
        CARRY_TRY(open_task(carry_comm_ctx(comm), material, options));
    } else if (carry_train_has_examples(options)) {
        CARRY_TRY(open_examples(comm, material, options, folder));
    } else {
        CARRY_TRY(open_text(comm, material, options, folder));
    }
    options->length = material->length;
    options->vocab = material->source.vocabulary;
    return CARRY_OK;
}

void carry_material_close(carry_material *material) {
    carry_corpus_free(material->corpus);
    carry_corpus_free(material->evaluated);
    carry_examples_free(material->examples);
    carry_examples_free(material->evaluated_examples);
    carry_tokenizer_close(material->tokenizer);
    *material = (carry_material){0};
}

carry_status carry_material_held_out(carry_ctx *ctx, carry_material *m, const carry_train_options *options,
                                     carry_source *source, bool *is_there) {
    *is_there = true;
    if (m->task != NULL) {
        carry_task_size size = m->rows.size;
        size.fewest = 0; /* an evaluation always has all pairs */
        return carry_task_open(ctx, &m->evaluated_rows, source, options->task, size,
                               (uint64_t)options->seed ^ EXAM_SEED);
    }
    if (m->examples != NULL) {
        *is_there = options->eval_data[0] != '\0';
        if (*is_there) {
            CARRY_TRY(open_example_file(ctx, &m->evaluated_examples, m, options, true));
            *source = carry_examples_source(m->evaluated_examples);
        }
        return CARRY_OK;
    }
    if (options->eval_data[0] == '\0' && carry_corpus_windows(m->corpus) > 1) {
        *is_there = false;
        return CARRY_OK;
    }
    CARRY_TRY(open_corpus(ctx, &m->evaluated, m, options, true));
    *source = options->eval_data[0] != '\0' ? carry_corpus_source(m->evaluated)
                                            : share_rows(&m->evaluated_held, m->evaluated, true);
    int64_t rows;
    int64_t windows;
    CARRY_TRY(source->open(ctx, source->state, 0, 0, m->length, true, &rows, &windows));
    *is_there = rows > 0;
    return CARRY_OK;
}
