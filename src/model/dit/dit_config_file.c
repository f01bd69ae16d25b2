/* config.json of a video transformer: the keys of Wan or diffusers, and those of a causal model. Missing values, or all
   values if the model is a single file of weights, are taken from the shapes of the weights, or are Wan's defaults. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "core/file.h"
#include "model/dit/dit_config.h"
#include "model/dit/dit_names.h"
#include "core/json.h"
#include "core/json_write.h"
#include "file/weights.h"

#define FILE_LIMIT ((size_t)4 << 20)

typedef enum form {
    SIZE,
    COUNT, /* 0 too */
    NUMBER,
    TRUTH,
    PATCH,
    STEPS,
    WINDOW,    /* a key of Wan: only -1, -1 (no window) is supported */
    TEXT_KIND, /* "t2v" */
    CLASS,     /* "WanModel", "CausalWanModel" or "WanTransformer3DModel" */
    NOTHING,   /* only null is supported */
    READ_OVER,
} form;

typedef struct field {
    const char *key;
    form form;
    size_t offset;
    bool causal; /* not one of Wan's keys: written only if it is set */
} field;

#define FIELD(key, form, member, causal) \
    { key, form, offsetof(carry_dit_config, member), causal }

enum { DIM, FFN_DIM, NUM_HEADS, NUM_LAYERS, IN_DIM, OUT_DIM, TEXT_LEN, TEXT_DIM, FREQ_DIM, PATCH_SIZE, QK_NORM, CROSS };

static const field fields[] = {
    [DIM] = FIELD("dim", SIZE, dim, false),
    [FFN_DIM] = FIELD("ffn_dim", SIZE, ffn_dim, false),
    [NUM_HEADS] = FIELD("num_heads", SIZE, num_heads, false),
    [NUM_LAYERS] = FIELD("num_layers", SIZE, num_layers, false),
    [IN_DIM] = FIELD("in_dim", SIZE, in_dim, false),
    [OUT_DIM] = FIELD("out_dim", SIZE, out_dim, false),
    [TEXT_LEN] = FIELD("text_len", SIZE, text_len, false),
    [TEXT_DIM] = FIELD("text_dim", SIZE, text_dim, false),
    [FREQ_DIM] = FIELD("freq_dim", SIZE, freq_dim, false),
    [PATCH_SIZE] = FIELD("patch_size", PATCH, patch, false),
    [QK_NORM] = FIELD("qk_norm", TRUTH, qk_norm, false),
    [CROSS] = FIELD("cross_attn_norm", TRUTH, cross_attn_norm, false),
    FIELD("eps", NUMBER, eps, false),
    FIELD("chunk_frames", SIZE, chunk_frames, true),
    FIELD("window_frames", SIZE, window_frames, true),
    FIELD("sink_frames", COUNT, sink_frames, true),
    FIELD("shift", NUMBER, shift, true),
    FIELD("steps", STEPS, step, true),
    {"window_size", WINDOW, 0, false},
    {"model_type", TEXT_KIND, 0, false},
    {"_class_name", CLASS, 0, false},
    {"_diffusers_version", READ_OVER, 0, false},
    {"attention_head_dim", READ_OVER, 0, false}, /* diffusers; shapes determine dim */
    {"rope_max_seq_len", READ_OVER, 0, false},
    {"added_kv_proj_dim", NOTHING, 0, false},
    {"image_dim", NOTHING, 0, false},
    {"pos_embed_seq_len", NOTHING, 0, false},
    {"_name_or_path", READ_OVER, 0, false},
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

/* Keys of diffusers' configurations, and the names used here. */
static const char *const aliases[][2] = {
    {"num_attention_heads", "num_heads"}, {"in_channels", "in_dim"}, {"out_channels", "out_dim"}};

static const char *own_key(const char *key) {
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        if (strcmp(aliases[i][0], key) == 0) {
            return aliases[i][1];
        }
    }
    return key;
}

typedef struct source {
    carry_ctx *ctx;
    const char *name;
    carry_dit_config *config;
    bool seen[FIELDS];
} source;

