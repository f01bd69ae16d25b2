/* Loading a chunk, its decays, its triangles, and the triangular solves. */
#include "delta/chunk.h"

#include <math.h>
#include <string.h>

#include "core/span.h"
#include "delta/terms.h"
#include "ops/convert.h"
#include "ops/product/triangle.h"

#define BLOCK CARRY_DELTA_BLOCK
#define NORM_EPSILON 1e-6f

static bool by_key(const carry_delta_plan *plan) {
    return plan->problem.gate == CARRY_DELTA_KEY_GATE;
}

void *carry_delta_place(const carry_tensor *tensor, int64_t batch, int64_t token, int64_t head) {
    ptrdiff_t at = batch * tensor->stride[0] + token * tensor->stride[1] + head * tensor->stride[2];
    return (char *)tensor->data + at * (ptrdiff_t)carry_dtype_size(tensor->dtype);
}

float carry_delta_scalar(const carry_tensor *from, int64_t batch, int64_t token, int64_t head) {
    const void *at = carry_delta_place(from, batch, token, head);
    if (from->dtype == CARRY_F32) {
        return *(const float *)at;
    }
    uint16_t bits = *(const uint16_t *)at;
    return from->dtype == CARRY_BF16 ? carry_f32_from_bf16(bits) : carry_f32_from_f16(bits);
}

void carry_delta_scalar_store(const carry_tensor *to, int64_t batch, int64_t token, int64_t head, float value) {
    void *at = carry_delta_place(to, batch, token, head);
    if (to->dtype == CARRY_F32) {
        *(float *)at = value;
    } else {
        *(uint16_t *)at = to->dtype == CARRY_BF16 ? carry_bf16_from_f32(value) : carry_f16_from_f32(value);
    }
}

void carry_delta_load(const carry_delta_plan *plan, float *to, const carry_tensor *from, int64_t batch, int64_t first,
                      int64_t head, int64_t tokens, int64_t offset, int64_t size) {
    size_t item = carry_dtype_size(from->dtype);
    for (int64_t i = 0; i < tokens; i++) {
        const char *row = (const char *)carry_delta_place(from, batch, first + i, head) + (size_t)offset * item;
        carry_widen(plan->kernels, to + i * size, row, from->dtype, size);
    }
}

void carry_delta_store(const carry_delta_plan *plan, const carry_tensor *to, const float *from, int64_t batch,
                       int64_t first, int64_t head, int64_t tokens, int64_t offset, int64_t size) {
    size_t item = carry_dtype_size(to->dtype);
    for (int64_t i = 0; i < tokens; i++) {
        char *row = (char *)carry_delta_place(to, batch, first + i, head) + (size_t)offset * item;
        carry_narrow(plan->kernels, row, from + i * size, to->dtype, size);
    }
}

void carry_delta_rows_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_rows *rows) {
    size_t C = (size_t)plan->chunk;
    size_t K = (size_t)plan->problem.key;
    rows->q = carry_delta_floats(arena, C * K);
    rows->k = carry_delta_floats(arena, C * K);
    rows->k_across = carry_delta_floats(arena, C * K);
    rows->q_norm = carry_delta_floats(arena, C);
    rows->k_norm = carry_delta_floats(arena, C);
    rows->kk = carry_delta_floats(arena, C * C);
    rows->qk = carry_delta_floats(arena, C * C);
    carry_delta_panels_take(plan, arena, &rows->panels);
}

void carry_delta_head_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_head *head) {
    size_t C = (size_t)plan->chunk;
    size_t K = (size_t)plan->problem.key;
    size_t numbers = by_key(plan) ? C * K : C;
    head->g = carry_delta_floats(arena, numbers);
    head->G = carry_arena_take(arena, numbers, sizeof(double));
    head->fade = carry_delta_floats(arena, numbers);
    head->left = carry_delta_floats(arena, numbers);
    head->end = carry_delta_floats(arena, K);
    head->beta = carry_delta_floats(arena, C);
    head->nA = carry_delta_floats(arena, C * C);
    head->P = carry_delta_floats(arena, C * C);
    head->inverse = carry_delta_floats(arena, C * BLOCK);
    head->D = carry_delta_floats(arena, C * C);
    size_t keys = by_key(plan) ? K : 0;
    head->before = carry_delta_floats(arena, C * keys);
    head->before_k = carry_delta_floats(arena, C * keys);
    head->after = carry_delta_floats(arena, BLOCK * keys);
    head->after_k = carry_delta_floats(arena, BLOCK * keys);
    head->after_q = carry_delta_floats(arena, BLOCK * keys);
}

