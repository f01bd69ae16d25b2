/* A language model's configuration: defaults, checks, and what follows from them. config_file.c reads and writes it. */
#include "model/lm/config.h"

#include <inttypes.h>
#include <math.h>

#include "carry/delta.h"
#include "core/error.h"
#include "core/memory.h"

#define MAX_WIDTH ((int64_t)1 << 24)
#define MAX_VOCABULARY ((int64_t)1 << 28)
#define MAX_LAYERS 4096
#define MAX_CONV 16
#define MAX_VALUE ((int64_t)8 * CARRY_DELTA_MAX_DIM) /* of a head: wider ones are done in slices (mixer.h) */

const char *carry_lm_kind_name(carry_lm_kind kind) {
    return kind == CARRY_LM_DELTA_NET ? "delta_net" : "gated_deltanet";
}

carry_lm_config carry_lm_config_default(carry_lm_kind kind) {
    bool gated = kind == CARRY_LM_GATED_DELTANET;
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
        .qk_activation = CARRY_SILU,
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
    CARRY_TRY(expand(ctx, &c->value, "expand_v", c->expand_v, "head_dim", c->head_dim, true));
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

/* The whole model in f32 must be something that memory could be. */
static carry_status check_whole(carry_ctx *ctx, const carry_lm_config *c) {
    const int64_t layer[] = {c->num_hidden_layers, c->hidden_size,
                             3 * c->intermediate + 2 * c->key_width + 3 * c->value_width + 2 * c->value_heads + 64, 4};
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
    CARRY_TRY(check_size(ctx, "num_hidden_layers", c->num_hidden_layers, MAX_LAYERS));
    CARRY_TRY(check_size(ctx, "num_heads", c->num_heads, MAX_WIDTH));
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
