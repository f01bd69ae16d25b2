/* Times of a codec that decodes on a device: bench_codec FOLDER [HEIGHT WIDTH LATENT_FRAMES [f32|bf16 [DEVICE]]]; of
   the convolutions and norms in it, at 480 x 832 in bf16 on the first GPU: bench_codec operators.

   Latents are random, and on the device; frames come out as bytes there. One chunk warms up, then the best and the
   median of ten are printed. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/clock.h"
#include "core/tensor.h"
#include "model/codec/codec.h"
#include "ops/conv2d.h"
#include "ops/picture.h"

enum { REPEATS = 10 };

static carry_ctx *ctx;

static void must(carry_status status) {
    if (status != CARRY_OK) {
        fprintf(stderr, "bench_codec: %s\n", carry_ctx_error(ctx));
        exit(1);
    }
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static carry_tensor random_latents(int device, const int64_t *shape) {
    void *data = NULL;
    const size_t count = (size_t)(shape[0] * shape[1] * shape[2] * shape[3]);
    float *here = malloc(count * sizeof *here);
    if (here == NULL) {
        exit(1);
    }
    carry_tensor from = carry_view(here, CARRY_F32, 4, shape);
    must(carry_random_normal(ctx, from, 1, 1, 0.0f, 1.0f));
    must(carry_device_alloc(ctx, &data, device, count * sizeof(float)));
    carry_tensor to = carry_view_on(device, data, CARRY_F32, 4, shape);
    must(carry_copy(ctx, to, from));
    free(here);
    return to;
}

static void *zeros(int device, int64_t count, carry_dtype dtype) {
    void *data = NULL;
    const size_t bytes = (size_t)count * carry_dtype_size(dtype);
    must(carry_device_alloc(ctx, &data, device, bytes));
    must(carry_device_fill(ctx, data, device, 0x3c, bytes, carry_ctx_stream(ctx, device)));
    return data;
}

static carry_tensor picture(int device, int64_t height, int64_t width, int64_t channels) {
    const int64_t shape[] = {height + 2, width + 2, channels};
    return carry_view_on(device, zeros(device, shape[0] * shape[1] * shape[2], CARRY_BF16), CARRY_BF16, 3, shape);
}

/* Seconds for one of many consecutive calls. */
static double time_of(int device, void (*call)(const void *), const void *of) {
    carry_stream *stream = carry_ctx_stream(ctx, device);
    double best = 1e9;
    for (int r = 0; r < 4; r++) {
        const double start = carry_seconds();
        for (int i = 0; i < REPEATS; i++) {
            call(of);
        }
        must(carry_stream_wait(ctx, device, stream));
        const double each = (carry_seconds() - start) / REPEATS;
        best = each < best ? each : best;
    }
    return best;
}

static void call_conv2d(const void *of) {
    must(carry_conv2d(ctx, of));
}

typedef struct norm {
    carry_tensor y, x, w;
} norm;

static void call_norm(const void *of) {
    const norm *n = of;
    must(carry_rms_norm_silu(ctx, n->y, n->x, n->w, 1e-30f));
}

static void time_conv2d(int device, carry_conv2d_form form, int64_t height, int64_t width, int64_t in, int inputs,
                        int64_t out, bool adds) {
    const int64_t factor = form == CARRY_CONV2D_DOUBLE ? 2 : 1;
    const int64_t packed = carry_conv2d_packed(form, out, in * inputs);
    const carry_conv2d_args a = {.y = picture(device, factor * height, factor * width, out),
                                 .x = picture(device, height, width, in),
                                 .past = inputs > 1 ? picture(device, height, width, in) : (carry_tensor){0},
                                 .older = inputs > 2 ? picture(device, height, width, in) : (carry_tensor){0},
                                 .add =
                                     adds ? picture(device, factor * height, factor * width, out) : (carry_tensor){0},
                                 .w = carry_view_on(device, zeros(device, packed, CARRY_BF16), CARRY_BF16, 1, &packed),
                                 .bias = carry_view_on(device, zeros(device, out, CARRY_F32), CARRY_F32, 1, &out),
                                 .form = form,
                                 .in = in * inputs};
    const carry_tensor *all[] = {&a.y, &a.x, &a.past, &a.older, &a.add, &a.w, &a.bias};
    const double seconds = time_of(device, call_conv2d, &a);
    const double flops = 2.0 * (double)packed * (double)(height * width);
    printf("conv2d %d %lldx%lld %lldx%d to %lld%s: %.1f us, %.0f TFLOP/s\n", (int)form, (long long)height,
           (long long)width, (long long)in, inputs, (long long)out, adds ? " add" : "", seconds * 1e6,
           flops / seconds * 1e-12);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i]->data != NULL) {
            carry_device_free(ctx, device, all[i]->data);
        }
    }
}

static void time_norm(int device, int64_t rows, int64_t n) {
    const int64_t shape[] = {rows, n};
    const norm of = {.x = carry_view_on(device, zeros(device, rows * n, CARRY_BF16), CARRY_BF16, 2, shape),
                     .y = carry_view_on(device, zeros(device, rows * n, CARRY_BF16), CARRY_BF16, 2, shape),
                     .w = carry_view_on(device, zeros(device, n, CARRY_F32), CARRY_F32, 1, &n)};
    const double seconds = time_of(device, call_norm, &of);
    printf("rms_norm_silu %lld x %lld: %.1f us, %.2f TB/s\n", (long long)rows, (long long)n, seconds * 1e6,
           4e-12 * (double)(rows * n) / seconds);
    carry_device_free(ctx, device, of.x.data);
    carry_device_free(ctx, device, of.y.data);
    carry_device_free(ctx, device, of.w.data);
}

