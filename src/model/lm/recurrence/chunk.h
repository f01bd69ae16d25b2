/* The delta rule in chunks, inside: shared by chunk.c and chunk_pooled.c. */
#ifndef CARRY_MODEL_RECURRENCE_CHUNK_H
#define CARRY_MODEL_RECURRENCE_CHUNK_H

#include "core/memory.h"
#include "delta/plan.h"
#include "delta/ranks.h"
#include "model/lm/recurrence/recurrence.h"

typedef struct carry_lm_chunk {
    carry_ctx *ctx;
    carry_delta_plan *plan;        /* plan of one slice; used if ranks is NULL */
    carry_delta_plan *pieces;      /* on a GPU, in a pool: the plan of pieces, so that `plan` keeps the size of steps */
    carry_delta_ranks_plan *ranks; /* the plan over the ranks of comm */
    carry_comm *comm;
    carry_delta_problem problem;
    int64_t slices, slice; /* their number and width */
    size_t delta_workspace, kept_slice, workspace;
    int64_t packed; /* the largest number of packed pieces; 0: pieces are not packed */
    bool keeps;
} carry_lm_chunk;

/* Gradients of a slice after the first, which are added to those of the slices before. */
typedef struct carry_lm_chunk_sums {
    carry_tensor dq, dk, dbeta, dg, dA_log, ddt_bias;
    carry_tensor states; /* of packed pieces */
    void *rest;
    size_t rest_bytes;
} carry_lm_chunk_sums;

/* Divides the workspace, or counts its bytes. */
void carry_lm_chunk_take_sums(const carry_lm_chunk *m, carry_arena *arena, carry_lm_chunk_sums *s);
carry_status carry_lm_chunk_check_workspace(const carry_lm_chunk *m, size_t bytes);
/* Slice `index` of o, v or their gradients, and of states. */
carry_tensor carry_lm_chunk_slice_of(const carry_lm_chunk *m, carry_tensor tensor, int64_t index);
carry_tensor carry_lm_chunk_state_of(const carry_lm_chunk *m, const carry_tensor *state, int64_t index);

/* chunk_pooled.c */
carry_status carry_lm_chunk_open_pooled(void *opened, int64_t sequences);
bool carry_lm_chunk_packs(const void *opened);
carry_status carry_lm_chunk_pooled(void *opened, const carry_lm_pooled_call *call, const carry_delta_forward_args *args,
                                   void *workspace, size_t bytes);
size_t carry_lm_chunk_ring_bytes(void *opened, int64_t slots);
carry_status carry_lm_chunk_fold(void *opened, carry_tensor pool, void *ring, int64_t slot);

#endif
