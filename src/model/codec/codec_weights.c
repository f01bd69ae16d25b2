/* The weights of a codec. */
#include "model/codec/codec_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/error.h"
#include "core/tensor.h"

#define NAME_BYTES 128

bool carry_codec_is_counting(const carry_codec_loading *l) {
    return l->arena.base == NULL;
}

static carry_status find(carry_codec_loading *l, const carry_tensor **found, const char *name) {
    char other[NAME_BYTES];
    *found = carry_weights_find(&l->weights, name);
    if (*found == NULL && l->other != NULL && l->other(l->user, name, other, sizeof other)) {
        *found = carry_weights_find(&l->weights, other);
    }
    if (*found == NULL) {
        return carry_fail(l->ctx, CARRY_EFORMAT, "%s has no tensor %s, which %s needs", l->folder, name, l->what);
    }
    if (!carry_dtype_is_real((*found)->dtype)) {
        return carry_fail(l->ctx, CARRY_EDTYPE, "%s: %s is %s: f32, bf16 or f16 is needed", l->folder, name,
                          carry_dtype_name((*found)->dtype));
    }
    return CARRY_OK;
}

carry_status carry_codec_width(carry_codec_loading *l, int64_t *width, const char *name, int rank) {
    const carry_tensor *found;
    char full[NAME_BYTES];
    char has[CARRY_SHAPE_TEXT];
    (void)snprintf(full, sizeof full, "%s.weight", name);
    CARRY_TRY(find(l, &found, full));
    if (found->rank != rank || found->shape[0] < 1 || found->shape[0] > CARRY_CODEC_WIDTH_LIMIT) {
        return carry_fail(
            l->ctx, CARRY_ESHAPE, "%s: %s has shape %s where [width, ...] of rank %d is needed, the width from 1 to %d",
            l->folder, full, carry_shape_text(has, found->rank, found->shape), rank, CARRY_CODEC_WIDTH_LIMIT);
    }
    *width = found->shape[0];
    return CARRY_OK;
}

carry_status carry_codec_tensor(carry_codec_loading *l, const char *name, int rank, const int64_t *shape) {
    const carry_tensor *found;
    char has[CARRY_SHAPE_TEXT];
    char needs[CARRY_SHAPE_TEXT];
    CARRY_TRY(find(l, &found, name));
    if (found->rank != rank || memcmp(found->shape, shape, (size_t)rank * sizeof *shape) != 0) {
        return carry_fail(l->ctx, CARRY_ESHAPE, "%s: %s has shape %s where the other weights need %s", l->folder, name,
                          carry_shape_text(has, found->rank, found->shape), carry_shape_text(needs, rank, shape));
    }
    if (carry_codec_is_counting(l)) {
        const size_t count = (size_t)carry_tensor_count(found);
        l->widest = count > l->widest ? count : l->widest;
        if (l->count < l->weights.count) {
            l->used[l->count] = found;
        }
        l->count++;
        return CARRY_OK;
    }
    return carry_convert(l->ctx, carry_view(l->wide[0], CARRY_F32, rank, shape), *found);
}

carry_tensor carry_codec_take(carry_codec_loading *l, carry_dtype dtype, int rank, const int64_t *shape) {
    return carry_arena_tensor(&l->arena, l->device, dtype, rank, shape);
}

carry_status carry_codec_fill(carry_codec_loading *l, carry_tensor to, const float *from) {
    if (carry_codec_is_counting(l)) {
        return CARRY_OK;
    }
    return carry_copy(l->ctx, to, carry_view((float *)from, CARRY_F32, to.rank, to.shape));
}

carry_status carry_codec_vector(carry_codec_loading *l, carry_tensor *to, const char *name, int rank,
                                const int64_t *shape) {
    *to = carry_codec_take(l, CARRY_F32, 1, shape);
    CARRY_TRY(carry_codec_tensor(l, name, rank, shape));
    return carry_codec_fill(l, *to, l->wide[0]);
}

