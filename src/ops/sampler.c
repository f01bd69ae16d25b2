/* Operators of a few-step sampler on the CPU: patches, a step of the flow, random numbers. */
#include "ops/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"

#define GRAIN 16384

typedef struct patching {
    float *latents, *patches;
    int64_t channels, frames, height, width;
    int64_t p, q;
    bool back, by_head;
} patching;

/* Converts one row of patches. */
static void patch_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const patching *j = argument;
    const int64_t rows = j->height / j->p;
    const int64_t columns = j->width / j->q;
    const int64_t size = j->channels * j->p * j->q;
    for (int64_t row = begin; row < end; row++) {
        const int64_t frame = row / rows;
        for (int64_t c = 0; c < j->channels; c++) {
            for (int64_t a = 0; a < j->p; a++) {
                float *line = j->latents + ((c * j->frames + frame) * j->height + row % rows * j->p + a) * j->width;
                float *patch = j->patches + row * columns * size;
                for (int64_t x = 0; x < columns; x++, patch += size) {
                    for (int64_t b = 0; b < j->q; b++) {
                        float *one =
                            patch + (j->by_head ? (a * j->q + b) * j->channels + c : (c * j->p + a) * j->q + b);
                        *(j->back ? &line[x * j->q + b] : one) = j->back ? *one : line[x * j->q + b];
                    }
                }
            }
        }
    }
}

static carry_status run_patching(carry_ctx *ctx, carry_tensor patches, carry_tensor latents, const int64_t patch[2],
                                 bool back, bool by_head) {
    patching j = {.latents = latents.data,
                  .patches = patches.data,
                  .channels = latents.shape[0],
                  .frames = latents.shape[1],
                  .height = latents.shape[2],
                  .width = latents.shape[3],
                  .p = patch[0],
                  .q = patch[1],
                  .back = back,
                  .by_head = by_head};
    const int64_t line = j.channels * j.width * j.p;
    carry_parallel(ctx, j.frames * (j.height / j.p), GRAIN / (line + 1) + 1, patch_rows, &j);
    return CARRY_OK;
}

static carry_status check_patches(carry_ctx *ctx, const carry_tensor *patches, const carry_tensor *latents,
                                  const int64_t patch[2]) {
    CARRY_TRY(carry_expect_rank(ctx, "latents", latents, 4));
    const int64_t *s = latents->shape;
    if (patch[0] < 1 || patch[1] < 1 || s[2] % patch[0] != 0 || s[3] % patch[1] != 0) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "latents of %" PRId64 " x %" PRId64 " are not patches of %" PRId64 " x %" PRId64, s[2], s[3],
                          patch[0], patch[1]);
    }
    const int64_t shape[] = {s[1] * (s[2] / patch[0]) * (s[3] / patch[1]), s[0] * patch[0] * patch[1]};
    CARRY_TRY(carry_expect_f32(ctx, "latents", latents, 4, s, latents->device));
    return carry_expect_f32(ctx, "patches", patches, 2, shape, latents->device);
}

carry_status carry_patchify(carry_ctx *ctx, carry_tensor patches, carry_tensor latents, const int64_t patch[2],
                            bool by_head) {
    CARRY_OPERATOR(ctx, operators, patchify, &latents)
    CARRY_TRY(check_patches(ctx, &patches, &latents, patch));
    return operators->patchify(ctx, patches, latents, patch, by_head);
}

carry_status carry_unpatchify(carry_ctx *ctx, carry_tensor latents, carry_tensor patches, const int64_t patch[2],
                              bool by_head) {
    CARRY_OPERATOR(ctx, operators, unpatchify, &latents)
    CARRY_TRY(check_patches(ctx, &patches, &latents, patch));
    return operators->unpatchify(ctx, latents, patches, patch, by_head);
}

carry_status carry_cpu_patchify(carry_ctx *ctx, carry_tensor patches, carry_tensor latents, const int64_t patch[2],
                                bool by_head) {
    return run_patching(ctx, patches, latents, patch, false, by_head);
}

carry_status carry_cpu_unpatchify(carry_ctx *ctx, carry_tensor latents, carry_tensor patches, const int64_t patch[2],
                                  bool by_head) {
    return run_patching(ctx, patches, latents, patch, true, by_head);
}

typedef struct stepping {
    float *x0, *x;
    const float *velocity, *noise;
    float sigma, keep, scale;
    _Atomic int bad;
} stepping;

