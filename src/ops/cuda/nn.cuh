/* Shared by the CUDA operators of carry/nn.h: the device and stream of a call, elements of any type, sums over
   threads in a fixed order, and dividing work into blocks. */
#ifndef CARRY_OPS_NN_CUH
#define CARRY_OPS_NN_CUH

extern "C" {
#include "core/tensor.h"
#include "ops/cuda/cuda.h"
}

#include "device/cuda.h"
#include "ops/cuda/types.cuh"

constexpr int THREADS = 256; /* of a block */
constexpr int64_t BLOCKS_MAX = 1 << 20;

/* The device's ordinal and the context's stream on it; the device is made current. */
struct place {
    int ordinal;
    cudaStream_t stream;
};

static inline carry_status open_place(carry_ctx *ctx, place *at, int device) {
    int ordinal = 0;
    (void)carry_backend_of(device, &ordinal);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    at->ordinal = ordinal;
    at->stream = (cudaStream_t)carry_ctx_stream(ctx, device);
    return CARRY_OK;
}

static inline carry_status launched(carry_ctx *ctx, const place &at, const char *what) {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? CARRY_OK : carry_cuda_failed(ctx, error, what, at.ordinal);
}

/* The number of blocks for `count` pieces of work, `each` per block. Kernels loop with a step of the whole grid. */
static inline unsigned blocks_for(int64_t count, int64_t each) {
    int64_t blocks = (count + each - 1) / each;
    return (unsigned)(blocks < 1 ? 1 : blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX);
}

/* A tensor whose type is known only at run time, such as a weight used with 16-bit activations: all threads take the
   same branch. data NULL: absent. */
struct mixed {
    const void *data;
    int type;
    __device__ __forceinline__ bool here() const {
        return data != NULL;
    }
    __device__ __forceinline__ float operator[](int64_t i) const {
        return type == CARRY_F32    ? ((const float *)data)[i]
               : type == CARRY_BF16 ? type_bf16::widen(((const uint16_t *)data)[i])
                                    : type_f16::widen(((const uint16_t *)data)[i]);
    }
};

static inline mixed mixed_of(const carry_tensor &tensor) {
    return mixed{tensor.data, (int)tensor.dtype};
}

/* Activations, of the type for which the kernel is compiled. data NULL: absent. */
template <typename T> struct row_of {
    typename T::stored *data;
    __device__ __forceinline__ bool here() const {
        return data != NULL;
    }
    __device__ __forceinline__ float get(int64_t i) const {
        return T::widen(data[i]);
    }
    __device__ __forceinline__ void put(int64_t i, float value) const {
        data[i] = T::narrow(value);
    }
};

template <typename T> static inline row_of<T> row(const carry_tensor &tensor) {
    return row_of<T>{(typename T::stored *)tensor.data};
}

/* Elements from one row (of the last index) to the next. An index of extent 1 may have any stride. */
static inline int64_t row_step(const carry_tensor &x) {
    return x.rank < 1 ? 1 : x.rank < 2 || carry_tensor_is_packed(&x, 0) ? x.shape[x.rank - 1] : x.stride[x.rank - 2];
}

/* Sums over the 32 threads of a warp, in a fixed order; all threads get the sum. */
template <typename V> static __device__ __forceinline__ V warp_sum(V value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    return value;
}

/* Sums over GROUP threads, a warp or the whole block of THREADS, in a fixed order; all threads get the sum. parts:
   THREADS / 32 elements. */
template <int GROUP, typename V> static __device__ __forceinline__ V group_sum(V value, V *parts) {
    value = warp_sum(value);
    if (GROUP == 32) {
        return value;
    }
    __syncthreads(); /* parts may still be read */
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = value;
    }
    __syncthreads();
    V sum = parts[0];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++) {
        sum += parts[i];
    }
    return sum;
}

/* A warp processes rows up to this length, a block longer ones. */
constexpr int64_t WARP_ROW = 1024;

static __device__ __forceinline__ float sigmoid_of(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float silu_of(float x) {
    return x * sigmoid_of(x);
}

static __device__ __forceinline__ float silu_slope_of(float x, float s) {
    return s * (1.0f + x * (1.0f - s));
}

/* The same functions as in ops/kernels/rows_activation.h. */
static __device__ __forceinline__ float gelu_inner(float x) {
    return x * (0.07135481627f * (x * x) + 1.595769122f);
}

static __device__ __forceinline__ float activate_one(float x, int activation) {
    switch (activation) {
    case CARRY_SILU:
        return silu_of(x);
    case CARRY_RELU:
        return x < 0.0f ? 0.0f : x;
    case CARRY_ELU:
        return x > 0.0f ? x : expf(x) - 1.0f;
    case CARRY_SIGMOID:
        return sigmoid_of(x);
    case CARRY_GELU:
        return x / (1.0f + expf(-gelu_inner(x)));
    default:
        return x;
    }
}

/* dy f'(x). */
static __device__ __forceinline__ float activate_back(float dy, float x, int activation) {
    switch (activation) {
    case CARRY_SILU:
        return dy * silu_slope_of(x, sigmoid_of(x));
    case CARRY_RELU:
        return dy * (x > 0.0f ? 1.0f : x <= 0.0f ? 0.0f : x);
    case CARRY_ELU:
        return dy * (x > 0.0f ? 1.0f : expf(x));
    case CARRY_SIGMOID: {
        float s = sigmoid_of(x);
        return dy * (s * (1.0f - s));
    }
    case CARRY_GELU: {
        float e = expf(-gelu_inner(x));
        float s = 1.0f / (1.0f + e);
        float rest = e < 1.0f ? e * s : 1.0f - s;
        float square = x * x > 1e4f ? 1e4f : x * x;
        return dy * (s + (x * s) * (rest * (0.2140644488f * square + 1.595769122f)));
    }
    default:
        return dy;
    }
}

#endif
