/* The gated delta rule on Hopper GPUs, chunks of 64 tokens, bf16 or f16, K and V of 64, 128 or 256: plain descriptions
   and launchers. The kernels are for K = 128 and 64 or 128 values: of a K of 64 the other half is zeros that the copy
   engine puts there, and a V of 256 is walked as two value heads that share what prepare makes. A K of 256 has walks of
   its own, with twice the registers for a state; its gradients are made in two launches, of 128 keys each.

   Forward is two kernels. prepare makes of every chunk and value head what does not depend on the state: the inverse
   triangle, the masked and gated scores times it, and the decays. scan walks the chunks of a sequence with the state
   in registers. Work for the host: nothing but the launches. */
#ifndef CARRY_DELTA_CHUNK_CUDA_H
#define CARRY_DELTA_CHUNK_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_ctx carry_ctx;

/* One number (or row) a token and head; strides in elements. */
typedef struct carry_delta_view {
    const void *data;
    int64_t batch, token, head;
    int dtype; /* carry_dtype */
} carry_delta_view;

typedef struct carry_delta_chunk_job {
    int64_t batch, tokens, heads, value_heads, key, value;
    int64_t state_heads;       /* of a sequence's states in memory, of which these are some; 0: value_heads */
    int64_t sequences;         /* batch, or the packed ones */
    const int64_t *cu_seqlens; /* in device memory; NULL: not packed */
    const int64_t *borders;    /* the same here; backward may do some sequences after others */
    int64_t first_token;       /* what cu_seqlens is counted from */
    float scale;
    bool state_transposed, l2norm, gate_inside, beta_sigmoid;
    float beta_factor;
    carry_delta_view q, k, v, o, beta, g; /* g.data NULL: no gate */
    const float *A_log, *dt_bias;
    const float *initial_state; /* NULL: zero */
    float *final_state;         /* NULL: not wanted */
    void *workspace;            /* carry_delta_chunk_bytes, aligned to 128 */
    int split;                  /* above 0: in two calls, pair and rest, by so many ranks that share the GPU */
} carry_delta_chunk_job;

/* grad_o and the outputs lie as o, q, k, v, beta and g do; states' gradients as states. */
typedef struct carry_delta_chunk_back {
    carry_delta_chunk_job job; /* o and final_state are not looked at; workspace: carry_delta_chunk_back_bytes */
    carry_delta_view grad_o, dq, dk, dv, dbeta, dg;
    const float *dfinal_state; /* NULL: zero */
    float *dinitial_state;     /* NULL: not wanted */
    float *dA_log, *ddt_bias;  /* with gate_inside */
    bool add_partials;         /* to what is there of them */
} carry_delta_chunk_back;

/* Whether this GPU and this build have the kernels. */
bool carry_delta_chunk_works(int ordinal);
/* units: multiprocessors of the GPU. */
size_t carry_delta_chunk_bytes(const carry_delta_chunk_job *job, int units);
/* Enqueued; the job is not read afterwards. CARRY_EUNSUPPORTED names a tensor whose place the copy engine cannot take:
   starts and strides of q, k, v and o are multiples of 16 bytes, and heads of 256 values lie one after the other. */
carry_status carry_delta_chunk_forward(carry_ctx *ctx, const carry_delta_chunk_job *job, int ordinal, void *stream);
carry_status carry_delta_chunk_forward_f16(carry_ctx *ctx, const carry_delta_chunk_job *job, int ordinal, void *stream);
size_t carry_delta_chunk_back_bytes(const carry_delta_chunk_job *job, int units);
carry_status carry_delta_chunk_backward(carry_ctx *ctx, const carry_delta_chunk_back *back, int ordinal, void *stream);
carry_status carry_delta_chunk_backward_f16(carry_ctx *ctx, const carry_delta_chunk_back *back, int ordinal,
                                            void *stream);

/* In two calls, with the same job but for its states and the same workspace, where the state that enters comes from
   elsewhere: `pair` makes of the tokens the map S -> M S + L that they are, M [sequences, value heads, K, K] and L as
   states, from initial_state where that is known (then L is the state that leaves); `rest` makes the outputs. arrived:
   what enters, [sequences, value heads, K, V]; NULL: pair had it. Backward L is dS's, from dfinal_state, and
   initial_state is known. Not packed, K and V up to 128. */
carry_status carry_delta_chunk_pair(carry_ctx *ctx, const carry_delta_chunk_job *job, float *M, float *L, int ordinal,
                                    void *stream);
carry_status carry_delta_chunk_pair_f16(carry_ctx *ctx, const carry_delta_chunk_job *job, float *M, float *L,
                                        int ordinal, void *stream);
carry_status carry_delta_chunk_rest(carry_ctx *ctx, const carry_delta_chunk_job *job, const float *arrived, int ordinal,
                                    void *stream);
carry_status carry_delta_chunk_rest_f16(carry_ctx *ctx, const carry_delta_chunk_job *job, const float *arrived,
                                        int ordinal, void *stream);
carry_status carry_delta_chunk_back_pair(carry_ctx *ctx, const carry_delta_chunk_back *back, float *L, int ordinal,
                                         void *stream);
carry_status carry_delta_chunk_back_pair_f16(carry_ctx *ctx, const carry_delta_chunk_back *back, float *L, int ordinal,
                                             void *stream);
carry_status carry_delta_chunk_back_rest(carry_ctx *ctx, const carry_delta_chunk_back *back, const float *arrived,
                                         int ordinal, void *stream);
carry_status carry_delta_chunk_back_rest_f16(carry_ctx *ctx, const carry_delta_chunk_back *back, const float *arrived,
                                             int ordinal, void *stream);

#ifdef __cplusplus
}
#endif
#endif