static carry_status refuse(const source *s, const carry_json *node, const char *why) {
    char shown[CARRY_JSON_SHOWN];
    return carry_fail(s->ctx, CARRY_EUNSUPPORTED, "%s, line %u: \"%.60s\" is %s: %s", s->name, node->line, node->key,
                      carry_json_show(shown, node), why);
}

static carry_status read_whole(const source *s, const carry_json *node, int64_t *to, int64_t least) {
    if (node->kind != CARRY_JSON_NUMBER || !node->whole || node->as.number.integer < least) {
        return refuse(s, node,
                      least == 0 ? "a whole number from 0 on is expected" : "a whole number from 1 on is expected");
    }
    *to = node->as.number.integer;
    return CARRY_OK;
}

/* Reads up to `most` whole numbers that are at least `least`; if `exactly`, there must be `most` of them. */
static carry_status read_list(const source *s, const carry_json *node, int64_t *to, int64_t most, bool exactly,
                              int64_t least, const char *expected) {
    const bool list = node->kind == CARRY_JSON_ARRAY;
    if (!list || node->as.inside.count > most || (exactly && node->as.inside.count != most)) {
        return refuse(s, node, expected);
    }
    int64_t i = 0;
    for (const carry_json *one = node->as.inside.first; one != NULL; one = one->next) {
        if (one->kind != CARRY_JSON_NUMBER || !one->whole || one->as.number.integer < least) {
            return refuse(s, node, expected);
        }
        to[i++] = one->as.number.integer;
    }
    return CARRY_OK;
}

static carry_status read_window(const source *s, const carry_json *node) {
    int64_t window[2] = {0};
    CARRY_TRY(read_list(s, node, window, 2, true, INT64_MIN, "[-1, -1] is expected"));
    return window[0] == -1 && window[1] == -1 ? CARRY_OK : refuse(s, node, "only [-1, -1], no window, is supported");
}

static carry_status read_field(const source *s, const field *f, const carry_json *node) {
    void *to = (unsigned char *)s->config + f->offset;
    switch (f->form) {
    case SIZE:
    case COUNT:
        return read_whole(s, node, to, f->form == SIZE ? 1 : 0);
    case NUMBER:
        if (node->kind != CARRY_JSON_NUMBER || !(node->as.number.value >= 0.0) || isinf(node->as.number.value)) {
            return refuse(s, node, "a number from 0 on is expected");
        }
        *(double *)to = node->as.number.value;
        return CARRY_OK;
    case TRUTH:
        if (f->offset == offsetof(carry_dit_config, qk_norm) && carry_json_is_text(node, "rms_norm_across_heads")) {
            *(bool *)to = true; /* how diffusers writes it */
            return CARRY_OK;
        }
        if (node->kind != CARRY_JSON_BOOL) {
            return refuse(s, node, "true or false is expected");
        }
        *(bool *)to = node->truth;
        return CARRY_OK;
    case PATCH:
        return read_list(s, node, to, 3, true, 1, "a list of three whole numbers is expected");
    case STEPS:
        CARRY_TRY(read_list(s, node, to, 16, false, 1, "a list of up to 16 whole numbers is expected"));
        s->config->steps = node->as.inside.count;
        return CARRY_OK;
    case WINDOW:
        return read_window(s, node);
    case TEXT_KIND:
        return carry_json_is_text(node, "t2v") ? CARRY_OK : refuse(s, node, "only \"t2v\" is supported");
    case CLASS:
        return carry_json_is_text(node, "WanModel") || carry_json_is_text(node, "CausalWanModel") ||
                       carry_json_is_text(node, "WanTransformer3DModel")
                   ? CARRY_OK
                   : refuse(s, node, "\"WanModel\", \"CausalWanModel\" or \"WanTransformer3DModel\" is expected");
    case NOTHING:
        return node->kind == CARRY_JSON_NULL ? CARRY_OK
                                             : refuse(s, node, "models with pictures as input are not supported");
    case READ_OVER:
        break;
    }
    return CARRY_OK;
}

/* The index of a key's field, or FIELDS if it is unknown. */
static int find_field(const carry_json *node) {
    const char *key = own_key(node->key);
    int i = 0;
    while (i < FIELDS && (strlen(node->key) != node->key_length || strcmp(fields[i].key, key) != 0)) {
        i++;
    }
    return i;
}

