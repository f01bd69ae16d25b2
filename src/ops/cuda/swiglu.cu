/* The gated unit on NVIDIA GPUs, and its gradient. Gate and up may be columns of one wider array, the result of one
   product for both, so rows have a stride. A thread loads two vectors of 8 elements at a time, and reads all operands
   of a vector before it writes, so that gradients may overwrite gate and up. */
#include "ops/cuda/wide.cuh"

template <typename T> struct swiglu_args {
    typename T::stored *to, *to2;              /* y; backward dgate and dup */
    const typename T::stored *gate, *up, *dy;  /* dy NULL: forward */
    int64_t to_row, to2_row, gate_row, up_row; /* elements from row to row; dy and y are packed */
    int64_t rows, n;
};

template <typename T> static __device__ __forceinline__ void gated(float (&out)[2], float gate, float up, float dy) {
    const float s = quick<T>::sigmoid(gate);
    out[0] = dy * up * silu_slope_of(gate, s);
    out[1] = dy * (gate * s);
}

template <typename T> static __device__ __forceinline__ float gated(float gate, float up) {
    return gate * quick<T>::sigmoid(gate) * up;
}

/* Computes one vector. */
template <typename T, bool BACK> struct loaded {
    packed<T, ONCE> gate, up, dy;
    int64_t row;
    unsigned column;
    __device__ __forceinline__ void load(const swiglu_args<T> &a, unsigned vector, unsigned vectors) {
        row = vector / vectors;
        column = vector % vectors * ONCE;
        gate = load_packed<T, ONCE>(a.gate + row * a.gate_row + column);
        up = load_packed<T, ONCE>(a.up + row * a.up_row + column);
        if (BACK) {
            dy = load_packed<T, ONCE>(a.dy + row * a.n + column);
        }
    }
    __device__ __forceinline__ void finish(const swiglu_args<T> &a) const {
        float to[ONCE], to2[ONCE];
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const float g = element_of<T, ONCE>(gate, j), u = element_of<T, ONCE>(up, j);
            if (BACK) {
                float both[2];
                gated<T>(both, g, u, element_of<T, ONCE>(dy, j));
                to[j] = both[0];
                to2[j] = both[1];
            } else {
                to[j] = gated<T>(g, u);
            }
        }
        store_all<T, ONCE>(a.to + row * a.to_row + column, to);
        if (BACK) {
            store_all<T, ONCE>(a.to2 + row * a.to2_row + column, to2);
        }
    }
};

template <typename T, bool BACK>
__global__ void __launch_bounds__(THREADS) swiglu_wide_kernel(swiglu_args<T> a, unsigned vectors, unsigned all) {
    const unsigned step = gridDim.x * THREADS;
    loaded<T, BACK> one, two;
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < all; i += 2 * step) {
        one.load(a, i, vectors);
        const bool second = i + step < all;
        if (second) {
            two.load(a, i + step, vectors);
        }
        one.finish(a);
        if (second) {
            two.finish(a);
        }
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) swiglu_kernel(swiglu_args<T> a) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * a.n; i += step) {
        const int64_t row = i / a.n, column = i % a.n;
        const float gate = T::widen(a.gate[row * a.gate_row + column]), up = T::widen(a.up[row * a.up_row + column]);
        if (a.dy == NULL) {
            a.to[row * a.to_row + column] = T::narrow(gated<T>(gate, up));
        } else {
            float both[2];
            gated<T>(both, gate, up, T::widen(a.dy[i]));
            a.to[row * a.to_row + column] = T::narrow(both[0]);
            a.to2[row * a.to2_row + column] = T::narrow(both[1]);
        }
    }
}

template <typename T> static bool fits(const swiglu_args<T> &a) {
    const void *used[] = {a.to, a.to2, a.gate, a.up, a.dy};
    bool aligned = a.n % ONCE == 0 && a.rows * (a.n / ONCE) < (int64_t)1 << 31;
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) {
        aligned = aligned && is_aligned(used[i]);
    }
    return aligned && a.to_row % ONCE == 0 && a.to2_row % ONCE == 0 && a.gate_row % ONCE == 0 && a.up_row % ONCE == 0;
}

static carry_status run(carry_ctx *ctx, const char *what, const carry_tensor &to, const carry_tensor &to2,
                        const carry_tensor &dy, const carry_tensor &gate, const carry_tensor &up) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, gate.device));
    const int64_t count = carry_tensor_count(&gate);
    if (count == 0) {
        return CARRY_OK;
    }
    with_type(gate.dtype, [&](auto type) {
        using T = decltype(type);
        using E = typename T::stored;
        const int64_t n = gate.rank >= 1 ? gate.shape[gate.rank - 1] : 1;
        swiglu_args<T> a = {(E *)to.data,
                            (E *)to2.data,
                            (const E *)gate.data,
                            (const E *)up.data,
                            (const E *)dy.data,
                            row_step(to),
                            to2.data != NULL ? row_step(to2) : 0,
                            row_step(gate),
                            row_step(up),
                            count / n,
                            n};
        const unsigned vectors = (unsigned)(n / ONCE), all = (unsigned)(count / ONCE);
        if (!fits(a)) {
            swiglu_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(a);
        } else if (dy.data != NULL) {
            swiglu_wide_kernel<T, true><<<blocks_for(all, 2 * THREADS), THREADS, 0, at.stream>>>(a, vectors, all);
        } else {
            swiglu_wide_kernel<T, false><<<blocks_for(all, 2 * THREADS), THREADS, 0, at.stream>>>(a, vectors, all);
        }
    });
    return launched(ctx, at, what);
}

extern "C" carry_status carry_cuda_swiglu(carry_ctx *ctx, carry_tensor y, carry_tensor gate, carry_tensor up) {
    return run(ctx, "swiglu cannot be launched", y, carry_tensor{}, carry_tensor{}, gate, up);
}

extern "C" carry_status carry_cuda_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup,
                                                   carry_tensor dy, carry_tensor gate, carry_tensor up) {
    return run(ctx, "swiglu_backward cannot be launched", dgate, dup, dy, gate, up);
}
