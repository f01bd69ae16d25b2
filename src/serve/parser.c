/* Finds content, reasoning, and the beginning and end of tool calls. */
#include "serve/parser.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "serve/parser_inside.h"

#define THINK "<think>"
#define THINK_END "</think>"
#define CALL "<tool_call>"
#define CALL_END "</tool_call>"

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool carry_parser_starts(const char *text, size_t length, const char *tag) {
    const size_t tag_length = strlen(tag);
    return length >= tag_length && memcmp(text, tag, tag_length) == 0;
}

size_t carry_parser_partial(const char *text, size_t length, const char *tag) {
    size_t some = strlen(tag) - 1;
    some = some < length ? some : length;
    while (some > 0 && memcmp(text + length - some, tag, some) != 0) {
        some--;
    }
    return some;
}

void carry_parser_emit(carry_serve_parser *p, carry_serve_part_kind kind, const char *text, size_t length) {
    if (length > 0) {
        p->emit(p->user, &(carry_serve_part){.kind = kind, .text = text, .length = length});
    }
}

void carry_parser_begin_call(carry_serve_parser *p, const char *name) {
    unsigned char random[12];
    char id[32] = "call_";
    p->is_dropped = p->request->no_parallel_tools && p->calls > 0;
    p->has_parameter = false;
    if (p->is_dropped) {
        return;
    }
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        memset(random, p->calls, sizeof random);
    }
    for (size_t i = 0; i < sizeof random; i++) {
        (void)snprintf(id + 5 + 2 * i, 3, "%02x", random[i]);
    }
    p->emit(p->user,
            &(carry_serve_part){.kind = CARRY_PART_CALL, .text = "", .call = p->calls, .id = id, .name = name});
    p->calls++;
}

void carry_parser_arguments(carry_serve_parser *p, const char *text, size_t length) {
    if (!p->is_dropped && length > 0) {
        p->emit(p->user, &(carry_serve_part){
                             .kind = CARRY_PART_ARGUMENTS, .text = text, .length = length, .call = p->calls - 1});
    }
}

carry_serve_parser *carry_serve_parser_open(const carry_serve_request *request, const char *prompt, size_t length) {
    carry_serve_parser *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    p->request = request;
    if (prompt != NULL) {
        while (length > 0 && is_space(prompt[length - 1])) {
            length--;
        }
        const size_t tag = strlen(THINK);
        const bool thinks = length >= tag && memcmp(prompt + length - tag, THINK, tag) == 0;
        p->mode = thinks ? CARRY_PARSE_REASONING : CARRY_PARSE_TEXT;
        p->skips_space = thinks;
        p->is_first = true;
        p->has_tools = request->tools != NULL && request->tool_choice != CARRY_TOOLS_NONE;
    }
    return p;
}

void carry_serve_parser_close(carry_serve_parser *p) {
    if (p != NULL) {
        free(p->held);
        free(p);
    }
}

/* Emits the held text up to `end`. Leading spaces are dropped if p->skips_space. Trailing spaces stay held unless
   keeps_end: they are dropped if a tag follows. */
static void emit_up_to(carry_serve_parser *p, carry_serve_part_kind kind, size_t end, bool keeps_end) {
    while (p->skips_space && p->at < end && is_space(p->held[p->at])) {
        p->at++;
    }
    size_t last = end;
    while (!keeps_end && last > p->at && is_space(p->held[last - 1])) {
        last--;
    }
    if (last > p->at) {
        carry_parser_emit(p, kind, p->held + p->at, last - p->at);
        p->skips_space = false;
        p->is_first = p->is_first && kind == CARRY_PART_REASONING;
        p->at = last;
    }
}

/* Looks for `tag` in the held text. If it is found, emits the text before it, sets p->at to the byte after it and
   returns true. Otherwise emits the text that cannot be the start of the tag. */
static bool read_up_to(carry_serve_parser *p, carry_serve_part_kind kind, const char *tag, bool is_end) {
    const char *found = memmem(p->held + p->at, p->length - p->at, tag, strlen(tag));
    if (found != NULL) {
        emit_up_to(p, kind, (size_t)(found - p->held), false);
        p->at = (size_t)(found - p->held) + strlen(tag);
        return true;
    }
    const size_t partial = is_end ? 0 : carry_parser_partial(p->held + p->at, p->length - p->at, tag);
    emit_up_to(p, kind, p->length - partial, is_end);
    return false;
}

static bool read_reasoning(carry_serve_parser *p, bool is_end) {
    if (!read_up_to(p, CARRY_PART_REASONING, THINK_END, is_end)) {
        return false;
    }
    p->mode = CARRY_PARSE_TEXT;
    p->skips_space = true;
    p->is_first = false;
    return true;
}

/* Looks for <think> before any other text. Returns true if it is there; *waits: it may still come. */
static bool opens_thinking(carry_serve_parser *p, bool is_end, bool *waits) {
    size_t start = p->at;
    while (start < p->length && is_space(p->held[start])) {
        start++;
    }
    const size_t rest = p->length - start;
    *waits = p->is_first && !is_end && rest < strlen(THINK) && memcmp(THINK, p->held + start, rest) == 0;
    if (!p->is_first || !carry_parser_starts(p->held + start, rest, THINK)) {
        return false;
    }
    p->at = start + strlen(THINK);
    p->mode = CARRY_PARSE_REASONING;
    p->skips_space = true;
    p->is_first = false;
    return true;
}

