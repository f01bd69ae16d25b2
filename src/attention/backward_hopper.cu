/* The backward pass of attention on Hopper GPUs, in bf16; backward_hopper_f16.cu has f16. */
#include "attention/backward_hopper_launch.cuh"

const backward_way *attention_backward_wgmma_f16(int D);

const backward_way *attention_backward_wgmma(bool is_bf16, int D) {
    return is_bf16 ? backward_ways<backward_bf16>(D) : attention_backward_wgmma_f16(D);
}
