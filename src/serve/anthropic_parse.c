/* Rewrites bodies of Anthropic's messages as bodies of OpenAI's chat completions. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "serve/anthropic.h"

/* Writes a string, or the joined texts of a list of text blocks, as one JSON string. */
static bool put_text(carry_json_text *to, const char *key, const carry_json *content, const char *field,
                     carry_serve_refusal *refusal) {
    carry_json_text joined = {0};
    bool is_text = content == NULL || content->kind == CARRY_JSON_STRING || content->kind == CARRY_JSON_ARRAY;
    if (content != NULL && content->kind == CARRY_JSON_STRING) {
        carry_json_add_node(to, key, content);
        return true;
    }
    for (const carry_json *block = carry_json_first(content); block != NULL && is_text; block = block->next) {
        const carry_json *text = carry_json_find(block, "text");
        is_text = carry_json_is_text(carry_json_find(block, "type"), "text") && carry_json_string(text) != NULL;
        if (is_text) {
            carry_json_put_raw(&joined, "%s", text->as.text.bytes);
        }
    }
    carry_json_add_text(to, key, joined.bytes != NULL ? joined.bytes : "");
    to->failed = to->failed || joined.failed;
    carry_json_text_free(&joined);
    return is_text || carry_serve_refuse(refusal, 400, field, "%s: expected a text or a list of text blocks", field);
}

static bool is_block(const carry_json *block, const char *type) {
    return carry_json_is_text(carry_json_find(block, "type"), type);
}

static bool refuse_block(carry_serve_refusal *refusal, const char *path, const char *expected) {
    return carry_serve_refuse(refusal, 400, path, "%s: expected %s", path, expected);
}

static void put_call(carry_json_text *to, const carry_json *block) {
    carry_json_begin(to, NULL, '{');
    carry_json_add_node(to, "id", carry_json_find(block, "id"));
    carry_json_add_text(to, "type", "function");
    carry_json_begin(to, "function", '{');
    carry_json_add_node(to, "name", carry_json_find(block, "name"));
    carry_json_add_node(to, "arguments", carry_json_find(block, "input"));
    carry_json_end(to, '}');
    carry_json_end(to, '}');
}

/* Checks a block of a message. */
static bool check_block(const carry_json *block, const char *path, carry_serve_refusal *refusal) {
    static const char *const types[] = {"text", "thinking", "redacted_thinking", "tool_use", "tool_result"};
    bool is_known = block->kind == CARRY_JSON_OBJECT;
    if (!is_known) {
        return refuse_block(refusal, path, "an object with a type");
    }
    is_known = false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        is_known = is_known || is_block(block, types[i]);
    }
    if (!is_known) {
        char field[CARRY_SERVE_FIELD];
        (void)snprintf(field, sizeof field, "%.100s.type", path);
        return refuse_block(refusal, field, "text, tool_use, tool_result or thinking");
    }
    if (is_block(block, "tool_use")) {
        return carry_serve_check(block, path, "id", CARRY_JSON_STRING, true, refusal) &&
               carry_serve_check(block, path, "name", CARRY_JSON_STRING, true, refusal) &&
               carry_serve_check(block, path, "input", CARRY_JSON_OBJECT, true, refusal);
    }
    return is_block(block, "tool_result")
               ? carry_serve_check(block, path, "tool_use_id", CARRY_JSON_STRING, true, refusal)
           : is_block(block, "text")     ? carry_serve_check(block, path, "text", CARRY_JSON_STRING, true, refusal)
           : is_block(block, "thinking") ? carry_serve_check(block, path, "thinking", CARRY_JSON_STRING, true, refusal)
                                         : true;
}

