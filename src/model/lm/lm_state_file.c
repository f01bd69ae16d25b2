/* The state of a sequence in a file, so that a long prompt is read once: a safetensors file with every part of every
   layer, the number of tokens read, and a checksum of the model that read them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/file.h"
#include "core/tensor.h"
#include "model/host.h"
#include "model/lm/lm_pass.h"

#define NAME 64
#define SAMPLE 64 /* elements of each parameter that the checksum is of */

typedef struct state_file {
    carry_safetensors_item *items;
    char (*names)[NAME];
    unsigned char *bytes; /* of all parts, in host memory */
    int64_t count;
} state_file;

/* Names, shapes and some weights of a model: a state means nothing to another one. */
static carry_status model_sum(const carry_lm *lm, char text[16]) {
    uint32_t sum = 0;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_parameter *p = &lm->own.parameter[i];
        float sample[SAMPLE];
        const int64_t count = p->count < SAMPLE ? p->count : SAMPLE;
        CARRY_TRY(carry_parameters_sample(&lm->own, sample, i, count));
        sum = carry_crc32c(sum, p->name, strlen(p->name));
        sum = carry_crc32c(sum, p->shape, (size_t)p->rank * sizeof *p->shape);
        sum = carry_crc32c(sum, sample, (size_t)count * sizeof *sample);
    }
    (void)snprintf(text, 16, "%08x", sum);
    return CARRY_OK;
}

/* The shape of a part of one sequence after `tokens`; 0 elements: there is nothing to store. */
static int64_t part_shape(const carry_lm_state_part *about, int64_t tokens, int64_t shape[4]) {
    int64_t count = about->rank > 0 ? 1 : 0;
    for (int i = 0; i < about->rank; i++) {
        shape[i] = i == 0 && about->grows ? tokens : about->shape[i];
        count *= shape[i];
    }
    return count;
}

/* Between a sequence's part and packed host memory: a slice after the other. */
static carry_status move_part(carry_lm_state *state, int64_t layer, int i, int64_t sequence, int64_t tokens,
                              void *bytes, bool to_host) {
    const carry_lm_state_part *about = &state->about[layer][i];
    const carry_tensor *part = &state->part[layer][i];
    int64_t shape[4];
    const int64_t count = part_shape(about, tokens, shape) / about->slices;
    const int64_t whole = carry_tensor_count(part) / state->batch / about->slices; /* of a cache: all its room */
    const size_t size = carry_dtype_size(part->dtype);
    for (int64_t slice = 0; slice < about->slices; slice++) {
        const carry_tensor host =
            carry_view_1d((unsigned char *)bytes + (size_t)(slice * count) * size, part->dtype, count);
        carry_tensor there = carry_reshape_1d(*part, carry_tensor_count(part));
        there = carry_slice(there, (slice * state->batch + sequence) * whole, count);
        CARRY_TRY(to_host ? carry_read(state->ctx, host, there) : carry_copy(state->ctx, there, host));
    }
    return CARRY_OK;
}

static carry_status gather(carry_lm_state *state, int64_t sequence, state_file *f) {
    const int64_t tokens = state->length[sequence];
    const size_t most = (size_t)state->layers * CARRY_LM_STATE_PARTS;
    size_t bytes = 0;
    f->items = calloc(most, sizeof *f->items);
    f->names = calloc(most, sizeof *f->names);
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        f->count = 0;
        f->bytes = pass == 1 ? carry_aligned_new(bytes > 0 ? bytes : 1) : NULL;
        if (f->items == NULL || f->names == NULL || (pass == 1 && f->bytes == NULL)) {
            return carry_fail(state->ctx, CARRY_EMEMORY, "out of memory: a state of %" PRId64 " tokens", tokens);
        }
        for (int64_t part = 0; part < (int64_t)most; part++) {
            const int64_t layer = part / CARRY_LM_STATE_PARTS;
            const int i = (int)(part % CARRY_LM_STATE_PARTS);
            const carry_lm_state_part *about = &state->about[layer][i];
            int64_t shape[4];
            const int64_t count = part_shape(about, tokens, shape);
            const carry_dtype dtype = about->grows ? state->dtype : CARRY_F32;
            if (count == 0) {
                continue;
            }
            if (pass == 1) {
                CARRY_TRY(move_part(state, layer, i, sequence, tokens, f->bytes + at, true));
                (void)snprintf(f->names[f->count], NAME, "layers.%" PRId64 ".%d", layer, i);
                f->items[f->count] =
                    (carry_safetensors_item){.name = f->names[f->count],
                                             .tensor = carry_view(f->bytes + at, dtype, about->rank, shape),
                                             .dtype = dtype};
            }
            at += (size_t)count * carry_dtype_size(dtype);
            f->count++;
        }
        bytes = at;
    }
    return CARRY_OK;
}

