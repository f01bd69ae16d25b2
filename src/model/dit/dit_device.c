/* A block of the video transformer on a GPU: 14 launches, 7 of them products. */
#include "model/dit/dit_device.h"

#include <inttypes.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "ops/table.h"

typedef struct sizes {
    int64_t T, D, F, S, L, H, d;
} sizes;

/* Between the products; h serves every norm, y every result that is added. */
typedef struct buffers {
    uint16_t *h, *qkv, *a, *y, *f;
    unsigned char *attention;
    size_t attention_bytes;
} buffers;

typedef struct pass {
    carry_ctx *ctx;
    const carry_dit_device_args *args;
    const carry_operators *ops;
    int ordinal;
    carry_stream *stream;
    sizes s;
    buffers b;
} pass;

static sizes sizes_of(const carry_dit_device_args *args) {
    return (sizes){.T = args->x.shape[0],
                   .D = args->x.shape[1],
                   .F = args->w.up.shape[0],
                   .S = args->k.shape[0],
                   .L = args->text_k.shape[0],
                   .H = args->k.shape[1],
                   .d = args->k.shape[2]};
}

static carry_tensor heads_of(const pass *p, void *data, int64_t rows, int64_t row) {
    carry_tensor t = carry_view_3d(data, CARRY_BF16, rows, p->s.H, p->s.d);
    t.stride[0] = row;
    t.device = p->args->x.device;
    return t;
}

static carry_attention_args self_attention(const pass *p) {
    return (carry_attention_args){.o = heads_of(p, p->b.a, p->s.T, p->s.D),
                                  .q = heads_of(p, p->b.qkv, p->s.T, 3 * p->s.D),
                                  .k = p->args->k,
                                  .v = p->args->v,
                                  .run = p->args->run,
                                  .runs = p->args->runs};
}

static carry_attention_args cross_attention(const pass *p) {
    return (carry_attention_args){.o = heads_of(p, p->b.a, p->s.T, p->s.D),
                                  .q = heads_of(p, p->b.qkv, p->s.T, p->s.D),
                                  .k = p->args->text_k,
                                  .v = p->args->text_v};
}

static void take_buffers(pass *p, carry_arena *arena) {
    size_t T = (size_t)p->s.T;
    size_t D = (size_t)p->s.D;
    p->b.h = carry_arena_take(arena, T * D, 2);
    p->b.qkv = carry_arena_take(arena, T * 3 * D, 2);
    p->b.a = carry_arena_take(arena, T * D, 2);
    p->b.y = carry_arena_take(arena, T * D, 2);
    p->b.f = carry_arena_take(arena, T * (size_t)p->s.F, 2);
    carry_attention_args self = self_attention(p);
    carry_attention_args cross = cross_attention(p);
    size_t one = carry_attention_workspace(&self);
    size_t other = carry_attention_workspace(&cross);
    p->b.attention_bytes = one > other ? one : other;
    p->b.attention = carry_arena_take(arena, p->b.attention_bytes, 1);
}

size_t carry_dit_device_workspace(const carry_dit_device_args *args) {
    pass p = {.args = args, .s = sizes_of(args)};
    carry_arena arena = carry_arena_over(NULL, 0);
    take_buffers(&p, &arena);
    return arena.used;
}

static carry_status expect(const pass *p, const char *name, const carry_tensor *tensor, carry_dtype dtype, int rank,
                           const int64_t *shape) {
    CARRY_TRY(carry_tensor_expect(p->ctx, name, tensor, rank, shape));
    if (tensor->dtype != dtype || !carry_tensor_is_packed(tensor, 0)) {
        return carry_fail(p->ctx, tensor->dtype != dtype ? CARRY_EDTYPE : CARRY_ESTRIDE, "%s must be %s and packed",
                          name, carry_dtype_name(dtype));
    }
    return carry_device_expect(p->ctx, name, tensor, p->args->x.device);
}

