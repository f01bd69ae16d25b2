/* The root-mean-square norm of norm.cu for rows of whole vectors, up to 1024 elements, at the speed of memory.

   GROUP threads, a warp or a part of one, have a row: VECS vectors of 8 elements each, which are read once into
   registers. Rows are distributed over the whole grid. Backward, dw of a group's rows is summed in registers, then
   over the groups of a block in order, into a row of the workspace; weights are then in shared memory, since the
   registers hold a row of x and of dy and the sums. */
#include "ops/cuda/fp8.cuh"
#include "ops/cuda/norm.cuh"

template <int GROUP> static __device__ __forceinline__ float sum_over(float value) {
#pragma unroll
    for (int step = GROUP / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    return value;
}

/* Loads this thread's vectors of a row, with zeros past its end. */
template <typename T, int GROUP, int VECS>
static __device__ __forceinline__ void load_row(packed<T, ONCE> (&to)[VECS], const typename T::stored *row, int n) {
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        const int at = ((int)threadIdx.x % GROUP + k * GROUP) * ONCE;
        if (at < n) {
            to[k] = load_packed<T, ONCE>(row + at);
        } else {
            to[k] = packed<T, ONCE>{};
        }
    }
}

template <int GROUP, int VECS>
static __device__ __forceinline__ void load_weights(float (&w)[VECS][ONCE], const mixed &from, int n) {
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        const int at = ((int)threadIdx.x % GROUP + k * GROUP) * ONCE;
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            w[k][j] = from.here() && at < n ? from[at + j] : 1.0f;
        }
    }
}

/* Stores eight elements of y in bf16 and as codes. */
static __device__ __forceinline__ void store_coded(const norm_args<type_bf16> &a, int64_t to, const float (&y)[ONCE],
                                                   float inverse, fp8_largest &largest) {
    uint32_t word[4];
    fp8_words(word, y);
    largest.take(word);
    __stcg((uint4 *)(a.y.data + to), make_uint4(word[0], word[1], word[2], word[3]));
    __stcg((uint2 *)(a.codes + to), fp8_eight<false>(word, inverse));
}

template <typename T, int GROUP, int VECS, bool GATED, bool CODED>
__global__ void __launch_bounds__(THREADS) norm_wide_kernel(norm_args<T> a) {
    const int n = (int)a.n;
    const int64_t step = (int64_t)gridDim.x * (THREADS / GROUP);
    const int64_t warp_first = ((int64_t)blockIdx.x * THREADS + threadIdx.x / 32 * 32) / GROUP;
    const int64_t own = threadIdx.x % 32 / GROUP;
    float w[VECS][ONCE];
    const float inverse = CODED ? a.code_scale[CARRY_FP8_INVERSE] : 0.0f;
    fp8_largest largest = {};
    load_weights<GROUP, VECS>(w, a.w, n);
    for (int64_t base = warp_first; base < a.rows; base += step) { /* all threads of a warp stay in the loop together */
        const bool there = base + own < a.rows;
        const int64_t row = there ? base + own : base;
        packed<T, ONCE> x[VECS], z[VECS];
        load_row<T, GROUP, VECS>(x, a.x.data + row * a.n, n);
        if (GATED) {
            load_row<T, GROUP, VECS>(z, a.z.data + z_at(a, row, a.z_row), n);
        }
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < VECS; k++) {
#pragma unroll
            for (int j = 0; j < ONCE; j++) {
                const float value = element_of<T, ONCE>(x[k], j);
                squares = fmaf(value, value, squares);
            }
        }
        const float scale = 1.0f / sqrtf(sum_over<GROUP>(squares) / a.over + a.eps);
#pragma unroll
        for (int k = 0; k < VECS; k++) {
            const int at = ((int)threadIdx.x % GROUP + k * GROUP) * ONCE;
            float y[ONCE];
#pragma unroll
            for (int j = 0; j < ONCE; j++) {
                y[j] = element_of<T, ONCE>(x[k], j) * scale * w[k][j];
                if (GATED) {
                    const float gate = element_of<T, ONCE>(z[k], j);
                    y[j] *= gate * quick<T>::sigmoid(gate);
                }
            }
            if (there && at < n) {
                if constexpr (CODED) {
                    store_coded(a, row * a.n + at, y, inverse, largest);
                } else {
                    store_all<T, ONCE>(a.y.data + row * a.n + at, y);
                }
            }
        }
    }
    if (CODED) {
        largest.record(a.code_scale);
    }
}

/* Reads this thread's vector k of the weights in shared memory. */
template <int GROUP>
static __device__ __forceinline__ void read_weights(float (&w)[ONCE], const float *weights, int k) {
    const int at = ((int)threadIdx.x % GROUP + k * GROUP) * ONCE;
    const float4 low = *(const float4 *)(weights + at), high = *(const float4 *)(weights + at + 4);
    w[0] = low.x;
    w[1] = low.y;
    w[2] = low.z;
    w[3] = low.w;
    w[4] = high.x;
    w[5] = high.y;
    w[6] = high.z;
    w[7] = high.w;
}

