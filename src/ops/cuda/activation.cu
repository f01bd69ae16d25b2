/* Activations and the gated unit on NVIDIA GPUs. */
#include "ops/cuda/each.cuh"

struct activate_each {
    int activation;
    __device__ __forceinline__ void operator()(float (&out)[1], const float (&in)[1]) const {
        out[0] = activate_one(in[0], activation);
    }
};

/* From dy, x. */
struct activate_backward_each {
    int activation;
    __device__ __forceinline__ void operator()(float (&out)[1], const float (&in)[2]) const {
        out[0] = activate_back(in[0], in[1], activation);
    }
};

/* From gate, up. */
struct swiglu_each {
    __device__ __forceinline__ void operator()(float (&out)[1], const float (&in)[2]) const {
        out[0] = silu_of(in[0]) * in[1];
    }
};

/* dgate, dup from dy, gate, up. */
struct swiglu_backward_each {
    __device__ __forceinline__ void operator()(float (&out)[2], const float (&in)[3]) const {
        const float s = sigmoid_of(in[1]);
        out[0] = in[0] * in[2] * silu_slope_of(in[1], s);
        out[1] = in[0] * (in[1] * s);
    }
};

extern "C" carry_status carry_cuda_activate(carry_ctx *ctx, carry_tensor y, carry_tensor x,
                                            carry_activation activation) {
    return for_each<1, 1>(ctx, "activate cannot be launched", {y}, {x}, activate_each{(int)activation});
}

extern "C" carry_status carry_cuda_activate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dy, carry_tensor x,
                                                     carry_activation activation) {
    return for_each<1, 2>(ctx, "activate_backward cannot be launched", {dx}, {dy, x},
                          activate_backward_each{(int)activation});
}

extern "C" carry_status carry_cuda_swiglu(carry_ctx *ctx, carry_tensor y, carry_tensor gate, carry_tensor up) {
    return for_each<1, 2>(ctx, "swiglu cannot be launched", {y}, {gate, up}, swiglu_each{});
}

extern "C" carry_status carry_cuda_swiglu_backward(carry_ctx *ctx, carry_tensor dgate, carry_tensor dup,
                                                   carry_tensor dy, carry_tensor gate, carry_tensor up) {
    return for_each<2, 3>(ctx, "swiglu_backward cannot be launched", {dgate, dup}, {dy, gate, up},
                          swiglu_backward_each{});
}