static carry_status check(const pass *p) {
    const carry_dit_device_args *a = p->args;
    const carry_dit_device_weights *w = &a->w;
    const sizes *s = &p->s;
    if (a->x.rank != 2 || a->k.rank != 3 || a->text_k.rank != 3 || w->up.rank != 2 || s->H * s->d != s->D) {
        return carry_fail(p->ctx, CARRY_ESHAPE,
                          "x is [T, D], k and text_k are [rows, H, d] with H d = D, up is [F, D]: D %" PRId64
                          ", H %" PRId64 ", d %" PRId64,
                          s->D, s->H, s->d);
    }
    const struct {
        const char *name;
        const carry_tensor *tensor;
        carry_dtype dtype;
        int rank;
        int64_t shape[3];
    } all[] = {{"x", &a->x, CARRY_BF16, 2, {s->T, s->D}},
               {"modulation", &a->modulation, CARRY_F32, 2, {6, s->D}},
               {"table", &a->table, CARRY_F32, 3, {s->T, s->d / 2, 2}},
               {"k", &a->k, CARRY_BF16, 3, {s->S, s->H, s->d}},
               {"v", &a->v, CARRY_BF16, 3, {s->S, s->H, s->d}},
               {"text_k", &a->text_k, CARRY_BF16, 3, {s->L, s->H, s->d}},
               {"text_v", &a->text_v, CARRY_BF16, 3, {s->L, s->H, s->d}},
               {"qkv", &w->qkv, CARRY_BF16, 2, {3 * s->D, s->D}},
               {"qkv_bias", &w->qkv_bias, CARRY_BF16, 1, {3 * s->D}},
               {"o", &w->o, CARRY_BF16, 2, {s->D, s->D}},
               {"o_bias", &w->o_bias, CARRY_BF16, 1, {s->D}},
               {"norm_q", &w->norm_q, CARRY_F32, 1, {s->D}},
               {"norm_k", &w->norm_k, CARRY_F32, 1, {s->D}},
               {"norm3", &w->norm3, CARRY_F32, 1, {s->D}},
               {"norm3_bias", &w->norm3_bias, CARRY_F32, 1, {s->D}},
               {"cross_q", &w->cross_q, CARRY_BF16, 2, {s->D, s->D}},
               {"cross_q_bias", &w->cross_q_bias, CARRY_BF16, 1, {s->D}},
               {"cross_norm_q", &w->cross_norm_q, CARRY_F32, 1, {s->D}},
               {"cross_o", &w->cross_o, CARRY_BF16, 2, {s->D, s->D}},
               {"cross_o_bias", &w->cross_o_bias, CARRY_BF16, 1, {s->D}},
               {"up", &w->up, CARRY_BF16, 2, {s->F, s->D}},
               {"up_bias", &w->up_bias, CARRY_BF16, 1, {s->F}},
               {"down", &w->down, CARRY_BF16, 2, {s->D, s->F}},
               {"down_bias", &w->down_bias, CARRY_BF16, 1, {s->D}}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CARRY_TRY(expect(p, all[i].name, all[i].tensor, all[i].dtype, all[i].rank, all[i].shape));
    }
    if (a->first < 0 || a->first > s->S - s->T) {
        return carry_fail(p->ctx, CARRY_ERANGE,
                          "%" PRId64 " tokens from row %" PRId64 " on are not in a cache of %" PRId64, s->T, a->first,
                          s->S);
    }
    return CARRY_OK;
}

/* c [T, out] = a [T, in] w^T + bias */
static carry_status linear(const pass *p, void *c, const void *a, const carry_tensor *w, const carry_tensor *bias,
                           bool gelu, bool accumulate) {
    int64_t out = w->shape[0];
    int64_t in = w->shape[1];
    carry_device_product product = {.m = p->s.T,
                                    .n = out,
                                    .k = in,
                                    .count = 1,
                                    .a = a,
                                    .b = w->data,
                                    .c = c,
                                    .a_row = in,
                                    .b_row = in,
                                    .c_row = out,
                                    .type = CARRY_BF16,
                                    .c_type = CARRY_BF16,
                                    .b_transposed = true,
                                    .accumulate = accumulate,
                                    .bias = bias->data,
                                    .gelu = gelu,
                                    .ordinal = p->ordinal,
                                    .stream = p->stream};
    return p->ops->product(p->ctx, &product, NULL);
}

/* x += gate y where there is y; h = LN(x) (w + plus) + b where there is w. */
static carry_status norm(const pass *p, const void *y, const float *gate, const float *w, const float *b, float plus) {
    carry_device_norm args = {.rows = p->s.T,
                              .n = p->s.D,
                              .x = p->args->x.data,
                              .h = w != NULL ? p->b.h : NULL,
                              .y = y,
                              .x_row = p->s.D,
                              .h_row = p->s.D,
                              .y_row = p->s.D,
                              .gate = gate,
                              .w = w,
                              .b = b,
                              .plus = plus,
                              .eps = p->args->eps,
                              .ordinal = p->ordinal,
                              .stream = p->stream};
    return p->ops->add_layer_norm(p->ctx, &args);
}

