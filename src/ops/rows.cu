/* Passes over the rows between the products of a transformer, each of which would else be several: a gated sum with the
   norm that follows it, and the norm of queries and keys with their positions. They move memory and little else: a
   block has a row, a thread 16 elements of it in registers. */
#include <limits.h>
#include <math.h>

extern "C" {
#include "ops/cuda.h"
}

#include "device/cuda.h"
#include "ops/types.cuh"

namespace {

constexpr int ONCE = 8, VECTORS = 2; /* elements of 16 bytes, and how many of those a thread has */
constexpr int EACH = ONCE * VECTORS;
constexpr int64_t MOST = 1024 * EACH; /* elements of a row */

__device__ __forceinline__ void load(float (&v)[EACH], const uint16_t *row, int n) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int at = ONCE * (int)(threadIdx.x + i * blockDim.x);
        uint4 bits = at < n ? *(const uint4 *)(row + at) : make_uint4(0, 0, 0, 0);
        const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[ONCE * i + 2 * j] = __uint_as_float(words[j] << 16);
            v[ONCE * i + 2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
        }
    }
}

/* By the GPU's own conversion: which NaN a NaN becomes does not matter here. */
__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

__device__ __forceinline__ void store(uint16_t *row, const float (&v)[EACH], int n) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int at = ONCE * (int)(threadIdx.x + i * blockDim.x);
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            words[j] = type_bf16::narrow(v[ONCE * i + 2 * j]) | (uint32_t)type_bf16::narrow(v[ONCE * i + 2 * j + 1])
                                                                    << 16;
        }
        if (at < n) {
            *(uint4 *)(row + at) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

/* What they will be when they are read again. */
__device__ __forceinline__ void round_all(float (&v)[EACH]) {
#pragma unroll
    for (int i = 0; i < EACH; i += 2) {
        uint32_t both = pack(v[i], v[i + 1]);
        v[i] = __uint_as_float(both << 16);
        v[i + 1] = __uint_as_float(both & 0xffff0000u);
    }
}

/* Element i of this thread's part of a vector that all rows share, four at a time; NULL: `otherwise` everywhere. */
__device__ __forceinline__ float4 shared_by_all(const float *from, int i, int n, float otherwise) {
    int at = ONCE * (int)(threadIdx.x + i / ONCE * blockDim.x) + i % ONCE;
    return from != NULL && at < n ? __ldg((const float4 *)(from + at))
                                  : make_float4(otherwise, otherwise, otherwise, otherwise);
}

/* Over the block, in one order. */
__device__ __forceinline__ float add_up(float value, float *parts) {
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    __syncthreads(); /* parts may still be read */
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = value;
    }
    __syncthreads();
    float sum = 0.0f;
    for (unsigned i = 0; i < blockDim.x / 32; i++) {
        sum += parts[i];
    }
    return sum;
}

__global__ void norm_kernel(carry_device_norm a) {
    __shared__ float parts[32];
    float x[EACH];
    int n = (int)a.n;
    int64_t t = blockIdx.x;
    load(x, (const uint16_t *)a.x + t * a.x_row, n);
    if (a.y != NULL) {
        float y[EACH];
        load(y, (const uint16_t *)a.y + t * a.y_row, n);
#pragma unroll
        for (int i = 0; i < EACH; i += 4) {
            float4 gate = shared_by_all(a.gate, i, n, 1.0f);
            x[i] = fmaf(gate.x, y[i], x[i]);
            x[i + 1] = fmaf(gate.y, y[i + 1], x[i + 1]);
            x[i + 2] = fmaf(gate.z, y[i + 2], x[i + 2]);
            x[i + 3] = fmaf(gate.w, y[i + 3], x[i + 3]);
        }
        store((uint16_t *)a.x + t * a.x_row, x, n);
        round_all(x);
    }
    if (a.h == NULL) {
        return;
    }
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        sum += x[i];
    }
    float mean = add_up(sum, parts) / (float)n;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bool there = ONCE * (int)(threadIdx.x + i / ONCE * blockDim.x) < n;
        x[i] = there ? x[i] - mean : 0.0f;
        squares = fmaf(x[i], x[i], squares);
    }
    float over = rsqrtf(add_up(squares, parts) / (float)n + a.eps);
