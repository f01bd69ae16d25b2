/* The root-mean-square norm of norm.cu, without a gate, for rows of whole vectors that are too long for a warp
   (norm_wide.cu), up to 4096 elements: a block has a row, and each thread one vector of 8 elements. Blocks walk the
   rows; the next row is loaded while the sums of one are added. Backward, dw is summed in registers over a block's
   rows. */
#include "ops/cuda/norm.cuh"
#include "ops/cuda/wide.cuh"

constexpr int MOST_THREADS = 512;

/* Adds two numbers over the threads of the block, in a fixed order. scratch alternates between two rows, so that one
   barrier is enough. */
static __device__ __forceinline__ float2 sum_block(float2 value, float2 (*scratch)[MOST_THREADS / 32], int turn) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        value.x += __shfl_xor_sync(0xffffffffu, value.x, step);
        value.y += __shfl_xor_sync(0xffffffffu, value.y, step);
    }
    if (threadIdx.x % 32 == 0) {
        scratch[turn][threadIdx.x / 32] = value;
    }
    __syncthreads();
    float2 sum = scratch[turn][0];
    for (int i = 1; i < (int)blockDim.x / 32; i++) {
        sum.x += scratch[turn][i].x;
        sum.y += scratch[turn][i].y;
    }
    return sum;
}

/* This thread's vector of a row; zeros past the end of the row and past the last row. */
template <typename T>
static __device__ __forceinline__ packed<T, ONCE> vector_of(const typename T::stored *data, const norm_args<T> &a,
                                                            int64_t row, int at) {
    return row < a.rows && at < a.n ? load_packed<T, ONCE>(data + row * a.n + at) : packed<T, ONCE>{};
}

template <typename T>
static __device__ __forceinline__ void weights_of(float (&w)[ONCE], const norm_args<T> &a, int at) {
#pragma unroll
    for (int j = 0; j < ONCE; j++) {
        w[j] = a.w.here() && at < a.n ? a.w[at + j] : 1.0f;
    }
}

template <typename T> __global__ void __launch_bounds__(MOST_THREADS) norm_block_kernel(norm_args<T> a) {
    __shared__ float2 scratch[2][MOST_THREADS / 32];
    const int at = (int)threadIdx.x * ONCE;
    float w[ONCE];
    int turn = 0;
    weights_of(w, a, at);
    packed<T, ONCE> next = vector_of(a.x.data, a, blockIdx.x, at);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
        const packed<T, ONCE> x = next;
        float2 sums = make_float2(0.0f, 0.0f);
        next = vector_of(a.x.data, a, row + gridDim.x, at);
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const float value = element_of<T, ONCE>(x, j);
            sums.x = fmaf(value, value, sums.x);
        }
        sums = sum_block(sums, scratch, turn);
        const float scale = 1.0f / sqrtf(sums.x / a.over + a.eps);
        float y[ONCE];
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            y[j] = element_of<T, ONCE>(x, j) * scale * w[j];
        }
        if (at < a.n) {
            store_all<T, ONCE>(a.y.data + row * a.n + at, y);
        }
    }
}

/* With s = 1/sqrt(mean x^2 + eps) and g = dy w: dx = s g - s^3 mean(g x) x, dw = sum of dy x s. */
template <typename T> __global__ void __launch_bounds__(MOST_THREADS) norm_block_backward_kernel(norm_args<T> a) {
    __shared__ float2 scratch[2][MOST_THREADS / 32];
    const int at = (int)threadIdx.x * ONCE;
    float w[ONCE], dw[ONCE] = {};
    int turn = 0;
    weights_of(w, a, at);
    packed<T, ONCE> next_x = vector_of(a.x.data, a, blockIdx.x, at), next_dy = vector_of(a.dy.data, a, blockIdx.x, at);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
        const packed<T, ONCE> x = next_x, dy = next_dy;
        packed<T, ONCE> old = {};
        float2 sums = make_float2(0.0f, 0.0f);
        if (a.accumulate) {
            old = vector_of(a.dx.data, a, row, at);
        }
        next_x = vector_of(a.x.data, a, row + gridDim.x, at);
        next_dy = vector_of(a.dy.data, a, row + gridDim.x, at);
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const float value = element_of<T, ONCE>(x, j);
            sums.x = fmaf(value, value, sums.x);
            sums.y = fmaf(element_of<T, ONCE>(dy, j) * w[j], value, sums.y);
        }
        sums = sum_block(sums, scratch, turn);
        const float scale = 1.0f / sqrtf(sums.x / a.over + a.eps);
        const float back = scale * scale * scale * (sums.y / a.over);
        float dx[ONCE];
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const float value = element_of<T, ONCE>(x, j), up = element_of<T, ONCE>(dy, j);
            dx[j] = scale * (up * w[j]) - back * value + element_of<T, ONCE>(old, j);
            dw[j] = fmaf(up, value * scale, dw[j]);
        }
        if (a.dx.here() && at < a.n) {
            store_all<T, ONCE>(a.dx.data + row * a.n + at, dx);
        }
    }
    if (a.partial != NULL && at < a.n) {
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            a.partial[blockIdx.x * a.n + at + j] = dw[j];
        }
    }
}

template <typename T> static bool fits(const norm_args<T> &a) {
    const void *used[] = {a.x.data, a.y.data, a.dx.data, a.dy.data};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) {
        if (!is_aligned(used[i])) {
            return false;
        }
    }
    return a.n % ONCE == 0 && a.n > WARP_ROW && a.n <= MOST_THREADS * ONCE && a.sums == NULL && a.z.data == NULL;
}

template <typename T> static unsigned threads_of(const norm_args<T> &a) {
    return (unsigned)((a.n / ONCE + 31) / 32 * 32);
}

constexpr int64_t BLOCKS = 792; /* forward: 6 for each of 132 multiprocessors */

template <typename T> bool norm_block(const norm_args<T> &a, cudaStream_t stream) {
    if (!fits(a)) {
        return false;
    }
    norm_block_kernel<T><<<(unsigned)(a.rows < BLOCKS ? a.rows : BLOCKS), threads_of(a), 0, stream>>>(a);
    return true;
}

template <typename T> bool norm_block_backward(const norm_args<T> &a, int64_t *blocks, cudaStream_t stream) {
    if (!fits(a)) {
        return false;
    }
    *blocks = a.rows < *blocks ? a.rows : *blocks;
    norm_block_backward_kernel<T><<<(unsigned)*blocks, threads_of(a), 0, stream>>>(a);
    return true;
}

template bool norm_block<type_f32>(const norm_args<type_f32> &a, cudaStream_t stream);
template bool norm_block<type_bf16>(const norm_args<type_bf16> &a, cudaStream_t stream);
template bool norm_block<type_f16>(const norm_args<type_f16> &a, cudaStream_t stream);
template bool norm_block_backward<type_f32>(const norm_args<type_f32> &a, int64_t *blocks, cudaStream_t stream);
template bool norm_block_backward<type_bf16>(const norm_args<type_bf16> &a, int64_t *blocks, cudaStream_t stream);
template bool norm_block_backward<type_f16>(const norm_args<type_f16> &a, int64_t *blocks, cudaStream_t stream);
