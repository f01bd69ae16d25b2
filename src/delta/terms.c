/* Products of chunks by bf16 instructions. */
#include "delta/terms.h"

#include "core/span.h"
#include "ops/product/bf16.h"
#include "ops/product/triangle.h"

#define LEAST_SIZE 32 /* least K and V: smaller ones leave more than half of a tile of 32 empty */
/* Padding of panels of q and k and of terms, so that their sizes are not powers of two (as in carry_delta_floats). */
#define APART 160
/* Rows longer than 2^20 could overflow in products that are divided by their norms afterwards. */
#define LEAST_NORM 0x1p-20f

static int64_t padded(int64_t size, int64_t unit) {
    return (size + unit - 1) / unit * unit;
}

const carry_bf16 *carry_delta_terms_of(carry_ctx *ctx, const carry_delta_problem *p) {
    if (p->dtype != CARRY_BF16 || p->gate == CARRY_DELTA_KEY_GATE || p->key < LEAST_SIZE || p->value < LEAST_SIZE) {
        return NULL;
    }
    const carry_bf16 *by = carry_bf16_of(ctx);
    return by != NULL && by->terms != NULL ? by : NULL;
}

static uint16_t *take(const carry_delta_plan *plan, carry_arena *arena, int64_t lines, int64_t k, int terms) {
    const carry_bf16 *by = plan->terms;
    const int64_t panel = by->rows > by->columns ? by->rows : by->columns;
    const size_t one = (size_t)(padded(lines, panel) * padded(k, by->unit) + APART);
    return carry_arena_take(arena, (size_t)terms * one, sizeof(uint16_t));
}

void carry_delta_panels_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_panels *panels) {
    const int64_t C = plan->chunk;
    const int64_t K = plan->problem.key;
    *panels = (carry_delta_panels){0};
    if (!carry_delta_by_terms(plan)) {
        return;
    }
    panels->q = take(plan, arena, C, K, 1);
    panels->k = take(plan, arena, C, K, 1);
    panels->k_columns = take(plan, arena, C, K, 1);
    panels->q_across = take(plan, arena, K, C, 1);
    panels->k_across = take(plan, arena, K, C, 1);
}

uint16_t *carry_delta_panel_take(const carry_delta_plan *plan, carry_arena *arena, int64_t lines, int64_t k) {
    return carry_delta_by_terms(plan) ? take(plan, arena, lines, k, 1) : NULL;
}

carry_delta_terms carry_delta_terms_take(const carry_delta_plan *plan, carry_arena *arena, int64_t lines, int64_t k) {
    if (!carry_delta_by_terms(plan)) {
        return (carry_delta_terms){0};
    }
    return (carry_delta_terms){.at = take(plan, arena, lines, k, 3)};
}

void carry_delta_terms_pack(const carry_delta_plan *plan, bool of_a, uint16_t *to, const uint16_t *from, ptrdiff_t row,
                            bool across, int64_t lines, int64_t k) {
    const carry_bf16 *by = plan->terms;
    const int64_t panel = of_a ? by->rows : by->columns;
    for (int64_t line = 0; line < lines; line += panel) {
        const int64_t count = lines - line < panel ? lines - line : panel;
        (of_a ? by->pack_a : by->pack_b)(to + line * padded(k, by->unit), from + (across ? line : line * row), row,
                                         across, count, k);
    }
}

static bool norms_allow(const float *norms, int64_t tokens) {
    bool all = true;
    for (int64_t i = 0; i < tokens; i++) {
        all = all && norms[i] >= LEAST_NORM; /* a row with a NaN or an infinity has a norm of NaN or 0 */
    }
    return all;
}

/* True if products can go by terms. Sets the norms to 1 if there is no l2norm. */
static bool allowed(const carry_delta_plan *plan, carry_delta_rows *rows) {
    if (!carry_delta_by_terms(plan) || rows->tokens < CARRY_DELTA_TERMS_TOKENS) {
        return false;
    }
    if (plan->problem.l2norm) {
        return norms_allow(rows->k_norm, rows->tokens) && (!rows->with_q || norms_allow(rows->q_norm, rows->tokens));
    }
    for (int64_t i = 0; i < rows->tokens; i++) {
        rows->k_norm[i] = rows->q_norm[i] = 1.0f;
    }
    const int64_t count = rows->tokens * plan->problem.key;
    return carry_all_finite(rows->k, count) && (!rows->with_q || carry_all_finite(rows->q, count));
}

/* to = norms (side k^T) k_norm. */
static void lower_products(const carry_delta_plan *plan, const carry_delta_rows *rows, float *to,
                           const uint16_t *panels, const float *norms) {
    carry_delta_terms_multiply(plan, carry_delta_rows_panels(panels), carry_delta_rows_panels(rows->panels.k_columns),
                               (carry_bf16_terms){.m = rows->tokens,
                                                  .n = rows->tokens,
                                                  .k = plan->problem.key,
                                                  .by = norms,
                                                  .columns_by = rows->k_norm,
                                                  .c = to,
                                                  .c_row = plan->chunk});
}

bool carry_delta_terms_rows(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                            int64_t head, carry_delta_rows *rows) {
    rows->exact = allowed(plan, rows);
    if (!rows->exact) {
        return false;
    }
    const int64_t K = plan->problem.key;
    const carry_delta_panels *panels = &rows->panels;
    const uint16_t *k = carry_delta_place(in->k, batch, first, head);
    carry_delta_terms_pack(plan, true, panels->k, k, in->k->stride[1], false, rows->tokens, K);
    carry_delta_terms_pack(plan, true, panels->k_across, k, in->k->stride[1], true, K, rows->tokens);
    carry_delta_terms_pack(plan, false, panels->k_columns, k, in->k->stride[1], false, rows->tokens, K);
    lower_products(plan, rows, rows->kk, panels->k, rows->k_norm);
    if (rows->with_q) {
        const uint16_t *q = carry_delta_place(in->q, batch, first, head);
        carry_delta_terms_pack(plan, true, panels->q, q, in->q->stride[1], false, rows->tokens, K);
        if (rows->with_q_across) {
            carry_delta_terms_pack(plan, true, panels->q_across, q, in->q->stride[1], true, K, rows->tokens);
        }
        lower_products(plan, rows, rows->qk, panels->q, rows->q_norm);
    }
    return true;
}

static carry_bf16_split ready(const carry_delta_plan *plan, carry_delta_terms *to, carry_bf16_split split,
                              int64_t panel) {
    split.to = (uint16_t *)(uintptr_t)to->at;
    split.next = padded(split.lines, panel) * padded(split.k, plan->terms->unit) + APART;
    to->next = split.next;
    to->terms = split.terms;
    return split;
}

bool carry_delta_terms_a(const carry_delta_plan *plan, carry_delta_terms *to, carry_bf16_split split) {
    split = ready(plan, to, split, plan->terms->rows);
    return plan->terms->split_a(&split);
}

bool carry_delta_terms_b(const carry_delta_plan *plan, carry_delta_terms *to, carry_bf16_split split) {
    split = ready(plan, to, split, plan->terms->columns);
    return plan->terms->split_b(&split);
}

void carry_delta_terms_multiply(const carry_delta_plan *plan, carry_delta_terms a, carry_delta_terms b,
                                carry_bf16_terms product) {
    product.k = padded(product.k, plan->terms->unit);
    product.a = a.at;
    product.b = b.at;
    product.a_next = a.next;
    product.b_next = b.next;
    product.a_terms = a.terms;
    product.b_terms = b.terms;
    plan->terms->terms(&product);
}
