/* The internals of a delta-rule plan, shared by its files. */
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

/* A method: a const struct, one line in table.c. The public calls (call.c) check every tensor and the workspace before
   they call an entry. An entry itself refuses only what its method does not support, with CARRY_EUNSUPPORTED. If an
   entry is NULL, the call is refused with the name of the method. Entries for GPUs enqueue their work on the context's
   stream and return. */
typedef struct carry_delta_method {
    const char *name, *about;
    int64_t chunk; /* 0: token by token */
    /* Returns true if the method applies; otherwise writes the reason, which is never empty, to `why`. */
    bool (*applies)(const carry_delta_plan *plan, char *why, size_t why_size);
    /* Cost of a forward pass, in a unit that all methods of a device share. */
    double (*cost)(const carry_delta_plan *plan);
    /* Sets forward_workspace, backward_workspace, range_workspace and kept of the plan. Returns false on overflow. */
    bool (*workspace)(carry_delta_plan *plan);
    carry_status (*forward)(carry_delta_plan *plan, const carry_delta_forward_args *args, void *workspace,
                            size_t bytes);
    carry_status (*backward)(carry_delta_plan *plan, const carry_delta_backward_args *args, void *workspace,
                             size_t bytes);
    /* slots: [sequences] on the plan's device, or NULL. Sequence i uses row slots[i] of state; with NULL, row i. */
    carry_status (*step)(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state, const int32_t *slots,
                         const carry_delta_forward_args *inputs, void *workspace, size_t bytes);
    carry_status (*range)(carry_delta_plan *plan, const carry_tensor *M, const carry_tensor *L,
                          const carry_delta_forward_args *inputs, void *workspace, size_t bytes);
} carry_delta_method;

/* Set only by tests: the bytes that a backward pass in rounds (cuda/rounds.cu) may use, so that small problems need
   many rounds. 0: the normal limit. */
extern size_t carry_delta_test_room;

/* table.c: methods of the CPU or of GPUs, or NULL past the end. */
const carry_delta_method *carry_delta_at(bool on_gpu, int index);
const carry_delta_method *carry_delta_choose(const carry_delta_problem *problem); /* the planner's choice on the CPU */

struct carry_delta_plan {
    carry_ctx *ctx;
    const carry_kernels *kernels; /* kernels of the CPU */
    const carry_bf16 *terms;      /* kernels for products of chunks by terms (terms.h), or NULL for f32 */
    int ordinal;                  /* the device's index in its backend */
    carry_device_properties gpu;  /* properties of the device, unless it is the CPU */
    carry_delta_problem problem;
    const carry_delta_method *method;
    int64_t chunk; /* of the chunk form; also for the backward pass of a method that goes token by token */
    int64_t group; /* value heads for each head of q and k */
    int64_t sequences;
    float scale;
    size_t forward_workspace, backward_workspace, range_workspace, kept;
    bool is_named;    /* the caller named the method */
    size_t back_room; /* bytes that the rounds of a backward pass may use (cuda/rounds.cu) */
    double flops;
    char about[320];
};

/* Changes the sizes of a plan: to `batch` sequences of `tokens` tokens each, or to packed sequences with `tokens`
   tokens in all. A method that the caller named stays the same. Allocates nothing; the caller has workspace for every
   size that it will set. */
carry_status carry_delta_plan_resize(carry_delta_plan *plan, int64_t batch, int64_t tokens);
carry_status carry_delta_plan_pack(carry_delta_plan *plan, int64_t sequences, int64_t tokens);
/* Bytes of forward workspace that are enough for `tokens` tokens of one sequence, for `batch` sequences of one token,
   for `batch` packed sequences of `tokens` tokens in all, and for fewer, with any method that these functions may
   choose. */
size_t carry_delta_plan_most_workspace(const carry_delta_plan *plan, int64_t batch, int64_t tokens);
/* carry_delta_step for states in a pool [rows, HV, K, V]. Sequence i has row slots[i]; no row may occur twice. */
carry_status carry_delta_step_slots(carry_delta_plan *plan, carry_tensor o, carry_tensor pool, const int32_t *slots,
                                    const carry_delta_forward_args *inputs, void *workspace, size_t workspace_bytes);

