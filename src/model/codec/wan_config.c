/* config.json of Wan's autoencoder. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "model/codec/wan_vae.h"
#include "core/json.h"

#define CONFIG_LIMIT ((size_t)4 << 20)

/* Mean and deviation of Wan 2.1's latents, used if config.json does not have them. */
static const float known_mean[CARRY_LATENT_CHANNELS] = {-0.7571f, -0.7089f, -0.9113f, 0.1075f,  -0.1745f, 0.9653f,
                                                        -0.1517f, 1.5508f,  0.4134f,  -0.0715f, 0.5517f,  -0.3632f,
                                                        -0.1922f, -0.9497f, 0.2503f,  -0.2921f};
static const float known_deviation[CARRY_LATENT_CHANNELS] = {2.8184f, 1.4541f, 2.3275f, 2.6558f, 1.2196f, 1.7708f,
                                                             2.6052f, 2.0743f, 3.2687f, 2.1526f, 2.8652f, 1.5579f,
                                                             1.6382f, 1.1253f, 2.8251f, 1.9160f};

typedef struct reading {
    carry_ctx *ctx;
    const carry_json *root;
    const char *path;
} reading;

static bool is_whole(const carry_json *node, int64_t value) {
    return node != NULL && node->kind == CARRY_JSON_NUMBER && node->whole && node->as.number.integer == value;
}

static carry_status refuse(const reading *r, const char *key, const char *needed) {
    char shown[CARRY_JSON_SHOWN];
    const carry_json *node = carry_json_find(r->root, key);
    return carry_fail(r->ctx, CARRY_EUNSUPPORTED, "%s has %s for \"%s\": %s is needed", r->path,
                      node != NULL ? carry_json_show(shown, node) : "nothing", key, needed);
}

/* Checks a key that may be missing and has only one supported value. */
static carry_status expect_number(const reading *r, const char *key, int64_t value, const char *shown) {
    const carry_json *node = carry_json_find(r->root, key);
    return node == NULL || is_whole(node, value) ? CARRY_OK : refuse(r, key, shown);
}

static carry_status read_number(const reading *r, int64_t *to, const char *key, int64_t otherwise, int64_t most) {
    const carry_json *node = carry_json_find(r->root, key);
    *to = otherwise;
    if (node == NULL) {
        return CARRY_OK;
    }
    if (node->kind != CARRY_JSON_NUMBER || !node->whole || node->as.number.integer < 1 ||
        node->as.number.integer > most) {
        char needed[64];
        (void)snprintf(needed, sizeof needed, "a number from 1 to %" PRId64, most);
        return refuse(r, key, needed);
    }
    *to = node->as.number.integer;
    return CARRY_OK;
}

static carry_status read_statistics(const reading *r, float *to, const char *key, const float *known, bool positive) {
    const carry_json *node = carry_json_find(r->root, key);
    memcpy(to, known, CARRY_LATENT_CHANNELS * sizeof *to);
    if (node == NULL || node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    int at = 0;
    const carry_json *item = node->kind == CARRY_JSON_ARRAY ? carry_json_first(node) : NULL;
    for (; item != NULL && at < CARRY_LATENT_CHANNELS && item->kind == CARRY_JSON_NUMBER; item = item->next) {
        to[at++] = (float)carry_json_number(item);
        if (!isfinite(to[at - 1]) || (positive && !(to[at - 1] > 0.0f))) {
            break;
        }
    }
    return at == CARRY_LATENT_CHANNELS && item == NULL
               ? CARRY_OK
               : refuse(r, key, positive ? "a list of 16 numbers above 0" : "a list of 16 numbers");
}

static carry_status read_widths(const reading *r, carry_wan_config *config) {
    static const int64_t known[CARRY_WAN_LEVELS] = {1, 2, 4, 4};
    int64_t base;
    CARRY_TRY(read_number(r, &base, "base_dim", 96, CARRY_CODEC_WIDTH_LIMIT / 16));
    const carry_json *node = carry_json_find(r->root, "dim_mult");
    const carry_json *item = node != NULL && node->kind == CARRY_JSON_ARRAY ? carry_json_first(node) : NULL;
    for (int i = 0; i < CARRY_WAN_LEVELS; i++) {
        if (node != NULL && (item == NULL || item->kind != CARRY_JSON_NUMBER || !item->whole ||
                             item->as.number.integer < 1 || item->as.number.integer > 16)) {
            return refuse(r, "dim_mult", "a list of four numbers from 1 to 16");
        }
        config->width[i] = base * (item != NULL ? item->as.number.integer : known[i]);
        item = item != NULL ? item->next : NULL;
    }
    /* A decoder level starts with half the width of the one before it. */
    for (int i = 1; i < CARRY_WAN_LEVELS; i++) {
        if (config->width[i] % 2 != 0) {
            return refuse(r, "dim_mult", "base_dim times each of the last three to be even");
        }
    }
    return item == NULL ? CARRY_OK : refuse(r, "dim_mult", "a list of four numbers");
}

static carry_status read_all(const reading *r, carry_wan_config *config) {
    static const bool known[] = {false, true, true};
    int64_t blocks;
    CARRY_TRY(read_widths(r, config));
    CARRY_TRY(read_number(r, &blocks, "num_res_blocks", 2, CARRY_WAN_BLOCKS - 1));
    config->blocks = (int)blocks;
    CARRY_TRY(expect_number(r, "z_dim", CARRY_LATENT_CHANNELS, "16"));
    CARRY_TRY(expect_number(r, "in_channels", 3, "3"));
    CARRY_TRY(expect_number(r, "out_channels", 3, "3"));
    const carry_json *node = carry_json_find(r->root, "temperal_downsample");
    const carry_json *item = node != NULL ? carry_json_first(node) : NULL;
    for (int i = 0; node != NULL && i < 3; i++, item = item->next) {
        if (item == NULL || item->kind != CARRY_JSON_BOOL || item->truth != known[i]) {
            return refuse(r, "temperal_downsample", "[false, true, true]");
        }
    }
    node = carry_json_find(r->root, "attn_scales");
    if (node != NULL && carry_json_first(node) != NULL) {
        return refuse(r, "attn_scales", "[]");
    }
    node = carry_json_find(r->root, "is_residual");
    if (node != NULL && (node->kind != CARRY_JSON_BOOL || node->truth)) {
        return refuse(r, "is_residual", "false");
    }
    static const char *const absent[] = {"patch_size", "decoder_base_dim"};
    for (int i = 0; i < 2; i++) {
        node = carry_json_find(r->root, absent[i]);
        if (node != NULL && node->kind != CARRY_JSON_NULL) {
            return refuse(r, absent[i], "null");
        }
    }
    CARRY_TRY(read_statistics(r, config->mean, "latents_mean", known_mean, false));
    return read_statistics(r, config->deviation, "latents_std", known_deviation, true);
}

carry_status carry_wan_config_read(carry_ctx *ctx, carry_wan_config *config, const char *folder) {
    char path[CARRY_FILE_PATH];
    carry_json *root;
    CARRY_TRY(carry_file_in(ctx, path, folder, "config.json"));
    CARRY_TRY(carry_json_read(ctx, &root, path, CONFIG_LIMIT));
    const carry_status status = read_all(&(reading){.ctx = ctx, .root = root, .path = path}, config);
    carry_json_free(root);
    return status;
}
