/* Gradients of a scan on a GPU, once l is known: dA[t] = l[t] h[t-1]^T, or its diagonal, and dh0 = A[0]^T l[0].

   Every kernel steps over its results with a grid as large as the GPU holds. Results are written once, four adjacent
   elements at a time if they are aligned to that. Sums over the width are f32, in a fixed order. */
#include <cuda_runtime.h>

extern "C" {
#include "core/error.h"
#include "scan/cuda/cuda.h"
}
#include "scan/cuda/value.cuh"

#define THREADS 256

namespace {

struct place {
    void *data;
    int dtype;
    int64_t item, step;
};

struct sizes {
    int64_t batch, steps, n, width;
};

/* The location of the state before a step. data is NULL if the state is zero. */
struct before {
    const void *data;
    int dtype;
    int64_t offset;
};

__device__ before state_before(const place &h, const place &h0, int64_t item, int64_t step) {
    if (step > 0) {
        return {h.data, h.dtype, item * h.item + (step - 1) * h.step};
    }
    return {h0.data, h0.dtype, item * h0.item};
}

/* Four adjacent elements of a row of l[t] h[t-1]^T, or fewer at its end. */
__device__ float4 outer_four(const void *l, int l_dtype, int64_t l_at, const before &state, int64_t row, int64_t column,
                             const sizes &s) {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    int some = s.n - column < 4 ? (int)(s.n - column) : 4;
    for (int64_t c = 0; c < s.width; c++) {
        float left = carry_value::load(l, l_dtype, l_at + row * s.width + c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i < some) {
                int64_t at = state.offset + (column + i) * s.width + c;
                sum[i] = fmaf(left, carry_value::load(state.data, state.dtype, at), sum[i]);
            }
        }
    }
    return make_float4(sum[0], sum[1], sum[2], sum[3]);
}

/* A block handles one step at a time, a thread four adjacent elements of a row. */
__global__ void __launch_bounds__(THREADS)
    dense_transitions(place dA, place l, place h, place h0, sizes s, bool in_fours) {
    int64_t fours = (s.n + 3) / 4;
    for (int64_t task = blockIdx.x; task < s.batch * s.steps; task += gridDim.x) {
        int64_t item = task / s.steps;
        int64_t step = task - item * s.steps;
        before state = state_before(h, h0, item, step);
        int64_t l_at = item * l.item + step * l.step;
        int64_t to = item * dA.item + step * dA.step;
        for (int64_t i = threadIdx.x; i < s.n * fours; i += THREADS) {
            int64_t row = i / fours;
            int64_t column = (i - row * fours) * 4;
            float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (state.data != nullptr) {
                four = outer_four(l.data, l.dtype, l_at, state, row, column, s);
            }
            int64_t at = to + row * s.n + column;
            if (in_fours) {
                carry_value::store_four(dA.data, dA.dtype, at, four);
                continue;
            }
            const float sums[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (column + j < s.n) {
                    carry_value::store(dA.data, dA.dtype, at + j, sums[j]);
                }
            }
        }
    }
}

/* `lanes` adjacent lanes, a power of two, share the sum for one channel of one step. */
__global__ void __launch_bounds__(THREADS)
    diagonal_transitions(place dA, place l, place h, place h0, sizes s, int lanes, bool in_fours) {
    int64_t rows = s.batch * s.steps * s.n;
    int lane = (int)threadIdx.x % lanes;
    int64_t per_block = THREADS / lanes;
    /* All lanes of a warp do the same number of iterations, since they exchange the sum. */
    for (int64_t base = blockIdx.x * per_block; base < rows; base += gridDim.x * per_block) {
        int64_t row = base + (int64_t)threadIdx.x / lanes;
        bool there = row < rows;
        int64_t channel = there ? row % s.n : 0;
        int64_t step = there ? row / s.n % s.steps : 0;
        int64_t item = there ? row / s.n / s.steps : 0;
        before state = state_before(h, h0, item, step);
        int64_t x = item * l.item + step * l.step + channel * s.width;
        int64_t y = state.offset + channel * s.width;
        float sum = 0.0f;
        if (there && state.data != nullptr && in_fours) {
            for (int64_t c = 4 * lane; c < s.width; c += 4 * lanes) {
                float4 p = carry_value::load_four(l.data, l.dtype, x + c);
                float4 q = carry_value::load_four(state.data, state.dtype, y + c);
                sum = fmaf(p.x, q.x, fmaf(p.y, q.y, fmaf(p.z, q.z, fmaf(p.w, q.w, sum))));
            }
        } else if (there && state.data != nullptr) {
            for (int64_t c = lane; c < s.width; c += lanes) {
                sum = fmaf(carry_value::load(l.data, l.dtype, x + c), carry_value::load(state.data, state.dtype, y + c),
                           sum);
            }
        }
        for (int offset = lanes / 2; offset > 0; offset /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        }
        if (there && lane == 0) {
            carry_value::store(dA.data, dA.dtype, item * dA.item + step * dA.step + channel, sum);
        }
    }
}

