/* Times of the operators of a mixture of experts on a GPU, in bf16, with the sizes of a layer of Qwen3.5-35B-A3B:
   hidden size 2048, 256 experts of width 512, 8 for each token. Each line: the median of repeats, each the mean of 10
   calls on one stream; TFLOP/s of products, beside a dense product of the same work. */
#include <stdio.h>
#include <stdlib.h>

#include "carry/context.h"
#include "carry/device.h"
#include "carry/nn.h"
#include "carry/ops.h"
#include "core/clock.h"
#include "ops/experts.h"
#include "ops/sampler.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})
#define CALLS 10
#define REPEATS 9

enum { EXPERTS = 256, CHOSEN = 8, HIDDEN = 2048, WIDTH = 512 };

static carry_ctx *ctx;
static carry_stream *stream;

static void must(carry_status status) {
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "%s\n", carry_ctx_error(ctx));
        exit(1);
    }
}

static carry_tensor make(carry_dtype type, int rank, const int64_t *shape) {
    static uint64_t number;
    carry_tensor x = carry_view_on(1, NULL, type, rank, shape);
    int64_t count = 1;
    for (int i = 0; i < rank; i++) {
        count *= shape[i];
    }
    must(carry_device_alloc(ctx, &x.data, 1, (size_t)count * carry_dtype_size(type)));
    must(type == CARRY_I64 ? carry_zero(ctx, x) : carry_random_fill(ctx, x, 7, number++, 0.0f, 0.5f));
    return x;
}

static int by_time(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *name, int64_t tokens, double flops, double *seconds) {
    qsort(seconds, REPEATS, sizeof *seconds, by_time);
    const double middle = seconds[REPEATS / 2];
    (void)printf("%6lld tokens  %-26s %9.1f us", (long long)tokens, name, 1e6 * middle);
    if (flops > 0.0) {
        (void)printf("  %6.1f TFLOP/s", 1e-12 * flops / middle);
    }
    (void)printf("\n");
}

#define TIME(name, flops, call)                                     \
    do {                                                            \
        double seconds_[REPEATS];                                   \
        must(call);                                                 \
        must(carry_stream_wait(ctx, 1, stream));                    \
        for (int repeat_ = 0; repeat_ < REPEATS; repeat_++) {       \
            const double start_ = carry_seconds();                  \
            for (int call_ = 0; call_ < CALLS; call_++) {           \
                must(call);                                         \
            }                                                       \
            must(carry_stream_wait(ctx, 1, stream));                \
            seconds_[repeat_] = (carry_seconds() - start_) / CALLS; \
        }                                                           \
        report(name, T, flops, seconds_);                           \
    } while (0)

static void time_layer(int64_t T, carry_tensor up, carry_tensor down, carry_tensor dense) {
    const int64_t P = T * CHOSEN;
    const carry_router router = {.normalise = true, .scale = 1.0f};
    const double work = 2.0 * (double)P * HIDDEN * 2 * WIDTH;
    carry_tensor x = make(CARRY_BF16, 2, SHAPE(T, HIDDEN)), rows = make(CARRY_BF16, 2, SHAPE(P, HIDDEN));
    carry_tensor both = make(CARRY_BF16, 2, SHAPE(P, 2 * WIDTH)), active = make(CARRY_BF16, 2, SHAPE(P, WIDTH));
    carry_tensor logits = make(CARRY_BF16, 2, SHAPE(T, EXPERTS)), weights = make(CARRY_F32, 2, SHAPE(T, CHOSEN));
    carry_tensor chosen = make(CARRY_I64, 2, SHAPE(T, CHOSEN)), pair = make(CARRY_I64, 1, &P);
    carry_tensor place = make(CARRY_I64, 1, &P), offsets = make(CARRY_I64, 1, SHAPE(EXPERTS + 1));
    carry_tensor y = make(CARRY_BF16, 2, SHAPE(P, HIDDEN));
    const carry_tensor none = {0};
    TIME("route", 0.0, carry_route(ctx, weights, chosen, logits, none, &router));
    TIME("sort_experts", 0.0, carry_sort_experts(ctx, pair, place, offsets, chosen));
    TIME("gather_pairs", 0.0, carry_gather_pairs(ctx, rows, x, pair, none));
    TIME("grouped up 2048 -> 1024", work, carry_grouped_linear(ctx, both, rows, up, offsets));
    TIME("dense 2048 -> 1024", work, carry_linear(ctx, both, rows, dense, false));
    TIME("grouped down 512 -> 2048", work / 2, carry_grouped_linear(ctx, y, active, down, offsets));
    TIME("combine_pairs", 0.0, carry_combine_pairs(ctx, x, x, y, place, weights));
    if (T >= 1024) {
        TIME("grouped up, dx", work, carry_grouped_linear_backward(ctx, rows, none, both, rows, up, offsets, false));
        carry_tensor dW = make(CARRY_F32, 3, SHAPE(EXPERTS, 2 * WIDTH, HIDDEN));
        TIME("grouped up, dW", work, carry_grouped_linear_backward(ctx, none, dW, both, rows, up, offsets, false));
    }
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    if (carry_ctx_new(&ctx, NULL) != CARRY_OK) {
        return 1;
    }
    must(carry_stream_new(ctx, &stream, 1));
    must(carry_ctx_set_stream(ctx, 1, stream));
    carry_tensor up = make(CARRY_BF16, 3, SHAPE(EXPERTS, 2 * WIDTH, HIDDEN));
    carry_tensor down = make(CARRY_BF16, 3, SHAPE(EXPERTS, HIDDEN, WIDTH));
    carry_tensor dense = make(CARRY_BF16, 2, SHAPE(2 * WIDTH, HIDDEN));
    const int64_t tokens[] = {8192, 64, 1};
    for (int i = 0; i < 3; i++) {
        time_layer(tokens[i], up, down, dense);
    }
    return 0;
}
