/* Arrays and objects of schemas. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "tokenizer/constraint/characters.h"
#include "tokenizer/constraint/schema_inside.h"

#define NAME_BYTES 1024 /* longest name of a property beside which other names are allowed */

static uint32_t after_comma(carry_schema *s, uint32_t next) {
    const uint32_t space = s->rules.space;
    return carry_grammar_call(s->g, space, carry_grammar_literal(s->g, ",", 1, carry_grammar_call(s->g, space, next)));
}

/* Arrays. */

typedef struct items {
    uint32_t *first; /* rules of the first items */
    int64_t count;
    bool has_rest;
    uint32_t rest; /* the rule of all others */
    int64_t least, most;
} items;

static uint32_t item_rule(const items *i, int64_t index) {
    return index < i->count ? i->first[index] : i->rest;
}

static uint32_t build_items(carry_schema *s, const items *i, uint32_t next) {
    const uint32_t close = carry_grammar_literal(s->g, "]", 1, next);
    const uint32_t tail = carry_grammar_call(s->g, s->rules.space, close);
    const bool is_open = i->most < 0 && i->has_rest;
    int64_t last = i->most >= 0 ? i->most : i->count > i->least ? i->count : i->least;
    last = !i->has_rest && last > i->count ? i->count : last;
    last = is_open && last < 1 ? 1 : last;
    if (last < i->least) {
        return carry_grammar_never(s->g);
    }
    uint32_t entry = tail;
    if (is_open) {
        entry = carry_grammar_loop(s->g, tail);
        carry_grammar_close_loop(s->g, entry, after_comma(s, carry_grammar_call(s->g, i->rest, entry)));
    }
    for (int64_t n = last - 1; n > 0 && s->g->status == CARRY_OK; n--) {
        entry = after_comma(s, carry_grammar_call(s->g, item_rule(i, n), entry));
        entry = n >= i->least ? carry_grammar_split(s->g, entry, tail) : entry;
    }
    if (last > 0) {
        entry = carry_grammar_call(s->g, item_rule(i, 0), entry);
        entry = i->least == 0 ? carry_grammar_split(s->g, entry, close) : entry;
    } else {
        entry = close;
    }
    return carry_grammar_literal(s->g, "[", 1, carry_grammar_call(s->g, s->rules.space, entry));
}

carry_status carry_schema_array(carry_schema *s, const carry_json *schema, uint32_t next, uint32_t *entry) {
    const carry_json *prefix = carry_json_find(schema, "prefixItems");
    const carry_json *rest = carry_json_find(schema, "items");
    items i = {.has_rest = true, .rest = s->rules.value};
    CARRY_TRY(carry_schema_count(s, schema, "minItems", 0, &i.least));
    CARRY_TRY(carry_schema_count(s, schema, "maxItems", -1, &i.most));
    if (rest != NULL && rest->kind == CARRY_JSON_ARRAY) {
        return carry_schema_refuse(s, CARRY_EUNSUPPORTED, rest, "a list of schemas goes into prefixItems");
    }
    if (prefix != NULL && prefix->kind != CARRY_JSON_ARRAY) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, prefix, "expected a list of schemas");
    }
    if (rest != NULL) {
        i.has_rest = rest->kind != CARRY_JSON_BOOL || rest->truth;
        i.rest = carry_schema_rule_of(s, rest);
    }
    i.first = calloc((size_t)carry_json_count(prefix) + 1, sizeof *i.first);
    if (i.first == NULL) {
        return carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: the JSON schema");
    }
    for (const carry_json *one = carry_json_first(prefix); one != NULL; one = one->next) {
        i.first[i.count++] = carry_schema_rule_of(s, one);
    }
    *entry = build_items(s, &i, next);
    free(i.first);
    return CARRY_OK;
}

/* Objects. */

typedef struct member {
    const char *name;
    size_t length;
    uint32_t rule; /* rule of its value */
    bool is_required;
} member;

typedef struct members {
    member *member;
    size_t count;
    bool has_others;
    uint32_t others; /* the rule for the values of other members */
} members;

static int by_name(const void *a, const void *b) {
    const member *x = a;
    const member *y = b;
    const size_t length = x->length < y->length ? x->length : y->length;
    const int order = memcmp(x->name, y->name, length);
    return order != 0 ? order : (x->length > y->length) - (x->length < y->length);
}