__global__ void __launch_bounds__(THREADS) initial_states(place dh0, place A, place l, sizes s, bool dense) {
    int64_t size = s.n * s.width;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < s.batch * size;
         i += gridDim.x * (int64_t)THREADS) {
        int64_t item = i / size;
        int64_t at = i - item * size;
        int64_t row = at / s.width;
        int64_t column = at - row * s.width;
        int64_t l_at = item * l.item;
        int64_t A_at = item * A.item;
        float sum = 0.0f;
        if (dense) {
            for (int64_t k = 0; k < s.n; k++) {
                sum = fmaf(carry_value::load(A.data, A.dtype, A_at + k * s.n + row),
                           carry_value::load(l.data, l.dtype, l_at + k * s.width + column), sum);
            }
        } else {
            sum = carry_value::load(A.data, A.dtype, A_at + row) * carry_value::load(l.data, l.dtype, l_at + at);
        }
        carry_value::store(dh0.data, dh0.dtype, item * dh0.item + at, sum);
    }
}

place place_of(const carry_scan_array *array) {
    return {array->data, (int)array->dtype, array->item, array->step};
}

/* True if every step starts at a multiple of four elements. */
bool starts_in_fours(const carry_scan_array *array, bool has_steps) {
    size_t bytes = 4 * carry_dtype_size(array->dtype);
    return array->data == NULL ||
           ((uintptr_t)array->data % bytes == 0 && array->item % 4 == 0 && (!has_steps || array->step % 4 == 0));
}

/* The number of blocks for this many tasks: at most eight for each multiprocessor, which is as many blocks of 256
   threads as it holds. */
unsigned blocks_for(int64_t tasks, int units) {
    int64_t most = 8 * (int64_t)units;
    return (unsigned)(tasks < 1 ? 1 : tasks < most ? tasks : most);
}

void launch_transitions(const carry_cuda_gradients *g, const sizes &s, int units, cudaStream_t stream) {
    place dA = place_of(&g->dA);
    place l = place_of(&g->l);
    place h = place_of(&g->h);
    place h0 = place_of(&g->h0);
    if (g->kind == CARRY_SCAN_DENSE) {
        bool in_fours = s.n % 4 == 0 && starts_in_fours(&g->dA, true);
        dense_transitions<<<blocks_for(s.batch * s.steps, units), THREADS, 0, stream>>>(dA, l, h, h0, s, in_fours);
        return;
    }
    bool in_fours = s.width % 4 == 0 && starts_in_fours(&g->l, true) && starts_in_fours(&g->h, true) &&
                    starts_in_fours(&g->h0, false);
    int lanes = 1;
    while (lanes < 32 && lanes * (in_fours ? 4 : 1) < s.width) {
        lanes *= 2;
    }
    int64_t per_block = THREADS / lanes;
    int64_t blocks = (s.batch * s.steps * s.n + per_block - 1) / per_block;
    diagonal_transitions<<<blocks_for(blocks, units), THREADS, 0, stream>>>(dA, l, h, h0, s, lanes, in_fours);
}

} // namespace

extern "C" carry_status carry_cuda_scan_gradients(carry_ctx *ctx, const carry_cuda_gradients *gradients) {
    cudaStream_t stream = (cudaStream_t)gradients->stream;
    sizes s = {gradients->batch, gradients->steps, gradients->n, gradients->width};
    cudaPointerAttributes at = {};
    int units = 0;
    cudaError_t error = cudaPointerGetAttributes(&at, gradients->l.data);
    if (error == cudaSuccess) {
        error = cudaSetDevice(at.device);
    }
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, at.device);
    }
    if (error == cudaSuccess && gradients->dA.data != NULL) {
        launch_transitions(gradients, s, units, stream);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess && gradients->dh0.data != NULL) {
        int64_t blocks = (s.batch * s.n * s.width + THREADS - 1) / THREADS;
        initial_states<<<blocks_for(blocks, units), THREADS, 0, stream>>>(
            place_of(&gradients->dh0), place_of(&gradients->A), place_of(&gradients->l), s,
            gradients->kind == CARRY_SCAN_DENSE);
        error = cudaGetLastError();
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* clears the error, which was reported, so that the next call does not see it */
        return carry_fail(ctx, CARRY_EDEVICE, "gradients of a scan on a CUDA device: %s", cudaGetErrorString(error));
    }
    return CARRY_OK;
}
