/* ChatML: recognised by the fragments of its template, rendered by plain concatenation. */
#include "tokenizer/chat.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"

#define START "<|im_start|>"
#define END "<|im_end|>"
#define NO_THOUGHT "<think>\n\n</think>\n\n"

/* The place after `what` in a template; line ends may be written as \n there. NULL: it is not there. */
static const char *after(const char *text, const char *what) {
    for (; *text != '\0'; text++) {
        const char *at = text;
        const char *wanted = what;
        while (*wanted != '\0') {
            if (*wanted == '\n' && at[0] == '\\' && at[1] == 'n') {
                at += 2;
            } else if (*at == *wanted) {
                at++;
            } else {
                break;
            }
            wanted++;
        }
        if (*wanted == '\0') {
            return at;
        }
    }
    return NULL;
}

/* "<|im_start|>system\nTEXT<|im_end|>" with a text in it is what stands there when no system message is given. */
static carry_status take_system(carry_ctx *ctx, carry_chat *chat, const char *text) {
    for (const char *at = after(text, START "system\n"); at != NULL; at = after(at, START "system\n")) {
        const char *end = strstr(at, END);
        if (*at == '\'' || *at == '"' || *at == '{' || end == NULL) {
            continue;
        }
        size_t length = (size_t)(end - at);
        if (length >= CARRY_CHAT_SYSTEM || memchr(at, '\'', length) != NULL || memchr(at, '"', length) != NULL ||
            memchr(at, '\\', length) != NULL || memchr(at, '{', length) != NULL) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED,
                              "the chat template is not known: its system prompt is not plain text of up to %d bytes",
                              CARRY_CHAT_SYSTEM - 1);
        }
        memcpy(chat->system, at, length);
        chat->system[length] = '\0';
        return CARRY_OK;
    }
    return CARRY_OK;
}

/* What follows "<|im_start|>assistant\n" of the prompt. */
static void take_thinking(carry_chat *chat, const char *tail) {
    const char *open = after(tail, "<think>\n");
    while (open != NULL && *open != '\'' && *open != '"') {
        open = after(open, "<think>\n");
    }
    chat->can_not_think = after(tail, NO_THOUGHT) != NULL;
    chat->opens_thought = open != NULL;
    chat->can_think = chat->can_not_think || chat->opens_thought;
    bool only_when_asked = strstr(tail, "enable_thinking is true") != NULL ||
                           (strstr(tail, "enable_thinking %}") != NULL && strstr(tail, "not enable_thinking") == NULL &&
                            chat->opens_thought && chat->can_not_think);
    chat->thinks = chat->can_think && !only_when_asked;
}

carry_status carry_chat_open(carry_ctx *ctx, carry_chat *chat, const carry_tokenizer *tokenizer) {
    *chat = (carry_chat){.end = carry_tokenizer_find(tokenizer, END)};
    const char *text = tokenizer->chat;
    if (text == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "the model has no chat template, neither chat_template.jinja nor in tokenizer_config.json");
    }
    const char *tail = NULL;
    for (const char *at = text; (at = strstr(at, "add_generation_prompt")) != NULL; at++) {
        tail = at;
    }
    if (strlen(text) != tokenizer->chat_length || tail == NULL || after(tail, START "assistant\n") == NULL ||
        strstr(text, END) == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "the chat template is not known: it is not ChatML with " START " and " END ", as Qwen's is");
    }
    if (chat->end < 0 || carry_tokenizer_find(tokenizer, START) < 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "the chat template has " START " and " END ", and the tokenizer has no such tokens");
    }
    chat->trims = strstr(text, "|trim") != NULL || strstr(text, "| trim") != NULL;
    chat->drops_thoughts = strstr(text, "'</think>'") != NULL || strstr(text, "\"</think>\"") != NULL;
    take_thinking(chat, tail);
    return take_system(ctx, chat, text);
}

/* As Python's strip has it. */
static bool is_space_at(const char *text, size_t length, int *used) {
    *used = carry_utf8_at((const unsigned char *)text, length);
    uint32_t code = *used > 0 ? carry_utf8_code((const unsigned char *)text, *used) : 'x';
    return carry_utf8_is_space(code) || (code >= 0x1C && code <= 0x1F);
}