static void step_range(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    stepping *s = argument;
    bool bad = false;
    for (int64_t i = begin; i < end; i++) {
        const float clean = s->x[i] - s->sigma * s->velocity[i];
        bad = bad || !isfinite(clean);
        if (s->noise != NULL) {
            s->x[i] = s->keep * clean + s->scale * s->noise[i];
        }
        s->x0[i] = clean;
    }
    if (bad) {
        atomic_store(&s->bad, 1);
    }
}

carry_status carry_flow_step(carry_ctx *ctx, const carry_flow_step_args *args) {
    const carry_tensor *x = &args->x;
    CARRY_OPERATOR(ctx, operators, flow_step, x)
    CARRY_TRY(carry_expect_f32(ctx, "x", x, x->rank, x->shape, x->device));
    CARRY_TRY(carry_expect_f32(ctx, "x0", &args->x0, x->rank, x->shape, x->device));
    CARRY_TRY(carry_expect_f32(ctx, "velocity", &args->velocity, x->rank, x->shape, x->device));
    if (carry_is_here(&args->noise)) {
        CARRY_TRY(carry_expect_f32(ctx, "noise", &args->noise, x->rank, x->shape, x->device));
        if (args->x0.data == x->data || args->noise.data == x->data || args->noise.data == args->x0.data) {
            return carry_fail(ctx, CARRY_EARGUMENT, "x, x0 and noise must be different memory");
        }
    }
    if (carry_is_here(&args->bad)) {
        CARRY_TRY(carry_expect_f32(ctx, "bad", &args->bad, 1, (const int64_t[]){1}, x->device));
    }
    return operators->flow_step(ctx, args);
}

carry_status carry_cpu_flow_step(carry_ctx *ctx, const carry_flow_step_args *args) {
    stepping s = {.x0 = args->x0.data,
                  .x = args->x.data,
                  .velocity = args->velocity.data,
                  .noise = args->noise.data,
                  .sigma = args->sigma,
                  .keep = args->keep,
                  .scale = args->scale};
    carry_parallel(ctx, carry_tensor_count(&args->x), GRAIN, step_range, &s);
    if (atomic_load(&s.bad) != 0 && args->bad.data != NULL) {
        *(float *)args->bad.data = 1.0f;
    }
    return CARRY_OK;
}

carry_status carry_random_fill(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream, float mean,
                               float deviation) {
    CARRY_OPERATOR(ctx, operators, random_fill, &out)
    if (!carry_dtype_is_real(out.dtype) || !carry_tensor_is_packed(&out, 0)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "out must be a packed f32, bf16 or f16 tensor");
    }
    CARRY_TRY(carry_device_expect(ctx, "out", &out, out.device));
    return operators->random_fill(ctx, out, seed, stream, mean, deviation);
}

carry_status carry_cpu_random_fill(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream, float mean,
                                   float deviation) {
    return carry_random_normal(ctx, out, seed, stream, mean, deviation);
}

carry_status carry_random_part(carry_ctx *ctx, const carry_random_part_args *a) {
    CARRY_OPERATOR(ctx, operators, random_part, &a->out)
    const int64_t count = carry_tensor_count(&a->out);
    if (!carry_dtype_is_real(a->out.dtype) || !carry_tensor_is_packed(&a->out, 0)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "out must be a packed f32, bf16 or f16 tensor");
    }
    if (a->columns < 1 || count % a->columns != 0 || a->first < 0 || a->next < a->columns ||
        a->first > a->next - a->columns || count / a->columns > INT64_MAX / a->next) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%" PRId64 " elements are no columns %" PRId64 " to %" PRId64 " of rows of %" PRId64, count,
                          a->first, a->first + a->columns, a->next);
    }
    CARRY_TRY(carry_device_expect(ctx, "out", &a->out, a->out.device));
    return operators->random_part(ctx, a);
}

/* Generates the whole tensor and keeps a part of it. */
carry_status carry_cpu_random_part(carry_ctx *ctx, const carry_random_part_args *a) {
    const size_t size = carry_dtype_size(a->out.dtype);
    const int64_t rows = carry_tensor_count(&a->out) / a->columns;
    unsigned char *whole = carry_aligned_new((size_t)(rows * a->next) * size);
    if (whole == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %" PRId64 " random numbers", rows * a->next);
    }
    const carry_tensor all = carry_view_1d(whole, a->out.dtype, rows * a->next);
    const carry_status status = carry_random_normal(ctx, all, a->seed, a->stream, a->mean, a->deviation);
    const size_t bytes = (size_t)a->columns * size;
    for (int64_t row = 0; row < rows && status == CARRY_OK; row++) {
        memcpy((unsigned char *)a->out.data + (size_t)row * bytes, whole + (size_t)(row * a->next + a->first) * size,
               bytes);
    }
    free(whole);
    return status;
}
