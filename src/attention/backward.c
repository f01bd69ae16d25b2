/* The backward pass by blocks. Probabilities are recomputed from lse. With mean[t] = dO[t].O[t]:

       P = exp(scale Q K^T + bias - lse);   dP = dO V^T;   dS = P (dP - mean)
       dV += P^T dO;   dK += scale dS^T Q;   dQ = scale dS K

   A unit of work is one head of keys, with the heads of queries that read it, and one group of blocks of keys. It
   holds dK and dV of a block while it walks the queries, and adds to a separate dQ of all queries. Groups depend on
   the shape alone and their dQ are summed in order, so results do not depend on the number of threads, and no
   product is computed twice. */
#include <math.h>
#include <string.h>

#include "attention/attention.h"
#include "attention/device.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "ops/convert.h"
#include "ops/product/triangle.h"

#define QUERIES 128
#define KEYS 128
/* The number of threads to keep busy, if there are enough keys. Each unit needs a dQ in f32. */
#define UNITS 16

typedef struct call {
    const carry_attention_backward_args *args;
    const carry_kernels *kernels;
    carry_key_run seen[CARRY_MAX_KEY_RUNS];
    int runs;
    int64_t T, H, HK, D, S;
    int64_t blocks; /* blocks of queries */
    int64_t key_blocks, groups;
    float scale;
    float *mean; /* [H, T] */
    float *dq;   /* [H, groups, T, D] */
} call;

typedef struct scratch {
    float *q, *d_o, *k, *v;
    float *finite; /* k with zeros in place of NaN and infinity */
    float *p, *ds;
    float *dk, *dv;
} scratch;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void take_scratch(const call *c, carry_arena *arena, scratch *s) {
    size_t Q = (size_t)least(c->T, QUERIES);
    size_t K = (size_t)least(c->S, KEYS);
    size_t D = (size_t)c->D;
    s->q = carry_arena_take(arena, Q * D, sizeof(float));
    s->d_o = carry_arena_take(arena, Q * D, sizeof(float));
    s->k = carry_arena_take(arena, K * D, sizeof(float));
    s->v = carry_arena_take(arena, K * D, sizeof(float));
    s->finite = carry_arena_take(arena, K * D, sizeof(float));
    s->dk = carry_arena_take(arena, K * D, sizeof(float));
    s->dv = carry_arena_take(arena, K * D, sizeof(float));
    s->p = carry_arena_take(arena, Q * K, sizeof(float));
    s->ds = carry_arena_take(arena, Q * K, sizeof(float));
}

static size_t place_bytes(const call *c) {
    carry_arena arena = carry_arena_over(NULL, 0);
    scratch none;
    take_scratch(c, &arena, &none);
    return arena.used;
}

static void call_of(call *c, const carry_attention_backward_args *args) {
    const carry_attention_args *f = &args->forward;
    *c = (call){.args = args,
                .T = f->q.shape[0],
                .H = f->q.shape[1],
                .HK = f->k.shape[1],
                .D = f->q.shape[2],
                .S = f->k.shape[0],
                .scale = carry_attention_scale(f)};
    c->runs = carry_attention_runs(f, c->seen);
    for (int r = 0; r < c->runs; r++) {
        c->key_blocks += c->seen[r].count > 0 ? (c->seen[r].count - 1) / KEYS + 1 : 0;
    }
    c->blocks = c->T > 0 ? (c->T - 1) / QUERIES + 1 : 0;
    c->groups = c->HK > 0 && c->HK < UNITS ? least((UNITS - 1) / c->HK + 1, c->key_blocks) : 1;
    c->groups = c->groups > 0 ? c->groups : 1;
}

static unsigned char *take(call *c, carry_arena *arena) {
    c->mean = carry_arena_take(arena, (size_t)c->H, (size_t)c->T * sizeof(float));
    c->dq = carry_arena_take(arena, (size_t)(c->H * c->groups), (size_t)(c->T * c->D) * sizeof(float));
    return carry_arena_take(arena, (size_t)carry_attention_places(c->HK * c->groups), place_bytes(c));
}

