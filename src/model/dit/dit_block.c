/* A block of the video transformer, for the tokens of all chunks of a forward together:

       m = modulation + e0(t) = shift1, scale1, gate1, shift2, scale2, gate2     (of each chunk)
       x += gate1 o(attention(rotary(norm(q(a))), keys, values)),  a = LN(x)(1 + scale1) + shift1
       x += o'(attention(norm(q'(b)), text keys, text values)),    b = LN3(x)
       x += gate2 down(gelu(up(c))),                               c = LN(x)(1 + scale2) + shift2

   norm is of the whole width, so a mesh adds the sums of squares of q and k (one small all-reduce), and o and down,
   whose inputs are spread over ranks, end in a large one each; their biases are added after it. Products, norms and the
   FFN see all tokens as one matrix. Attention goes chunk by chunk: a chunk's keys are written just before it looks, so
   it sees what it would see if the chunks came one after the other, although a later one may evict what an earlier one
   still needs. */
#include <string.h>

#include "carry/nn.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/span.h"
#include "model/dit/dit_cache.h"

enum { SHIFT_1, SCALE_1, GATE_1, SHIFT_2, SCALE_2, GATE_2 };

carry_status carry_dit_affine(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor b) {
    CARRY_TRY(carry_linear(ctx, y, x, W, false));
    return carry_add_bias(ctx, y, b);
}

carry_status carry_dit_norm(carry_dit *dit, float *sums, carry_tensor x, carry_tensor w) {
    if (w.data == NULL) {
        return CARRY_OK;
    }
    const carry_tensor squares = carry_view_1d(sums, CARRY_F32, x.shape[0]);
    CARRY_TRY(carry_row_squares(dit->ctx, squares, x));
    return carry_rms_scale(dit->ctx, x, x, squares, w, x.shape[1], (float)dit->config.eps);
}

/* Rows of a chunk of a matrix of all tokens. */
static carry_tensor rows_of(const carry_dit_call *call, int chunk, float *data, int64_t width) {
    return carry_view_2d(data + call->row[chunk] * width, CARRY_F32, call->row[chunk + 1] - call->row[chunk], width);
}

static carry_tensor all_rows(const carry_dit_call *call, float *data, int64_t width) {
    return carry_view_2d(data, CARRY_F32, call->tokens, width);
}

static carry_tensor modulation_of(const carry_dit_call *call, int chunk, int which) {
    const int64_t dim = call->dit->config.dim;
    return carry_view_1d(call->cache->modulation + (chunk * 6 + which) * dim, CARRY_F32, dim);
}

static void make_modulation(const carry_dit_call *call, int64_t block) {
    const int64_t count = 6 * call->dit->config.dim;
    const float *own = carry_dit_block_weight(call->dit, block, CARRY_DIT_MODULATION).data;
    for (int c = 0; c < call->chunks; c++) {
        const float *projected = call->cache->projected + c * count;
        float *to = call->cache->modulation + c * count;
        for (int64_t i = 0; i < count; i++) {
            to[i] = own[i] + projected[i];
        }
    }
}

static carry_status modulated_norm(const carry_dit_call *call, int scale, int shift) {
    const carry_dit *dit = call->dit;
    for (int c = 0; c < call->chunks; c++) {
        CARRY_TRY(carry_layer_norm(dit->ctx, rows_of(call, c, call->cache->normed, dit->config.dim),
                                   rows_of(call, c, call->cache->x, dit->config.dim), modulation_of(call, c, scale),
                                   modulation_of(call, c, shift), 1.0f, (float)dit->config.eps));
    }
    return CARRY_OK;
}

static carry_status reduce(carry_dit *dit, float *data, int64_t count, bool large) {
    if (dit->mesh == NULL) {
        return CARRY_OK;
    }
    static const carry_span_site sites[] = {CARRY_SPAN_SITE("dit", "all-reduce, small"),
                                            CARRY_SPAN_SITE("dit", "all-reduce, large")};
    CARRY_SPAN_OF(dit->ctx, &sites[large]);
    const double before = carry_seconds();
    CARRY_TRY(carry_all_reduce(dit->mesh, data, count, CARRY_REDUCE_F32, CARRY_REDUCE_SUM));
    dit->counts.reduce_seconds += carry_seconds() - before;
    *(large ? &dit->counts.large : &dit->counts.small) += 1;
    *(large ? &dit->counts.large_bytes : &dit->counts.small_bytes) += count * (int64_t)sizeof(float);
    return CARRY_OK;
}

