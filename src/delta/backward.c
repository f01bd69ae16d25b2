/* The backward pass, from the last chunk to the first (backward_chunk.c). A unit of work is one head of one sequence,
   so that one thread sums dq and dk over the group's value heads in a fixed order. */
#include "delta/backward.h"

#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "delta/forward.h"

#define BLOCK CARRY_DELTA_BLOCK

typedef carry_delta_back_unit unit;

/* Sets dS to the gradient of the state that leaves the sequence's last chunk. */
static void start(const unit *u) {
    const carry_delta_back *back = u->back;
    const carry_delta_plan *plan = back->plan;
    const carry_delta_problem *p = &plan->problem;
    for (int64_t member = 0; member < plan->group; member++) {
        float *dS = u->s->dS + member * p->key * p->value;
        int64_t value_head = u->head * plan->group + member;
        if (u->sequence->leaves && back->arriving != NULL) {
            carry_delta_state_load(plan, dS, p->value, back->arriving,
                                   carry_delta_chain_at(plan, &back->part, u->sequence, value_head), 0, p->value);
        } else if (!u->sequence->leaves && back->args->dfinal_state.data != NULL) {
            carry_delta_state_load(plan, dS, p->value, back->args->dfinal_state.data,
                                   carry_delta_state_at(plan, u->sequence, value_head), 0, p->value);
        } else {
            memset(dS, 0, (size_t)(p->key * p->value) * sizeof *dS);
        }
    }
}

/* Stores the gradient of the state that entered the sequence's first chunk. */
static void finish(const unit *u) {
    const carry_delta_back *back = u->back;
    const carry_delta_plan *plan = back->plan;
    const carry_delta_problem *p = &plan->problem;
    for (int64_t member = 0; member < plan->group; member++) {
        const float *dS = u->s->dS + member * p->key * p->value;
        int64_t value_head = u->head * plan->group + member;
        if (u->sequence->enters && back->departing != NULL) {
            carry_delta_state_store(plan, back->departing,
                                    carry_delta_chain_at(plan, &back->part, u->sequence, value_head), dS, p->value, 0,
                                    p->value);
        } else if (!u->sequence->enters && back->args->dinitial_state.data != NULL) {
            carry_delta_state_store(plan, back->args->dinitial_state.data,
                                    carry_delta_state_at(plan, u->sequence, value_head), dS, p->value, 0, p->value);
        }
    }
}

static void run_unit(const unit *u) {
    const carry_delta_plan *plan = u->back->plan;
    CARRY_SPAN(plan->ctx, "delta", "walk back");
    start(u);
    for (int64_t chunk = (u->sequence->length + plan->chunk - 1) / plan->chunk - 1; chunk >= 0; chunk--) {
        int64_t t = chunk * plan->chunk;
        int64_t rest = u->sequence->length - t;
        carry_delta_back_chunk(u, t, rest < plan->chunk ? rest : plan->chunk);
        if (u->pauses) {
            u->back->part.pause(u->back->part.user);
        }
    }
    finish(u);
}

static void run_units(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_delta_back *back = argument;
    for (int64_t i = begin; i < end; i++) {
        unit u = {.back = back,
                  .s = &back->scratch[worker],
                  .sequence = &back->part.sequences[i / back->part.heads],
                  .head = back->part.first_head + i % back->part.heads,
                  .pauses = worker == 0 && back->part.pause != NULL};
        run_unit(&u);
    }
}

