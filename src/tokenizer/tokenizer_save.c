/* Writes tokenizer.json with the keys and the order of `tokenizers`. Merges are written as "a b", which every version
   of `tokenizers` reads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"

typedef struct writer {
    char *text;
    size_t length, room;
    bool failed; /* out of memory: later writes do nothing */
} writer;

static void put(writer *w, const char *bytes, size_t length) {
    w->failed = w->failed || !carry_list_grow(&w->text, &w->room, w->length, length + 1, 1);
    if (!w->failed) {
        memcpy(w->text + w->length, bytes, length);
        w->length += length;
        w->text[w->length] = '\0';
    }
}

static void put_text(writer *w, const char *text) {
    put(w, text, strlen(text));
}

static void put_number(writer *w, int64_t number) {
    char digits[24];
    (void)snprintf(digits, sizeof digits, "%lld", (long long)number);
    put_text(w, digits);
}

static void put_escaped(writer *w, const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)bytes[i];
        char escape[8];
        if (c == '"' || c == '\\') {
            (void)snprintf(escape, sizeof escape, "\\%c", c);
            put_text(w, escape);
        } else if (c < 0x20) {
            (void)snprintf(escape, sizeof escape, "\\u%04x", c);
            put_text(w, escape);
        } else {
            put(w, bytes + i, 1);
        }
    }
}

/* Writes a token's name in the vocabulary, without quotes. */
static void put_name(writer *w, const carry_tokenizer *t, uint32_t id) {
    const carry_token *token = &t->token[id];
    if (token->literal) {
        put_escaped(w, t->text + token->start, token->length);
        return;
    }
    for (size_t i = 0; i < token->length; i++) {
        char character[CARRY_UTF8_LONGEST];
        int bytes = carry_utf8_put(character, carry_byte_to_code((unsigned char)t->text[token->start + i]));
        put_escaped(w, character, (size_t)bytes);
    }
}

static void put_added(writer *w, const carry_tokenizer *t) {
    bool first = true;
    put_text(w, "  \"added_tokens\": [");
    for (int64_t id = 0; id < t->count; id++) {
        const carry_token *token = &t->token[id];
        if (!token->added) {
            continue;
        }
        put_text(w, first ? "\n    {\"id\": " : ",\n    {\"id\": ");
        first = false;
        put_number(w, id);
        put_text(w, ", \"content\": \"");
        put_escaped(w, t->text + token->content, token->content_length);
        put_text(w, "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": ");
        put_text(w, token->normalized ? "true" : "false");
        put_text(w, token->special ? ", \"special\": true}" : ", \"special\": false}");
    }
    put_text(w, first ? "],\n" : "\n  ],\n");
}

static void put_model(writer *w, const carry_tokenizer *t) {
    bool first = true;
    put_text(w,
             "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
             "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
             "    \"byte_fallback\": false,\n    \"ignore_merges\": ");
    put_text(w, t->whole_pieces ? "true,\n    \"vocab\": {" : "false,\n    \"vocab\": {");
    for (int64_t id = 0; id < t->count; id++) {
        if (t->token[id].in_vocabulary) {
            put_text(w, first ? "\n      \"" : ",\n      \"");
            first = false;
            put_name(w, t, (uint32_t)id);
            put_text(w, "\": ");
            put_number(w, id);
        }
    }
    put_text(w, "\n    },\n    \"merges\": [");
    for (int64_t i = 0; i < t->merge_count; i++) {
        put_text(w, i == 0 ? "\n      \"" : ",\n      \"");
        put_name(w, t, t->merge[i].left);
        put_text(w, " ");
        put_name(w, t, t->merge[i].right);
        put_text(w, "\"");
    }
    put_text(w, t->merge_count == 0 ? "]\n  }\n}\n" : "\n    ]\n  }\n}\n");
}

static carry_status take_written(carry_ctx *ctx, writer *w, const carry_tokenizer *tokenizer, char **text,
                                 size_t *length) {
    if (w->failed) {
        free(w->text);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing a tokenizer of %lld tokens",
                          (long long)tokenizer->count);
    }
    *text = w->text;
    *length = w->length;
    return CARRY_OK;
}

carry_status carry_tokenizer_write(carry_ctx *ctx, const carry_tokenizer *tokenizer, char **text, size_t *length) {
    static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                                     "\"use_regex\": true},\n";
    writer w = {0};
    *text = NULL;
    *length = 0;
    if (tokenizer->source != NULL) {
        put(&w, tokenizer->source, tokenizer->source_length);
        return take_written(ctx, &w, tokenizer, text, length);
    }
    put_text(&w, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    put_added(&w, tokenizer);
    put_text(&w, "  \"normalizer\": null,\n  \"pre_tokenizer\": ");
    put_text(&w, byte_level);
    put_text(&w, "  \"post_processor\": null,\n  \"decoder\": ");
    put_text(&w, byte_level);
    put_model(&w, tokenizer);
    return take_written(ctx, &w, tokenizer, text, length);
}

carry_status carry_tokenizer_save(carry_ctx *ctx, const carry_tokenizer *tokenizer, const char *path) {
    char *text;
    size_t length;
    CARRY_TRY(carry_tokenizer_write(ctx, tokenizer, &text, &length));
    carry_status status = carry_file_replace(ctx, path, text, length);
    free(text);
    return status;
}
