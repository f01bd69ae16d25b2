/* Attention by blocks with an online softmax. A unit of work is one head and one block of queries; it walks the keys
   run by run, block by block, and holds for each query the largest score so far m, the sum l of exp(score - m), and
   o = sum exp(score - m) v. When a block has a larger score, what was summed is scaled down to it. At the end o / l is
   the result and m + ln l is lse, both less the largest bias. No block of keys is in two runs, so a bias is one number
   for a block: it shifts m.

   Units do not depend on the number of threads, so neither do results. */
#include <math.h>
#include <string.h>

#include "attention/attention.h"
#include "attention/device.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "ops/convert.h"
#include "ops/product/bf16.h"
#include "ops/product/triangle.h"

/* Keys are widened and transposed once for a block of queries, which is tall to pay for it. Scores are made for a few
   rows of it at a time: those, their part of q and o, K^T and V are 32 KB each with D = 128. */
#define QUERIES 256
#define ROWS 64
#define KEYS 64
#define FEW 4
/* Where the processor multiplies tiles of bf16 (kernels/bf16.h: terms): q, k and v are exact, and exp(score - m) is two
   terms, within 2^-18. Below so many queries and so wide heads a tile would be half empty. */
#define TILED_QUERIES 32
#define TILED_TERMS 2
#define UNIT 32 /* of the k of panels, and their lines */

typedef struct call {
    const carry_attention_args *args;
    const carry_kernels *kernels;
    carry_key_run seen[CARRY_MAX_KEY_RUNS];
    int runs;
    int64_t T, D, S;
    int64_t blocks, queries; /* of a head, and in each but the last */
    const carry_bf16 *tiled; /* NULL: products of f32 */
    float scale;
} call;

typedef struct scratch {
    float *q, *o;
    float *k, *v, *turned; /* a block of keys; turned is k^T */
    float *scores;
    float *most, *sum;
    uint16_t *q_panels, *k_panels, *v_panels, *terms;
    float *scales;
} scratch;

_Static_assert(ROWS % UNIT == 0 && KEYS % UNIT == 0, "panels of a block are whole");

static int64_t padded(int64_t size) {
    return (size + UNIT - 1) / UNIT * UNIT;
}

/* Whatever the processor has: a workspace is asked for without a context. By q alone, whose type all have: who asks for
   a workspace need not have v yet. */
static bool may_be_tiled(const call *c) {
    return c->args->q.dtype == CARRY_BF16 && c->queries >= TILED_QUERIES && c->D >= UNIT;
}

static void take_scratch(const call *c, carry_arena *arena, scratch *s) {
    size_t Q = (size_t)c->queries;
    size_t D = (size_t)c->D;
    size_t keys = (size_t)(c->S < KEYS ? c->S : KEYS);
    s->q = carry_arena_take(arena, Q * D, sizeof(float));
    s->o = carry_arena_take(arena, Q * D, sizeof(float));
    s->k = carry_arena_take(arena, keys * D, sizeof(float));
    s->v = carry_arena_take(arena, keys * D, sizeof(float));
    s->turned = carry_arena_take(arena, keys * D, sizeof(float));
    s->scores = carry_arena_take(arena, ROWS * keys, sizeof(float));
    s->most = carry_arena_take(arena, Q, sizeof(float));
    s->sum = carry_arena_take(arena, Q, sizeof(float));
    if (c->tiled != NULL || may_be_tiled(c)) {
        const size_t width = (size_t)padded(c->D);
        s->q_panels = carry_arena_take(arena, (size_t)padded(c->queries) * width, sizeof(uint16_t));
        s->k_panels = carry_arena_take(arena, KEYS * width, sizeof(uint16_t));
        s->v_panels = carry_arena_take(arena, KEYS * width, sizeof(uint16_t));
        s->terms = carry_arena_take(arena, (size_t)TILED_TERMS * ROWS * KEYS, sizeof(uint16_t));
        s->scales = carry_arena_take(arena, ROWS, sizeof(float));
    }
}

static const carry_bf16 *tiled_of(carry_ctx *ctx, const call *c) {
    const carry_bf16 *by = may_be_tiled(c) ? carry_bf16_of(ctx) : NULL;
    return by != NULL && by->terms != NULL && by->rows == UNIT && by->columns == UNIT && by->unit == UNIT ? by : NULL;
}