/* carry_delta_step_ring for such a pool, with a ring for each of its rows: rings of carry_delta_ring_bytes_of(plan,
   length, rows) bytes (0: the plan has no rings). flush_slot adds the tokens of the ring of row `slot`, or of all rows
   if slot is -1, to the states. */
size_t carry_delta_ring_bytes_of(const carry_delta_plan *plan, int64_t length, int64_t rows);
carry_status carry_delta_step_ring_slots(carry_delta_plan *plan, carry_tensor o, carry_tensor pool,
                                         carry_delta_ring_memory ring, const int32_t *slots,
                                         const carry_delta_forward_args *inputs, void *workspace,
                                         size_t workspace_bytes);
carry_status carry_delta_ring_flush_slot(carry_delta_plan *plan, carry_tensor pool, carry_delta_ring_memory ring,
                                         int64_t slot);

/* One sequence, or this rank's part of one: the position of its tokens, the index of its first chunk among all chunks,
   and the indices of its states. */
typedef struct carry_delta_sequence {
    int64_t batch, start, length, chunk_start;
    int64_t index;       /* index of its states in a tensor of all sequences */
    int64_t chain;       /* index of its states among those that cross ranks (ranks.c) */
    bool enters, leaves; /* it began on an earlier rank; it continues on the next rank */
} carry_delta_sequence;

/* The part of a problem that a pass computes: some sequences, and some heads of q and k with all their value heads. */
typedef struct carry_delta_part {
    const carry_delta_sequence *sequences;
    int64_t count, first_head, heads;
    void (*pause)(void *user); /* called between chunks in the calling thread; may be NULL */
    void *user;
} carry_delta_part;

/* Returns a tensor of the arguments, or NULL if it is absent. */
static inline const carry_tensor *carry_delta_given(const carry_tensor *tensor) {
    return tensor->data != NULL ? tensor : NULL;
}

/* The inputs of a call. Absent ones are NULL. */
typedef struct carry_delta_inputs {
    const carry_tensor *q, *k, *v, *beta, *g, *initial_state, *cu_seqlens, *A_log, *dt_bias;
} carry_delta_inputs;
carry_delta_inputs carry_delta_inputs_of(const carry_delta_forward_args *args);       /* check.c */
carry_delta_inputs carry_delta_back_inputs_of(const carry_delta_backward_args *args); /* backward.c */

/* check.c: all argument checks, done before anything is written. */
carry_status carry_delta_check_problem(carry_ctx *ctx, const carry_delta_problem *problem);
carry_status carry_delta_check_inputs(carry_ctx *ctx, const carry_delta_problem *problem,
                                      const carry_delta_inputs *inputs);
/* The three parts of carry_delta_check_inputs: tensors with a token dimension; A_log, dt_bias and the initial state;
   cu_seqlens, whose last element must be `tokens`. */
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

/* Fills the table of sequences from batch or cu_seqlens (already checked). The table has plan->sequences entries. */
void carry_delta_sequences(const carry_delta_plan *plan, const carry_delta_inputs *inputs, carry_delta_sequence *table);

/* Load or store columns of state `index` in an array of states, transposed or not. */
void carry_delta_state_load(const carry_delta_plan *plan, float *S, ptrdiff_t stride, const float *states,
                            int64_t index, int64_t first, int64_t columns);
void carry_delta_state_store(const carry_delta_plan *plan, float *states, int64_t index, const float *S,
                             ptrdiff_t stride, int64_t first, int64_t columns);

/* Index of the state of a sequence's value head. carry_delta_state_at: in a tensor with the states of all sequences.
   carry_delta_chain_at: among this part's states that cross ranks. */
static inline int64_t carry_delta_state_at(const carry_delta_plan *plan, const carry_delta_sequence *sequence,
                                           int64_t value_head) {
    return sequence->index * plan->problem.value_heads + value_head;
}

static inline int64_t carry_delta_chain_at(const carry_delta_plan *plan, const carry_delta_part *part,
                                           const carry_delta_sequence *sequence, int64_t value_head) {
    return (sequence->chain * part->heads - part->first_head) * plan->group + value_head;
}

/* On the CPU, the forward pass keeps for the backward pass: states that enter chunks, [chunks, HV, K, V], then
   corrected values [B T, HV, V]. */
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
