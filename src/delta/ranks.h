/* The internals of a plan over ranks. ranks_plan.c creates it, ranks_layout.c assigns sequences to ranks, and ranks.c
   runs it. */
#ifndef CARRY_DELTA_RANKS_PLAN_H
#define CARRY_DELTA_RANKS_PLAN_H

#include "carry/delta_ranks.h"
#include "delta/backward.h"
#include "delta/forward.h"
#include "scan/all_scan/all_scan.h"

/* Message tags: one for each group of the forward pass, one for each group of the backward pass, and one of each pass
   for the check of cu_seqlens. */
#define CARRY_DELTA_RANKS_GROUPS 16
#define CARRY_DELTA_RANKS_TAGS 34

struct carry_delta_ranks_plan {
    carry_comm *comm;
    carry_ctx *ctx;
    carry_delta_problem problem; /* the problem of this rank */
    carry_delta_plan *inner;     /* plan for this rank's tokens; NULL for a rank without tokens */
    int64_t first, total;        /* this rank's first token, and the tokens of all ranks (of one sequence of a batch) */
    bool is_first, is_last;      /* this is the first, the last of the ranks that have tokens */
    bool chained;                /* more than one rank has tokens */
    int64_t chains;              /* sequences whose state may pass a rank's border: batch, or 1 when packed */
    int groups, first_tag;
    int64_t group_head[CARRY_DELTA_RANKS_GROUPS + 1]; /* the first head of every group, then the number of heads */
    carry_all_scan_plan *forward[CARRY_DELTA_RANKS_GROUPS], *backward[CARRY_DELTA_RANKS_GROUPS];
    size_t workspace, kept;
    double seconds, exposed;
    bool is_broken; /* a call has failed before its end */
    /* On a GPU (ranks_device.c). */
    carry_comm *host;       /* communicator of the same ranks on the host; equal to comm on the CPU */
    carry_delta_plan *maps; /* plan with K columns for M, or NULL if M is not needed */
    void *identity, *zeros;
    int64_t *borders; /* borders of sequences within this rank's tokens */
    carry_event *started, *stopped;
    carry_all_scan_plan *last_scan;
    int sharing; /* the largest number of ranks that share one GPU */
    bool split;  /* all ranks compute pairs before outputs, group by group (ranks_split.c) */
    char about[384];
};

/* A range of entries in the table of sequences. */
typedef struct carry_delta_span {
    int64_t first, count;
} carry_delta_span;

/* Memory of a call. */
typedef struct carry_delta_ranks_memory {
    carry_delta_sequence *table;
    float *L, *state, *M; /* for each group: [chains, value heads of the group, K, ...] */
    void *scan[CARRY_DELTA_RANKS_GROUPS];
    carry_delta_back back;
    carry_arena pass; /* the remaining memory, used by each pass in turn */
} carry_delta_ranks_memory;

/* Lays out the memory of a call in an arena, or only counts it. Returns false on overflow. */
bool carry_delta_ranks_take(const carry_delta_ranks_plan *plan, carry_arena *arena, bool backward,
                            carry_delta_ranks_memory *memory);

/* The value heads of a group, and of all groups before it, over all chains. */
static inline int64_t carry_delta_group_heads(const carry_delta_ranks_plan *plan, int group) {
    int64_t members = plan->problem.value_heads / plan->problem.heads;
    return (plan->group_head[group + 1] - plan->group_head[group]) * members * plan->chains;
}

static inline int64_t carry_delta_group_before(const carry_delta_ranks_plan *plan, int group) {
    int64_t members = plan->problem.value_heads / plan->problem.heads;
    return plan->group_head[group] * members * plan->chains;
}

/* ranks_device.c. fill is called after plans and scans exist; the other calls are already checked. */
carry_status carry_delta_ranks_device_fill(carry_delta_ranks_plan *plan);
void carry_delta_ranks_device_free(carry_delta_ranks_plan *plan);
carry_status carry_delta_ranks_device_forward(carry_delta_ranks_plan *plan, const carry_delta_forward_args *args,
                                              void *workspace, size_t bytes);
carry_status carry_delta_ranks_device_backward(carry_delta_ranks_plan *plan, const carry_delta_backward_args *args,
                                               void *workspace, size_t bytes);
/* ranks_split.c: sets seconds and exposed; waits for the call to end. */
void carry_delta_ranks_device_times(carry_delta_ranks_plan *plan);

/* o += response state, head by head: [batch, tokens, heads, K] by [batch, heads, K, V] (cuda/correct.cu). */
typedef struct carry_delta_correction {
    void *o;
    const void *response;
    const float *state;
    int dtype; /* type of o and response */
    int64_t batch, tokens, heads;
    int key, value;
} carry_delta_correction;

carry_status carry_delta_correct(carry_ctx *ctx, int device, const carry_delta_correction *correction);

/* ranks_correct.c: adds the effect of the state that arrived to the outputs of a pass from a zero state. */
carry_status carry_delta_ranks_correct(const carry_delta_ranks_plan *plan, void *o, const void *response,
                                       const float *state);

/* Fills `table`, which has the capacity of plan->inner, with the parts of sequences for which this rank has tokens, in
   order. Returns their number. */
int64_t carry_delta_ranks_layout(const carry_delta_ranks_plan *plan, const int64_t *borders,
                                 carry_delta_sequence *table);

/* For sequences without tokens whose states belong to this rank: to <- from, or zero if from is NULL. `to` may be
   NULL. */
carry_status carry_delta_ranks_empty(const carry_delta_ranks_plan *plan, const int64_t *borders, const carry_tensor *to,
                                     const carry_tensor *from);

/* Checks that all ranks have the same cu_seqlens. A message from the previous rank arrives while the call computes. */
typedef struct carry_delta_borders_check {
    carry_request send, receive;
    uint64_t mine, theirs;
    bool is_open;
} carry_delta_borders_check;

carry_status carry_delta_borders_begin(const carry_delta_ranks_plan *plan, const int64_t *borders, bool backward,
                                       carry_delta_borders_check *check);
carry_status carry_delta_borders_end(const carry_delta_ranks_plan *plan, carry_delta_borders_check *check);

#endif
