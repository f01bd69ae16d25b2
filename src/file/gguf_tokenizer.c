/* Writes the tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json: byte-level BPE, with the pattern
   that tokenizer.ggml.pre names. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "file/gguf_model.h"

#define CONTROL 3      /* in tokenizer.ggml.token_type: a special token */
#define USER_DEFINED 4 /* in the same list: a token that is matched as a whole in texts */

#define ENGLISH "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char *const patterns[][2] = {
    {"qwen2", ENGLISH "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES},
    {"qwen35", ENGLISH "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES},
};

static bool is_text(const carry_gguf_text *text, const char *as) {
    return text->length == strlen(as) && memcmp(text->bytes, as, text->length) == 0;
}

static carry_status find_pattern(carry_ctx *ctx, const carry_gguf *file, const char **pattern) {
    carry_gguf_text model = {.bytes = ""};
    carry_gguf_text pre = {.bytes = ""};
    (void)carry_gguf_string(file, "tokenizer.ggml.model", &model);
    (void)carry_gguf_string(file, "tokenizer.ggml.pre", &pre);
    if (!is_text(&model, "gpt2")) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "the GGUF file has a tokenizer of kind '%.*s': expected gpt2",
                          (int)(model.length < 40 ? model.length : 40), model.bytes);
    }
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        if (is_text(&pre, patterns[i][0])) {
            *pattern = patterns[i][1];
            return CARRY_OK;
        }
    }
    return carry_fail(ctx, CARRY_EUNSUPPORTED,
                      "the GGUF file's tokenizer splits text as '%.*s' does: expected qwen2 or qwen35",
                      (int)(pre.length < 40 ? pre.length : 40), pre.bytes);
}

static carry_status find_texts(carry_ctx *ctx, const carry_gguf *file, const char *key, const carry_gguf_item **item) {
    *item = carry_gguf_find(file, key);
    return *item != NULL && (*item)->is_array && (*item)->type == CARRY_GGUF_TEXT
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EFORMAT, "the GGUF file has no list of texts '%s'", key);
}

static void put_key(carry_json_text *text, const char *key) {
    carry_json_add_key(text, key);
}

static void put_added(carry_json_text *text, const carry_gguf_text *token, uint64_t id, bool is_special) {
    carry_json_begin(text, NULL, '{');
    carry_json_add_integer(text, "id", (int64_t)id);
    put_key(text, "content");
    carry_json_put_bytes(text, token->bytes, token->length);
    carry_json_add_bool(text, "single_word", false);
    carry_json_add_bool(text, "lstrip", false);
    carry_json_add_bool(text, "rstrip", false);
    carry_json_add_bool(text, "normalized", false);
    carry_json_add_bool(text, "special", is_special);
    carry_json_end(text, '}');
}

/* Writes added_tokens (tokens that are matched as a whole), or the vocabulary (the others). */
static void put_tokens(carry_json_text *text, const carry_gguf_item *tokens, const carry_gguf_item *types, bool added) {
    const unsigned char *at = tokens->at;
    for (uint64_t i = 0; i < tokens->count; i++) {
        const carry_gguf_text token = carry_gguf_next_text(&at);
        const int64_t type = types != NULL ? carry_gguf_integer_at(types, i) : 1;
        const bool is_added = type == CONTROL || type == USER_DEFINED;
        if (added && is_added) {
            put_added(text, &token, i, type == CONTROL);
        } else if (!added && !is_added) {
            put_key(text, NULL);
            carry_json_put_bytes(text, token.bytes, token.length);
            carry_json_put_raw(text, ":%" PRIu64, i);
        }
    }
}

static void put_byte_level(carry_json_text *text, const char *key) {
    carry_json_begin(text, key, '{');
    carry_json_add_text(text, "type", "ByteLevel");
    carry_json_add_bool(text, "add_prefix_space", false);
    carry_json_add_bool(text, "trim_offsets", false);
    carry_json_add_bool(text, "use_regex", false);
    carry_json_end(text, '}');
}

