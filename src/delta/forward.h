/* The forward machinery that forward, backward (when nothing was kept), step and range share. */
#ifndef CARRY_DELTA_FORWARD_H
#define CARRY_DELTA_FORWARD_H

#include "delta/chunk.h"
#include "delta/terms.h"

/* Rows of a chunk as products with the state take them, and factors of the products' rows; NULL: the rows have them. */
typedef struct carry_delta_faded {
    const float *k, *q, *left_k; /* [C, K] */
    const float *by_k, *by_q;    /* [C] */
    const float *by_v;           /* [C]: of V' in the state; NULL: none */
} carry_delta_faded;

/* Scratch memory of a thread. */
typedef struct carry_delta_scratch {
    carry_delta_rows rows;
    carry_delta_head heads;
    float *fade_k, *fade_q, *left_k; /* [C, K]: rows times beta and the decays of a value head, with a key gate */
    float *by_k, *by_q;              /* [C]: these factors with one gate a token */
    float *norm_k, *norm_q, *norm_v; /* [C]: by terms, by_k, by_q and left times the rows' norms */
    bool exact;                      /* the state is in terms */
    carry_delta_terms state, values, triangle;
    carry_delta_faded faded; /* of the chunk and the value head at hand */
    float *X, *O, *made;     /* [C, width] */
    float *beside;           /* [16, width] */
    float *S;                /* [group, K, width], panel of columns after panel */
} carry_delta_scratch;

typedef struct carry_delta_run {
    const carry_delta_plan *plan;
    carry_delta_inputs in;
    const carry_tensor *o, *final_state, *snapshots; /* each may be NULL */
    void *kept;
    /* States that travel between ranks, [sequences, value heads of the part, K, V]: of sequences that enter, and of
       those that leave, which may be NULL: not wanted. */
    const float *entering;
    float *leaving;
    float *maps;      /* [sequences, value heads of the part, K, K]: also wanted: M, computed from the identity */
    bool chunks_only; /* chunks even when the method is token by token */
    int64_t columns, width, blocks; /* of the state: all, those that a unit takes, and units a head */
    carry_delta_part part;
    carry_delta_sequence *sequences;
    carry_delta_scratch *scratch; /* a thread each */
} carry_delta_run;

/* The unit of work of a thread: some columns of the state of one head's group in one sequence. */
typedef struct carry_delta_unit {
    const carry_delta_run *run;
    carry_delta_scratch *scratch;
    const carry_delta_sequence *sequence;
    int64_t head;           /* of q and k */
    int64_t first, columns; /* of the state */
    int64_t values;         /* those of them that are V's; behind them are M's */
    int64_t panel;          /* columns of a panel */
    int64_t at, whole;      /* of a panel as a unit: its first column among the whole unit's, and those */
    int64_t member;         /* of a panel: the value head of the group */
    bool pauses;            /* it runs in the thread that called */
} carry_delta_unit;

/* The panel from column `at` on. */
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

/* forward_chunk.c: tokens t..end-1 of the unit's sequence. */
void carry_delta_forward_chunk(const carry_delta_unit *u, int64_t t, int64_t end);

/* Lays a run of all sequences and heads out in an arena (or counts); false on overflow. columns is V, or V + K with
   maps; cut: into blocks, where there are more threads than heads of sequences. */
bool carry_delta_run_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_run *run, int64_t columns,
                          bool cut);
void carry_delta_run_all(carry_delta_run *run);
/* The same of the part that run->part says, whose sequences are the caller's. */
bool carry_delta_run_take_part(const carry_delta_plan *plan, carry_arena *arena, carry_delta_run *run, int64_t columns,
                               bool cut);
void carry_delta_run_part(carry_delta_run *run);

/* tokens.c: token t of a sequence for every value head of a group, token by token. The state of member m starts at
   S + m*next, its rows are `stride` apart. */
void carry_delta_tokens(const carry_delta_run *run, carry_delta_scratch *scratch, const carry_delta_sequence *sequence,
                        int64_t head, int64_t t, int64_t first, int64_t columns, float *S, ptrdiff_t stride,
                        ptrdiff_t next);

/* The CPU's entries of the table (cpu.c): forward.c, tokens.c and range.c. */
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
