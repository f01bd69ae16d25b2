/* Constrains the format of answers. */
#include "serve/constrain.h"

#include <stdlib.h>
#include <string.h>

#include "core/json_write.h"
#include "engine/text_rule.h"

#define THINK "<think>"
#define THINK_END "</think>"
#define ANY_OBJECT "{\"type\": \"object\"}"

struct carry_serve_constraint {
    const carry_tokenizer *tokenizer;
    carry_text_rule rule;
    bool is_thinking;            /* the rule applies after THINK_END */
    char tail[sizeof THINK_END]; /* last bytes of the text, while reasoning */
    size_t tail_length;
};

/* The request field that a constraint comes from, its kind and its text. */
typedef struct source {
    const char *field;
    carry_constraint_kind kind;
    carry_json_text text;
} source;

static bool is_thinking(const carry_serve_text *text) {
    size_t length = text->prompt != NULL ? text->prompt_length : 0;
    const size_t tag = strlen(THINK);
    while (length > 0 && strchr(" \n\t\r", text->prompt[length - 1]) != NULL) {
        length--;
    }
    return length >= tag && memcmp(text->prompt + length - tag, THINK, tag) == 0;
}

/* True if the part is in the chat template's description of calls. */
static bool describes(const carry_serve_text *text, const char *part) {
    if (text->example != NULL) {
        return strstr(text->example, part) != NULL;
    }
    return text->prompt != NULL && memmem(text->prompt, text->prompt_length, part, strlen(part)) != NULL;
}

bool carry_serve_needs_call(const carry_serve_request *r) {
    return r->tools != NULL && (r->tool_choice == CARRY_TOOLS_REQUIRED || r->tool_choice == CARRY_TOOLS_NAMED);
}

/* Describes the calls of the tools that may be called, as carry_calls_build reads them. */
static void describe_calls(carry_json_text *to, const carry_serve_request *r, bool is_xml, bool follows_thinking) {
    carry_json_begin(to, NULL, '{');
    carry_json_add_text(to, "form", is_xml ? "xml" : "json");
    carry_json_add_bool(to, "repeats", r->tool_choice == CARRY_TOOLS_REQUIRED && !r->no_parallel_tools);
    carry_json_add_bool(to, "breaks", follows_thinking);
    carry_json_begin(to, "tools", '[');
    for (const carry_json *tool = carry_json_first(r->tools); tool != NULL; tool = tool->next) {
        const carry_json *function = carry_json_find(tool, "function");
        const carry_json *parameters = carry_serve_member(function, "parameters");
        const char *name = carry_json_string(carry_json_find(function, "name"));
        if (name == NULL || (r->tool_choice == CARRY_TOOLS_NAMED && strcmp(name, r->tool_name) != 0)) {
            continue;
        }
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "name", name);
        if (parameters != NULL) {
            carry_json_add_node(to, "parameters", parameters);
        }
        carry_json_end(to, '}');
    }
    carry_json_end(to, ']');
    carry_json_end(to, '}');
}

static void find_source(source *s, const carry_serve_request *r, const carry_serve_text *text) {
    *s = (source){.field = "response_format", .kind = CARRY_CONSTRAINT_SCHEMA};
    if (carry_serve_needs_call(r)) {
        s->field = "tools";
        s->kind = CARRY_CONSTRAINT_CALLS;
        describe_calls(&s->text, r, describes(text, "<function="), is_thinking(text));
    } else if (r->format.kind == CARRY_FORMAT_REGEX) {
        s->field = "regex";
        s->kind = CARRY_CONSTRAINT_REGEX;
        carry_json_text_append(&s->text, r->format.pattern, r->format.pattern_length);
    } else if (r->format.kind == CARRY_FORMAT_JSON_SCHEMA && r->format.schema != NULL) {
        carry_json_add_node(&s->text, NULL, r->format.schema);
    } else {
        carry_json_put_raw(&s->text, "%s", ANY_OBJECT);
    }
}

