/* Turns the tree of a regular expression into a grammar. */
#include "tokenizer/constraint/regex.h"

#include "core/error.h"
#include "tokenizer/constraint/regex_parse.h"

typedef struct builder {
    carry_regex *regex;
    carry_grammar *g;
    const carry_regex_target *target;
    carry_status status;
} builder;

static uint32_t build(builder *b, int32_t index, uint32_t next);

static uint32_t build_set(const builder *b, const carry_regex_part *part, uint32_t next) {
    const carry_range *range = b->regex->sets.range + part->first;
    return b->target->in_json ? carry_characters_json(b->g, range, part->count, next)
                              : carry_characters_utf8(b->g, range, part->count, next);
}

static uint32_t build_repeat(builder *b, const carry_regex_part *part, uint32_t next) {
    uint32_t entry = next;
    int32_t copies = part->least;
    if (part->most < 0) {
        const uint32_t loop = carry_grammar_loop(b->g, next);
        const uint32_t body = build(b, part->inside, loop);
        carry_grammar_close_loop(b->g, loop, body);
        entry = copies > 0 ? body : loop;
        copies -= copies > 0;
    }
    for (int32_t i = part->least; i < part->most && b->g->status == CARRY_OK && b->status == CARRY_OK; i++) {
        const uint32_t before = entry;
        entry = carry_grammar_split(b->g, build(b, part->inside, entry), next);
        if (entry == before) { /* the group is empty */
            break;
        }
    }
    for (int32_t i = 0; i < copies && b->g->status == CARRY_OK && b->status == CARRY_OK; i++) {
        const uint32_t before = entry;
        entry = build(b, part->inside, entry);
        if (entry == before) {
            break;
        }
    }
    return entry;
}

static uint32_t build(builder *b, int32_t index, uint32_t next) {
    const carry_regex_part *part = &b->regex->part[index];
    uint32_t entry = next;
    if (b->status != CARRY_OK || b->g->status != CARRY_OK) {
        return next;
    }
    switch (part->kind) {
    case CARRY_REGEX_SET:
        return build_set(b, part, next);
    case CARRY_REGEX_REPEAT:
        return build_repeat(b, part, next);
    case CARRY_REGEX_SEQUENCE:
        for (int32_t i = part->inside; i >= 0; i = b->regex->part[i].before) {
            entry = build(b, i, entry);
        }
        return entry;
    case CARRY_REGEX_CHOICE:
        entry = build(b, part->inside, next);
        for (int32_t i = b->regex->part[part->inside].before; i >= 0; i = b->regex->part[i].before) {
            entry = carry_grammar_split(b->g, build(b, i, next), entry);
        }
        return entry;
    case CARRY_REGEX_START:
    case CARRY_REGEX_STOP:
        b->status = carry_regex_refuse(b->regex, CARRY_EUNSUPPORTED, part->at,
                                       "^ and $ are supported at the ends of the expression or of its alternatives");
        break;
    }
    return next;
}

/* Reads any characters, before or after the part that matches. */
static uint32_t any_text(const builder *b, uint32_t next) {
    const uint32_t loop = carry_grammar_loop(b->g, next);
    carry_grammar_close_loop(b->g, loop, carry_grammar_call(b->g, b->target->other, loop));
    return loop;
}

/* Builds one of the outermost alternatives, with its anchors. */
static uint32_t build_alternative(builder *b, int32_t index, uint32_t next) {
    const carry_regex_part *part = b->regex->part;
    int32_t at = part[index].inside;
    const bool is_stopped = at >= 0 && part[at].kind == CARRY_REGEX_STOP;
    bool is_started = false;
    uint32_t entry = b->target->is_found && !is_stopped ? any_text(b, next) : next;
    while (at >= 0 && part[at].kind == CARRY_REGEX_STOP) {
        at = part[at].before;
    }
    for (; at >= 0; at = part[at].before) {
        if (part[at].kind == CARRY_REGEX_START && (part[at].before < 0 || is_started)) {
            is_started = true;
        } else {
            entry = build(b, at, entry);
        }
    }
    return b->target->is_found && !is_started ? any_text(b, entry) : entry;
}

carry_status carry_regex_build(carry_ctx *ctx, carry_grammar *g, const char *text, size_t length, const char *what,
                               const carry_regex_target *target, uint32_t next, uint32_t *entry) {
    carry_regex regex = {.ctx = ctx, .what = what, .text = text, .length = length};
    builder b = {.regex = &regex, .g = g, .target = target};
    int32_t root;
    *entry = next;
    carry_status status = carry_regex_parse(&regex, &root);
    if (status == CARRY_OK) {
        bool is_first = true;
        for (int32_t i = regex.part[root].inside; i >= 0; i = regex.part[i].before) {
            const uint32_t way = build_alternative(&b, i, next);
            *entry = is_first ? way : carry_grammar_split(g, way, *entry);
            is_first = false;
        }
        status = b.status;
    }
    carry_regex_free(&regex);
    return status;
}