/* mean[t] = dO[t].O[t], which is sum_j P[t,j] dP[t,j]. */
static void mean_unit(const void *given, void *memory, int64_t unit) {
    const call *c = given;
    const carry_tensor *o = &c->args->forward.o;
    int64_t head = unit / c->blocks;
    int64_t first = unit % c->blocks * QUERIES;
    (void)memory;
    for (int64_t t = first; t < least(first + QUERIES, c->T); t++) {
        float o_row[CARRY_ATTENTION_DIM];
        float d_row[CARRY_ATTENTION_DIM];
        double sum = 0.0;
        carry_widen(c->kernels, o_row, carry_attention_at(o, head, t), o->dtype, c->D);
        carry_widen(c->kernels, d_row, carry_attention_at(&c->args->d_o, head, t), o->dtype, c->D);
        for (int64_t d = 0; d < c->D; d++) {
            sum += (double)o_row[d] * (double)d_row[d];
        }
        c->mean[head * c->T + t] = (float)sum;
    }
}

/* to [m, n] = a [m, k] b [n, k]^T. */
static void product_transposed(const call *c, int64_t m, int64_t n, const float *a, const float *b, float *to) {
    c->kernels->product(&(carry_product){.m = m,
                                         .n = n,
                                         .k = c->D,
                                         .count = 1,
                                         .a = a,
                                         .b = b,
                                         .c = to,
                                         .a_row = c->D,
                                         .b_row = c->D,
                                         .c_row = n,
                                         .b_transposed = true});
}

/* to [m, D] += a b, where a is [m, k], or [k, m] if transposed. */
static void product_added(const call *c, int64_t m, int64_t k, const float *a, bool a_transposed, const float *b,
                          float *to) {
    c->kernels->product(&(carry_product){.m = m,
                                         .n = c->D,
                                         .k = k,
                                         .count = 1,
                                         .a = a,
                                         .b = b,
                                         .base = to,
                                         .c = to,
                                         .a_row = a_transposed ? m : k,
                                         .b_row = c->D,
                                         .base_row = c->D,
                                         .c_row = c->D,
                                         .a_transposed = a_transposed});
}

/* Computes one row of P and dS. Keys that query t does not see get zeros. */
static void soften(const call *c, int64_t t, int64_t key, int64_t keys, float minus, float mean, float *p, float *ds) {
    int64_t from;
    int64_t end;
    carry_attention_span(&c->args->forward, t, &from, &end);
    from = least(from > key ? from - key : 0, keys);
    end = least(end - key, keys);
    end = end > from ? end : from;
    memset(p, 0, (size_t)from * sizeof *p);
    memset(ds, 0, (size_t)from * sizeof *ds);
    memset(p + end, 0, (size_t)(keys - end) * sizeof *p);
    memset(ds + end, 0, (size_t)(keys - end) * sizeof *ds);
    c->kernels->rows->softmax_backward(p + from, ds + from, minus, mean, end - from);
}

/* k as the right operand of dQ = dS K. dS of a key that a query does not see is zero, but zero times NaN is NaN, so NaN
   and infinity are replaced by zeros. Queries that see such a key get NaN through its dS, unless its score is
   -infinity: P and dS are then zero. */
static const float *finite_keys(const call *c, const scratch *s, const float *k, int64_t keys) {
    if (carry_all_finite(k, keys * c->D)) {
        return k;
    }
    for (int64_t i = 0; i < keys * c->D; i++) {
        s->finite[i] = isfinite(k[i]) ? k[i] : 0.0f;
    }
    return s->finite;
}

/* finite: k as above. */
static void query_block(const call *c, const scratch *s, int64_t head, int64_t first, const float *k,
                        const float *finite, const float *v, int64_t key, int64_t keys, float bias, float *dq) {
    const carry_attention_args *f = &c->args->forward;
    const float *lse = (const float *)f->lse.data + head * c->T + first;
    const float *mean = c->mean + head * c->T + first;
    int64_t queries = least(c->T - first, QUERIES);
    carry_attention_load_scaled(c->kernels, &f->q, head, first, queries, c->scale, s->q);
    const float *d_o = carry_attention_load(c->kernels, &c->args->d_o, head, first, queries, s->d_o);
    product_transposed(c, queries, keys, s->q, k, s->p);
    product_transposed(c, queries, keys, d_o, v, s->ds);
    for (int64_t i = 0; i < queries; i++) { /* a query that sees no key has a lse of -infinity, and its P is zero */
        float minus = lse[i] > -INFINITY || isnan(lse[i]) ? lse[i] - bias : INFINITY;
        soften(c, first + i, key, keys, minus, mean[i], s->p + i * keys, s->ds + i * keys);
    }
    product_added(c, keys, queries, s->p, true, d_o, s->dv);
    product_added(c, keys, queries, s->ds, true, s->q, s->dk);
    product_added(c, queries, keys, s->ds, false, finite, dq + first * c->D);
}