/* q and k over the whole width, of which this rank has its heads: both sums travel together. */
static carry_status norm_heads(const carry_dit_call *call, int64_t block, carry_tensor q, carry_tensor k) {
    carry_dit *dit = call->dit;
    const carry_tensor norm_q = carry_dit_block_weight(dit, block, CARRY_DIT_NORM_Q);
    const carry_tensor norm_k = carry_dit_block_weight(dit, block, CARRY_DIT_NORM_K);
    const carry_tensor sums_q = carry_view_1d(call->cache->sums, CARRY_F32, call->tokens);
    const carry_tensor sums_k = carry_view_1d(call->cache->sums + call->tokens, CARRY_F32, call->tokens);
    const float eps = (float)dit->config.eps;
    if (norm_q.data == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_row_squares(dit->ctx, sums_q, q));
    CARRY_TRY(carry_row_squares(dit->ctx, sums_k, k));
    CARRY_TRY(reduce(dit, call->cache->sums, 2 * call->tokens, false));
    CARRY_TRY(carry_rms_scale(dit->ctx, q, q, sums_q, norm_q, dit->config.dim, eps));
    return carry_rms_scale(dit->ctx, k, k, sums_k, norm_k, dit->config.dim, eps);
}

/* Keys, turned by their positions, and values of a chunk into its slots, a frame at a time. */
static carry_status write_frames(const carry_dit_call *call, int c, int64_t block, float *k, const float *v) {
    carry_dit_cache *cache = call->cache;
    const carry_dit *dit = call->dit;
    const int64_t head = carry_dit_head(dit);
    const int64_t width = dit->heads * head;
    const int64_t slots = cache->options.sink + cache->ring;
    for (int64_t f = 0; f < call->chunk[c].latents.shape[1]; f++) {
        const int64_t row = call->row[c] + f * cache->per_frame;
        const int64_t slot = block * slots + carry_dit_slot_of(cache, call->chunk[c].start + f);
        const int64_t to = slot * cache->per_frame * width;
        CARRY_TRY(carry_rotary(dit->ctx, carry_view_3d(cache->keys + to, CARRY_F32, cache->per_frame, dit->heads, head),
                               carry_view_3d(k + row * width, CARRY_F32, cache->per_frame, dit->heads, head),
                               carry_view_3d(cache->table + row * head, CARRY_F32, cache->per_frame, head / 2, 2),
                               false));
        memcpy(cache->values + to, v + row * width, (size_t)(cache->per_frame * width) * sizeof(float));
    }
    return CARRY_OK;
}

static carry_status attend_chunks(const carry_dit_call *call, int64_t block, float *o, float *q, float *k,
                                  const float *v) {
    carry_dit_cache *cache = call->cache;
    const carry_dit *dit = call->dit;
    const int64_t head = carry_dit_head(dit);
    const int64_t width = dit->heads * head;
    const int64_t keys = (cache->options.sink + cache->ring) * cache->per_frame;
    CARRY_SPAN(dit->ctx, "dit", "attention");
    CARRY_TRY(carry_rotary(dit->ctx, carry_view_3d(q, CARRY_F32, call->tokens, dit->heads, head),
                           carry_view_3d(q, CARRY_F32, call->tokens, dit->heads, head),
                           carry_view_3d(cache->table, CARRY_F32, call->tokens, head / 2, 2), false));
    for (int c = 0; c < call->chunks; c++) {
        const int64_t start = call->chunk[c].start;
        const int64_t rows = call->row[c + 1] - call->row[c];
        carry_key_run run[CARRY_KEY_RUNS];
        CARRY_TRY(write_frames(call, c, block, k, v));
        const carry_attention_args args = {
            .o = carry_view_3d(o + call->row[c] * width, CARRY_F32, rows, dit->heads, head),
            .q = carry_view_3d(q + call->row[c] * width, CARRY_F32, rows, dit->heads, head),
            .k = carry_view_3d(cache->keys + block * keys * width, CARRY_F32, keys, dit->heads, head),
            .v = carry_view_3d(cache->values + block * keys * width, CARRY_F32, keys, dit->heads, head),
            .run = run,
            .runs = carry_dit_runs(cache, start, start + call->chunk[c].latents.shape[1], call->bias, run)};
        CARRY_TRY(carry_attention(dit->ctx, &args, cache->attention, cache->attention_bytes));
    }
    return CARRY_OK;
}

/* x += gate (y + b), of every chunk. */
static carry_status add_gated(const carry_dit_call *call, carry_tensor y, carry_tensor b, int gate) {
    const carry_dit *dit = call->dit;
    CARRY_TRY(carry_add_bias(dit->ctx, y, b));
    for (int c = 0; c < call->chunks; c++) {
        CARRY_TRY(carry_gated_add(dit->ctx, rows_of(call, c, call->cache->x, dit->config.dim),
                                  rows_of(call, c, y.data, dit->config.dim), modulation_of(call, c, gate)));
    }
    return CARRY_OK;
}

