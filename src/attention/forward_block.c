/* Blocks of keys for the forward pass: loads them, computes the scores of queries with them, and adds the weighted sums
   of their values. Products are f32, or tiles of bf16 if the call uses them. */
#include "attention/forward.h"

#include <math.h>

#include "core/tensor.h"
#include "ops/convert.h"
#include "ops/f8.h"
#include "ops/pool.h"
#include "ops/product/triangle.h"

#define FEW 4 /* with at most this many queries, transposing k does not pay: each is a product of k and a vector */

void carry_attention_pack(carry_bf16_pack pack, uint16_t *to, const carry_tensor *from, int64_t head, int64_t first,
                          int64_t count, bool across) {
    const int64_t D = from->shape[2];
    const int64_t lines = across ? D : count;
    const int64_t k = across ? count : D;
    for (int64_t line = 0; line < lines; line += CARRY_ATTENTION_UNIT) {
        const uint16_t *at = carry_attention_at(from, head, first + (across ? 0 : line));
        pack(to + line * carry_attention_padded(k), across ? at + line : at, from->stride[0], across,
             lines - line < CARRY_ATTENTION_UNIT ? lines - line : CARRY_ATTENTION_UNIT, k);
    }
}

static void tiled_scores(const carry_attention_call *c, const carry_attention_scratch *s, int64_t at, int64_t rows,
                         int64_t keys) {
    c->tiled->terms(&(carry_bf16_terms){.m = rows,
                                        .n = keys,
                                        .k = carry_attention_padded(c->D),
                                        .a = s->q_panels + at * carry_attention_padded(c->D),
                                        .b = s->k_panels,
                                        .a_terms = 1,
                                        .b_terms = 1,
                                        .by = s->scales,
                                        .c = s->scores,
                                        .c_row = keys});
}

/* o += scores v. Returns false and does nothing if a score is not finite. */
static bool tiled_values(const carry_attention_call *c, const carry_attention_scratch *s, int64_t at, int64_t rows,
                         int64_t keys) {
    const ptrdiff_t next = (ptrdiff_t)CARRY_ATTENTION_ROWS * CARRY_ATTENTION_KEYS;
    if (!c->tiled->split_a(&(carry_bf16_split){.lines = rows,
                                               .k = keys,
                                               .from = s->scores,
                                               .row = keys,
                                               .terms = CARRY_ATTENTION_TERMS,
                                               .to = s->terms,
                                               .next = next})) {
        return false;
    }
    c->tiled->terms(&(carry_bf16_terms){.m = rows,
                                        .n = c->D,
                                        .k = carry_attention_padded(keys),
                                        .a = s->terms,
                                        .b = s->v_panels,
                                        .a_next = next,
                                        .a_terms = CARRY_ATTENTION_TERMS,
                                        .b_terms = 1,
                                        .order = CARRY_ATTENTION_TERMS - 1,
                                        .base = s->o + at * c->D,
                                        .c = s->o + at * c->D,
                                        .base_row = c->D,
                                        .c_row = c->D});
    return true;
}

/* to [D, rows] = from [rows, D]^T, in squares that stay in the cache. */
static void transpose(float *to, const float *from, int64_t rows, int64_t D) {
    const int64_t side = 16;
    for (int64_t i = 0; i < rows; i += side) {
        for (int64_t j = 0; j < D; j += side) {
            for (int64_t x = i; x < rows && x < i + side; x++) {
                for (int64_t y = j; y < D && y < j + side; y++) {
                    to[y * rows + x] = from[x * D + y];
                }
            }
        }
    }
}

static void plain_scores(const carry_attention_call *c, const carry_attention_scratch *s, const float *k, int64_t at,
                         int64_t rows, int64_t keys) {
    const float *q = s->q + at * c->D;
    carry_product all = {.m = rows,
                         .n = keys,
                         .k = c->D,
                         .count = 1,
                         .a = q,
                         .b = s->turned,
                         .c = s->scores,
                         .a_row = c->D,
                         .b_row = keys,
                         .c_row = keys};
    carry_product each = {.m = keys,
                          .n = 1,
                          .k = c->D,
                          .count = rows,
                          .a = k,
                          .b = q,
                          .c = s->scores,
                          .a_row = c->D,
                          .b_row = 1,
                          .c_row = 1,
                          .b_next = c->D,
                          .c_next = keys};
    c->kernels->product(c->queries > FEW ? &all : &each);
}

bool carry_attention_seen_keys(const carry_attention_call *c, int64_t t, int64_t first, int64_t keys, int64_t *from,
                               int64_t *end) {
    carry_attention_span(c->args, t, from, end);
    *from = *from > first ? *from - first : 0;
    *end = *end - first < keys ? *end - first : keys;
    return *from < *end;
}

