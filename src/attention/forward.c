/* Attention by blocks with an online softmax. A unit of work is one head and one block of queries; it walks the keys
   run by run, block by block, and holds for each query the largest score so far m, the sum l of exp(score - m), and
   o = sum exp(score - m) v. When a block has a larger score, the sums so far are scaled down to it. At the end o / l
   is the result, and m + ln l is lse, relative to the largest bias. No block of keys is in two runs, so a block has
   one bias, which shifts m.

   Units do not depend on the number of threads, so results do not either. */
#include <math.h>
#include <string.h>

#include "attention/device.h"
#include "attention/forward.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "ops/convert.h"
#include "ops/pool.h"

/* With fewer queries or narrower heads, a tile would be half empty. */
#define TILED_QUERIES 32

/* True if the call may use tiles, so that the workspace needs memory for them. A caller may query the size of the
   workspace without a context and without v. So the processor does not count here, and only q is read; the other
   tensors have its type. */
static bool may_be_tiled(const carry_attention_call *c) {
    return c->args->q.dtype == CARRY_BF16 && c->queries >= TILED_QUERIES && c->D >= CARRY_ATTENTION_UNIT;
}

static void take_scratch(const carry_attention_call *c, carry_arena *arena, carry_attention_scratch *s) {
    size_t Q = (size_t)c->queries;
    size_t D = (size_t)c->D;
    size_t keys = (size_t)(c->S < CARRY_ATTENTION_KEYS ? c->S : CARRY_ATTENTION_KEYS);
    s->q = carry_arena_take(arena, Q * D, sizeof(float));
    s->o = carry_arena_take(arena, Q * D, sizeof(float));
    s->k = carry_arena_take(arena, keys * D, sizeof(float));
    s->v = carry_arena_take(arena, keys * D, sizeof(float));
    s->turned = carry_arena_take(arena, keys * D, sizeof(float));
    s->scores = carry_arena_take(arena, CARRY_ATTENTION_ROWS * keys, sizeof(float));
    s->most = carry_arena_take(arena, Q, sizeof(float));
    s->sum = carry_arena_take(arena, Q, sizeof(float));
    if (c->tiled != NULL || may_be_tiled(c)) {
        const size_t width = (size_t)carry_attention_padded(c->D);
        s->q_panels = carry_arena_take(arena, (size_t)carry_attention_padded(c->queries) * width, sizeof(uint16_t));
        s->k_panels = carry_arena_take(arena, CARRY_ATTENTION_KEYS * width, sizeof(uint16_t));
        s->v_panels = carry_arena_take(arena, CARRY_ATTENTION_KEYS * width, sizeof(uint16_t));
        s->terms = carry_arena_take(arena, (size_t)CARRY_ATTENTION_TERMS * CARRY_ATTENTION_ROWS * CARRY_ATTENTION_KEYS,
                                    sizeof(uint16_t));
        s->scales = carry_arena_take(arena, CARRY_ATTENTION_ROWS, sizeof(float));
    }
}

static const carry_bf16 *tiled_of(carry_ctx *ctx, const carry_attention_call *c) {
    const carry_dtype keys = c->args->k.dtype; /* 8-bit floats become bf16 without rounding */
    const bool is_read = keys == CARRY_BF16 || keys == CARRY_F8;
    const carry_bf16 *by = may_be_tiled(c) && is_read ? carry_bf16_of(ctx) : NULL;
    return by != NULL && by->terms != NULL && by->rows == CARRY_ATTENTION_UNIT && by->columns == CARRY_ATTENTION_UNIT &&
                   by->unit == CARRY_ATTENTION_UNIT
               ? by
               : NULL;
}

static void call_of(carry_attention_call *c, const carry_attention_args *args) {
    *c = (carry_attention_call){.args = args,
                                .T = args->q.shape[0],
                                .D = args->q.shape[2],
                                .S = args->k.shape[0],
                                .scale = carry_attention_scale(args)};
    c->blocks = c->T > 0 ? (c->T - 1) / CARRY_ATTENTION_QUERIES + 1 : 0;
    c->queries = c->T > 0 ? (c->T - 1) / c->blocks + 1 : 0; /* equal sizes, so that no short block is left over */
}

