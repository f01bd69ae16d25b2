/* Conversations. */
#include "cli/chat_conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json_write.h"

#define FILE_BYTES ((size_t)64 << 20)
#define STATE ".state"
#define UNDO ".undo.state"

static const char *const roles[] = {"system", "user", "assistant"};

void chat_conversation_free(chat_conversation *c) {
    for (size_t i = 0; i < c->count; i++) {
        free(c->message[i].content);
    }
    free(c->message);
    *c = (chat_conversation){0};
}

static bool insert(chat_conversation *c, size_t at, const char *role, const char *content) {
    if (c->count == c->room) {
        const size_t room = c->room > 0 ? 2 * c->room : 16;
        chat_message *grown = realloc(c->message, room * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        c->message = grown;
        c->room = room;
    }
    char *copy = strdup(content);
    if (copy == NULL) {
        return false;
    }
    memmove(c->message + at + 1, c->message + at, (c->count - at) * sizeof *c->message);
    c->message[at] = (chat_message){.role = role, .content = copy};
    c->count++;
    return true;
}

bool chat_conversation_add(chat_conversation *c, const char *role, const char *content) {
    return insert(c, c->count, role, content);
}

bool chat_conversation_remove(chat_conversation *c, const char *role) {
    size_t last = c->count;
    while (last > 0 && strcmp(c->message[last - 1].role, role) != 0) {
        last--;
    }
    if (last == 0) {
        return false;
    }
    while (c->count >= last) {
        free(c->message[--c->count].content);
    }
    return true;
}

bool chat_conversation_system(chat_conversation *c, const char *content) {
    if (c->count > 0 && strcmp(c->message[0].role, roles[0]) == 0) {
        free(c->message[0].content);
        memmove(c->message, c->message + 1, --c->count * sizeof *c->message);
    }
    return content[0] == '\0' || insert(c, 0, roles[0], content);
}

static void write_messages(carry_json_text *to, const char *key, const chat_conversation *c) {
    carry_json_begin(to, key, '[');
    for (size_t i = 0; i < c->count; i++) {
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "role", c->message[i].role);
        carry_json_add_text(to, "content", c->message[i].content);
        carry_json_end(to, '}');
    }
    carry_json_end(to, ']');
}

carry_status chat_conversation_render(carry_ctx *ctx, const chat_conversation *c, const carry_chat *chat,
                                      carry_thinking thinking, bool is_answered, char **text, size_t *length) {
    carry_json_text json = {0};
    carry_json *variables = NULL;
    carry_json_begin(&json, NULL, '{');
    write_messages(&json, "messages", c);
    carry_json_add_bool(&json, "add_generation_prompt", !is_answered);
    carry_json_end(&json, '}');
    carry_status status = CARRY_OK;
    if (json.failed) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: a conversation");
    } else {
        status = carry_json_parse(ctx, &variables, json.bytes, json.length, "the conversation");
    }
    if (status == CARRY_OK) {
        const carry_chat_request request = {.variables = variables, .thinking = thinking};
        status = carry_chat_render(ctx, chat, &request, text, length);
    }
    carry_json_free(variables);
    carry_json_text_free(&json);
    return status;
}

/* Computes the state after all messages by reading them as a prompt, most of which is in the cache. */
static carry_status keep_state(carry_ctx *ctx, carry_engine *engine, const char *text, size_t length, uint64_t *state) {
    carry_engine_event event = {CARRY_INIT(carry_engine_event)};
    const carry_engine_request request = {CARRY_INIT(carry_engine_request),
                                          .text = text,
                                          .text_bytes = length,
                                          .is_rendered = true,
                                          .tokens = 0,
                                          .keep_state = true};
    uint64_t id;
    *state = 0;
    CARRY_TRY(carry_engine_submit(ctx, engine, &request, &id));
    CARRY_TRY(carry_engine_run(engine));
    while (carry_engine_next(engine, &event)) {
        if (event.token < 0 && event.reason == CARRY_REASON_FAILED) {
            return carry_fail(ctx, event.status, "%s", event.message);
        }
        *state = event.token < 0 ? event.state : *state;
    }
    return *state != 0 ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: the state after the conversation");
}

/* Makes the name of a file beside `path`. */
static carry_status name_file(carry_ctx *ctx, char file[CARRY_FILE_PATH], const char *path, const char *suffix) {
    return snprintf(file, CARRY_FILE_PATH, "%s%s", path, suffix) < CARRY_FILE_PATH
               ? CARRY_OK
               : carry_fail(ctx, CARRY_ESIZE, "the path '%s' is too long", path);
}

