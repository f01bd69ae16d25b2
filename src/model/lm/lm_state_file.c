/* The state of a sequence in a file (file/state_file.h), so that a long prompt is read once. Every part of every layer
   is a tensor layers.LAYER.PART, packed, with the shape of one sequence: f32, or the activations' type for caches. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/hash.h"
#include "core/tensor.h"
#include "model/host.h"
#include "model/lm/lm_state_file.h"

#define NAME 64

typedef struct gathered {
    carry_safetensors_item *items;
    char (*names)[NAME];
    unsigned char *bytes; /* the data of all parts, in host memory */
    int64_t count;
} gathered;

/* A part of a layer. */
typedef struct part {
    int64_t layer;
    int index;
    char name[NAME];
    const carry_lm_state_part *about;
} part;

static part part_at(const carry_lm_state *state, int64_t number) {
    part p = {.layer = number / CARRY_LM_STATE_PARTS, .index = (int)(number % CARRY_LM_STATE_PARTS)};
    p.about = &state->about[p.layer][p.index];
    (void)snprintf(p.name, sizeof p.name, "layers.%" PRId64 ".%d", p.layer, p.index);
    return p;
}

carry_status carry_lm_hash(carry_lm *lm, uint64_t *hash) {
    if (!lm->is_hashed) {
        carry_json_text config = {0};
        uint64_t weights;
        carry_lm_config_put(&config, &lm->config, CARRY_F32);
        carry_status status = carry_parameters_hash(&lm->own, &weights);
        if (status == CARRY_OK && config.failed) {
            status = carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: a configuration");
        }
        if (status == CARRY_OK) {
            lm->hash = carry_hash(weights, config.bytes, config.length);
            lm->is_hashed = lm->own.reads_only; /* the weights of other models may change */
        }
        carry_json_text_free(&config);
        CARRY_TRY(status);
    }
    *hash = lm->hash;
    return CARRY_OK;
}

/* The shape of a part after `tokens` tokens, and its size in bytes in this type (0: nothing to store). False if the
   size overflows. */
static bool part_shape(const carry_lm_state_part *about, int64_t tokens, carry_dtype dtype, int64_t shape[4],
                       size_t *bytes) {
    *bytes = 0;
    for (int i = 0; i < about->rank; i++) {
        shape[i] = i == 0 && about->grows ? tokens : about->shape[i];
    }
    return about->rank == 0 || carry_size_product(bytes, shape, about->rank, carry_dtype_size(dtype));
}

static carry_status too_long(const carry_lm_state *state, int64_t tokens) {
    return carry_fail(state->ctx, CARRY_ESIZE, "a state of %" PRId64 " tokens is larger than memory can be", tokens);
}

/* Copies between a sequence's part and packed host memory of the same type, slice by slice. */
static carry_status move_part(carry_lm_state *state, const part *p, int64_t sequence, int64_t tokens, void *bytes,
                              bool to_host) {
    const carry_tensor *tensor = &state->part[p->layer][p->index];
    const int64_t of_one = carry_tensor_count(tensor) / state->batch;
    const int64_t whole = of_one / p->about->slices; /* for a cache: its capacity */
    const int64_t count = p->about->grows ? of_one / tensor->shape[1] * tokens / p->about->slices : whole;
    const size_t size = carry_dtype_size(tensor->dtype);
    for (int64_t slice = 0; slice < p->about->slices; slice++) {
        const carry_tensor host =
            carry_view_1d((unsigned char *)bytes + (size_t)(slice * count) * size, tensor->dtype, count);
        carry_tensor there = carry_reshape_1d(*tensor, carry_tensor_count(tensor));
        there = carry_slice(there, (slice * state->batch + sequence) * whole, count);
        CARRY_TRY(to_host ? carry_read(state->ctx, host, there) : carry_copy(state->ctx, there, host));
    }
    return CARRY_OK;
}

static carry_dtype dtype_of(const carry_lm_state *state, const part *p) {
    return p->about->grows ? state->dtype : CARRY_F32;
}

