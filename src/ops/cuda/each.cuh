/* Applies a function object to each element of tensors of one type and count: 16 or 32 bytes of each operand at a
   time if all are aligned, else one element. A thread reads an element of all operands before it writes that
   element, so that results may overwrite operands. */
#ifndef CARRY_OPS_EACH_CUH
#define CARRY_OPS_EACH_CUH

#include "ops/cuda/wide.cuh"

template <typename T, int TO, int FROM> struct each_args {
    typename T::stored *to[TO];
    const typename T::stored *from[FROM];
    int64_t count, eights;
};

/* f(out, in) computes the results of one element. */
template <typename T, int TO, int FROM, typename F>
__global__ void __launch_bounds__(THREADS) each_kernel(each_args<T, TO, FROM> a, F f) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float in[FROM], out[TO];
    for (int64_t i = first; i < a.eights; i += step) {
        eight<T> from[FROM], to[TO];
#pragma unroll
        for (int k = 0; k < FROM; k++) {
            from[k] = ((const eight<T> *)a.from[k])[i];
        }
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
#pragma unroll
            for (int k = 0; k < FROM; k++) {
                in[k] = T::widen(from[k].value[j]);
            }
            f(out, in);
#pragma unroll
            for (int k = 0; k < TO; k++) {
                to[k].value[j] = T::narrow(out[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < TO; k++) {
            ((eight<T> *)a.to[k])[i] = to[k];
        }
    }
    for (int64_t i = a.eights * ONCE + first; i < a.count; i += step) {
        for (int k = 0; k < FROM; k++) {
            in[k] = T::widen(a.from[k][i]);
        }
        f(out, in);
        for (int k = 0; k < TO; k++) {
            a.to[k][i] = T::narrow(out[k]);
        }
    }
}

template <int TO, int FROM, typename F>
static carry_status for_each(carry_ctx *ctx, const char *what, const carry_tensor (&to)[TO],
                             const carry_tensor (&from)[FROM], F f) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, from[0].device));
    const int64_t count = carry_tensor_count(&from[0]);
    with_type(from[0].dtype, [&](auto type) {
        using T = decltype(type);
        each_args<T, TO, FROM> a = {};
        bool aligned = true;
        for (int k = 0; k < TO; k++) {
            a.to[k] = (typename T::stored *)to[k].data;
            aligned = aligned && (uintptr_t)to[k].data % 16 == 0;
        }
        for (int k = 0; k < FROM; k++) {
            a.from[k] = (const typename T::stored *)from[k].data;
            aligned = aligned && (uintptr_t)from[k].data % 16 == 0;
        }
        a.count = count;
        a.eights = aligned ? count / ONCE : 0;
        each_kernel<T, TO, FROM, F>
            <<<blocks_for(aligned ? (count + ONCE - 1) / ONCE : count, THREADS), THREADS, 0, at.stream>>>(a, f);
    });
    return launched(ctx, at, what);
}

#endif