static bool check_message(const carry_json *message, int64_t index, carry_serve_refusal *refusal) {
    const carry_json *content = carry_serve_member(message, "content");
    const carry_json *role = carry_serve_member(message, "role");
    char path[CARRY_SERVE_FIELD / 2];
    char field[CARRY_SERVE_FIELD];
    int64_t at = 0;
    (void)snprintf(path, sizeof path, "messages[%" PRId64 "]", index);
    if (message->kind != CARRY_JSON_OBJECT) {
        return refuse_block(refusal, path, "an object with role and content");
    }
    (void)snprintf(field, sizeof field, "%s.role", path);
    if (!carry_json_is_text(role, "user") && !carry_json_is_text(role, "assistant")) {
        return refuse_block(refusal, field, "user or assistant");
    }
    (void)snprintf(field, sizeof field, "%s.content", path);
    if (content == NULL || (content->kind != CARRY_JSON_STRING && content->kind != CARRY_JSON_ARRAY)) {
        return refuse_block(refusal, field, "a text or a list of blocks");
    }
    for (const carry_json *block = carry_json_first(content); block != NULL; block = block->next) {
        (void)snprintf(field, sizeof field, "%s.content[%" PRId64 "]", path, at++);
        if (!check_block(block, field, refusal)) {
            return false;
        }
    }
    return true;
}

/* Writes the results of tools as separate messages, before the rest of the user's message. */
static bool put_results(carry_json_text *to, const carry_json *content, const char *field,
                        carry_serve_refusal *refusal) {
    for (const carry_json *block = carry_json_first(content); block != NULL; block = block->next) {
        if (is_block(block, "tool_result")) {
            carry_json_begin(to, NULL, '{');
            carry_json_add_text(to, "role", "tool");
            carry_json_add_node(to, "tool_call_id", carry_json_find(block, "tool_use_id"));
            if (!put_text(to, "content", carry_serve_member(block, "content"), field, refusal)) {
                return false;
            }
            carry_json_end(to, '}');
        }
    }
    return true;
}

/* Writes the text, reasoning and calls of a list of blocks into an open message. */
static bool put_blocks(carry_json_text *to, const carry_json *content, const char *field,
                       carry_serve_refusal *refusal) {
    carry_json_text text = {0};
    carry_json_text thinking = {0};
    int64_t calls = 0;
    bool is_known = true;
    for (const carry_json *block = carry_json_first(content); block != NULL && is_known; block = block->next) {
        const char *shown =
            carry_json_string(carry_json_find(block, is_block(block, "thinking") ? "thinking" : "text"));
        calls += is_block(block, "tool_use");
        is_known = is_block(block, "tool_use") || is_block(block, "tool_result") || is_block(block, "thinking") ||
                   is_block(block, "redacted_thinking") || (is_block(block, "text") && shown != NULL);
        if (shown != NULL && is_known) {
            carry_json_put_raw(is_block(block, "thinking") ? &thinking : &text, "%s", shown);
        }
    }
    carry_json_add_text(to, "content", text.bytes != NULL ? text.bytes : "");
    if (thinking.bytes != NULL) {
        carry_json_add_text(to, "reasoning_content", thinking.bytes);
    }
    if (calls > 0) {
        carry_json_begin(to, "tool_calls", '[');
        for (const carry_json *block = carry_json_first(content); block != NULL; block = block->next) {
            if (is_block(block, "tool_use")) {
                put_call(to, block);
            }
        }
        carry_json_end(to, ']');
    }
    to->failed = to->failed || text.failed || thinking.failed;
    carry_json_text_free(&text);
    carry_json_text_free(&thinking);
    return is_known ||
           carry_serve_refuse(refusal, 400, field,
                              "%s: expected blocks of the types text, tool_use, tool_result and thinking", field);
}

static bool has_other_blocks(const carry_json *content) {
    for (const carry_json *block = carry_json_first(content); block != NULL; block = block->next) {
        if (!is_block(block, "tool_result")) {
            return true;
        }
    }
    return false;
}

static bool put_message(carry_json_text *to, const carry_json *message, int64_t index, carry_serve_refusal *refusal) {
    char field[CARRY_SERVE_FIELD];
    const carry_json *content = carry_serve_member(message, "content");
    if (!check_message(message, index, refusal)) {
        return false;
    }
    const bool is_list = content != NULL && content->kind == CARRY_JSON_ARRAY;
    (void)snprintf(field, sizeof field, "messages[%" PRId64 "].content", index);
    if (is_list && !put_results(to, content, field, refusal)) {
        return false;
    }
    if (is_list && !has_other_blocks(content) && carry_json_count(content) > 0) {
        return true;
    }
    carry_json_begin(to, NULL, '{');
    carry_json_add_node(to, "role", carry_json_find(message, "role"));
    if (is_list ? !put_blocks(to, content, field, refusal) : !put_text(to, "content", content, field, refusal)) {
        return false;
    }
    carry_json_end(to, '}');
    return true;
}

