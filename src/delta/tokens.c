/* Token by token: the recurrence as it is written, for decoding and for short sequences. */
#include <string.h>

#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "delta/forward.h"

/* Loads one token's row of q and k, gate and beta, with the same functions as a chunk of one token. */
static void load_token(const carry_delta_run *run, carry_delta_scratch *s, const carry_delta_sequence *sequence,
                       int64_t head, int64_t t) {
    carry_delta_token_load(run->plan, &run->in, sequence->batch, sequence->start + t, head, &s->rows);
    int64_t K = run->plan->problem.key;
    for (int64_t i = 0; i < K; i++) {
        s->rows.q[i] *= run->plan->scale;
    }
}

/* Stores some columns of the state before a token that starts a chunk of the backward pass. */
static void keep_state(const carry_delta_run *run, const carry_delta_sequence *sequence, int64_t value_head, int64_t t,
                       int64_t first, int64_t columns, const float *S, ptrdiff_t stride) {
    const carry_delta_plan *plan = run->plan;
    const carry_delta_problem *p = &plan->problem;
    if (t % plan->chunk != 0) {
        return;
    }
    float *to = carry_delta_kept_state(plan, run->kept, sequence->chunk_start + t / plan->chunk, value_head);
    for (int64_t i = 0; i < p->key; i++) {
        memcpy(to + i * p->value + first, S + i * stride, (size_t)columns * sizeof *S);
    }
}

void carry_delta_tokens(const carry_delta_run *run, carry_delta_scratch *scratch, const carry_delta_sequence *sequence,
                        int64_t head, int64_t t, int64_t first, int64_t columns, float *S, ptrdiff_t stride,
                        ptrdiff_t next) {
    const carry_delta_plan *plan = run->plan;
    carry_delta_scratch *s = scratch;
    int64_t K = plan->problem.key;
    load_token(run, s, sequence, head, t);
    for (int64_t member = 0; member < plan->group; member++) {
        int64_t value_head = head * plan->group + member;
        carry_delta_token_head_load(plan, &run->in, sequence->batch, sequence->start + t, value_head, &s->heads);
        for (int64_t i = 0; i < K; i++) {
            s->fade_k[i] = s->heads.end[i] * s->rows.k[i];
        }
        float *u = NULL;
        if (run->kept != NULL) {
            const int64_t token = sequence->batch * plan->problem.tokens + sequence->start + t;
            keep_state(run, sequence, value_head, t, first, columns, S + member * next, stride);
            u = carry_delta_kept_values(plan, run->kept, token, value_head) + first;
        }
        carry_delta_load(plan, s->X, run->in.v, sequence->batch, sequence->start + t, value_head, 1, first, columns);
        plan->kernels->delta_token(&(carry_delta_token){.rows = K,
                                                        .columns = columns,
                                                        .S = S + member * next,
                                                        .stride = stride,
                                                        .q = s->rows.q,
                                                        .k = s->rows.k,
                                                        .faded_k = s->fade_k,
                                                        .decay = s->heads.end,
                                                        .v = s->X,
                                                        .o = s->O,
                                                        .u = u,
                                                        .beta = s->heads.beta[0]});
        if (run->o != NULL) {
            carry_delta_store(plan, run->o, s->O, sequence->batch, sequence->start + t, value_head, 1, first, columns);
        }
    }
}

/* A step updates the caller's state in place. Only a transposed state is copied through scratch. */
static void step_units(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_delta_run *run = argument;
    const carry_delta_plan *plan = run->plan;
    const carry_delta_problem *p = &plan->problem;
    carry_delta_scratch *s = &run->scratch[worker];
    for (int64_t i = begin; i < end; i++) {
        int64_t index = i / p->heads;
        int64_t head = i % p->heads;
        int64_t at = carry_delta_state_at(plan, &run->sequences[index], head * plan->group);
        if (!p->state_transposed) {
            float *S = (float *)run->final_state->data + at * p->key * p->value;
            carry_delta_tokens(run, s, &run->sequences[index], head, 0, 0, p->value, S, p->value, p->key * p->value);
            continue;
        }
        for (int64_t member = 0; member < plan->group; member++) {
            carry_delta_state_load(plan, s->S + member * p->key * p->value, p->value, run->final_state->data,
                                   at + member, 0, p->value);
        }
        carry_delta_tokens(run, s, &run->sequences[index], head, 0, 0, p->value, s->S, p->value, p->key * p->value);
        for (int64_t member = 0; member < plan->group; member++) {
            carry_delta_state_store(plan, run->final_state->data, at + member, s->S + member * p->key * p->value,
                                    p->value, 0, p->value);
        }
    }
}

carry_status carry_delta_cpu_step(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                  const int32_t *slots, const carry_delta_forward_args *inputs, void *workspace,
                                  size_t workspace_bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    carry_delta_run run = {.in = carry_delta_inputs_of(inputs), .o = o, .final_state = state};
    run.in.initial_state = NULL;
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    (void)carry_delta_run_take(plan, &arena, &run, p->value, false);
    carry_delta_sequences(plan, &run.in, run.sequences);
    for (int64_t i = 0; slots != NULL && i < plan->sequences; i++) {
        run.sequences[i].index = slots[i];
    }
    /* A thread takes contiguous states: the kernel fetches the next one while it writes this one. */
    int64_t units = plan->sequences * p->heads;
    int64_t grain = (units + carry_ctx_threads(ctx) - 1) / carry_ctx_threads(ctx);
    carry_parallel(ctx, units, grain, step_units, &run);
    plan->flops = (double)(p->batch * p->value_heads) * 7.0 * (double)(p->key * p->value);
    carry_span_work(ctx, plan->flops, (double)p->batch);
    return CARRY_OK;
}
