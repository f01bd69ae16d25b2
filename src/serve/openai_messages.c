/* Converts the messages of OpenAI's chats to the form that chat templates expect. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "serve/openai.h"

static bool refuse_content(carry_serve_refusal *refusal, const char *path, const char *expected) {
    char field[CARRY_SERVE_FIELD];
    (void)snprintf(field, sizeof field, "%s.content", path);
    return carry_serve_refuse(refusal, 400, field, "%s: expected %s", field, expected);
}

/* Writes the joined texts of all parts. */
static bool join_parts(carry_json_text *to, const carry_json *parts, const char *path, carry_serve_refusal *refusal) {
    carry_json_text joined = {0};
    bool is_text = true;
    int64_t at = -1;
    for (const carry_json *part = carry_json_first(parts); part != NULL && is_text; part = part->next) {
        at++;
        const carry_json *text = carry_json_find(part, "text");
        is_text = text != NULL && text->kind == CARRY_JSON_STRING &&
                  carry_json_is_text(carry_json_find(part, "type"), "text");
        if (is_text && text->as.text.length > 0) {
            carry_json_text_append(&joined, text->as.text.bytes, text->as.text.length);
        }
    }
    if (is_text) {
        carry_json_add_key(to, "content");
        carry_json_put_bytes(to, joined.bytes != NULL ? joined.bytes : "", joined.length);
    }
    to->failed = to->failed || joined.failed;
    carry_json_text_free(&joined);
    if (is_text) {
        return true;
    }
    char field[CARRY_SERVE_FIELD];
    (void)snprintf(field, sizeof field, "%s.content[%" PRId64 "]", path, at);
    return carry_serve_refuse(refusal, 400, field,
                              "%s: expected {\"type\": \"text\", \"text\": ...}: this model takes no other input",
                              field);
}

/* Writes a tool call. Arguments given as the text of a JSON object are written as an object. */
static void add_call(carry_ctx *ctx, carry_json_text *to, const carry_json *call) {
    const carry_json *function = carry_json_find(call, "function");
    carry_json_begin(to, NULL, '{');
    for (const carry_json *member = carry_json_first(call); member != NULL; member = member->next) {
        if (member != function || function->kind != CARRY_JSON_OBJECT) {
            carry_json_add_node(to, member->key, member);
        }
    }
    if (function != NULL && function->kind == CARRY_JSON_OBJECT) {
        carry_json_begin(to, "function", '{');
        for (const carry_json *member = carry_json_first(function); member != NULL; member = member->next) {
            carry_json *parsed = NULL;
            if (strcmp(member->key, "arguments") == 0 && member->kind == CARRY_JSON_STRING &&
                carry_json_parse(ctx, &parsed, member->as.text.bytes, member->as.text.length, "arguments") !=
                    CARRY_OK) {
                parsed = NULL;
            }
            const bool is_object = parsed != NULL && parsed->kind == CARRY_JSON_OBJECT;
            carry_json_add_node(to, member->key, is_object ? parsed : member);
            carry_json_free(parsed);
        }
        carry_json_end(to, '}');
    }
    carry_json_end(to, '}');
}

static bool check_call(const carry_json *call, const char *path, carry_serve_refusal *refusal) {
    const carry_json *function = carry_serve_member(call, "function");
    const carry_json *arguments = carry_serve_member(function, "arguments");
    char field[CARRY_SERVE_FIELD];
    if (call->kind != CARRY_JSON_OBJECT) {
        return carry_serve_refuse(refusal, 400, path, "%s: expected an object", path);
    }
    (void)snprintf(field, sizeof field, "%.100s.function", path);
    return carry_serve_check(call, path, "id", CARRY_JSON_STRING, false, refusal) &&
           carry_serve_check(call, path, "type", CARRY_JSON_STRING, false, refusal) &&
           carry_serve_check(call, path, "function", CARRY_JSON_OBJECT, true, refusal) &&
           carry_serve_check(function, field, "name", CARRY_JSON_STRING, true, refusal) &&
           (arguments == NULL || arguments->kind == CARRY_JSON_OBJECT ||
            carry_serve_check(function, field, "arguments", CARRY_JSON_STRING, true, refusal));
}

/* Checks the types of all fields that have a meaning here, except content. */
static bool check_message(const carry_json *message, const char *path, carry_serve_refusal *refusal) {
    static const char *const texts[] = {"name", "tool_call_id", "reasoning_content", "reasoning", "thinking"};
    int64_t at = 0;
    if (message->kind != CARRY_JSON_OBJECT) {
        return carry_serve_refuse(refusal, 400, path, "%s: expected an object with role and content", path);
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (!carry_serve_check(message, path, texts[i], CARRY_JSON_STRING, false, refusal)) {
            return false;
        }
    }
    if (!carry_serve_check(message, path, "tool_calls", CARRY_JSON_ARRAY, false, refusal)) {
        return false;
    }
    const carry_json *calls = carry_serve_member(message, "tool_calls");
    for (const carry_json *call = carry_json_first(calls); call != NULL; call = call->next) {
        char field[CARRY_SERVE_FIELD];
        (void)snprintf(field, sizeof field, "%.64s.tool_calls[%" PRId64 "]", path, at++);
        if (!check_call(call, field, refusal)) {
            return false;
        }
    }
    return true;
}

