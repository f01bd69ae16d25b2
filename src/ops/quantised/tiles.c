/* Sizes of quantised matrices in tiles, and of products with them. */
#include "ops/quantised/tiles.h"

#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "ops/cpu.h"
#include "ops/quantised/tile_product.h"

#define ALIGNED 128 /* bytes */

static const struct {
    int bits, group;
    bool has_minimum, has_wide_scales;
} shapes[] = {
    [CARRY_QUANT_IS_fp8_block] = {8, 128, false, true}, [CARRY_QUANT_IS_int8] = {8, 128, false, true},
    [CARRY_QUANT_IS_int4_g32] = {4, 32, true, false},   [CARRY_QUANT_IS_int4_g64] = {4, 64, true, false},
    [CARRY_QUANT_IS_int4_g128] = {4, 128, true, false}, [CARRY_QUANT_IS_q8_0] = {8, 32, false, false},
    [CARRY_QUANT_IS_q4_0] = {4, 32, false, false},      [CARRY_QUANT_IS_q4_k] = {4, 32, true, false},
    [CARRY_QUANT_IS_q5_k] = {8, 32, true, false},       [CARRY_QUANT_IS_q6_k] = {8, 16, false, false},
};

#define SHAPES (int64_t)(sizeof shapes / sizeof shapes[0])

