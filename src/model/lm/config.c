/* A language model's configuration: defaults, checks, and what follows from them. config_file.c reads and writes it. */
#include "model/lm/config.h"

#include <inttypes.h>
#include <math.h>

#include "carry/delta.h"
#include "core/error.h"
#include "core/memory.h"
#include "model/lm/mixers/mixer.h"

#define MAX_WIDTH ((int64_t)1 << 24)
#define MAX_VOCABULARY ((int64_t)1 << 28)
#define MAX_CONV 16
#define MAX_HOUSEHOLDER 64
#define MAX_VALUE \
    ((int64_t)8 * CARRY_DELTA_MAX_DIM) /* of a head: wider ones are done in slices (recurrence/recurrence.h) */
#define CARRY_ATTENTION_MAX_DIM 256    /* carry/attention.h */

static const struct {
    const char *type, *architecture;
} kinds[CARRY_LM_KINDS] = {
    [CARRY_LM_GATED_DELTANET] = {"gated_deltanet", "GatedDeltaNetForCausalLM"},
    [CARRY_LM_DELTA_NET] = {"delta_net", "DeltaNetForCausalLM"},
    [CARRY_LM_QWEN3_5] = {"qwen3_5_text", "Qwen3_5ForCausalLM"},
    [CARRY_LM_OLMO_HYBRID] = {"olmo_hybrid", "OlmoHybridForCausalLM"},
    [CARRY_LM_GATED_DELTAPRODUCT] = {"gated_deltaproduct", "GatedDeltaProductForCausalLM"},
};

bool carry_lm_is_fla(carry_lm_kind kind) {
    return kind != CARRY_LM_QWEN3_5 && kind != CARRY_LM_OLMO_HYBRID;
}

const char *carry_lm_kind_name(carry_lm_kind kind) {
    return kinds[kind].type;
}

const char *carry_lm_kind_architecture(carry_lm_kind kind) {
    return kinds[kind].architecture;
}

static carry_lm_config default_qwen3_5(void) {
    return (carry_lm_config){
        .kind = CARRY_LM_QWEN3_5,
        .vocab_size = 248320,
        .hidden_size = 4096,
        .intermediate_size = 12288,
        .num_hidden_layers = 32,
        .norm_eps = 1e-6,
        .initializer_range = 0.02,
        .max_position_embeddings = 32768,
        .bos_token_id = -1,
        .eos_token_id = -1,
        .pad_token_id = -1,
        .num_heads = 16,
        .num_v_heads = 32,
        .head_dim = 128,
        .value_head_dim = 128,
        .conv_size = 4,
        .use_gate = true,
        .use_short_conv = true,
        .use_beta = true,
        .use_output_norm = true,
        .use_delta_rule = true,
        .qk_activation = CARRY_SILU,
        .attn_heads = 16,
        .attn_kv_heads = 4,
        .attn_head_dim = 256,
        .rope_theta = 10000.0,
        .rotary_factor = 0.25,
        .qk_norm = CARRY_LM_NORM_HEADS,
        .attn_gate = true,
        .full_attention_interval = 4,
    };
}

static carry_lm_config default_olmo_hybrid(void) {
    carry_lm_config c = default_qwen3_5();
    c.kind = CARRY_LM_OLMO_HYBRID;
    c.vocab_size = 100352;
    c.hidden_size = 3840;
    c.intermediate_size = 11008;
    c.max_position_embeddings = 65536;
    c.pad_token_id = 100277;
    c.eos_token_id = 100257;
    c.num_heads = c.num_v_heads = c.head_dim = c.value_head_dim = 0; /* null: they follow from others */
    c.allow_neg_eigval = true;
    c.attn_heads = 30;
    c.attn_kv_heads = c.attn_head_dim = 0;
    c.rope_theta = 0.0;
    c.rotary_factor = 1.0;
    c.qk_norm = CARRY_LM_NORM_WIDTH;
    c.attn_gate = false;
    return c;
}