/* Rows first..first+count-1 of a head in panels: rows are lines, or `across` k. */
static void pack_rows(carry_bf16_pack pack, uint16_t *to, const carry_tensor *from, int64_t head, int64_t first,
                      int64_t count, bool across) {
    const int64_t D = from->shape[2];
    const int64_t lines = across ? D : count;
    const int64_t k = across ? count : D;
    for (int64_t line = 0; line < lines; line += UNIT) {
        const uint16_t *at = carry_attention_at(from, head, first + (across ? 0 : line));
        pack(to + line * padded(k), across ? at + line : at, from->stride[0], across,
             lines - line < UNIT ? lines - line : UNIT, k);
    }
}

static void tiled_scores(const call *c, const scratch *s, int64_t at, int64_t rows, int64_t keys) {
    c->tiled->terms(&(carry_bf16_terms){.m = rows,
                                        .n = keys,
                                        .k = padded(c->D),
                                        .a = s->q_panels + at * padded(c->D),
                                        .b = s->k_panels,
                                        .a_terms = 1,
                                        .b_terms = 1,
                                        .by = s->scales,
                                        .c = s->scores,
                                        .c_row = keys});
}

/* o += scores v; false: some score is not finite, and nothing was done. */
static bool tiled_values(const call *c, const scratch *s, int64_t at, int64_t rows, int64_t keys) {
    const ptrdiff_t next = (ptrdiff_t)ROWS * KEYS;
    if (!c->tiled->split_a(&(carry_bf16_split){.lines = rows,
                                               .k = keys,
                                               .from = s->scores,
                                               .row = keys,
                                               .terms = TILED_TERMS,
                                               .to = s->terms,
                                               .next = next})) {
        return false;
    }
    c->tiled->terms(&(carry_bf16_terms){.m = rows,
                                        .n = c->D,
                                        .k = padded(keys),
                                        .a = s->terms,
                                        .b = s->v_panels,
                                        .a_next = next,
                                        .a_terms = TILED_TERMS,
                                        .b_terms = 1,
                                        .order = TILED_TERMS - 1,
                                        .base = s->o + at * c->D,
                                        .c = s->o + at * c->D,
                                        .base_row = c->D,
                                        .c_row = c->D});
    return true;
}

static void call_of(call *c, const carry_attention_args *args) {
    *c = (call){.args = args,
                .T = args->q.shape[0],
                .D = args->q.shape[2],
                .S = args->k.shape[0],
                .scale = carry_attention_scale(args)};
    c->blocks = c->T > 0 ? (c->T - 1) / QUERIES + 1 : 0;
    c->queries = c->T > 0 ? (c->T - 1) / c->blocks + 1 : 0; /* even: no short block is left over */
}

static size_t place_bytes(const call *c) {
    carry_arena arena = carry_arena_over(NULL, 0);
    scratch none;
    take_scratch(c, &arena, &none);
    return arena.used;
}

/* to [D, rows] = from [rows, D]^T, by squares that stay in the cache. */
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

/* Scores of one query to exp(score - m), and m, l, o to the new m. The shift is chosen so that no exponent exceeds 0,
   whatever a large bias rounded away. */
static void soften(const call *c, const scratch *s, int64_t i, float *scores, int64_t keys, float bias) {
    const carry_rows *rows = c->kernels->rows;
    float most = rows->maximum(scores, keys);
    float minus = s->most[i] - bias;
    minus = minus > most ? minus : most;
    if (most + bias > s->most[i]) {
        float factor = expf(s->most[i] - (most + bias));
        rows->scale(s->o + i * c->D, factor, c->D);
        s->sum[i] *= factor;
        s->most[i] = most + bias;
        minus = most;
    }
    s->sum[i] += rows->sum_exp(scores, scores, minus > -INFINITY ? minus : 0.0f, keys);
}

/* scores [rows, keys] of the queries from `at` on. For a few queries k is not worth turning: each is k times a vector.
 */
