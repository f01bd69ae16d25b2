/* Chunks of a state space layer, packed in f32, for ssm.cu and ssm_backward.cu. */
#ifndef CARRY_OPS_SSM_PLAIN_CUH
#define CARRY_OPS_SSM_PLAIN_CUH

#include "ops/cuda/ssm.cuh"

/* c [rows, columns] = a b, or added to c, over `depth`, for every item; arrays are packed. */
struct ssm_products {
    carry_ctx *ctx;
    place at;
    const ssm_job &job;
    struct result {
        float *c;
        int64_t rows, columns, depth;
    };
    struct operand {
        const float *data;
        bool transposed; /* a is stored [depth, rows], b [columns, depth] */
    };
    carry_status run(const result &r, const operand &a, const operand &b, bool add) const {
        carry_device_product p = {};
        p.m = r.rows;
        p.n = r.columns;
        p.k = r.depth;
        p.count = job.at.items;
        p.a = a.data;
        p.b = b.data;
        p.c = r.c;
        p.a_row = a.transposed ? r.rows : r.depth;
        p.b_row = b.transposed ? r.depth : r.columns;
        p.c_row = r.columns;
        p.a_next = r.rows * r.depth;
        p.b_next = r.depth * r.columns;
        p.c_next = r.rows * r.columns;
        p.type = p.c_type = CARRY_F32;
        p.a_transposed = a.transposed;
        p.b_transposed = b.transposed;
        p.accumulate = add;
        p.ordinal = at.ordinal;
        p.stream = (carry_stream *)at.stream;
        return carry_cuda_product(ctx, &p, NULL);
    }
};

/* Factors of the rows of [items, L, width] (ssm.cuh has G). SSM_FADE: 2^G for tokens that see the state before their
   chunk, else 0. SSM_LEFT: a 2^(G[last] - G), the weight of a token in the state after the chunk, or 0 if the
   last token of the chunk does not see it. */
enum ssm_factor { SSM_FADE, SSM_LEFT };

static __device__ __forceinline__ float ssm_factor_of(const ssm_job &job, int64_t item, int i, ssm_factor factor) {
    const int64_t first = item % job.at.chunks * SSM_L;
    const float2 *sum = (const float2 *)job.at.sum + item * SSM_L;
    if (factor == SSM_FADE) {
        return ssm_first_seen(job, first + i, first) < 0 ? ssm_decay(sum[i]) : 0.0f;
    }
    return i >= ssm_first_seen(job, first + SSM_L - 1, first)
               ? ssm_decay(sum[SSM_L - 1], sum[i]) * job.at.step[item * SSM_L + i]
               : 0.0f;
}

/* Fills `to` [items, L, width] from columns `column` + head / share * width of a tensor [B, T, channels], with zeros
   after the last token. */
void ssm_pack(const place &at, const ssm_job &job, carry_dtype type, float *to, const void *from, int64_t channels,
              int64_t column, int64_t width, int64_t share);
void ssm_scale(const place &at, const ssm_job &job, float *to, const float *from, int64_t width, ssm_factor factor);
/* Accumulates states over chunks, in place, from job.initial or zeros. On entry, `states` [items, P, N] has what each
   chunk adds to the state; on return, the state before each chunk, and job.final_state is written if present. With
   `reverse` it starts from zeros and goes from the last chunk to the first, for gradients; on return, `states` has the
   gradient of the state after each chunk. */
void ssm_chain(const place &at, const ssm_job &job, float *states, bool reverse);
/* Computes the states before each chunk, and the final one. `scaled` [items, L, N] is scratch for b times its
   factors, and may be b. */
carry_status ssm_states(const ssm_products &with, float *scaled);

#endif
