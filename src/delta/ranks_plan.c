/* Plans of the delta rule over ranks: the ranks agree on a problem, heads are divided into groups, and the workspace is
   computed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/error.h"
#include "core/sized.h"
#include "core/span.h"
#include "delta/ranks.h"
#include "delta/split.h"

/* Default numbers of groups. A rank that has no local pass waits for the first one (docs/results/ranks.md). */
#define GROUPS 16
#define GPU_GROUPS 2
#define WORD 224

/* The record that every rank sends to the others. */
typedef struct record {
    int64_t tokens, threads;
    int32_t status;
    char word[WORD]; /* all values that must be equal, or the reason for refusing */
} record;

static carry_status check(const carry_comm *comm, const carry_delta_problem *problem,
                          const carry_delta_ranks_options *options) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    carry_delta_problem p = *problem;
    p.tokens = p.tokens == 0 ? 1 : p.tokens;
    CARRY_TRY(carry_delta_check_problem(ctx, &p));
    if (p.device != carry_comm_device(comm)) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "the problem is on device %d, and the communicator \"%s\" moves memory of device %d",
                          p.device, carry_comm_name(comm), carry_comm_device(comm));
    }
    if (p.state_transposed || p.snapshot_every != 0 || p.snapshot_last != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "the delta rule over ranks has no %s",
                          p.state_transposed ? "transposed states" : "snapshots");
    }
    int method = 0;
    while (p.device == 0 && options->algorithm != NULL && carry_delta_name(0, method) != NULL &&
           strcmp(carry_delta_name(0, method), options->algorithm) != 0) {
        method++;
    }
    if (carry_delta_name(0, method) == NULL) {
        return carry_fail(ctx, CARRY_ENOTFOUND, "there is no delta-rule method '%.40s'", options->algorithm);
    }
    if (options->wire != CARRY_F32 && options->wire != CARRY_BF16) {
        return carry_fail(ctx, CARRY_EDTYPE, "states travel as f32 or bf16, not %s", carry_dtype_name(options->wire));
    }
    if (options->groups < 0 || options->groups > CARRY_DELTA_RANKS_GROUPS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%" PRId64 " groups of heads: there may be 1 to %d, or 0 for a choice",
                          options->groups, CARRY_DELTA_RANKS_GROUPS);
    }
    if (options->first_tag < 0 || options->first_tag > CARRY_MAX_COMM_TAGS - CARRY_DELTA_RANKS_TAGS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "first_tag is %d and must be 0 to %d", options->first_tag,
                          CARRY_MAX_COMM_TAGS - CARRY_DELTA_RANKS_TAGS);
    }
    return CARRY_OK;
}

static void say(record *mine, const carry_delta_problem *p, const carry_delta_ranks_options *options) {
    (void)snprintf(mine->word, sizeof mine->word,
                   "batch %" PRId64 ", heads %" PRId64 "/%" PRId64 ", K %" PRId64 ", V %" PRId64 ", %" PRId64
                   " sequences, %s, gate %d%s, scale %.9g%s%s x%g, method %.16s, wire %s, groups %" PRId64 ", tags %d",
                   p->batch, p->heads, p->value_heads, p->key, p->value, p->sequences, carry_dtype_name(p->dtype),
                   (int)p->gate, p->gate_inside ? " inside" : "", (double)p->scale, p->l2norm ? ", l2norm" : "",
                   p->beta_sigmoid ? ", sigmoid" : "", (double)p->beta_factor,
                   options->algorithm != NULL ? options->algorithm : "any", carry_dtype_name(options->wire),
                   options->groups, options->first_tag);
}