static void take_scratch(const carry_delta_plan *plan, carry_arena *arena, carry_delta_back_scratch *s) {
    size_t C = (size_t)plan->chunk;
    size_t K = (size_t)plan->problem.key;
    size_t V = (size_t)plan->problem.value;
    carry_delta_rows_take(plan, arena, &s->rows);
    carry_delta_head_take(plan, arena, &s->heads);
    struct {
        float **at;
        size_t floats;
    } all[] = {{&s->weighed, 2 * C * K}, {&s->gradients, 2 * C * V},
               {&s->v, C * V},           {&s->values, C * V},
               {&s->left_k, C * K},      {&s->by_state, 2 * C * K},
               {&s->by_end, C * K},      {&s->by_values, 2 * C * C},
               {&s->on_kk, C * C},       {&s->on_qk, C * C},
               {&s->dq, C * K},          {&s->dk, C * K},
               {&s->dbeta, C},           {&s->norm_k, C},
               {&s->norm_q, C},          {&s->norm_left, C},
               {&s->beside, BLOCK * V}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        *all[i].at = carry_arena_take(arena, all[i].floats, sizeof(float));
    }
    s->dG = carry_arena_take(arena, C, sizeof *s->dG);
    s->key_dG = carry_arena_take(arena, plan->problem.gate == CARRY_DELTA_KEY_GATE ? C * K : 0, sizeof *s->key_dG);
    s->dS = carry_arena_take(arena, (size_t)plan->group * K, V * sizeof(float));
    int64_t rows = plan->chunk;
    int64_t wide = K > V ? plan->problem.key : plan->problem.value;
    s->out_a = carry_delta_panel_take(plan, arena, rows, plan->problem.value);
    s->out_b = carry_delta_panel_take(plan, arena, plan->problem.value, rows);
    s->rows_a = carry_delta_terms_take(plan, arena, rows, plan->problem.value);
    s->values_b = carry_delta_terms_take(plan, arena, plan->problem.value, rows);
    s->state_b = carry_delta_terms_take(plan, arena, wide, wide > rows ? wide : rows);
    for (int i = 0; i < CARRY_DELTA_TRIANGLES; i++) {
        s->triangles[i] = carry_delta_terms_take(plan, arena, rows, rows);
    }
}

bool carry_delta_back_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_back *back) {
    int threads = carry_ctx_threads(plan->ctx);
    size_t heads = (size_t)(plan->sequences * plan->problem.value_heads);
    back->plan = plan;
    back->sequences = carry_arena_take(arena, (size_t)plan->sequences, sizeof *back->sequences);
    back->part =
        (carry_delta_part){.sequences = back->sequences, .count = plan->sequences, .heads = plan->problem.heads};
    back->on_A_log = carry_arena_take(arena, heads, sizeof *back->on_A_log);
    back->on_dt_bias = carry_arena_take(arena, heads, sizeof *back->on_dt_bias);
    back->scratch = carry_arena_take(arena, (size_t)threads, sizeof *back->scratch);
    for (int i = 0; i < threads; i++) {
        carry_delta_back_scratch none;
        take_scratch(plan, arena, back->scratch != NULL ? &back->scratch[i] : &none);
    }
    return !arena->overflowed;
}

carry_status carry_delta_check_gradients(carry_ctx *ctx, const carry_delta_problem *p,
                                         const carry_delta_backward_args *args) {
    CARRY_TRY(carry_delta_check_like(ctx, p, "do", &args->d_o, p->value_heads, p->value));
    CARRY_TRY(carry_delta_check_written(ctx, p, "dq", &args->dq, p->heads, p->key));
    CARRY_TRY(carry_delta_check_written(ctx, p, "dk", &args->dk, p->heads, p->key));
    CARRY_TRY(carry_delta_check_written(ctx, p, "dv", &args->dv, p->value_heads, p->value));
    CARRY_TRY(carry_delta_check_written(ctx, p, "dbeta", &args->dbeta, p->value_heads, 0));
    return args->dg.data != NULL ? carry_delta_check_gate_gradient(ctx, p, &args->dg) : CARRY_OK;
}

carry_status carry_delta_check_state_gradients(carry_ctx *ctx, const carry_delta_problem *p,
                                               const carry_delta_backward_args *args) {
    if (args->dfinal_state.data != NULL) {
        CARRY_TRY(carry_delta_check_state(ctx, p, "dfinal_state", &args->dfinal_state));
    }
    if (args->dinitial_state.data != NULL) {
        CARRY_TRY(carry_delta_check_state(ctx, p, "dinitial_state", &args->dinitial_state));
    }
    if (args->dA_log.data != NULL) {
        CARRY_TRY(carry_delta_check_heads(ctx, p, "dA_log", &args->dA_log));
    }
    return args->ddt_bias.data != NULL ? carry_delta_check_heads(ctx, p, "ddt_bias", &args->ddt_bias) : CARRY_OK;
}

