/* Convolutions on Hopper GPUs: tiles of 64 output channels. */
#define CONV2D_HERE
#include "ops/cuda/conv2d_hopper.cuh"

namespace conv2d_hopper {

CONV2D_SHAPE(, flat_64)
CONV2D_SHAPE(, flat_64_of_32)

} // namespace conv2d_hopper
