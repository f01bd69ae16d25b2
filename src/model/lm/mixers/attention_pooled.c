/* Attention over pages. The keys and values of all rows are stored in their pages first. Then all single tokens are one
   call, if the device has a kernel for it, and every piece is a call. */
#include "model/lm/mixers/attention_pooled.h"

#include "attention/attention.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/places.h"

/* The arguments of the steps of a call, without tensors. */
static carry_attention_step_args step_of(const carry_lm_pass *pass, int64_t batch) {
    const carry_lm_config *c = &pass->lm->config;
    const int64_t q[] = {batch, c->attention.heads, c->attention.head_dim};
    const int64_t k[] = {batch, c->attention.kv_heads, c->attention.head_dim};
    const int64_t cache[] = {1, CARRY_POOL_PAGE, c->attention.kv_heads, c->attention.head_dim};
    const int device = pass->lm->own.device;
    const carry_dtype dtype = pass->options.dtype;
    return (carry_attention_step_args){
        .q = carry_view_on(device, NULL, dtype, 3, q),
        .k = carry_view_on(device, NULL, dtype, 3, k),
        .keys = carry_view_on(device, NULL, pass->options.f8_caches ? CARRY_F8 : dtype, 4, cache),
        .paged = true,
        .most = pass->options.context,
        .window = c->attention.window};
}

static carry_attention_args piece_of(const carry_lm_pass *pass, int64_t tokens, int64_t keys) {
    const carry_lm_config *c = &pass->lm->config;
    const int64_t q[] = {tokens, c->attention.heads, c->attention.head_dim};
    const int64_t k[] = {keys, c->attention.kv_heads, c->attention.head_dim};
    const int device = pass->lm->own.device;
    return (carry_attention_args){.q = carry_view_on(device, NULL, pass->options.dtype, 3, q),
                                  .k = carry_view_on(device, NULL, pass->options.dtype, 3, k),
                                  .causal = true,
                                  .scale = (float)c->attention.scale,
                                  .window = c->attention.window};
}

/* Kernels for steps have no parameter for a scale. */
static bool has_steps(const carry_lm_pass *pass, const carry_attention_step_args *step) {
    return pass->lm->config.attention.scale == 0.0 && carry_attention_steps(step);
}

bool carry_lm_attention_pooled_records(const carry_lm_pass *pass) {
    const carry_attention_step_args step = step_of(pass, pass->options.pooled);
    return has_steps(pass, &step);
}

size_t carry_lm_attention_pooled_workspace(const carry_lm_pass *pass) {
    const int64_t context = pass->options.context;
    size_t most = 0;
    for (int64_t tokens = 1;; tokens *= 2) { /* few queries may need more memory than many */
        const int64_t T = tokens < pass->options.tokens ? tokens : pass->options.tokens;
        const carry_attention_args piece = piece_of(pass, T, context > T ? context : T);
        const size_t needed = carry_attention_paged_workspace(&piece);
        most = needed > most ? needed : most;
        if (T == pass->options.tokens) {
            break;
        }
    }
    const carry_attention_step_args step = step_of(pass, pass->options.pooled);
    const size_t steps = has_steps(pass, &step) ? carry_attention_step_workspace(&step) : 0;
    return steps > most ? steps : most;
}

/* The part that has the values; a latent is both key and value. */
static int values_of(const carry_lm_call *call) {
    return call->args->places->pool->part[call->layer][1].data != NULL ? 1 : 0;
}

/* The pages of a part as rows: [pages * CARRY_POOL_PAGE, heads, D]. */
static carry_tensor rows_of(const carry_lm_call *call, int part) {
    const carry_tensor *pages = &call->args->places->pool->part[call->layer][part];
    return carry_reshape_3d(*pages, pages->shape[0] * pages->shape[1], pages->shape[2], pages->shape[3]);
}

/* The scales of a part in 8 bits as rows, else nothing. */
static carry_tensor scales_of(const carry_lm_call *call, int part) {
    const carry_lm_state *pool = call->args->places->pool;
    const carry_tensor scales = pool->part[call->layer][part + 2];
    return pool->types.caches == CARRY_F8 ? carry_reshape_2d(scales, scales.shape[0] * scales.shape[1], scales.shape[2])
                                          : (carry_tensor){0};
}

/* Attention for `count` tokens of a sequence, starting at row `first` of the call, after `past` earlier tokens. */
static carry_status attend_piece(const carry_lm_call *call, int64_t sequence, int64_t first, int64_t count,
                                 int64_t past) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_attention_rows *r = call->rows;
    const carry_lm_places *p = call->args->places;
    carry_attention_args piece = piece_of(pass, count, past + count);
    piece.o = carry_slice(carry_lm_attention_heads(pass, r->o), first, count);
    piece.q = carry_slice(carry_lm_attention_heads(pass, r->q), first, count);
    piece.k = carry_slice(rows_of(call, 0), 0, past + count);
    piece.v = carry_slice(rows_of(call, values_of(call)), 0, past + count);
    const carry_attention_pages pages = {.list = p->there.pages + p->offsets[sequence],
                                         .key_scales = scales_of(call, 0),
                                         .value_scales = scales_of(call, values_of(call))};
    return carry_attention_paged(pass->ctx, &piece, &pages, pass->scratch, pass->scratch_bytes);
}

static carry_status attend_steps(const carry_lm_call *call, const carry_attention_step_args *about) {
    carry_lm_pass *pass = call->pass;
    const carry_lm_attention_rows *r = call->rows;
    const carry_lm_places *p = call->args->places;
    carry_attention_step_args step = *about;
    step.o = carry_slice(carry_lm_attention_heads(pass, r->o), 0, p->steps);
    step.q = carry_slice(carry_lm_attention_heads(pass, r->q), 0, p->steps);
    step.keys = p->pool->part[call->layer][0];
    step.values = p->pool->part[call->layer][1];
    step.lengths = carry_view_on(pass->lm->own.device, (void *)(uintptr_t)p->there.lengths, CARRY_I64, 1, &p->steps);
    step.key_scales = scales_of(call, 0);
    step.value_scales = scales_of(call, 1);
    step.pages = p->there.pages;
    step.offsets = p->there.offsets;
    return carry_attention_step(pass->ctx, &step, pass->scratch, pass->scratch_bytes);
}

carry_status carry_lm_attend_pooled(const carry_lm_call *call) {
    const carry_lm_places *p = call->args->places;
    const carry_lm_attention_rows *r = call->rows;
    int64_t sequence = 0;
    CARRY_TRY(carry_lm_pages_put(call, 0, r->k));
    CARRY_TRY(values_of(call) == 1 ? carry_lm_pages_put(call, 1, r->v) : CARRY_OK);
    if (call->count == 0) { /* the output is not read */
        return CARRY_OK;
    }
    if (p->steps > 0) {
        const carry_attention_step_args step = step_of(call->pass, p->steps);
        if (has_steps(call->pass, &step)) {
            CARRY_TRY(attend_steps(call, &step));
            sequence = p->steps;
        }
    }
    for (; sequence < p->sequences; sequence++) {
        const int64_t first = p->starts[sequence];
        const int64_t count = p->starts[sequence + 1] - first;
        const int64_t each = call->pass->options.same_bits ? 1 : count; /* the sums of a query depend on the other
                                                                           queries of its block */
        for (int64_t t = 0; t < count; t += each) {
            CARRY_TRY(attend_piece(call, sequence, first + t, each, p->lengths[sequence] + t));
        }
    }
    return CARRY_OK;
}
