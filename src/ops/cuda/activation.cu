/* Activations on NVIDIA GPUs. */
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

extern "C" carry_status carry_cuda_activate(carry_ctx *ctx, carry_tensor y, carry_tensor x,
                                            carry_activation activation) {
    return for_each<1, 1>(ctx, "activate cannot be launched", {y}, {x}, activate_each{(int)activation});
}

extern "C" carry_status carry_cuda_activate_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dy, carry_tensor x,
                                                     carry_activation activation) {
    return for_each<1, 2>(ctx, "activate_backward cannot be launched", {dx}, {dy, x},
                          activate_backward_each{(int)activation});
}
