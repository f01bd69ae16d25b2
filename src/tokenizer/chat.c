/* ChatML: templates that are known by the hash of their text, rendered by plain concatenation. */
#include "tokenizer/chat.h"

#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"

#define START "<|im_start|>"
#define END "<|im_end|>"
#define NO_THOUGHT "<think>\n\n</think>\n\n"

/* The texts were rendered by Jinja 3.1 as well, with the same results (docs/results/hardening.md). */
static const struct {
    uint64_t hash; /* carry_hash of the text without a newline at its end */
    carry_chat chat;
} known[] = {
    /* Plain ChatML, as in the documentation of transformers; and the shortest form of it. */
    {0x3F951C547F06568FU, {0}},
    {0xAFDDC61DD2FF9FE6U, {0}},
    /* The shortest form with a switch for thinking. */
    {0x4E599D7717A5D718U, {.can_think = true, .can_not_think = true, .thinks = true}},
    /* Qwen2 and Qwen2.5 (Instruct). */
    {0xAB2957052382CF7CU, {.system = "You are a helpful assistant."}},
    {0x14F39DFCC63BCDCBU, {.system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}},
    /* Qwen3. */
    {0xEBED4C75E31DE940U, {.drops_thoughts = true, .can_think = true, .can_not_think = true, .thinks = true}},
    /* Qwen3.5: sizes that think by default, and those that do not (0.8B, 2B). */
    {0x81A87211B56794D9U,
     {.trims = true,
      .drops_thoughts = true,
      .can_think = true,
      .can_not_think = true,
      .opens_thought = true,
      .thinks = true}},
    {0x71E3BFD975DA04EAU,
     {.trims = true, .drops_thoughts = true, .can_think = true, .can_not_think = true, .opens_thought = true}},
};

carry_status carry_chat_open(carry_ctx *ctx, carry_chat *chat, const carry_tokenizer *tokenizer) {
    *chat = (carry_chat){0};
    if (tokenizer->chat == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "the model has no chat template, neither chat_template.jinja nor in tokenizer_config.json");
    }
    size_t length = tokenizer->chat_length;
    length -= length > 0 && tokenizer->chat[length - 1] == '\n' ? 1 : 0; /* Jinja drops it, too */
    const uint64_t hash = carry_hash(0, tokenizer->chat, length);
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof known[0] && !is_known; i++) {
        is_known = known[i].hash == hash;
        *chat = is_known ? known[i].chat : *chat;
    }
    if (!is_known) {
        char text[CARRY_HASH_TEXT];
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "the chat template is not known (XXH64 %s): templates are compared with those of Qwen2, "
                          "Qwen2.5, Qwen3, Qwen3.5 and plain ChatML, not interpreted; render the chat elsewhere and "
                          "give it as the prompt, without --chat",
                          carry_hash_text(text, hash));
    }
    chat->end = carry_tokenizer_find(tokenizer, END);
    if (chat->end < 0 || carry_tokenizer_find(tokenizer, START) < 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "the chat template has " START " and " END ", and the tokenizer has no such tokens");
    }
    return CARRY_OK;
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
    if (chat->trims) {
        trim(&text, &length);
    }
    if (chat->drops_thoughts && strcmp(message->role, "assistant") == 0) {
        drop_thoughts(&text, &length);
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

/* A last message that is the result of a tool: Qwen's templates keep the thoughts before it. */
static bool is_tool_response(const carry_chat *chat, const carry_message *message) {
    static const char first[] = "<tool_response>";
    static const char last[] = "</tool_response>";
    const char *text = message->text;
    size_t length = message->length;
    if (chat->trims) {
        trim(&text, &length);
    }
    return chat->drops_thoughts && length >= sizeof last - 1 && memcmp(text, first, sizeof first - 1) == 0 &&
           memcmp(text + length - (sizeof last - 1), last, sizeof last - 1) == 0;
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
    if (is_tool_response(chat, &messages[count - 1])) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "message %lld is the result of a tool: chats with tools are not "
                          "rendered",
                          (long long)count);
    }
    bool thinks = thinking == CARRY_THINKING_AS_IS ? chat->thinks : thinking == CARRY_THINKING_ON;
    carry_buffer to = {0};
    bool done = true;
    if (chat->system != NULL && strcmp(messages[0].role, "system") != 0) {
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