static int operators(void) {
    int device = 0;
    carry_stream *stream = NULL;
    if (carry_ctx_new(&ctx, NULL) != CARRY_OK) {
        return 1;
    }
    must(carry_device_named(ctx, &device, "cuda"));
    must(carry_stream_new(ctx, &stream, device));
    must(carry_ctx_set_stream(ctx, device, stream));
    printf("Wan 2.1:\n");
    time_conv2d(device, CARRY_CONV2D_SAME, 60, 104, 384, 3, 384, true);
    time_conv2d(device, CARRY_CONV2D_SAME, 120, 208, 384, 3, 384, true);
    time_conv2d(device, CARRY_CONV2D_SAME, 240, 416, 192, 3, 192, true);
    time_conv2d(device, CARRY_CONV2D_SAME, 480, 832, 96, 3, 96, true);
    time_conv2d(device, CARRY_CONV2D_SAME, 480, 832, 96, 3, 3, false);
    time_conv2d(device, CARRY_CONV2D_DOUBLE, 120, 208, 384, 1, 192, false);
    time_conv2d(device, CARRY_CONV2D_DOUBLE, 240, 416, 192, 1, 96, false);
    time_conv2d(device, CARRY_CONV2D_POINT, 120, 208, 384, 3, 384, false);
    time_conv2d(device, CARRY_CONV2D_SAME, 60, 104, 16, 3, 384, false);
    time_norm(device, 482 * 834, 96);
    time_norm(device, 242 * 418, 192);
    printf("TAEHV:\n");
    time_conv2d(device, CARRY_CONV2D_SAME, 60, 104, 256, 2, 256, false);
    time_conv2d(device, CARRY_CONV2D_SAME, 120, 208, 128, 2, 128, false);
    time_conv2d(device, CARRY_CONV2D_SAME, 240, 416, 64, 2, 64, false);
    time_conv2d(device, CARRY_CONV2D_SAME, 240, 416, 64, 1, 64, true);
    time_conv2d(device, CARRY_CONV2D_DOUBLE, 240, 416, 64, 1, 64, false);
    time_conv2d(device, CARRY_CONV2D_SAME, 480, 832, 64, 1, 3, false);
    carry_ctx_free(ctx);
    return 0;
}

int main(int count, char **argument) {
    if (count == 2 && strcmp(argument[1], "operators") == 0) {
        return operators();
    }
    if (count < 2) {
        fprintf(stderr, "usage: bench_codec FOLDER|operators [HEIGHT WIDTH LATENT_FRAMES [f32|bf16 [DEVICE]]]\n");
        return 2;
    }
    carry_codec_size size = {.height = count > 2 ? atoll(argument[2]) : 480,
                             .width = count > 3 ? atoll(argument[3]) : 832,
                             .most = count > 4 ? atoll(argument[4]) : 3,
                             .dtype = count > 5 && strcmp(argument[5], "f32") == 0 ? CARRY_F32 : CARRY_BF16};
    const int64_t shape[] = {16, size.most, size.height / 8, size.width / 8};
    double seconds[REPEATS];
    carry_codec *codec;
    carry_stream *stream = NULL;
    void *bytes = NULL;
    if (carry_ctx_new(&ctx, NULL) != CARRY_OK) {
        return 1;
    }
    must(carry_device_named(ctx, &size.device, count > 6 ? argument[6] : "cuda"));
    must(carry_stream_new(ctx, &stream, size.device));
    must(carry_ctx_set_stream(ctx, size.device, stream));
    must(carry_codec_open(ctx, &codec, argument[1], &size));
    const carry_tensor latents = random_latents(size.device, shape);
    must(carry_device_alloc(ctx, &bytes, size.device, (size_t)(size.most * 4 * 3 * size.height * size.width)));
    for (int i = -1; i < REPEATS; i++) {
        const double start = carry_seconds();
        must(carry_codec_decode_bytes(codec, bytes, latents));
        const double enqueued = carry_seconds();
        must(carry_stream_wait(ctx, size.device, stream));
        if (i >= 0) {
            seconds[i] = carry_seconds() - start;
        }
        if (i == REPEATS - 1) {
            printf("%s: %.2f ms to enqueue\n", carry_codec_name(codec), (enqueued - start) * 1e3);
        }
    }
    qsort(seconds, REPEATS, sizeof *seconds, by_value);
    printf("%s %lldx%lld, %lld latent frames, %s: best %.2f ms, median %.2f ms\n", carry_codec_name(codec),
           (long long)size.height, (long long)size.width, (long long)size.most, carry_dtype_name(size.dtype),
           seconds[0] * 1e3, seconds[REPEATS / 2] * 1e3);
    carry_codec_free(codec);
    carry_device_free(ctx, size.device, latents.data);
    carry_device_free(ctx, size.device, bytes);
    must(carry_ctx_set_stream(ctx, size.device, NULL));
    carry_stream_free(ctx, size.device, stream);
    carry_ctx_free(ctx);
    return 0;
}