/* Builds the graph for the rest of a name that is not the name of a listed member, after `at` bytes that are also the
   first bytes of the names of members first to last - 1. Characters that need an escape are not allowed, so that each
   name has only one form. */
static uint32_t other_name(carry_schema *s, const member *m, size_t first, size_t last, size_t at, uint32_t free_text,
                           uint32_t close) {
    carry_characters set = {0};
    uint32_t entry = CARRY_GRAMMAR_END;
    bool is_whole = carry_characters_add(&set, 0, 0x1F) && carry_characters_add(&set, '"', '"') &&
                    carry_characters_add(&set, '\\', '\\');
    const bool is_name = first < last && m[first].length == at;
    while (first < last && m[first].length == at) {
        first++;
    }
    for (size_t i = first; i < last && is_whole;) {
        const char *text = m[i].name + at;
        const int length = carry_json_utf8_length(text, m[i].name + m[i].length);
        size_t end = i + 1;
        while (end < last && m[end].length >= at + (size_t)length &&
               memcmp(m[end].name + at, text, (size_t)length) == 0) {
            end++;
        }
        const unsigned char lead = (unsigned char)text[0];
        uint32_t c = length == 1 ? lead : length == 2 ? lead & 0x1Fu : length == 3 ? lead & 0x0Fu : lead & 0x07u;
        for (int k = 1; k < length; k++) {
            c = c << 6 | ((unsigned char)text[k] & 0x3Fu);
        }
        is_whole = carry_characters_add(&set, c, c);
        if (c >= 0x20 && c != '"' && c != '\\') {
            const uint32_t way = carry_grammar_literal(s->g, text, (size_t)length,
                                                       other_name(s, m, i, end, at + (size_t)length, free_text, close));
            entry = entry == CARRY_GRAMMAR_END ? way : carry_grammar_split(s->g, way, entry);
        }
        i = end;
    }
    is_whole = is_whole && carry_characters_negate(&set);
    const uint32_t way = carry_characters_utf8(s->g, set.range, set.count, free_text);
    carry_characters_free(&set);
    s->g->status = is_whole || s->g->status != CARRY_OK ? s->g->status : CARRY_EMEMORY;
    entry = entry == CARRY_GRAMMAR_END ? way : carry_grammar_split(s->g, way, entry);
    return is_name ? entry : carry_grammar_split(s->g, entry, close);
}

/* Builds the rule of `"name": value` for a member that is not in the list. */
static carry_status other_member(carry_schema *s, const members *all, uint32_t *rule) {
    static const carry_range plain[] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, CARRY_LAST_CHARACTER}};
    *rule = carry_grammar_rule(s->g);
    uint32_t value = carry_grammar_call(s->g, all->others, CARRY_GRAMMAR_END);
    value = carry_grammar_literal(s->g, "\":", 2, carry_grammar_call(s->g, s->rules.space, value));
    const uint32_t text = carry_grammar_loop(s->g, value);
    carry_grammar_close_loop(s->g, text, carry_characters_utf8(s->g, plain, 3, text));
    member *sorted = malloc((all->count + 1) * sizeof *sorted);
    if (sorted == NULL) {
        return carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: the JSON schema");
    }
    for (size_t i = 0; i < all->count; i++) {
        sorted[i] = all->member[i];
        if (sorted[i].length > NAME_BYTES) {
            free(sorted);
            return carry_fail(s->ctx, CARRY_ESIZE,
                              "the JSON schema: beside additionalProperties, names of properties have at most %d bytes",
                              NAME_BYTES);
        }
    }
    if (all->count > 1) {
        qsort(sorted, all->count, sizeof *sorted, by_name);
    }
    carry_grammar_define(s->g, *rule,
                         carry_grammar_literal(s->g, "\"", 1, other_name(s, sorted, 0, all->count, 0, text, value)));
    free(sorted);
    return CARRY_OK;
}

static uint32_t member_rule(carry_schema *s, const member *m) {
    const uint32_t rule = carry_grammar_rule(s->g);
    uint32_t entry = carry_grammar_call(s->g, m->rule, CARRY_GRAMMAR_END);
    entry = carry_grammar_literal(s->g, ":", 1, carry_grammar_call(s->g, s->rules.space, entry));
    carry_grammar_define(s->g, rule, carry_schema_quoted(s, m->name, m->length, entry));
    return rule;
}