/* One row backward: dx is written or, with `accumulate`, added to; dz is written; dw is added to. With
   s = 1/sqrt(mean x^2 + eps) and g = dy w silu(z): dx = s g - s^3 mean(g x) x. */
template <typename T, int GROUP, int VECS, bool GATED>
static __device__ __forceinline__ void backward_row(const norm_args<T> &a, int64_t row, bool there,
                                                    const float *weights, float (&dw)[VECS][ONCE]) {
    const int n = (int)a.n;
    packed<T, ONCE> x[VECS], dy[VECS], z[VECS], old[VECS];
    float squares = 0.0f, dots = 0.0f;
    load_row<T, GROUP, VECS>(x, a.x.data + row * a.n, n);
    load_row<T, GROUP, VECS>(dy, a.dy.data + row * a.n, n);
    if (GATED) {
        load_row<T, GROUP, VECS>(z, a.z.data + z_at(a, row, a.z_row), n);
    } else if (a.accumulate) {
        load_row<T, GROUP, VECS>(old, a.dx.data + row * a.n, n);
    }
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        float w[ONCE];
        read_weights<GROUP>(w, weights, k);
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const float value = element_of<T, ONCE>(x[k], j);
            float g = element_of<T, ONCE>(dy[k], j) * w[j];
            if (GATED) {
                const float gate = element_of<T, ONCE>(z[k], j);
                g *= gate * quick<T>::sigmoid(gate);
            }
            squares = fmaf(value, value, squares);
            dots = fmaf(g, value, dots);
        }
    }
    const float scale = 1.0f / sqrtf(sum_over<GROUP>(squares) / a.over + a.eps);
    const float back = scale * scale * scale * (sum_over<GROUP>(dots) / a.over);
    const float counts = there ? 1.0f : 0.0f;
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        const int at = ((int)threadIdx.x % GROUP + k * GROUP) * ONCE;
        float dx[ONCE], dz[ONCE], w[ONCE];
        read_weights<GROUP>(w, weights, k);
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const float value = element_of<T, ONCE>(x[k], j), up = element_of<T, ONCE>(dy[k], j);
            float gate = 1.0f;
            if (GATED) {
                const float in = element_of<T, ONCE>(z[k], j), s = quick<T>::sigmoid(in);
                gate = in * s;
                dz[j] = up * w[j] * (value * scale) * silu_slope_of(in, s);
            }
            dx[j] = scale * (up * w[j] * gate) - back * value;
            if (!GATED && a.accumulate) {
                dx[j] += element_of<T, ONCE>(old[k], j);
            }
            dw[k][j] = fmaf(up * (value * scale), gate * counts, dw[k][j]);
        }
        if (there && at < n) {
            if (a.dx.here()) {
                store_all<T, ONCE>(a.dx.data + row * a.n + at, dx);
            }
            if (GATED && a.dz.here()) {
                store_all<T, ONCE>(a.dz.data + z_at(a, row, a.dz_row) + at, dz);
            }
        }
    }
}

template <typename T, int GROUP, int VECS, bool GATED, int MOST, int RESIDENT>
__global__ void __launch_bounds__(MOST, RESIDENT) norm_wide_backward_kernel(norm_args<T> a) {
    extern __shared__ float sums[]; /* [MOST / GROUP, n] */
    const int n = (int)a.n, group = (int)threadIdx.x / GROUP;
    const int64_t step = (int64_t)gridDim.x * (MOST / GROUP);
    const int64_t warp_first = ((int64_t)blockIdx.x * MOST + threadIdx.x / 32 * 32) / GROUP;
    const int64_t own = threadIdx.x % 32 / GROUP;
    __shared__ __align__(16) float weights[GROUP * VECS * ONCE];
    float dw[VECS][ONCE] = {};
    for (int i = (int)threadIdx.x; i < GROUP * VECS * ONCE; i += MOST) {
        weights[i] = a.w.here() && i < n ? a.w[i] : 1.0f;
    }
    __syncthreads();
    for (int64_t base = warp_first; base < a.rows; base += step) {
        const bool there = base + own < a.rows;
        backward_row<T, GROUP, VECS, GATED>(a, there ? base + own : base, there, weights, dw);
    }
    if (a.partial == NULL) {
        return;
    }
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        const int at = ((int)threadIdx.x % GROUP + k * GROUP) * ONCE;
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            if (at < n) {
                sums[group * n + at + j] = dw[k][j];
            }
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += MOST) {
        float sum = sums[i];
        for (int g = 1; g < MOST / GROUP; g++) {
            sum += sums[g * n + i];
        }
        a.partial[blockIdx.x * a.n + i] = sum;
    }
}

