/* carry generate: collects the prompts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_generate.h"
#include "core/json.h"
#include "core/json_write.h"

#define MESSAGES_BYTES ((size_t)64 << 20)

bool cli_generate_check(const cli_generating *g) {
    const char *wrong = NULL;
    if (g->by_ids && (g->is_chat || g->stops.count > 0)) {
        wrong = "--ids has no texts: --chat and --stop do not go with it";
    } else if (!g->is_chat && (g->system != NULL || g->messages != NULL || g->tools != NULL || g->variables != NULL ||
                               g->thinks || g->thinks_not)) {
        wrong = "--system, --messages, --tools, --variables, --think and --no-think need --chat";
    } else if (g->is_chat && g->state_load != NULL && (g->system != NULL || g->messages != NULL)) {
        wrong = "--state-load has the chat so far: --system and --messages do not go with it";
    } else if (g->thinks && g->thinks_not) {
        wrong = "--think and --no-think exclude each other";
    } else if (g->quantise != NULL && !g->is_random) {
        wrong = "--quantise is for --random: carry quantise writes a folder with quantised weights";
    }
    if (wrong != NULL) {
        (void)cli_refuse("%s", wrong);
    }
    return wrong == NULL && cli_engine_check(&g->engine);
}

static bool add_prompt(cli_generating *d, const char *text, size_t length) {
    if (d->count == d->room) {
        int64_t room = d->room > 0 ? 2 * d->room : 16;
        carry_prompt *grown = realloc(d->prompts, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            (void)cli_refuse("out of memory: %lld prompts", (long long)room);
            return false;
        }
        d->prompts = grown;
        d->room = room;
    }
    d->prompts[d->count++] = (carry_prompt){.text = text, .length = length};
    return true;
}

/* Takes ownership of a text that was read and keeps it to the end. Returns false, and frees it, if memory runs out. */
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

/* Adds a prompt for each line that is not empty. */
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

/* Parses token ids, such as "1 2 3", optionally with commas and brackets. The ids are kept by hold(). */
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

typedef struct chat_files {
    carry_json *messages, *tools, *variables; /* NULL: not given */
} chat_files;

/* Reads the JSON file of an option and checks its kind. Returns false after printing a message. */
static bool read_option(const cli_generating *d, carry_json **root, const char *path, carry_json_kind kind,
                        const char *expected) {
    if (path == NULL) {
        return true;
    }
    if (carry_json_read(d->ctx, root, path, MESSAGES_BYTES) != CARRY_OK) {
        (void)cli_failed(d->ctx);
        return false;
    }
    if ((*root)->kind != kind) {
        (void)cli_refuse("%s is not %s", path, expected);
    }
    return (*root)->kind == kind;
}

static bool read_files(const cli_generating *d, chat_files *files) {
    return read_option(d, &files->messages, d->messages, CARRY_JSON_ARRAY, "a list of messages") &&
           read_option(d, &files->tools, d->tools, CARRY_JSON_ARRAY, "a list of tools") &&
           read_option(d, &files->variables, d->variables, CARRY_JSON_OBJECT, "an object of variables");
}

static void add_message(carry_json_text *to, const char *role, const char *text, size_t length) {
    carry_json_begin(to, NULL, '{');
    carry_json_add_text(to, "role", role);
    carry_json_add_key(to, "content");
    carry_json_put_bytes(to, text, length);
    carry_json_end(to, '}');
}

/* A placeholder for the answer with which a loaded state ends. The template's text after it starts the next turn. */
#define ANSWER "carry-answer-7f3a9c"

/* Builds the template variables of a chat that ends with the prompt or, if prompt is NULL, with the last message of
   --messages. Returns NULL after printing a message. */