static bool add_message(carry_ctx *ctx, carry_json_text *to, const carry_json *message, int64_t at,
                        carry_serve_refusal *refusal) {
    char path[CARRY_SERVE_FIELD / 2];
    (void)snprintf(path, sizeof path, "messages[%" PRId64 "]", at);
    if (!check_message(message, path, refusal)) {
        return false;
    }
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    const char *role = carry_json_string(carry_json_find(message, "role"));
    const carry_json *content = carry_serve_member(message, "content");
    bool is_role = false;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0] && role != NULL; i++) {
        is_role = is_role || strcmp(role, roles[i]) == 0;
    }
    if (!is_role) {
        char field[CARRY_SERVE_FIELD];
        (void)snprintf(field, sizeof field, "%s.role", path);
        return carry_serve_refuse(refusal, 400, field, "%s: expected system, developer, user, assistant or tool",
                                  field);
    }
    if (content != NULL && content->kind != CARRY_JSON_STRING && content->kind != CARRY_JSON_ARRAY) {
        return refuse_content(refusal, path, "a text or a list of parts");
    }
    if (content == NULL && strcmp(role, "assistant") != 0) {
        return refuse_content(refusal, path, "a text; it is missing");
    }
    carry_json_begin(to, NULL, '{');
    carry_json_add_text(to, "role", strcmp(role, "developer") == 0 ? "system" : role);
    if (content == NULL) {
        carry_json_add_text(to, "content", "");
    } else if (content->kind == CARRY_JSON_STRING) {
        carry_json_add_node(to, "content", content);
    } else if (!join_parts(to, content, path, refusal)) {
        return false;
    }
    for (const carry_json *member = carry_json_first(message); member != NULL; member = member->next) {
        if (strcmp(member->key, "tool_calls") == 0 && member->kind == CARRY_JSON_ARRAY) {
            carry_json_begin(to, "tool_calls", '[');
            for (const carry_json *call = carry_json_first(member); call != NULL; call = call->next) {
                add_call(ctx, to, call);
            }
            carry_json_end(to, ']');
        } else if (strcmp(member->key, "role") != 0 && strcmp(member->key, "content") != 0) {
            carry_json_add_node(to, member->key, member);
        }
    }
    carry_json_end(to, '}');
    return true;
}

/* Writes chat_template_kwargs (the name in vLLM and SGLang), except variables that are set here. */
static bool add_variables(carry_json_text *to, const carry_serve_request *r, carry_serve_refusal *refusal) {
    const carry_json *given = carry_serve_member(r->body, "chat_template_kwargs");
    const carry_json *effort = carry_serve_member(r->body, "reasoning_effort");
    if (given != NULL && given->kind != CARRY_JSON_OBJECT) {
        return carry_serve_refuse(refusal, 400, "chat_template_kwargs", "chat_template_kwargs: expected an object");
    }
    if (effort != NULL && effort->kind != CARRY_JSON_STRING) {
        return carry_serve_refuse(refusal, 400, "reasoning_effort", "reasoning_effort: expected a text");
    }
    for (const carry_json *one = carry_json_first(given); one != NULL; one = one->next) {
        if (strcmp(one->key, "messages") != 0 && strcmp(one->key, "tools") != 0 &&
            strcmp(one->key, "add_generation_prompt") != 0) {
            carry_json_add_node(to, one->key, one);
        }
    }
    if (effort != NULL && carry_json_find(given, "reasoning_effort") == NULL) {
        carry_json_add_node(to, "reasoning_effort", effort);
    }
    return true;
}

static bool write_variables(carry_ctx *ctx, carry_json_text *to, const carry_serve_request *r,
                            carry_serve_refusal *refusal) {
    const carry_json *messages = carry_serve_member(r->body, "messages");
    int64_t at = 0;
    if (messages == NULL || messages->kind != CARRY_JSON_ARRAY || carry_json_count(messages) == 0) {
        return carry_serve_refuse(refusal, 400, "messages", "messages: expected a list of at least one message");
    }
    carry_json_begin(to, NULL, '{');
    carry_json_begin(to, "messages", '[');
    for (const carry_json *one = carry_json_first(messages); one != NULL; one = one->next, at++) {
        if (!add_message(ctx, to, one, at, refusal)) {
            return false;
        }
    }
    carry_json_end(to, ']');
    if (r->tools != NULL && r->tool_choice != CARRY_TOOLS_NONE) {
        carry_json_add_node(to, "tools", r->tools);
    }
    if (r->has_no_opening) {
        carry_json_add_bool(to, "add_generation_prompt", false);
    }
    const bool is_added = add_variables(to, r, refusal);
    carry_json_end(to, '}');
    return is_added;
}

bool carry_serve_openai_messages(carry_ctx *ctx, carry_serve_request *r, carry_serve_refusal *refusal) {
    carry_json_text text = {0};
    bool is_made = write_variables(ctx, &text, r, refusal);
    if (is_made && text.failed) {
        is_made = carry_serve_refuse(refusal, 500, "", "out of memory");
    } else if (is_made && carry_json_parse(ctx, &r->variables, text.bytes, text.length, "messages") != CARRY_OK) {
        is_made = carry_serve_refuse(refusal, 400, "messages", "%s", carry_ctx_error(ctx));
    }
    carry_json_text_free(&text);
    return is_made;
}
