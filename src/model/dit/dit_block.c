/* A block of the video transformer.

   The norm of q and k is over the whole width, so a mesh adds their sums of squares in one small all-reduce. o and
   down, whose inputs are split over ranks, each end in a large all-reduce, after which their biases are added. On a GPU
   q, k and v are one product, and a block of one group is 14 operators, each one pass over memory; six of them are
   products. */
#include "model/dit/dit_block.h"

#include <stdatomic.h>

#include "carry/ops.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "model/dit/dit_fp8.h"

enum { SHIFT_1, SCALE_1, GATE_1, SHIFT_2, SCALE_2, GATE_2 };

static const carry_tensor absent = {.data = NULL};

carry_tensor carry_dit_group_rows(const carry_dit_call *call, carry_tensor rows, int64_t group) {
    return carry_slice(rows, call->row[group], call->row[group + 1] - call->row[group]);
}

carry_tensor carry_dit_group_part(const carry_dit_call *call, carry_tensor modulation, int64_t group, int64_t part) {
    const int64_t d = call->dit->config.dim;
    const carry_tensor parts = carry_reshape_2d(modulation, modulation.shape[0] * modulation.shape[1] / d, d);
    return carry_reshape_1d(carry_slice(parts, group * (modulation.shape[1] / d) + part, 1), d);
}

carry_tensor carry_dit_heads(const carry_dit *dit, carry_tensor rows, int64_t first, int64_t count) {
    const int64_t head = carry_dit_head(dit);
    const int64_t apart = rows.stride[0];
    carry_tensor view = carry_reshape_3d(carry_slice(rows, first, count), count, rows.shape[1] / head, head);
    view.stride[0] = apart;
    return view;
}

int carry_dit_call_threads(const carry_dit *dit, bool side_by_side) {
    return side_by_side && dit->own.device == 0 ? carry_ctx_threads(dit->ctx) : 1;
}

typedef struct each_job {
    const carry_dit_call *call;
    carry_dit_work work;
    const void *user;
    _Atomic int status;
} each_job;

/* Index 0 was already processed. */
static void run_some(void *argument, int64_t begin, int64_t end, int worker) {
    each_job *j = argument;
    void *scratch = j->call->scratch + (size_t)worker * j->call->scratch_bytes;
    for (int64_t i = begin; i < end; i++) {
        const carry_status status = j->work(j->call, j->user, i + 1, scratch);
        if (status != CARRY_OK) {
            atomic_store(&j->status, (int)status);
            return;
        }
    }
}

carry_status carry_dit_each(const carry_dit_call *call, int64_t count, carry_dit_work work, const void *user) {
    each_job j = {.call = call, .work = work, .user = user};
    const int64_t alone = call->place == NULL && call->dit->own.device == 0 ? 1 : count;
    for (int64_t i = 0; i < alone && i < count; i++) {
        CARRY_TRY(work(call, user, i, call->scratch));
    }
    if (alone < count) {
        carry_parallel(call->dit->ctx, count - 1, 1, run_some, &j);
    }
    return (carry_status)atomic_load(&j.status);
}

void carry_dit_room_take(carry_dit_room *room, const carry_dit *dit, carry_arena *arena, carry_dtype dtype,
                         int64_t most) {
    const int64_t dim = dit->config.dim;
    const int device = dit->own.device;
    const int64_t channels = dit->config.in_dim > dit->config.out_dim ? dit->config.in_dim : dit->config.out_dim;
    const int64_t patch = channels * dit->config.patch[1] * dit->config.patch[2]; /* patches in 16 bits use this memory
                                                                                     too */
    int64_t widest = 4 * dim > dit->ffn ? 4 * dim : dit->ffn;
    widest = patch > widest ? patch : widest;
    room->x = carry_arena_tensor(arena, device, dtype, 2, (const int64_t[]){most, dim});
    room->h = carry_arena_tensor(arena, device, dtype, 2, (const int64_t[]){most, dim});
    room->wide = carry_arena_tensor(arena, device, dtype, 2, (const int64_t[]){most, widest});
}

/* Matrix i of room->wide, which is cut into matrices of rows x width. */
static carry_tensor part_of(const carry_dit_room *room, int64_t rows, int64_t width, int64_t i) {
    carry_tensor flat = carry_reshape_1d(room->wide, room->wide.shape[0] * room->wide.shape[1]);
    return carry_reshape_2d(carry_slice(flat, i * rows * width, rows * width), rows, width);
}