/* Called before other keys are read, so that a model of another kind is refused without a warning for each of its
   keys. */
static carry_status check_kind(source *s, const carry_json *root) {
    for (const carry_json *node = root->as.inside.first; node != NULL; node = node->next) {
        const int i = find_field(node);
        if (i < FIELDS && (fields[i].form == TEXT_KIND || fields[i].form == CLASS)) {
            CARRY_TRY(read_field(s, &fields[i], node));
        }
    }
    return CARRY_OK;
}

static carry_status read_keys(source *s, const carry_json *root) {
    if (root->kind != CARRY_JSON_OBJECT) {
        return carry_fail(s->ctx, CARRY_EFORMAT, "%s is not a JSON object: it is not a model configuration", s->name);
    }
    CARRY_TRY(check_kind(s, root));
    for (const carry_json *node = root->as.inside.first; node != NULL; node = node->next) {
        const int i = find_field(node);
        if (i == FIELDS) {
            carry_log(s->ctx, CARRY_LOG_WARNING, "%s: the unknown key \"%.40s\" is ignored", s->name, node->key);
        } else if (s->seen[i]) {
            return refuse(s, node, "duplicate key");
        } else {
            s->seen[i] = true;
            CARRY_TRY(read_field(s, &fields[i], node));
        }
    }
    return CARRY_OK;
}

/* Finds a tensor by any of its names, or returns NULL. */
static const carry_tensor *find_named(const carry_weights *weights, const char *name) {
    char other[CARRY_SAFETENSORS_NAME];
    const carry_tensor *found = carry_weights_find(weights, name);
    for (int i = 0; found == NULL && carry_dit_other_name(NULL, name, i, false, other, sizeof other); i++) {
        found = carry_weights_find(weights, other);
    }
    return found;
}

/* Size `index` of a tensor's shape, or 0 if the weights do not have it with this rank. */
static int64_t told(const carry_weights *weights, const char *name, int rank, int index) {
    const carry_tensor *tensor = find_named(weights, name);
    return tensor != NULL && tensor->rank == rank ? tensor->shape[index] : 0;
}

static int64_t count_blocks(const carry_weights *weights) {
    int64_t blocks = 0;
    for (char name[64]; blocks < weights->count; blocks++) {
        (void)snprintf(name, sizeof name, "blocks.%" PRId64 ".modulation", blocks);
        if (find_named(weights, name) == NULL) {
            break;
        }
    }
    return blocks;
}

/* Takes missing values from the shapes of the weights. */
static void take_shapes(const source *s, const carry_weights *w) {
    carry_dit_config *c = s->config;
    const struct {
        int field;
        int64_t value;
    } shapes[] = {
        {DIM, told(w, "patch_embedding.weight", 5, 0)},       {IN_DIM, told(w, "patch_embedding.weight", 5, 1)},
        {FFN_DIM, told(w, "blocks.0.ffn.0.weight", 2, 0)},    {TEXT_DIM, told(w, "text_embedding.0.weight", 2, 1)},
        {FREQ_DIM, told(w, "time_embedding.0.weight", 2, 1)}, {NUM_LAYERS, count_blocks(w)},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (!s->seen[shapes[i].field] && shapes[i].value > 0) {
            *(int64_t *)(void *)((unsigned char *)c + fields[shapes[i].field].offset) = shapes[i].value;
        }
    }
    for (int i = 0; !s->seen[PATCH_SIZE] && i < 3; i++) {
        int64_t size = told(w, "patch_embedding.weight", 5, 2 + i);
        c->patch[i] = size > 0 ? size : c->patch[i];
    }
    const int64_t head = told(w, "head.head.weight", 2, 0);
    int64_t patch;
    if (!s->seen[OUT_DIM] && !__builtin_mul_overflow(c->patch[1], c->patch[2], &patch) && head > 0 &&
        head % patch == 0) {
        c->out_dim = head / patch;
    }
    c->qk_norm = s->seen[QK_NORM] ? c->qk_norm : find_named(w, "blocks.0.self_attn.norm_q.weight") != NULL;
    c->cross_attn_norm = s->seen[CROSS] ? c->cross_attn_norm : find_named(w, "blocks.0.norm3.weight") != NULL;
}

