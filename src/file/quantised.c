/* Makes rows of blocks from the layouts of Hugging Face folders. */
#include "file/quantised.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"

#define WIDE 128
#define GRAIN 8 /* rows handed to a thread */

static carry_status bad_shape(carry_ctx *ctx, const char *name, const char *part, const carry_tensor *has,
                              const char *needs) {
    char shape[CARRY_SHAPE_TEXT];
    return carry_fail(ctx, CARRY_ESHAPE, "%s.%s has shape %s (%s): expected %s", name, part,
                      carry_shape_text(shape, has->rank, has->shape), carry_dtype_name(has->dtype), needs);
}

/* Finds the tensor `name`.`part`, which must have this type (CARRY_F32 means f32, bf16 or f16) and shape. */
static carry_status take(carry_ctx *ctx, carry_tensor *to, const char *name, const char *part, carry_dtype dtype,
                         int64_t rows, int64_t columns, carry_quant_find find, const void *user) {
    char whole[CARRY_SAFETENSORS_NAME];
    char needs[96];
    (void)snprintf(whole, sizeof whole, "%s.%s", name, part);
    const carry_tensor *found = find(user, whole);
    if (found == NULL) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s is quantised and has no tensor %s", name, whole);
    }
    const bool has_type = dtype == CARRY_F32 ? carry_dtype_is_real(found->dtype) : found->dtype == dtype;
    const bool is_row = columns == 1 && found->rank == 1 && found->shape[0] == rows;
    if (!has_type || (!is_row && (found->rank != 2 || found->shape[0] != rows || found->shape[1] != columns))) {
        (void)snprintf(needs, sizeof needs, "[%" PRId64 ", %" PRId64 "] in %s", rows, columns,
                       dtype == CARRY_F32 ? "f32, bf16 or f16" : carry_dtype_name(dtype));
        return bad_shape(ctx, name, part, found, needs);
    }
    *to = *found;
    return CARRY_OK;
}

static carry_status make_wide(carry_ctx *ctx, carry_quant_source *s, const char *name, carry_quant_find find,
                              const void *user) {
    const bool is_fp8 = s->layout == CARRY_QUANT_FP8;
    char whole[CARRY_SAFETENSORS_NAME];
    (void)snprintf(whole, sizeof whole, "%s.weight", name);
    const carry_tensor *values = find(user, whole);
    if (values == NULL || values->rank != 2 || values->dtype != (is_fp8 ? CARRY_F8 : CARRY_I8)) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s is not a matrix in %s, which quantization_config promises", whole,
                          is_fp8 ? "f8_e4m3" : "i8");
    }
    s->values = *values;
    s->rows = values->shape[0];
    s->columns = values->shape[1];
    s->format = is_fp8 ? &carry_quant_fp8_block : &carry_quant_int8;
    return is_fp8 ? take(ctx, &s->scales, name, "weight_scale_inv", CARRY_F32, (s->rows + WIDE - 1) / WIDE,
                         (s->columns + WIDE - 1) / WIDE, find, user)
                  : take(ctx, &s->scales, name, "weight_scale", CARRY_F32, s->rows, 1, find, user);
}

static carry_status make_blocks(carry_ctx *ctx, carry_quant_source *s, const char *name, carry_quant_find find,
                                const void *user) {
    const int64_t bytes = (int64_t)s->format->bytes;
    char whole[CARRY_SAFETENSORS_NAME];
    (void)snprintf(whole, sizeof whole, "%s.weight", name);
    const carry_tensor *values = find(user, whole);
    if (values == NULL || values->rank != 2 || values->dtype != CARRY_I8 || values->shape[1] % bytes != 0) {
        return carry_fail(ctx, CARRY_EFORMAT,
                          "%s is not a matrix in i8 whose rows are blocks of %" PRId64 " bytes (%s)", whole, bytes,
                          s->format->name);
    }
    s->values = *values;
    s->rows = values->shape[0];
    s->columns = values->shape[1] / bytes * s->format->block;
    return CARRY_OK;
}

static const carry_quant_format *format_of_group(int64_t group) {
    return group == 32 ? &carry_quant_int4_g32 : group == 64 ? &carry_quant_int4_g64 : &carry_quant_int4_g128;
}

/* Checks that g_idx, the group of each input, is i / group for input i. It differs if inputs were sorted for
   quantisation (desc_act). */
static carry_status check_order(carry_ctx *ctx, const carry_quant_source *s, const char *name, carry_quant_find find,
                                const void *user) {
    char whole[CARRY_SAFETENSORS_NAME];
    carry_tensor order;
    (void)snprintf(whole, sizeof whole, "%s.g_idx", name);
    if (find(user, whole) == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(take(ctx, &order, name, "g_idx", CARRY_I32, s->columns, 1, find, user));
    for (int64_t i = 0; i < s->columns; i++) {
        const int32_t group = ((const int32_t *)order.data)[i];
        if (group != i / s->group) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED,
                              "%s: input %" PRId64 " is of group %d and not %" PRId64
                              ": inputs sorted by desc_act are not supported",
                              whole, i, (int)group, i / s->group);
        }
    }
    return CARRY_OK;
}