static bool read_text(carry_serve_parser *p, bool is_end) {
    bool waits;
    if (opens_thinking(p, is_end, &waits)) {
        return true;
    }
    if (waits) {
        return false;
    }
    p->is_first = false;
    if (!p->has_tools) {
        emit_up_to(p, CARRY_PART_TEXT, p->length, true);
        return false;
    }
    if (!read_up_to(p, CARRY_PART_TEXT, CALL, is_end)) {
        return false;
    }
    p->mode = CARRY_PARSE_CALL;
    return true;
}

static bool read_call(carry_serve_parser *p, bool is_end) {
    while (p->at < p->length && is_space(p->held[p->at])) {
        p->at++;
    }
    size_t length;
    const char *rest = carry_parser_rest(p, &length);
    if (length > 0 && rest[0] == '{') {
        p->mode = CARRY_PARSE_JSON;
    } else if (carry_parser_starts(rest, length, "<function=")) {
        p->mode = CARRY_PARSE_XML;
        p->name[0] = '\0';
    } else if (length == 0 || (!is_end && length < strlen("<function=") && memcmp("<function=", rest, length) == 0)) {
        return false;
    } else {
        p->mode = CARRY_PARSE_RAW;
    }
    return true;
}

/* Emits a call that could not be parsed as text. */
static bool read_raw(carry_serve_parser *p, bool is_end) {
    const char *found = memmem(p->held + p->at, p->length - p->at, CALL_END, strlen(CALL_END));
    if (found == NULL && !is_end && p->length - p->at < CARRY_PARSER_HELD) {
        return false;
    }
    const size_t end = found != NULL ? (size_t)(found - p->held) + strlen(CALL_END) : p->length;
    carry_parser_emit(p, CARRY_PART_TEXT, CALL, strlen(CALL));
    carry_parser_emit(p, CARRY_PART_TEXT, p->held + p->at, end - p->at);
    p->at = end;
    p->mode = CARRY_PARSE_TEXT;
    return true;
}

static bool read_after(carry_serve_parser *p, bool is_end) {
    const char *found = memmem(p->held + p->at, p->length - p->at, CALL_END, strlen(CALL_END));
    if (found == NULL) {
        p->at = p->length - (is_end ? 0 : carry_parser_partial(p->held + p->at, p->length - p->at, CALL_END));
        return false;
    }
    p->at = (size_t)(found - p->held) + strlen(CALL_END);
    p->mode = CARRY_PARSE_TEXT;
    p->skips_space = true;
    return true;
}

static bool advance(carry_serve_parser *p, bool is_end) {
    switch (p->mode) {
    case CARRY_PARSE_TEXT:
        return read_text(p, is_end);
    case CARRY_PARSE_REASONING:
        return read_reasoning(p, is_end);
    case CARRY_PARSE_CALL:
        return read_call(p, is_end);
    case CARRY_PARSE_JSON:
        return carry_parser_json(p, is_end);
    case CARRY_PARSE_VALUE:
        return carry_parser_value(p, is_end);
    case CARRY_PARSE_XML:
        return carry_parser_xml(p, is_end);
    case CARRY_PARSE_STRING:
        return carry_parser_string(p, is_end);
    case CARRY_PARSE_OTHER:
        return carry_parser_other(p, is_end);
    case CARRY_PARSE_AFTER:
        return read_after(p, is_end);
    case CARRY_PARSE_RAW:
        break;
    }
    return read_raw(p, is_end);
}

static bool hold(carry_serve_parser *p, const char *text, size_t length) {
    if (p->at > 0) {
        memmove(p->held, p->held + p->at, p->length - p->at);
        p->length -= p->at;
        p->at = 0;
    }
    if (p->length + length + 1 > p->room) {
        const size_t room = 2 * (p->length + length) + 256;
        char *grown = realloc(p->held, room);
        if (grown == NULL) {
            return false;
        }
        p->held = grown;
        p->room = room;
    }
    if (length > 0) {
        memcpy(p->held + p->length, text, length);
    }
    p->length += length;
    p->held[p->length] = '\0';
    return true;
}

void carry_serve_parser_put(carry_serve_parser *p, const char *text, size_t length, carry_serve_emit emit, void *user) {
    p->emit = emit;
    p->user = user;
    if (p->is_lost || !hold(p, text, length)) { /* text that cannot be held is passed on unparsed */
        p->is_lost = true;
        carry_parser_emit(p, CARRY_PART_TEXT, text, length);
        return;
    }
    while (advance(p, false)) {
    }
}

void carry_serve_parser_end(carry_serve_parser *p, carry_serve_emit emit, void *user) {
    p->emit = emit;
    p->user = user;
    if (p->is_lost || !hold(p, "", 0)) {
        return;
    }
    while (advance(p, true)) {
    }
}
