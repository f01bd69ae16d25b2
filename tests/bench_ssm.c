/* Times of state space layers on a GPU in bf16, with the sizes of a layer of Nemotron-H-8B: 128 heads of 64, states of
   128, 8 groups. Each line: the median of repeats, each the mean of 10 calls on one stream. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "carry/context.h"
#include "carry/device.h"
#include "carry/nn.h"
#include "carry/ops.h"
#include "core/clock.h"
#include "ops/sampler.h"
#include "ops/ssm.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})
#define CALLS 10
#define REPEATS 9

enum { HEADS = 128, WIDTH = 64, STATE = 128, GROUPS = 8, CHANNELS = HEADS * WIDTH + 2 * GROUPS * STATE };

static carry_ctx *ctx;
static carry_stream *stream;

static void must(carry_status status) {
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "%s\n", carry_ctx_error(ctx));
        exit(1);
    }
}

static void *memory(size_t bytes) {
    void *data;
    must(carry_device_alloc(ctx, &data, 1, bytes));
    return data;
}

static carry_tensor make(carry_dtype type, int rank, const int64_t *shape) {
    static uint64_t number;
    carry_tensor x = carry_view_on(1, NULL, type, rank, shape);
    int64_t count = 1;
    for (int i = 0; i < rank; i++) {
        count *= shape[i];
    }
    x.data = memory((size_t)count * carry_dtype_size(type));
    must(carry_random_fill(ctx, x, 7, number++, 0.0f, 0.5f));
    return x;
}

static int by_time(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct work {
    const carry_ssm_args *forward;
    const carry_ssm_backward_args *backward; /* NULL: forward */
    void *space;
    size_t bytes;
} work;

static void run(const work *w) {
    must(w->backward != NULL ? carry_ssm_backward(ctx, w->backward, w->space, w->bytes)
                             : carry_ssm(ctx, w->forward, w->space, w->bytes));
}

static void time_of(const char *name, const work *w) {
    double seconds[REPEATS];
    run(w);
    must(carry_stream_wait(ctx, 1, stream));
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        const double start = carry_seconds();
        for (int call = 0; call < CALLS; call++) {
            run(w);
        }
        must(carry_stream_wait(ctx, 1, stream));
        seconds[repeat] = (carry_seconds() - start) / CALLS;
    }
    qsort(seconds, REPEATS, sizeof *seconds, by_time);
    (void)printf("%-10s %5lld x %5lld  %9.1f us\n", name, (long long)w->forward->xbc.shape[0],
                 (long long)w->forward->xbc.shape[1], 1e6 * seconds[REPEATS / 2]);
}

static void layer(int64_t B, int64_t T) {
    carry_ssm_args args = {.y = make(CARRY_BF16, 3, SHAPE(B, T, HEADS * WIDTH)),
                           .xbc = make(CARRY_BF16, 3, SHAPE(B, T, CHANNELS)),
                           .dt = make(CARRY_BF16, 3, SHAPE(B, T, HEADS)),
                           .A_log = make(CARRY_F32, 1, SHAPE(HEADS)),
                           .dt_bias = make(CARRY_F32, 1, SHAPE(HEADS)),
                           .D = make(CARRY_F32, 1, SHAPE(HEADS)),
                           .heads = HEADS,
                           .groups = GROUPS,
                           .state = STATE,
                           .most = INFINITY};
    carry_tensor states = {0};
    if (T == 1) {
        states = make(CARRY_F32, 4, SHAPE(B, HEADS, WIDTH, STATE));
        args.initial = args.final = states;
    }
    const size_t bytes = carry_ssm_workspace(ctx, &args);
    work w = {.forward = &args, .space = bytes > 0 ? memory(bytes) : NULL, .bytes = bytes};
    time_of(T == 1 ? "step" : "forward", &w);
    carry_device_free(ctx, 1, w.space);
    carry_ssm_backward_args back = {.forward = args};
    if (T > 1) {
        back.dy = make(CARRY_BF16, 3, args.y.shape);
        back.dxbc = make(CARRY_BF16, 3, args.xbc.shape);
        back.ddt = make(CARRY_BF16, 3, args.dt.shape);
        back.dA_log = make(CARRY_F32, 1, SHAPE(HEADS));
        back.ddt_bias = make(CARRY_F32, 1, SHAPE(HEADS));
        back.dD = make(CARRY_F32, 1, SHAPE(HEADS));
        w.backward = &back;
        w.bytes = carry_ssm_backward_workspace(ctx, &args);
        w.space = memory(w.bytes);
        time_of("backward", &w);
        carry_device_free(ctx, 1, w.space);
    }
    const carry_tensor *all[] = {&args.y,  &args.xbc,  &args.dt,  &args.A_log,  &args.dt_bias,  &args.D, &states,
                                 &back.dy, &back.dxbc, &back.ddt, &back.dA_log, &back.ddt_bias, &back.dD};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        carry_device_free(ctx, 1, all[i]->data);
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
    layer(1, 32768);
    layer(8, 4096);
    layer(64, 1);
    layer(256, 1);
    return 0;
}
