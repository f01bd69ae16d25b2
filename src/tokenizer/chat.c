/* Chats: builds the variables of a chat template as transformers builds them. */
#include "tokenizer/chat.h"

#include <stdlib.h>
#include <string.h>

#include "core/json_write.h"
#include "file/hub_cache.h"
#include "tokenizer/tokenizer_internal.h"

#define NAME "the chat template"

/* Tokens that can end an answer. The one that occurs in the template is used. */
static const char *const ends[] = {"<|im_end|>",      "<|eot_id|>", "<end_of_turn>",
                                   "<|end_of_turn|>", "<turn|>",    "<|end|>"};

static int64_t find_end(const carry_tokenizer *tokenizer) {
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        bool is_written = memmem(tokenizer->chat, tokenizer->chat_length, ends[i], strlen(ends[i])) != NULL;
        int64_t id = is_written ? carry_tokenizer_find(tokenizer, ends[i]) : -1;
        if (id >= 0) {
            return id;
        }
    }
    return carry_tokenizer_eos(tokenizer);
}

/* Reads {"bos_token": "<s>", ...} from the settings. A token is a string, or an object with the string in "content". */
static carry_status read_tokens(carry_ctx *ctx, carry_json **tokens, const char *settings, size_t length) {
    carry_json *root;
    carry_json_text text = {0};
    CARRY_TRY(carry_json_parse(ctx, &root, settings, length, "tokenizer_config.json"));
    carry_json_begin(&text, NULL, '{');
    for (const carry_json *one = carry_json_first(root); one != NULL && one->key != NULL; one = one->next) {
        const carry_json *content = one->kind == CARRY_JSON_OBJECT ? carry_json_find(one, "content") : one;
        bool is_token = one->key_length > 6 && strcmp(one->key + one->key_length - 6, "_token") == 0;
        if (is_token && content != NULL && content->kind == CARRY_JSON_STRING) {
            carry_json_add_node(&text, one->key, content);
        }
    }
    carry_json_end(&text, '}');
    carry_json_free(root);
    carry_status status = CARRY_OK;
    if (text.failed) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: special tokens");
    } else {
        status = carry_json_parse(ctx, tokens, text.bytes, text.length, "special tokens");
    }
    carry_json_text_free(&text);
    return status;
}

static carry_status open_parts(carry_ctx *ctx, carry_chat *chat, const carry_tokenizer *tokenizer) {
    if (tokenizer->chat == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "the model has no chat template, neither chat_template.jinja nor in tokenizer_config.json");
    }
    CARRY_TRY(carry_template_parse(ctx, &chat->template, tokenizer->chat, tokenizer->chat_length, NAME));
    carry_status status = tokenizer->settings != NULL
                              ? read_tokens(ctx, &chat->tokens, tokenizer->settings, tokenizer->settings_length)
                              : CARRY_OK;
    if (status != CARRY_OK) {
        carry_chat_close(chat);
    }
    return status;
}

carry_status carry_chat_open(carry_ctx *ctx, carry_chat *chat, const carry_tokenizer *tokenizer) {
    *chat = (carry_chat){.end = -1};
    CARRY_TRY(open_parts(ctx, chat, tokenizer));
    chat->end = find_end(tokenizer);
    return CARRY_OK;
}

carry_status carry_chat_open_folder(carry_ctx *ctx, carry_chat *chat, const char *folder) {
    char found[CARRY_FILE_PATH];
    *chat = (carry_chat){.end = -1};
    CARRY_TRY(carry_hub_resolve(ctx, found, folder)); /* hf:OWNER/NAME */
    carry_tokenizer *files = carry_tokenizer_new();   /* holds only the texts read from the folder */
    if (files == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s", folder);
    }
    carry_status status = carry_tokenizer_read_beside(ctx, files, found);
    if (status == CARRY_OK) {
        status = open_parts(ctx, chat, files);
    }
    carry_tokenizer_close(files);
    return status;
}

void carry_chat_close(carry_chat *chat) {
    carry_template_free(chat->template);
    carry_json_free(chat->tokens);
    *chat = (carry_chat){.end = -1};
}

static bool has(const carry_json *message, const char *key) {
    const carry_json *found = carry_json_find(message, key);
    return found != NULL && found->kind != CARRY_JSON_NULL;
}

