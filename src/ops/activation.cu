/* Activations and the gated unit on NVIDIA GPUs, element by element. */
#include "ops/nn.cuh"

template <typename T>
__global__ void __launch_bounds__(THREADS) activate_kernel(row_of<T> y, row_of<T> x, int64_t count, int activation) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        y.put(i, activate_one(x.get(i), activation));
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    activate_backward_kernel(row_of<T> dx, row_of<T> dy, row_of<T> x, int64_t count, int activation) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        dx.put(i, activate_back(dy.get(i), x.get(i), activation));
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    swiglu_kernel(row_of<T> y, row_of<T> gate, row_of<T> up, int64_t count) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        y.put(i, silu_of(gate.get(i)) * up.get(i));
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    swiglu_backward_kernel(row_of<T> dgate, row_of<T> dup, row_of<T> dy, row_of<T> gate, row_of<T> up, int64_t count) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        float d = dy.get(i);
        float g = gate.get(i);
        float u = up.get(i);
        float s = sigmoid_of(g);
        dup.put(i, d * (g * s));
        dgate.put(i, d * u * silu_slope_of(g, s));
    }
}

extern "C" carry_status carry_cuda_activate(carry_ctx *ctx, carry_tensor y, carry_tensor x,
                                            carry_activation activation) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    int64_t count = carry_tensor_count(&x);
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        activate_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(row<T>(y), row<T>(x), count,
                                                                                  (int)activation);
    });
    return launched(ctx, at, "activate cannot be launched");
}

extern "C" carry_status carry_cuda_activate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dy, carry_tensor x,
                                                     carry_activation activation) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    int64_t count = carry_tensor_count(&x);
    with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        activate_backward_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(
            row<T>(dx), row<T>(dy), row<T>(x), count, (int)activation);
    });
    return launched(ctx, at, "activate_backward cannot be launched");
}

extern "C" carry_status carry_cuda_swiglu(carry_ctx *ctx, carry_tensor y, carry_tensor gate, carry_tensor up) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, gate.device));
    int64_t count = carry_tensor_count(&gate);
    with_type(gate.dtype, [&](auto type) {
        using T = decltype(type);
        swiglu_kernel<T>
            <<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(row<T>(y), row<T>(gate), row<T>(up), count);
    });
    return launched(ctx, at, "swiglu cannot be launched");
}

extern "C" carry_status carry_cuda_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup,
                                                   carry_tensor dy, carry_tensor gate, carry_tensor up) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, gate.device));
    int64_t count = carry_tensor_count(&gate);
    with_type(gate.dtype, [&](auto type) {
        using T = decltype(type);
        swiglu_backward_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, at.stream>>>(
            row<T>(dgate), row<T>(dup), row<T>(dy), row<T>(gate), row<T>(up), count);
    });
    return launched(ctx, at, "swiglu_backward cannot be launched");
}