static void put_splitting(carry_json_text *text, const char *pattern) {
    carry_json_begin(text, "normalizer", '{');
    carry_json_add_text(text, "type", "NFC");
    carry_json_end(text, '}');
    carry_json_begin(text, "pre_tokenizer", '{');
    carry_json_add_text(text, "type", "Sequence");
    carry_json_begin(text, "pretokenizers", '[');
    carry_json_begin(text, NULL, '{');
    carry_json_add_text(text, "type", "Split");
    carry_json_begin(text, "pattern", '{');
    carry_json_add_text(text, "Regex", pattern);
    carry_json_end(text, '}');
    carry_json_add_text(text, "behavior", "Isolated");
    carry_json_add_bool(text, "invert", false);
    carry_json_end(text, '}');
    put_byte_level(text, NULL);
    carry_json_end(text, ']');
    carry_json_end(text, '}');
    put_byte_level(text, "post_processor");
    put_byte_level(text, "decoder");
}

carry_status carry_gguf_put_tokenizer(carry_ctx *ctx, const carry_gguf *file, carry_json_text *text) {
    const carry_gguf_item *tokens;
    const carry_gguf_item *merges = NULL;
    const carry_gguf_item *types = carry_gguf_find(file, "tokenizer.ggml.token_type");
    const char *pattern;
    CARRY_TRY(find_pattern(ctx, file, &pattern));
    CARRY_TRY(find_texts(ctx, file, "tokenizer.ggml.tokens", &tokens));
    if (carry_gguf_find(file, "tokenizer.ggml.merges") != NULL) { /* absent if all tokens are single bytes */
        CARRY_TRY(find_texts(ctx, file, "tokenizer.ggml.merges", &merges));
    }
    if (types != NULL && (!types->is_array || types->count != tokens->count)) {
        return carry_fail(ctx, CARRY_EFORMAT, "the GGUF file has %" PRIu64 " tokens and types of %" PRIu64,
                          tokens->count, types->count);
    }
    carry_json_begin(text, NULL, '{');
    carry_json_add_text(text, "version", "1.0");
    carry_json_begin(text, "added_tokens", '[');
    put_tokens(text, tokens, types, true);
    carry_json_end(text, ']');
    put_splitting(text, pattern);
    carry_json_begin(text, "model", '{');
    carry_json_add_text(text, "type", "BPE");
    carry_json_begin(text, "vocab", '{');
    put_tokens(text, tokens, types, false);
    carry_json_end(text, '}');
    carry_json_begin(text, "merges", '[');
    const unsigned char *at = merges != NULL ? merges->at : NULL;
    for (uint64_t i = 0; merges != NULL && i < merges->count; i++) {
        const carry_gguf_text merge = carry_gguf_next_text(&at);
        put_key(text, NULL);
        carry_json_put_bytes(text, merge.bytes, merge.length);
    }
    carry_json_end(text, ']');
    carry_json_end(text, '}');
    carry_json_end(text, '}');
    return CARRY_OK;
}

/* Writes the token whose number is the value of a key. */
static void put_named(carry_json_text *text, const carry_gguf *file, const char *name, const char *key) {
    const carry_gguf_item *tokens = carry_gguf_find(file, "tokenizer.ggml.tokens");
    int64_t id;
    if (tokens == NULL || !tokens->is_array || tokens->type != CARRY_GGUF_TEXT || !carry_gguf_integer(file, key, &id) ||
        id < 0 || (uint64_t)id >= tokens->count) {
        return;
    }
    const unsigned char *at = tokens->at;
    carry_gguf_text token = carry_gguf_next_text(&at);
    for (int64_t i = 0; i < id; i++) {
        token = carry_gguf_next_text(&at);
    }
    put_key(text, name);
    carry_json_put_bytes(text, token.bytes, token.length);
}

carry_status carry_gguf_put_settings(carry_ctx *ctx, const carry_gguf *file, carry_json_text *text) {
    carry_gguf_text chat;
    (void)ctx;
    carry_json_begin(text, NULL, '{');
    put_named(text, file, "eos_token", "tokenizer.ggml.eos_token_id");
    put_named(text, file, "bos_token", "tokenizer.ggml.bos_token_id");
    put_named(text, file, "pad_token", "tokenizer.ggml.padding_token_id");
    if (carry_gguf_string(file, "tokenizer.chat_template", &chat)) {
        put_key(text, "chat_template");
        carry_json_put_bytes(text, chat.bytes, chat.length);
    }
    carry_json_end(text, '}');
    return CARRY_OK;
}
