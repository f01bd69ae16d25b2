/* Backward functions shared by the plan, the backward pass and the ranks. */
#ifndef CARRY_DELTA_BACKWARD_H
#define CARRY_DELTA_BACKWARD_H

#include "delta/chunk.h"
#include "delta/terms.h"

#define CARRY_DELTA_TRIANGLES 4

/* Scratch memory of a thread. In arrays of 2C rows, the first C rows belong to R and the others to O. */
typedef struct carry_delta_back_scratch {
    carry_delta_rows rows;
    carry_delta_head heads;
    float *weighed;       /* [2C, K]: -beta fade k, then scale fade q */
    float *gradients;     /* [2C, V]: dR, then dO */
    float *v, *values;    /* [C, V]: v, and V' */
    float *left_k;        /* [C, K]: left k */
    float *by_state;      /* [2C, K]: dR S^T, then dO S^T */
    float *by_end;        /* [C, K]: V' dS^T */
    float *by_values;     /* [2C, C]: dR V'^T, then dO V'^T */
    float *on_kk, *on_qk; /* [C, C]: gradients of kk and qk, summed over the group */
    float *dq, *dk;       /* [C, K] */
    double *dG;           /* [C]: gradients of G, the sums of gates (double: see through_states) */
    double *key_dG;       /* [C, K]: the same with a key gate */
    float *dbeta;         /* [C] */
    float *beside;        /* [16, V] */
    float *dS;  /* [group, K, V]: gradient of the state that leaves the chunk, then of the state that enters */
    bool exact; /* products go by terms (backward_terms.c), which uses the members below */
    float *norm_k, *norm_q, *norm_left;                 /* [C]: factors of k, q and left k times the rows' norms */
    uint16_t *out_a, *out_b;                            /* panels of dO */
    carry_delta_terms rows_a, state_b, values_b;        /* dR or V'; S or dS; V' */
    carry_delta_terms triangles[CARRY_DELTA_TRIANGLES]; /* P; then on_qk and on_kk, and both transposed */
} carry_delta_back_scratch;

typedef struct carry_delta_back {
    const carry_delta_plan *plan;
    const carry_delta_backward_args *args;
    carry_delta_inputs in;
    const void *kept;
    /* Gradients of states that cross ranks, in the layout of carry_delta_run. They arrive for sequences that continue
       on the next rank (arriving, or NULL for zero) and depart for those that began on an earlier one. */
    const float *arriving;
    float *departing;
    bool states_only; /* compute only the gradients of states */
    carry_delta_part part;
    carry_delta_sequence *sequences; /* all sequences of the rank; those of the part are among them */
    carry_delta_back_scratch *scratch;
    double *on_A_log, *on_dt_bias; /* [sequences, HV]: parts that are summed in order at the end */
} carry_delta_back;

/* A unit of work: one head of q and k of one sequence. */
typedef struct carry_delta_back_unit {
    const carry_delta_back *back;
    carry_delta_back_scratch *s;
    const carry_delta_sequence *sequence;
    int64_t head;
    bool pauses; /* it runs in the calling thread */
} carry_delta_back_unit;

/* backward_chunk.c: processes the chunk of tokens t..t+tokens-1. Replaces dS of the unit's value heads, the gradient of
   the state that leaves the chunk, by the gradient of the state that enters it. */
void carry_delta_back_chunk(const carry_delta_back_unit *unit, int64_t t, int64_t tokens);

/* backward_terms.c, products whose operands are sums of bf16 terms (terms.h):
   load packs the panels of dO and the factors; solve computes the right side of the triangular solve for dR; spread
   computes products with dR, dO and V' and returns a mask of those it computed (CARRY_DELTA_BY_...); pass_on computes
   dS of the state that entered; rows computes the gradients that reach q and k through kk and qk. Functions that return
   bool return false if terms cannot be used, for example because a number is not finite; the caller then computes in
   f32. */
bool carry_delta_back_terms_load(const carry_delta_back_unit *unit, int64_t t, int64_t tokens, int64_t value_head);
bool carry_delta_back_terms_solve(const carry_delta_back_unit *unit, int64_t tokens, const float *dS);
enum { CARRY_DELTA_BY_VALUES = 1, CARRY_DELTA_BY_STATE = 2, CARRY_DELTA_BY_END = 4 };
int carry_delta_back_terms_spread(const carry_delta_back_unit *unit, int64_t tokens, const float *S, const float *dS);
bool carry_delta_back_terms_pass_on(const carry_delta_back_unit *unit, int64_t tokens, float *dS);
bool carry_delta_back_terms_rows(const carry_delta_back_unit *unit, int64_t t, int64_t tokens);

/* backward_keys.c, with a key gate. keys_states adds the gradients of q, k, beta and G that come through the states,
   keys_triangles adds those from inside the chunk, keys_store stores dg. */
void carry_delta_back_keys_states(const carry_delta_back_unit *unit, int64_t tokens, const float *S, const float *dS);
void carry_delta_back_keys_triangles(const carry_delta_back_unit *unit, int64_t tokens);
void carry_delta_back_keys_store(const carry_delta_back_unit *unit, int64_t t, int64_t tokens, int64_t value_head,
                                 const float *S, const float *dS);

/* backward_gate.c. first_bad returns the first token whose V' is not finite although the state that entered is, or -1.
   gate_between computes dg of one token t, for tokens up to the first bad one: [K] with a key gate, else [1]. */
int64_t carry_delta_back_first_bad(const carry_delta_back_unit *unit, int64_t tokens, const float *S);
void carry_delta_back_gate_between(const carry_delta_back_unit *unit, int64_t t, int64_t tokens, const float *S,
                                   const float *dS, double *dg);

bool carry_delta_back_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_back *back);
void carry_delta_back_start(carry_delta_back *back);  /* before the first part: sets sums to zero */
void carry_delta_back_part(carry_delta_back *back);   /* computes back->part */
void carry_delta_back_finish(carry_delta_back *back); /* after the last: dA_log and ddt_bias */

/* The CPU's entry in the table of methods (cpu.c). */
carry_status carry_delta_cpu_backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *workspace,
                                      size_t workspace_bytes);

/* Check all tensors of a call except those that carry_delta_check_inputs checks. */
carry_status carry_delta_check_gradients(carry_ctx *ctx, const carry_delta_problem *problem,
                                         const carry_delta_backward_args *args);
carry_status carry_delta_check_state_gradients(carry_ctx *ctx, const carry_delta_problem *problem,
                                               const carry_delta_backward_args *args);
double carry_delta_backward_flops(const carry_delta_plan *plan, bool again);

#endif