static carry_status self_attention(const carry_dit_call *call, int64_t block) {
    carry_dit *dit = call->dit;
    carry_dit_cache *cache = call->cache;
    const int64_t dim = dit->config.dim;
    const int64_t width = dit->heads * carry_dit_head(dit);
    const carry_tensor a = all_rows(call, cache->normed, dim);
    float *part[4]; /* q, k, v, o */
    for (int i = 0; i < 4; i++) {
        part[i] = cache->wide + i * call->tokens * width;
    }
    CARRY_SPAN(dit->ctx, "dit", "self-attention");
    CARRY_TRY(modulated_norm(call, SCALE_1, SHIFT_1));
    for (int i = 0; i < 3; i++) { /* a product's bias follows its weight in the list */
        CARRY_TRY(carry_dit_affine(dit->ctx, all_rows(call, part[i], width), a,
                                   carry_dit_block_weight(dit, block, (carry_dit_slot)(CARRY_DIT_Q + 2 * i)),
                                   carry_dit_block_weight(dit, block, (carry_dit_slot)(CARRY_DIT_Q_BIAS + 2 * i))));
    }
    CARRY_TRY(norm_heads(call, block, all_rows(call, part[0], width), all_rows(call, part[1], width)));
    CARRY_TRY(attend_chunks(call, block, part[3], part[0], part[1], part[2]));
    CARRY_TRY(carry_linear(dit->ctx, a, all_rows(call, part[3], width), carry_dit_block_weight(dit, block, CARRY_DIT_O),
                           false));
    CARRY_TRY(reduce(dit, cache->normed, call->tokens * dim, true));
    return add_gated(call, a, carry_dit_block_weight(dit, block, CARRY_DIT_O_BIAS), GATE_1);
}

static carry_status cross_attention(const carry_dit_call *call, int64_t block) {
    carry_dit *dit = call->dit;
    carry_dit_cache *cache = call->cache;
    const carry_dit_config *c = &dit->config;
    const int64_t head = carry_dit_head(dit);
    const int64_t text = block * c->text_len * c->dim;
    const carry_tensor x = all_rows(call, cache->x, c->dim);
    const carry_tensor q = all_rows(call, cache->wide, c->dim);
    float *o = cache->wide + call->tokens * c->dim;
    carry_tensor b = x;
    CARRY_SPAN(dit->ctx, "dit", "cross-attention");
    if (c->cross_attn_norm) {
        b = all_rows(call, cache->normed, c->dim);
        CARRY_TRY(carry_layer_norm(dit->ctx, b, x, carry_dit_block_weight(dit, block, CARRY_DIT_NORM3),
                                   carry_dit_block_weight(dit, block, CARRY_DIT_NORM3_BIAS), 0.0f, (float)c->eps));
    }
    CARRY_TRY(carry_dit_affine(dit->ctx, q, b, carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_Q),
                               carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_Q_BIAS)));
    CARRY_TRY(carry_dit_norm(dit, cache->sums, q, carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_NORM_Q)));
    const carry_attention_args args = {
        .o = carry_view_3d(o, CARRY_F32, call->tokens, c->num_heads, head),
        .q = carry_view_3d(cache->wide, CARRY_F32, call->tokens, c->num_heads, head),
        .k = carry_view_3d(cache->text_keys + text, CARRY_F32, c->text_len, c->num_heads, head),
        .v = carry_view_3d(cache->text_values + text, CARRY_F32, c->text_len, c->num_heads, head)};
    CARRY_TRY(carry_attention(dit->ctx, &args, cache->attention, cache->attention_bytes));
    CARRY_TRY(carry_linear(dit->ctx, x, all_rows(call, o, c->dim),
                           carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_O), true));
    return carry_add_bias(dit->ctx, x, carry_dit_block_weight(dit, block, CARRY_DIT_CROSS_O_BIAS));
}

static carry_status feed_forward(const carry_dit_call *call, int64_t block) {
    carry_dit *dit = call->dit;
    const carry_tensor c = all_rows(call, call->cache->normed, dit->config.dim);
    const carry_tensor hidden = all_rows(call, call->cache->wide, dit->ffn);
    CARRY_SPAN(dit->ctx, "dit", "feed-forward");
    CARRY_TRY(modulated_norm(call, SCALE_2, SHIFT_2));
    CARRY_TRY(carry_dit_affine(dit->ctx, hidden, c, carry_dit_block_weight(dit, block, CARRY_DIT_FFN_UP),
                               carry_dit_block_weight(dit, block, CARRY_DIT_FFN_UP_BIAS)));
    CARRY_TRY(carry_activate(dit->ctx, hidden, hidden, CARRY_GELU));
    CARRY_TRY(carry_linear(dit->ctx, c, hidden, carry_dit_block_weight(dit, block, CARRY_DIT_FFN_DOWN), false));
    CARRY_TRY(reduce(dit, call->cache->normed, call->tokens * dit->config.dim, true));
    return add_gated(call, c, carry_dit_block_weight(dit, block, CARRY_DIT_FFN_DOWN_BIAS), GATE_2);
}

carry_status carry_dit_block_forward(const carry_dit_call *call, int64_t block) {
    make_modulation(call, block);
    CARRY_TRY(self_attention(call, block));
    CARRY_TRY(cross_attention(call, block));
    return feed_forward(call, block);
}