/* Used if nothing was kept: runs the forward pass again, without output, to fill `kept`. */
static void make_kept(carry_delta_plan *plan, const carry_delta_inputs *in, carry_arena *arena, void *kept) {
    CARRY_SPAN(plan->ctx, "delta", "forward again");
    carry_delta_run run = {.in = *in, .kept = kept};
    (void)carry_delta_run_take(plan, arena, &run, plan->problem.value, true);
    carry_delta_run_all(&run);
}

/* Sums over sequences in a fixed order, so that results do not depend on the threads. */
static void sum_heads(const carry_delta_plan *plan, const carry_tensor *to, const double *parts) {
    int64_t heads = plan->problem.value_heads;
    for (int64_t head = 0; to != NULL && head < heads; head++) {
        double sum = 0.0;
        for (int64_t i = 0; i < plan->sequences; i++) {
            sum += parts[i * heads + head];
        }
        ((float *)to->data)[head] = (float)sum;
    }
}

double carry_delta_backward_flops(const carry_delta_plan *plan, bool again) {
    const carry_delta_problem *p = &plan->problem;
    double tokens = (double)(p->batch * p->tokens);
    double C = (double)plan->chunk;
    double triangle = 0.5 * (C + BLOCK);
    double K = (double)p->key;
    double V = (double)p->value;
    double shared = 12.0 * triangle * K;
    double own = 12.0 * K * V + 8.0 * triangle * V;
    double total = tokens * ((double)p->heads * shared + (double)p->value_heads * own);
    return again ? total + carry_delta_forward_flops(plan) : total;
}

void carry_delta_back_start(carry_delta_back *back) {
    size_t heads = (size_t)(back->plan->sequences * back->plan->problem.value_heads);
    memset(back->on_A_log, 0, heads * sizeof *back->on_A_log);
    memset(back->on_dt_bias, 0, heads * sizeof *back->on_dt_bias);
}

void carry_delta_back_part(carry_delta_back *back) {
    carry_parallel(back->plan->ctx, back->part.count * back->part.heads, 1, run_units, back);
}

void carry_delta_back_finish(carry_delta_back *back) {
    sum_heads(back->plan, carry_delta_given(&back->args->dA_log), back->on_A_log);
    sum_heads(back->plan, carry_delta_given(&back->args->ddt_bias), back->on_dt_bias);
}

carry_delta_inputs carry_delta_back_inputs_of(const carry_delta_backward_args *args) {
    return (carry_delta_inputs){.q = &args->q,
                                .k = &args->k,
                                .v = &args->v,
                                .beta = &args->beta,
                                .g = carry_delta_given(&args->g),
                                .initial_state = carry_delta_given(&args->initial_state),
                                .cu_seqlens = carry_delta_given(&args->cu_seqlens),
                                .A_log = carry_delta_given(&args->A_log),
                                .dt_bias = carry_delta_given(&args->dt_bias)};
}

carry_status carry_delta_cpu_backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *workspace,
                                      size_t workspace_bytes) {
    carry_delta_back back = {.args = args, .in = carry_delta_back_inputs_of(args), .kept = args->kept};
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    (void)carry_delta_back_take(plan, &arena, &back);
    if (args->kept == NULL) {
        void *kept = carry_arena_take(&arena, plan->kept, 1);
        make_kept(plan, &back.in, &arena, kept);
        back.kept = kept;
    }
    carry_delta_back_start(&back);
    carry_delta_sequences(plan, &back.in, back.sequences);
    carry_delta_back_part(&back);
    carry_delta_back_finish(&back);
    plan->flops = carry_delta_backward_flops(plan, args->kept == NULL);
    carry_span_work(plan->ctx, plan->flops, (double)(plan->problem.batch * plan->problem.tokens));
    return CARRY_OK;
}