static carry_status compare(carry_delta_ranks_plan *plan, const record *all) {
    int rank = carry_comm_rank(plan->comm);
    int64_t with_tokens = 0;
    for (int r = 0; r < carry_comm_size(plan->comm); r++) {
        if (all[r].status != CARRY_OK) {
            return carry_fail(plan->ctx, CARRY_EARGUMENT, "rank %d has refused: %.*s", r, WORD - 1, all[r].word);
        }
        if (strncmp(all[r].word, all[0].word, WORD) != 0) {
            return carry_fail(plan->ctx, CARRY_EARGUMENT, "rank 0 has %.*s; rank %d has %.*s", WORD - 1, all[0].word, r,
                              WORD - 1, all[r].word);
        }
        plan->first = r == rank ? plan->total : plan->first;
        if (all[r].tokens < 0 || __builtin_add_overflow(plan->total, all[r].tokens, &plan->total)) {
            return carry_fail(plan->ctx, CARRY_ESIZE, "rank %d has %" PRId64 " tokens, too many in all", r,
                              all[r].tokens);
        }
        with_tokens += all[r].tokens > 0;
    }
    plan->chained = with_tokens > 1;
    plan->is_first = plan->problem.tokens > 0 && plan->first == 0;
    plan->is_last = plan->problem.tokens > 0 && plan->first + plan->problem.tokens == plan->total;
    return CARRY_OK;
}

/* Chooses the method, which is the same on every rank, by the longest part or the average sequence. */
static const char *method_of(const carry_delta_ranks_plan *plan, const record *all) {
    carry_delta_problem p = plan->problem;
    p.tokens = p.sequences > 0 ? plan->total : 1;
    for (int r = 0; p.sequences == 0 && r < carry_comm_size(plan->comm); r++) {
        p.tokens = all[r].tokens > p.tokens ? all[r].tokens : p.tokens;
    }
    return carry_delta_choose(&p)->name;
}

/* Divides heads into groups. Each group has one head for every thread if there are enough heads. */
static void make_groups(carry_delta_ranks_plan *plan, const record *all, int64_t asked) {
    int64_t heads = plan->problem.heads;
    int64_t threads = 1;
    for (int r = 0; r < carry_comm_size(plan->comm); r++) {
        threads = all[r].threads > threads ? all[r].threads : threads;
    }
    int64_t groups = asked;
    if (plan->problem.device > 0) { /* a GPU needs many heads at once */
        groups = !plan->split || plan->chains > 1 ? 1 : asked > 0 ? asked : GPU_GROUPS;
    } else if (groups == 0) {
        groups = plan->chains * heads / threads;
        groups = groups > GROUPS ? GROUPS : groups;
    }
    groups = groups > heads ? heads : groups;
    groups = groups < 1 ? 1 : groups;
    plan->groups = (int)groups;
    for (int64_t g = 0; g <= groups; g++) {
        plan->group_head[g] = g * heads / groups;
    }
}

static carry_status make_scans(carry_delta_ranks_plan *plan, const carry_delta_ranks_options *options) {
    const carry_delta_problem *p = &plan->problem;
    for (int i = 0; plan->chained && i < 2 * plan->groups; i++) {
        bool backward = i >= plan->groups;
        int group = i % plan->groups;
        carry_all_scan_problem scan = {.kind = CARRY_ALL_SCAN_DENSE,
                                       .heads = carry_delta_group_heads(plan, group),
                                       .key = p->key,
                                       .value = p->value,
                                       .wire = options->wire,
                                       .reversed = backward,
                                       .transposed = backward};
        carry_all_scan_options how = {CARRY_INIT(carry_all_scan_options), .algorithm = options->all_scan_algorithm,
                                      /* The groups already keep several exchanges in flight. */
                                      .blocks = plan->split ? 1 : 0,
                                      .tag = options->first_tag + group + (backward ? CARRY_DELTA_RANKS_GROUPS : 0)};
        CARRY_TRY(carry_all_scan_plan_new(plan->comm, backward ? &plan->backward[group] : &plan->forward[group], &scan,
                                          &how));
    }
    return CARRY_OK;
}

