/* Convolutions of bf16 pictures by the instructions of Hopper GPUs. */
#include "ops/cuda/conv2d.cuh"

carry_status carry_conv2d_hopper(carry_ctx *ctx, const conv2d_job &job, const place &at, bool *done) {
    (void)ctx;
    (void)job;
    (void)at;
    *done = false;
    return CARRY_OK;
}
