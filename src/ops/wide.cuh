/* Several neighbouring elements of a row at once, by accesses of 16 bytes (of 8 elements of 16 bits; two accesses for 8
   of f32), and functions of them. Types of 16 bits use the GPU's own conversions and its approximate exponential and
   reciprocal: what those lose is hidden by the rounding of the result, and operators that move memory have few
   instructions to spare. f32 keeps the functions of nn.cuh. */
#ifndef CARRY_OPS_WIDE_CUH
#define CARRY_OPS_WIDE_CUH

#include "ops/nn.cuh"

constexpr int ONCE = 8;

template <typename T, int V>
struct __align__(V * sizeof(typename T::stored) < 16 ? V * sizeof(typename T::stored) : 16) several {
    typename T::stored value[V];
};

template <typename T> using eight = several<T, ONCE>;

static inline bool is_aligned(const void *pointer) {
    return (uintptr_t)pointer % 16 == 0;
}

/* Numbers to and from f32; which NaN a NaN becomes does not matter here. */
template <typename T> struct quick {
    static constexpr bool BY_PAIRS = false;
    static __device__ __forceinline__ float widen(typename T::stored bits) {
        return T::widen(bits);
    }
    static __device__ __forceinline__ float sigmoid(float x) {
        return sigmoid_of(x);
    }
    static __device__ __forceinline__ float exponential(float x) {
        return expf(x);
    }
};

static __device__ __forceinline__ float quick_exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

static __device__ __forceinline__ float quick_sigmoid(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + quick_exponential(-x)));
    return y;
}

template <> struct quick<type_bf16> {
    static constexpr bool BY_PAIRS = true;
    static __device__ __forceinline__ float widen(uint16_t bits) {
        return type_bf16::widen(bits);
    }
    static __device__ __forceinline__ float sigmoid(float x) {
        return quick_sigmoid(x);
    }
    static __device__ __forceinline__ float exponential(float x) {
        return quick_exponential(x);
    }
};

template <> struct quick<type_f16> {
    static constexpr bool BY_PAIRS = false;
    static __device__ __forceinline__ float widen(uint16_t bits) {
        return __half2float(__ushort_as_half(bits));
    }
    static __device__ __forceinline__ float sigmoid(float x) {
        return quick_sigmoid(x);
    }
    static __device__ __forceinline__ float exponential(float x) {
        return quick_exponential(x);
    }
};

template <typename T, int V>
static __device__ __forceinline__ void widen_all(float (&to)[V], const several<T, V> &from) {
#pragma unroll
    for (int j = 0; j < V; j++) {
        to[j] = quick<T>::widen(from.value[j]);
    }
}

/* Two of bf16 by one instruction. */
static __device__ __forceinline__ uint32_t pair_of_bf16(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

template <typename T, int V> static __device__ __forceinline__ several<T, V> narrow_all(const float (&from)[V]) {
    several<T, V> to;
    if constexpr (quick<T>::BY_PAIRS && V % 2 == 0) {
#pragma unroll
        for (int j = 0; j < V; j += 2) {
            const uint32_t both = pair_of_bf16(from[j], from[j + 1]);
            to.value[j] = (uint16_t)both;
            to.value[j + 1] = (uint16_t)(both >> 16);
        }
    } else {
#pragma unroll
        for (int j = 0; j < V; j++) {
            to.value[j] = T::narrow(from[j]);
        }
    }
    return to;
}

/* By one access, where the compiler would make several of a struct. */
template <typename T, int V>
static __device__ __forceinline__ void store_all(typename T::stored *to, const float (&from)[V]) {
    if constexpr (quick<T>::BY_PAIRS && V == 8) {
        *(uint4 *)to = make_uint4(pair_of_bf16(from[0], from[1]), pair_of_bf16(from[2], from[3]),
                                  pair_of_bf16(from[4], from[5]), pair_of_bf16(from[6], from[7]));
    } else {
        *(several<T, V> *)to = narrow_all<T, V>(from);
    }
}

/* ACTIVATION: CARRY_SILU, or -1: the one that is given. */
template <typename T, int ACTIVATION> static __device__ __forceinline__ float activate_quick(float x, int activation) {
    return ACTIVATION == CARRY_SILU ? x * quick<T>::sigmoid(x) : activate_one(x, activation);
}

template <typename T, int ACTIVATION>
static __device__ __forceinline__ float activate_back_quick(float dy, float x, int activation) {
    return ACTIVATION == CARRY_SILU ? dy * silu_slope_of(x, quick<T>::sigmoid(x)) : activate_back(dy, x, activation);
}

/* Elements at..at+V-1 of a tensor whose type is known when the kernel runs. */
template <int V> static __device__ __forceinline__ void read_mixed(float (&to)[V], const mixed &from, int64_t at) {
#pragma unroll
    for (int j = 0; j < V; j++) {
        to[j] = from[at + j];
    }
}

#endif