carry_status carry_codec_pack(carry_codec_loading *l, carry_codec_conv *conv, const float *from, int64_t first) {
    const int64_t side = conv->form == CARRY_CONV2D_POINT ? 1 : 3;
    const int64_t shape[] = {conv->out, conv->in, side, side};
    const int64_t count = carry_conv2d_packed(conv->form, conv->out, conv->in);
    conv->w = carry_codec_take(l, l->dtype, 1, &count);
    if (carry_codec_is_counting(l)) {
        return CARRY_OK;
    }
    carry_tensor wide = carry_view((float *)from, CARRY_F32, 4, shape);
    if (l->device != 0) {
        const carry_tensor staged = carry_view_on(l->device, l->staged, CARRY_F32, 4, shape);
        CARRY_TRY(carry_copy(l->ctx, staged, wide));
        wide = staged;
    }
    return carry_conv2d_pack(l->ctx, conv->w, wide, conv->form, first);
}

carry_status carry_codec_conv_read(carry_codec_loading *l, carry_codec_conv *conv, const char *name, int64_t first,
                                   bool has_bias) {
    char full[NAME_BYTES];
    const int64_t side = conv->form == CARRY_CONV2D_POINT ? 1 : 3;
    const int64_t shape[] = {conv->out, conv->in, side, side};
    conv->bias = (carry_tensor){0};
    (void)snprintf(full, sizeof full, "%s.weight", name);
    CARRY_TRY(carry_codec_tensor(l, full, 4, shape));
    CARRY_TRY(carry_codec_pack(l, conv, l->wide[0], first));
    if (!has_bias) {
        return CARRY_OK;
    }
    (void)snprintf(full, sizeof full, "%s.bias", name);
    return carry_codec_vector(l, &conv->bias, full, 1, &conv->out);
}

/* Called after all tensors were read: fails if the folder has others. */
static carry_status refuse_surplus(const carry_codec_loading *l) {
    for (int64_t i = 0; i < l->weights.count; i++) {
        const char *name = carry_weights_name(&l->weights, i);
        const carry_tensor *tensor = carry_weights_find(&l->weights, name);
        int64_t at = 0;
        while (at < l->count && at < l->weights.count && l->used[at] != tensor) {
            at++;
        }
        if (at == l->count || at == l->weights.count) {
            char has[CARRY_SHAPE_TEXT];
            return carry_fail(l->ctx, CARRY_EFORMAT, "%s: the tensor %.80s of shape %s has no place in %s", l->folder,
                              name, carry_shape_text(has, tensor->rank, tensor->shape), l->what);
        }
    }
    return CARRY_OK;
}

static carry_status no_memory(const carry_codec_loading *l) {
    return carry_fail(l->ctx, CARRY_EMEMORY, "out of memory: the weights of %s", l->folder);
}

static carry_status load(carry_codec_loading *l, void **memory,
                         carry_status (*read)(carry_codec_loading *l, void *user), void *user) {
    size_t bytes = 0;
    l->used = calloc((size_t)l->weights.count + 1, sizeof(void *));
    if (l->used == NULL) {
        return no_memory(l);
    }
    CARRY_TRY(read(l, user));
    CARRY_TRY(refuse_surplus(l));
    for (int i = 0; i < 2; i++) {
        l->wide[i] = malloc(l->widest * sizeof(float));
    }
    if (!carry_arena_total(&l->arena, &bytes) || l->wide[0] == NULL || l->wide[1] == NULL) {
        return no_memory(l);
    }
    CARRY_TRY(carry_device_alloc(l->ctx, memory, l->device, bytes));
    if (l->device != 0) {
        CARRY_TRY(carry_device_alloc(l->ctx, &l->staged, l->device, l->widest * sizeof(float)));
    }
    l->arena = carry_arena_over(*memory, bytes);
    return read(l, user);
}

carry_status carry_codec_load(carry_codec_loading *l, const carry_codec_size *size, void **memory,
                              carry_status (*read)(carry_codec_loading *l, void *user), void *user) {
    l->device = size->device;
    l->dtype = size->dtype;
    l->user = user;
    *memory = NULL;
    CARRY_TRY(carry_weights_open(l->ctx, &l->weights, l->folder));
    const carry_status status = load(l, memory, read, user);
    if (status != CARRY_OK) {
        carry_codec_memory_free(l->ctx, l->device, *memory);
        *memory = NULL;
    }
    carry_codec_memory_free(l->ctx, l->device, l->staged);
    free(l->wide[0]);
    free(l->wide[1]);
    free(l->used);
    carry_weights_close(&l->weights);
    return status;
}

void carry_codec_memory_free(carry_ctx *ctx, int device, void *memory) {
    if (memory != NULL) {
        carry_device_free(ctx, device, memory);
    }
}