/* True if each of these queries sees all of these keys. */
static bool sees_all(const carry_attention_call *c, int64_t query, int64_t queries, int64_t first, int64_t keys) {
    int64_t from;
    int64_t end;
    int64_t unused;
    carry_attention_span(c->args, query, &unused, &end);
    carry_attention_span(c->args, query + queries - 1, &from, &unused);
    return from <= first && end >= first + keys;
}

_Static_assert(CARRY_ATTENTION_KEYS == CARRY_POOL_PAGE, "a block of keys is in one page");

/* The row of a block's first key, in the tensor or in the pool. */
static int64_t row_of_key(const carry_attention_call *c, int64_t first) {
    return c->pages != NULL
               ? (int64_t)c->pages->list[first / CARRY_POOL_PAGE] * CARRY_POOL_PAGE + first % CARRY_POOL_PAGE
               : first;
}

/* Decodes rows of a head in 8 bits. In bf16 this is exact: `to` is then uint16_t. */
static void decode_rows(const carry_attention_call *c, void *to, carry_dtype dtype, const carry_tensor *x,
                        const carry_tensor *scales, int64_t head, int64_t first, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        float row[CARRY_ATTENTION_DIM];
        const uint8_t *codes = carry_attention_at(x, head, first + i);
        const float scale = carry_f8_scale(((const uint8_t *)scales->data)[(first + i) * scales->shape[1] + head]);
        unsigned char *into = (unsigned char *)to + (size_t)(i * c->D) * carry_dtype_size(dtype);
        carry_f8_decode(dtype == CARRY_F32 ? (float *)(void *)into : row, codes, scale, c->D);
        if (dtype != CARRY_F32) {
            carry_narrow(c->kernels, into, row, dtype, c->D);
        }
    }
}

static const carry_tensor *scales_of(const carry_attention_call *c, const carry_tensor *x) {
    return x == &c->args->k ? &c->pages->key_scales : &c->pages->value_scales;
}

/* Rows of k or v in f32. */
static const float *load_rows(const carry_attention_call *c, const carry_tensor *x, int64_t head, int64_t first,
                              int64_t rows, float *into) {
    if (x->dtype != CARRY_F8) {
        return carry_attention_load(c->kernels, x, head, first, rows, into);
    }
    decode_rows(c, into, CARRY_F32, x, scales_of(c, x), head, first, rows);
    return into;
}

/* Rows of k or v in bf16, for tiles: *head and *first become those of the returned tensor. */
static carry_tensor half_rows(const carry_attention_call *c, const carry_tensor *x, int64_t *head, int64_t *first,
                              int64_t rows, void *into) {
    if (x->dtype != CARRY_F8) {
        return *x;
    }
    decode_rows(c, into, CARRY_BF16, x, scales_of(c, x), *head, *first, rows);
    *head = *first = 0;
    return carry_view_3d(into, CARRY_BF16, rows, 1, c->D);
}

/* True if these rows of bf16 are all finite. */
static bool finite_halves(const carry_tensor *x, int64_t head, int64_t first, int64_t rows) {
    const int16_t infinity = 0x7f80;
    int16_t most = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int16_t *row = carry_attention_at(x, head, first + i);
        for (int64_t d = 0; d < x->shape[2]; d++) {
            const int16_t size = (int16_t)(row[d] & INT16_MAX);
            most = size > most ? size : most;
        }
    }
    return most < infinity;
}

/* o += scores v, for the queries from row `at` on. */
static void add_values(const carry_attention_call *c, const carry_attention_scratch *s, const float *v, int64_t at,
                       int64_t rows, int64_t keys) {
    c->kernels->product(&(carry_product){.m = rows,
                                         .n = c->D,
                                         .k = keys,
                                         .count = 1,
                                         .a = s->scores,
                                         .b = v,
                                         .base = s->o + at * c->D,
                                         .c = s->o + at * c->D,
                                         .a_row = keys,
                                         .b_row = c->D,
                                         .base_row = c->D,
                                         .c_row = c->D});
}

/* Copies rows of v, with zeros in place of NaN and infinity: f32 rows, or bf16 rows to be packed into tiles. The weight
   of a key that a query does not see is zero, and zero times NaN or infinity is NaN. With zeros, the results of queries
   that do not see such a value are the same bit for bit as without it; add_bad_values adds it for queries that do. */
static const float *finite_values(const carry_attention_call *c, const carry_attention_scratch *s, const float *v,
                                  int64_t keys) {
    for (int64_t i = 0; i < keys * c->D; i++) {
        s->v[i] = isfinite(v[i]) ? v[i] : 0.0f;
    }
    return s->v;
}