bool carry_delta_ranks_take(const carry_delta_ranks_plan *plan, carry_arena *arena, bool backward,
                            carry_delta_ranks_memory *memory) {
    const carry_delta_problem *p = &plan->problem;
    size_t states = (size_t)(plan->chains * p->value_heads * p->key);
    if (plan->chained) {
        memory->L = carry_arena_take(arena, states, (size_t)p->value * sizeof(float));
        memory->state = carry_arena_take(arena, states, (size_t)p->value * sizeof(float));
        memory->M = backward ? NULL : carry_arena_take(arena, states, (size_t)p->key * sizeof(float));
        for (int g = 0; g < plan->groups; g++) {
            memory->scan[g] = carry_arena_take(
                arena, carry_all_scan_run_workspace(backward ? plan->backward[g] : plan->forward[g]), 1);
        }
    }
    if (plan->inner != NULL && backward) {
        (void)carry_delta_back_take(plan->inner, arena, &memory->back);
        memory->table = memory->back.sequences;
    } else if (plan->inner != NULL) {
        memory->table = carry_arena_take(arena, (size_t)plan->inner->sequences, sizeof *memory->table);
        memory->pass = *arena;
        /* The widest pass computes M beside L and is not divided among threads. */
        carry_delta_run run = {.part = {.count = 1, .heads = 1}};
        (void)carry_delta_run_take_part(plan->inner, arena, &run, p->value + p->key, false);
    }
    return !arena->overflowed;
}

static carry_status state_bytes(carry_delta_ranks_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    carry_delta_ranks_memory memory = {0};
    carry_arena forward = carry_arena_over(NULL, 0);
    carry_arena backward = carry_arena_over(NULL, 0);
    size_t bytes[2];
    size_t maps = (size_t)(plan->chains * p->value_heads * p->key * p->key) * sizeof(float);
    if (!carry_delta_ranks_take(plan, &forward, false, &memory) ||
        !carry_delta_ranks_take(plan, &backward, true, &memory) || !carry_arena_total(&forward, &bytes[0]) ||
        !carry_arena_total(&backward, &bytes[1]) ||
        !carry_size_add(&plan->kept, plan->inner != NULL ? plan->inner->kept : 0, plan->chained ? maps : 0)) {
        return carry_fail(plan->ctx, CARRY_ESIZE, "the workspace of this problem is larger than memory can be");
    }
    plan->workspace = bytes[0] > bytes[1] ? bytes[0] : bytes[1];
    return CARRY_OK;
}

/* Splits on all ranks or on none, since the method depends on the number of tokens of a rank. */
static carry_status choose_split(carry_delta_ranks_plan *plan) {
    int64_t cannot = plan->inner != NULL && !carry_delta_splits(plan->inner) ? 1 : 0;
    if (plan->problem.device > 0 && plan->chained) {
        CARRY_TRY(carry_all_reduce(plan->host, &cannot, 1, CARRY_I64, CARRY_REDUCE_MAX));
        plan->split = cannot == 0;
        CARRY_TRY(carry_comm_sharing(plan->comm, &plan->sharing));
    }
    return CARRY_OK;
}

static carry_status fill(carry_delta_ranks_plan *plan, const record *all, const carry_delta_ranks_options *options) {
    const carry_delta_problem *p = &plan->problem;
    plan->chains = p->sequences > 0 ? 1 : p->batch;
    plan->first_tag = options->first_tag;
    if (p->tokens > 0) {
        carry_delta_problem inner = *p; /* of the sequences, it sees those that have tokens on this rank */
        const bool on_gpu = p->device > 0;
        inner.sequences = p->sequences < p->tokens || on_gpu ? p->sequences : p->tokens;
        const char *chosen = on_gpu ? NULL : method_of(plan, all);
        CARRY_TRY(carry_delta_plan_new(
            plan->ctx, &plan->inner, &inner,
            &(carry_delta_options){CARRY_INIT(carry_delta_options),
                                   .algorithm = options->algorithm != NULL ? options->algorithm : chosen}));
    }
    CARRY_TRY(choose_split(plan));
    make_groups(plan, all, options->groups);
    CARRY_TRY(make_scans(plan, options));
    CARRY_TRY(p->device > 0 ? carry_delta_ranks_device_fill(plan) : state_bytes(plan));
    (void)snprintf(plan->about, sizeof plan->about, "%s, %d group%s of heads; %s",
                   plan->inner != NULL ? plan->inner->method->name : "no tokens here", plan->groups,
                   plan->groups == 1 ? "" : "s",
                   plan->chained ? carry_all_scan_plan_about(plan->forward[0]) : "one rank has all tokens");
    return CARRY_OK;
}