carry_status carry_dit_config_read(carry_ctx *ctx, carry_dit_config *config, const char *folder) {
    char path[CARRY_FILE_PATH];
    carry_json *root;
    *config = (carry_dit_config){.in_dim = 16,
                                 .out_dim = 16,
                                 .text_len = 512,
                                 .text_dim = 4096,
                                 .freq_dim = 256,
                                 .patch = {1, 2, 2},
                                 .eps = 1e-6,
                                 .qk_norm = true,
                                 .cross_attn_norm = true};
    source s = {.ctx = ctx, .name = path, .config = config};
    if (carry_weights_is_file(folder)) { /* all values come from shapes or are Wan's defaults */
        (void)snprintf(path, sizeof path, "%s", folder);
    } else {
        CARRY_TRY(carry_file_in(ctx, path, folder, "config.json"));
        CARRY_TRY(carry_json_read(ctx, &root, path, FILE_LIMIT));
        const carry_status status = read_keys(&s, root);
        carry_json_free(root);
        CARRY_TRY(status);
    }
    bool silent = false;
    for (int i = DIM; i <= CROSS; i++) {
        silent = silent || !s.seen[i];
    }
    if (silent) {
        carry_weights weights;
        CARRY_TRY(carry_weights_open(ctx, &weights, folder));
        take_shapes(&s, &weights);
        carry_weights_close(&weights);
    }
    if (!s.seen[NUM_HEADS]) { /* no shape determines them; all of Wan's heads have 128 elements */
        if (config->dim % 128 != 0 || config->dim == 0) {
            return carry_fail(ctx, CARRY_EFORMAT, "%s has no \"num_heads\", and dim %" PRId64 " is not of heads of 128",
                              path, config->dim);
        }
        config->num_heads = config->dim / 128;
    }
    return carry_dit_config_check(ctx, config, 1);
}

static void put_list(carry_json_text *text, const int64_t *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        carry_json_put_raw(text, "%s%" PRId64, i == 0 ? "[" : ", ", values[i]);
    }
    carry_json_put_raw(text, "]");
}

static void put_field(carry_json_text *text, const carry_dit_config *config, const field *f) {
    const void *from = (const unsigned char *)config + f->offset;
    carry_json_put_raw(text, ",\n  ");
    carry_json_put_key(text, f->key);
    carry_json_put_raw(text, " ");
    if (f->form == TRUTH) {
        carry_json_put_raw(text, "%s", *(const bool *)from ? "true" : "false");
    } else if (f->form == NUMBER) {
        carry_json_put_double(text, *(const double *)from);
    } else if (f->form == PATCH) {
        put_list(text, config->patch, 3);
    } else if (f->form == STEPS) {
        put_list(text, config->step, config->steps);
    } else {
        carry_json_put_raw(text, "%" PRId64, *(const int64_t *)from);
    }
}

static bool is_set(const carry_dit_config *config, const field *f) {
    const void *from = (const unsigned char *)config + f->offset;
    return f->form == STEPS    ? config->steps > 0
           : f->form == NUMBER ? *(const double *)from > 0.0
                               : *(const int64_t *)from > 0;
}

carry_status carry_dit_config_write(carry_ctx *ctx, const carry_dit_config *config, const char *path) {
    carry_json_text text = {0};
    carry_json_put_raw(&text, "{\n  \"_class_name\": \"WanModel\",\n  \"model_type\": \"t2v\"");
    for (int i = 0; i < FIELDS; i++) {
        if (fields[i].form < WINDOW && (!fields[i].causal || is_set(config, &fields[i]))) {
            put_field(&text, config, &fields[i]);
        }
    }
    carry_json_put_raw(&text, "\n}\n");
    carry_status status;
    if (text.failed) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing %s", path);
    } else {
        status = carry_file_replace(ctx, path, text.bytes, text.length);
    }
    carry_json_text_free(&text);
    return status;
}
