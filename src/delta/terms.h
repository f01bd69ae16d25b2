/* Products of chunks by the processor's bf16 instructions: f32 operands as sums of bf16 terms (ops/kernels/bf16.h).

   q and k of a bf16 problem are bf16 numbers, and one gate a token multiplies whole rows. So with n the rows' l2 norms,
   which multiply rows too, products with the state and the triangles are products with q and k as they are given, and
   rows of results are multiplied afterwards:

       k S = n (kb S)        k k^T = n (kb kb^T) n        k^T V' = kb^T (n V')

   An exact operand is one term: three products have the accuracy of f32 where two f32 operands need six, and q k^T is
   one. Numbers that are not finite, norms whose products could overflow, and chunks of a few tokens take the f32 path.
   A key gate multiplies every channel by itself: nothing is exact, and six products gain nothing over f32. */
#ifndef CARRY_DELTA_TERMS_H
#define CARRY_DELTA_TERMS_H

#include "delta/chunk.h"

#define CARRY_DELTA_TERMS_CHUNK 32  /* the shortest chunk of a plan that uses terms, and */
#define CARRY_DELTA_TERMS_TOKENS 24 /* the shortest one at the end of a sequence */

/* An operand in terms. */
typedef struct carry_delta_terms {
    const uint16_t *at;
    ptrdiff_t next;
    int terms;
} carry_delta_terms;

/* The bf16 kernels for a problem's chunk products; NULL: f32. */
const carry_bf16 *carry_delta_terms_of(carry_ctx *ctx, const carry_delta_problem *problem);

static inline bool carry_delta_by_terms(const carry_delta_plan *plan) {
    return plan->terms != NULL && plan->chunk >= CARRY_DELTA_TERMS_CHUNK;
}

void carry_delta_panels_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_panels *panels);
/* Room for an operand of bf16 numbers, and for three terms of one. */
uint16_t *carry_delta_panel_take(const carry_delta_plan *plan, carry_arena *arena, int64_t lines, int64_t k);
carry_delta_terms carry_delta_terms_take(const carry_delta_plan *plan, carry_arena *arena, int64_t lines, int64_t k);

/* Of rows that are loaded: their panels, kk and qk, and norms of 1 where there is no l2norm. Sets rows->exact and
   returns it; false: nothing was made. */
bool carry_delta_terms_rows(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                            int64_t head, carry_delta_rows *rows);

/* All panels of an operand of bf16 numbers, of a or of b. */
void carry_delta_terms_pack(const carry_delta_plan *plan, bool of_a, uint16_t *to, const uint16_t *from, ptrdiff_t row,
                            bool across, int64_t lines, int64_t k);

/* Panels of exact numbers. */
static inline carry_delta_terms carry_delta_rows_panels(const uint16_t *panels) {
    return (carry_delta_terms){.at = panels, .next = 0, .terms = 1};
}

/* Splits an operand; false: some number is not finite. `to` and `next` of split are set here. */
bool carry_delta_terms_a(const carry_delta_plan *plan, carry_delta_terms *to, carry_bf16_split split);
bool carry_delta_terms_b(const carry_delta_plan *plan, carry_delta_terms *to, carry_bf16_split split);
/* k of `product` is that of the matrices; the operands are set here. */
void carry_delta_terms_multiply(const carry_delta_plan *plan, carry_delta_terms a, carry_delta_terms b,
                                carry_bf16_terms product);

#endif