/* A view of some columns of a matrix. */
static carry_tensor columns(carry_tensor matrix, int64_t first, int64_t count) {
    if (matrix.data != NULL) {
        matrix.data = (unsigned char *)matrix.data + (size_t)first * carry_dtype_size(matrix.dtype);
    }
    matrix.shape[1] = count;
    return matrix;
}

carry_dit_rows carry_dit_rows_in(const carry_dit_room *room, const carry_dit *dit, int64_t rows) {
    const int64_t dim = dit->config.dim;
    const int64_t width = dit->heads * carry_dit_head(dit);
    const carry_tensor x = carry_slice(room->x, 0, rows);
    const carry_tensor h = carry_slice(room->h, 0, rows);
    carry_dit_rows r = {.x = x,
                        .x1 = x,
                        .x2 = x,
                        .next = x,
                        .h1 = h,
                        .h2 = h,
                        .h3 = h,
                        .y = h,
                        .f = h,
                        .q_in = part_of(room, rows, width, 0),
                        .k_in = part_of(room, rows, width, 1),
                        .v = part_of(room, rows, width, 2),
                        .o = part_of(room, rows, width, 3),
                        .cq_in = part_of(room, rows, dim, 0),
                        .co = part_of(room, rows, dim, 1),
                        .up = part_of(room, rows, dit->ffn, 0)};
    if (carry_dit_has_qkv(dit) && dit->own.device != 0) {
        r.qkv = part_of(room, rows, 3 * width, 0);
        r.q_in = columns(r.qkv, 0, width);
        r.k_in = columns(r.qkv, width, width);
        r.v = columns(r.qkv, 2 * width, width);
    }
    r.q = r.q_in;
    r.k = r.k_in;
    r.cq = r.cq_in;
    r.wide = r.up;
    return r;
}

static carry_status affine(const carry_dit_call *call, int64_t block, carry_dit_slot slot, carry_tensor y,
                           carry_tensor x, carry_activation activation, bool accumulate) {
    const carry_dit *dit = call->dit;
    const int64_t bias = dit->block[block][carry_dit_bias(slot)];
    bool done;
    CARRY_TRY(carry_dit_fp8_affine(call, block, slot, 1, y, x, carry_dit_product(dit, bias, x.dtype), activation,
                                   accumulate, &done));
    return done ? CARRY_OK : carry_dit_affine(call->dit, y, x, dit->block[block][slot], bias, activation, accumulate);
}

static carry_status reduce(carry_dit *dit, carry_tensor sum, bool large) {
    static const carry_span_site sites[] = {CARRY_SPAN_SITE("dit", "all-reduce, small"),
                                            CARRY_SPAN_SITE("dit", "all-reduce, large")};
    const int64_t count = carry_tensor_count(&sum);
    CARRY_SPAN_OF(dit->ctx, &sites[large]);
    const double before = carry_seconds();
    if (sum.dtype != CARRY_F32 && sum.dtype != CARRY_BF16) {
        return carry_fail(dit->ctx, CARRY_EDTYPE, "a mesh adds f32 or bf16, not %s", carry_dtype_name(sum.dtype));
    }
    CARRY_TRY(dit->sums != NULL ? carry_sums_add(dit->sums, sum.data, count, sum.dtype)
                                : carry_all_reduce(dit->far != NULL ? dit->far : dit->mesh, sum.data, count, sum.dtype,
                                                   CARRY_REDUCE_SUM));
    dit->counts.reduce_seconds += carry_seconds() - before;
    *(large ? &dit->counts.large : &dit->counts.small) += 1;
    *(large ? &dit->counts.large_bytes : &dit->counts.small_bytes) += count * (int64_t)carry_dtype_size(sum.dtype);
    return CARRY_OK;
}

/* y = W x + b, where each rank has some columns of W and of x. */
static carry_status row_split(const carry_dit_call *call, int64_t block, carry_dit_slot slot, carry_tensor y,
                              carry_tensor x) {
    carry_dit *dit = call->dit;
    if (dit->mesh == NULL) {
        return affine(call, block, slot, y, x, CARRY_NO_ACTIVATION, false);
    }
    bool done;
    CARRY_TRY(carry_dit_fp8_affine(call, block, slot, 1, y, x, absent, CARRY_NO_ACTIVATION, false, &done));
    CARRY_TRY(done ? CARRY_OK
                   : carry_linear(dit->ctx, y, x, carry_dit_product(dit, dit->block[block][slot], x.dtype), false));
    CARRY_TRY(reduce(dit, y, true));
    return carry_add_bias(dit->ctx, y, carry_dit_product(dit, dit->block[block][carry_dit_bias(slot)], x.dtype));
}

