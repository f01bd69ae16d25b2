/* The workspace of a state space layer on a GPU.

   An item is a chunk of CARRY_SSM_CHUNK tokens of one head: number (row * heads + head) * chunks + chunk. The last
   chunk of a row is filled up with tokens whose step is 0. */
#ifndef CARRY_OPS_SSM_DEVICE_H
#define CARRY_OPS_SSM_DEVICE_H

#include "ops/ssm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* If `tiles` is set, kernels on tensor cores compute the chunks (ssm_tiles.cu): 16-bit types, P of 64 and N of 64 or
   128. Other layers are packed in f32 and multiplied by general products (ssm.cu). */
typedef struct carry_ssm_layout {
    bool tiles;
    int64_t P, chunks, items, segments; /* segments: parts of a row that are computed at once */
    size_t bytes;
    int32_t *starts; /* [T]: the first token of a token's sequence; NULL without cu_seqlens */
    /* step [items, L]: a. sum [items, L, 2]: G / ln 2 (G: carry_ssm_chunk.sum), as the sum of two floats, of which the
       second is small. */
    float *step, *sum;
    /* [items, P, N] before each chunk; with tiles, forward: [batch, n, segments, P, N]. */
    float *state;
    float *fade; /* with tiles, forward: [batch, n, segments], the decay of a segment */
    /* Products in f32. */
    float *x, *b, *c; /* [items, L, P], [items, L, N] twice */
    float *M, *y;     /* [items, L, L], [items, L, P] */
    /* Backward. dstate is the gradient of the state after each chunk, shaped like state. With tiles, both are then in
       16 bits. */
    float *dstate;
    float *dy, *K, *t, *u, *r, *db, *dc; /* shapes: dy, t like x; K like M; u, r, db, dc like b */
    float *da, *dG;                      /* [items, L]: gradients of a, and of G */
    float *dG_states;                    /* with tiles: a part of dG that is added to it, or NULL */
    double *sums;                        /* [items, 3]: gradients of A_log, dt_bias and D */
} carry_ssm_layout;

/* Sets pointers into `workspace`, which may be NULL to count bytes. */
carry_ssm_layout carry_ssm_layout_of(const carry_ssm_args *args, void *workspace, bool backward);

#ifdef __cplusplus
}
#endif
#endif
