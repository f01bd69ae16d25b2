/* Convolutions on Hopper GPUs: tiles of 96 output channels of inputs in bands of 32. */
#define CONV2D_HERE
#include "ops/cuda/conv2d_hopper.cuh"

namespace conv2d_hopper {

CONV2D_SHAPE(, wide_96_of_96)

} // namespace conv2d_hopper