carry_lm_config carry_lm_config_default(carry_lm_kind kind) {
    if (kind == CARRY_LM_QWEN3_5) {
        return default_qwen3_5();
    }
    if (kind == CARRY_LM_OLMO_HYBRID) {
        return default_olmo_hybrid();
    }
    const bool gated = kind != CARRY_LM_DELTA_NET;
    const bool product = kind == CARRY_LM_GATED_DELTAPRODUCT;
    return (carry_lm_config){
        .kind = kind,
        .vocab_size = 32000,
        .hidden_size = 2048,
        .num_hidden_layers = gated ? 21 : 24,
        .num_heads = gated ? 6 : 16,
        .head_dim = gated ? 256 : 0,
        .expand_k = 1.0,
        .expand_v = gated ? 2.0 : 1.0,
        .hidden_ratio = 4.0,
        .conv_size = 4,
        .use_gate = gated,
        .use_short_conv = true,
        .use_beta = true,
        .use_delta_rule = true,
        .use_output_norm = true,
        .allow_neg_eigval = product,
        .num_householder = product ? 2 : 0,
        .use_forget_gate = product,
        .qk_activation = CARRY_SILU,
        .rope_theta = 10000.0,
        .rotary_factor = 1.0,
        .norm_eps = 1e-6,
        .initializer_range = 0.02,
        .max_position_embeddings = 2048,
        .bos_token_id = 1,
        .eos_token_id = 2,
        .pad_token_id = -1,
    };
}

static carry_status check_size(carry_ctx *ctx, const char *key, int64_t size, int64_t most) {
    if (size < 1 || size > most) {
        return carry_fail(ctx, CARRY_ESIZE, "%s is %" PRId64 " and must be 1 to %" PRId64, key, size, most);
    }
    return CARRY_OK;
}

static carry_status check_number(carry_ctx *ctx, const char *key, double number, double most) {
    if (!(number > 0.0 && number <= most)) {
        return carry_fail(ctx, CARRY_ESIZE, "%s is %g and must be above 0 and at most %g", key, number, most);
    }
    return CARRY_OK;
}

/* size times factor, rounded down; exact: it must be whole, to the 1e-5 that flash-linear-attention allows there. */
static carry_status expand(carry_ctx *ctx, int64_t *result, const char *key, double factor, const char *of,
                           int64_t size, bool exact) {
    double product = factor * (double)size;
    double whole = floor(product);
    CARRY_TRY(check_number(ctx, key, factor, 1024.0));
    if (whole < 1.0 || whole > (double)MAX_WIDTH || (exact && product - whole > 1e-5 * product)) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "%s %g times %s %" PRId64 " is %g and must be a whole number from 1 to %" PRId64, key, factor,
                          of, size, product, MAX_WIDTH);
    }
    *result = (int64_t)whole;
    return CARRY_OK;
}

static carry_status finish_gated(carry_ctx *ctx, carry_lm_config *c) {
    CARRY_TRY(check_size(ctx, "head_dim", c->head_dim, CARRY_DELTA_MAX_DIM));
    c->value_heads = c->num_v_heads != 0 ? c->num_v_heads : c->num_heads;
    CARRY_TRY(check_size(ctx, "num_v_heads", c->value_heads, MAX_WIDTH));
    if (c->value_heads % c->num_heads != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "num_v_heads is %" PRId64 " and num_heads is %" PRId64 ": it must be a multiple of it",
                          c->value_heads, c->num_heads);
    }
    c->key = c->head_dim;
    c->value = c->value_head_dim;
    if (c->value == 0) {
        CARRY_TRY(expand(ctx, &c->value, "expand_v", c->expand_v, "head_dim", c->head_dim, true));
    }
    c->key_width = c->num_heads * c->key;
    c->value_width = c->value_heads * c->value;
    return CARRY_OK;
}

static carry_status finish_delta(carry_ctx *ctx, carry_lm_config *c) {
    CARRY_TRY(expand(ctx, &c->key_width, "expand_k", c->expand_k, "hidden_size", c->hidden_size, false));
    CARRY_TRY(expand(ctx, &c->value_width, "expand_v", c->expand_v, "hidden_size", c->hidden_size, false));
    if (c->key_width % c->num_heads != 0 || c->value_width % c->num_heads != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "num_heads is %" PRId64 ", which does not divide the widths %" PRId64 " of keys and %" PRId64
                          " of values",
                          c->num_heads, c->key_width, c->value_width);
    }
    c->value_heads = c->num_heads;
    c->key = c->key_width / c->num_heads;
    c->value = c->value_width / c->num_heads;
    return CARRY_OK;
}

