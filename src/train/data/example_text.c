/* Lines of JSON to ids. */
#include "train/data/example_text.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

void carry_example_ids_free(carry_example_ids *to) {
    carry_ids_free(&to->ids);
    free(to->learned);
    *to = (carry_example_ids){0};
}

carry_status carry_example_reader_open(carry_ctx *ctx, carry_example_reader *r, const carry_tokenizer *tokenizer) {
    *r = (carry_example_reader){.ctx = ctx, .tokenizer = tokenizer};
    r->end = carry_tokenizer_eos(tokenizer) >= 0 ? carry_tokenizer_eos(tokenizer) : carry_tokenizer_end(tokenizer);
    return carry_encoder_new(ctx, &r->encoder, tokenizer);
}

void carry_example_reader_close(carry_example_reader *r) {
    if (r->has_chat) {
        carry_chat_close(&r->chat);
    }
    carry_encoder_free(r->encoder);
    *r = (carry_example_reader){0};
}

/* Marks the ids from index `from` on as learned or not. */
static carry_status mark(carry_example_reader *r, carry_example_ids *to, size_t from, bool learned) {
    if (to->ids.count > to->room) {
        const size_t room = to->ids.count * 2;
        unsigned char *grown = realloc(to->learned, room);
        if (grown == NULL) {
            return carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: the tokens of the examples");
        }
        to->learned = grown;
        to->room = room;
    }
    if (to->ids.count > from) {
        memset(to->learned + from, learned ? 1 : 0, to->ids.count - from);
    }
    return CARRY_OK;
}

static carry_status add_text(carry_example_reader *r, carry_example_ids *to, const char *text, size_t length,
                             bool goes_on, bool learned) {
    const size_t from = to->ids.count;
    if (length > 0) {
        CARRY_TRY(carry_encode(r->ctx, r->encoder, &to->ids, text, length,
                               goes_on ? CARRY_SPECIALS_FOUND | CARRY_TEXT_GOES_ON : CARRY_SPECIALS_FOUND));
    }
    return mark(r, to, from, learned);
}

static carry_status add_id(carry_example_reader *r, carry_example_ids *to, int64_t id, bool learned) {
    const size_t from = to->ids.count;
    if (to->ids.count == to->ids.room) {
        const size_t room = to->ids.room * 2 + 16;
        uint32_t *grown = realloc(to->ids.id, room * sizeof *grown);
        if (grown == NULL) {
            return carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: the tokens of the examples");
        }
        to->ids.id = grown;
        to->ids.room = room;
    }
    to->ids.id[to->ids.count++] = (uint32_t)id;
    return mark(r, to, from, learned);
}

static carry_status read_pair(carry_example_reader *r, carry_example_ids *to, const carry_json *prompt,
                              const carry_json *completion, const char *name) {
    if (prompt->kind != CARRY_JSON_STRING || completion->kind != CARRY_JSON_STRING) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s: \"prompt\" and \"completion\" must be strings", name);
    }
    if (completion->as.text.length == 0) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s: \"completion\" is empty: nothing can be learned from it", name);
    }
    const size_t from = to->ids.count;
    CARRY_TRY(carry_encode_start(r->ctx, r->tokenizer, &to->ids));
    CARRY_TRY(mark(r, to, from, false));
    CARRY_TRY(add_text(r, to, prompt->as.text.bytes, prompt->as.text.length, false, false));
    CARRY_TRY(add_text(r, to, completion->as.text.bytes, completion->as.text.length, prompt->as.text.length > 0, true));
    return r->end >= 0 ? add_id(r, to, r->end, true) : CARRY_OK;
}

/* Renders a chat of the first `count` messages; the caller frees *text. The list of messages is truncated for the call
   and then restored. */
static carry_status render(carry_example_reader *r, carry_json *variables, carry_json *messages, int64_t count,
                           bool prompts, char **text, size_t *length) {
    carry_json *last = messages->as.inside.first;
    for (int64_t i = 1; i < count; i++) {
        last = last->next;
    }
    carry_json *rest = last->next;
    const int64_t all = messages->as.inside.count;
    carry_json generation = {.kind = CARRY_JSON_BOOL,
                             .truth = prompts,
                             .key = "add_generation_prompt",
                             .key_length = strlen("add_generation_prompt"),
                             .next = variables->as.inside.first};
    carry_json object = {.kind = CARRY_JSON_OBJECT,
                         .as.inside = {.first = &generation, .count = variables->as.inside.count + 1}};
    last->next = NULL;
    messages->as.inside.count = count;
    const carry_status status =
        carry_chat_render(r->ctx, &r->chat, &(carry_chat_request){.variables = &object}, text, length);
    last->next = rest;
    messages->as.inside.count = all;
    return status;
}

static size_t common(const char *a, size_t a_length, const char *b, size_t b_length) {
    const size_t most = a_length < b_length ? a_length : b_length;
    size_t same = 0;
    while (same < most && a[same] == b[same]) {
        same++;
    }
    return same;
}

/* Returns the end, in the text of the whole chat, of the turn that begins at `from`. `turn` is the chat rendered up to
   and including this turn. The end is after the first token that ends turns; or, if `turn` is a prefix of the whole
   text and ends before that, the end of `turn`. Without such a token, the end is where the two texts differ. */
