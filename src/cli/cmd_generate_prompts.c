/* carry generate: gathering prompts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_generate.h"
#include "core/json.h"

#define MESSAGES_BYTES ((size_t)64 << 20)

bool cli_generate_check(const cli_generating *g) {
    const char *wrong = NULL;
    if (g->by_ids && (g->is_chat || g->stops.count > 0)) {
        wrong = "--ids has no texts: --chat and --stop do not go with it";
    } else if (!g->is_chat && (g->system != NULL || g->messages != NULL || g->thinks || g->thinks_not)) {
        wrong = "--system, --messages, --think and --no-think need --chat";
    } else if (g->is_chat && g->state_load != NULL) {
        wrong = "--chat renders a chat from its start: --state-load does not go with it";
    } else if (g->thinks && g->thinks_not) {
        wrong = "--think and --no-think exclude each other";
    }
    if (wrong != NULL) {
        (void)cli_refuse("%s", wrong);
    }
    return wrong == NULL;
}

static bool add_prompt(cli_generating *d, const char *text, size_t length) {
    if (d->count == d->room) {
        int64_t room = d->room > 0 ? 2 * d->room : 16;
        carry_prompt *grown = realloc(d->prompts, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            (void)cli_refuse("out of memory for %lld prompts", (long long)room);
            return false;
        }
        d->prompts = grown;
        d->room = room;
    }
    d->prompts[d->count++] = (carry_prompt){.text = text, .length = length};
    return true;
}

/* A text that was read is kept to the end; takes it over. */
static bool hold(cli_generating *d, char *text) {
    char **grown = text != NULL ? realloc(d->held, (size_t)(d->held_count + 1) * sizeof *grown) : NULL;
    if (grown == NULL) {
        free(text);
        return false;
    }
    d->held = grown;
    d->held[d->held_count++] = text;
    return true;
}

static bool add_input(cli_generating *d) {
    size_t length;
    char *text = cli_read_all(stdin, "standard input", &length);
    return hold(d, text) && add_prompt(d, text, length);
}

/* A prompt for each line that is not empty. */
static bool add_lines(cli_generating *d, const char *path) {
    FILE *from = fopen(path, "rbe");
    if (from == NULL) {
        (void)cli_refuse("%s cannot be read: %s", path, strerror(errno));
        return false;
    }
    size_t length;
    char *text = cli_read_all(from, path, &length);
    (void)fclose(from);
    if (!hold(d, text)) {
        return false;
    }
    int64_t before = d->count;
    for (char *at = text; at < text + length;) {
        char *end = memchr(at, '\n', (size_t)(text + length - at));
        end = end != NULL ? end : text + length;
        size_t line = (size_t)(end - at);
        line -= line > 0 && at[line - 1] == '\r';
        if (line > 0 && !add_prompt(d, at, line)) {
            return false;
        }
        at = end + 1;
    }
    if (d->count == before) {
        (void)cli_refuse("%s has no prompt: expected one per line", path);
    }
    return d->count > before;
}

static bool gather_texts(cli_generating *d) {
    bool input_read = false;
    for (int i = 0; i < d->given.count; i++) {
        const char *text = d->given.text[i];
        bool is_input = strcmp(text, "-") == 0;
        if (is_input && input_read) {
            (void)cli_refuse("-p - was given twice, and standard input can be read once");
            return false;
        }
        input_read = input_read || is_input;
        if (!(is_input ? add_input(d) : add_prompt(d, text, strlen(text)))) {
            return false;
        }
    }
    if (d->file != NULL && !add_lines(d, d->file)) {
        return false;
    }
    if (d->count == 0 && d->messages == NULL) {
        (void)cli_refuse("generate needs a prompt: -p TEXT, -p - for standard input, or --file with one per line");
    }
    return d->count > 0 || d->messages != NULL;
}

/* "1 2 3", with commas and brackets if need be, into numbers that are held. */
static bool take_ids(cli_generating *d, carry_prompt *prompt) {
    size_t most = prompt->length / 2 + 1;
    uint32_t *ids = calloc(most, sizeof *ids);
    if (ids == NULL || !hold(d, (char *)ids)) {
        (void)cli_refuse("out of memory: a prompt of %zu bytes", prompt->length);
        return false;
    }
    for (size_t at = 0; at < prompt->length;) {
        unsigned char byte = (unsigned char)prompt->text[at];
        if (byte != '\0' && strchr(" \t\r\n,[]", byte) != NULL) {
            at++;
            continue;
        }
        uint64_t number = 0;
        size_t start = at;
        for (; at < prompt->length && prompt->text[at] >= '0' && prompt->text[at] <= '9' && number <= UINT32_MAX;
             at++) {
            number = 10 * number + (uint64_t)(prompt->text[at] - '0');
        }
        if (at == start || number > UINT32_MAX) {
            (void)cli_refuse("--ids: byte %zu of a prompt is not part of a token id: expected '1 2 3'", at);
            return false;
        }
        ids[prompt->id_count++] = (uint32_t)number;
    }
    prompt->ids = ids;
    return true;
}

