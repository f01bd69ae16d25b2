/* Computes the memory of a run. */
#include "train/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/error.h"
#include "model/lm/adapter.h"
#include "train/training.h"

#define PRODUCTS ((size_t)32 << 20) /* the workspace of cuBLASLt */
#define MOST_PARTS 4096

static size_t predictions(const carry_training *t) {
    carry_dtype dtype;
    if (t->material.task == NULL || t->options.eval_every == 0 ||
        carry_dtype_parse(&dtype, t->options.dtype) != CARRY_OK) {
        return 0;
    }
    return (size_t)(t->rows * t->material.length / t->grid.parts * t->lm->config.vocab_size) * carry_dtype_size(dtype);
}

static void count(const carry_training *t, carry_train_memory *m) {
    const carry_parameters *own = &t->lm->own;
    const int64_t batch = t->rows * t->options.accumulate * (t->material.length / t->grid.parts);
    const carry_parameters *learned = t->lm->adapter != NULL ? &t->lm->adapter->own : own;
    const size_t numbers = (size_t)own->count + (learned != own ? (size_t)learned->count : 0);
    const size_t steps = (size_t)learned->count;
    const carry_dtype moment = strcmp(t->options.optimizer_state, "bf16") == 0 ? CARRY_BF16 : CARRY_F32;
    *m = (carry_train_memory){.weights = numbers * sizeof(float),
                              .copies = own->low != NULL ? numbers * carry_dtype_size(own->low_dtype) : 0,
                              .gradients = steps * sizeof(float),
                              .moments = 2 * steps * carry_dtype_size(moment) / (size_t)carry_comm_size(t->comm),
                              .activations = carry_lm_pass_memory(t->pass),
                              .other = predictions(t)};
    if (own->device != 0) {
        m->other += PRODUCTS + carry_feed_bytes(batch);
    }
    m->total = m->weights + m->copies + m->gradients + m->moments + m->activations + m->other;
}

/* Bytes of activations with another number of rows or `recompute`; SIZE_MAX if such a pass cannot be made. */
static size_t activations_of(const carry_training *t, int64_t rows, bool recompute) {
    carry_lm_pass_options options = t->pass_options;
    carry_lm_pass *pass;
    if (options.sequences > 0) {
        options.sequences = options.sequences / t->rows * rows;
        options.tokens = options.tokens / t->rows * rows;
    } else {
        options.batch = rows;
    }
    options.recompute = recompute;
    if (rows < 1 || carry_lm_pass_new(t->lm, &pass, &options) != CARRY_OK) {
        return SIZE_MAX;
    }
    const size_t bytes = carry_lm_pass_memory(pass);
    carry_lm_pass_free(pass);
    return bytes;
}

/* The largest number of rows that fits into `bytes`, by binary search, since memory grows with rows. */
static int64_t rows_that_fit(const carry_training *t, size_t bytes, bool recompute) {
    int64_t fits = 0;
    int64_t too_many = t->rows + 1;
    while (too_many - fits > 1) {
        const int64_t middle = fits + (too_many - fits) / 2;
        if (activations_of(t, middle, recompute) <= bytes) {
            fits = middle;
        } else {
            too_many = middle;
        }
    }
    return fits;
}

/* The smallest number of equal parts, above the current --accumulate, whose rows fit; 0 if no number works. */
static int64_t parts_that_fit(const carry_training *t, int64_t fits) {
    const int64_t whole = t->rows * t->options.accumulate;
    for (int64_t parts = 1; fits > 0 && parts <= whole && parts <= MOST_PARTS; parts++) {
        if (parts > t->options.accumulate && whole % parts == 0 && whole / parts <= fits) {
            return parts;
        }
    }
    return 0;
}

static void suggest(const carry_training *t, size_t bytes, char *text, size_t size) {
    const int64_t fits = rows_that_fit(t, bytes, t->options.recompute);
    const int64_t parts = parts_that_fit(t, fits);
    const int64_t again = t->options.recompute ? 0 : rows_that_fit(t, bytes, true);
    size_t used = 0;
    text[0] = '\0';
    if (fits > 0) {
        used = (size_t)snprintf(text, size, "--batch %" PRId64 " fits", fits * t->options.accumulate * t->grid.ranks);
    }
    if (parts > 0 && used < size) {
        used += (size_t)snprintf(text + used, size - used, ", or --accumulate %" PRId64, parts);
    }
    if (again > fits && used < size) {
        used +=
            (size_t)snprintf(text + used, size - used, "%s--recompute fits %" PRId64 " row%s%s", used > 0 ? "; " : "",
                             again, again == 1 ? "" : "s", again >= t->rows ? "" : " at a time");
    }
    if (used == 0) {
        (void)snprintf(text, size, "not even one row fits%s: use a smaller --length",
                       t->options.recompute ? "" : ", with --recompute either");
    }
}

carry_status carry_training_count_memory(carry_training *t) {
    carry_train_memory *m = &t->memory_plan;
    const int device = t->lm->own.device;
    size_t total = 0;
    count(t, m);
    if (carry_device_memory(t->ctx, &m->available, &total, device) != CARRY_OK || device == 0) {
        return CARRY_OK; /* a CPU may page out, and its free memory depends on other processes */
    }
    const size_t more = m->moments + m->activations + m->other;
    if (more <= m->available) {
        return CARRY_OK;
    }
    char fits[192];
    m->missing = more - m->available;
    const size_t fixed = m->moments + m->other;
    suggest(t, m->available > fixed ? m->available - fixed : 0, fits, sizeof fits);
    return carry_fail(t->ctx, CARRY_EMEMORY,
                      "out of memory: %" PRId64 " rows of %" PRId64
                      " tokens need %.2f GB of activations and the optimizer %.2f GB, %.2f GB are free: %.2f GB too "
                      "much. %s",
                      t->rows, t->material.length / t->grid.parts, 1e-9 * (double)m->activations,
                      1e-9 * (double)m->moments, 1e-9 * (double)m->available, 1e-9 * (double)m->missing, fits);
}