static void trim(const char **text, size_t *length) {
    int used;
    while (*length > 0 && is_space_at(*text, *length, &used)) {
        *text += used;
        *length -= (size_t)used;
    }
    for (bool goes_on = true; goes_on && *length > 0;) {
        size_t last = 1;
        while (last < *length && last < CARRY_UTF8_LONGEST && ((unsigned char)(*text)[*length - last] & 0xC0) == 0x80) {
            last++;
        }
        goes_on = is_space_at(*text + *length - last, last, &used) && (size_t)used == last;
        *length -= goes_on ? last : 0;
    }
}

/* An earlier answer without its thoughts. */
static void drop_thoughts(const char **text, size_t *length) {
    static const char end[] = "</think>";
    for (const char *at; (at = memmem(*text, *length, end, sizeof end - 1)) != NULL;) {
        size_t before = (size_t)(at - *text) + sizeof end - 1;
        *text += before;
        *length -= before;
        while (*length > 0 && **text == '\n') {
            (*text)++;
            (*length)--;
        }
    }
}

static bool add_text(carry_buffer *to, const char *text) {
    return carry_buffer_add(to, text, strlen(text));
}

static bool add_message(const carry_chat *chat, carry_buffer *to, const carry_message *message) {
    const char *text = message->text;
    size_t length = message->length;
    if (chat->drops_thoughts && strcmp(message->role, "assistant") == 0) {
        drop_thoughts(&text, &length);
    }
    if (chat->trims) {
        trim(&text, &length);
    }
    return add_text(to, START) && add_text(to, message->role) && add_text(to, "\n") &&
           carry_buffer_add(to, text, length) && add_text(to, END "\n");
}

static carry_status check_messages(carry_ctx *ctx, const carry_message *messages, int64_t count) {
    if (count < 1 || strcmp(messages[count - 1].role, "user") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the last message of a chat must be the user's");
    }
    for (int64_t i = 0; i < count; i++) {
        const char *role = messages[i].role;
        bool is_system = strcmp(role, "system") == 0;
        if (!is_system && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0) {
            return carry_fail(ctx, CARRY_EARGUMENT,
                              "message %lld has the role '%.40s': expected system, user or assistant", (long long)i + 1,
                              role);
        }
        if (is_system && i > 0) {
            return carry_fail(ctx, CARRY_EARGUMENT, "message %lld is the system's, which must be the first",
                              (long long)i + 1);
        }
    }
    return CARRY_OK;
}

carry_status carry_chat_render(carry_ctx *ctx, const carry_chat *chat, const carry_message *messages, int64_t count,
                               carry_thinking thinking, char **text, size_t *length) {
    *text = NULL;
    *length = 0;
    CARRY_TRY(check_messages(ctx, messages, count));
    if ((thinking == CARRY_THINKING_ON && !chat->can_think) ||
        (thinking == CARRY_THINKING_OFF && !chat->can_not_think && chat->can_think)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "this model's chat template cannot turn thinking %s",
                          thinking == CARRY_THINKING_ON ? "on" : "off");
    }
    bool thinks = thinking == CARRY_THINKING_AS_IS ? chat->thinks : thinking == CARRY_THINKING_ON;
    carry_buffer to = {0};
    bool done = true;
    if (chat->system[0] != '\0' && strcmp(messages[0].role, "system") != 0) {
        done = add_text(&to, START "system\n") && add_text(&to, chat->system) && add_text(&to, END "\n");
    }
    for (int64_t i = 0; i < count && done; i++) {
        done = add_message(chat, &to, &messages[i]);
    }
    done = done && add_text(&to, START "assistant\n");
    if (done && thinks) {
        done = !chat->opens_thought || add_text(&to, "<think>\n");
    } else if (done && chat->can_not_think) {
        done = add_text(&to, NO_THOUGHT);
    }
    if (!done) {
        free(to.at);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a chat of %lld messages", (long long)count);
    }
    *text = to.at;
    *length = to.count;
    return CARRY_OK;
}