/* If one rank fails alone, it aborts the communicator, since the others would wait for it. All ranks find out by
   themselves that no algorithm applies. */
static carry_status fill_together(carry_delta_ranks_plan *plan, const record *all,
                                  const carry_delta_ranks_options *options) {
    CARRY_TRY(compare(plan, all));
    const carry_status status = fill(plan, all, options);
    if (status != CARRY_OK && status != CARRY_EUNSUPPORTED) {
        carry_comm_abort(plan->comm, carry_ctx_error(plan->ctx));
    }
    return status;
}

carry_status carry_delta_ranks_plan_new(carry_comm *comm, carry_delta_ranks_plan **plan,
                                        const carry_delta_problem *problem, const carry_delta_ranks_options *options) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    CARRY_SPAN(ctx, "plan", "delta ranks");
    carry_delta_ranks_options own;
    *plan = NULL;
    carry_delta_ranks_plan *made = calloc(1, sizeof *made);
    record *all = calloc((size_t)carry_comm_size(comm), sizeof *all);
    record mine = {.tokens = problem->tokens, .threads = carry_ctx_threads(ctx)};
    carry_status status = CARRY_SIZED_READ(ctx, carry_delta_ranks_options, &own, options);
    status = status == CARRY_OK ? check(comm, problem, &own) : status;
    if (made == NULL || all == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: a plan");
    }
    mine.status = (int32_t)status;
    if (status == CARRY_OK) {
        say(&mine, problem, &own);
    } else {
        (void)snprintf(mine.word, sizeof mine.word, "%s", carry_ctx_error(ctx));
    }
    /* A rank that refuses must tell the others, which would otherwise wait for it. */
    carry_status gathered = status;
    if (all != NULL) {
        gathered = carry_all_gather(carry_comm_host(comm), all, &mine, sizeof mine);
    } else {
        carry_comm_abort(comm, carry_ctx_error(ctx));
    }
    if (status == CARRY_OK && (status = gathered) == CARRY_OK) {
        made->comm = comm;
        made->host = carry_comm_host(comm);
        made->ctx = ctx;
        made->problem = *problem;
        status = fill_together(made, all, &own);
    }
    free(all);
    if (status != CARRY_OK) {
        carry_delta_ranks_plan_free(made);
        return status;
    }
    carry_log(ctx, CARRY_LOG_INFO, "plan: %s", made->about);
    *plan = made;
    return CARRY_OK;
}

void carry_delta_ranks_plan_free(carry_delta_ranks_plan *plan) {
    if (plan == NULL) {
        return;
    }
    for (int g = 0; g < CARRY_DELTA_RANKS_GROUPS; g++) {
        carry_all_scan_plan_free(plan->forward[g]);
        carry_all_scan_plan_free(plan->backward[g]);
    }
    carry_delta_plan_free(plan->inner);
    if (plan->problem.device > 0) {
        carry_delta_ranks_device_free(plan);
    }
    free(plan);
}

const char *carry_delta_ranks_plan_about(const carry_delta_ranks_plan *plan) {
    return plan->about;
}

size_t carry_delta_ranks_forward_workspace(const carry_delta_ranks_plan *plan) {
    return plan->workspace;
}

size_t carry_delta_ranks_backward_workspace(const carry_delta_ranks_plan *plan) {
    return plan->workspace;
}

size_t carry_delta_ranks_kept_bytes(const carry_delta_ranks_plan *plan) {
    return plan->kept;
}

double carry_delta_ranks_last_seconds(carry_delta_ranks_plan *plan) {
    if (plan->problem.device > 0) {
        carry_delta_ranks_device_times(plan);
    }
    return plan->seconds;
}

double carry_delta_ranks_last_exposed(carry_delta_ranks_plan *plan) {
    if (plan->problem.device > 0) {
        carry_delta_ranks_device_times(plan);
    }
    return plan->exposed;
}