/* Writes a message without its null values, and its reasoning under the names that templates look for. */
static void write_message(carry_json_text *to, const carry_json *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const carry_json *reasoning = NULL;
    for (int i = 0; i < 3 && reasoning == NULL; i++) {
        const carry_json *found = carry_json_find(message, names[i]);
        reasoning = found != NULL && found->kind != CARRY_JSON_NULL ? found : NULL;
    }
    carry_json_begin(to, NULL, '{');
    if (reasoning != NULL && !has(message, "thinking")) {
        carry_json_add_node(to, "thinking", reasoning);
    }
    for (const carry_json *one = carry_json_first(message); one != NULL; one = one->next) {
        bool is_reasoning = reasoning != NULL && strcmp(one->key, "reasoning_content") == 0;
        if (one->kind != CARRY_JSON_NULL) {
            carry_json_add_node(to, one->key, is_reasoning ? reasoning : one);
        }
    }
    if (reasoning != NULL && !has(message, "reasoning_content")) {
        carry_json_add_node(to, "reasoning_content", reasoning);
    }
    carry_json_end(to, '}');
}

static carry_status write_messages(carry_ctx *ctx, carry_json_text *to, const carry_json *messages) {
    if (messages == NULL || messages->kind != CARRY_JSON_ARRAY || messages->as.inside.count == 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a chat needs messages: a list of {\"role\": ..., \"content\": ...}");
    }
    int64_t number = 1;
    carry_json_begin(to, "messages", '[');
    for (const carry_json *one = messages->as.inside.first; one != NULL; one = one->next, number++) {
        const carry_json *role = carry_json_find(one, "role");
        if (one->kind != CARRY_JSON_OBJECT || role == NULL || role->kind != CARRY_JSON_STRING) {
            return carry_fail(ctx, CARRY_EARGUMENT,
                              "message %lld: expected an object with a role, as {\"role\": ..., \"content\": ...}",
                              (long long)number);
        }
        write_message(to, one);
    }
    carry_json_end(to, ']');
    return CARRY_OK;
}

/* Sets the template's variable for --think or --no-think. */
static carry_status write_thinking(carry_ctx *ctx, carry_json_text *to, const carry_chat *chat,
                                   carry_thinking thinking) {
    static const char *const names[] = {"enable_thinking", "thinking"};
    for (int i = 0; i < 2 && thinking != CARRY_THINKING_AS_IS; i++) {
        if (carry_template_names(chat->template, names[i])) {
            carry_json_add_bool(to, names[i], thinking == CARRY_THINKING_ON);
            return CARRY_OK;
        }
    }
    return thinking != CARRY_THINKING_ON
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EUNSUPPORTED, "this model's chat template cannot turn thinking on");
}

static carry_status write_variables(carry_ctx *ctx, carry_json_text *to, const carry_chat *chat,
                                    const carry_chat_request *request) {
    carry_json_begin(to, NULL, '{');
    CARRY_TRY(write_messages(ctx, to, carry_json_find(request->variables, "messages")));
    CARRY_TRY(write_thinking(ctx, to, chat, request->thinking));
    carry_json_end(to, '}');
    return to->failed ? carry_fail(ctx, CARRY_EMEMORY, "out of memory: the messages of a chat") : CARRY_OK;
}

carry_status carry_chat_render(carry_ctx *ctx, const carry_chat *chat, const carry_chat_request *request, char **text,
                               size_t *length) {
    static const char defaults_text[] = "{\"tools\": null, \"documents\": null, \"add_generation_prompt\": true}";
    carry_json *defaults = NULL, *made = NULL;
    carry_json_text written = {0};
    *text = NULL;
    *length = 0;
    carry_status status = write_variables(ctx, &written, chat, request);
    if (status == CARRY_OK) {
        status = carry_json_parse(ctx, &made, written.bytes, written.length, "the chat");
    }
    if (status == CARRY_OK) {
        status = carry_json_parse(ctx, &defaults, defaults_text, sizeof defaults_text - 1, "defaults");
    }
    if (status == CARRY_OK) {
        const carry_json *objects[] = {defaults, chat->tokens, request->variables, made};
        carry_template_input input = {.objects = objects, .count = 4, .now = request->now};
        status = carry_template_render(ctx, chat->template, &input, text, length);
    }
    carry_json_text_free(&written);
    carry_json_free(made);
    carry_json_free(defaults);
    return status;
}