/* Adds packed f32 rows to rows of a head in a tensor. `row` is scratch memory. */
static void add_rows(const call *c, const carry_tensor *to, int64_t head, int64_t first, int64_t count,
                     const float *from, float *row) {
    for (int64_t i = 0; i < count; i++) {
        void *at = carry_attention_at(to, head, first + i);
        carry_widen(c->kernels, row, at, to->dtype, c->D);
        c->kernels->rows->add(row, from + i * c->D, c->D);
        carry_narrow(c->kernels, at, row, to->dtype, c->D);
    }
}

/* True if a query of the block from `query` on sees any of these keys. */
static bool is_seen(const call *c, int64_t query, int64_t first, int64_t keys) {
    int64_t from;
    int64_t end;
    int64_t unused;
    carry_attention_span(&c->args->forward, query, &from, &unused);
    carry_attention_span(&c->args->forward, least(query + QUERIES, c->T) - 1, &unused, &end);
    return first < end && first + keys > from;
}

/* Processes one block of keys. dq: this group's dQ for the first query head that reads these keys. */
static void key_block(const call *c, const scratch *s, int64_t head, int64_t first, int64_t keys, float bias,
                      float *dq) {
    const carry_attention_args *f = &c->args->forward;
    const float *k = carry_attention_load(c->kernels, &f->k, head, first, keys, s->k);
    const float *v = carry_attention_load(c->kernels, &f->v, head, first, keys, s->v);
    const float *finite = finite_keys(c, s, k, keys);
    memset(s->dk, 0, (size_t)(keys * c->D) * sizeof *s->dk);
    memset(s->dv, 0, (size_t)(keys * c->D) * sizeof *s->dv);
    for (int64_t reader = 0; reader < c->H / c->HK; reader++) {
        for (int64_t t = 0; t < c->T; t += QUERIES) {
            if (is_seen(c, t, first, keys)) {
                query_block(c, s, head * (c->H / c->HK) + reader, t, k, finite, v, first, keys, bias,
                            dq + reader * c->groups * c->T * c->D);
            }
        }
    }
    add_rows(c, &c->args->dk, head, first, keys, s->dk, s->q);
    add_rows(c, &c->args->dv, head, first, keys, s->dv, s->q);
}

static void keys_unit(const void *given, void *memory, int64_t unit) {
    const call *c = given;
    int64_t head = unit / c->groups;
    int64_t group = unit % c->groups;
    int64_t from = group * c->key_blocks / c->groups;
    int64_t to = (group + 1) * c->key_blocks / c->groups;
    const int64_t readers = c->H / c->HK;
    float *dq = c->dq + (head * readers * c->groups + group) * c->T * c->D;
    carry_arena arena = carry_arena_over(memory, place_bytes(c));
    scratch s;
    take_scratch(c, &arena, &s);
    for (int64_t reader = 0; reader < readers; reader++) {
        memset(dq + reader * c->groups * c->T * c->D, 0, (size_t)(c->T * c->D) * sizeof *dq);
    }
    int64_t block = 0;
    for (int r = 0; r < c->runs; r++) {
        const carry_key_run *run = &c->seen[r];
        for (int64_t done = 0; done < run->count; done += KEYS, block++) {
            if (block >= from && block < to) {
                key_block(c, &s, head, run->first + done, least(run->count - done, KEYS), run->bias, dq);
            }
        }
    }
}