carry_status carry_lm_state_save(carry_lm_state *state, int64_t sequence, const char *path) {
    state_file f = {0};
    char sum[16];
    char tokens[24];
    if (sequence < 0 || sequence >= state->batch) {
        return carry_fail(state->ctx, CARRY_EARGUMENT, "there is no sequence %" PRId64 " among %" PRId64, sequence,
                          state->batch);
    }
    CARRY_TRY(model_sum(state->lm, sum));
    (void)snprintf(tokens, sizeof tokens, "%" PRId64, state->length[sequence]);
    const char *const notes[] = {"carry_state", "1", "model", sum, "tokens", tokens, NULL};
    carry_status status = gather(state, sequence, &f);
    status = status == CARRY_OK ? carry_safetensors_write(state->ctx, path, f.items, f.count, notes) : status;
    free(f.items);
    free(f.names);
    free(f.bytes);
    return status;
}

/* Everything that must hold before anything of the state is changed. */
static carry_status check_file(carry_lm_state *state, const carry_safetensors *file, const char *path, int64_t *tokens,
                               carry_dtype *dtype) {
    char sum[16];
    const char *model = carry_safetensors_metadata(file, "model");
    const char *text = carry_safetensors_metadata(file, "tokens");
    if (carry_safetensors_metadata(file, "carry_state") == NULL || model == NULL || text == NULL) {
        return carry_fail(state->ctx, CARRY_EFORMAT, "%s is not a state that carry saved", path);
    }
    CARRY_TRY(model_sum(state->lm, sum));
    if (strcmp(model, sum) != 0) {
        return carry_fail(state->ctx, CARRY_EFORMAT, "%s is the state of another model: its checksum is %.16s, not %s",
                          path, model, sum);
    }
    *tokens = strtoll(text, NULL, 10);
    *dtype = CARRY_F32;
    for (int64_t part = 0; part < state->layers * CARRY_LM_STATE_PARTS; part++) {
        const carry_lm_state_part *about = &state->about[part / CARRY_LM_STATE_PARTS][part % CARRY_LM_STATE_PARTS];
        int64_t shape[4];
        char name[NAME];
        if (*tokens < 0 || part_shape(about, *tokens, shape) == 0) {
            continue;
        }
        (void)snprintf(name, sizeof name, "layers.%" PRId64 ".%" PRId64, part / CARRY_LM_STATE_PARTS,
                       part % CARRY_LM_STATE_PARTS);
        const carry_tensor *found = carry_safetensors_find(file, name);
        if (found == NULL || found->rank != about->rank ||
            memcmp(found->shape, shape, (size_t)about->rank * sizeof *shape) != 0 ||
            (!about->grows && found->dtype != CARRY_F32)) {
            return carry_fail(state->ctx, CARRY_EFORMAT, "%s: %s is missing or has another shape than the model's",
                              path, name);
        }
        *dtype = about->grows ? found->dtype : *dtype;
    }
    return *tokens >= 0 ? CARRY_OK : carry_fail(state->ctx, CARRY_EFORMAT, "%s: a state of %.20s tokens", path, text);
}

static carry_status load_parts(carry_lm_state *state, int64_t sequence, const carry_safetensors *file,
                               const char *path) {
    int64_t tokens;
    carry_dtype dtype;
    CARRY_TRY(check_file(state, file, path, &tokens, &dtype));
    CARRY_TRY(carry_lm_state_clear(state, sequence));
    CARRY_TRY(carry_lm_state_reserve(state, tokens, dtype));
    for (int64_t part = 0; part < state->layers * CARRY_LM_STATE_PARTS; part++) {
        const int64_t layer = part / CARRY_LM_STATE_PARTS;
        const int i = (int)(part % CARRY_LM_STATE_PARTS);
        int64_t shape[4];
        char name[NAME];
        if (part_shape(&state->about[layer][i], tokens, shape) > 0) {
            (void)snprintf(name, sizeof name, "layers.%" PRId64 ".%d", layer, i);
            CARRY_TRY(move_part(state, layer, i, sequence, tokens, carry_safetensors_find(file, name)->data, false));
        }
    }
    state->length[sequence] = tokens;
    return CARRY_OK;
}

carry_status carry_lm_state_load(carry_lm_state *state, int64_t sequence, const char *path) {
    carry_safetensors file;
    if (sequence < 0 || sequence >= state->batch) {
        return carry_fail(state->ctx, CARRY_EARGUMENT, "there is no sequence %" PRId64 " among %" PRId64, sequence,
                          state->batch);
    }
    CARRY_TRY(carry_safetensors_open(state->ctx, &file, path));
    carry_status status = load_parts(state, sequence, &file, path);
    carry_safetensors_close(&file);
    return status;
}