/* Computes the size of all parts in bytes. */
static carry_status count_bytes(const carry_lm_state *state, int64_t tokens, size_t *total) {
    *total = 0;
    for (int64_t i = 0; i < state->layers * CARRY_LM_STATE_PARTS; i++) {
        const part p = part_at(state, i);
        int64_t shape[4];
        size_t bytes;
        if (!part_shape(p.about, tokens, dtype_of(state, &p), shape, &bytes) || !carry_size_add(total, *total, bytes)) {
            return too_long(state, tokens);
        }
    }
    return CARRY_OK;
}

static carry_status gather(carry_lm_state *state, int64_t sequence, gathered *g) {
    const int64_t tokens = state->length[sequence];
    const size_t most = (size_t)state->layers * CARRY_LM_STATE_PARTS;
    size_t total;
    size_t at = 0;
    CARRY_TRY(count_bytes(state, tokens, &total));
    g->items = calloc(most, sizeof *g->items);
    g->names = calloc(most, sizeof *g->names);
    g->bytes = carry_aligned_new(total > 0 ? total : 1);
    if (g->items == NULL || g->names == NULL || g->bytes == NULL) {
        return carry_fail(state->ctx, CARRY_EMEMORY, "out of memory: a state of %" PRId64 " tokens", tokens);
    }
    for (size_t i = 0; i < most; i++) {
        const part p = part_at(state, (int64_t)i);
        const carry_dtype dtype = dtype_of(state, &p);
        int64_t shape[4];
        size_t bytes;
        if (!part_shape(p.about, tokens, dtype, shape, &bytes) || bytes == 0) {
            continue;
        }
        CARRY_TRY(move_part(state, &p, sequence, tokens, g->bytes + at, true));
        memcpy(g->names[g->count], p.name, sizeof p.name);
        g->items[g->count] = (carry_safetensors_item){.name = g->names[g->count],
                                                      .tensor = carry_view(g->bytes + at, dtype, p.about->rank, shape),
                                                      .dtype = dtype};
        g->count++;
        at += bytes;
    }
    return CARRY_OK;
}

static carry_status check_sequence(const carry_lm_state *state, int64_t sequence) {
    return sequence >= 0 && sequence < state->batch
               ? CARRY_OK
               : carry_fail(state->ctx, CARRY_EARGUMENT, "sequence %" PRId64 " of a state: expected 0 to %" PRId64,
                            sequence, state->batch - 1);
}

carry_status carry_lm_state_save(carry_lm_state *state, int64_t sequence, const char *path) {
    gathered g = {0};
    CARRY_TRY(check_sequence(state, sequence));
    carry_state_about about = {.tokens = state->length[sequence], .ids = state->ids[sequence].hash};
    if (state->ids[sequence].count != about.tokens) {
        return carry_fail(state->ctx, CARRY_EUNSUPPORTED,
                          "%s: the state has read %" PRId64 " tokens, of which %" PRId64 " were in host memory: a "
                          "state is saved only if its ids are known",
                          path, about.tokens, state->ids[sequence].count);
    }
    CARRY_TRY(carry_lm_hash(state->lm, &about.model));
    carry_status status = gather(state, sequence, &g);
    status = status == CARRY_OK ? carry_state_write(state->ctx, path, &about, g.items, g.count) : status;
    free(g.items);
    free(g.names);
    free(g.bytes);
    return status;
}

/* Checks that a part in the file is as the model needs it. *dtype is the type of the caches; CARRY_I64 until the first
   cache is seen. */
