/* The files beside tokenizer.json: tokenizer_config.json, which tells Hugging Face's classes which tokens start and end
   a text, and chat_template.jinja. Files that were read are written again unchanged; for a tokenizer trained here, a
   tokenizer_config.json is generated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json.h"
#include "core/json_write.h"
#include "file/gguf_model.h"
#include "tokenizer/tokenizer_internal.h"

#define SETTINGS "tokenizer_config.json"
#define CHAT "chat_template.jinja"
#define SETTINGS_BYTES ((size_t)64 << 20)

/* Reads a file that may be missing. */
static carry_status read_beside(carry_ctx *ctx, const char *folder, const char *name, char **text, size_t *length) {
    carry_status status = carry_model_text(ctx, folder, name, SETTINGS_BYTES, text, length);
    if (status != CARRY_OK) {
        *text = NULL;
        *length = 0;
    }
    return status == CARRY_ENOTFOUND ? CARRY_OK : status;
}

/* Finds chat_template: a string, or the entry "default" of a list of named templates. */
static const carry_json *find_chat(const carry_json *root) {
    const carry_json *chat = carry_json_find(root, "chat_template");
    if (chat != NULL && chat->kind == CARRY_JSON_ARRAY) {
        const carry_json *one = chat->as.inside.first;
        while (one != NULL && !carry_json_is_text(carry_json_find(one, "name"), "default")) {
            one = one->next;
        }
        chat = carry_json_find(one, "template");
    }
    return chat != NULL && chat->kind == CARRY_JSON_STRING ? chat : NULL;
}

static carry_status take_settings(carry_ctx *ctx, carry_tokenizer *t, const char *folder) {
    char path[CARRY_FILE_PATH];
    carry_json *root;
    CARRY_TRY(carry_file_in(ctx, path, folder, SETTINGS));
    CARRY_TRY(carry_json_parse(ctx, &root, t->settings, t->settings_length, path));
    const carry_json *eos = carry_json_find(root, "eos_token");
    const carry_json *content = carry_json_find(eos, "content"); /* if it is an object, not a string */
    const carry_json *name = content != NULL ? content : eos;
    t->eos = name != NULL && name->kind == CARRY_JSON_STRING ? carry_tokenizer_find(t, name->as.text.bytes) : -1;
    const carry_json *chat = find_chat(root);
    carry_status status = CARRY_OK;
    if (chat != NULL && t->chat == NULL) {
        t->chat = malloc(chat->as.text.length + 1);
        if (t->chat != NULL) {
            memcpy(t->chat, chat->as.text.bytes, chat->as.text.length + 1);
            t->chat_length = chat->as.text.length;
        } else {
            status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s", path);
        }
    }
    carry_json_free(root);
    return status;
}

carry_status carry_tokenizer_read_beside(carry_ctx *ctx, carry_tokenizer *tokenizer, const char *folder) {
    CARRY_TRY(read_beside(ctx, folder, SETTINGS, &tokenizer->settings, &tokenizer->settings_length));
    CARRY_TRY(read_beside(ctx, folder, CHAT, &tokenizer->chat, &tokenizer->chat_length));
    tokenizer->has_chat_file = tokenizer->chat != NULL;
    return tokenizer->settings != NULL ? take_settings(ctx, tokenizer, folder) : CARRY_OK;
}

int64_t carry_tokenizer_eos(const carry_tokenizer *tokenizer) {
    return tokenizer->eos;
}

/* Writes a line such as "eos_token": "</s>" if the tokenizer has one of these tokens. */
static void put_known(carry_json_text *text, const carry_tokenizer *t, const char *key, const char *const *names) {
    for (int i = 0; names[i] != NULL; i++) {
        if (carry_tokenizer_find(t, names[i]) >= 0) {
            carry_json_put_raw(text, ",\n  \"%s\": ", key);
            carry_json_put_string(text, names[i]);
            return;
        }
    }
}

static void put_added(carry_json_text *text, const carry_tokenizer *t) {
    const char *before = "";
    for (int64_t id = 0; id < t->count; id++) {
        const carry_token *token = &t->token[id];
        if (token->added) {
            char content[CARRY_ADDED_BYTES + 1];
            memcpy(content, t->text + token->content, token->content_length);
            content[token->content_length] = '\0';
            carry_json_put_raw(text, "%s\n    \"%lld\": {\"content\": ", before, (long long)id);
            carry_json_put_string(text, content);
            carry_json_put_raw(text,
                               ", \"lstrip\": false, \"normalized\": %s, \"rstrip\": false, \"single_word\": false, "
                               "\"special\": %s}",
                               token->normalized ? "true" : "false", token->special ? "true" : "false");
            before = ",";
        }
    }
}

static carry_status write_own(carry_ctx *ctx, const carry_tokenizer *t, const char *path) {
    static const char *const starts[] = {"<s>", "<bos>", "<|begin_of_text|>", NULL};
    static const char *const ends[] = {CARRY_END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>", NULL};
    static const char *const pads[] = {"<|pad|>", "<pad>", NULL};
    static const char *const unknowns[] = {"<unk>", NULL};
    carry_json_text text = {0};
    carry_json_put_raw(&text, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                              "  \"clean_up_tokenization_spaces\": false,\n  \"added_tokens_decoder\": {");
    put_added(&text, t);
    carry_json_put_raw(&text, "\n  }");
    put_known(&text, t, "bos_token", starts);
    put_known(&text, t, "eos_token", ends);
    put_known(&text, t, "pad_token", pads);
    put_known(&text, t, "unk_token", unknowns);
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

carry_status carry_tokenizer_save_folder(carry_ctx *ctx, const carry_tokenizer *tokenizer, const char *folder) {
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(ctx, path, folder, "tokenizer.json"));
    CARRY_TRY(carry_tokenizer_save(ctx, tokenizer, path));
    CARRY_TRY(carry_file_in(ctx, path, folder, SETTINGS));
    CARRY_TRY(tokenizer->settings != NULL
                  ? carry_file_replace(ctx, path, tokenizer->settings, tokenizer->settings_length)
                  : write_own(ctx, tokenizer, path));
    if (tokenizer->has_chat_file) {
        CARRY_TRY(carry_file_in(ctx, path, folder, CHAT));
        CARRY_TRY(carry_file_replace(ctx, path, tokenizer->chat, tokenizer->chat_length));
    }
    return CARRY_OK;
}
