/* The models that the decoding kernels support. */
#include "engine/decode_model.h"

#include <stdlib.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/tensor.h"
#include "engine/chain_ops.h"
#include "model/lm/feedforward/experts.h"
#include "model/lm/mixers/attention.h"
#include "model/lm/mixers/delta.h"

#define WIDEST 16384

static carry_tensor rows_of(carry_tensor whole, const carry_lm_slot *slot) {
    return slot->rows > 0 ? carry_slice(whole, slot->first, slot->rows) : whole;
}

const float *carry_decode_wide(const carry_lm *lm, const carry_lm_sublayer *own, int slot) {
    const carry_lm_slot *at = &own->slot[slot];
    return at->parameter >= 0 ? rows_of(carry_lm_weight(lm, at->parameter), at).data : NULL;
}

carry_tensor carry_decode_matrix(const carry_lm *lm, const carry_lm_sublayer *own, int slot) {
    const carry_lm_slot *at = &own->slot[slot];
    return at->parameter >= 0 ? rows_of(carry_parameters_product(&lm->own, at->parameter), at) : (carry_tensor){0};
}

static bool is_low(carry_tensor W, int64_t columns, const carry_decode_needs *needs) {
    return W.data != NULL && (W.dtype == CARRY_BF16 || (needs->quantised && W.dtype == CARRY_QUANTISED)) &&
           W.rank == 2 && W.shape[1] == columns && W.shape[0] % needs->rows == 0 && columns % CARRY_DECODE_KEY == 0;
}

static bool supports_delta(const carry_lm *lm, const carry_lm_sublayer *own, const carry_decode_needs *needs) {
    const carry_lm_config *c = &lm->config;
    return c->delta.use_delta_rule && c->delta.qk_activation == CARRY_SILU && c->delta.gated && c->delta.use_gate &&
           c->delta.use_short_conv && c->delta.key == CARRY_DECODE_KEY && c->delta.value == CARRY_DECODE_KEY &&
           c->delta.conv_size >= 2 && c->delta.conv_size <= 4 && c->delta.value_heads % needs->rows == 0 &&
           is_low(carry_decode_matrix(lm, own, CARRY_LM_Q_PROJ), c->hidden_size, needs) &&
           is_low(carry_decode_matrix(lm, own, CARRY_LM_O_PROJ), c->delta.value_width, needs);
}

static bool supports_attention(const carry_lm *lm, const carry_lm_sublayer *own, const carry_decode_needs *needs) {
    const carry_lm_config *c = &lm->config;
    const int64_t width = c->attention.head_dim;
    return c->attention.window == 0 && c->attention.scale == 0.0 && !c->attention.bias &&
           c->attention.qk_norm != CARRY_LM_NORM_WIDTH && (width == 128 || width == 256) &&
           c->attention.heads <= needs->group * c->attention.kv_heads && c->attention.rotary % (width / 16) == 0 &&
           is_low(carry_decode_matrix(lm, own, CARRY_LM_ATTENTION_Q), c->hidden_size, needs) &&
           is_low(carry_decode_matrix(lm, own, CARRY_LM_ATTENTION_O), c->attention.heads * width, needs);
}

static bool supports_swiglu(const carry_lm *lm, const carry_lm_sublayer *own, const carry_decode_needs *needs) {
    const carry_lm_config *c = &lm->config;
    return is_low(carry_decode_matrix(lm, own, CARRY_LM_SWIGLU_GATE), c->hidden_size, needs) &&
           is_low(carry_decode_matrix(lm, own, CARRY_LM_SWIGLU_DOWN), c->swiglu.width, needs);
}

#define EXPERTS_BYTES ((int64_t)160 << 10) /* of shared memory for the inputs of down, in f32, padded to units */

static bool is_format(const carry_tensor *W, int64_t format) {
    carry_quant_tiles layout;
    return carry_quant_tiles_of_tensor(&layout, W) && layout.format == format;
}

/* True if all matrices of experts are in tiles, and those of the shared expert have the same formats. */
static bool supports_quantised_experts(const carry_lm *lm, const carry_lm_sublayer *own) {
    const carry_lm_experts_options *e = &lm->config.experts;
    const carry_tensor up = carry_decode_matrix(lm, own, CARRY_LM_EXPERTS_UP);
    const carry_tensor down = carry_decode_matrix(lm, own, CARRY_LM_EXPERTS_DOWN);
    const carry_tensor shared[] = {carry_decode_matrix(lm, own, CARRY_LM_EXPERTS_SHARED_GATE),
                                   carry_decode_matrix(lm, own, CARRY_LM_EXPERTS_SHARED_UP),
                                   carry_decode_matrix(lm, own, CARRY_LM_EXPERTS_SHARED_DOWN)};
    carry_quant_tiles u;
    carry_quant_tiles d;
    bool fits = carry_quant_tiles_of_stack(&u, &up) && carry_quant_tiles_of_stack(&d, &down) &&
                up.stride[0] == (int64_t)u.all_bytes && down.stride[0] == (int64_t)d.all_bytes &&
                e->width % CARRY_QUANT_TILE_ROWS == 0 && e->shared_width % CARRY_QUANT_TILE_ROWS == 0;
    for (int i = 0; fits && i < (e->shared_width > 0 ? 3 : 0); i++) {
        fits = is_format(&shared[i], i < 2 ? u.format : d.format);
    }
    const int64_t unit = CARRY_QUANT_UNIT_COLUMNS;
    return fits &&
           (e->chosen * d.units + (e->shared_width + unit - 1) / unit) * unit * (int64_t)sizeof(float) <= EXPERTS_BYTES;
}

