/* Several neighbouring elements of a row at once, by accesses of 16 bytes (one for 8 elements of 16 bits, two for 8
   of f32), and functions of them. 16-bit types use the GPU's own conversions and its approximate exponential and
   reciprocal: their error is below the rounding of the result, and operators bound by memory have few instructions
   to spare. f32 uses the functions of nn.cuh. */
#ifndef CARRY_OPS_WIDE_CUH
#define CARRY_OPS_WIDE_CUH

#include "ops/cuda/nn.cuh"

constexpr int ONCE = 8;

template <typename T, int V>
struct __align__(V * sizeof(typename T::stored) < 16 ? V * sizeof(typename T::stored) : 16) several {
    typename T::stored value[V];
};

template <typename T> using eight = several<T, ONCE>;

static inline bool is_aligned(const void *pointer) {
    return (uintptr_t)pointer % 16 == 0;
}

/* True if rows are whole vectors and offsets fit 30 bits. */
static inline bool has_rows(const carry_tensor &x) {
    return is_aligned(x.data) && (x.data == NULL || (row_step(x) % ONCE == 0 && x.shape[1] * row_step(x) < (1 << 30)));
}

/* Conversions to and from f32; the bits of a NaN do not matter here. */
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

/* Converts two numbers to bf16 by one instruction. */
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

/* V elements as 32-bit words, one per register: the compiler would keep each element of a struct of 16-bit elements
   in its own register, and store it in parts. They are read through intrinsics, one access each, so memory must not be
   read in this way after the kernel has written it. */
template <typename T, int V> struct packed {
    static constexpr int WORDS = V * (int)sizeof(typename T::stored) / 4;
    uint32_t word[WORDS];
};

template <typename T, int V>
static __device__ __forceinline__ packed<T, V> load_packed(const typename T::stored *from) {
    constexpr int WORDS = packed<T, V>::WORDS;
    packed<T, V> to;
    if constexpr (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            const uint4 four = __ldcg((const uint4 *)from + i / 4);
            to.word[i] = four.x;
            to.word[i + 1] = four.y;
            to.word[i + 2] = four.z;
            to.word[i + 3] = four.w;
        }
    } else {
        static_assert(WORDS == 2, "8 or 16 bytes, or whole 16");
        const uint2 two = __ldcg((const uint2 *)from);
        to.word[0] = two.x;
        to.word[1] = two.y;
    }
    return to;
}

/* Element j, which must be a constant, so that words stay in registers. */
template <typename T, int V> static __device__ __forceinline__ float element_of(const packed<T, V> &from, int j) {
    if constexpr (sizeof(typename T::stored) == 4) {
        return __uint_as_float(from.word[j]);
    } else if constexpr (quick<T>::BY_PAIRS) {
        return __uint_as_float(j % 2 == 0 ? from.word[j / 2] << 16 : from.word[j / 2] & 0xffff0000u);
    } else {
        return quick<T>::widen((uint16_t)(from.word[j / 2] >> (j % 2 * 16)));
    }
}

template <typename T, int V>
static __device__ __forceinline__ void widen_packed(float (&to)[V], const packed<T, V> &from) {
#pragma unroll
    for (int j = 0; j < V; j++) {
        to[j] = element_of<T, V>(from, j);
    }
}

template <typename T> static __device__ __forceinline__ uint32_t pair_of(float low, float high) {
    if constexpr (quick<T>::BY_PAIRS) {
        return pair_of_bf16(low, high);
    } else {
        return (uint32_t)T::narrow(low) | (uint32_t)T::narrow(high) << 16;
    }
}

template <typename T, int V>
static __device__ __forceinline__ void store_all(typename T::stored *to, const float (&from)[V]) {
    constexpr int WORDS = packed<T, V>::WORDS;
    uint32_t word[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        if constexpr (sizeof(typename T::stored) == 4) {
            word[i] = __float_as_uint(from[i]);
        } else {
            word[i] = pair_of<T>(from[2 * i], from[2 * i + 1]);
        }
    }
    if constexpr (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            __stcg((uint4 *)to + i / 4, make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]));
        }
    } else {
        __stcg((uint2 *)to, make_uint2(word[0], word[1]));
    }
}

/* ACTIVATION: CARRY_SILU, or -1 to use the argument. */
template <typename T, int ACTIVATION> static __device__ __forceinline__ float activate_quick(float x, int activation) {
    return ACTIVATION == CARRY_SILU ? x * quick<T>::sigmoid(x) : activate_one(x, activation);
}

template <typename T, int ACTIVATION>
static __device__ __forceinline__ float activate_back_quick(float dy, float x, int activation) {
    return ACTIVATION == CARRY_SILU ? dy * silu_slope_of(x, quick<T>::sigmoid(x)) : activate_back(dy, x, activation);
}

/* Reads elements at..at+V-1 of a tensor whose type is known only at run time. */
template <int V> static __device__ __forceinline__ void read_mixed(float (&to)[V], const mixed &from, int64_t at) {
#pragma unroll
    for (int j = 0; j < V; j++) {
        to[j] = from[at + j];
    }
}

#endif