static bool put_messages(carry_json_text *to, const carry_json *body, carry_serve_refusal *refusal) {
    const carry_json *messages = carry_serve_member(body, "messages");
    const carry_json *system = carry_serve_member(body, "system");
    int64_t index = 0;
    if (messages == NULL || messages->kind != CARRY_JSON_ARRAY) {
        return carry_serve_refuse(refusal, 400, "messages", "messages: expected a list");
    }
    carry_json_begin(to, "messages", '[');
    if (system != NULL) {
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "role", "system");
        if (!put_text(to, "content", system, "system", refusal)) {
            return false;
        }
        carry_json_end(to, '}');
    }
    for (const carry_json *one = carry_json_first(messages); one != NULL; one = one->next) {
        if (!put_message(to, one, index++, refusal)) {
            return false;
        }
    }
    carry_json_end(to, ']');
    return true;
}

static bool check_tool(const carry_json *tool, int64_t at, carry_serve_refusal *refusal) {
    const carry_json *type = carry_serve_member(tool, "type");
    char path[CARRY_SERVE_FIELD / 2];
    char field[CARRY_SERVE_FIELD];
    (void)snprintf(path, sizeof path, "tools[%" PRId64 "]", at);
    if (tool->kind != CARRY_JSON_OBJECT) {
        return refuse_block(refusal, path, "an object with name and input_schema");
    }
    (void)snprintf(field, sizeof field, "%s.type", path);
    if (type != NULL && !carry_json_is_text(type, "custom")) {
        return refuse_block(refusal, field, "custom: this server runs no tools");
    }
    (void)snprintf(field, sizeof field, "%s.name", path);
    const char *name = carry_json_string(carry_json_find(tool, "name"));
    if (name != NULL && name[0] == '\0') {
        return refuse_block(refusal, field, "a name; it is empty");
    }
    return carry_serve_check(tool, path, "name", CARRY_JSON_STRING, true, refusal) &&
           carry_serve_check(tool, path, "description", CARRY_JSON_STRING, false, refusal) &&
           carry_serve_check(tool, path, "input_schema", CARRY_JSON_OBJECT, true, refusal);
}

static bool put_tools(carry_json_text *to, const carry_json *tools, carry_serve_refusal *refusal) {
    int64_t at = 0;
    if (tools->kind != CARRY_JSON_ARRAY) {
        return refuse_block(refusal, "tools", "a list");
    }
    if (carry_json_count(tools) == 0) {
        return true;
    }
    carry_json_begin(to, "tools", '[');
    for (const carry_json *tool = carry_json_first(tools); tool != NULL; tool = tool->next) {
        if (!check_tool(tool, at++, refusal)) {
            return false;
        }
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "type", "function");
        carry_json_begin(to, "function", '{');
        carry_json_add_node(to, "name", carry_json_find(tool, "name"));
        if (carry_serve_member(tool, "description") != NULL) {
            carry_json_add_node(to, "description", carry_json_find(tool, "description"));
        }
        carry_json_add_node(to, "parameters", carry_json_find(tool, "input_schema"));
        carry_json_end(to, '}');
        carry_json_end(to, '}');
    }
    carry_json_end(to, ']');
    return true;
}