/* Builds the members in order. Each place has two nodes: one for the case that no member precedes it, and one that
   needs a comma first. */
static carry_status build_members(carry_schema *s, const members *all, uint32_t next, uint32_t *entry) {
    const uint32_t close = carry_grammar_literal(s->g, "}", 1, next);
    uint32_t later = carry_grammar_call(s->g, s->rules.space, close);
    uint32_t first = close;
    if (all->has_others) {
        uint32_t rule;
        CARRY_TRY(other_member(s, all, &rule));
        later = carry_grammar_loop(s->g, later);
        carry_grammar_close_loop(s->g, later, after_comma(s, carry_grammar_call(s->g, rule, later)));
        first = carry_grammar_split(s->g, carry_grammar_call(s->g, rule, later), close);
    }
    for (size_t i = all->count; i-- > 0 && s->g->status == CARRY_OK;) {
        const member *m = &all->member[i];
        const uint32_t one = carry_grammar_call(s->g, member_rule(s, m), later);
        const uint32_t with_comma = after_comma(s, one);
        first = m->is_required ? one : carry_grammar_split(s->g, one, first);
        later = m->is_required ? with_comma : carry_grammar_split(s->g, with_comma, later);
    }
    *entry = carry_grammar_literal(s->g, "{", 1, carry_grammar_call(s->g, s->rules.space, first));
    return CARRY_OK;
}

static member *find_member(const members *all, const carry_json *name) {
    for (size_t i = 0; i < all->count; i++) {
        if (all->member[i].length == name->as.text.length &&
            memcmp(all->member[i].name, name->as.text.bytes, name->as.text.length) == 0) {
            return &all->member[i];
        }
    }
    return NULL;
}

static carry_status require_members(const carry_schema *s, members *all, const carry_json *required) {
    if (required != NULL && required->kind != CARRY_JSON_ARRAY) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, required, "expected a list of names");
    }
    for (const carry_json *name = carry_json_first(required); name != NULL; name = name->next) {
        if (name->kind != CARRY_JSON_STRING) {
            return carry_schema_refuse(s, CARRY_EARGUMENT, required, "expected a list of names");
        }
        member *found = find_member(all, name);
        if (found == NULL) {
            found = &all->member[all->count++];
            *found = (member){.name = name->as.text.bytes, .length = name->as.text.length, .rule = all->others};
            if (!all->has_others) {
                return carry_schema_refuse(s, CARRY_EARGUMENT, name,
                                           "required, but not in properties, and additionalProperties is false");
            }
        }
        found->is_required = true;
    }
    return CARRY_OK;
}

static carry_status read_members(carry_schema *s, members *all, const carry_json *schema) {
    const carry_json *properties = carry_json_find(schema, "properties");
    const carry_json *required = carry_json_find(schema, "required");
    const carry_json *others = carry_json_find(schema, "additionalProperties");
    if (properties != NULL && properties->kind != CARRY_JSON_OBJECT) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, properties, "expected an object of schemas");
    }
    all->member = calloc((size_t)(carry_json_count(properties) + carry_json_count(required)) + 1, sizeof *all->member);
    if (all->member == NULL) {
        return carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: the JSON schema");
    }
    for (const carry_json *p = carry_json_first(properties); p != NULL; p = p->next) {
        all->member[all->count++] =
            (member){.name = p->key, .length = p->key_length, .rule = carry_schema_rule_of(s, p)};
    }
    all->has_others = others == NULL || others->kind != CARRY_JSON_BOOL || others->truth;
    all->others = others == NULL || others->kind == CARRY_JSON_BOOL ? s->rules.value : carry_schema_rule_of(s, others);
    CARRY_TRY(require_members(s, all, required));
    all->has_others = all->has_others && (others != NULL || properties == NULL);
    return CARRY_OK;
}

carry_status carry_schema_object(carry_schema *s, const carry_json *schema, uint32_t next, uint32_t *entry) {
    members all = {0};
    *entry = next;
    carry_status status = read_members(s, &all, schema);
    if (status == CARRY_OK && all.count == 0 && all.has_others && all.others == s->rules.value) {
        *entry = carry_grammar_call(s->g, s->rules.object, next);
    } else if (status == CARRY_OK) {
        status = build_members(s, &all, next, entry);
    }
    free(all.member);
    return status;
}