static carry_tensor finite_half_values(const carry_attention_call *c, const carry_attention_scratch *s,
                                       const carry_tensor *v, int64_t head, int64_t first, int64_t keys) {
    uint16_t *to = (uint16_t *)(void *)s->v;
    for (int64_t i = 0; i < keys; i++) {
        const uint16_t *row = carry_attention_at(v, head, first + i);
        for (int64_t d = 0; d < c->D; d++) {
            to[i * c->D + d] = (row[d] & 0x7f80u) != 0x7f80u ? row[d] : 0;
        }
    }
    return carry_view_3d(to, CARRY_BF16, keys, 1, c->D);
}

/* o += weights times the values that finite_values replaced, for the queries that see them. */
static void add_bad_values(const carry_attention_call *c, const carry_attention_scratch *s, int64_t key_head,
                           int64_t query, int64_t at, int64_t rows, int64_t first, int64_t keys) {
    for (int64_t j = 0; j < keys; j++) {
        float memory[CARRY_ATTENTION_DIM];
        const float *row = load_rows(c, &c->args->v, key_head, row_of_key(c, first) + j, 1, memory);
        for (int64_t i = 0; i < rows && !carry_all_finite(row, c->D); i++) {
            int64_t from = 0;
            int64_t end = keys;
            if (c->args->causal &&
                (!carry_attention_seen_keys(c, query + i, first, keys, &from, &end) || j < from || j >= end)) {
                continue;
            }
            for (int64_t d = 0; d < c->D; d++) {
                if (!isfinite(row[d])) {
                    s->o[(at + i) * c->D + d] += s->scores[i * keys + j] * row[d];
                }
            }
        }
    }
}

/* o += weights times values for the weights that are not finite, which become zero: tiles support only finite ones. */
static void add_bad_weights(const carry_attention_call *c, const carry_attention_scratch *s, int64_t key_head,
                            int64_t at, int64_t rows, int64_t first, int64_t keys) {
    for (int64_t i = 0; i < rows * keys; i++) {
        float memory[CARRY_ATTENTION_DIM];
        if (isfinite(s->scores[i])) {
            continue;
        }
        const float *row = load_rows(c, &c->args->v, key_head, row_of_key(c, first) + i % keys, 1, memory);
        for (int64_t d = 0; d < c->D; d++) {
            s->o[(at + i / keys) * c->D + d] += s->scores[i] * row[d];
        }
        s->scores[i] = 0.0f;
    }
}

carry_attention_block carry_attention_load_block(const carry_attention_call *c, const carry_attention_scratch *s,
                                                 int64_t key_head, int64_t query, int64_t queries, int64_t first,
                                                 int64_t keys) {
    const carry_attention_args *args = c->args;
    carry_attention_block b = {.key_head = key_head, .first = first, .keys = keys};
    const int64_t row = row_of_key(c, first);
    if (c->tiled != NULL) {
        int64_t head[2] = {key_head, key_head};
        int64_t from[2] = {row, row};
        const carry_tensor k = half_rows(c, &args->k, &head[0], &from[0], keys, s->k);
        const carry_tensor v = half_rows(c, &args->v, &head[1], &from[1], keys, s->v);
        b.has_bad = !finite_halves(&v, head[1], from[1], keys);
        const carry_tensor finite = b.has_bad ? finite_half_values(c, s, &v, head[1], from[1], keys) : v;
        carry_attention_pack(c->tiled->pack_b, s->k_panels, &k, head[0], from[0], keys, false);
        carry_attention_pack(c->tiled->pack_b, s->v_panels, &finite, b.has_bad ? 0 : head[1], b.has_bad ? 0 : from[1],
                             keys, true);
        return b;
    }
    b.k = load_rows(c, &args->k, key_head, row, keys, s->k);
    b.v = load_rows(c, &args->v, key_head, row, keys, s->v);
    b.has_bad = args->causal && !sees_all(c, query, queries, first, keys) && !carry_all_finite(b.v, keys * c->D);
    b.v = b.has_bad ? finite_values(c, s, b.v, keys) : b.v;
    if (c->queries > FEW) {
        transpose(s->turned, b.k, keys, c->D);
    }
    return b;
}

void carry_attention_scores(const carry_attention_call *c, const carry_attention_scratch *s,
                            const carry_attention_block *b, int64_t at, int64_t rows) {
    if (c->tiled != NULL) {
        tiled_scores(c, s, at, rows, b->keys);
    } else {
        plain_scores(c, s, b->k, at, rows, b->keys);
    }
}

void carry_attention_add_block(const carry_attention_call *c, const carry_attention_scratch *s,
                               const carry_attention_block *b, int64_t query, int64_t at, int64_t rows) {
    if (c->tiled == NULL) {
        add_values(c, s, b->v, at, rows, b->keys);
    } else if (!tiled_values(c, s, at, rows, b->keys)) {
        add_bad_weights(c, s, b->key_head, at, rows, b->first, b->keys);
        (void)tiled_values(c, s, at, rows, b->keys);
    }
    if (b->has_bad) {
        add_bad_values(c, s, b->key_head, query, at, rows, b->first, b->keys);
    }
}
