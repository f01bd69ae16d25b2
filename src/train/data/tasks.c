/* The synthetic tasks. */
#include "train/data/tasks.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "train/data/shuffle.h"

#define ITEMS 5      /* number of items that S5 permutes */
#define ELEMENTS 120 /* 5! */
#define SWAPS 11     /* the identity and 10 swaps of two items */
#define LENGTH_MOST ((int64_t)1 << 24)

/* Random numbers of one row: a separate stream for each purpose. */
enum { KEYS, VALUES, PLACES, SYMBOLS, PURPOSES };

static uint64_t stream_of(int64_t index, int purpose) {
    return (uint64_t)index * PURPOSES + (uint64_t)purpose;
}

static int64_t score_labels(const int64_t *prediction, const int64_t *label, int64_t count, int64_t *asked) {
    int64_t right = 0;
    *asked = 0;
    for (int64_t i = 0; i < count; i++) {
        *asked += label[i] != CARRY_NO_LABEL;
        right += label[i] != CARRY_NO_LABEL && prediction[i] == label[i];
    }
    return right;
}

static void clear_row(const carry_task_size *size, int64_t *input, int64_t *label) {
    for (int64_t i = 0; i < size->length; i++) {
        input[i] = 0;
        label[i] = CARRY_NO_LABEL;
    }
}

/* Multi-query associative recall with a vocabulary of V tokens: k1 v1 k2 v2 ... kN vN, then questions: each key once
   more, at a random even position, where its value is the label. Token 0 fills the other positions. Keys are 1..V/2-1,
   values V/2..V-1; no two pairs of a row have the same key or value. A row with fewer pairs than the maximum has as
   many questions as one with the maximum: its keys are asked for more than once. */
static carry_status check_recall(carry_ctx *ctx, carry_task_size *size) {
    if (size->pairs == 0) {
        size->pairs = size->length / 8 < size->vocabulary / 4 ? size->length / 8 : size->vocabulary / 4;
    }
    size->fewest = size->fewest != 0 ? size->fewest : size->pairs;
    if (size->fewest > size->pairs) {
        return carry_fail(ctx, CARRY_EARGUMENT, "mqar: rows of %lld pairs at least cannot have %lld at most",
                          (long long)size->fewest, (long long)size->pairs);
    }
    if (size->pairs < 1 || size->length / 4 < size->pairs || size->vocabulary / 2 - 1 < size->pairs) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "mqar: %lld pairs need at least %lld tokens and a vocabulary of %lld, and have %lld and %lld",
                          (long long)size->pairs, (long long)(4 * size->pairs), (long long)(2 * size->pairs + 2),
                          (long long)size->length, (long long)size->vocabulary);
    }
    return CARRY_OK;
}

/* The number of pairs of a row: fewest, twice that, ..., pairs, all with the same probability. */
static int64_t pairs_of_row(const carry_task_size *size, uint64_t seed, int64_t index) {
    int64_t choices = 1;
    for (int64_t n = size->fewest; n < size->pairs; n *= 2) {
        choices++;
    }
    int64_t pairs = size->fewest << carry_draw(seed, stream_of(index, SYMBOLS), 0, choices);
    return pairs < size->pairs ? pairs : size->pairs;
}

static void make_recall(const carry_task_size *size, uint64_t seed, int64_t index, int64_t *input, int64_t *label) {
    int64_t half = size->vocabulary / 2;
    int64_t context = 2 * size->pairs;
    int64_t places = (size->length - context) / 2;
    int64_t pairs = pairs_of_row(size, seed, index);
    clear_row(size, input, label);
    for (int64_t i = 0; i < size->pairs; i++) {
        int64_t pair = i % pairs;
        int64_t key = 1 + carry_shuffle(seed, stream_of(index, KEYS), half - 1, pair);
        int64_t value = half + carry_shuffle(seed, stream_of(index, VALUES), size->vocabulary - half, pair);
        int64_t place = context + 2 * carry_shuffle(seed, stream_of(index, PLACES), places, i);
        input[2 * pair] = key;
        input[2 * pair + 1] = value;
        input[place] = key;
        label[place] = value;
    }
}

/* Permutations of five items, numbered in the order of their images: 0 is the identity. */
static void permutation_of(int64_t number, int image[ITEMS]) {
    int rest[ITEMS] = {0, 1, 2, 3, 4};
    int64_t weight = ELEMENTS;
    for (int i = 0; i < ITEMS; i++) {
        weight /= ITEMS - i;
        int64_t pick = number / weight;
        number %= weight;
        image[i] = rest[pick];
        for (int64_t j = pick; j + 1 < ITEMS - i; j++) {
            rest[j] = rest[j + 1];
        }
    }
}

static int64_t number_of(const int image[ITEMS]) {
    int64_t number = 0;
    int64_t weight = ELEMENTS;
    for (int i = 0; i < ITEMS; i++) {
        weight /= ITEMS - i;
        int smaller = 0;
        for (int j = i + 1; j < ITEMS; j++) {
            smaller += image[j] < image[i];
        }
        number += smaller * weight;
    }
    return number;
}

static int64_t swap_number(int64_t which) {
    int image[ITEMS] = {0, 1, 2, 3, 4};
    for (int i = 0; i < ITEMS && which > 0; i++) {
        for (int j = i + 1; j < ITEMS && which > 0; j++) {
            if (--which == 0) {
                image[i] = j;
                image[j] = i;
            }
        }
    }
    return number_of(image);
}

static carry_status check_group(carry_ctx *ctx, carry_task_size *size) {
    if (size->vocabulary < ELEMENTS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "s5: a vocabulary of %lld has no room for %d permutations",
                          (long long)size->vocabulary, ELEMENTS);
    }
    return CARRY_OK;
}

