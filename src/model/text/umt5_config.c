/* config.json of UMT5: the keys that an encoder needs. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/file.h"
#include "core/json.h"
#include "model/text/umt5.h"

#define FILE_LIMIT ((size_t)4 << 20)
#define MOST_LAYERS 512
#define MOST_WIDTH ((int64_t)1 << 17)
#define MOST_VOCABULARY ((int64_t)1 << 24)

typedef struct size_key {
    const char *key;
    int64_t *to;
    int64_t most;
    int64_t otherwise; /* default value; 0: the key is required */
} size_key;

static carry_status read_size(carry_ctx *ctx, const carry_json *root, const char *path, const size_key *k) {
    char shown[CARRY_JSON_SHOWN];
    const carry_json *node = carry_json_find(root, k->key);
    if (node == NULL && k->otherwise > 0) {
        *k->to = k->otherwise;
        return CARRY_OK;
    }
    if (node == NULL || node->kind != CARRY_JSON_NUMBER || !node->whole || node->as.number.integer < 1 ||
        node->as.number.integer > k->most) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s: \"%s\" is %s where a whole number from 1 to %" PRId64 " is expected",
                          path, k->key, node != NULL ? carry_json_show(shown, node) : "not there", k->most);
    }
    *k->to = node->as.number.integer;
    return CARRY_OK;
}

/* Checks a key that may be missing, but must have this value if it is there. */
static carry_status expect_text(carry_ctx *ctx, const carry_json *root, const char *path, const char *key,
                                const char *value) {
    char shown[CARRY_JSON_SHOWN];
    const carry_json *node = carry_json_find(root, key);
    if (node != NULL && !carry_json_is_text(node, value)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: \"%s\" is %s: only \"%s\" is supported", path, key,
                          carry_json_show(shown, node), value);
    }
    return CARRY_OK;
}

static carry_status read_config(carry_ctx *ctx, carry_umt5_config *c, const carry_json *root, const char *path) {
    const size_key sizes[] = {
        {"vocab_size", &c->vocab_size, MOST_VOCABULARY, 0},
        {"d_model", &c->d_model, MOST_WIDTH, 0},
        {"d_ff", &c->d_ff, MOST_WIDTH, 0},
        {"d_kv", &c->d_kv, 4096, 0},
        {"num_heads", &c->num_heads, 4096, 0},
        {"num_layers", &c->num_layers, MOST_LAYERS, 0},
        {"relative_attention_num_buckets", &c->buckets, 4096, 32},
        {"relative_attention_max_distance", &c->distance, (int64_t)1 << 20, 128},
    };
    CARRY_TRY(expect_text(ctx, root, path, "model_type", "umt5"));
    CARRY_TRY(expect_text(ctx, root, path, "feed_forward_proj", "gated-gelu"));
    CARRY_TRY(expect_text(ctx, root, path, "dense_act_fn", "gelu_new"));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CARRY_TRY(read_size(ctx, root, path, &sizes[i]));
    }
    if (c->num_heads * c->d_kv > MOST_WIDTH || c->buckets < 4 || c->buckets % 2 != 0 || c->distance <= c->buckets / 4) {
        return carry_fail(
            ctx, CARRY_EUNSUPPORTED,
            "%s: %" PRId64 " heads of %" PRId64 ", %" PRId64 " buckets for distances to %" PRId64
            ": heads of up to 131072 together, and an even number of buckets from 4 on with distances above "
            "a quarter of it, are supported",
            path, c->num_heads, c->d_kv, c->buckets, c->distance);
    }
    const carry_json *eps = carry_json_find(root, "layer_norm_epsilon");
    c->eps = eps != NULL && eps->kind == CARRY_JSON_NUMBER ? eps->as.number.value : 1e-6;
    if (!(c->eps > 0.0) || !(c->eps < 1.0)) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s: layer_norm_epsilon is %g where a number between 0 and 1 is expected",
                          path, c->eps);
    }
    return CARRY_OK;
}

carry_status carry_umt5_config_read(carry_ctx *ctx, carry_umt5_config *config, const char *folder) {
    char path[CARRY_FILE_PATH];
    carry_json *root = NULL;
    CARRY_TRY(carry_file_in(ctx, path, folder, "config.json"));
    CARRY_TRY(carry_json_read(ctx, &root, path, FILE_LIMIT));
    const carry_status status = read_config(ctx, config, root, path);
    carry_json_free(root);
    return status;
}

int64_t carry_umt5_bucket(int64_t distance, int64_t buckets, int64_t farthest) {
    const int64_t half = buckets / 2; /* for keys before, and for keys after */
    const int64_t exact = half / 2;   /* near distances have one bucket each; farther ones share buckets by logarithm */
    const int64_t side = distance > 0 ? half : 0;
    const int64_t away = distance > 0 ? distance : -distance;
    if (away < exact) {
        return side + away;
    }
    const float along = logf((float)away / (float)exact) / logf((float)farthest / (float)exact);
    const int64_t bucket = exact + (int64_t)(along * (float)(half - exact));
    return side + (bucket < half ? bucket : half - 1);
}