/* What is null in a configuration of olmo_hybrid. */
static void fill_in_olmo(carry_lm_config *c) {
    c->num_heads = c->num_heads != 0 ? c->num_heads : c->attn_heads;
    c->num_v_heads = c->num_v_heads != 0 ? c->num_v_heads : c->attn_heads;
    if (c->head_dim == 0 && c->num_heads > 0) {
        c->head_dim = (int64_t)(0.75 * (double)c->hidden_size / (double)c->num_heads);
    }
    c->value_head_dim = c->value_head_dim != 0 ? c->value_head_dim : 2 * c->head_dim;
}

/* Which layers have attention, where the file does not list them. */
static carry_status finish_layers(carry_ctx *ctx, carry_lm_config *c) {
    const bool from_transformers = !carry_lm_is_fla(c->kind);
    if (c->layers_listed != 0 && c->layers_listed != c->num_hidden_layers) {
        return carry_fail(ctx, CARRY_ESIZE, "layer_types lists %" PRId64 " layers and num_hidden_layers is %" PRId64,
                          c->layers_listed, c->num_hidden_layers);
    }
    if (from_transformers && c->layers_listed == 0) {
        CARRY_TRY(check_size(ctx, "full_attention_interval", c->full_attention_interval, MAX_WIDTH));
        for (int64_t i = 0; i < c->num_hidden_layers; i++) {
            c->layer[i] = (i + 1) % c->full_attention_interval == 0 ? CARRY_LM_MIXER_ATTENTION : CARRY_LM_MIXER_DELTA;
        }
        if (c->kind == CARRY_LM_OLMO_HYBRID && c->num_hidden_layers < c->full_attention_interval) {
            c->layer[c->num_hidden_layers - 1] = CARRY_LM_MIXER_ATTENTION;
        }
    }
    for (int64_t i = 0; c->kind == CARRY_LM_GATED_DELTAPRODUCT && i < c->num_hidden_layers; i++) {
        c->layer[i] = c->layer[i] == CARRY_LM_MIXER_DELTA ? CARRY_LM_MIXER_DELTAPRODUCT : c->layer[i];
    }
    c->has_attention = false;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        c->has_attention = c->has_attention || c->layer[i] == CARRY_LM_MIXER_ATTENTION;
    }
    return CARRY_OK;
}

static carry_status finish_attention(carry_ctx *ctx, carry_lm_config *c) {
    CARRY_TRY(check_size(ctx, "the number of attention heads", c->attn_heads, MAX_WIDTH));
    c->attn_kv_heads = c->attn_kv_heads != 0 ? c->attn_kv_heads : c->attn_heads;
    c->attn_head_dim = c->attn_head_dim != 0 ? c->attn_head_dim : c->hidden_size / c->attn_heads;
    CARRY_TRY(check_size(ctx, "the number of heads of keys", c->attn_kv_heads, MAX_WIDTH));
    CARRY_TRY(check_size(ctx, "the width of an attention head", c->attn_head_dim, CARRY_ATTENTION_MAX_DIM));
    if (c->attn_heads % c->attn_kv_heads != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "attention has %" PRId64 " heads and %" PRId64 " heads of keys, which must divide them",
                          c->attn_heads, c->attn_kv_heads);
    }
    CARRY_TRY(check_size(ctx, "the width of all attention heads", c->attn_heads * c->attn_head_dim, MAX_WIDTH));
    c->rotary = 0;
    if (c->rope_theta != 0.0) {
        CARRY_TRY(check_number(ctx, "rope_theta", c->rope_theta, 1e15));
        CARRY_TRY(check_number(ctx, "partial_rotary_factor", c->rotary_factor, 1.0));
        c->rotary = (int64_t)((double)c->attn_head_dim * c->rotary_factor);
        if (c->rotary < 2 || c->rotary % 2 != 0) {
            return carry_fail(ctx, CARRY_ESIZE,
                              "rotary positions of %" PRId64 " of the %" PRId64
                              " elements of a head: the number must be even and at least 2",
                              c->rotary, c->attn_head_dim);
        }
    }
    return CARRY_OK;
}