static carry_status open_rule(carry_ctx *ctx, carry_serve_constraint *c, const source *s,
                              const carry_serve_text *text) {
    int32_t ends[64];
    int64_t count = 0;
    for (; count < text->end_count && count < 64; count++) {
        ends[count] = (int32_t)text->ends[count];
    }
    c->rule.words = (text->vocabulary + 31) / 32;
    CARRY_TRY(carry_cursor_new(ctx, &c->rule.cursor, text->tokenizer, s->kind,
                               s->text.bytes != NULL ? s->text.bytes : "", s->text.length));
    return carry_text_rule_set_ends(ctx, &c->rule, ends, count);
}

bool carry_serve_constrain(carry_ctx *ctx, carry_serve_constraint **made, const carry_serve_request *r,
                           const carry_serve_text *text, carry_serve_refusal *refusal) {
    source s;
    *made = NULL;
    if (r->format.kind == CARRY_FORMAT_TEXT && !carry_serve_needs_call(r)) {
        return true;
    }
    if (r->ignores_ends) {
        return carry_serve_refuse(refusal, 400, "ignore_eos",
                                  "a format or a required tool needs the tokens that end a text");
    }
    if (text->tokenizer == NULL) {
        return carry_serve_refuse(refusal, 400, "response_format",
                                  "a format needs a tokenizer: this model has no tokenizer");
    }
    if (carry_serve_needs_call(r) && !describes(text, "<tool_call>")) {
        return carry_serve_refuse(refusal, 400, "tool_choice",
                                  "the chat template of this model describes no <tool_call>: expected auto or none");
    }
    carry_serve_constraint *c = calloc(1, sizeof *c);
    find_source(&s, r, text);
    if (c == NULL || s.text.failed) {
        (void)carry_serve_refuse(refusal, 500, "", "out of memory");
    } else {
        c->tokenizer = text->tokenizer;
        c->is_thinking = is_thinking(text);
        const carry_status status = open_rule(ctx, c, &s, text);
        if (status == CARRY_OK) {
            *made = c;
        } else {
            (void)carry_serve_refuse(refusal, status == CARRY_EMEMORY ? 500 : 400, s.field, "%s", carry_ctx_error(ctx));
        }
    }
    carry_json_text_free(&s.text);
    if (*made == NULL) {
        carry_serve_constraint_free(c);
    }
    return *made != NULL;
}

void carry_serve_constraint_free(carry_serve_constraint *c) {
    if (c != NULL) {
        carry_text_rule_close(&c->rule);
        free(c);
    }
}

/* Looks for the end of the reasoning in the text of the tokens. */
static void think(carry_serve_constraint *c, int64_t token) {
    size_t length;
    const char *bytes = carry_tokenizer_token(c->tokenizer, token, &length);
    for (size_t i = 0; bytes != NULL && i < length && c->is_thinking; i++) {
        if (c->tail_length == strlen(THINK_END)) {
            memmove(c->tail, c->tail + 1, --c->tail_length);
        }
        c->tail[c->tail_length++] = bytes[i];
        c->is_thinking = c->tail_length < strlen(THINK_END) || memcmp(c->tail, THINK_END, strlen(THINK_END)) != 0;
    }
}

static void forbid_ends(const carry_serve_constraint *c, uint32_t *allowed) {
    for (int64_t i = 0; i < c->rule.end_count; i++) {
        allowed[c->rule.ends[i] / 32] &= ~(1u << c->rule.ends[i] % 32);
    }
}

bool carry_serve_constraint_allow(void *user, int64_t last, uint32_t *allowed) {
    carry_serve_constraint *c = user;
    const bool was_thinking = c->is_thinking;
    if (last >= 0 && was_thinking) {
        think(c, last);
    } else if (last >= 0) {
        (void)carry_text_rule_take(&c->rule, last);
    }
    if (c->is_thinking) {
        forbid_ends(c, allowed);
        return true;
    }
    return carry_text_rule_allow(&c->rule, last, allowed);
}
