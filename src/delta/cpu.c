/* The methods of the CPU: token by token, and chunks of several sizes, which share their functions. */
#include <math.h>

#include "delta/backward.h"
#include "delta/forward.h"
#include "delta/terms.h"

static bool applies(const carry_delta_plan *plan, char *why, size_t why_size) {
    (void)plan;
    (void)why;
    (void)why_size;
    return true;
}

/* Work per token and value head, in units of a flop in a product. Chunks of C cost 6KV + (C + 16)(2K H/HV + 2V) at the
   rate of products. Single tokens cost 7KV at a rate 3.5 times lower, bounded by the L1 cache. C is at most the length
   of the sequence. Products of 16 rows run at about 0.8 of the rate of 64. Chunks add an overhead of 1000 for each
   token and 40000 for each chunk. The factors are measured (docs/results/delta.md).

   With terms (terms.h), products with the state take three times the operations at 12 times the rate, but the state is
   split once for each chunk, and the solves stay in f32. This is an estimate (docs/attempts/bf16-cpu.md). */
static double cost(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    double K = (double)p->key;
    double V = (double)p->value;
    if (plan->method->chunk == 0) {
        return 3.5 * 7.0 * K * V;
    }
    double length = (double)p->tokens * (double)p->batch / (double)(p->sequences > 0 ? p->sequences : p->batch);
    double C = fmin((double)plan->method->chunk, fmax(length, 1.0));
    double share = (double)p->heads / (double)p->value_heads;
    if (carry_delta_by_terms(plan)) {
        double products = 18.0 * K * V + C * (4.5 * V + 4.0 * K * share);
        return products / 12.0 + 40.0 * K * V / C + 80.0 * V + 25.0 * C + (C + 16.0) * V + 1000.0 + 40000.0 / C;
    }
    double small = 1.0 + 4.0 / C;
    return small * (6.0 * K * V + (C + 16.0) * (2.0 * K * share + 2.0 * V)) + 1000.0 + 40000.0 / C;
}

static bool workspace(carry_delta_plan *plan) {
    carry_arena cut = carry_arena_over(NULL, 0);
    carry_arena whole = carry_arena_over(NULL, 0);
    carry_arena pair = carry_arena_over(NULL, 0);
    carry_arena backward = carry_arena_over(NULL, 0);
    carry_delta_run run = {0};
    carry_delta_back back = {0};
    size_t a = 0;
    size_t b = 0;
    const carry_delta_problem *p = &plan->problem;
    if (!carry_delta_run_take(plan, &cut, &run, p->value, true) ||
        !carry_delta_run_take(plan, &whole, &run, p->value, false) || !carry_arena_total(&cut, &a) ||
        !carry_arena_total(&whole, &b)) {
        return false;
    }
    plan->forward_workspace = a > b ? a : b;
    if (!carry_delta_run_take(plan, &pair, &run, p->value + p->key, true) ||
        !carry_arena_total(&pair, &plan->range_workspace)) {
        return false;
    }
    size_t states = (size_t)carry_delta_most_chunks(plan) * (size_t)(p->value_heads * p->key * p->value);
    size_t corrected = (size_t)(p->batch * p->tokens) * (size_t)(p->value_heads * p->value);
    plan->kept = (states + corrected) * sizeof(float);
    if (!carry_delta_back_take(plan, &backward, &back) || !carry_arena_total(&backward, &plan->backward_workspace)) {
        return false;
    }
    /* If the caller kept nothing: space for the kept data and for the forward pass that computes it. */
    return carry_size_add(&plan->backward_workspace, plan->backward_workspace, plan->forward_workspace) &&
           carry_size_add(&plan->backward_workspace, plan->backward_workspace, plan->kept + 2 * CARRY_ALIGN);
}

#define ENTRY(title, summary, tokens)                                                                     \
    {                                                                                                     \
        .name = (title), .about = (summary), .chunk = (tokens), .applies = applies, .cost = cost,         \
        .workspace = workspace, .forward = carry_delta_cpu_forward, .backward = carry_delta_cpu_backward, \
        .step = carry_delta_cpu_step, .range = carry_delta_cpu_range                                      \
    }

const carry_delta_method carry_delta_cpu_recurrent = ENTRY("recurrent", "token by token", 0);
const carry_delta_method carry_delta_cpu_chunk16 = ENTRY("chunk16", "chunks of 16 tokens as matrix products", 16);
const carry_delta_method carry_delta_cpu_chunk32 = ENTRY("chunk32", "chunks of 32", 32);
const carry_delta_method carry_delta_cpu_chunk64 = ENTRY("chunk64", "chunks of 64", 64);
const carry_delta_method carry_delta_cpu_chunk128 = ENTRY("chunk128", "chunks of 128", 128);
