/* Schemas: rules, references, alternatives. */
#include "tokenizer/constraint/schema.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "tokenizer/constraint/schema_inside.h"
#include "tokenizer/constraint/schema_types.h"

carry_status carry_schema_refuse(const carry_schema *s, carry_status status, const carry_json *node, const char *why) {
    char shown[CARRY_JSON_SHOWN];
    return node->key != NULL ? carry_fail(s->ctx, status, "the JSON schema, line %u: \"%.64s\" is %s: %s", node->line,
                                          node->key, carry_json_show(shown, node), why)
                             : carry_fail(s->ctx, status, "the JSON schema, line %u: %s: %s", node->line,
                                          carry_json_show(shown, node), why);
}

carry_status carry_schema_count(const carry_schema *s, const carry_json *schema, const char *key, int64_t other,
                                int64_t *value) {
    const carry_json *node = carry_json_find(schema, key);
    *value = other;
    if (node == NULL) {
        return CARRY_OK;
    }
    if (node->kind != CARRY_JSON_NUMBER || !node->whole || node->as.number.integer < 0) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, node, "expected a whole number of 0 or more");
    }
    *value = node->as.number.integer;
    return CARRY_OK;
}

/* Rules of schemas. */

static size_t slot_of(const carry_schema *s, const carry_json *schema) {
    size_t at = (size_t)(((uintptr_t)schema >> 4) * (uintptr_t)0x9E3779B1u) & (s->slots - 1);
    while (s->slot[at] != 0 && s->made[s->slot[at] - 1].schema != schema) {
        at = (at + 1) & (s->slots - 1);
    }
    return at;
}

static bool grow(carry_schema *s) {
    const size_t room = s->room > 0 ? 2 * s->room : 64;
    carry_schema_rule *made = realloc(s->made, room * sizeof *made);
    s->made = made != NULL ? made : s->made;
    size_t *slot = calloc(4 * room, sizeof *slot);
    if (made == NULL || slot == NULL) {
        free(slot);
        return false;
    }
    free(s->slot);
    s->room = room;
    s->slot = slot;
    s->slots = 4 * room;
    for (size_t i = 0; i < s->count; i++) {
        s->slot[slot_of(s, s->made[i].schema)] = i + 1;
    }
    return true;
}

uint32_t carry_schema_rule_of(carry_schema *s, const carry_json *schema) {
    if ((schema->kind == CARRY_JSON_BOOL && schema->truth) ||
        (schema->kind == CARRY_JSON_OBJECT && carry_json_count(schema) == 0)) {
        return s->rules.value;
    }
    if (s->count == s->room && !grow(s)) {
        s->g->status = s->g->status == CARRY_OK ? CARRY_EMEMORY : s->g->status;
        return 0;
    }
    const size_t at = slot_of(s, schema);
    if (s->slot[at] == 0) {
        s->made[s->count] = (carry_schema_rule){.schema = schema, .rule = carry_grammar_rule(s->g)};
        s->slot[at] = ++s->count;
    }
    return s->made[s->slot[at] - 1].rule;
}

/* Alternatives, built from the last. */

static carry_status build_any(carry_schema *s, const carry_json *list, uint32_t *entry) {
    *entry = CARRY_GRAMMAR_END;
    if (list->kind != CARRY_JSON_ARRAY || carry_json_count(list) == 0) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, list, "expected a list of schemas");
    }
    for (const carry_json *one = carry_json_first(list); one != NULL; one = one->next) {
        const uint32_t way = carry_grammar_call(s->g, carry_schema_rule_of(s, one), CARRY_GRAMMAR_END);
        *entry = *entry == CARRY_GRAMMAR_END ? way : carry_grammar_split(s->g, *entry, way);
    }
    return CARRY_OK;
}

static carry_status build_one(carry_schema *s, const carry_json *list, uint32_t *entry) {
    for (const carry_json *one = carry_json_first(list); one != NULL; one = one->next) {
        for (const carry_json *other = one->next; other != NULL; other = other->next) {
            if (!carry_schema_excludes(s, one, other)) {
                return carry_schema_refuse(
                    s, CARRY_EUNSUPPORTED, list,
                    "its alternatives must differ in their types, or in the const of a required property");
            }
        }
    }
    return build_any(s, list, entry);
}

static carry_status build_all(carry_schema *s, const carry_json *list, uint32_t *entry) {
    if (list->kind != CARRY_JSON_ARRAY || carry_json_count(list) != 1) {
        return carry_schema_refuse(s, CARRY_EUNSUPPORTED, list, "only a list of one schema is supported");
    }
    return build_any(s, list, entry);
}

static carry_status build_values(carry_schema *s, const carry_json *schema, const carry_json *list, uint32_t *entry) {
    unsigned types;
    *entry = carry_grammar_never(s->g);
    CARRY_TRY(carry_schema_types(s, schema, &types));
    if (list->kind != CARRY_JSON_ARRAY) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, list, "expected a list");
    }
    for (const carry_json *value = carry_json_first(list); value != NULL; value = value->next) {
        if ((carry_schema_type_of(value) & types) != 0) {
            *entry = carry_grammar_split(s->g, carry_schema_literal(s, value, CARRY_GRAMMAR_END), *entry);
        }
    }
    return CARRY_OK;
}