/* True if all matrices of experts have one type, and their rows are multiples of 16 bytes. */
static bool supports_experts(const carry_lm *lm, const carry_lm_sublayer *own, const carry_decode_needs *needs) {
    const carry_lm_config *c = &lm->config;
    const carry_lm_experts_options *e = &c->experts;
    const carry_decode_needs plain = {.rows = 1}; /* not quantised */
    const int slots[] = {CARRY_LM_EXPERTS_UP, CARRY_LM_EXPERTS_DOWN, CARRY_LM_EXPERTS_SHARED_GATE,
                         CARRY_LM_EXPERTS_SHARED_UP, CARRY_LM_EXPERTS_SHARED_DOWN};
    bool fits = e->gated && !e->bias && e->latent == 0 && e->router.score == CARRY_ROUTER_SOFTMAX &&
                e->router.groups <= 1 && e->count <= CARRY_CHAIN_EXPERTS_MOST && e->chosen <= CARRY_CHAIN_CHOSEN_MOST &&
                e->width % 8 == 0 && e->shared_width % 8 == 0 && e->chosen * e->width + e->shared_width <= WIDEST &&
                is_low(carry_decode_matrix(lm, own, CARRY_LM_EXPERTS_ROUTER), c->hidden_size, &plain);
    const bool is_quantised = carry_decode_matrix(lm, own, CARRY_LM_EXPERTS_UP).dtype == CARRY_QUANTISED;
    fits = fits && (!is_quantised || (needs->quantised && supports_quantised_experts(lm, own)));
    for (int i = 0; fits && !is_quantised && i < (e->shared_width > 0 ? 5 : 2); i++) {
        const carry_tensor W = carry_decode_matrix(lm, own, slots[i]);
        fits = W.data != NULL && W.dtype == CARRY_BF16 && (uintptr_t)W.data % 16 == 0;
    }
    const carry_tensor scale = carry_decode_matrix(lm, own, CARRY_LM_EXPERTS_SHARED_SCALE);
    return fits && (scale.data == NULL || (scale.dtype == CARRY_BF16 && (uintptr_t)scale.data % 16 == 0));
}

static bool supports_layer(const carry_lm *lm, const carry_lm_layer *layer, const carry_decode_needs *needs) {
    const carry_lm_sublayer *own = &layer->feedforward;
    const bool mixer = layer->mixer.part == &carry_lm_mixer_delta       ? supports_delta(lm, &layer->mixer, needs)
                       : layer->mixer.part == &carry_lm_mixer_attention ? supports_attention(lm, &layer->mixer, needs)
                                                                        : false;
    return mixer && !layer->norms_after &&
           (own->part == &carry_lm_feedforward_swiglu    ? supports_swiglu(lm, own, needs)
            : own->part == &carry_lm_feedforward_experts ? needs->experts && supports_experts(lm, own, needs)
                                                         : false);
}

bool carry_decode_supports(const carry_lm *lm, const carry_decode_needs *needs, int64_t *columns) {
    const carry_lm_config *c = &lm->config;
    const int64_t heads = c->attention.heads * c->attention.head_dim;
    *columns = c->swiglu.width > c->hidden_size ? c->swiglu.width : c->hidden_size;
    *columns = c->delta.value_width > *columns ? c->delta.value_width : *columns;
    *columns = heads > *columns ? heads : *columns;
    if (c->embedding_factor != 0.0 || c->residual_factor != 0.0 || c->logits_divisor != 0.0 || *columns > WIDEST ||
        c->hidden_size > 64 * CARRY_DECODE_KEY ||
        !is_low(carry_parameters_product(&lm->own, lm->head), c->hidden_size, needs) ||
        !is_low(carry_parameters_product(&lm->own, lm->embeddings), c->hidden_size, needs)) {
        return false;
    }
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        if (!supports_layer(lm, &lm->layer[i], needs)) {
            return false;
        }
    }
    return true;
}

carry_status carry_decode_put_rates(const carry_lm *lm, float *to) {
    const int64_t half = lm->config.attention.rotary / 2;
    float *rates = half > 0 ? malloc((size_t)half * sizeof *rates) : NULL;
    if (half == 0) {
        return CARRY_OK;
    }
    if (rates == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: the rates of %lld angles", (long long)half);
    }
    carry_lm_attention_rates(&lm->config, rates);
    const carry_status status =
        carry_device_copy(lm->ctx, to, lm->own.device, rates, 0, (size_t)half * sizeof *rates, NULL);
    free(rates);
    return status;
}
