/* Passes over the rows between the products of a transformer, each of which would else be several: a gated sum with the
   norm that follows it, and the norm of queries and keys with their positions. They move memory and little else: a
   thread has 16 elements of a row in registers, a block takes rows one after the other and loads what is the same for
   all of them once. */
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
constexpr int BLOCKS = 4;             /* of a multiprocessor */

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
    for (int i = 0; i < EACH; i++) {
        v[i] = type_bf16::widen(type_bf16::narrow(v[i]));
    }
}

/* A vector that all rows share; NULL: `otherwise` everywhere. */
__device__ __forceinline__ void load_shared(float (&v)[EACH], const float *from, int n, float otherwise) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int at = ONCE * (int)(threadIdx.x + i * blockDim.x);
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            v[ONCE * i + j] = from != NULL && at < n ? from[at + j] : otherwise;
        }
    }
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
    float x[EACH], y[EACH], gate[EACH], w[EACH], b[EACH];
    int n = (int)a.n;
    load_shared(gate, a.gate, n, 1.0f);
    load_shared(w, a.w, n, 1.0f - a.plus);
    load_shared(b, a.b, n, 0.0f);
    for (int64_t t = blockIdx.x; t < a.rows; t += gridDim.x) {
        load(x, (const uint16_t *)a.x + t * a.x_row, n);
        if (a.y != NULL) {
            load(y, (const uint16_t *)a.y + t * a.y_row, n);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                x[i] = fmaf(gate[i], y[i], x[i]);
            }
            store((uint16_t *)a.x + t * a.x_row, x, n);
            round_all(x);
        }
        if (a.h == NULL) {
            continue;
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
        for (int i = 0; i < EACH; i++) {
            x[i] = fmaf(x[i] * over, w[i] + a.plus, b[i]);
        }
        store((uint16_t *)a.h + t * a.h_row, x, n);
    }
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

__global__ void turn_kernel(carry_device_turn a) {
    __shared__ float parts[32];
    float x[EACH], w[EACH];
    int n = (int)a.n;
    auto &part = a.part[blockIdx.y];
    load_shared(w, part.w, n, 1.0f);
    for (int64_t t = blockIdx.x; t < a.rows; t += gridDim.x) {
        load(x, (const uint16_t *)part.from + t * part.from_row, n);
        if (part.w != NULL) {
            float squares = 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                squares = fmaf(x[i], x[i], squares);
            }
            float over = rsqrtf(add_up(squares, parts) / (float)n + a.eps);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                x[i] *= over * w[i];
            }
        }
        if (part.table != NULL) {
            rotate(x, part.table + t * a.head, (int)a.head, n);
        }
        store((uint16_t *)part.to + t * part.to_row, x, n);
    }
}

/* Blocks along x of a grid whose `parts` rows of blocks run at once. */
unsigned blocks_of(int64_t rows, int parts, int ordinal) {
    int units = 1;
    (void)cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, ordinal);
    int64_t most = (int64_t)units * BLOCKS / parts;
    return (unsigned)(rows < most ? rows : most);
}

unsigned threads_of(int64_t n) {
    return (unsigned)((n + EACH * 32 - 1) / (EACH * 32) * 32);
}

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

extern "C" carry_status carry_cuda_norm(carry_ctx *ctx, const carry_device_norm *norm) {
    int ordinal = norm->ordinal;
    CARRY_TRY(expect_rows(ctx, norm->n,
                          fits(norm->x, norm->x_row) && fits(norm->h, norm->h_row) && fits(norm->y, norm->y_row)));
    if (norm->rows < 1 || norm->n < 1) {
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    norm_kernel<<<blocks_of(norm->rows, 1, ordinal), threads_of(norm->n), 0, (cudaStream_t)norm->stream>>>(*norm);
    CARRY_CUDA_TRY(cudaGetLastError(), "a norm cannot be launched");
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_turn(carry_ctx *ctx, const carry_device_turn *turn) {
    int ordinal = turn->ordinal;
    bool aligned = turn->head % 8 == 0 && turn->head > 0;
    for (int i = 0; i < turn->parts; i++) {
        aligned = aligned && fits(turn->part[i].to, turn->part[i].to_row) &&
                  fits(turn->part[i].from, turn->part[i].from_row) && fits(turn->part[i].table, 0);
    }
    CARRY_TRY(expect_rows(ctx, turn->n, aligned));
    if (turn->rows < 1 || turn->n < 1 || turn->parts < 1) {
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    dim3 grid(blocks_of(turn->rows, turn->parts, ordinal), (unsigned)turn->parts);
    turn_kernel<<<grid, threads_of(turn->n), 0, (cudaStream_t)turn->stream>>>(*turn);
    CARRY_CUDA_TRY(cudaGetLastError(), "positions cannot be launched");
    return CARRY_OK;
}
