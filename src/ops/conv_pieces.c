/* The convolution of pieces of several sequences. The CPU computes them one by one. */
#include <inttypes.h>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/cpu.h"
#include "ops/pool.h"

static carry_status expect_pieces(carry_ctx *ctx, const carry_conv_pieces_args *args) {
    const int64_t rows = args->map[0].x.shape[0];
    const int64_t slots = args->map[0].tails.shape[0];
    if (args->pieces < 0 || args->starts == NULL || (args->slots == NULL && args->pieces > 0)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%" PRId64 " pieces: expected 0 or more, with starts and slots",
                          args->pieces);
    }
    for (int64_t i = 0; i < args->pieces; i++) {
        const int64_t begin = args->starts[i];
        const int64_t end = args->starts[i + 1];
        if (begin < 0 || end <= begin || end > rows || args->slots[i] < 0 || args->slots[i] >= slots) {
            return carry_fail(ctx, CARRY_ERANGE,
                              "piece %" PRId64 ": rows %" PRId64 " to %" PRId64 ", slot %" PRId32 ": of %" PRId64
                              " rows and %" PRId64 " slots",
                              i, begin, end - 1, args->slots[i], rows, slots);
        }
    }
    return CARRY_OK;
}

carry_status carry_conv_pieces(carry_ctx *ctx, const carry_conv_pieces_args *args) {
    CARRY_OPERATOR(ctx, operators, conv_pieces, &args->map[0].x)
    if (args->maps < 1 || args->maps > CARRY_CONV_STEP_MAPS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%d inputs of pieces: expected 1 to %d", args->maps,
                          CARRY_CONV_STEP_MAPS);
    }
    for (int i = 0; i < args->maps; i++) {
        CARRY_TRY(carry_conv_expect_map(ctx, &args->map[i], &args->map[0]));
        if (args->map[i].tails.shape[0] != args->map[0].tails.shape[0]) {
            return carry_fail(ctx, CARRY_ESHAPE, "tails of %" PRId64 " and of %" PRId64 " slots",
                              args->map[0].tails.shape[0], args->map[i].tails.shape[0]);
        }
    }
    CARRY_TRY(expect_pieces(ctx, args));
    return operators->conv_pieces(ctx, args);
}

/* Rows begin..end-1 as [1, rows, channels]; the row stride may be larger than the row. */
static carry_tensor piece_of(carry_tensor rows, int64_t begin, int64_t end) {
    const carry_tensor flat = carry_slice(rows, begin, end - begin);
    carry_tensor view = carry_reshape_3d(flat, 1, end - begin, rows.shape[1]);
    view.stride[1] = rows.stride[0];
    view.stride[0] = rows.stride[0] * (end - begin);
    return view;
}

carry_status carry_conv_each_piece(carry_ctx *ctx, const carry_conv_pieces_args *args) {
    for (int64_t i = 0; i < args->pieces; i++) {
        for (int j = 0; j < args->maps; j++) {
            const carry_conv_step_map *map = &args->map[j];
            const carry_tensor tail = carry_slice(map->tails, args->slots[i], 1);
            CARRY_TRY(carry_conv(ctx, &(carry_conv_args){.y = piece_of(map->y, args->starts[i], args->starts[i + 1]),
                                                         .x = piece_of(map->x, args->starts[i], args->starts[i + 1]),
                                                         .w = map->w,
                                                         .before = tail,
                                                         .after = tail,
                                                         .activation = map->activation}));
        }
    }
    return CARRY_OK;
}

carry_status carry_cpu_conv_pieces(carry_ctx *ctx, const carry_conv_pieces_args *args) {
    return carry_conv_each_piece(ctx, args);
}