/* The whole model in f32 must be something that memory could be. */
static carry_status check_whole(carry_ctx *ctx, const carry_lm_config *c) {
    const int64_t steps = c->num_householder > 1 ? c->num_householder : 1;
    const int64_t layer[] = {c->num_hidden_layers, c->hidden_size,
                             3 * c->intermediate + (1 + steps) * c->key_width + (2 + steps) * c->value_width +
                                 2 * c->value_heads + 64 +
                                 5 * (c->has_attention ? c->attn_heads * c->attn_head_dim : 0),
                             4};
    const int64_t ends[] = {c->vocab_size, c->hidden_size, 2, 4};
    size_t layers;
    size_t rest;
    if (!carry_size_product(&layers, layer, 4, 4) || !carry_size_product(&rest, ends, 4, 4) ||
        !carry_size_add(&rest, rest, layers) || rest > INT64_MAX) {
        return carry_fail(ctx, CARRY_ESIZE, "the model has more parameters than memory could hold");
    }
    return CARRY_OK;
}

carry_status carry_lm_config_finish(carry_ctx *ctx, carry_lm_config *c) {
    CARRY_TRY(check_size(ctx, "vocab_size", c->vocab_size, MAX_VOCABULARY));
    CARRY_TRY(check_size(ctx, "hidden_size", c->hidden_size, MAX_WIDTH));
    CARRY_TRY(check_size(ctx, "num_hidden_layers", c->num_hidden_layers, CARRY_LM_MAX_LAYERS));
    if (c->kind == CARRY_LM_OLMO_HYBRID) {
        fill_in_olmo(c);
    }
    CARRY_TRY(finish_layers(ctx, c));
    if (c->has_attention) {
        CARRY_TRY(finish_attention(ctx, c));
    }
    CARRY_TRY(check_size(ctx, "num_heads", c->num_heads, MAX_WIDTH));
    c->gated = c->kind == CARRY_LM_GATED_DELTAPRODUCT ? c->use_forget_gate : c->kind != CARRY_LM_DELTA_NET;
    if (c->kind == CARRY_LM_GATED_DELTAPRODUCT) {
        CARRY_TRY(check_size(ctx, "num_householder", c->num_householder, MAX_HOUSEHOLDER));
    }
    c->norm_plus_one = c->kind == CARRY_LM_QWEN3_5;
    c->o_norm_eps = c->kind == CARRY_LM_OLMO_HYBRID ? 1e-5 : c->norm_eps; /* its class has it fixed */
    CARRY_TRY(c->kind == CARRY_LM_DELTA_NET ? finish_delta(ctx, c) : finish_gated(ctx, c));
    CARRY_TRY(check_size(ctx, "the width of a key's head", c->key, CARRY_DELTA_MAX_DIM));
    CARRY_TRY(check_size(ctx, "the width of a value's head", c->value, MAX_VALUE));
    CARRY_TRY(check_size(ctx, "the width of all keys", c->key_width, MAX_WIDTH));
    CARRY_TRY(check_size(ctx, "the width of all values", c->value_width, MAX_WIDTH));
    if (c->use_short_conv) {
        CARRY_TRY(check_size(ctx, "conv_size", c->conv_size, MAX_CONV));
    }
    CARRY_TRY(check_number(ctx, "norm_eps", c->norm_eps, 1.0));
    CARRY_TRY(check_number(ctx, "initializer_range", c->initializer_range, 1e3));
    c->intermediate = c->intermediate_size;
    if (c->intermediate_size == 0) {
        double ratio = c->hidden_ratio != 0.0 ? c->hidden_ratio : 4.0;
        CARRY_TRY(check_number(ctx, "hidden_ratio", ratio, 1024.0));
        c->intermediate = ((int64_t)((double)c->hidden_size * ratio * 2.0 / 3.0) + 255) / 256 * 256;
    }
    CARRY_TRY(check_size(ctx, "intermediate_size", c->intermediate, MAX_WIDTH));
    return check_whole(ctx, c);
}