constexpr int64_t BLOCKS = 1056; /* forward: 8 for each of 132 multiprocessors */

template <typename T, int GROUP, int VECS> static void launch(const norm_args<T> &a, cudaStream_t stream) {
    const int64_t needed = (a.rows + THREADS / GROUP - 1) / (THREADS / GROUP);
    const unsigned blocks = (unsigned)(needed < BLOCKS ? needed : BLOCKS);
    if constexpr (quick<T>::BY_PAIRS) { /* bf16 */
        if (a.codes != NULL) {
            norm_wide_kernel<T, GROUP, VECS, false, true><<<blocks, THREADS, 0, stream>>>(a);
            return;
        }
    }
    if (a.z.data != NULL) {
        norm_wide_kernel<T, GROUP, VECS, true, false><<<blocks, THREADS, 0, stream>>>(a);
    } else {
        norm_wide_kernel<T, GROUP, VECS, false, false><<<blocks, THREADS, 0, stream>>>(a);
    }
}

template <typename T, int GROUP, int VECS, int MOST, int RESIDENT>
static int64_t launch_backward(const norm_args<T> &a, int64_t most, cudaStream_t stream) {
    const int64_t needed = (a.rows + MOST / GROUP - 1) / (MOST / GROUP);
    const int64_t blocks = needed < most ? needed : most;
    const size_t shared = a.partial != NULL ? (size_t)(MOST / GROUP * a.n) * sizeof(float) : 0;
    if (a.z.data != NULL) {
        norm_wide_backward_kernel<T, GROUP, VECS, true, MOST, RESIDENT><<<(unsigned)blocks, MOST, shared, stream>>>(a);
    } else {
        norm_wide_backward_kernel<T, GROUP, VECS, false, MOST, RESIDENT><<<(unsigned)blocks, MOST, shared, stream>>>(a);
    }
    return blocks;
}

template <typename T> static bool fits(const norm_args<T> &a) {
    const void *used[] = {a.x.data, a.y.data, a.z.data, a.dx.data, a.dy.data, a.dz.data};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) {
        if (!is_aligned(used[i])) {
            return false;
        }
    }
    return a.n % ONCE == 0 && a.n > 0 && a.n <= WARP_ROW && a.sums == NULL && a.z_row % ONCE == 0 &&
           a.dz_row % ONCE == 0;
}

template <typename T> bool norm_wide(const norm_args<T> &a, cudaStream_t stream) {
    if (!fits(a)) {
        return false;
    }
    if (a.n <= 32) {
        launch<T, 4, 1>(a, stream);
    } else if (a.n <= 64) {
        launch<T, 8, 1>(a, stream);
    } else if (a.n <= 128) {
        launch<T, 16, 1>(a, stream);
    } else if (a.n <= 256) {
        launch<T, 32, 1>(a, stream);
    } else if (a.n <= 768) {
        launch<T, 32, 3>(a, stream);
    } else {
        launch<T, 32, 4>(a, stream);
    }
    return true;
}

/* The workspace has rows for 256 blocks only, about two for each multiprocessor, so blocks are large enough to hide the
   latency of memory. */
template <typename T> bool norm_wide_backward(const norm_args<T> &a, int64_t *blocks, cudaStream_t stream) {
    if (!fits(a) || (a.z.data != NULL && a.accumulate)) {
        return false;
    }
    if (a.n <= 32) {
        *blocks = launch_backward<T, 4, 1, 512, 2>(a, *blocks, stream);
    } else if (a.n <= 64) {
        *blocks = launch_backward<T, 8, 1, 512, 2>(a, *blocks, stream);
    } else if (a.n <= 128) {
        *blocks = launch_backward<T, 16, 1, 512, 2>(a, *blocks, stream);
    } else if (a.n <= 256) {
        *blocks = launch_backward<T, 32, 1, 512, 2>(a, *blocks, stream);
    } else if (a.n <= 768) {
        *blocks = launch_backward<T, 32, 3, 256, 2>(a, *blocks, stream);
    } else {
        *blocks = launch_backward<T, 32, 4, 128, 3>(a, *blocks, stream);
    }
    return true;
}

template bool norm_wide<type_f32>(const norm_args<type_f32> &a, cudaStream_t stream);
template bool norm_wide<type_bf16>(const norm_args<type_bf16> &a, cudaStream_t stream);
template bool norm_wide<type_f16>(const norm_args<type_f16> &a, cudaStream_t stream);
template bool norm_wide_backward<type_f32>(const norm_args<type_f32> &a, int64_t *blocks, cudaStream_t stream);
template bool norm_wide_backward<type_bf16>(const norm_args<type_bf16> &a, int64_t *blocks, cudaStream_t stream);
template bool norm_wide_backward<type_f16>(const norm_args<type_f16> &a, int64_t *blocks, cudaStream_t stream);