static carry_status check_part(const carry_lm_state *state, const part *p, int64_t tokens,
                               const carry_safetensors *file, const char *path, carry_dtype *dtype) {
    const carry_tensor *found = carry_safetensors_find(file, p->name);
    int64_t shape[4];
    char has[CARRY_SHAPE_TEXT];
    char needs[CARRY_SHAPE_TEXT];
    size_t bytes;
    if (!part_shape(p->about, tokens, CARRY_F32, shape, &bytes)) {
        return too_long(state, tokens);
    }
    if (bytes == 0) {
        return found == NULL ? CARRY_OK
                             : carry_fail(state->ctx, CARRY_EFORMAT, "%s: the model has no part %s", path, p->name);
    }
    if (found == NULL) {
        return carry_fail(state->ctx, CARRY_EFORMAT, "%s: %s is missing", path, p->name);
    }
    if (found->rank != p->about->rank || memcmp(found->shape, shape, (size_t)found->rank * sizeof *shape) != 0) {
        return carry_fail(state->ctx, CARRY_EFORMAT, "%s: %s has shape %s: expected %s", path, p->name,
                          carry_shape_text(has, found->rank, found->shape),
                          carry_shape_text(needs, p->about->rank, shape));
    }
    const carry_dtype wanted = !p->about->grows ? CARRY_F32 : *dtype == CARRY_I64 ? found->dtype : *dtype;
    if (found->dtype != wanted || !carry_dtype_is_real(found->dtype)) {
        return carry_fail(state->ctx, CARRY_EFORMAT, "%s: %s is %s: expected %s", path, p->name,
                          carry_dtype_name(found->dtype),
                          carry_dtype_is_real(wanted) ? carry_dtype_name(wanted) : "f32, bf16 or f16");
    }
    *dtype = p->about->grows ? found->dtype : *dtype;
    return CARRY_OK;
}

/* Makes all checks that must pass before the state is changed. */
static carry_status check_file(const carry_lm_state *state, const carry_state_file *f, const char *path,
                               carry_dtype *dtype) {
    uint64_t hash;
    int64_t needed = 0;
    CARRY_TRY(carry_lm_hash(state->lm, &hash));
    if (f->about.model != hash) {
        char has[CARRY_HASH_TEXT];
        char needs[CARRY_HASH_TEXT];
        return carry_fail(state->ctx, CARRY_EFORMAT,
                          "%s is the state of another model: the hash of its configuration and weights is %s, not %s",
                          path, carry_hash_text(has, f->about.model), carry_hash_text(needs, hash));
    }
    *dtype = CARRY_I64;
    for (int64_t i = 0; i < state->layers * CARRY_LM_STATE_PARTS; i++) {
        const part p = part_at(state, i);
        CARRY_TRY(check_part(state, &p, f->about.tokens, &f->file, path, dtype));
        needed += carry_safetensors_find(&f->file, p.name) != NULL;
    }
    return needed == f->file.count
               ? CARRY_OK
               : carry_fail(state->ctx, CARRY_EFORMAT, "%s has %" PRId64 " tensors: the model needs %" PRId64, path,
                            f->file.count, needed);
}

carry_status carry_lm_state_take(carry_lm_state *state, int64_t sequence, const carry_state_file *f, const char *path) {
    const int64_t tokens = f->about.tokens;
    carry_dtype dtype;
    carry_status status = CARRY_OK;
    CARRY_TRY(check_sequence(state, sequence));
    CARRY_TRY(check_file(state, f, path, &dtype));
    CARRY_TRY(carry_lm_state_clear(state, sequence));
    if (dtype != CARRY_I64) {
        CARRY_TRY(carry_lm_state_fit(state, tokens, dtype));
    }
    for (int64_t i = 0; status == CARRY_OK && i < state->layers * CARRY_LM_STATE_PARTS; i++) {
        const part p = part_at(state, i);
        const carry_tensor *found = carry_safetensors_find(&f->file, p.name);
        status = found != NULL ? move_part(state, &p, sequence, tokens, found->data, false) : CARRY_OK;
    }
    if (status != CARRY_OK) { /* the device failed: leave no partly read sequence */
        (void)carry_lm_state_clear(state, sequence);
        return status;
    }
    state->length[sequence] = tokens;
    state->ids[sequence] = (carry_lm_state_ids){.count = tokens, .hash = f->about.ids};
    return CARRY_OK;
}

carry_status carry_lm_state_load(carry_lm_state *state, int64_t sequence, const char *path) {
    carry_state_file file;
    CARRY_TRY(check_sequence(state, sequence));
    CARRY_TRY(carry_state_open(state->ctx, &file, path));
    carry_status status = carry_lm_state_take(state, sequence, &file, path);
    carry_state_close(&file);
    return status;
}
