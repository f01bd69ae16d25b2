/* Convolutions on Hopper GPUs: tiles of 128 output channels and 96. */
#define CONV2D_HERE
#include "ops/cuda/conv2d_hopper.cuh"

namespace conv2d_hopper {

CONV2D_SHAPE(, flat_128)
CONV2D_SHAPE(, wide_96)

} // namespace conv2d_hopper