/* q in place; k and v to their rows of the cache. */
static carry_status place_keys(const pass *p) {
    const carry_dit_device_args *a = p->args;
    int64_t D = p->s.D;
    int64_t at = a->first * D;
    const float *table = a->table.data;
    carry_device_qk_norm_rotary turn = {
        .rows = p->s.T,
        .n = D,
        .head = p->s.d,
        .part = {{p->b.qkv, p->b.qkv, 3 * D, 3 * D, a->w.norm_q.data, table},
                 {(uint16_t *)a->k.data + at, p->b.qkv + D, D, 3 * D, a->w.norm_k.data, table},
                 {(uint16_t *)a->v.data + at, p->b.qkv + 2 * D, D, 3 * D, NULL, NULL}},
        .parts = 3,
        .eps = a->eps,
        .ordinal = p->ordinal,
        .stream = p->stream};
    return p->ops->qk_norm_rotary(p->ctx, &turn);
}

static carry_status norm_cross_queries(const pass *p) {
    int64_t D = p->s.D;
    carry_device_qk_norm_rotary turn = {.rows = p->s.T,
                                        .n = D,
                                        .head = p->s.d,
                                        .part = {{p->b.qkv, p->b.qkv, D, D, p->args->w.cross_norm_q.data, NULL}},
                                        .parts = 1,
                                        .eps = p->args->eps,
                                        .ordinal = p->ordinal,
                                        .stream = p->stream};
    return p->ops->qk_norm_rotary(p->ctx, &turn);
}

static carry_status attend(const pass *p, const carry_attention_args *args) {
    return carry_attention(p->ctx, args, p->b.attention_bytes > 0 ? p->b.attention : NULL, p->b.attention_bytes);
}

static carry_status run(const pass *p) {
    const carry_dit_device_weights *w = &p->args->w;
    const float *m = p->args->modulation.data;
    int64_t D = p->s.D;
    const float *shift1 = m, *scale1 = m + D, *gate1 = m + 2 * D, *shift2 = m + 3 * D, *scale2 = m + 4 * D,
                *gate2 = m + 5 * D;
    carry_attention_args self = self_attention(p);
    carry_attention_args cross = cross_attention(p);
    CARRY_TRY(norm(p, NULL, NULL, scale1, shift1, 1.0f));
    CARRY_TRY(linear(p, p->b.qkv, p->b.h, &w->qkv, &w->qkv_bias, false, false));
    CARRY_TRY(place_keys(p));
    CARRY_TRY(attend(p, &self));
    CARRY_TRY(linear(p, p->b.y, p->b.a, &w->o, &w->o_bias, false, false));
    CARRY_TRY(norm(p, p->b.y, gate1, w->norm3.data, w->norm3_bias.data, 0.0f));
    CARRY_TRY(linear(p, p->b.qkv, p->b.h, &w->cross_q, &w->cross_q_bias, false, false));
    CARRY_TRY(norm_cross_queries(p));
    CARRY_TRY(attend(p, &cross));
    CARRY_TRY(linear(p, p->args->x.data, p->b.a, &w->cross_o, &w->cross_o_bias, false, true));
    CARRY_TRY(norm(p, NULL, NULL, scale2, shift2, 1.0f));
    CARRY_TRY(linear(p, p->b.f, p->b.h, &w->up, &w->up_bias, true, false));
    CARRY_TRY(linear(p, p->b.y, p->b.f, &w->down, &w->down_bias, false, false));
    return norm(p, p->b.y, gate2, NULL, NULL, 0.0f);
}

carry_status carry_dit_device_block(carry_ctx *ctx, const carry_dit_device_args *args, void *workspace,
                                    size_t workspace_bytes) {
    pass p = {.ctx = ctx, .args = args, .s = sizes_of(args)};
    CARRY_TRY(carry_operators_of(ctx, &p.ops, "a block", args->x.device, &p.ordinal));
    CARRY_TRY(check(&p));
    size_t needed = carry_dit_device_workspace(args);
    if (workspace_bytes < needed || (workspace == NULL && needed > 0)) {
        return carry_fail(ctx, CARRY_EWORKSPACE, "the workspace has %zu bytes and a block needs %zu here",
                          workspace_bytes, needed);
    }
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    take_buffers(&p, &arena);
    p.stream = carry_ctx_stream(ctx, args->x.device);
    return run(&p);
}