/* A norm with a group's modulation, optionally after a residual through the group's gate. Negative indices: without. */
typedef struct step {
    carry_tensor h, x, y, m, w, b; /* w and b: scale and shift of the norm, if they do not come from the modulation */
    carry_tensor other;            /* the modulation of the norm, if it is not m */
    int scale, shift, gate;
    float plus;
} step;

static carry_status step_group(const carry_dit_call *call, const void *user, int64_t group, void *scratch) {
    const step *s = user;
    const carry_dit *dit = call->dit;
    const carry_tensor m = s->other.data != NULL ? s->other : s->m;
    (void)scratch;
    return carry_add_layer_norm(
        dit->ctx,
        &(carry_add_layer_norm_args){.h = carry_dit_group_rows(call, s->h, group),
                                     .x = carry_dit_group_rows(call, s->x, group),
                                     .y = carry_dit_group_rows(call, s->y, group),
                                     .g = s->gate >= 0 ? carry_dit_group_part(call, s->m, group, s->gate) : absent,
                                     .w = s->scale >= 0 ? carry_dit_group_part(call, m, group, s->scale) : s->w,
                                     .b = s->shift >= 0 ? carry_dit_group_part(call, m, group, s->shift) : s->b,
                                     .plus = s->plus,
                                     .eps = (float)dit->config.eps});
}

static carry_status modulated_norm(const carry_dit_call *call, const carry_dit_rows *r, carry_tensor h, carry_tensor x,
                                   int scale, int shift) {
    const step s = {.h = h, .x = x, .m = r->m, .scale = scale, .shift = shift, .gate = -1, .plus = 1.0f};
    return carry_dit_each(call, call->groups, step_group, &s);
}

/* to = from + gate y; then h = LN(to) w + b, unless h is absent. */
static carry_status add_gated(const carry_dit_call *call, const carry_dit_rows *r, carry_tensor to, carry_tensor from,
                              carry_tensor y, int gate, step norm) {
    norm.x = to;
    norm.y = y;
    norm.m = r->m;
    norm.gate = gate;
    norm.scale = norm.other.data != NULL ? SCALE_1 : -1;
    norm.shift = norm.other.data != NULL ? SHIFT_1 : -1;
    CARRY_TRY(to.data != from.data ? carry_convert(call->dit->ctx, to, from) : CARRY_OK);
    return carry_dit_each(call, call->groups, step_group, &norm);
}

static carry_status products(const carry_dit_call *call, int64_t block, const carry_dit_rows *r) {
    carry_dit *dit = call->dit;
    if (r->qkv.data != NULL) {
        carry_tensor W, b;
        bool done;
        carry_dit_qkv(dit, block, r->x.dtype, &W, &b);
        CARRY_TRY(
            carry_dit_fp8_affine(call, block, CARRY_DIT_Q, 3, r->qkv, r->h1, b, CARRY_NO_ACTIVATION, false, &done));
        return done ? CARRY_OK : carry_affine(dit->ctx, r->qkv, r->h1, W, b, CARRY_NO_ACTIVATION, false);
    }
    CARRY_TRY(affine(call, block, CARRY_DIT_Q, r->q_in, r->h1, CARRY_NO_ACTIVATION, false));
    CARRY_TRY(affine(call, block, CARRY_DIT_K, r->k_in, r->h1, CARRY_NO_ACTIVATION, false));
    return affine(call, block, CARRY_DIT_V, r->v, r->h1, CARRY_NO_ACTIVATION, false);
}

/* Sums of squares over the whole width, of which this rank has some heads; the sums of q and k are reduced together. */
static carry_status sum_squares(const carry_dit_call *call, int64_t block, const carry_dit_rows *r) {
    carry_dit *dit = call->dit;
    const int64_t rows = r->q_in.shape[0];
    if (dit->mesh == NULL || dit->block[block][CARRY_DIT_NORM_Q] < 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_row_squares(dit->ctx, carry_slice(call->sums, 0, rows), r->q_in));
    CARRY_TRY(carry_row_squares(dit->ctx, carry_slice(call->sums, rows, rows), r->k_in));
    return reduce(dit, carry_slice(call->sums, 0, 2 * rows), false);
}