#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        float4 w = shared_by_all(a.w, i, n, 1.0f - a.plus), b = shared_by_all(a.b, i, n, 0.0f);
        x[i] = fmaf(x[i] * over, w.x + a.plus, b.x);
        x[i + 1] = fmaf(x[i + 1] * over, w.y + a.plus, b.y);
        x[i + 2] = fmaf(x[i + 2] * over, w.z + a.plus, b.z);
        x[i + 3] = fmaf(x[i + 3] * over, w.w + a.plus, b.w);
    }
    store((uint16_t *)a.h + t * a.h_row, x, n);
}

/* Pairs lie together, so a thread has both of each. */
__device__ __forceinline__ void rotate(float (&x)[EACH], const float *table, int head, int n) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int at = ONCE * (int)(threadIdx.x + i * blockDim.x);
        const float4 *from = (const float4 *)(table + (at < n ? at % head : 0));
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float4 two = from[j]; /* cosine and sine, of two pairs */
            float *v = x + ONCE * i + 4 * j;
            float first = v[0], second = v[2];
            v[0] = first * two.x - v[1] * two.y;
            v[1] = first * two.y + v[1] * two.x;
            v[2] = second * two.z - v[3] * two.w;
            v[3] = second * two.w + v[3] * two.z;
        }
    }
}

__global__ void qk_norm_rotary_kernel(carry_device_qk_norm_rotary a) {
    __shared__ float parts[32];
    float x[EACH];
    int n = (int)a.n;
    int64_t t = blockIdx.x;
    auto &part = a.part[blockIdx.y];
    load(x, (const uint16_t *)part.from + t * part.from_row, n);
    if (part.w != NULL) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            squares = fmaf(x[i], x[i], squares);
        }
        float over = rsqrtf(add_up(squares, parts) / (float)n + a.eps);
#pragma unroll
        for (int i = 0; i < EACH; i += 4) {
            float4 w = shared_by_all(part.w, i, n, 1.0f);
            x[i] *= over * w.x;
            x[i + 1] *= over * w.y;
            x[i + 2] *= over * w.z;
            x[i + 3] *= over * w.w;
        }
    }
    if (part.table != NULL) {
        rotate(x, part.table + t * a.head, (int)a.head, n);
    }
    store((uint16_t *)part.to + t * part.to_row, x, n);
}

unsigned threads_of(int64_t n) {
    return (unsigned)((n + EACH * 32 - 1) / (EACH * 32) * 32);
}

/* NULL fits. */
bool fits(const void *pointer, int64_t row) {
    return (uintptr_t)pointer % 16 == 0 && row % 8 == 0;
}

carry_status expect_rows(carry_ctx *ctx, int64_t n, bool aligned) {
    if (n % 8 != 0 || n > MOST || !aligned) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "rows of %lld elements on a GPU: a multiple of 8 up to %lld, each starting at 16 bytes",
                          (long long)n, (long long)MOST);
    }
    return CARRY_OK;
}

} // namespace

extern "C" carry_status carry_cuda_add_layer_norm(carry_ctx *ctx, const carry_device_norm *norm) {
    int ordinal = norm->ordinal;
    CARRY_TRY(expect_rows(ctx, norm->n,
                          fits(norm->x, norm->x_row) && fits(norm->h, norm->h_row) && fits(norm->y, norm->y_row) &&
                              fits(norm->gate, 0) && fits(norm->w, 0) && fits(norm->b, 0) && norm->rows <= INT_MAX));
    if (norm->rows < 1 || norm->n < 1) {
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    norm_kernel<<<(unsigned)norm->rows, threads_of(norm->n), 0, (cudaStream_t)norm->stream>>>(*norm);
    CARRY_CUDA_TRY(cudaGetLastError(), "a norm cannot be launched");
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_qk_norm_rotary(carry_ctx *ctx, const carry_device_qk_norm_rotary *args) {
    int ordinal = args->ordinal;
    bool aligned = args->head % 8 == 0 && args->head > 0 && args->rows <= INT_MAX;
    for (int i = 0; i < args->parts; i++) {
        aligned = aligned && fits(args->part[i].to, args->part[i].to_row) &&
                  fits(args->part[i].from, args->part[i].from_row) && fits(args->part[i].w, 0) &&
                  fits(args->part[i].table, 0);
    }
    CARRY_TRY(expect_rows(ctx, args->n, aligned));
    if (args->rows < 1 || args->n < 1 || args->parts < 1) {
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    dim3 grid((unsigned)args->rows, (unsigned)args->parts);
    qk_norm_rotary_kernel<<<grid, threads_of(args->n), 0, (cudaStream_t)args->stream>>>(*args);
    CARRY_CUDA_TRY(cudaGetLastError(), "positions cannot be launched");
    return CARRY_OK;
}
