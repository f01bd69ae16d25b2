/* State space layers on NVIDIA GPUs: shared by the kernels.

   a[i] is the step of token i (softplus of dt and its bias, clamped), and A = -e^A_log the rate of the head. The decay
   from token j to token i is 2^(G[i] - G[j]), where G[i] = (a[0] + ... + a[i]) A / ln 2 over the tokens of the chunk;
   ops/ssm_backward.c has G without the division, and e instead of 2. Sums are added in double and stored as two floats,
   so that small decays after a large one lose no precision; no exponent is above 0. Tokens of different sequences do
   not affect each other: token i sees the tokens j <= i of its own sequence, and the state before the chunk only if its
   sequence began before the chunk. */
#ifndef CARRY_OPS_SSM_CUH
#define CARRY_OPS_SSM_CUH

extern "C" {
#include "ops/ssm_chunk.h"
#include "ops/ssm_device.h"
}

#include "ops/cuda/nn.cuh"

constexpr int SSM_L = CARRY_SSM_CHUNK;

/* Kernel arguments: the problem and its workspace. */
struct ssm_job {
    carry_ssm_layout at;
    int64_t B, T, n, G, N, P, channels;
    const void *xbc, *dt, *dy;
    const float *A_log, *dt_bias, *D;
    const float *initial;
    float *final_state;
    void *y;
    const int64_t *cuts;
    int64_t sequences;
    const int32_t *slots;
    float least, most;
    /* Gradients. */
    void *dxbc, *ddt;
    float *dA_log, *ddt_bias, *dD;
};

ssm_job ssm_job_of(const carry_ssm_args *args, void *workspace, bool backward);

/* ssm_steps.cu. ssm_prepare writes steps, sums and first tokens of sequences to the workspace; ssm_finish computes
   the gradients of dt and of the heads' parameters from da, dG and sums[2]. */
carry_status ssm_prepare(carry_ctx *ctx, const place &at, const ssm_job &job, carry_dtype type);
carry_status ssm_finish(carry_ctx *ctx, const place &at, const ssm_job &job, carry_dtype type);
/* ssm_tiles.cu, ssm_tiles_backward.cu */
carry_status ssm_tiles(carry_ctx *ctx, const place &at, const ssm_job &job, carry_dtype type);
carry_status ssm_tiles_backward(carry_ctx *ctx, const place &at, const ssm_job &job, carry_dtype type);
/* Replaces the contributions of segments by the states at their starts. */
void ssm_join(const place &at, const ssm_job &job);
/* ssm_hopper.cu, ssm_hopper_backward.cu: after ssm_prepare. *done is false if the GPU or the shape has no kernel. */
carry_status ssm_hopper_bf16(carry_ctx *ctx, const place &at, const ssm_job &job, bool *done);
carry_status ssm_hopper_f16(carry_ctx *ctx, const place &at, const ssm_job &job, bool *done);
carry_status ssm_hopper_backward_bf16(carry_ctx *ctx, const place &at, const ssm_job &job, bool *done);
carry_status ssm_hopper_backward_f16(carry_ctx *ctx, const place &at, const ssm_job &job, bool *done);

/* The first token, relative to the start of its chunk, that a token sees; negative if it sees the state before the
   chunk. */
static __device__ __forceinline__ int ssm_first_seen(const ssm_job &job, int64_t token, int64_t chunk_first) {
    if (job.at.starts == NULL) {
        return -1;
    }
    const int64_t start = job.at.starts[token < job.T ? token : job.T - 1];
    return start < chunk_first ? -1 : (int)(start - chunk_first);
}

/* 2^(sum i - sum j). */
static __device__ __forceinline__ float ssm_decay(float2 i, float2 j) {
    return exp2f((i.x - j.x) + (i.y - j.y));
}
static __device__ __forceinline__ float ssm_decay(float2 i) {
    return exp2f(i.x + i.y);
}

#endif