static carry_status save_state(carry_ctx *ctx, const chat_conversation *c, carry_engine *engine, const carry_chat *chat,
                               const char *file) {
    char *text;
    size_t length;
    uint64_t state;
    CARRY_TRY(chat_conversation_render(ctx, c, chat, CARRY_THINKING_AS_IS, true, &text, &length));
    carry_status status = keep_state(ctx, engine, text, length, &state);
    free(text);
    CARRY_TRY(status);
    status = carry_engine_state_save(engine, state, file);
    (void)carry_engine_state_drop(engine, state);
    return status;
}

/* Saves the state after all messages, and the state before the last question, from which a conversation goes on after
   /undo. */
static carry_status save_states(carry_ctx *ctx, const chat_conversation *c, carry_engine *engine,
                                const carry_chat *chat, const char *path) {
    char file[CARRY_FILE_PATH];
    chat_conversation before = *c; /* has the same messages, but fewer of them */
    CARRY_TRY(name_file(ctx, file, path, UNDO));
    while (before.count > 0 && strcmp(before.message[before.count - 1].role, roles[1]) != 0) {
        before.count--;
    }
    before.count -= before.count > 0;
    if (before.count > 0) {
        CARRY_TRY(save_state(ctx, &before, engine, chat, file));
    } else {
        (void)unlink(file); /* of an earlier conversation */
    }
    CARRY_TRY(name_file(ctx, file, path, STATE));
    return save_state(ctx, c, engine, chat, file);
}

carry_status chat_conversation_save(carry_ctx *ctx, const chat_conversation *c, carry_engine *engine,
                                    const carry_chat *chat, const char *path) {
    carry_json_text json = {0};
    write_messages(&json, NULL, c);
    carry_status status = json.failed ? carry_fail(ctx, CARRY_EMEMORY, "out of memory: a conversation") : CARRY_OK;
    status = status == CARRY_OK && c->count > 0 ? save_states(ctx, c, engine, chat, path) : status;
    status = status == CARRY_OK ? carry_file_replace(ctx, path, json.bytes, json.length) : status;
    carry_json_text_free(&json);
    return status;
}

static carry_status take_messages(carry_ctx *ctx, chat_conversation *c, const carry_json *list, const char *path) {
    if (list->kind != CARRY_JSON_ARRAY) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s: expected a list of messages", path);
    }
    for (const carry_json *one = carry_json_first(list); one != NULL; one = one->next) {
        const char *content = carry_json_string(carry_json_find(one, "content"));
        const char *role = NULL;
        for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
            role = carry_json_is_text(carry_json_find(one, "role"), roles[i]) ? roles[i] : role;
        }
        if (content == NULL || role == NULL) {
            return carry_fail(ctx, CARRY_EFORMAT,
                              "%s, line %u: expected a message with the role system, user or assistant and a content",
                              path, one->line);
        }
        if (!chat_conversation_add(c, role, content)) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a conversation");
        }
    }
    return CARRY_OK;
}

/* Makes the state of a file a cached prefix, if there is such a file. */
static carry_status load_state(carry_ctx *ctx, carry_engine *engine, const char *path, const char *suffix,
                               bool *is_there) {
    char file[CARRY_FILE_PATH];
    uint64_t state;
    CARRY_TRY(name_file(ctx, file, path, suffix));
    *is_there = access(file, R_OK) == 0;
    if (!*is_there) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_engine_state_load(engine, &state, file));
    const carry_status status = carry_engine_state_cache(engine, state);
    (void)carry_engine_state_drop(engine, state);
    return status;
}

carry_status chat_conversation_load(carry_ctx *ctx, chat_conversation *c, carry_engine *engine, const char *path,
                                    bool *has_state) {
    carry_json *list;
    chat_conversation loaded = {0};
    bool has_undo;
    *has_state = false;
    CARRY_TRY(carry_json_read(ctx, &list, path, FILE_BYTES));
    const carry_status status = take_messages(ctx, &loaded, list, path);
    carry_json_free(list);
    if (status != CARRY_OK) {
        chat_conversation_free(&loaded);
        return status;
    }
    chat_conversation_free(c);
    *c = loaded;
    const carry_status undo = load_state(ctx, engine, path, UNDO, &has_undo);
    CARRY_TRY(load_state(ctx, engine, path, STATE, has_state));
    return undo;
}
