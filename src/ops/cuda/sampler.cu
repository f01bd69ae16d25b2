/* A sampler's operators on NVIDIA GPUs, each in one pass over memory; the random numbers are only written. */
#include "ops/cuda/nn.cuh"
#include "ops/cuda/philox.cuh"

extern "C" {
#include "ops/sampler.h"
}

struct patch_job {
    float *latents, *patches;
    int64_t channels, frames, height, width, p, q;
    bool back, by_head;
};

/* A thread has an element of the latents: neighbouring threads access neighbouring latents. */
__global__ void __launch_bounds__(THREADS) patch_kernel(patch_job j) {
    const int64_t count = j.channels * j.frames * j.height * j.width;
    const int64_t rows = j.height / j.p, columns = j.width / j.q, size = j.channels * j.p * j.q;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        const int64_t x = i % j.width, y = i / j.width % j.height;
        const int64_t frame = i / (j.width * j.height) % j.frames, c = i / (j.width * j.height * j.frames);
        const int64_t a = y % j.p, b = x % j.q;
        const int64_t row = (frame * rows + y / j.p) * columns + x / j.q;
        float *one = j.patches + row * size + (j.by_head ? (a * j.q + b) * j.channels + c : (c * j.p + a) * j.q + b);
        if (j.back) {
            j.latents[i] = *one;
        } else {
            *one = j.latents[i];
        }
    }
}

static carry_status launch_patches(carry_ctx *ctx, const carry_tensor &patches, const carry_tensor &latents,
                                   const int64_t patch[2], bool back, bool by_head) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, latents.device));
    const int64_t *s = latents.shape;
    const patch_job j = {
        (float *)latents.data, (float *)patches.data, s[0], s[1], s[2], s[3], patch[0], patch[1], back, by_head};
    patch_kernel<<<blocks_for(carry_tensor_count(&latents), THREADS), THREADS, 0, at.stream>>>(j);
    return launched(ctx, at, "patches cannot be made");
}

extern "C" carry_status carry_cuda_patchify(carry_ctx *ctx, carry_tensor patches, carry_tensor latents,
                                            const int64_t patch[2], bool by_head) {
    return launch_patches(ctx, patches, latents, patch, false, by_head);
}

extern "C" carry_status carry_cuda_unpatchify(carry_ctx *ctx, carry_tensor latents, carry_tensor patches,
                                              const int64_t patch[2], bool by_head) {
    return launch_patches(ctx, patches, latents, patch, true, by_head);
}

__global__ void __launch_bounds__(THREADS)
    flow_kernel(float *x0, float *x, const float *velocity, const float *noise, float *bad, int64_t count, float sigma,
                float keep, float scale) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        const float clean = x[i] - sigma * velocity[i];
        if (bad != NULL && !isfinite(clean)) {
            *bad = 1.0f; /* all threads that write it write the same value */
        }
        if (noise != NULL) {
            x[i] = keep * clean + scale * noise[i];
        }
        x0[i] = clean;
    }
}

extern "C" carry_status carry_cuda_flow_step(carry_ctx *ctx, const carry_flow_step_args *a) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, a->x.device));
    const int64_t count = carry_tensor_count(&a->x);
    flow_kernel<<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(
        (float *)a->x0.data, (float *)a->x.data, (const float *)a->velocity.data, (const float *)a->noise.data,
        (float *)a->bad.data, count, a->sigma, a->keep, a->scale);
    return launched(ctx, at, "a sampler's step cannot be launched");
}

/* The transform of core/rng.c. */
static __device__ __forceinline__ void four_normals(uint64_t seed, uint64_t stream, uint64_t block, float normal[4]) {
    uint32_t c[4];
    carry_philox_words(seed, stream, block, c);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const double u = ((double)c[i] + 0.5) * 0x1p-32, v = ((double)c[i + 1] + 0.5) * 0x1p-32;
        const double radius = sqrt(-2.0 * log(u));
        normal[i] = (float)(radius * cos(6.28318530717958647692 * v));
        normal[i + 1] = (float)(radius * sin(6.28318530717958647692 * v));
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    normal_kernel(row_of<T> out, int64_t count, uint64_t seed, uint64_t stream, float mean, float deviation) {
    const int64_t blocks = (count + 3) / 4;
    for (int64_t b = (int64_t)blockIdx.x * THREADS + threadIdx.x; b < blocks; b += (int64_t)gridDim.x * THREADS) {
        float normal[4];
        four_normals(seed, stream, (uint64_t)b, normal);
        for (int i = 0; i < 4 && 4 * b + i < count; i++) {
            out.put(4 * b + i, mean + deviation * normal[i]);
        }
    }
}

extern "C" carry_status carry_cuda_random_fill(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream,
                                               float mean, float deviation) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, out.device));
    const int64_t count = carry_tensor_count(&out);
    with_type(out.dtype, [&](auto type) {
        using T = decltype(type);
        normal_kernel<T><<<blocks_for((count + 3) / 4, THREADS), THREADS, 0, at.stream>>>(row<T>(out), count, seed,
                                                                                          stream, mean, deviation);
    });
    return launched(ctx, at, "random numbers cannot be made");
}

/* A thread has a block of four elements of a row of the whole tensor; at its ends the part may have fewer of them. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    normal_part_kernel(row_of<T> out, int64_t rows, carry_random_part_args a, int64_t blocks) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * blocks;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / blocks, begin = row * a.next + a.first, end = begin + a.columns;
        const int64_t block = begin / 4 + i % blocks;
        float normal[4];
        four_normals(a.seed, a.stream, (uint64_t)block, normal);
        for (int k = 0; k < 4; k++) {
            const int64_t at = 4 * block + k;
            if (at >= begin && at < end) {
                out.put(row * a.columns + at - begin, a.mean + a.deviation * normal[k]);
            }
        }
    }
}

extern "C" carry_status carry_cuda_random_part(carry_ctx *ctx, const carry_random_part_args *a) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, a->out.device));
    const int64_t rows = carry_tensor_count(&a->out) / a->columns;
    const int64_t blocks = a->columns / 4 + 2;
    with_type(a->out.dtype, [&](auto type) {
        using T = decltype(type);
        normal_part_kernel<T>
            <<<blocks_for(rows * blocks, THREADS), THREADS, 0, at.stream>>>(row<T>(a->out), rows, *a, blocks);
    });
    return launched(ctx, at, "random numbers cannot be made");
}