/* to[i, j] = rows[i] . k[j] for j up to the end of i's block: the rest of the square is never read. */
static void lower_products(const carry_delta_plan *plan, const carry_delta_rows *rows, float *to, const float *from) {
    int64_t K = plan->problem.key;
    for (int64_t i = 0; i < rows->tokens; i += BLOCK) {
        int64_t m = rows->tokens - i < BLOCK ? rows->tokens - i : BLOCK;
        plan->kernels->product(&(carry_product){.m = m,
                                                .n = i + m,
                                                .k = K,
                                                .count = 1,
                                                .a = from + i * K,
                                                .b = rows->k_across,
                                                .c = to + i * plan->chunk,
                                                .a_row = K,
                                                .b_row = plan->chunk,
                                                .c_row = plan->chunk});
    }
}

/* Loads rows of q or k, divided by their norms if l2norm is set. */
static void load_side(const carry_delta_plan *plan, float *to, float *norms, const carry_tensor *from, int64_t batch,
                      int64_t first, int64_t head, int64_t tokens) {
    int64_t K = plan->problem.key;
    bool direct = plan->problem.l2norm && from->dtype == CARRY_F32;
    if (!direct) {
        carry_delta_load(plan, to, from, batch, first, head, tokens, 0, K);
    }
    if (plan->problem.l2norm) {
        const float *rows = direct ? carry_delta_place(from, batch, first, head) : to;
        plan->kernels->rows->unit_rows(to, rows, direct ? from->stride[1] : K, norms, NORM_EPSILON, tokens, K);
    }
}

static void load_rows(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                      int64_t head, int64_t tokens, carry_delta_rows *rows) {
    rows->tokens = tokens;
    load_side(plan, rows->k, rows->k_norm, in->k, batch, first, head, tokens);
    if (rows->with_q) {
        load_side(plan, rows->q, rows->q_norm, in->q, batch, first, head, tokens);
    }
}

void carry_delta_token_load(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t token,
                            int64_t head, carry_delta_rows *rows) {
    rows->with_q = true;
    load_rows(plan, in, batch, token, head, 1, rows);
}

/* Computes the inverse norms of q and k from the given tensors, for products by terms. The result has the same bits
   whether or not q and k are loaded in f32. Returns false and does nothing without l2norm, if the plan or a chunk of
   this length does not use such products, or if the processor has no kernel for it. */
static bool load_norms(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                       int64_t head, const carry_delta_rows *rows) {
    const carry_half_rows *half = plan->kernels->half_rows;
    const int64_t K = plan->problem.key;
    if (half == NULL || !plan->problem.l2norm || !carry_delta_by_terms(plan) ||
        rows->tokens < CARRY_DELTA_TERMS_TOKENS) {
        return false;
    }
    half->unit_norms(rows->k_norm, carry_delta_place(in->k, batch, first, head), in->k->stride[1], NORM_EPSILON,
                     rows->tokens, K);
    if (rows->with_q) {
        half->unit_norms(rows->q_norm, carry_delta_place(in->q, batch, first, head), in->q->stride[1], NORM_EPSILON,
                         rows->tokens, K);
    }
    return true;
}

void carry_delta_rows_in_f32(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                             int64_t head, carry_delta_rows *rows) {
    if (!rows->in_f32) {
        load_rows(plan, in, batch, first, head, rows->tokens, rows);
        (void)load_norms(plan, in, batch, first, head, rows);
        rows->in_f32 = true;
    }
}

