/* Convolutions on Hopper GPUs: tiles of 8 output channels. */
#define CONV2D_HERE
#include "ops/cuda/conv2d_hopper.cuh"

namespace conv2d_hopper {

CONV2D_SHAPE(, wide_8)
CONV2D_SHAPE(, flat_8_of_96)
CONV2D_SHAPE(, wide_8_of_32)

} // namespace conv2d_hopper