/* Applies norm and rotary positions to rows first .. first+count-1, of q in place and of k into `k`, and copies v. */
static carry_status place_rows(const carry_dit_call *call, int64_t block, const carry_dit_rows *r, int64_t first,
                               int64_t count, carry_tensor k, carry_tensor v) {
    const carry_dit *dit = call->dit;
    const bool is_split = dit->mesh != NULL;
    const carry_tensor from = carry_slice(r->v, first, count);
    const carry_qk_norm_rotary_args args = {
        .part = {{.to = carry_slice(r->q, first, count),
                  .from = carry_slice(r->q_in, first, count),
                  .w = carry_dit_block_weight(dit, block, CARRY_DIT_NORM_Q),
                  .sums = is_split ? carry_slice(call->sums, first, count) : absent,
                  .rotates = true},
                 {.to = k,
                  .from = carry_slice(r->k_in, first, count),
                  .w = carry_dit_block_weight(dit, block, CARRY_DIT_NORM_K),
                  .sums = is_split ? carry_slice(call->sums, r->q_in.shape[0] + first, count) : absent,
                  .rotates = true},
                 {.to = v, .from = from}},
        .parts = v.data != from.data ? 3 : 2,
        .table = carry_slice(call->table, first, count),
        .whole = dit->config.dim,
        .eps = (float)dit->config.eps};
    return carry_qk_norm_rotary(dit->ctx, &args);
}

typedef struct attending {
    int64_t block;
    const carry_dit_rows *rows;
    bool is_cross;
} attending;

/* Stores the keys and values of a group. */
static carry_status place_group(const carry_dit_call *call, int64_t block, const carry_dit_rows *r, int64_t group) {
    carry_tensor k, v;
    for (int64_t at = call->row[group]; at < call->row[group + 1];) {
        const int64_t count = call->place(call, block, group, at - call->row[group], &k, &v);
        CARRY_TRY(place_rows(call, block, r, at, count, k, v));
        at += count;
    }
    return CARRY_OK;
}

static carry_status attend_group(const carry_dit_call *call, const void *user, int64_t group, void *scratch) {
    const attending *a = user;
    const carry_dit_rows *r = a->rows;
    carry_key_run run[CARRY_MAX_KEY_RUNS];
    if (call->place != NULL && !a->is_cross) {
        CARRY_TRY(place_group(call, a->block, r, group));
    }
    const carry_attention_args args = (a->is_cross ? call->cross : call->self)(call, a->block, r, group, run);
    return carry_attention(call->dit->ctx, &args, scratch, call->scratch_bytes);
}

static carry_status self_attention(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                   bool is_chained) {
    carry_dit *dit = call->dit;
    const attending self = {.block = block, .rows = r};
    CARRY_SPAN(dit->ctx, "dit", "self-attention");
    CARRY_TRY(is_chained ? CARRY_OK : modulated_norm(call, r, r->h1, r->x, SCALE_1, SHIFT_1));
    CARRY_TRY(products(call, block, r));
    CARRY_TRY(sum_squares(call, block, r));
    if (call->place == NULL) {
        CARRY_TRY(place_rows(call, block, r, 0, r->q.shape[0], r->k, r->v));
    }
    CARRY_TRY(carry_dit_each(call, call->groups, attend_group, &self));
    CARRY_TRY(row_split(call, block, CARRY_DIT_O, r->y, r->o));
    const step norm = {.h = dit->config.cross_attn_norm ? r->h3 : absent,
                       .w = carry_dit_block_weight(dit, block, CARRY_DIT_NORM3),
                       .b = carry_dit_block_weight(dit, block, CARRY_DIT_NORM3_BIAS)};
    return add_gated(call, r, r->x1, r->x, r->y, GATE_1, norm);
}

/* Normalises rows that every rank has whole. */
static carry_status norm_whole(const carry_dit *dit, carry_tensor to, carry_tensor from, carry_tensor w) {
    const carry_qk_norm_rotary_args args = {
        .part = {{.to = to, .from = from, .w = w}}, .parts = 1, .eps = (float)dit->config.eps};
    return w.data == NULL && to.data == from.data ? CARRY_OK : carry_qk_norm_rotary(dit->ctx, &args);
}

