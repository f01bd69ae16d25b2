/* The gated unit on NVIDIA GPUs, and its gradient. Gate and up may be columns of one wider array, the result of one
   product for both, so rows have a stride. A thread loads two vectors of 8 elements at a time, and reads all operands
   of a vector before it writes, so that gradients may overwrite gate and up. */
#include "ops/cuda/fp8.cuh"

template <typename T> struct swiglu_args {
    typename T::stored *to, *to2;              /* y; backward dgate and dup */
    const typename T::stored *gate, *up, *dy;  /* dy NULL: forward */
    int64_t to_row, to2_row, gate_row, up_row; /* elements from row to row; dy and y are packed */
    int64_t rows, n;
    unsigned char *codes; /* in bf16: y in e4m3, or dgate and dup as columns of one matrix in e5m2 (fp8.cuh); NULL: not
                             wanted */
    float *code_scale;
};

template <typename T> static __device__ __forceinline__ void gated(float (&out)[2], float gate, float up, float dy) {
    const float s = quick<T>::sigmoid(gate);
    out[0] = dy * up * silu_slope_of(gate, s);
    out[1] = dy * (gate * s);
}

template <typename T> static __device__ __forceinline__ float gated(float gate, float up) {
    return gate * quick<T>::sigmoid(gate) * up;
}

/* Stores eight elements in bf16 and as codes. */
template <bool WIDE>
static __device__ __forceinline__ void store_coded(uint16_t *to, unsigned char *codes, const float (&from)[ONCE],
                                                   float inverse, fp8_largest &largest) {
    uint32_t word[4];
    fp8_words(word, from);
    largest.take(word);
    __stcg((uint4 *)to, make_uint4(word[0], word[1], word[2], word[3]));
    __stcg((uint2 *)codes, fp8_eight<WIDE>(word, inverse));
}

/* Computes one vector. */
template <typename T, bool BACK, bool CODED> struct loaded {
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
    __device__ __forceinline__ void finish(const swiglu_args<T> &a, float inverse, fp8_largest &largest) const {
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
        if constexpr (CODED) {
            unsigned char *codes = a.codes + row * a.n * (BACK ? 2 : 1) + column;
            store_coded<BACK>(a.to + row * a.to_row + column, codes, to, inverse, largest);
            if (BACK) {
                store_coded<BACK>(a.to2 + row * a.to2_row + column, codes + a.n, to2, inverse, largest);
            }
        } else {
            store_all<T, ONCE>(a.to + row * a.to_row + column, to);
            if (BACK) {
                store_all<T, ONCE>(a.to2 + row * a.to2_row + column, to2);
            }
        }
    }
};

template <typename T, bool BACK, bool CODED>
__global__ void __launch_bounds__(THREADS) swiglu_wide_kernel(swiglu_args<T> a, unsigned vectors, unsigned all) {
    const unsigned step = gridDim.x * THREADS;
    const float inverse = CODED ? a.code_scale[CARRY_FP8_INVERSE] : 0.0f;
    fp8_largest largest = {};
    loaded<T, BACK, CODED> one, two;
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < all; i += 2 * step) {
        one.load(a, i, vectors);
        const bool second = i + step < all;
        if (second) {
            two.load(a, i + step, vectors);
        }
        one.finish(a, inverse, largest);
        if (second) {
            two.finish(a, inverse, largest);
        }
    }
    if (CODED) {
        largest.record(a.code_scale);
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

template <typename T, bool CODED>
static void launch_wide(const swiglu_args<T> &a, unsigned vectors, unsigned all, cudaStream_t stream) {
    if (a.dy != NULL) {
        swiglu_wide_kernel<T, true, CODED><<<blocks_for(all, 2 * THREADS), THREADS, 0, stream>>>(a, vectors, all);
    } else {
        swiglu_wide_kernel<T, false, CODED><<<blocks_for(all, 2 * THREADS), THREADS, 0, stream>>>(a, vectors, all);
    }
}

/* codes NULL: not wanted. *coded: they were written, which needs aligned rows in bf16. */
static carry_status run(carry_ctx *ctx, const char *what, const carry_tensor &to, const carry_tensor &to2,
                        const carry_tensor &dy, const carry_tensor &gate, const carry_tensor &up,
                        const carry_fp8 *codes, bool *coded) {
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
                            n,
                            NULL,
                            NULL};
        const unsigned vectors = (unsigned)(n / ONCE), all = (unsigned)(count / ONCE);
        if (!fits(a)) {
            swiglu_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(a);
            return;
        }
        if constexpr (quick<T>::BY_PAIRS) { /* bf16 */
            if (codes != NULL) {
                a.codes = codes->codes;
                a.code_scale = codes->scale;
                *coded = true;
                launch_wide<T, true>(a, vectors, all, at.stream);
                return;
            }
        }
        launch_wide<T, false>(a, vectors, all, at.stream);
    });
    return launched(ctx, at, what);
}

extern "C" carry_status carry_cuda_swiglu(carry_ctx *ctx, carry_tensor y, carry_tensor gate, carry_tensor up) {
    return run(ctx, "swiglu cannot be launched", y, carry_tensor{}, carry_tensor{}, gate, up, NULL, NULL);
}

extern "C" carry_status carry_cuda_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup,
                                                   carry_tensor dy, carry_tensor gate, carry_tensor up) {
    return run(ctx, "swiglu_backward cannot be launched", dgate, dup, dy, gate, up, NULL, NULL);
}

extern "C" carry_status carry_cuda_fp8_swiglu(carry_ctx *ctx, carry_tensor y, carry_fp8 codes, carry_tensor gate,
                                              carry_tensor up) {
    bool coded = false;
    CARRY_TRY(run(ctx, "fp8_swiglu cannot be launched", y, carry_tensor{}, carry_tensor{}, gate, up,
                  codes.kind == CARRY_E4M3 ? &codes : NULL, &coded));
    return coded ? CARRY_OK : carry_cuda_fp8_round(ctx, codes, y, false);
}

extern "C" carry_status carry_cuda_fp8_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup,
                                                       carry_fp8 codes, carry_tensor dy, carry_tensor gate,
                                                       carry_tensor up) {
    bool coded = false;
    CARRY_TRY(run(ctx, "fp8_swiglu_backward cannot be launched", dgate, dup, dy, gate, up,
                  codes.kind == CARRY_E5M2 ? &codes : NULL, &coded));
    return coded ? CARRY_OK
                 : carry_fail(ctx, CARRY_EUNSUPPORTED,
                              "gradients of gate and up in 8-bit floats need e5m2 and rows aligned to 16 bytes");
}
