/* Forward functions shared by forward, backward (if nothing was kept), step and range. */
#ifndef CARRY_DELTA_FORWARD_H
#define CARRY_DELTA_FORWARD_H

#include "delta/chunk.h"
#include "delta/terms.h"

/* Operands of the products with the state and of the state's update: rows of a chunk, and factors for the rows of the
   results (by_v: for the rows of V'). A factor that the rows already include, or that is 1, is NULL. */
typedef struct carry_delta_faded {
    const float *k, *q, *left_k; /* [C, K] */
    const float *by_k, *by_q;    /* [C] */
    const float *by_v;           /* [C]: factors of V' in the update of the state, or NULL */
} carry_delta_faded;

/* Scratch memory of a thread. */
typedef struct carry_delta_scratch {
    carry_delta_rows rows;
    carry_delta_head heads;
    float *fade_k, *fade_q, *left_k; /* [C, K]: with a key gate: rows times beta and the decays of a value head */
    float *by_k, *by_q;              /* [C]: with one gate for each token: these factors */
    float *norm_k, *norm_q, *norm_v; /* [C]: with products by terms: by_k, by_q and left times the rows' norms */
    bool exact;                      /* the state is in terms */
    carry_delta_terms state, values, triangle;
    carry_delta_faded faded; /* of the current chunk and value head */
    float *X, *O, *made;     /* [C, width] */
    float *beside;           /* [16, width] */
    float *S;                /* [group, K, width], stored as panels of columns */
} carry_delta_scratch;

typedef struct carry_delta_run {
    const carry_delta_plan *plan;
    carry_delta_inputs in;
    const carry_tensor *o, *final_state, *snapshots; /* each may be NULL */
    void *kept;
    /* States that cross ranks, [sequences, value heads of the part, K, V]: of sequences that began on an earlier rank,
       and of those that continue on the next (leaving, or NULL if not wanted). */
    const float *entering;
    float *leaving;
    float *maps; /* [sequences, value heads of the part, K, K]: M, computed from the identity; NULL if not wanted */
    bool chunks_only;               /* use chunks even if the method is token by token */
    int64_t columns, width, blocks; /* columns of the state: all, those of a unit; units of a head */
    carry_delta_part part;
    carry_delta_sequence *sequences;
    carry_delta_scratch *scratch; /* one for each thread */
} carry_delta_run;

/* A unit of work: some columns of the state of one head's group in one sequence. */
typedef struct carry_delta_unit {
    const carry_delta_run *run;
    carry_delta_scratch *scratch;
    const carry_delta_sequence *sequence;
    int64_t head;           /* head of q and k */
    int64_t first, columns; /* columns of the state */
    int64_t values;         /* columns that belong to V; those of M follow */
    int64_t panel;          /* columns of a panel */
    int64_t at, whole;      /* for a panel: its first column within the unit, and the columns of the unit */
    int64_t member;         /* for a panel: the index of the value head in the group */
    bool pauses;            /* it runs in the calling thread */
} carry_delta_unit;

/* Returns the panel of columns from `at` on. */
static inline carry_delta_unit carry_delta_panel_of(const carry_delta_unit *u, int64_t at) {
    carry_delta_unit part = *u;
    part.at = at;
    part.whole = u->columns;
    part.first = u->first + at;
    part.columns = u->columns - at < u->panel ? u->columns - at : u->panel;
    part.values = u->values - at < part.columns ? u->values - at : part.columns;
    part.values = part.values > 0 ? part.values : 0;
    return part;
}

static inline float *carry_delta_state_of(const carry_delta_unit *u, int64_t member) {
    return u->scratch->S + u->run->plan->problem.key * (member * u->run->width + u->at);
}

/* forward_chunk.c: processes tokens t..end-1 of the unit's sequence. */
void carry_delta_forward_chunk(const carry_delta_unit *u, int64_t t, int64_t end);

/* Lays out a run of all sequences and heads in an arena (or only counts bytes). Returns false on overflow. columns is
   V, or V + K with maps. cut: divide the columns into blocks if there are more threads than sequences times heads. */
bool carry_delta_run_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_run *run, int64_t columns,
                          bool cut);
void carry_delta_run_all(carry_delta_run *run);
/* The same for run->part, whose sequences the caller provides. */
bool carry_delta_run_take_part(const carry_delta_plan *plan, carry_arena *arena, carry_delta_run *run, int64_t columns,
                               bool cut);
void carry_delta_run_part(carry_delta_run *run);

/* tokens.c: processes token t of a sequence for every value head of a group. The state of member m starts at S +
   m*next, and its rows are `stride` apart. */
void carry_delta_tokens(const carry_delta_run *run, carry_delta_scratch *scratch, const carry_delta_sequence *sequence,
                        int64_t head, int64_t t, int64_t first, int64_t columns, float *S, ptrdiff_t stride,
                        ptrdiff_t next);

/* The CPU's entries in the table of methods (cpu.c), defined in forward.c, tokens.c and range.c. */
carry_status carry_delta_cpu_forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *workspace,
                                     size_t workspace_bytes);
carry_status carry_delta_cpu_step(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                  const int32_t *slots, const carry_delta_forward_args *inputs, void *workspace,
                                  size_t workspace_bytes);
carry_status carry_delta_cpu_range(carry_delta_plan *plan, const carry_tensor *M, const carry_tensor *L,
                                   const carry_delta_forward_args *inputs, void *workspace, size_t workspace_bytes);

double carry_delta_forward_flops(const carry_delta_plan *plan);
carry_status carry_delta_check_outputs(carry_ctx *ctx, const carry_delta_plan *plan,
                                       const carry_delta_forward_args *args);

#endif