/* dq = scale times the sum of the groups' dQ, in order. */
static void dq_unit(const void *given, void *memory, int64_t unit) {
    const call *c = given;
    int64_t head = unit / c->blocks;
    int64_t first = unit % c->blocks * QUERIES;
    int64_t queries = least(c->T - first, QUERIES);
    float *sum = c->dq + (head * c->groups * c->T + first) * c->D;
    (void)memory;
    for (int64_t g = 1; g < c->groups; g++) {
        c->kernels->rows->add(sum, sum + g * c->T * c->D, queries * c->D);
    }
    c->kernels->rows->scale(sum, c->scale, queries * c->D);
    for (int64_t i = 0; i < queries; i++) {
        carry_narrow(c->kernels, carry_attention_at(&c->args->dq, head, first + i), sum + i * c->D, c->args->dq.dtype,
                     c->D);
    }
}

/* The bytes of a workspace that begins at a multiple of CARRY_ALIGN. */
static size_t aligned_workspace(const carry_attention_backward_args *args) {
    const carry_tensor *q = &args->forward.q;
    const carry_tensor *k = &args->forward.k;
    if (q->rank != 3 || k->rank != 3 || q->shape[0] < 0 || q->shape[1] < 0 || k->shape[0] < 0 || q->shape[2] < 1 ||
        q->shape[2] > CARRY_ATTENTION_DIM || args->forward.runs < 0 || args->forward.runs > CARRY_MAX_KEY_RUNS ||
        (args->forward.runs > 0 && args->forward.run == NULL)) {
        return 0;
    }
    if (q->device != 0) {
        int ordinal;
        const carry_attention_device *device = carry_attention_device_of(q->device, &ordinal);
        return device != NULL ? device->backward_workspace(args) : 0;
    }
    const int64_t sizes[] = {q->shape[0], q->shape[1], q->shape[2], UNITS};
    size_t bytes;
    if (!carry_size_product(&bytes, sizes, 4, sizeof(float))) {
        return 0;
    }
    call c;
    call_of(&c, args);
    carry_arena arena = carry_arena_over(NULL, 0);
    (void)take(&c, &arena);
    return arena.overflowed ? 0 : arena.used;
}

static carry_status backward_here(carry_ctx *ctx, const carry_attention_backward_args *args, void *workspace,
                                  size_t workspace_bytes) {
    call c;
    call_of(&c, args);
    CARRY_TRY(carry_kernels_of(ctx, &c.kernels));
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    unsigned char *places = take(&c, &arena);
    CARRY_SPAN(ctx, "attention", "backward");
    carry_attention_parallel(ctx, &(carry_attention_job){.unit = mean_unit, .call = &c, .units = c.H * c.blocks});
    carry_attention_parallel(ctx, &(carry_attention_job){.unit = keys_unit,
                                                         .call = &c,
                                                         .scratch = places,
                                                         .scratch_bytes = place_bytes(&c),
                                                         .units = c.T > 0 ? c.HK * c.groups : 0});
    carry_attention_parallel(ctx, &(carry_attention_job){.unit = dq_unit, .call = &c, .units = c.H * c.blocks});
    return CARRY_OK;
}

/* Returns 0 for a call that carry_attention_backward refuses before it checks the workspace. */
size_t carry_attention_backward_workspace(const carry_attention_backward_args *args) {
    return carry_attention_with_spare(aligned_workspace(args));
}

carry_status carry_attention_backward(carry_ctx *ctx, const carry_attention_backward_args *args, void *workspace,
                                      size_t workspace_bytes) {
    const int device = args->forward.q.device;
    int ordinal;
    const carry_attention_device *there = device != 0 ? carry_attention_device_of(device, &ordinal) : NULL;
    if (device != 0 && there == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "attention has no entry for device %d in this build", device);
    }
    CARRY_TRY(carry_attention_check_backward(ctx, args));
    size_t needed = carry_attention_backward_workspace(args);
    if (needed == 0 && carry_tensor_count(&args->dq) > 0) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "the gradient of q, once for each of %d parts, is larger than memory can be", UNITS);
    }
    CARRY_TRY(carry_attention_check_workspace(ctx, workspace, workspace_bytes, needed));
    if (there != NULL) {
        CARRY_TRY(needed > 0 ? carry_device_check_pointer(ctx, "the workspace", workspace, device) : CARRY_OK);
        carry_attention_align(&workspace, &workspace_bytes);
        return there->backward(ctx, args, NULL, workspace, workspace_bytes);
    }
    carry_attention_align(&workspace, &workspace_bytes);
    return backward_here(ctx, args, workspace, workspace_bytes);
}