carry_status carry_dit_text_keys(carry_dit *dit, int64_t block, carry_tensor text, const carry_dit_rows *r) {
    const carry_dit_call call = {.dit = dit};
    CARRY_TRY(affine(&call, block, CARRY_DIT_CROSS_K, r->ck_in, text, CARRY_NO_ACTIVATION, false));
    CARRY_TRY(norm_whole(dit, r->ck, r->ck_in, carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_NORM_K)));
    return affine(&call, block, CARRY_DIT_CROSS_V, r->cv, text, CARRY_NO_ACTIVATION, false);
}

static carry_status cross_attention(const carry_dit_call *call, int64_t block, const carry_dit_rows *r) {
    carry_dit *dit = call->dit;
    const attending cross = {.block = block, .rows = r, .is_cross = true};
    CARRY_SPAN(dit->ctx, "dit", "cross-attention");
    CARRY_TRY(affine(call, block, CARRY_DIT_CROSS_Q, r->cq_in, dit->config.cross_attn_norm ? r->h3 : r->x1,
                     CARRY_NO_ACTIVATION, false));
    CARRY_TRY(r->x2.data != r->x1.data ? carry_convert(dit->ctx, r->x2, r->x1) : CARRY_OK);
    if (call->few.keys > 0) {
        return carry_dit_attend_few(call, block, r);
    }
    CARRY_TRY(norm_whole(dit, r->cq, r->cq_in, carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_NORM_Q)));
    CARRY_TRY(carry_dit_each(call, call->cross_groups, attend_group, &cross));
    return affine(call, block, CARRY_DIT_CROSS_O, r->x2, r->co, CARRY_NO_ACTIVATION, true);
}

/* Computes a block's modulation: the sum of its own and that of the time. */
static carry_status modulate(const carry_dit_call *call, int64_t block, carry_tensor m) {
    carry_dit *dit = call->dit;
    const carry_tensor own = carry_dit_block_weight(dit, block, CARRY_DIT_MODULATION);
    if (call->groups == 1 && dit->own.device != 0) {
        return carry_elementwise(dit->ctx, m, call->e0, carry_reshape_2d(own, 1, m.shape[1]), CARRY_ADD);
    }
    CARRY_TRY(carry_convert(dit->ctx, m, call->e0));
    return carry_add_bias(dit->ctx, m, carry_reshape_1d(own, m.shape[1]));
}

static carry_status feed_forward(const carry_dit_call *call, int64_t block, const carry_dit_rows *r) {
    const bool keeps = r->up.data != r->wide.data;
    const bool chains = r->next_m.data != NULL && block + 1 < call->dit->config.num_layers;
    CARRY_SPAN(call->dit->ctx, "dit", "feed-forward");
    CARRY_TRY(modulated_norm(call, r, r->h2, r->x2, SCALE_2, SHIFT_2));
    CARRY_TRY(affine(call, block, CARRY_DIT_FFN_UP, r->up, r->h2, keeps ? CARRY_NO_ACTIVATION : CARRY_GELU, false));
    CARRY_TRY(keeps ? carry_activate(call->dit->ctx, r->wide, r->up, CARRY_GELU) : CARRY_OK);
    CARRY_TRY(row_split(call, block, CARRY_DIT_FFN_DOWN, r->f, r->wide));
    if (!chains) {
        return add_gated(call, r, r->next, r->x2, r->f, GATE_2, (step){.h = absent});
    }
    CARRY_TRY(modulate(call, block + 1, r->next_m));
    return add_gated(call, r, r->next, r->x2, r->f, GATE_2, (step){.h = r->h1, .other = r->next_m, .plus = 1.0f});
}

carry_status carry_dit_block_keys(const carry_dit_call *call, int64_t block, const carry_dit_rows *r, bool is_chained) {
    CARRY_SPAN(call->dit->ctx, "dit", "keys");
    if (!is_chained) {
        CARRY_TRY(call->e0.data != NULL ? modulate(call, block, r->m) : CARRY_OK);
        CARRY_TRY(modulated_norm(call, r, r->h1, r->x, SCALE_1, SHIFT_1));
    }
    CARRY_TRY(products(call, block, r));
    CARRY_TRY(sum_squares(call, block, r));
    for (int64_t group = 0; group < call->groups; group++) {
        CARRY_TRY(place_group(call, block, r, group));
    }
    return CARRY_OK;
}

carry_status carry_dit_block_forward(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                     bool is_chained) {
    if (call->e0.data != NULL && !is_chained) {
        CARRY_TRY(modulate(call, block, r->m));
    }
    CARRY_TRY(self_attention(call, block, r, is_chained));
    CARRY_TRY(cross_attention(call, block, r));
    return feed_forward(call, block, r);
}