void carry_delta_rows_load(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                           int64_t head, int64_t tokens, carry_delta_rows *rows) {
    CARRY_SPAN(plan->ctx, "delta", "rows");
    int64_t K = plan->problem.key;
    rows->tokens = tokens;
    rows->in_f32 = false;
    if (!load_norms(plan, in, batch, first, head, rows) || !rows->norms_suffice) {
        carry_delta_rows_in_f32(plan, in, batch, first, head, rows);
    }
    if (carry_delta_terms_rows(plan, in, batch, first, head, rows)) {
        return;
    }
    carry_delta_rows_in_f32(plan, in, batch, first, head, rows);
    /* With a key gate, carry_delta_head_load computes the triangles with the decays of each channel. */
    if (!by_key(plan)) {
        plan->kernels->transpose(rows->k_across, plan->chunk, rows->k, K, tokens, K);
        lower_products(plan, rows, rows->kk, rows->k);
        if (rows->with_q) {
            lower_products(plan, rows, rows->qk, rows->q);
        }
    }
}

static float sigmoid(float x) {
    return x >= 0.0f ? 1.0f / (1.0f + expf(-x)) : expf(x) / (1.0f + expf(x));
}

void carry_delta_scalars(float *to, const carry_tensor *from, int64_t batch, int64_t first, int64_t head,
                         int64_t tokens) {
    if (from->dtype == CARRY_F32) {
        const float *at = carry_delta_place(from, batch, first, head);
        const ptrdiff_t row = from->stride[1];
        for (int64_t i = 0; i < tokens; i++) {
            to[i] = at[i * row];
        }
        return;
    }
    for (int64_t i = 0; i < tokens; i++) {
        to[i] = carry_delta_scalar(from, batch, first + i, head);
    }
}

static void load_beta(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                      int64_t value_head, int64_t tokens, float *beta) {
    float factor = plan->problem.beta_factor != 0.0f ? plan->problem.beta_factor : 1.0f;
    carry_delta_scalars(beta, in->beta, batch, first, value_head, tokens);
    for (int64_t i = 0; plan->problem.beta_sigmoid && i < tokens; i++) {
        beta[i] = factor * sigmoid(beta[i]);
    }
}

/* Computes row i of an inverse again if it is not finite. The usual code multiplies the factors also by the zeros to
   the right of the diagonal; 0 times a factor that is NaN or infinite is NaN. */
static void careful_row(float *row, const float *factors, const float *inverse, int64_t i) {
    memset(row, 0, BLOCK * sizeof *row);
    row[i] = 1.0f;
    for (int64_t j = 0; j < i; j++) {
        for (int64_t c = 0; c <= j; c++) {
            row[c] += factors[j] * inverse[j * BLOCK + c];
        }
    }
}

/* Inverts every diagonal block of I + A. */
static void invert_blocks(const carry_delta_plan *plan, const carry_delta_head *head, int64_t tokens) {
    for (int64_t block = 0; block < tokens; block += BLOCK) {
        int64_t size = tokens - block < BLOCK ? tokens - block : BLOCK;
        const float *below = head->nA + block * plan->chunk + block;
        float *inverse = head->inverse + block * BLOCK;
        plan->kernels->rows->unit_inverse(inverse, below, plan->chunk, size);
        if (carry_all_finite(inverse, size * BLOCK)) {
            continue;
        }
        for (int64_t i = 0; i < size; i++) {
            if (!carry_all_finite(inverse + i * BLOCK, BLOCK)) {
                careful_row(inverse + i * BLOCK, below + i * plan->chunk, inverse, i);
            }
        }
    }
}

void carry_delta_token_head_load(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch,
                                 int64_t token, int64_t value_head, carry_delta_head *head) {
    load_beta(plan, in, batch, token, value_head, 1, head->beta);
    carry_delta_gate_load(plan, in, batch, token, value_head, 1, head->g);
    carry_delta_gate_end(plan, head, head->g);
}

