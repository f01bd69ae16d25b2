/* Dropout on the CPU. */
#include "ops/dropout.h"

#include <string.h>

#include "core/context.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/nn.h"
#include "ops/table.h"

#define BLOCK 1024 /* elements, a multiple of 4 */

typedef struct job {
    const carry_kernels *kernels;
    carry_tensor y, x;
    int64_t count;
    uint64_t seed, stream;
    uint32_t bound;
    float factor;
} job;

static void drop_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    const size_t size = carry_dtype_size(j->x.dtype);
    (void)worker;
    for (int64_t block = begin; block < end; block++) {
        float values[BLOCK];
        const int64_t first = block * BLOCK;
        const int64_t count = j->count - first < BLOCK ? j->count - first : BLOCK;
        carry_widen(j->kernels, values, (const char *)j->x.data + (size_t)first * size, j->x.dtype, count);
        for (int64_t i = 0; i < count; i += 4) {
            const carry_words words = carry_philox(j->seed, j->stream, (uint64_t)(first + i) / 4);
            for (int64_t k = 0; k < 4 && i + k < count; k++) {
                values[i + k] = words.word[k] < j->bound ? 0.0f : values[i + k] * j->factor;
            }
        }
        carry_narrow(j->kernels, (char *)j->y.data + (size_t)first * size, values, j->y.dtype, count);
    }
}

carry_status carry_cpu_dropout(carry_ctx *ctx, carry_tensor y, carry_tensor x, double share, uint64_t seed,
                               uint64_t stream) {
    job j = {.y = y,
             .x = x,
             .count = carry_tensor_count(&x),
             .seed = seed,
             .stream = stream,
             .bound = carry_dropout_bound(share),
             .factor = (float)(1.0 / (1.0 - share))};
    CARRY_TRY(carry_kernels_of(ctx, &j.kernels));
    carry_parallel(ctx, (j.count + BLOCK - 1) / BLOCK, 4, drop_blocks, &j);
    return CARRY_OK;
}

carry_status carry_dropout(carry_ctx *ctx, carry_tensor y, carry_tensor x, double share, uint64_t seed,
                           uint64_t stream) {
    CARRY_OPERATOR(ctx, operators, dropout, &x)
    CARRY_TRY(carry_expect_like(ctx, "x", &x, &x));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    if (!(share >= 0.0 && share < 1.0)) {
        return carry_fail(ctx, CARRY_ERANGE, "dropout of %g: expected at least 0 and less than 1", share);
    }
    return operators->dropout(ctx, y, x, share, seed, stream);
}
