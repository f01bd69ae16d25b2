/* Chunks of a state space layer on the CPU, for ssm.c and ssm_backward.c. */
#ifndef CARRY_OPS_SSM_CHUNK_H
#define CARRY_OPS_SSM_CHUNK_H

#include "ops/nn.h"
#include "ops/ssm.h"

#define CARRY_SSM_CHUNK 64

typedef struct carry_ssm_job {
    const carry_kernels *kernels;
    const carry_ssm_args *args;
    int64_t T, n, P, G, N, channels;
    float *space; /* of worker 0 */
    int64_t each; /* floats of scratch memory per worker */
} carry_ssm_job;

/* A chunk of one head: `count` tokens from token `first` of a row of the batch. */
typedef struct carry_ssm_chunk {
    int64_t row, head, first;
    int count;
    double a[CARRY_SSM_CHUNK];   /* steps, after the limits */
    double raw[CARRY_SSM_CHUNK]; /* before softplus */
    double sum[CARRY_SSM_CHUNK]; /* G: sums of a A, up to and including the token */
    double rate;                 /* A */
    float *x, *b, *c;            /* [count, P], [count, N], [count, N] */
} carry_ssm_chunk;

carry_status carry_ssm_open(carry_ctx *ctx, carry_ssm_job *job, const carry_ssm_args *args);
/* Reads a chunk into its arrays. */
void carry_ssm_read(const carry_ssm_job *job, carry_ssm_chunk *chunk);
/* S = e^(G of the chunk) S + the contributions of its tokens. b is overwritten. */
void carry_ssm_advance(const carry_ssm_job *job, const carry_ssm_chunk *chunk, float *S);
/* c [m, n] (+)= a b over k; rows are packed. */
void carry_ssm_product(const carry_ssm_job *job, int64_t m, int64_t n, int64_t k, const float *a, bool a_transposed,
                       const float *b, bool b_transposed, float *c, bool add);
/* Multiplies row i of [count, width] by factor[i]. */
void carry_ssm_scale(float *rows, int64_t width, int count, const double *factor);
/* Sets the first token and the length of sequence `index` of a row. Returns false past the last. */
bool carry_ssm_sequence(const carry_ssm_job *job, int64_t index, int64_t *first, int64_t *count);
carry_status carry_ssm_check(carry_ctx *ctx, const carry_ssm_args *args);

#endif
