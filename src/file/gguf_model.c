/* Writes the metadata of a GGUF file as the texts of a model folder. */
#include "file/gguf_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"

#define ARCHITECTURE "qwen35"
#define WIDTH_LIMIT ((int64_t)1 << 24)

typedef struct source {
    carry_ctx *ctx;
    const carry_gguf *file;
} source;

static carry_status take(const source *s, const char *key, int64_t least, int64_t most, int64_t *value) {
    char whole[128];
    (void)snprintf(whole, sizeof whole, ARCHITECTURE ".%s", key);
    if (!carry_gguf_integer(s->file, whole, value)) {
        return carry_fail(s->ctx, CARRY_EFORMAT, "the GGUF file has no whole number '%s'", whole);
    }
    return *value >= least && *value <= most
               ? CARRY_OK
               : carry_fail(s->ctx, CARRY_ESIZE, "'%s' is %" PRId64 ": expected %" PRId64 " to %" PRId64, whole, *value,
                            least, most);
}

static carry_status check_architecture(carry_ctx *ctx, const carry_gguf *file) {
    carry_gguf_text name = {.bytes = "", .length = 0};
    if (carry_gguf_string(file, "general.architecture", &name) && name.length == strlen(ARCHITECTURE) &&
        memcmp(name.bytes, ARCHITECTURE, name.length) == 0) {
        return CARRY_OK;
    }
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "the GGUF file is of architecture '%.*s': expected " ARCHITECTURE,
                      (int)(name.length < 60 ? name.length : 60), name.bytes);
}

carry_status carry_gguf_take_sizes(carry_ctx *ctx, const carry_gguf *file, carry_gguf_sizes *z) {
    const source s = {.ctx = ctx, .file = file};
    int64_t inner;
    int64_t ahead = 0;
    CARRY_TRY(check_architecture(ctx, file));
    CARRY_TRY(take(&s, "block_count", 1, 4096, &z->layers));
    (void)carry_gguf_integer(file, ARCHITECTURE ".nextn_predict_layers", &ahead);
    if (ahead < 0 || ahead >= z->layers) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "'" ARCHITECTURE ".nextn_predict_layers' is %" PRId64 " of %" PRId64 " layers", ahead,
                          z->layers);
    }
    z->layers -= ahead;
    CARRY_TRY(take(&s, "embedding_length", 1, WIDTH_LIMIT, &z->hidden));
    CARRY_TRY(take(&s, "ssm.group_count", 1, 65536, &z->key_heads));
    CARRY_TRY(take(&s, "ssm.time_step_rank", 1, 65536, &z->value_heads));
    CARRY_TRY(take(&s, "ssm.state_size", 1, 65536, &z->key));
    CARRY_TRY(take(&s, "ssm.inner_size", 1, WIDTH_LIMIT, &inner));
    if (z->value_heads % z->key_heads != 0 || inner % z->value_heads != 0) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "%" PRId64 " value heads, %" PRId64 " key heads and an inner size of %" PRId64
                          ": expected multiples",
                          z->value_heads, z->key_heads, inner);
    }
    z->value = inner / z->value_heads;
    return CARRY_OK;
}

/* Writes layer_types from the list of recurrent layers, or from the interval. */
static carry_status put_layers(const source *s, carry_json_text *text, int64_t layers) {
    const carry_gguf_item *listed = carry_gguf_find(s->file, ARCHITECTURE ".attention.recurrent_layers");
    int64_t interval = 4;
    (void)carry_gguf_integer(s->file, ARCHITECTURE ".full_attention_interval", &interval);
    if (interval < 1 || (listed != NULL && (!listed->is_array || listed->count < (uint64_t)layers))) {
        return carry_fail(s->ctx, CARRY_EFORMAT, "the GGUF file does not say which layers are recurrent");
    }
    carry_json_begin(text, "layer_types", '[');
    for (int64_t i = 0; i < layers; i++) {
        const bool is_recurrent =
            listed != NULL ? carry_gguf_integer_at(listed, (uint64_t)i) != 0 : (i + 1) % interval != 0;
        carry_json_add_text(text, NULL, is_recurrent ? "linear_attention" : "full_attention");
    }
    carry_json_end(text, ']');
    return CARRY_OK;
}

static carry_status put_rope(const source *s, carry_json_text *text, int64_t head) {
    int64_t rotated;
    double base = 10000000.0;
    CARRY_TRY(take(s, "rope.dimension_count", 1, head, &rotated));
    (void)carry_gguf_number(s->file, ARCHITECTURE ".rope.freq_base", &base);
    carry_json_begin(text, "rope_parameters", '{');
    carry_json_add_text(text, "rope_type", "default");
    carry_json_add_number(text, "rope_theta", base);
    carry_json_add_number(text, "partial_rotary_factor", (double)rotated / (double)head);
    const carry_gguf_item *sections = carry_gguf_find(s->file, ARCHITECTURE ".rope.dimension_sections");
    if (sections != NULL && sections->is_array && sections->count >= 3) {
        carry_json_begin(text, "mrope_section", '[');
        for (uint64_t i = 0; i < 3; i++) {
            carry_json_add_integer(text, NULL, carry_gguf_integer_at(sections, i));
        }
        carry_json_end(text, ']');
        carry_json_add_bool(text, "mrope_interleaved", true);
    }
    carry_json_end(text, '}');
    return CARRY_OK;
}