static carry_status build_constant(carry_schema *s, const carry_json *schema, const carry_json *value,
                                   uint32_t *entry) {
    unsigned types;
    CARRY_TRY(carry_schema_types(s, schema, &types));
    *entry = (carry_schema_type_of(value) & types) != 0 ? carry_schema_literal(s, value, CARRY_GRAMMAR_END)
                                                        : carry_grammar_never(s->g);
    return CARRY_OK;
}

static carry_status build_type(carry_schema *s, const carry_json *schema, unsigned type, uint32_t *entry) {
    const uint32_t end = CARRY_GRAMMAR_END;
    switch (type) {
    case CARRY_SCHEMA_NULL:
        *entry = carry_grammar_literal(s->g, "null", 4, end);
        return CARRY_OK;
    case CARRY_SCHEMA_BOOLEAN:
        *entry = carry_grammar_split(s->g, carry_grammar_literal(s->g, "true", 4, end),
                                     carry_grammar_literal(s->g, "false", 5, end));
        return CARRY_OK;
    case CARRY_SCHEMA_INTEGER:
        return carry_schema_number(s, schema, true, end, entry);
    case CARRY_SCHEMA_NUMBER:
        return carry_schema_number(s, schema, false, end, entry);
    case CARRY_SCHEMA_STRING:
        return carry_schema_string(s, schema, end, entry);
    case CARRY_SCHEMA_ARRAY:
        return carry_schema_array(s, schema, end, entry);
    default:
        return carry_schema_object(s, schema, end, entry);
    }
}

static carry_status build_types(carry_schema *s, const carry_json *schema, uint32_t *entry) {
    unsigned types;
    bool is_first = true;
    CARRY_TRY(carry_schema_types(s, schema, &types));
    types = carry_json_find(schema, "type") == NULL ? carry_schema_implied(schema) : types;
    for (unsigned type = 1; type <= CARRY_SCHEMA_OBJECT; type *= 2) {
        if ((types & type) != 0) {
            uint32_t way;
            CARRY_TRY(build_type(s, schema, type, &way));
            *entry = is_first ? way : carry_grammar_split(s->g, way, *entry);
            is_first = false;
        }
    }
    return CARRY_OK;
}

static carry_status build_schema(carry_schema *s, const carry_json *schema, uint32_t *entry) {
    const carry_json *found;
    carry_schema_form form;
    if (schema->kind == CARRY_JSON_BOOL) {
        *entry =
            schema->truth ? carry_grammar_call(s->g, s->rules.value, CARRY_GRAMMAR_END) : carry_grammar_never(s->g);
        return CARRY_OK;
    }
    CARRY_TRY(carry_schema_check(s, schema, &form, &found));
    switch (form) {
    case CARRY_FORM_REFERENCE:
        CARRY_TRY(carry_schema_find(s, found, &schema));
        *entry = carry_grammar_call(s->g, carry_schema_rule_of(s, schema), CARRY_GRAMMAR_END);
        return CARRY_OK;
    case CARRY_FORM_ANY:
        return build_any(s, found, entry);
    case CARRY_FORM_ONE:
        return build_one(s, found, entry);
    case CARRY_FORM_ALL:
        return build_all(s, found, entry);
    case CARRY_FORM_ENUM:
        return build_values(s, schema, found, entry);
    case CARRY_FORM_CONST:
        return build_constant(s, schema, found, entry);
    case CARRY_FORM_TYPE:
        break;
    }
    return build_types(s, schema, entry);
}

carry_status carry_schema_build_rules(carry_schema *s) {
    for (size_t i = 0; i < s->count && s->g->status == CARRY_OK; i++) { /* the list grows meanwhile */
        uint32_t entry = CARRY_GRAMMAR_END;
        CARRY_TRY(build_schema(s, s->made[i].schema, &entry));
        carry_grammar_define(s->g, s->made[i].rule, entry);
    }
    return CARRY_OK;
}

void carry_schema_free(carry_schema *s) {
    free(s->made);
    free(s->slot);
}

carry_status carry_schema_build(carry_ctx *ctx, carry_grammar *g, const char *text, size_t length) {
    carry_json *root;
    if (length > CARRY_SCHEMA_BYTES) {
        return carry_fail(ctx, CARRY_ESIZE, "the JSON schema has %zu bytes: at most %zu", length, CARRY_SCHEMA_BYTES);
    }
    CARRY_TRY(carry_json_parse(ctx, &root, text, length, "the JSON schema"));
    carry_schema s = {.ctx = ctx, .g = g, .root = root};
    carry_json_rules_build(g, &s.rules);
    const uint32_t entry = carry_schema_rule_of(&s, root);
    carry_grammar_define(g, 0, carry_grammar_call(g, entry, CARRY_GRAMMAR_END));
    const carry_status status = carry_schema_build_rules(&s);
    carry_schema_free(&s);
    carry_json_free(root);
    return status;
}