/* The earlier messages of a chat, which point into *root; the system prompt first. NULL after a message. */
static carry_message *read_messages(const cli_generating *d, carry_json **root, int64_t *count) {
    *root = NULL;
    *count = 0;
    if (d->messages != NULL && carry_json_read(d->ctx, root, d->messages, MESSAGES_BYTES) != CARRY_OK) {
        (void)cli_failed(d->ctx);
        return NULL;
    }
    int64_t listed = *root != NULL && (*root)->kind == CARRY_JSON_ARRAY ? (*root)->as.inside.count : 0;
    carry_message *messages = calloc((size_t)listed + 2, sizeof *messages);
    if (messages == NULL || (*root != NULL && (*root)->kind != CARRY_JSON_ARRAY)) {
        (void)cli_refuse(messages == NULL ? "out of memory: %s" : "%s is not a list of messages",
                         d->messages != NULL ? d->messages : "messages");
        free(messages);
        return NULL;
    }
    if (d->system != NULL) {
        messages[(*count)++] = (carry_message){"system", d->system, strlen(d->system)};
    }
    for (const carry_json *one = *root != NULL ? (*root)->as.inside.first : NULL; one != NULL; one = one->next) {
        const carry_json *role = carry_json_find(one, "role");
        const carry_json *text = carry_json_find(one, "content");
        if (role == NULL || role->kind != CARRY_JSON_STRING || text == NULL || text->kind != CARRY_JSON_STRING) {
            (void)cli_refuse("%s, line %u: a message is {\"role\": TEXT, \"content\": TEXT}", d->messages, one->line);
            free(messages);
            return NULL;
        }
        messages[(*count)++] = (carry_message){role->as.text.bytes, text->as.text.bytes, text->as.text.length};
    }
    return messages;
}

/* Each prompt becomes the chat with it as the last message. */
static bool render_chats(cli_generating *d) {
    carry_chat chat;
    carry_json *root;
    int64_t earlier;
    if (carry_chat_open(d->ctx, &chat, d->model.tokenizer) != CARRY_OK) {
        (void)cli_failed(d->ctx);
        return false;
    }
    carry_model_add_end(&d->model, chat.end);
    carry_message *messages = read_messages(d, &root, &earlier);
    bool done = messages != NULL;
    bool is_alone = done && d->count == 0; /* --messages has the last one too */
    if (is_alone && earlier == 0) {
        (void)cli_refuse("%s has no messages, and -p gives none", d->messages);
        done = false;
    } else if (is_alone) {
        const carry_message *last = &messages[earlier - 1];
        char *kept = strndup(last->text, last->length);
        done = hold(d, kept) && add_prompt(d, kept, strlen(kept));
    }
    for (int64_t i = 0; i < d->count && done; i++) {
        carry_prompt *prompt = &d->prompts[i];
        char *text;
        size_t length;
        messages[earlier] = (carry_message){"user", prompt->text, prompt->length};
        carry_thinking thinking = d->thinks       ? CARRY_THINKING_ON
                                  : d->thinks_not ? CARRY_THINKING_OFF
                                                  : CARRY_THINKING_AS_IS;
        if (carry_chat_render(d->ctx, &chat, messages, is_alone ? earlier : earlier + 1, thinking, &text, &length) !=
            CARRY_OK) {
            (void)cli_failed(d->ctx);
            done = false;
        } else {
            done = hold(d, text);
            d->asked[i] = *prompt;
            *prompt = (carry_prompt){.text = text, .length = length, .bare = true};
        }
    }
    free(messages);
    carry_json_free(root);
    return done;
}

bool cli_generate_gather(cli_generating *g) {
    if (!gather_texts(g)) {
        return false;
    }
    g->asked = calloc((size_t)g->count + 1, sizeof *g->asked);
    if (g->asked == NULL) {
        (void)cli_refuse("out of memory: %lld prompts", (long long)g->count);
        return false;
    }
    if (g->is_chat) {
        return render_chats(g);
    }
    for (int64_t i = 0; i < g->count; i++) {
        g->asked[i] = g->prompts[i];
        if (g->by_ids && !take_ids(g, &g->prompts[i])) {
            return false;
        }
    }
    return true;
}