void carry_delta_head_load(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                           int64_t value_head, const carry_delta_rows *rows, carry_delta_head *head) {
    CARRY_SPAN(plan->ctx, "delta", "triangles");
    load_beta(plan, in, batch, first, value_head, rows->tokens, head->beta);
    carry_delta_gate_load(plan, in, batch, first, value_head, rows->tokens, head->g);
    carry_delta_gate_sum(plan, head, rows->tokens);
    if (by_key(plan)) {
        carry_delta_key_triangles(plan, rows, head);
    } else {
        plan->kernels->rows->triangles(
            &(carry_triangles){.tokens = rows->tokens,
                               .stride = plan->chunk,
                               .G = plan->problem.gate != CARRY_DELTA_NO_GATE ? head->G : NULL,
                               .kk = rows->kk,
                               .qk = rows->with_q ? rows->qk : NULL, /* without q, P is not read */
                               .beta = head->beta,
                               .scale = plan->scale,
                               .D = head->D,
                               .nA = head->nA,
                               .P = head->P});
    }
    invert_blocks(plan, head, rows->tokens);
}

/* to = inverse * beside, or inverse^T * beside. */
static void solve_block(const carry_delta_plan *plan, const float *inverse, int64_t size, float *beside, float *to,
                        int64_t columns, bool transposed) {
    carry_triangle_product(plan->kernels,
                           &(carry_product){.m = size,
                                            .n = columns,
                                            .k = size,
                                            .count = 1,
                                            .a = inverse,
                                            .b = beside,
                                            .c = to,
                                            .a_row = BLOCK,
                                            .b_row = columns,
                                            .c_row = columns,
                                            .a_transposed = transposed},
                           beside, 0, transposed);
}

void carry_delta_solve(const carry_delta_plan *plan, const carry_delta_head *head, int64_t tokens, float *X,
                       int64_t columns, float *beside) {
    CARRY_SPAN(plan->ctx, "delta", "solve");
    for (int64_t block = 0; block < tokens; block += BLOCK) {
        int64_t size = tokens - block < BLOCK ? tokens - block : BLOCK;
        float *here = X + block * columns;
        plan->kernels->product(&(carry_product){.m = size, /* the rows above; nA holds -A */
                                                .n = columns,
                                                .k = block,
                                                .count = 1,
                                                .a = head->nA + block * plan->chunk,
                                                .b = X,
                                                .base = here,
                                                .c = beside,
                                                .a_row = plan->chunk,
                                                .b_row = columns,
                                                .base_row = columns,
                                                .c_row = columns});
        solve_block(plan, head->inverse + block * BLOCK, size, beside, here, columns, false);
    }
}

void carry_delta_solve_transposed(const carry_delta_plan *plan, const carry_delta_head *head, int64_t tokens, float *X,
                                  int64_t columns, float *beside) {
    for (int64_t block = (tokens - 1) / BLOCK * BLOCK; block >= 0; block -= BLOCK) {
        int64_t size = tokens - block < BLOCK ? tokens - block : BLOCK;
        int64_t after = block + size;
        float *here = X + block * columns;
        plan->kernels->product(&(carry_product){.m = size, /* the rows below, transposed */
                                                .n = columns,
                                                .k = tokens - after,
                                                .count = 1,
                                                .a = head->nA + after * plan->chunk + block,
                                                .b = X + after * columns,
                                                .base = here,
                                                .c = beside,
                                                .a_row = plan->chunk,
                                                .b_row = columns,
                                                .base_row = columns,
                                                .c_row = columns,
                                                .a_transposed = true});
        solve_block(plan, head->inverse + block * BLOCK, size, beside, here, columns, true);
    }
}

void carry_delta_scale_rows(const carry_delta_plan *plan, float *to, const float *from, const float *by,
                            const float *factor, float constant, int64_t tokens) {
    int64_t K = plan->problem.key;
    float scales[CARRY_DELTA_MAX_CHUNK];
    for (int64_t i = 0; i < tokens; i++) {
        scales[i] = constant * (factor != NULL ? factor[i] : 1.0f) * (by_key(plan) ? 1.0f : by[i]);
    }
    if (!by_key(plan)) {
        plan->kernels->rows->scale_rows(to, K, from, K, scales, tokens, K);
        return;
    }
    for (int64_t i = 0; i < tokens; i++) {
        for (int64_t j = 0; j < K; j++) {
            to[i * K + j] = scales[i] * by[i * K + j] * from[i * K + j];
        }
    }
}