static size_t end_of_turn(const carry_example_reader *r, const char *whole, size_t length, size_t from,
                          const char *turn, size_t turn_length) {
    size_t end = common(turn, turn_length, whole, length);
    for (size_t i = from; r->stop != NULL && i + r->stop_length <= length; i++) {
        if (memcmp(whole + i, r->stop, r->stop_length) == 0) {
            const size_t stop = i + r->stop_length;
            return end == turn_length && end < stop && end > from ? end : stop;
        }
    }
    return end;
}

/* Adds the assistant turn `index`: the text before it is not learned, the turn is. *done: bytes of the whole text added
   so far. */
static carry_status add_turn(carry_example_reader *r, carry_example_ids *to, carry_json *variables,
                             carry_json *messages, int64_t index, const char *whole, size_t length, size_t *done,
                             const char *name) {
    char *before = NULL;
    char *turn = NULL;
    size_t before_length = 0;
    size_t turn_length = 0;
    carry_status status = index > 0 ? render(r, variables, messages, index, true, &before, &before_length) : CARRY_OK;
    status = status == CARRY_OK ? render(r, variables, messages, index + 1, false, &turn, &turn_length) : status;
    if (status == CARRY_OK) {
        const size_t from = common(before != NULL ? before : "", before_length, whole, length);
        const size_t end = end_of_turn(r, whole, length, from, turn, turn_length);
        if (from < *done || end <= from) {
            status = carry_fail(r->ctx, CARRY_EFORMAT,
                                "%s: the chat template does not show where the assistant's message %lld is", name,
                                (long long)index + 1);
        }
        status = status == CARRY_OK ? add_text(r, to, whole + *done, from - *done, *done > 0, false) : status;
        status = status == CARRY_OK ? add_text(r, to, whole + from, end - from, from > 0, true) : status;
        *done = end;
    }
    free(before);
    free(turn);
    return status;
}

static carry_status open_chat(carry_example_reader *r) {
    if (!r->has_chat) {
        CARRY_TRY(carry_chat_open(r->ctx, &r->chat, r->tokenizer));
        r->has_chat = true;
        r->stop = r->chat.end >= 0 ? carry_tokenizer_token(r->tokenizer, r->chat.end, &r->stop_length) : NULL;
    }
    return CARRY_OK;
}

static carry_status read_messages(carry_example_reader *r, carry_example_ids *to, carry_json *variables,
                                  carry_json *messages, const char *name) {
    char *whole = NULL;
    size_t length = 0;
    size_t done = 0;
    int64_t index = 0;
    int64_t turns = 0;
    if (messages->kind != CARRY_JSON_ARRAY || messages->as.inside.count < 1) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s: \"messages\" must be a list with at least one message", name);
    }
    CARRY_TRY(open_chat(r));
    carry_status status = render(r, variables, messages, messages->as.inside.count, false, &whole, &length);
    for (const carry_json *m = messages->as.inside.first; m != NULL && status == CARRY_OK; m = m->next, index++) {
        if (carry_json_is_text(carry_json_find(m, "role"), "assistant")) {
            status = add_turn(r, to, variables, messages, index, whole, length, &done, name);
            turns++;
        }
    }
    if (status == CARRY_OK && turns == 0) {
        status = carry_fail(r->ctx, CARRY_EFORMAT,
                            "%s: no message has the role \"assistant\": nothing can be learned from it", name);
    }
    free(whole);
    return status; /* text after the last turn would not be learned */
}

/* Makes a list of the members that a template may read; `to` must have space for them. */
static int64_t choose_variables(carry_json *to, const carry_json *root) {
    static const char *const names[] = {"messages", "tools", "documents", "enable_thinking"};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const carry_json *found = carry_json_find(root, names[i]);
        if (found != NULL) {
            to[count] = *found;
            to[count].next = NULL;
            if (count > 0) {
                to[count - 1].next = &to[count];
            }
            count++;
        }
    }
    return count;
}

carry_status carry_example_read(carry_example_reader *r, carry_example_ids *to, const char *line, size_t length,
                                const char *name) {
    carry_json *root;
    CARRY_TRY(carry_json_parse_line(r->ctx, &root, line, length, name));
    const carry_json *prompt = carry_json_find(root, "prompt");
    const carry_json *completion = carry_json_find(root, "completion");
    carry_json member[4];
    const int64_t members = choose_variables(member, root);
    carry_status status;
    if (carry_json_find(root, "messages") != NULL) {
        carry_json variables = {.kind = CARRY_JSON_OBJECT, .as.inside = {.first = member, .count = members}};
        status = read_messages(r, to, &variables, &member[0], name);
    } else if (prompt != NULL && completion != NULL) {
        status = read_pair(r, to, prompt, completion, name);
    } else {
        status =
            carry_fail(r->ctx, CARRY_EFORMAT,
                       "%s: expected {\"prompt\": \"...\", \"completion\": \"...\"} or {\"messages\": [...]}", name);
    }
    carry_json_free(root);
    return status;
}
