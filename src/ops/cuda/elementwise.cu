/* Element by element on NVIDIA GPUs: conversions, sums, differences, products.

   A thread does 8 elements, 16 or 32 bytes of each operand at a time, if all are aligned to 16 bytes, else one. The
   same thread reads each element before it writes it, so that the result may overwrite an operand of the same size. */
#include <string.h>

extern "C" {
#include "core/tensor.h"
#include "ops/cuda/cuda.h"
}

#include "device/cuda.h"
#include "ops/cuda/types.cuh"

static const int THREADS = 256;
static const int ONCE = 8;
static const int64_t BLOCKS_MAX = 1 << 20;

template <typename T> struct __align__(16) eight {
    typename T::stored value[ONCE];
};

static __device__ __forceinline__ float apply(int op, float x, float y) {
    switch (op) {
    case CARRY_ADD:
        return x + y;
    case CARRY_SUBTRACT:
        return x - y;
    default:
        return x * y;
    }
}

template <typename A, typename B> struct is_same_type { static const bool value = false; };
template <typename A> struct is_same_type<A, A> { static const bool value = true; };

/* Converting a type to itself copies the bits: a signalling NaN, which narrow() would make quiet, is kept. */
template <typename To, typename X, bool PAIR>
static __device__ __forceinline__ typename To::stored one(int op, typename X::stored x, typename X::stored y) {
    if constexpr (!PAIR && is_same_type<To, X>::value) {
        return x;
    }
    float value = X::widen(x);
    if constexpr (PAIR) {
        value = apply(op, value, X::widen(y));
    }
    return To::narrow(value);
}

template <typename To, typename X, bool PAIR>
__global__ void __launch_bounds__(THREADS)
    map_kernel(typename To::stored *to, const typename X::stored *x, const typename X::stored *y, int64_t count,
               int64_t eights, int op) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t i = first; i < eights; i += step) {
        eight<X> from = ((const eight<X> *)x)[i];
        eight<X> other = {};
        eight<To> result;
        if constexpr (PAIR) {
            other = ((const eight<X> *)y)[i];
        }
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            result.value[j] = one<To, X, PAIR>(op, from.value[j], other.value[j]);
        }
        ((eight<To> *)to)[i] = result;
    }
    for (int64_t i = eights * ONCE + first; i < count; i += step) {
        to[i] = one<To, X, PAIR>(op, x[i], PAIR ? y[i] : typename X::stored{});
    }
}

static bool is_aligned(const void *pointer) {
    return (uintptr_t)pointer % 16 == 0;
}

/* y absent: a conversion. */
template <typename To, typename X, bool PAIR>
static void launch(int op, const carry_tensor &to, const carry_tensor &x, const carry_tensor &y, cudaStream_t stream) {
    int64_t count = carry_tensor_count(&x);
    int64_t eights = is_aligned(to.data) && is_aligned(x.data) && is_aligned(y.data) ? count / ONCE : 0;
    int64_t pieces = eights > 0 ? eights : count;
    int64_t blocks = (pieces + THREADS - 1) / THREADS;
    map_kernel<To, X, PAIR><<<(unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX), THREADS, 0, stream>>>(
        (typename To::stored *)to.data, (const typename X::stored *)x.data, (const typename X::stored *)y.data, count,
        eights, op);
}

static carry_status map(carry_ctx *ctx, int op, const carry_tensor &to, const carry_tensor &x, const carry_tensor &y) {
    int ordinal = 0;
    (void)carry_backend_of(x.device, &ordinal);
    cudaStream_t stream = (cudaStream_t)carry_ctx_stream(ctx, x.device);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    if (carry_tensor_count(&x) == 0) {
        return CARRY_OK;
    }
    with_type(to.dtype, [&](auto to_type) {
        with_type(x.dtype, [&](auto type) {
            y.data == NULL ? launch<decltype(to_type), decltype(type), false>(op, to, x, y, stream)
                           : launch<decltype(to_type), decltype(type), true>(op, to, x, y, stream);
        });
    });
    CARRY_CUDA_TRY(cudaGetLastError(), "an element-wise kernel cannot be launched");
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_convert(carry_ctx *ctx, carry_tensor to, carry_tensor from) {
    return map(ctx, 0, to, from, carry_tensor{});
}

extern "C" carry_status carry_cuda_elementwise(carry_ctx *ctx, carry_elementwise_op op, carry_tensor to, carry_tensor x,
                                               carry_tensor y) {
    return map(ctx, (int)op, to, x, y);
}

template <typename E> __global__ void __launch_bounds__(THREADS) fill_kernel(E *to, E value, int64_t count) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        to[i] = value;
    }
}

template <typename E> static void launch_fill(const carry_tensor &to, const unsigned char *bits, cudaStream_t stream) {
    E value;
    memcpy(&value, bits, sizeof value);
    int64_t count = carry_tensor_count(&to);
    int64_t blocks = (count + THREADS - 1) / THREADS;
    fill_kernel<E>
        <<<(unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX), THREADS, 0, stream>>>((E *)to.data, value, count);
}

extern "C" carry_status carry_cuda_fill(carry_ctx *ctx, carry_tensor to, const unsigned char *bits) {
    int ordinal = 0;
    (void)carry_backend_of(to.device, &ordinal);
    cudaStream_t stream = (cudaStream_t)carry_ctx_stream(ctx, to.device);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    if (carry_tensor_count(&to) == 0) {
        return CARRY_OK;
    }
    switch (carry_dtype_size(to.dtype)) {
    case 2:
        launch_fill<uint16_t>(to, bits, stream);
        break;
    case 4:
        launch_fill<uint32_t>(to, bits, stream);
        break;
    default:
        launch_fill<uint64_t>(to, bits, stream);
        break;
    }
    CARRY_CUDA_TRY(cudaGetLastError(), "a fill cannot be launched");
    return CARRY_OK;
}
