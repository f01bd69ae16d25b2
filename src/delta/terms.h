/* Products of chunks by the processor's bf16 instructions: f32 operands as sums of bf16 terms (ops/kernels/bf16.h).

   q and k of a bf16 problem are bf16 numbers, and one gate for each token multiplies whole rows. The inverse l2
   norms n of the rows multiply whole rows too. So products with the state and the triangles can use q and k as given
   (qb, kb), and the rows of the results are multiplied afterwards:

       k S = n (kb S)        k k^T = n (kb kb^T) n        k^T V' = kb^T (n V')

   An exact operand is one term: three products reach the accuracy of f32, where two f32 operands would need six,
   and q k^T needs only one. Numbers that are not finite, norms whose products could overflow, and chunks of a few
   tokens take the f32 path. A key gate multiplies every channel by a different factor, so no operand is exact, and
   six products are no faster than f32. */
#ifndef CARRY_DELTA_TERMS_H
#define CARRY_DELTA_TERMS_H

#include "delta/chunk.h"

#define CARRY_DELTA_TERMS_CHUNK 32  /* the shortest chunk of a plan that uses terms */
#define CARRY_DELTA_TERMS_TOKENS 24 /* the shortest one at the end of a sequence */

/* An operand split into terms. */
typedef struct carry_delta_terms {
    const uint16_t *at;
    ptrdiff_t next;
    int terms;
} carry_delta_terms;

/* The bf16 kernels for a problem's chunk products, or NULL to use f32. */
const carry_bf16 *carry_delta_terms_of(carry_ctx *ctx, const carry_delta_problem *problem);

static inline bool carry_delta_by_terms(const carry_delta_plan *plan) {
    return plan->terms != NULL && plan->chunk >= CARRY_DELTA_TERMS_CHUNK;
}

void carry_delta_panels_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_panels *panels);
/* Memory for an operand of bf16 numbers, and for three terms of an operand. */
uint16_t *carry_delta_panel_take(const carry_delta_plan *plan, carry_arena *arena, int64_t lines, int64_t k);
carry_delta_terms carry_delta_terms_take(const carry_delta_plan *plan, carry_arena *arena, int64_t lines, int64_t k);

/* For loaded rows: computes their panels, kk and qk, and sets norms to 1 if there is no l2norm. Sets rows->exact and
   returns it; if false, nothing was computed. */
bool carry_delta_terms_rows(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                            int64_t head, carry_delta_rows *rows);

/* Packs all panels of an operand of bf16 numbers: the left one (of_a) or the right one. */
void carry_delta_terms_pack(const carry_delta_plan *plan, bool of_a, uint16_t *to, const uint16_t *from, ptrdiff_t row,
                            bool across, int64_t lines, int64_t k);

/* Panels of an exact operand, as its only term. */
static inline carry_delta_terms carry_delta_rows_panels(const uint16_t *panels) {
    return (carry_delta_terms){.at = panels, .next = 0, .terms = 1};
}

/* Splits an operand into terms. Returns false if a number is not finite. Sets `to` and `next` of split. */
bool carry_delta_terms_a(const carry_delta_plan *plan, carry_delta_terms *to, carry_bf16_split split);
bool carry_delta_terms_b(const carry_delta_plan *plan, carry_delta_terms *to, carry_bf16_split split);
/* Multiplies a and b. product.k is the inner dimension of the matrices; the operands in product are set here. */
void carry_delta_terms_multiply(const carry_delta_plan *plan, carry_delta_terms a, carry_delta_terms b,
                                carry_bf16_terms product);

#endif