static void make_scores(const call *c, const scratch *s, const float *k, int64_t at, int64_t rows, int64_t keys) {
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

/* Which of the keys first..first+keys-1 query t sees: *from..*end-1, relative to first. False: it sees none of them. */
static bool seen_keys(const call *c, int64_t t, int64_t first, int64_t keys, int64_t *from, int64_t *end) {
    carry_attention_span(c->args, t, from, end);
    *from = *from > first ? *from - first : 0;
    *end = *end - first < keys ? *end - first : keys;
    return *from < *end;
}

/* The scores of a causal call: those of keys that query t does not see become zeros. */
static void soften_seen(const call *c, const scratch *s, int64_t t, int64_t i, int64_t first, int64_t keys, float bias,
                        float *scores) {
    int64_t from;
    int64_t end;
    if (!seen_keys(c, t, first, keys, &from, &end)) {
        memset(scores, 0, (size_t)keys * sizeof *scores);
        return;
    }
    memset(scores, 0, (size_t)from * sizeof *scores);
    memset(scores + end, 0, (size_t)(keys - end) * sizeof *scores);
    soften(c, s, i, scores + from, end - from, bias);
}

/* Is any of these keys seen by any of these queries? */
static bool is_seen(const call *c, int64_t query, int64_t queries, int64_t first, int64_t keys) {
    int64_t from;
    int64_t end;
    int64_t unused;
    carry_attention_span(c->args, query, &from, &unused);
    carry_attention_span(c->args, query + queries - 1, &unused, &end);
    return first < end && first + keys > from;
}

/* Does each of these queries see all of these keys? */
static bool sees_all(const call *c, int64_t query, int64_t queries, int64_t first, int64_t keys) {
    int64_t from;
    int64_t end;
    int64_t unused;
    carry_attention_span(c->args, query, &unused, &end);
    carry_attention_span(c->args, query + queries - 1, &from, &unused);
    return from <= first && end >= first + keys;
}

/* Are these rows of bf16 all finite? */
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

/* o += scores v of the queries from row `at` on. */
static void add_values(const call *c, const scratch *s, const float *v, int64_t at, int64_t rows, int64_t keys) {
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

/* Rows of v, packed, with zeros in place of NaN and infinity: f32 rows, or those of bf16 that are packed into tiles.
   The weight of a key that a query does not see is zero, and zero times NaN or infinity is NaN. With zeros, queries
   that do not see such a value have the bits that they have without it; add_bad_values adds it for the others. */
static const float *finite_values(const call *c, const scratch *s, const float *v, int64_t keys) {
    for (int64_t i = 0; i < keys * c->D; i++) {
        s->v[i] = isfinite(v[i]) ? v[i] : 0.0f;
    }
    return s->v;
}

static carry_tensor finite_half_values(const call *c, const scratch *s, int64_t key_head, int64_t first, int64_t keys) {
    uint16_t *to = (uint16_t *)(void *)s->v;
    for (int64_t i = 0; i < keys; i++) {
        const uint16_t *row = carry_attention_at(&c->args->v, key_head, first + i);
        for (int64_t d = 0; d < c->D; d++) {
            to[i * c->D + d] = (row[d] & 0x7f80u) != 0x7f80u ? row[d] : 0;
        }
    }
    return carry_view_3d(to, CARRY_BF16, keys, 1, c->D);
}

/* o += weights times the values that finite_values left out, of the queries that see them. */
static void add_bad_values(const call *c, const scratch *s, int64_t key_head, int64_t query, int64_t at, int64_t rows,
                           int64_t first, int64_t keys) {
    for (int64_t j = 0; j < keys; j++) {
        float row[CARRY_ATTENTION_DIM];
        const carry_tensor *v = &c->args->v;
        carry_widen(c->kernels, row, carry_attention_at(v, key_head, first + j), v->dtype, c->D);
        for (int64_t i = 0; i < rows && !carry_all_finite(row, c->D); i++) {
            int64_t from = 0;
            int64_t end = keys;
            if (c->args->causal && (!seen_keys(c, query + i, first, keys, &from, &end) || j < from || j >= end)) {
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

/* o += weights times values for the weights that are not finite, which become zero: tiles take finite ones only. */
static void add_bad_weights(const call *c, const scratch *s, int64_t key_head, int64_t at, int64_t rows, int64_t first,
                            int64_t keys) {
    for (int64_t i = 0; i < rows * keys; i++) {
        float row[CARRY_ATTENTION_DIM];
        const carry_tensor *v = &c->args->v;
        if (isfinite(s->scores[i])) {
            continue;
        }
        carry_widen(c->kernels, row, carry_attention_at(v, key_head, first + i % keys), v->dtype, c->D);
        for (int64_t d = 0; d < c->D; d++) {
            s->o[(at + i / keys) * c->D + d] += s->scores[i] * row[d];
        }
        s->scores[i] = 0.0f;
    }
}

/* A block of keys, loaded for the queries of a unit. */
typedef struct block {
    int64_t key_head, first, keys;
    const float *k, *v; /* f32; with tiles both are in panels */
    bool has_bad;       /* v has zeros in place of NaN and infinity */
} block;

static block load_block(const call *c, const scratch *s, int64_t key_head, int64_t query, int64_t queries,
                        int64_t first, int64_t keys) {
    const carry_attention_args *args = c->args;
    block b = {.key_head = key_head, .first = first, .keys = keys};
    if (c->tiled != NULL) {
        b.has_bad = !finite_halves(&args->v, key_head, first, keys);
        const carry_tensor finite = b.has_bad ? finite_half_values(c, s, key_head, first, keys) : args->v;
        pack_rows(c->tiled->pack_b, s->k_panels, &args->k, key_head, first, keys, false);
        pack_rows(c->tiled->pack_b, s->v_panels, &finite, b.has_bad ? 0 : key_head, b.has_bad ? 0 : first, keys, true);
        return b;
    }
    b.k = carry_attention_load(c->kernels, &args->k, key_head, first, keys, s->k);
    b.v = carry_attention_load(c->kernels, &args->v, key_head, first, keys, s->v);
    b.has_bad = args->causal && !sees_all(c, query, queries, first, keys) && !carry_all_finite(b.v, keys * c->D);
    b.v = b.has_bad ? finite_values(c, s, b.v, keys) : b.v;
    if (c->queries > FEW) {
        transpose(s->turned, b.k, keys, c->D);
    }
    return b;
}

/* o += weights times values, of the queries from row `at` on. */
static void add_block(const call *c, const scratch *s, const block *b, int64_t query, int64_t at, int64_t rows) {
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

static void key_block(const call *c, const scratch *s, int64_t head, int64_t query, int64_t queries, int64_t first,
                      int64_t keys, float bias) {
    const carry_attention_args *args = c->args;
    if (args->causal && !is_seen(c, query, queries, first, keys)) {
        return;
    }
    const block b = load_block(c, s, carry_attention_key_head(args, head), query, queries, first, keys);
    for (int64_t at = 0; at < queries; at += ROWS) {
        int64_t rows = queries - at < ROWS ? queries - at : ROWS;
        if (args->causal && !is_seen(c, query + at, rows, first, keys)) {
            continue;
        }
        if (c->tiled != NULL) {
            tiled_scores(c, s, at, rows, keys);
        } else {
            make_scores(c, s, b.k, at, rows, keys);
        }
        for (int64_t i = 0; i < rows && !args->causal; i++) {
            soften(c, s, at + i, s->scores + i * keys, keys, bias);
        }
        for (int64_t i = 0; i < rows && args->causal; i++) {
            soften_seen(c, s, query + at + i, at + i, first, keys, bias, s->scores + i * keys);
        }
        add_block(c, s, &b, query + at, at, rows);
    }
}

static void store(const call *c, const scratch *s, int64_t head, int64_t first, int64_t queries) {
    const carry_attention_args *args = c->args;
    float *lse = args->lse.data;
    for (int64_t i = 0; i < queries; i++) {
        bool none = s->sum[i] == 0.0f;
        float *o = s->o + i * c->D;
        c->kernels->rows->scale(o, none ? 0.0f : 1.0f / s->sum[i], c->D);
        carry_narrow(c->kernels, carry_attention_at(&args->o, head, first + i), o, args->o.dtype, c->D);
        if (lse != NULL) {
            lse[head * c->T + first + i] = none ? -INFINITY : s->most[i] + logf(s->sum[i]);
        }
    }
}

static void run_unit(const void *given, void *memory, int64_t unit) {
    const call *c = given;
    int64_t head = unit / c->blocks;
    int64_t first = unit % c->blocks * c->queries;
    int64_t queries = c->T - first < c->queries ? c->T - first : c->queries;
    carry_arena arena = carry_arena_over(memory, place_bytes(c));
    scratch s = {0};
    take_scratch(c, &arena, &s);
    if (c->tiled != NULL) {
        pack_rows(c->tiled->pack_a, s.q_panels, &c->args->q, head, first, queries, false);
        for (int64_t i = 0; i < ROWS; i++) {
            s.scales[i] = c->scale;
        }
    } else {
        carry_attention_load_scaled(c->kernels, &c->args->q, head, first, queries, c->scale, s.q);
    }
    memset(s.o, 0, (size_t)(queries * c->D) * sizeof *s.o);
    for (int64_t i = 0; i < queries; i++) {
        s.most[i] = -INFINITY;
        s.sum[i] = 0.0f;
    }
    for (int r = 0; r < c->runs; r++) {
        const carry_key_run *run = &c->seen[r];
        for (int64_t done = 0; done < run->count; done += KEYS) {
            int64_t keys = run->count - done < KEYS ? run->count - done : KEYS;
            key_block(c, &s, head, first, queries, run->first + done, keys, run->bias);
        }
    }
    store(c, &s, head, first, queries);
}

static carry_status forward_here(carry_ctx *ctx, const carry_attention_args *args, void *workspace) {
    call c;
    call_of(&c, args);
    CARRY_TRY(carry_kernels_of(ctx, &c.kernels));
    c.runs = carry_attention_runs(args, c.seen);
    c.tiled = tiled_of(ctx, &c);
    CARRY_SPAN(ctx, "attention", "forward");
    double seen = 0.0;
    for (int r = 0; r < c.runs; r++) {
        seen += (double)c.seen[r].count;
    }
    int64_t H = args->q.shape[1];
    carry_span_work(ctx, 4.0 * (double)H * (double)c.T * seen * (double)c.D, (double)c.T);
    carry_attention_parallel(ctx, &(carry_attention_job){.unit = run_unit,
                                                         .call = &c,
                                                         .scratch = workspace,
                                                         .scratch_bytes = place_bytes(&c),
                                                         .units = H * c.blocks});
    return CARRY_OK;
}

/* Of a workspace that begins at a multiple of CARRY_ALIGN. */
static size_t aligned_workspace(const carry_attention_args *args) {
    const carry_tensor *q = &args->q;
    if (q->rank != 3 || args->k.rank != 3 || q->shape[0] < 0 || q->shape[1] < 0 || args->k.shape[0] < 0 ||
        q->shape[2] < 1 || q->shape[2] > CARRY_ATTENTION_DIM) {
        return 0;
    }
    if (q->device != 0) {
        int ordinal;
        const carry_attention_device *device = carry_attention_device_of(q->device, &ordinal);
        return device != NULL ? device->workspace(args) : 0;
    }
    call c;
    call_of(&c, args);
    int64_t units;
    if (__builtin_mul_overflow(q->shape[1], c.blocks, &units)) {
        return 0;
    }
    return (size_t)carry_attention_places(units) * place_bytes(&c);
}

/* 0 for a call that carry_attention refuses before it looks at the workspace. */
size_t carry_attention_workspace(const carry_attention_args *args) {
    return carry_attention_with_spare(aligned_workspace(args));
}

carry_status carry_attention(carry_ctx *ctx, const carry_attention_args *args, void *workspace,
                             size_t workspace_bytes) {
    const int device = args->q.device;
    int ordinal;
    const carry_attention_device *there = device != 0 ? carry_attention_device_of(device, &ordinal) : NULL;
    if (device != 0 && there == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "attention has no entry for device %d in this build", device);
    }
    CARRY_TRY(carry_attention_check(ctx, args));
    size_t needed = carry_attention_workspace(args);
    CARRY_TRY(carry_attention_check_workspace(ctx, workspace, workspace_bytes, needed));
    if (there != NULL) {
        if (needed > 0) {
            CARRY_TRY(carry_device_check_pointer(ctx, "the workspace", workspace, device));
        }
        carry_attention_align(&workspace, &workspace_bytes);
        return there->forward(ctx, args, ordinal, carry_ctx_stream(ctx, device), workspace, workspace_bytes);
    }
    carry_attention_align(&workspace, &workspace_bytes);
    return forward_here(ctx, args, workspace);
}
