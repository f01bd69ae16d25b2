/* Convolutions on Hopper GPUs: tiles of 192 output channels. */
#define CONV2D_HERE
#include "ops/cuda/conv2d_hopper.cuh"

namespace conv2d_hopper {

bool works(int ordinal) {
    int major = 0, minor = 0;
    cudaFuncAttributes attributes = {};
    bool is = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
              cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess && major == 9 &&
              minor == 0;
    /* The kernels are empty but in code for sm_90a, which a build may be without: then they need few registers. */
    is = is && cudaFuncGetAttributes(&attributes, conv2d_hopper_kernel<flat_192>) == cudaSuccess &&
         attributes.numRegs > 64;
    (void)cudaGetLastError();
    return is;
}

CONV2D_SHAPE(, flat_192)

} // namespace conv2d_hopper