/* label[t] = x[t] x[t-1] ... x[0], the product of all permutations so far; later ones are applied after earlier
   ones. */
static void multiply_along(const carry_task_size *size, const int64_t *input, int64_t *label) {
    int product[ITEMS] = {0, 1, 2, 3, 4};
    for (int64_t t = 0; t < size->length; t++) {
        int next[ITEMS];
        permutation_of(input[t], next);
        for (int i = 0; i < ITEMS; i++) {
            product[i] = next[product[i]];
        }
        label[t] = number_of(product);
    }
}

static void make_group(const carry_task_size *size, uint64_t seed, int64_t index, int64_t *input, int64_t *label) {
    for (int64_t t = 0; t < size->length; t++) {
        input[t] = carry_draw(seed, stream_of(index, SYMBOLS), (uint64_t)t, ELEMENTS);
    }
    multiply_along(size, input, label);
}

static void make_swaps(const carry_task_size *size, uint64_t seed, int64_t index, int64_t *input, int64_t *label) {
    for (int64_t t = 0; t < size->length; t++) {
        input[t] = swap_number(carry_draw(seed, stream_of(index, SYMBOLS), (uint64_t)t, SWAPS));
    }
    multiply_along(size, input, label);
}

/* n symbols (1..V-1), then 0, then the same symbols again; from the 0 on each is a label. n is half the length. */
static carry_status check_copy(carry_ctx *ctx, carry_task_size *size) {
    if (size->length < 2 || size->vocabulary < 2) {
        return carry_fail(ctx, CARRY_EARGUMENT, "copy: %lld tokens and a vocabulary of %lld are too few: 2 are needed",
                          (long long)size->length, (long long)size->vocabulary);
    }
    return CARRY_OK;
}

static void make_copy(const carry_task_size *size, uint64_t seed, int64_t index, int64_t *input, int64_t *label) {
    int64_t count = size->length / 2;
    clear_row(size, input, label);
    for (int64_t i = 0; i < count; i++) {
        int64_t symbol = 1 + carry_draw(seed, stream_of(index, SYMBOLS), (uint64_t)i, size->vocabulary - 1);
        input[i] = symbol;
        label[count + i] = symbol;
        if (count + i + 1 < size->length) {
            input[count + i + 1] = symbol;
        }
    }
}

static const carry_task mqar = {
    "mqar",       "associative recall: pairs of keys and values, then keys whose values are asked",
    512,          256,
    check_recall, make_recall,
    score_labels};
static const carry_task s5 = {"s5",        "permutations of five items: the product so far, at every place",
                              128,         ELEMENTS,
                              check_group, make_group,
                              score_labels};
static const carry_task s5_swaps = {
    "s5-swaps",  "the same, of exchanges of two items and the identity alone", 128, ELEMENTS, check_group, make_swaps,
    score_labels};
static const carry_task copying = {"copy",      "symbols, then the same again", 128, 64, check_copy, make_copy,
                                   score_labels};

const carry_task *const carry_task_list[] = {&mqar, &s5, &s5_swaps, &copying, NULL};

const carry_task *carry_task_find(const char *name) {
    for (int i = 0; carry_task_list[i] != NULL; i++) {
        if (strcmp(carry_task_list[i]->name, name) == 0) {
            return carry_task_list[i];
        }
    }
    return NULL;
}

static carry_status open_rows(carry_ctx *ctx, void *state, int64_t epoch, int64_t window, int64_t length, bool padded,
                              int64_t *rows, int64_t *windows) {
    const carry_task_rows *r = state;
    (void)padded;
    if (length != r->size.length) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s has rows of %lld tokens, and %lld are asked for", r->task->name,
                          (long long)r->size.length, (long long)length);
    }
    if (epoch != 0 || window != 0) {
        return carry_fail(ctx, CARRY_ERANGE, "%s has one epoch and one window without end", r->task->name);
    }
    *rows = INT64_MAX;
    *windows = 1;
    return CARRY_OK;
}

static void take_row(const void *state, int64_t row, int64_t length, int64_t *input, int64_t *label) {
    const carry_task_rows *r = state;
    (void)length;
    r->task->make(&r->size, r->seed, row, input, label);
}

carry_status carry_task_open(carry_ctx *ctx, carry_task_rows *rows, carry_source *source, const char *name,
                             carry_task_size size, uint64_t seed) {
    const carry_task *task = carry_task_find(name);
    if (task == NULL) {
        char known[128] = "";
        for (int i = 0; carry_task_list[i] != NULL; i++) {
            size_t used = strlen(known);
            (void)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", carry_task_list[i]->name);
        }
        return carry_fail(ctx, CARRY_ENOTFOUND, "there is no task '%.60s': choose one of %s", name, known);
    }
    size.length = size.length != 0 ? size.length : task->length;
    size.vocabulary = size.vocabulary != 0 ? size.vocabulary : task->vocabulary;
    if (size.length < 1 || size.length > LENGTH_MOST || size.vocabulary < 1 || size.vocabulary > INT32_MAX) {
        return carry_fail(ctx, CARRY_ESIZE, "%s with rows of %lld tokens and a vocabulary of %lld is out of range",
                          task->name, (long long)size.length, (long long)size.vocabulary);
    }
    CARRY_TRY(task->check(ctx, &size));
    *rows = (carry_task_rows){task, size, seed};
    *source = (carry_source){.vocabulary = size.vocabulary,
                             .end = -1,
                             .is_endless = true,
                             .state = rows,
                             .open = open_rows,
                             .row = take_row};
    return CARRY_OK;
}
