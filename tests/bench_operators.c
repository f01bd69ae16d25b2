/* Times of the operators of a training step of Gated DeltaNet 141M on a GPU: 8 x 4096 tokens, hidden 768, 6 heads of
   128, a gated unit of 2048, vocabulary 32000, bf16.

       bench_operators [NAME]     operators whose name contains NAME

   Each line: the best and the median of repeats, each the mean of 10 calls on one stream; GB/s of the least that must
   be read and written; the number of calls in a step of 12 layers, and their total time. "apart" is the same operator
   on tensors that are not aligned to 16 bytes, which need the general kernels. Inputs are random and larger than the
   cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/context.h"
#include "carry/device.h"
#include "carry/nn.h"
#include "carry/ops.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})
#define CALLS 10
#define REPEATS 15

static carry_ctx *ctx;
static carry_stream *stream;
static const char *only = "";
static double of_a_step; /* seconds */

static void must(carry_status status) {
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "%s\n", carry_ctx_error(ctx));
        exit(1);
    }
}

static carry_tensor make(carry_dtype type, int rank, const int64_t *shape) {
    carry_tensor x = carry_view_on(1, NULL, type, rank, shape);
    int64_t count = 1;
    for (int i = 0; i < rank; i++) {
        count *= shape[i];
    }
    must(carry_device_alloc(ctx, &x.data, 1, (size_t)count * 8 + 64));
    if (type == CARRY_I64 || type == CARRY_F64) {
        must(carry_zero(ctx, x));
        return x;
    }
    const int64_t piece = count < (1 << 20) ? count : 1 << 20;
    float *numbers = malloc((size_t)piece * sizeof *numbers);
    static unsigned state = 1;
    for (int64_t i = 0; numbers != NULL && i < piece; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    carry_tensor wide = carry_view_on(1, NULL, CARRY_F32, 1, &piece);
    must(carry_device_alloc(ctx, &wide.data, 1, (size_t)piece * sizeof(float)));
    must(carry_copy(ctx, wide, carry_view_1d(numbers, CARRY_F32, piece)));
    must(carry_stream_wait(ctx, 1, stream));
    free(numbers);
    const size_t size = carry_dtype_size(type);
    for (int64_t at = 0; at < count; at += piece) {
        const int64_t some = count - at < piece ? count - at : piece;
        const carry_tensor to = carry_view_on(1, (char *)x.data + (size_t)at * size, type, 1, &some);
        must(carry_convert(ctx, to, carry_view_on(1, wide.data, CARRY_F32, 1, &some)));
    }
    must(carry_stream_wait(ctx, 1, stream));
    carry_device_free(ctx, 1, wide.data);
    return x;
}

static int by_time(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *name, double bytes, int calls, double *seconds) {
    qsort(seconds, REPEATS, sizeof *seconds, by_time);
    const double best = seconds[0];
    const double middle = seconds[REPEATS / 2];
    of_a_step += middle * calls;
    (void)printf("%-28s %8.1f us, median %8.1f  %6.0f GB/s", name, 1e6 * best, 1e6 * middle, 1e-9 * bytes / middle);
    if (calls > 0) {
        (void)printf("  x %-3d %6.2f ms", calls, 1e3 * middle * calls);
    }
    (void)printf("\n");
    (void)fflush(stdout);
}

/* bytes: the least that must be moved. calls: the number of calls in a step. */
#define TIME(name, bytes, calls, call)                                         \
    do {                                                                       \
        carry_event *from_;                                                    \
        carry_event *to_;                                                      \
        double seconds_[REPEATS];                                              \
        if (strstr(name, only) == NULL) {                                      \
            break;                                                             \
        }                                                                      \
        must(carry_event_new(ctx, &from_, 1));                                 \
        must(carry_event_new(ctx, &to_, 1));                                   \
        must(call);                                                            \
        for (int repeat_ = 0; repeat_ < REPEATS; repeat_++) {                  \
            must(carry_event_record(ctx, 1, from_, stream));                   \
            for (int i_ = 0; i_ < CALLS; i_++) {                               \
                must(call);                                                    \
            }                                                                  \
            must(carry_event_record(ctx, 1, to_, stream));                     \
            must(carry_event_elapsed(ctx, &seconds_[repeat_], 1, from_, to_)); \
            seconds_[repeat_] /= CALLS;                                        \
        }                                                                      \
        report(name, bytes, calls, seconds_);                                  \
        carry_event_free(ctx, 1, from_);                                       \
        carry_event_free(ctx, 1, to_);                                         \
    } while (0)

/* Shifted by one element: no longer aligned to 16 bytes. */
static carry_tensor apart(carry_tensor x) {
    x.data = (char *)x.data + carry_dtype_size(x.dtype);
    return x;
}

static const carry_tensor absent;
static const int64_t T = 32768, N = 768, F = 2048, V = 32000;
static void *space;
static const size_t space_bytes = (size_t)1 << 30;

static void time_norms(void) {
    const double bytes = (double)T * (double)N * 2.0;
    carry_tensor x = make(CARRY_BF16, 2, SHAPE(T, N)), y = make(CARRY_BF16, 2, SHAPE(T, N));
    carry_tensor z = make(CARRY_BF16, 2, SHAPE(T, N)), d = make(CARRY_BF16, 2, SHAPE(T, N));
    carry_tensor dz = make(CARRY_BF16, 2, SHAPE(T, N));
    carry_tensor w = make(CARRY_F32, 1, SHAPE(N)), dw = make(CARRY_F32, 1, SHAPE(N));
    TIME("rms_norm", 2 * bytes, 25, carry_rms_norm(ctx, y, x, w, absent, 1e-6f));
    TIME("rms_norm apart", 2 * bytes, 0, carry_rms_norm(ctx, apart(y), apart(x), w, absent, 1e-6f));
    TIME("rms_norm_backward", 4 * bytes, 25,
         carry_rms_norm_backward(ctx, d, dw, absent, y, x, w, absent, 1e-6f, true, space, space_bytes));
    TIME("rms_norm_backward apart", 4 * bytes, 0,
         carry_rms_norm_backward(ctx, apart(d), dw, absent, apart(y), apart(x), w, absent, 1e-6f, true, space,
                                 space_bytes));
    const int64_t heads = T * N / 128;
    x = carry_reshape_2d(x, heads, 128);
    y = carry_reshape_2d(y, heads, 128);
    z = carry_reshape_2d(z, heads, 128);
    d = carry_reshape_2d(d, heads, 128);
    dz = carry_reshape_2d(dz, heads, 128);
    w = carry_slice(w, 0, 128);
    dw = carry_slice(dw, 0, 128);
    TIME("gated rms_norm", 3 * bytes, 12, carry_rms_norm(ctx, y, x, w, z, 1e-6f));
    TIME("gated rms_norm apart", 3 * bytes, 0, carry_rms_norm(ctx, apart(y), apart(x), w, apart(z), 1e-6f));
    TIME("gated rms_norm_backward", 5 * bytes, 12,
         carry_rms_norm_backward(ctx, d, dw, dz, y, x, w, z, 1e-6f, false, space, space_bytes));
    TIME("gated rms_norm_backward apart", 5 * bytes, 0,
         carry_rms_norm_backward(ctx, apart(d), dw, apart(dz), apart(y), apart(x), w, apart(z), 1e-6f, false, space,
                                 space_bytes));
}

static void time_conv(void) {
    const double bytes = (double)T * (double)N * 2.0;
    carry_tensor x = make(CARRY_BF16, 3, SHAPE(8, T / 8, N)), y = make(CARRY_BF16, 3, SHAPE(8, T / 8, N));
    carry_tensor d = make(CARRY_BF16, 3, SHAPE(8, T / 8, N));
    carry_tensor w = make(CARRY_F32, 2, SHAPE(N, 4)), dw = make(CARRY_F32, 2, SHAPE(N, 4));
    carry_conv_args forward = {.y = y, .x = x, .w = w, .activation = CARRY_SILU};
    carry_conv_backward_args back = {.dx = d, .dw = dw, .dy = y, .x = x, .w = w, .activation = CARRY_SILU};
    TIME("conv", 2 * bytes, 36, carry_conv(ctx, &forward));
    TIME("conv_backward", 3 * bytes, 36, carry_conv_backward(ctx, &back, space, space_bytes));
    forward.x = apart(x);
    back.x = apart(x);
    TIME("conv apart", 2 * bytes, 0, carry_conv(ctx, &forward));
    TIME("conv_backward apart", 3 * bytes, 0, carry_conv_backward(ctx, &back, space, space_bytes));
}

static void time_gated_unit(void) {
    const double bytes = (double)T * (double)F * 2.0;
    carry_tensor gate = make(CARRY_BF16, 2, SHAPE(T, F)), up = make(CARRY_BF16, 2, SHAPE(T, F));
    carry_tensor y = make(CARRY_BF16, 2, SHAPE(T, F));
    carry_tensor h = make(CARRY_BF16, 2, SHAPE(T, N)), other = make(CARRY_BF16, 2, SHAPE(T, N));
    TIME("swiglu", 3 * bytes, 12, carry_swiglu(ctx, y, gate, up));
    TIME("swiglu_backward", 5 * bytes, 12, carry_swiglu_backward(ctx, gate, up, y, gate, up));
    TIME("convert, a copy", 2.0 * 2.0 * (double)(T * N), 24, carry_convert(ctx, other, h));
}

static void put_ids(carry_tensor ids, int64_t different, int64_t often) {
    int64_t *host = malloc((size_t)T * sizeof *host);
    for (int64_t t = 0; host != NULL && t < T; t++) {
        host[t] = often > 0 && t % often == 0 ? 5 : t * 7919 % different;
    }
    must(carry_copy(ctx, ids, carry_view_1d(host, CARRY_I64, T)));
    must(carry_stream_wait(ctx, 1, stream));
    free(host);
}

static void time_ends(void) {
    const double bytes = (double)T * (double)N * 2.0;
    carry_tensor x = make(CARRY_BF16, 2, SHAPE(T, N)), d = make(CARRY_BF16, 2, SHAPE(T, N));
    carry_tensor W = make(CARRY_BF16, 2, SHAPE(V, N)), dW = make(CARRY_F32, 2, SHAPE(V, N));
    carry_tensor ids = make(CARRY_I64, 1, SHAPE(T)), losses = make(CARRY_F32, 1, SHAPE(T));
    carry_tensor total = make(CARRY_F64, 1, SHAPE(2));
    put_ids(ids, V, 0);
    TIME("embed", 2 * bytes, 1, carry_embed(ctx, d, W, ids));
    TIME("embed_backward", 5 * bytes, 0, carry_embed_backward(ctx, dW, x, ids));
    put_ids(ids, V, 20);
    TIME("embed_backward, 5 % one id", 5 * bytes, 1, carry_embed_backward(ctx, dW, x, ids));
    put_ids(ids, V, 3);
    TIME("embed_backward, 33 % one id", 4 * bytes, 0, carry_embed_backward(ctx, dW, x, ids));
    put_ids(ids, 400, 10);
    TIME("embed_backward, 400 ids", bytes, 0, carry_embed_backward(ctx, dW, x, ids));
    put_ids(ids, V, 0);
    carry_tensor logits = carry_view_on(1, space, CARRY_F32, 2, SHAPE(8192, V));
    TIME("cross_entropy f32, 8192", 8.0 * 8192.0 * (double)V, 0,
         carry_cross_entropy(ctx, carry_slice(losses, 0, 8192), logits, logits, carry_slice(ids, 0, 8192), 1e-5f));
    TIME("linear_cross_entropy", 6.0 * (double)T * (double)V, 1,
         carry_linear_cross_entropy(ctx, losses, d, dW, x, W, ids, 1e-5f, space, space_bytes));
    TIME("sum_losses", 12.0 * (double)T, 1, carry_sum_losses(ctx, total, losses, ids, false));
}

static void time_optimizer(void) {
    const int64_t P = 141000000;
    carry_tensor m = make(CARRY_F32, 1, &P), v = make(CARRY_F32, 1, &P), w = make(CARRY_F32, 1, &P);
    carry_tensor g = make(CARRY_F32, 1, &P), low = make(CARRY_BF16, 1, &P);
    carry_tensor squares = make(CARRY_F64, 1, SHAPE(1)), factor = make(CARRY_F32, 1, SHAPE(1));
    must(carry_elementwise(ctx, CARRY_MULTIPLY, v, v, v));
    TIME("sum_squares", 4.0 * (double)P, 1, carry_sum_squares(ctx, squares, g, false, space, space_bytes));
    must(carry_clip_factor(ctx, factor, squares, 1.0));
    carry_adamw o = {CARRY_INIT(carry_adamw), .rate = 1e-3, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .factor = 1, .step = 1,
                     .clip = factor};
    TIME("adamw_step", 30.0 * (double)P, 1, carry_adamw_step(ctx, w, m, v, low, g, &o));
    TIME("zero of the gradients", 4.0 * (double)P, 1, carry_zero(ctx, g));
}

int main(int argc, char **argv) {
    only = argc > 1 ? argv[1] : "";
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    if (carry_ctx_new(&ctx, NULL) != CARRY_OK) {
        return 1;
    }
    must(carry_stream_new(ctx, &stream, 1));
    must(carry_ctx_set_stream(ctx, 1, stream));
    must(carry_device_alloc(ctx, &space, 1, space_bytes));
    must(carry_device_fill(ctx, space, 1, 0, space_bytes, stream));
    time_norms();
    time_conv();
    time_gated_unit();
    time_ends();
    time_optimizer();
    (void)printf("%-28s %48.2f ms\n", "of a step", 1e3 * of_a_step);
    return 0;
}