static carry_status make_int4(carry_ctx *ctx, carry_quant_source *s, const char *name, carry_quant_find find,
                              const void *user) {
    const bool is_awq = s->layout == CARRY_QUANT_AWQ;
    char whole[CARRY_SAFETENSORS_NAME];
    (void)snprintf(whole, sizeof whole, "%s.qweight", name);
    const carry_tensor *values = find(user, whole);
    if (values == NULL || values->rank != 2 || values->dtype != CARRY_I32) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s is not a matrix in i32", whole);
    }
    s->values = *values;
    if (values->shape[0] > INT64_MAX / 8 || values->shape[1] > INT64_MAX / 8) {
        return carry_fail(ctx, CARRY_ESIZE, "%s is too large", whole);
    }
    s->columns = values->shape[0] * (is_awq ? 1 : 8);
    s->rows = values->shape[1] * (is_awq ? 8 : 1);
    s->group = s->group < 0 ? s->columns : s->group;
    if (s->group < 1 || s->columns % s->group != 0 || s->rows % 8 != 0) {
        return carry_fail(ctx, CARRY_ESHAPE, "%s is %" PRId64 " x %" PRId64 ": expected whole groups of %" PRId64,
                          whole, s->rows, s->columns, s->group);
    }
    if (s->group % 32 != 0 || (s->group > 128 && s->group % 128 != 0) || s->group == 96) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: groups of %" PRId64 ": expected 32, 64 or a multiple of 128",
                          whole, s->group);
    }
    s->format = format_of_group(s->group);
    const int64_t groups = s->columns / s->group;
    CARRY_TRY(take(ctx, &s->scales, name, "scales", CARRY_F32, groups, s->rows, find, user));
    CARRY_TRY(take(ctx, &s->zeros, name, "qzeros", CARRY_I32, groups, s->rows / 8, find, user));
    return is_awq ? CARRY_OK : check_order(ctx, s, name, find, user);
}

carry_status carry_quant_source_make(carry_ctx *ctx, carry_quant_source *source, const carry_quant_config *config,
                                     const char *name, carry_quant_find find, const void *user) {
    *source = (carry_quant_source){
        .layout = config->layout, .format = config->format, .group = config->group, .zero_plus = config->zero_plus};
    if (config->layout == CARRY_QUANT_BLOCKS) {
        return make_blocks(ctx, source, name, find, user);
    }
    return config->layout == CARRY_QUANT_FP8 || config->layout == CARRY_QUANT_INT8
               ? make_wide(ctx, source, name, find, user)
               : make_int4(ctx, source, name, find, user);
}

carry_tensor carry_quant_source_view(const carry_quant_source *source) {
    if (source->layout == CARRY_QUANT_BLOCKS) {
        return carry_quant_view(source->values.data, source->format, source->rows, source->columns);
    }
    carry_tensor view = carry_quant_view(source, source->format, source->rows, source->columns);
    view.stride[0] = 0;
    return view;
}

const carry_quant_source *carry_quant_source_of(const carry_tensor *view) {
    return view->dtype == CARRY_QUANTISED && view->stride[0] == 0 ? view->data : NULL;
}

