/* The inside of a plan over ranks, and what its files share: ranks_plan.c makes it, ranks_layout.c says which sequences
   are whose, ranks.c runs. */
#ifndef CARRY_DELTA_RANKS_PLAN_H
#define CARRY_DELTA_RANKS_PLAN_H

#include "carry/delta_ranks.h"
#include "delta/backward.h"
#include "delta/forward.h"
#include "scan/all_scan/all_scan.h"

/* Tags: forward's groups, backward's groups, and one each for the check of cu_seqlens. */
#define CARRY_DELTA_RANKS_GROUPS 16
#define CARRY_DELTA_RANKS_TAGS 34

struct carry_delta_ranks_plan {
    carry_comm *comm;
    carry_ctx *ctx;
    carry_delta_problem problem; /* this rank's */
    carry_delta_plan *inner;     /* of its tokens; NULL without any */
    int64_t first, total;        /* this rank's first token, and the tokens of all ranks (of one sequence of a batch) */
    bool is_first, is_last;      /* of the ranks that have tokens */
    bool chained;                /* more than one rank has */
    int64_t chains;              /* sequences whose state may pass a rank's border: batch, or 1 when packed */
    int groups, first_tag;
    int64_t group_head[CARRY_DELTA_RANKS_GROUPS + 1]; /* the first head of every group; then heads */
    carry_all_scan_plan *forward[CARRY_DELTA_RANKS_GROUPS], *backward[CARRY_DELTA_RANKS_GROUPS];
    size_t workspace, kept;
    double seconds, exposed;
    bool is_broken; /* a call has failed half way */
    /* On a GPU (ranks_device.c). */
    carry_comm *host;       /* of the same ranks; comm itself on the CPU */
    carry_delta_plan *maps; /* of K columns, for M; NULL where none is wanted */
    void *identity, *zeros;
    int64_t *borders; /* of this rank's tokens */
    carry_event *started, *stopped;
    carry_all_scan_plan *last_scan;
    int sharing; /* the most ranks that have the same GPU */
    bool split;  /* all ranks make pairs before outputs, group by group (ranks_split.c) */
    char about[384];
};

/* Some entries of the table of sequences. */
typedef struct carry_delta_span {
    int64_t first, count;
} carry_delta_span;

/* Memory of a call. */
typedef struct carry_delta_ranks_memory {
    carry_delta_sequence *table;
    float *L, *state, *M; /* by groups: [chains, value heads of the group, K, ...] */
    void *scan[CARRY_DELTA_RANKS_GROUPS];
    carry_delta_back back;
    carry_arena pass; /* the rest of the memory, for one pass after the other */
} carry_delta_ranks_memory;

/* Lays the memory of a call out in an arena, or counts it; false on overflow. */
bool carry_delta_ranks_take(const carry_delta_ranks_plan *plan, carry_arena *arena, bool backward,
                            carry_delta_ranks_memory *memory);

/* Value heads of a group, and how many there are before it, over all chains. */
static inline int64_t carry_delta_group_heads(const carry_delta_ranks_plan *plan, int group) {
    int64_t members = plan->problem.value_heads / plan->problem.heads;
    return (plan->group_head[group + 1] - plan->group_head[group]) * members * plan->chains;
}

static inline int64_t carry_delta_group_before(const carry_delta_ranks_plan *plan, int group) {
    int64_t members = plan->problem.value_heads / plan->problem.heads;
    return plan->group_head[group] * members * plan->chains;
}

/* ranks_device.c: once plans and scans are there; of calls that were checked. */
carry_status carry_delta_ranks_device_fill(carry_delta_ranks_plan *plan);
void carry_delta_ranks_device_free(carry_delta_ranks_plan *plan);
carry_status carry_delta_ranks_device_forward(carry_delta_ranks_plan *plan, const carry_delta_forward_args *args,
                                              void *workspace, size_t bytes);
carry_status carry_delta_ranks_device_backward(carry_delta_ranks_plan *plan, const carry_delta_backward_args *args,
                                               void *workspace, size_t bytes);
void carry_delta_ranks_device_times(carry_delta_ranks_plan *plan); /* ranks_split.c: sets seconds and exposed; waits */

/* o += response state, head by head: [batch, tokens, heads, K] by [batch, heads, K, V] (cuda/correct.cu). */
typedef struct carry_delta_correction {
    void *o;
    const void *response;
    const float *state;
    int dtype; /* of o and response */
    int64_t batch, tokens, heads;
    int key, value;
} carry_delta_correction;

carry_status carry_delta_correct(carry_ctx *ctx, int device, const carry_delta_correction *correction);

/* ranks_correct.c: adds the effect of the state that arrived to the outputs of a pass from a zero state. */
carry_status carry_delta_ranks_correct(const carry_delta_ranks_plan *plan, void *o, const void *response,
                                       const float *state);

/* The parts of sequences that this rank has tokens of, in their order; how many. Room for those of plan->inner. */
int64_t carry_delta_ranks_layout(const carry_delta_ranks_plan *plan, const int64_t *borders,
                                 carry_delta_sequence *table);

/* Sequences without tokens whose states this rank has: to <- from, or zero. Either may be NULL. */
carry_status carry_delta_ranks_empty(const carry_delta_ranks_plan *plan, const int64_t *borders, const carry_tensor *to,
                                     const carry_tensor *from);

/* Checks that all ranks have the same cu_seqlens: a message from the previous rank comes in while the call computes. */
typedef struct carry_delta_borders_check {
    carry_request send, receive;
    uint64_t mine, theirs;
    bool is_open;
} carry_delta_borders_check;

carry_status carry_delta_borders_begin(const carry_delta_ranks_plan *plan, const int64_t *borders, bool backward,
                                       carry_delta_borders_check *check);
carry_status carry_delta_borders_end(const carry_delta_ranks_plan *plan, carry_delta_borders_check *check);

#endif
