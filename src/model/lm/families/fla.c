/* Shared by the families of flash-linear-attention. */
#include "model/lm/families/fla.h"

#include <inttypes.h>
#include <math.h>

#include "carry/delta.h"
#include "core/error.h"

const char *const carry_lm_fla_attention_names[] = {
    "attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.q_norm.weight", "attn.k_norm.weight",
    "attn.o_proj.weight", "attn.q_proj.bias",   "attn.k_proj.bias",   "attn.v_proj.bias",   "attn.o_proj.bias"};

void carry_lm_fla_set_defaults(carry_lm_config *c) {
    carry_lm_fla *own = carry_lm_fla_of(c);
    c->vocab_size = 32000;
    c->hidden_size = 2048;
    c->norm_eps = 1e-6;
    c->initializer_range = 0.02;
    c->max_position_embeddings = 2048;
    c->bos_token_id = 1;
    c->eos_token_id = 2;
    c->pad_token_id = -1;
    c->delta = (carry_lm_delta_options){
        .conv_size = 4, .use_short_conv = true, .use_beta = true, .use_delta_rule = true, .qk_activation = CARRY_SILU};
    c->attention = (carry_lm_attention_options){.rope_theta = 10000.0, .rotary_factor = 1.0};
    *own = (carry_lm_fla){.hidden_ratio = 4.0, .expand_k = 1.0, .use_output_norm = true};
}

carry_status carry_lm_fla_expand(carry_ctx *ctx, int64_t *result, const char *key, double factor, const char *of,
                                 int64_t size, bool exact) {
    double product = factor * (double)size;
    double whole = floor(product);
    CARRY_TRY(carry_lm_check_number(ctx, key, factor, 1024.0));
    if (whole < 1.0 || whole > (double)CARRY_LM_MAX_WIDTH || (exact && product - whole > 1e-5 * product)) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "%s %g times %s %" PRId64 " is %g and must be a whole number from 1 to %" PRId64, key, factor,
                          of, size, product, CARRY_LM_MAX_WIDTH);
    }
    *result = (int64_t)whole;
    return CARRY_OK;
}

carry_status carry_lm_fla_finish(carry_ctx *ctx, carry_lm_config *c) {
    const carry_lm_fla *own = carry_lm_fla_of(c);
    CARRY_TRY(carry_lm_check_size(ctx, "num_heads", c->delta.heads, CARRY_LM_MAX_WIDTH));
    c->delta.norm_eps = c->norm_eps;
    c->swiglu.width = own->intermediate_size;
    if (own->intermediate_size == 0) {
        double ratio = own->hidden_ratio != 0.0 ? own->hidden_ratio : 4.0;
        CARRY_TRY(carry_lm_check_number(ctx, "hidden_ratio", ratio, 1024.0));
        c->swiglu.width = ((int64_t)((double)c->hidden_size * ratio * 2.0 / 3.0) + 255) / 256 * 256;
    }
    return CARRY_OK;
}

carry_status carry_lm_fla_finish_gated(carry_ctx *ctx, carry_lm_config *c) {
    const carry_lm_fla *own = carry_lm_fla_of(c);
    carry_lm_delta_options *d = &c->delta;
    CARRY_TRY(carry_lm_fla_finish(ctx, c));
    CARRY_TRY(carry_lm_check_size(ctx, "head_dim", own->head_dim, CARRY_MAX_DELTA_DIM));
    d->value_heads = own->num_v_heads != 0 ? own->num_v_heads : d->heads;
    d->key = own->head_dim;
    return carry_lm_fla_expand(ctx, &d->value, "expand_v", own->expand_v, "head_dim", own->head_dim, true);
}

static carry_status read_layers(const carry_lm_source *s, const carry_json *node) {
    for (const carry_json *one = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL; one != NULL;
         one = one->next) {
        const int64_t layer = one->kind == CARRY_JSON_NUMBER && one->whole ? one->as.number.integer : -1;
        if (layer < 0 || layer >= CARRY_LM_MAX_LAYERS) {
            return carry_lm_config_refuse(s, node, "a list of the numbers of layers is expected");
        }
        s->config->mixer[layer] = CARRY_LM_MIXER_ATTENTION;
    }
    return node->kind == CARRY_JSON_ARRAY ? CARRY_OK : carry_lm_config_refuse(s, node, "a list of layers is expected");
}

carry_status carry_lm_fla_read_attn(const carry_lm_source *s, const carry_json *node) {
    static const carry_lm_key keys[] = {
        {"layers", CARRY_LM_OTHER, 0, read_layers, NULL, NULL},
        CARRY_LM_KEY("num_heads", attention.heads, SIZE),
        CARRY_LM_KEY("num_kv_heads", attention.kv_heads, SIZE_OR_NULL),
        CARRY_LM_KEY("window_size", attention.window, SIZE_OR_NULL),
        CARRY_LM_KEY("rope_theta", attention.rope_theta, NUMBER),
        CARRY_LM_WORD("qkv_bias", MUST_BE_OFF),
        CARRY_LM_WORD("qk_norm", MUST_BE_OFF),
        CARRY_LM_LAST_KEY,
    };
    if (node->kind == CARRY_JSON_NULL || (node->kind == CARRY_JSON_BOOL && !node->truth)) {
        return CARRY_OK;
    }
    if (node->kind != CARRY_JSON_OBJECT || carry_json_find(node, "layers") == NULL ||
        carry_json_find(node, "num_heads") == NULL) {
        return carry_lm_config_refuse(s, node, "an object with \"layers\" and \"num_heads\", or null, is expected");
    }
    return carry_lm_config_read_object(s, keys, node);
}

void carry_lm_fla_write_attn(carry_json_text *text, const carry_lm_config *c) {
    const carry_lm_attention_options *a = &c->attention;
    if (!c->has_attention) {
        carry_json_put_raw(text, "null");
        return;
    }
    carry_json_put_raw(text, "{\"layers\": [");
    const char *comma = "";
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        if (c->mixer[i] == CARRY_LM_MIXER_ATTENTION) {
            carry_json_put_raw(text, "%s%" PRId64, comma, i);
            comma = ", ";
        }
    }
    carry_json_put_raw(text, "], \"num_heads\": %" PRId64 ", \"num_kv_heads\": %" PRId64 ", \"qkv_bias\": false, ",
                       a->heads, a->kv_heads);
    carry_json_put_raw(text, a->window > 0 ? "\"window_size\": %" PRId64 ", " : "\"window_size\": null, ", a->window);
    carry_json_put_raw(text, "\"rope_theta\": ");
    carry_json_put_double(text, a->rope_theta);
    carry_json_put_raw(text, "}");
}