static size_t aligned(size_t bytes) {
    return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

bool carry_quant_tiles_of(carry_quant_tiles *layout, int64_t format, int64_t rows, int64_t columns) {
    if (format < 0 || format >= SHAPES || rows < 0 || columns < 0 || rows > INT32_MAX || columns > INT32_MAX) {
        return false;
    }
    const int64_t tiles = (rows + CARRY_QUANT_TILE_ROWS - 1) / CARRY_QUANT_TILE_ROWS;
    const int64_t units = (columns + CARRY_QUANT_UNIT_COLUMNS - 1) / CARRY_QUANT_UNIT_COLUMNS;
    const int bits = shapes[format].bits;
    const int group = shapes[format].group;
    const size_t each = shapes[format].has_wide_scales || shapes[format].has_minimum ? 64 : 32; /* 16 rows */
    *layout = (carry_quant_tiles){.format = (int)format,
                                  .bits = bits,
                                  .group = group,
                                  .has_minimum = shapes[format].has_minimum,
                                  .has_wide_scales = shapes[format].has_wide_scales,
                                  .rows = rows,
                                  .columns = columns,
                                  .tiles = tiles,
                                  .units = units};
    layout->code_bytes = (size_t)(CARRY_QUANT_TILE_ROWS * CARRY_QUANT_UNIT_COLUMNS * bits / 8);
    layout->unit_bytes = layout->code_bytes + (size_t)(CARRY_QUANT_UNIT_COLUMNS / group) * each;
    layout->factors_at = (size_t)units * layout->unit_bytes;
    layout->tile_bytes = aligned(layout->factors_at + CARRY_QUANT_TILE_ROWS * sizeof(float));
    return carry_size_product(&layout->all_bytes, &tiles, 1, layout->tile_bytes);
}

carry_tensor carry_quant_tiles_view(int device, void *data, const carry_quant_tiles *layout) {
    const int64_t shape[] = {layout->rows, layout->columns};
    carry_tensor view = carry_view_on(device, data, CARRY_QUANTISED, 2, shape);
    view.stride[0] = (int64_t)(layout->tile_bytes / CARRY_QUANT_TILE_ROWS);
    view.stride[1] = layout->format;
    view.stride[2] = 0;
    return view;
}

bool carry_quant_tiles_of_tensor(carry_quant_tiles *layout, const carry_tensor *tensor) {
    return tensor->dtype == CARRY_QUANTISED && tensor->rank == 2 &&
           carry_quant_tiles_of(layout, tensor->stride[1], tensor->shape[0], tensor->shape[1]) &&
           tensor->stride[0] == (int64_t)(layout->tile_bytes / CARRY_QUANT_TILE_ROWS);
}

carry_tensor carry_quant_stack_view(int device, void *data, const carry_quant_format *format, int64_t matrices,
                                    int64_t rows, int64_t columns) {
    const int64_t shape[] = {matrices, rows, columns};
    const carry_tensor one = carry_quant_view_on(device, data, format, rows, columns);
    carry_tensor stack = carry_view_on(device, data, CARRY_QUANTISED, 3, shape);
    stack.stride[0] = rows * one.stride[0];
    for (int i = 0; i < 3; i++) {
        stack.stride[i + 1] = one.stride[i];
    }
    return stack;
}

carry_tensor carry_quant_matrix_of(const carry_tensor *stack, int64_t index) {
    carry_tensor one = *stack;
    one.rank = 2;
    for (int i = 0; i < 3; i++) {
        one.shape[i] = stack->shape[i + 1];
        one.stride[i] = stack->stride[i + 1];
    }
    one.data = (unsigned char *)stack->data + index * stack->stride[0];
    return one;
}

bool carry_quant_tiles_of_stack(carry_quant_tiles *layout, const carry_tensor *stack) {
    if (stack->dtype != CARRY_QUANTISED || stack->rank != 3 || stack->shape[1] % CARRY_QUANT_TILE_ROWS != 0) {
        return false;
    }
    const carry_tensor one = carry_quant_matrix_of(stack, 0);
    return carry_quant_tiles_of_tensor(layout, &one) && stack->stride[0] % CARRY_QUANT_TILE_ROWS == 0 &&
           stack->stride[0] >= (int64_t)layout->all_bytes;
}

carry_tensor carry_quant_view_on(int device, const void *data, const carry_quant_format *format, int64_t rows,
                                 int64_t columns) {
    carry_quant_tiles layout;
    if (device == 0 || !carry_quant_tiles_of(&layout, carry_quant_format_index(format), rows, columns)) {
        return carry_quant_view(data, format, rows, columns);
    }
    return carry_quant_tiles_view(device, (void *)(uintptr_t)data, &layout); /* only read */
}

bool carry_quant_bytes_on(size_t *bytes, int device, const carry_quant_format *format, int64_t rows, int64_t columns) {
    carry_quant_tiles layout;
    if (device == 0) {
        return carry_quant_bytes(bytes, format, rows, columns);
    }
    const bool fits = carry_quant_tiles_of(&layout, carry_quant_format_index(format), rows, columns);
    *bytes = fits ? layout.all_bytes : 0;
    return fits;
}

bool carry_quant_is_read_on(carry_ctx *ctx, int device) {
    const carry_operators *operators;
    int ordinal = 0;
    return device == 0 || (carry_operators_of(ctx, &operators, "quantised_pack", device, &ordinal) == CARRY_OK &&
                           operators->reads_quantised != NULL && operators->reads_quantised(ordinal));
}

carry_status carry_quant_pack(carry_ctx *ctx, carry_tensor W, const void *blocks) {
    carry_quant_tiles layout;
    CARRY_OPERATOR(ctx, operators, quantised_pack, &W)
    if (carry_quant_format_of(&W) == NULL || (W.device != 0 && !carry_quant_tiles_of_tensor(&layout, &W))) {
        return carry_fail(ctx, CARRY_ESTRIDE, "W is quantised in rows that no format has");
    }
    return operators->quantised_pack(ctx, W, blocks);
}

carry_status carry_cpu_quantised_pack(carry_ctx *ctx, carry_tensor W, const void *blocks) {
    (void)ctx;
    memcpy(W.data, blocks, (size_t)(W.shape[0] * W.stride[0]));
    return CARRY_OK;
}

void carry_tile_product_finish(carry_tile_product *p, const carry_quant_tiles *layout) {
    const size_t size = p->x_is_wide ? sizeof(float) : sizeof(uint16_t);
    p->format = layout->format;
    p->columns = (int)layout->columns;
    p->units = (int)layout->units;
    p->unit_bytes = (uint32_t)layout->unit_bytes;
    p->factors_at = (uint32_t)layout->factors_at;
    p->tile_bytes = (uint32_t)layout->tile_bytes;
    p->x_is_aligned = (uintptr_t)p->x % 16 == 0 && (size_t)p->x_stride * size % 16 == 0;
    p->tiles = 0;
    for (int i = 0; i < p->count; i++) {
        p->maps[i].first_tile = p->tiles;
        p->tiles += (p->maps[i].rows + CARRY_QUANT_TILE_ROWS - 1) / CARRY_QUANT_TILE_ROWS;
    }
    p->tiles = p->output == CARRY_TILE_SWIGLU ? p->maps[1].first_tile : p->tiles;
}
