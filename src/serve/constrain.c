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
    bool is_start;               /* the rule covers only the beginning of the answer */
    bool is_over;                /* nothing is constrained any more */
    char tail[sizeof THINK_END]; /* last bytes of the text, while reasoning */
    size_t tail_length;
};

/* The request field that a constraint comes from, its kind and its text. */
typedef struct source {
    const char *field, *regex;
    carry_json_text schema, pattern;
} source;

static bool is_thinking(const carry_serve_text *text) {
    size_t length = text->prompt != NULL ? text->prompt_length : 0;
    const size_t tag = strlen(THINK);
    while (length > 0 && strchr(" \n\t\r", text->prompt[length - 1]) != NULL) {
        length--;
    }
    return length >= tag && memcmp(text->prompt + length - tag, THINK, tag) == 0;
}

static bool has(const carry_serve_text *text, const char *part) {
    return text->prompt != NULL && memmem(text->prompt, text->prompt_length, part, strlen(part)) != NULL;
}

/* Writes a name with escapes for a regular expression. */
static void put_quoted(carry_json_text *to, const char *name) {
    for (; *name != '\0'; name++) {
        carry_json_put_raw(to, strchr("\\^$.|?*+()[]{}/-", *name) != NULL ? "\\%c" : "%c", *name);
    }
}

/* Writes a pattern for <tool_call> and the name of one of the tools. */
static void put_call(carry_json_text *to, const carry_serve_request *r, bool is_xml) {
    bool is_first = true;
    carry_json_put_raw(to, "%s", is_xml ? "<tool_call>\\n<function=(" : "<tool_call>\\n\\{\"name\": \"(");
    for (const carry_json *tool = carry_json_first(r->tools); tool != NULL; tool = tool->next) {
        const char *name = carry_json_string(carry_json_find(carry_json_find(tool, "function"), "name"));
        if (name != NULL &&
            (r->tool_choice == CARRY_TOOLS_REQUIRED || (r->tool_name != NULL && strcmp(name, r->tool_name) == 0))) {
            carry_json_put_raw(to, "%s", is_first ? "" : "|");
            put_quoted(to, name);
            is_first = false;
        }
    }
    carry_json_put_raw(to, "%s", is_xml ? ")>\\n" : ")\", \"arguments\": \\{");
}

static bool needs_call(const carry_serve_request *r) {
    return r->tools != NULL && (r->tool_choice == CARRY_TOOLS_REQUIRED || r->tool_choice == CARRY_TOOLS_NAMED);
}

static void find_source(source *s, const carry_serve_request *r, const carry_serve_text *text) {
    s->field = "response_format";
    if (needs_call(r)) {
        s->field = "tool_choice";
        put_call(&s->pattern, r, has(text, "<function="));
        s->regex = s->pattern.bytes;
    } else if (r->format.kind == CARRY_FORMAT_REGEX) {
        s->field = "regex";
        carry_json_put_raw(&s->pattern, "%.*s", (int)r->format.pattern_length, r->format.pattern);
        s->regex = s->pattern.bytes;
    } else if (r->format.kind == CARRY_FORMAT_JSON_SCHEMA && r->format.schema != NULL) {
        carry_json_add_node(&s->schema, NULL, r->format.schema);
    } else {
        carry_json_put_raw(&s->schema, "%s", ANY_OBJECT);
    }
}

static carry_status open_rule(carry_ctx *ctx, carry_serve_constraint *c, const source *s,
                              const carry_serve_text *text) {
    int32_t ends[64];
    int64_t count = 0;
    for (; count < text->end_count && count < 64; count++) {
        ends[count] = (int32_t)text->ends[count];
    }
    CARRY_TRY(carry_text_rule_open(ctx, &c->rule, text->tokenizer, s->regex, s->regex != NULL ? NULL : s->schema.bytes,
                                   text->vocabulary));
    return carry_text_rule_set_ends(ctx, &c->rule, ends, count);
}

bool carry_serve_constrain(carry_ctx *ctx, carry_serve_constraint **made, const carry_serve_request *r,
                           const carry_serve_text *text, carry_serve_refusal *refusal) {
    source s = {0};
    *made = NULL;
    if (r->format.kind == CARRY_FORMAT_TEXT && !needs_call(r)) {
        return true;
    }
    if (r->ignores_ends && !needs_call(r)) {
        return carry_serve_refuse(refusal, 400, "ignore_eos", "a format needs the tokens that end a text");
    }
    if (needs_call(r) && !has(text, "<tool_call>")) {
        return carry_serve_refuse(refusal, 400, "tool_choice",
                                  "the chat template of this model describes no <tool_call>: expected auto or none");
    }
    carry_serve_constraint *c = calloc(1, sizeof *c);
    find_source(&s, r, text);
    if (c == NULL || s.schema.failed || s.pattern.failed) {
        (void)carry_serve_refuse(refusal, 500, "", "out of memory");
    } else {
        c->tokenizer = text->tokenizer;
        c->is_start = needs_call(r);
        c->is_thinking = is_thinking(text);
        if (open_rule(ctx, c, &s, text) == CARRY_OK) {
            *made = c;
        } else {
            (void)carry_serve_refuse(refusal, 400, s.field, "%s", carry_ctx_error(ctx));
        }
    }
    carry_json_text_free(&s.schema);
    carry_json_text_free(&s.pattern);
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
    } else if (last >= 0 && !c->is_over) {
        c->is_over = carry_text_rule_take(&c->rule, last) && c->is_start;
    }
    if (c->is_over) {
        return true;
    }
    if (c->is_thinking) {
        forbid_ends(c, allowed);
        return true;
    }
    return carry_text_rule_allow(&c->rule, last, allowed);
}
