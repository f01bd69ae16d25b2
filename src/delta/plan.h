/* The inside of a delta-rule plan, and what its parts share. */
#ifndef CARRY_DELTA_PLAN_H
#define CARRY_DELTA_PLAN_H

#include "carry/delta.h"
#include "carry/device.h"
#include "core/memory.h"
#include "ops/kernels/bf16.h"
#include "ops/kernels/kernels.h"

#define CARRY_DELTA_MAX_CHUNK 128

#ifdef __cplusplus
extern "C" {
#endif

/* A method: a const struct, one line in table.c. The calls (call.c) have checked every tensor and the workspace before
   they come to an entry; what is left to it is what it alone cannot do, which it refuses with CARRY_EUNSUPPORTED. An
   entry that is NULL is refused by name. Entries of a GPU put their work into the context's stream and return. */
typedef struct carry_delta_method {
    const char *name, *about;
    int64_t chunk; /* 0: token by token */
    /* Writes the reason into why (never empty) when it does not. */
    bool (*applies)(const carry_delta_plan *plan, char *why, size_t why_size);
    double (*cost)(const carry_delta_plan *plan); /* of forward, in any unit that methods of one device share */
    /* Sets forward_workspace, backward_workspace, range_workspace and kept of the plan; false: overflow. */
    bool (*workspace)(carry_delta_plan *plan);
    carry_status (*forward)(carry_delta_plan *plan, const carry_delta_forward_args *args, void *workspace,
                            size_t bytes);
    carry_status (*backward)(carry_delta_plan *plan, const carry_delta_backward_args *args, void *workspace,
                             size_t bytes);
    /* slots: [sequences], on the plan's device: sequence i has row slots[i] of state. NULL: row i. */
    carry_status (*step)(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state, const int32_t *slots,
                         const carry_delta_forward_args *inputs, void *workspace, size_t bytes);
    carry_status (*range)(carry_delta_plan *plan, const carry_tensor *M, const carry_tensor *L,
                          const carry_delta_forward_args *inputs, void *workspace, size_t bytes);
} carry_delta_method;

/* Set by tests alone: bytes that a backward pass in rounds (cuda/rounds.cu) may use, so that small problems need many;
   0: as always. */
extern size_t carry_delta_test_room;

/* table.c: of the CPU, or of GPUs; NULL past the end. */
const carry_delta_method *carry_delta_at(bool on_gpu, int index);
const carry_delta_method *carry_delta_choose(const carry_delta_problem *problem); /* the planner's, on the CPU */

struct carry_delta_plan {
    carry_ctx *ctx;
    const carry_kernels *kernels; /* of the CPU */
    const carry_bf16 *terms;      /* products of chunks go through it (terms.h); NULL: through kernels */
    int ordinal;                  /* of the device in its backend; */
    carry_device_properties gpu;  /* its properties, unless it is the CPU */
    carry_delta_problem problem;
    const carry_delta_method *method;
    int64_t chunk; /* of the chunk form; also what backward uses when the method is token by token */
    int64_t group; /* value heads a head */
    int64_t sequences;
    float scale;
    size_t forward_workspace, backward_workspace, range_workspace, kept;
    bool is_named;    /* the method was asked for by name */
    size_t back_room; /* bytes that the rounds of a backward pass may use (cuda/rounds.cu) */
    double flops;
    char about[320];
};

/* The same plan for other sizes, which keep its method if it was asked for by name. Allocates nothing; the caller has
   workspace for every size that it will set. */
carry_status carry_delta_plan_resize(carry_delta_plan *plan, int64_t batch, int64_t tokens);
/* Bytes of forward workspace for this many tokens of one sequence, or this many sequences of one token, or fewer, by
   any method that carry_delta_plan_resize may choose. */
size_t carry_delta_plan_most_workspace(const carry_delta_plan *plan, int64_t batch, int64_t tokens);
/* carry_delta_step for states in a pool [rows, HV, K, V]: sequence i has row slots[i], no row twice. */
carry_status carry_delta_step_slots(carry_delta_plan *plan, carry_tensor o, carry_tensor pool, const int32_t *slots,
                                    const carry_delta_forward_args *inputs, void *workspace, size_t workspace_bytes);

/* One sequence, or this rank's part of one: where its tokens are, where its chunks start among all chunks, and where
   its states come from and go to. */
typedef struct carry_delta_sequence {
    int64_t batch, start, length, chunk_start;
    int64_t index;       /* of its states in a tensor of all sequences */
    int64_t chain;       /* of its states among those that travel between ranks (ranks.c) */
    bool enters, leaves; /* it began before this rank; it goes on after it */
} carry_delta_sequence;

/* The part of a problem that a pass computes: some sequences, and some heads of q and k with all their value heads. */
typedef struct carry_delta_part {
    const carry_delta_sequence *sequences;
    int64_t count, first_head, heads;
    void (*pause)(void *user); /* called between chunks by the thread that called; NULL: nothing */
    void *user;
} carry_delta_part;

/* A tensor of the arguments; NULL where it is absent. */
static inline const carry_tensor *carry_delta_given(const carry_tensor *tensor) {
    return tensor->data != NULL ? tensor : NULL;
}

/* The inputs of a call; NULL where absent. */
typedef struct carry_delta_inputs {
    const carry_tensor *q, *k, *v, *beta, *g, *initial_state, *cu_seqlens, *A_log, *dt_bias;
} carry_delta_inputs;
carry_delta_inputs carry_delta_inputs_of(const carry_delta_forward_args *args);       /* check.c */
carry_delta_inputs carry_delta_back_inputs_of(const carry_delta_backward_args *args); /* backward.c */

/* check.c: every refusal, before anything is written. */
carry_status carry_delta_check_problem(carry_ctx *ctx, const carry_delta_problem *problem);
carry_status carry_delta_check_inputs(carry_ctx *ctx, const carry_delta_problem *problem,
                                      const carry_delta_inputs *inputs);
/* Its three parts: tensors with a token dimension; A_log, dt_bias and the initial state; cu_seqlens, which ends at
   `tokens`. */
carry_status carry_delta_check_rows(carry_ctx *ctx, const carry_delta_problem *problem,
                                    const carry_delta_inputs *inputs);
carry_status carry_delta_check_parameters(carry_ctx *ctx, const carry_delta_problem *problem,
                                          const carry_delta_inputs *inputs);
carry_status carry_delta_check_borders(carry_ctx *ctx, const carry_delta_problem *problem, int64_t tokens,
                                       const carry_tensor *cu_seqlens);
carry_status carry_delta_check_like(carry_ctx *ctx, const carry_delta_problem *problem, const char *name,
                                    const carry_tensor *tensor, int64_t heads, int64_t size);
carry_status carry_delta_check_written(carry_ctx *ctx, const carry_delta_problem *problem, const char *name,
                                       const carry_tensor *tensor, int64_t heads, int64_t size);
carry_status carry_delta_check_gate_gradient(carry_ctx *ctx, const carry_delta_problem *problem,
                                             const carry_tensor *dg);
carry_status carry_delta_check_state(carry_ctx *ctx, const carry_delta_problem *problem, const char *name,
                                     const carry_tensor *tensor);
carry_status carry_delta_check_heads(carry_ctx *ctx, const carry_delta_problem *problem, const char *name,
                                     const carry_tensor *tensor);
carry_status carry_delta_check_kept(carry_ctx *ctx, const carry_delta_problem *problem, const void *kept);
carry_status carry_delta_check_f32(carry_ctx *ctx, const carry_delta_problem *problem, const char *name,
                                   const carry_tensor *tensor, int rank, const int64_t *shape);
carry_status carry_delta_check_workspace(carry_ctx *ctx, const void *workspace, size_t bytes, size_t needed);

/* The table of sequences, from batch or cu_seqlens (already checked), with room for plan->sequences. */
void carry_delta_sequences(const carry_delta_plan *plan, const carry_delta_inputs *inputs, carry_delta_sequence *table);

/* Columns of state `index` of packed ones, however they lie there. */
void carry_delta_state_load(const carry_delta_plan *plan, float *S, ptrdiff_t stride, const float *states,
                            int64_t index, int64_t first, int64_t columns);
void carry_delta_state_store(const carry_delta_plan *plan, float *states, int64_t index, const float *S,
                             ptrdiff_t stride, int64_t first, int64_t columns);

/* Which state of a tensor of all sequences is a value head's of a sequence; and which of those that travel. */
static inline int64_t carry_delta_state_at(const carry_delta_plan *plan, const carry_delta_sequence *sequence,
                                           int64_t value_head) {
    return sequence->index * plan->problem.value_heads + value_head;
}

static inline int64_t carry_delta_chain_at(const carry_delta_plan *plan, const carry_delta_part *part,
                                           const carry_delta_sequence *sequence, int64_t value_head) {
    return (sequence->chain * part->heads - part->first_head) * plan->group + value_head;
}

/* Forward keeps for backward: states that enter chunks, [chunks, HV, K, V]; then corrected values [B T, HV, V]. */
static inline int64_t carry_delta_most_chunks(const carry_delta_plan *plan) {
    int64_t whole = plan->problem.tokens * plan->problem.batch / plan->chunk;
    return whole + plan->sequences;
}

static inline float *carry_delta_kept_state(const carry_delta_plan *plan, const void *kept, int64_t chunk,
                                            int64_t head) {
    const carry_delta_problem *p = &plan->problem;
    return (float *)(uintptr_t)kept + (chunk * p->value_heads + head) * p->key * p->value;
}

static inline float *carry_delta_kept_values(const carry_delta_plan *plan, const void *kept, int64_t token,
                                             int64_t head) {
    const carry_delta_problem *p = &plan->problem;
    float *values = (float *)(uintptr_t)kept + carry_delta_most_chunks(plan) * p->value_heads * p->key * p->value;
    return values + (token * p->value_heads + head) * p->value;
}

#ifdef __cplusplus
}
#endif
#endif