static size_t place_bytes(const carry_attention_call *c) {
    carry_arena arena = carry_arena_over(NULL, 0);
    carry_attention_scratch none;
    take_scratch(c, &arena, &none);
    return arena.used;
}

/* Replaces the scores of one query by exp(score - m), and updates m, l and o to the new m. The shift is chosen so that
   no exponent is positive, even if adding a large bias was rounded. */
static void soften(const carry_attention_call *c, const carry_attention_scratch *s, int64_t i, float *scores,
                   int64_t keys, float bias) {
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

/* The same for a causal call: weights of keys that query t does not see become zero. */
static void soften_seen(const carry_attention_call *c, const carry_attention_scratch *s, int64_t t, int64_t i,
                        int64_t first, int64_t keys, float bias, float *scores) {
    int64_t from;
    int64_t end;
    if (!carry_attention_seen_keys(c, t, first, keys, &from, &end)) {
        memset(scores, 0, (size_t)keys * sizeof *scores);
        return;
    }
    memset(scores, 0, (size_t)from * sizeof *scores);
    memset(scores + end, 0, (size_t)(keys - end) * sizeof *scores);
    soften(c, s, i, scores + from, end - from, bias);
}

/* True if any of these queries sees any of these keys. */
static bool is_seen(const carry_attention_call *c, int64_t query, int64_t queries, int64_t first, int64_t keys) {
    int64_t from;
    int64_t end;
    int64_t unused;
    carry_attention_span(c->args, query, &from, &unused);
    carry_attention_span(c->args, query + queries - 1, &unused, &end);
    return first < end && first + keys > from;
}

static void key_block(const carry_attention_call *c, const carry_attention_scratch *s, int64_t head, int64_t query,
                      int64_t queries, int64_t first, int64_t keys, float bias) {
    const carry_attention_args *args = c->args;
    if (args->causal && !is_seen(c, query, queries, first, keys)) {
        return;
    }
    const carry_attention_block b =
        carry_attention_load_block(c, s, carry_attention_key_head(args, head), query, queries, first, keys);
    for (int64_t at = 0; at < queries; at += CARRY_ATTENTION_ROWS) {
        int64_t rows = queries - at < CARRY_ATTENTION_ROWS ? queries - at : CARRY_ATTENTION_ROWS;
        if (args->causal && !is_seen(c, query + at, rows, first, keys)) {
            continue;
        }
        carry_attention_scores(c, s, &b, at, rows);
        for (int64_t i = 0; i < rows && !args->causal; i++) {
            soften(c, s, at + i, s->scores + i * keys, keys, bias);
        }
        for (int64_t i = 0; i < rows && args->causal; i++) {
            soften_seen(c, s, query + at + i, at + i, first, keys, bias, s->scores + i * keys);
        }
        carry_attention_add_block(c, s, &b, query + at, at, rows);
    }
}

static void store(const carry_attention_call *c, const carry_attention_scratch *s, int64_t head, int64_t first,
                  int64_t queries) {
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
    const carry_attention_call *c = given;
    int64_t head = unit / c->blocks;
    int64_t first = unit % c->blocks * c->queries;
    int64_t queries = c->T - first < c->queries ? c->T - first : c->queries;
    carry_arena arena = carry_arena_over(memory, place_bytes(c));
    carry_attention_scratch s = {0};
    take_scratch(c, &arena, &s);
    if (c->tiled != NULL) {
        carry_attention_pack(c->tiled->pack_a, s.q_panels, &c->args->q, head, first, queries, false);
        for (int64_t i = 0; i < CARRY_ATTENTION_ROWS; i++) {
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
        for (int64_t done = 0; done < run->count; done += CARRY_ATTENTION_KEYS) {
            int64_t keys = run->count - done < CARRY_ATTENTION_KEYS ? run->count - done : CARRY_ATTENTION_KEYS;
            key_block(c, &s, head, first, queries, run->first + done, keys, run->bias);
        }
    }
    store(c, &s, head, first, queries);
}

static carry_status forward_here(carry_ctx *ctx, const carry_attention_args *args, const carry_attention_pages *pages,
                                 void *workspace) {
    carry_attention_call c;
    call_of(&c, args);
    c.pages = pages;
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

/* The bytes of a workspace that begins at a multiple of CARRY_ALIGN. */
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
    carry_attention_call c;
    call_of(&c, args);
    int64_t units;
    if (__builtin_mul_overflow(q->shape[1], c.blocks, &units)) {
        return 0;
    }
    return (size_t)carry_attention_places(units) * place_bytes(&c);
}

/* Returns 0 for a call that carry_attention refuses before it checks the workspace. */
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
    return forward_here(ctx, args, NULL, workspace);
}

/* The same call with keys and values in the type of q, as they are copied on a device. */
static carry_attention_args in_one_type(const carry_attention_args *args) {
    carry_attention_args one = *args;
    one.k.dtype = one.v.dtype = args->q.dtype;
    return one;
}

/* On a device, keys and values are copied into the workspace, in the order of tokens. */
static void take_copies(const carry_attention_args *args, carry_arena *arena, carry_tensor copy[2]) {
    for (int i = 0; i < 2; i++) {
        copy[i] = carry_arena_tensor(arena, args->k.device, args->q.dtype, 3, args->k.shape);
    }
}

size_t carry_attention_paged_workspace(const carry_attention_args *args) {
    const carry_attention_args one = in_one_type(args);
    const size_t own = carry_attention_workspace(&one);
    carry_arena count = carry_arena_over(NULL, 0);
    carry_tensor copy[2];
    size_t copies;
    if (args->q.device == 0) {
        return own;
    }
    take_copies(args, &count, copy);
    return carry_arena_total(&count, &copies) && copies < SIZE_MAX - own ? own + copies : SIZE_MAX;
}

static carry_tensor flat_rows(const carry_tensor *x) {
    return carry_reshape_2d(*x, x->shape[0], x->shape[1] * x->shape[2]);
}

static carry_status take_copy(carry_ctx *ctx, const carry_tensor *to, const carry_tensor *from, carry_tensor scales,
                              const int32_t *list) {
    carry_f8_pool pool = {.numbers = *from, .scales = scales};
    pool.numbers.shape[0] = scales.shape[0]; /* all rows of the pool */
    return from->dtype == CARRY_F8 ? carry_take_pages_f8(ctx, *to, pool, list)
                                   : carry_take_pages(ctx, flat_rows(to), flat_rows(from), list);
}

static carry_status check_scales(carry_ctx *ctx, const carry_attention_args *args, const carry_attention_pages *pages) {
    const bool has_scales = pages->key_scales.data != NULL && pages->value_scales.data != NULL;
    return args->k.dtype == args->v.dtype && (args->k.dtype == CARRY_F8) == has_scales
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EDTYPE,
                            "keys in pages are %s and values %s, %s scales: expected one type, and "
                            "scales for 8-bit floats",
                            carry_dtype_name(args->k.dtype), carry_dtype_name(args->v.dtype),
                            has_scales ? "with" : "without");
}

carry_status carry_attention_paged(carry_ctx *ctx, const carry_attention_args *args, const carry_attention_pages *pages,
                                   void *workspace, size_t bytes) {
    carry_attention_args one = in_one_type(args);
    CARRY_TRY(check_scales(ctx, args, pages));
    if (args->q.device == 0) {
        CARRY_TRY(carry_attention_check(ctx, &one));
        CARRY_TRY(carry_attention_check_workspace(ctx, workspace, bytes, carry_attention_workspace(&one)));
        carry_attention_align(&workspace, &bytes);
        return forward_here(ctx, args, pages, workspace);
    }
    carry_arena arena = carry_arena_over(workspace, bytes);
    carry_tensor copy[2];
    CARRY_TRY(carry_attention_check_workspace(ctx, workspace, bytes, carry_attention_paged_workspace(args)));
    take_copies(args, &arena, copy);
    CARRY_TRY(take_copy(ctx, &copy[0], &args->k, pages->key_scales, pages->list));
    CARRY_TRY(take_copy(ctx, &copy[1], &args->v, pages->value_scales, pages->list));
    one.k = copy[0];
    one.v = copy[1];
    return carry_attention(ctx, &one, (unsigned char *)workspace + arena.used, bytes - arena.used);
}
