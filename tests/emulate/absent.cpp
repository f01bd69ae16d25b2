/* Parts that an emulated GPU lacks: cuBLASLt, and the kernels that only Hopper GPUs run. */
#include "attention/kernels.cuh"
#include "attention/backward.cuh"
#include "delta/cuda/chunk/chunk.h"
#include "delta/cuda/plain/ring_job.h"
#include "device/cuda.h"
#include "engine/chain_ops.h"
#include "engine/cuda/chain_launch.cuh"
#include "engine/decode_ops.h"
#include "engine/sample_device.h"
#include "engine/slot_device.h"
#include "ops/cuda/conv2d.cuh"
#include "ops/cuda/quantised_linear.cuh"
#include "ops/cuda/grouped_modes.cuh"
#include "ops/cuda/ssm.cuh"
#include "scan/cuda/dense_hopper.cuh"

extern "C" {
#include "delta/split.h"
#include "ops/cuda/cuda.h"
#include "ops/quantised/tile_product.h"

bool carry_cuda_tile_product_works(int) {
    return false;
}

int carry_cuda_tile_product_registers(void) {
    return 0;
}

carry_status carry_cuda_tile_product(carry_ctx *, int, carry_stream *, const carry_tile_product *, int, bool) {
    return CARRY_EUNSUPPORTED;
}

carry_status carry_cuda_stream_new_share(carry_ctx *ctx, carry_stream **, int, int, bool) {
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "an emulated GPU has no multiprocessors that can be divided");
}

void *carry_cuda_share_of(carry_stream *) {
    return NULL;
}

void carry_cuda_share_end(void *) {
}

carry_status carry_cuda_blaslt(carry_ctx *, const carry_device_product *, bool *done) {
    *done = false;
    return CARRY_OK;
}

bool carry_cuda_has_blaslt(carry_ctx *) {
    return false;
}

}

bool carry_delta_ring_copies_apply(const carry_delta_ring_job *, int) {
    return false;
}

cudaError_t carry_delta_ring_copies_launch(const carry_delta_ring_job *, int, cudaStream_t) {
    return cudaErrorNotSupported;
}

/* Measuring would measure the CPU. These are invented rates, in the proportions of a GPU. */
extern "C" carry_status carry_cuda_measure(carry_ctx *, int, carry_gpu *gpu) {
    gpu->units = 4;
    gpu->shared_bytes = 227 << 10;
    gpu->cache = 1 << 20;
    gpu->copy_bytes_s = 1e10;
    gpu->cache_bytes_s = 2e10;
    gpu->launch_s = 1e-6;
    gpu->barrier_s = 1e-6;
    gpu->latency_s = 1e-6;
    gpu->tensor_flops_s = 1e12;
    gpu->plain_flops_s = 1e11;
    return CARRY_OK;
}

carry_status carry_conv2d_hopper(carry_ctx *, const conv2d_job &, const place &, bool *done) {
    *done = false;
    return CARRY_OK;
}

carry_status quantised_fp8(carry_ctx *, const place &, const matrix *, int64_t, const matrix &, const carry_tensor *, int,
                           const void *, int *done) {
    *done = 0;
    return CARRY_OK;
}

carry_status carry_grouped_hopper_bf16(carry_ctx *, const grouped_job &, grouped_mode, const place &, bool *done) {
    *done = false;
    return CARRY_OK;
}

carry_status carry_grouped_hopper_f16(carry_ctx *, const grouped_job &, grouped_mode, const place &, bool *done) {
    *done = false;
    return CARRY_OK;
}

carry_status ssm_hopper_bf16(carry_ctx *, const place &, const ssm_job &, bool *done) {
    *done = false;
    return CARRY_OK;
}

carry_status ssm_hopper_f16(carry_ctx *, const place &, const ssm_job &, bool *done) {
    *done = false;
    return CARRY_OK;
}

carry_status ssm_hopper_backward_bf16(carry_ctx *, const place &, const ssm_job &, bool *done) {
    *done = false;
    return CARRY_OK;
}

carry_status ssm_hopper_backward_f16(carry_ctx *, const place &, const ssm_job &, bool *done) {
    *done = false;
    return CARRY_OK;
}

static bool never(int) {
    return false;
}

static carry_status refuse(carry_ctx *ctx) {
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "an emulated GPU is not a Hopper GPU");
}

bool dense::fold_works(int device) {
    return never(device);
}

cudaError_t dense::fold(const fold_job &, int, int, cudaStream_t) {
    return cudaErrorInvalidValue;
}

static int no_blocks(int) {
    return 0;
}

extern "C" const carry_decode_device carry_decode_cuda = {"cuda", no_blocks, NULL, NULL, NULL};

/* Of a decoding step only attention, for its test; `works` is false, so that models do not use it. */
static carry_status chain_launch(carry_ctx *ctx, int ordinal, carry_stream *stream, const carry_chain_op *op,
                                 const carry_chain_lists *lists, bool overlaps) {
    const chain::launch_place place = {ctx, ordinal, stream, overlaps};
    return op->kind == CARRY_CHAIN_ATTEND    ? chain::put_attend(place, op->as.attend, *lists)
           : op->kind == CARRY_CHAIN_COMBINE ? chain::put_combine(place, op->as.attend, *lists)
                                             : refuse(ctx);
}

extern "C" const carry_chain_device carry_chain_cuda = {"cuda", never, chain_launch};

static bool never_samples(int, int64_t) {
    return false;
}

extern "C" const carry_sample_kernel carry_sample_cuda = {"cuda", never_samples, NULL};
extern "C" const carry_slot_kernel carry_slot_cuda = {"none", NULL}; /* parts are copied one by one */

extern const attention_way carry_attention_hopper = {"hopper", never, NULL, NULL};

const backward_way *attention_backward_wgmma(bool, int) {
    return NULL;
}

bool attention_causal_takes(const carry_attention_args *, int, int) {
    return false;
}

carry_status attention_causal_forward(carry_ctx *ctx, const attention_job *, int, int, int, cudaStream_t) {
    return refuse(ctx);
}

static size_t no_bytes(const carry_delta_job *, int) {
    return 0;
}

const carry_delta_chunk_kernels carry_delta_chunk_bf16 = {.works = never, .bytes = no_bytes, .back_bytes = no_bytes,
                                                          .kept_bytes = no_bytes},
                                carry_delta_chunk_f16 = carry_delta_chunk_bf16;

extern "C" {
bool carry_delta_splits(const carry_delta_plan *) {
    return false;
}

size_t carry_delta_split_bytes(const carry_delta_plan *, int64_t, int, bool) {
    return 0;
}

carry_status carry_delta_split_pair(carry_delta_plan *plan, const carry_delta_split *) {
    return refuse(plan->ctx);
}

carry_status carry_delta_split_rest(carry_delta_plan *plan, const carry_delta_split *) {
    return refuse(plan->ctx);
}
}