/* Returns element `index` of a packed tensor of f32, bf16 or f16. */
static float real_at(const carry_tensor *tensor, int64_t index) {
    const unsigned char *at = (const unsigned char *)tensor->data + (size_t)index * carry_dtype_size(tensor->dtype);
    float value;
    uint16_t half;
    if (tensor->dtype == CARRY_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    return tensor->dtype == CARRY_BF16 ? carry_f32_from_bf16(half) : carry_f32_from_f16(half);
}

static void convert_wide(const carry_quant_source *s, int64_t row, unsigned char *to) {
    const unsigned char *from = (const unsigned char *)s->values.data + row * s->columns;
    const int64_t blocks = (s->columns + WIDE - 1) / WIDE;
    for (int64_t b = 0; b < blocks; b++, to += 4 + WIDE) {
        const int64_t count = s->columns - b * WIDE < WIDE ? s->columns - b * WIDE : WIDE;
        const float scale = real_at(&s->scales, s->layout == CARRY_QUANT_FP8 ? row / WIDE * blocks + b : row);
        memcpy(to, &scale, sizeof scale);
        memset(to + 4, 0, WIDE);
        memcpy(to + 4, from + b * WIDE, (size_t)count);
    }
}

/* Returns nibble `nibble` of element `index` of an i32 tensor. */
static unsigned nibble_at(const carry_tensor *tensor, int64_t index, int nibble) {
    return ((const uint32_t *)tensor->data)[index] >> (4 * nibble) & 15u;
}

static void convert_int4(const carry_quant_source *s, int64_t row, unsigned char *to) {
    static const int awq[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* awq[i]: the nibble that holds output i */
    const bool is_awq = s->layout == CARRY_QUANT_AWQ;
    const int zero_nibble = is_awq ? awq[row % 8] : (int)(row % 8);
    const int64_t block = s->format->block;
    for (int64_t at = 0; at < s->columns; at += block, to += s->format->bytes) {
        const int64_t group = at / s->group;
        const float scale = real_at(&s->scales, group * s->rows + row);
        const uint32_t zero =
            nibble_at(&s->zeros, group * (s->rows / 8) + row / 8, zero_nibble) + (uint32_t)s->zero_plus;
        memcpy(to, &scale, sizeof scale);
        memcpy(to + 4, &zero, sizeof zero);
        memset(to + 8, 0, (size_t)block / 2);
        for (int64_t i = 0; i < block; i++) {
            const int64_t column = at + i;
            const unsigned q = is_awq ? nibble_at(&s->values, column * (s->rows / 8) + row / 8, awq[row % 8])
                                      : nibble_at(&s->values, column / 8 * s->rows + row, (int)(column % 8));
            unsigned char *byte = to + 8 + i / 32 * 16 + i % 16;
            *byte = (unsigned char)(*byte | q << (i % 32 / 16 * 4));
        }
    }
}

int64_t carry_head_place(const carry_head_order *order, int64_t at) {
    if (at < order->first) {
        return at;
    }
    const int64_t head = (at - order->first) / order->size;
    const int64_t there = head % order->each * order->groups + head / order->each;
    return order->first + there * order->size + (at - order->first) % order->size;
}

/* True if every block of the format lies inside one head. */
static bool blocks_are_in_heads(const carry_quant_format *format, const carry_head_order *order) {
    return order->size % format->block == 0 && order->first % format->block == 0;
}

carry_quant_source carry_quant_source_ordered(const carry_tensor *values, const carry_head_order *order) {
    const carry_quant_format *format = carry_quant_format_of(values);
    const bool again = order->of_columns && !blocks_are_in_heads(format, order);
    return (carry_quant_source){.layout = CARRY_QUANT_ORDERED,
                                .format = again ? &carry_quant_q8_0 : format,
                                .rows = values->shape[0],
                                .columns = values->shape[1],
                                .values = *values,
                                .order = *order};
}

/* beside: workspace of 2 * columns floats. */
static void convert_ordered(const carry_quant_source *s, int64_t row, unsigned char *to, float *beside) {
    const carry_quant_format *format = carry_quant_format_of(&s->values);
    const unsigned char *rows = s->values.data;
    const size_t row_bytes = (size_t)s->values.stride[0];
    if (!s->order.of_columns) {
        memcpy(to, rows + (size_t)carry_head_place(&s->order, row) * row_bytes, row_bytes);
        return;
    }
    if (blocks_are_in_heads(format, &s->order)) {
        for (int64_t at = 0; at < s->columns; at += format->block, to += format->bytes) {
            const int64_t block = carry_head_place(&s->order, at) / format->block;
            memcpy(to, rows + (size_t)row * row_bytes + (size_t)block * format->bytes, format->bytes);
        }
        return;
    }
    carry_quant_decode(&s->values, row, 0, s->columns, beside);
    for (int64_t at = 0; at < s->columns; at++) {
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): allocated where columns are ordered
        beside[s->columns + at] = beside[carry_head_place(&s->order, at)];
    }
    s->format->encode(to, beside + s->columns, s->columns / s->format->block);
}

typedef struct convert_job {
    float *beside; /* workspace, 2 * columns floats per thread; NULL if not needed */
    const carry_quant_source *source;
    unsigned char *blocks;
    size_t row_bytes;
} convert_job;

static void convert_rows(void *argument, int64_t begin, int64_t end, int worker) {
    const convert_job *j = argument;
    const carry_quant_source *s = j->source;
    for (int64_t row = begin; row < end; row++) {
        unsigned char *to = j->blocks + (size_t)row * j->row_bytes;
        if (s->layout == CARRY_QUANT_ORDERED) {
            convert_ordered(s, row, to, j->beside != NULL ? j->beside + 2 * s->columns * worker : NULL);
        } else if (s->layout == CARRY_QUANT_FP8 || s->layout == CARRY_QUANT_INT8) {
            convert_wide(s, row, to);
        } else {
            convert_int4(s, row, to);
        }
    }
}

carry_status carry_quant_convert(carry_ctx *ctx, const carry_quant_source *source, void *blocks) {
    convert_job j = {
        .source = source, .blocks = blocks, .row_bytes = carry_quant_row_bytes(source->format, source->columns)};
    if (source->layout == CARRY_QUANT_ORDERED && source->order.of_columns) {
        const int64_t sizes[] = {carry_ctx_threads(ctx), 2, source->columns};
        size_t bytes;
        j.beside = carry_size_product(&bytes, sizes, 3, sizeof(float)) ? malloc(bytes) : NULL;
        if (j.beside == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a row of %" PRId64 " columns", source->columns);
        }
    }
    carry_parallel(ctx, source->rows, GRAIN, convert_rows, &j);
    free(j.beside);
    return CARRY_OK;
}