static carry_json *chat_variables(const cli_generating *d, const chat_files *files, const carry_prompt *prompt) {
    carry_json_text text = {0};
    carry_json *made = NULL;
    carry_json_begin(&text, NULL, '{');
    carry_json_begin(&text, "messages", '[');
    if (d->system != NULL) {
        add_message(&text, "system", d->system, strlen(d->system));
    }
    for (const carry_json *one = carry_json_first(files->messages); one != NULL; one = one->next) {
        carry_json_add_node(&text, NULL, one);
    }
    if (d->state_load != NULL) {
        add_message(&text, "user", "x", 1);
        add_message(&text, "assistant", ANSWER, strlen(ANSWER));
    }
    if (prompt != NULL) {
        add_message(&text, "user", prompt->text, prompt->length);
    }
    carry_json_end(&text, ']');
    if (files->tools != NULL) {
        carry_json_add_node(&text, "tools", files->tools);
    }
    for (const carry_json *one = carry_json_first(files->variables); one != NULL; one = one->next) {
        if (strcmp(one->key, "messages") != 0 && (files->tools == NULL || strcmp(one->key, "tools") != 0)) {
            carry_json_add_node(&text, one->key, one);
        }
    }
    carry_json_end(&text, '}');
    if (text.failed) {
        (void)cli_refuse("out of memory: a chat");
    } else if (carry_json_parse(d->ctx, &made, text.bytes, text.length, "the chat") != CARRY_OK) {
        (void)cli_failed(d->ctx);
    }
    carry_json_text_free(&text);
    return made;
}

/* Without -p, the last message of --messages is shown as the prompt. */
static bool take_last_message(cli_generating *d, const chat_files *files) {
    const carry_json *last = carry_json_first(files->messages);
    while (last != NULL && last->next != NULL) {
        last = last->next;
    }
    if (last == NULL) {
        (void)cli_refuse("%s has no messages, and -p gives none", d->messages);
        return false;
    }
    const carry_json *content = carry_json_find(last, "content");
    bool is_text = content != NULL && content->kind == CARRY_JSON_STRING;
    char *kept = is_text ? strndup(content->as.text.bytes, content->as.text.length) : strdup("");
    return hold(d, kept) && add_prompt(d, kept, strlen(kept));
}

/* For a chat that continues from a state: keeps only the part after the answer. */
static bool cut_answer(char *text, size_t *length) {
    char *found = strstr(text, ANSWER);
    if (found == NULL || strstr(found + 1, ANSWER) != NULL) {
        (void)cli_refuse("--state-load: the chat template does not show where an answer ends; render the next turn "
                         "without --chat");
        return false;
    }
    found += strlen(ANSWER);
    *length -= (size_t)(found - text);
    memmove(text, found, *length + 1);
    return true;
}

static bool render_chat(cli_generating *d, const carry_chat *chat, const chat_files *files, int64_t at, bool is_alone) {
    carry_prompt *prompt = &d->prompts[at];
    carry_json *variables = chat_variables(d, files, is_alone ? NULL : prompt);
    char *text;
    size_t length;
    carry_chat_request request = {.variables = variables,
                                  .thinking = d->thinks       ? CARRY_THINKING_ON
                                              : d->thinks_not ? CARRY_THINKING_OFF
                                                              : CARRY_THINKING_AS_IS};
    bool done = variables != NULL;
    if (done && carry_chat_render(d->ctx, chat, &request, &text, &length) != CARRY_OK) {
        (void)cli_failed(d->ctx);
        done = false;
    }
    carry_json_free(variables);
    done = done && hold(d, text);
    done = done && (d->state_load == NULL || cut_answer(text, &length));
    if (done) {
        d->asked[at] = *prompt;
        *prompt = (carry_prompt){.text = text, .length = length, .bare = true};
    }
    return done;
}

/* Replaces each prompt by the rendered chat that ends with it. */
static bool render_chats(cli_generating *d) {
    carry_chat chat;
    chat_files files = {0};
    if (carry_chat_open(d->ctx, &chat, d->model.tokenizer) != CARRY_OK) {
        (void)cli_failed(d->ctx);
        return false;
    }
    if (chat.end >= 0) {
        carry_model_add_end(&d->model, chat.end);
    }
    bool done = read_files(d, &files);
    bool is_alone = d->count == 0;
    if (done && is_alone) {
        done = take_last_message(d, &files);
    }
    for (int64_t i = 0; i < d->count && done; i++) {
        done = render_chat(d, &chat, &files, i, is_alone);
    }
    carry_json_free(files.messages);
    carry_json_free(files.tools);
    carry_json_free(files.variables);
    carry_chat_close(&chat);
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