static carry_status put_number(const source *s, carry_json_text *text, const char *name, const char *key) {
    int64_t value;
    CARRY_TRY(take(s, key, 1, (int64_t)1 << 40, &value));
    carry_json_add_integer(text, name, value);
    return CARRY_OK;
}

static void put_token(const source *s, carry_json_text *text, const char *name, const char *key) {
    int64_t token;
    if (carry_gguf_integer(s->file, key, &token)) {
        carry_json_add_integer(text, name, token);
    }
}

carry_status carry_gguf_put_config(carry_ctx *ctx, const carry_gguf *file, carry_json_text *text) {
    const source s = {.ctx = ctx, .file = file};
    const carry_tensor *table = carry_safetensors_find(&file->tensors, "token_embd.weight");
    carry_gguf_sizes z;
    int64_t head;
    double eps;
    CARRY_TRY(carry_gguf_take_sizes(ctx, file, &z));
    CARRY_TRY(take(&s, "attention.key_length", 1, WIDTH_LIMIT, &head));
    if (table == NULL || table->rank != 2 ||
        !carry_gguf_number(file, ARCHITECTURE ".attention.layer_norm_rms_epsilon", &eps)) {
        return carry_fail(ctx, CARRY_EFORMAT, "the GGUF file has no %s",
                          table == NULL || table->rank != 2 ? "matrix token_embd.weight"
                                                            : "'" ARCHITECTURE ".attention.layer_norm_rms_epsilon'");
    }
    carry_json_begin(text, NULL, '{');
    carry_json_add_text(text, "model_type", "qwen3_5_text");
    carry_json_add_integer(text, "vocab_size", table->shape[0]);
    carry_json_add_integer(text, "hidden_size", z.hidden);
    carry_json_add_integer(text, "num_hidden_layers", z.layers);
    carry_json_add_integer(text, "head_dim", head);
    carry_json_add_integer(text, "linear_num_key_heads", z.key_heads);
    carry_json_add_integer(text, "linear_num_value_heads", z.value_heads);
    carry_json_add_integer(text, "linear_key_head_dim", z.key);
    carry_json_add_integer(text, "linear_value_head_dim", z.value);
    carry_json_add_number(text, "rms_norm_eps", eps);
    carry_json_add_bool(text, "tie_word_embeddings", carry_safetensors_find(&file->tensors, "output.weight") == NULL);
    CARRY_TRY(put_number(&s, text, "linear_conv_kernel_dim", "ssm.conv_kernel"));
    CARRY_TRY(put_number(&s, text, "intermediate_size", "feed_forward_length"));
    CARRY_TRY(put_number(&s, text, "num_attention_heads", "attention.head_count"));
    CARRY_TRY(put_number(&s, text, "num_key_value_heads", "attention.head_count_kv"));
    CARRY_TRY(put_number(&s, text, "max_position_embeddings", "context_length"));
    put_token(&s, text, "eos_token_id", "tokenizer.ggml.eos_token_id");
    put_token(&s, text, "bos_token_id", "tokenizer.ggml.bos_token_id");
    CARRY_TRY(put_rope(&s, text, head));
    CARRY_TRY(put_layers(&s, text, z.layers));
    carry_json_end(text, '}');
    return CARRY_OK;
}

carry_status carry_gguf_text_of(carry_ctx *ctx, const char *path, const char *name, char **text, size_t *length) {
    static const struct {
        const char *name;
        carry_status (*put)(carry_ctx *ctx, const carry_gguf *file, carry_json_text *text);
    } texts[] = {{"config.json", carry_gguf_put_config},
                 {"tokenizer.json", carry_gguf_put_tokenizer},
                 {"tokenizer_config.json", carry_gguf_put_settings}};
    *text = NULL;
    *length = 0;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        carry_gguf file;
        carry_json_text made = {0};
        if (strcmp(name, texts[i].name) != 0) {
            continue;
        }
        CARRY_TRY(carry_gguf_open(ctx, &file, path));
        carry_status status = texts[i].put(ctx, &file, &made);
        carry_gguf_close(&file);
        if (status == CARRY_OK) {
            *length = made.length;
            *text = carry_json_text_take(&made);
            status = *text != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s of %s", name, path);
        }
        carry_json_text_free(&made);
        return status;
    }
    return carry_fail(ctx, CARRY_ENOTFOUND, "%s, a GGUF file, has no %s", path, name);
}

carry_status carry_model_text(carry_ctx *ctx, const char *model, const char *name, size_t limit, char **text,
                              size_t *length) {
    char path[CARRY_FILE_PATH];
    if (carry_gguf_is_file(model)) {
        return carry_gguf_text_of(ctx, model, name, text, length);
    }
    CARRY_TRY(carry_file_in(ctx, path, model, name));
    return carry_file_read(ctx, text, length, path, limit);
}

bool carry_model_has(carry_ctx *ctx, const char *model, const char *name) {
    char path[CARRY_FILE_PATH];
    struct stat about;
    if (carry_gguf_is_file(model)) {
        return strcmp(name, "config.json") == 0 || strcmp(name, "tokenizer.json") == 0 ||
               strcmp(name, "tokenizer_config.json") == 0;
    }
    return carry_file_in(ctx, path, model, name) == CARRY_OK && stat(path, &about) == 0;
}