static bool put_choice(carry_json_text *to, const carry_json *choice, carry_serve_refusal *refusal) {
    const carry_json *single = carry_json_find(choice, "disable_parallel_tool_use");
    if (single != NULL && single->kind == CARRY_JSON_BOOL) {
        carry_json_add_bool(to, "parallel_tool_calls", !single->truth);
    }
    if (is_block(choice, "tool")) {
        if (!carry_serve_check(choice, "tool_choice", "name", CARRY_JSON_STRING, true, refusal)) {
            return false;
        }
        carry_json_begin(to, "tool_choice", '{');
        carry_json_add_text(to, "type", "function");
        carry_json_begin(to, "function", '{');
        carry_json_add_node(to, "name", carry_json_find(choice, "name"));
        carry_json_end(to, '}');
        carry_json_end(to, '}');
        return true;
    }
    const char *name = is_block(choice, "any")    ? "required"
                       : is_block(choice, "none") ? "none"
                       : is_block(choice, "auto") ? "auto"
                                                  : NULL;
    carry_json_add_text(to, "tool_choice", name);
    return name != NULL ||
           carry_serve_refuse(refusal, 400, "tool_choice", "tool_choice.type: expected auto, any, tool or none");
}

/* Checked here, since the rewritten body has another name for them. */
static bool check_stops(const carry_json *stops, carry_serve_refusal *refusal) {
    carry_serve_request counted = {0};
    if (stops != NULL && stops->kind != CARRY_JSON_ARRAY) {
        return carry_serve_refuse(refusal, 400, "stop_sequences", "stop_sequences: expected a list of texts");
    }
    for (const carry_json *stop = carry_json_first(stops); stop != NULL; stop = stop->next) {
        if (!carry_serve_add_stop(&counted, stop, "stop_sequences", refusal)) {
            return false;
        }
    }
    return true;
}

static bool put_body(carry_json_text *to, const carry_json *body, carry_serve_refusal *refusal) {
    static const char *const same[] = {"model", "max_tokens", "temperature", "top_p", "top_k", "stream"};
    const carry_json *tools = carry_serve_member(body, "tools");
    const carry_json *choice = carry_serve_member(body, "tool_choice");
    const carry_json *thinking = carry_serve_member(body, "thinking");
    if (carry_serve_member(body, "max_tokens") == NULL) {
        return carry_serve_refuse(refusal, 400, "max_tokens", "max_tokens: Field required");
    }
    const carry_json *stops = carry_serve_member(body, "stop_sequences");
    if (!check_stops(stops, refusal)) {
        return false;
    }
    if (thinking != NULL && thinking->kind != CARRY_JSON_OBJECT) {
        return carry_serve_refuse(refusal, 400, "thinking", "thinking: expected an object with a type");
    }
    carry_json_begin(to, NULL, '{');
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (carry_serve_member(body, same[i]) != NULL) {
            carry_json_add_node(to, same[i], carry_serve_member(body, same[i]));
        }
    }
    if (stops != NULL) {
        carry_json_add_node(to, "stop", stops);
    }
    if (thinking != NULL) {
        carry_json_begin(to, "chat_template_kwargs", '{');
        carry_json_add_bool(to, "enable_thinking", is_block(thinking, "enabled"));
        carry_json_end(to, '}');
    }
    const bool is_put = (tools == NULL || put_tools(to, tools, refusal)) &&
                        (choice == NULL || put_choice(to, choice, refusal)) && put_messages(to, body, refusal);
    carry_json_end(to, '}');
    return is_put;
}

bool carry_serve_anthropic_parse(carry_ctx *ctx, carry_serve_request *r, carry_serve_refusal *refusal) {
    carry_json_text text = {0};
    carry_json *body = NULL;
    if (r->body->kind != CARRY_JSON_OBJECT) {
        return carry_serve_refuse(refusal, 400, "", "the body: expected an object");
    }
    bool is_read = put_body(&text, r->body, refusal);
    if (is_read) {
        const carry_status status =
            text.failed ? CARRY_EMEMORY : carry_json_parse(ctx, &body, text.bytes, text.length, "the body");
        if (status != CARRY_OK) {
            is_read = carry_serve_refuse(refusal, status == CARRY_EMEMORY ? 500 : 400, "", "%s",
                                         text.failed ? "out of memory" : carry_ctx_error(ctx));
        }
    }
    carry_json_text_free(&text);
    if (!is_read) {
        return false;
    }
    carry_json_free(r->body);
    r->body = body;
    return carry_serve_openai_parse_chat(ctx, r, refusal);
}
