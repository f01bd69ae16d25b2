/* The backward pass of attention on Hopper GPUs, in f16. Each file can use only one element type for its products. */
#define HOPPER_ELEMENT "f16"
#include "attention/backward_hopper_launch.cuh"

const backward_way *attention_backward_wgmma_f16(int D);

const backward_way *attention_backward_wgmma_f16(int D) {
    return backward_ways<backward_f16>(D);
}
