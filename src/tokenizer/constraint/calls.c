/* Tool calls. */
#include "tokenizer/constraint/calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "tokenizer/constraint/characters.h"
#include "tokenizer/constraint/schema.h"
#include "tokenizer/constraint/schema_inside.h"
#include "tokenizer/constraint/schema_types.h"

#define END_TAG "</parameter>"
#define END_LENGTH 12
#define STEPS 16384     /* schemas visited for the parameters of one tool */
#define TYPE_STEPS 256  /* and to find out whether one may be a string */
#define PARAMETERS 1024 /* parameters of a tool in xml */

/* The calls of one tool. */
typedef struct calls {
    carry_schema schema; /* root: the parameters */
    carry_schema_text raw;
    bool is_xml;
    int steps;
} calls;

static uint32_t literal(carry_grammar *g, const char *text, uint32_t next) {
    return carry_grammar_literal(g, text, strlen(text), next);
}

/* Types of parameters. */

static bool allows_text(const carry_json *root, const carry_json *schema, int *steps) {
    if (schema == NULL || schema->kind != CARRY_JSON_OBJECT || ++*steps > TYPE_STEPS) {
        return true;
    }
    const carry_json *reference = carry_json_find(schema, "$ref");
    const carry_json *constant = carry_json_find(schema, "const");
    const carry_json *values = carry_json_find(schema, "enum");
    const carry_json *type = carry_json_find(schema, "type");
    if (reference != NULL) {
        return allows_text(root, carry_schema_refer(root, reference), steps);
    }
    if (constant != NULL) {
        return constant->kind == CARRY_JSON_STRING;
    }
    for (const carry_json *one = carry_json_first(values); one != NULL; one = one->next) {
        if (one->kind == CARRY_JSON_STRING) {
            return true;
        }
    }
    static const char *const forms[] = {"anyOf", "oneOf", "allOf"};
    bool has_form = values != NULL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const carry_json *list = carry_json_find(schema, forms[i]);
        has_form = has_form || list != NULL;
        for (const carry_json *one = carry_json_first(list); one != NULL; one = one->next) {
            if (allows_text(root, one, steps)) {
                return true;
            }
        }
    }
    if (has_form) {
        return false;
    }
    if (type == NULL) {
        return (carry_schema_implied(schema) & CARRY_SCHEMA_STRING) != 0;
    }
    bool is_text = carry_json_is_text(type, "string");
    for (const carry_json *one = carry_json_first(type); one != NULL && !is_text; one = one->next) {
        is_text = carry_json_is_text(one, "string");
    }
    return is_text;
}

/* Follows references of the parameters to the schema that has `properties`; NULL if one is not found. */
static const carry_json *resolve(const carry_json *parameters) {
    const carry_json *schema = parameters;
    for (int hop = 0; hop < 32 && schema != NULL; hop++) {
        const carry_json *reference = carry_json_find(schema, "$ref");
        if (reference == NULL) {
            return schema;
        }
        schema = carry_schema_refer(parameters, reference);
    }
    return NULL;
}

bool carry_call_is_text(const carry_json *parameters, const char *name) {
    const carry_json *object = resolve(parameters);
    const carry_json *schema = carry_json_find(carry_json_find(object, "properties"), name);
    int steps = 0;
    return allows_text(parameters, schema != NULL ? schema : carry_json_find(object, "additionalProperties"), &steps);
}

/* Strings as text. */

/* Reads one character of a text, except the excluded ones. */
static uint32_t character_but(carry_grammar *g, const char *excluded, uint32_t next) {
    carry_characters set = {0};
    bool is_whole = carry_characters_add(&set, 0, 8) && carry_characters_add(&set, 11, 12) &&
                    carry_characters_add(&set, 14, 31) && carry_characters_add(&set, 127, 127);
    for (; *excluded != '\0' && is_whole; excluded++) {
        is_whole = carry_characters_add(&set, (unsigned char)*excluded, (unsigned char)*excluded);
    }
    is_whole = is_whole && carry_characters_negate(&set);
    const uint32_t entry = carry_characters_utf8(g, set.range, set.count, next);
    carry_characters_free(&set);
    g->status = is_whole || g->status != CARRY_OK ? g->status : CARRY_EMEMORY;
    return entry;
}

/* Makes a rule for any text without END_TAG. State k: the last k bytes are the first k of the tag. */
static uint32_t text_rule(carry_grammar *g) {
    const uint32_t rule = carry_grammar_rule(g);
    uint32_t state[END_LENGTH];
    for (int k = 0; k < END_LENGTH; k++) {
        state[k] = carry_grammar_loop(g, CARRY_GRAMMAR_END);
    }
    for (int k = 0; k < END_LENGTH; k++) {
        const char byte = END_TAG[k];
        uint32_t way = character_but(g, (const char[]){'<', byte, '\0'}, state[0]);
        way = carry_grammar_split(g, way, carry_grammar_bytes(g, '<', '<', state[1]));
        if (k > 0 && k + 1 < END_LENGTH) {
            way = carry_grammar_split(g, way,
                                      carry_grammar_bytes(g, (unsigned char)byte, (unsigned char)byte, state[k + 1]));
        }
        carry_grammar_close_loop(g, state[k], way);
    }
    carry_grammar_define(g, rule, state[0]);
    return rule;
}

static uint32_t string_literal(carry_grammar *g, const carry_json *value, uint32_t next) {
    const char *bytes = value->as.text.bytes;
    const size_t length = value->as.text.length;
    return memmem(bytes, length, END_TAG, END_LENGTH) != NULL ? carry_grammar_never(g)
                                                              : carry_grammar_literal(g, bytes, length, next);
}

static carry_status build_text(calls *c, const carry_json *schema, uint32_t next, uint32_t *entry);

/* Builds the alternatives that may be strings. */
static carry_status build_texts(calls *c, const carry_json *list, carry_schema_form form, uint32_t next,
                                uint32_t *entry) {
    carry_schema *s = &c->schema;
    int64_t count = 0;
    *entry = carry_grammar_never(s->g);
    if (list->kind != CARRY_JSON_ARRAY || (form == CARRY_FORM_ALL && carry_json_count(list) != 1)) {
        return carry_schema_refuse(s, CARRY_EUNSUPPORTED, list,
                                   "expected a list of schemas; allOf is supported with one");
    }
    for (const carry_json *one = carry_json_first(list); one != NULL; one = one->next) {
        int steps = 0;
        uint32_t way;
        if (allows_text(s->root, one, &steps)) {
            CARRY_TRY(build_text(c, one, next, &way));
            *entry = count++ == 0 ? way : carry_grammar_split(s->g, way, *entry);
        }
    }
    return form != CARRY_FORM_ONE || count <= 1
               ? CARRY_OK
               : carry_schema_refuse(s, CARRY_EUNSUPPORTED, list, "only one of its alternatives may be a string");
}

static carry_status build_text(calls *c, const carry_json *schema, uint32_t next, uint32_t *entry) {
    carry_schema *s = &c->schema;
    carry_schema_form form;
    const carry_json *found;
    unsigned types;
    if (++c->steps > STEPS) {
        return carry_fail(s->ctx, CARRY_ESIZE, "the parameters have more than %d alternatives", STEPS);
    }
    if (schema == NULL || schema->kind == CARRY_JSON_BOOL) {
        const bool is_allowed = schema == NULL || schema->truth;
        *entry = is_allowed ? carry_grammar_call(s->g, c->raw.any, next) : carry_grammar_never(s->g);
        return CARRY_OK;
    }
    CARRY_TRY(carry_schema_check(s, schema, &form, &found));
    switch (form) {
    case CARRY_FORM_REFERENCE:
        CARRY_TRY(carry_schema_find(s, found, &schema));
        return build_text(c, schema, next, entry);
    case CARRY_FORM_ANY:
    case CARRY_FORM_ONE:
    case CARRY_FORM_ALL:
        return build_texts(c, found, form, next, entry);
    case CARRY_FORM_CONST:
        *entry = string_literal(s->g, found, next);
        return CARRY_OK;
    case CARRY_FORM_ENUM:
        *entry = carry_grammar_never(s->g);
        for (const carry_json *value = carry_json_first(found); value != NULL; value = value->next) {
            if (value->kind == CARRY_JSON_STRING) {
                *entry = carry_grammar_split(s->g, string_literal(s->g, value, next), *entry);
            }
        }
        return CARRY_OK;
    case CARRY_FORM_TYPE:
        break;
    }
    CARRY_TRY(carry_schema_types(s, schema, &types));
    return carry_schema_text_string(s, schema, &c->raw, next, entry);
}

/* Parameters in xml. */

static carry_status build_value(calls *c, const carry_json *schema, uint32_t next, uint32_t *entry) {
    int steps = 0;
    next = literal(c->schema.g, "\n" END_TAG "\n", next);
    if (allows_text(c->schema.root, schema, &steps)) {
        return build_text(c, schema, next, entry);
    }
    *entry = carry_grammar_call(c->schema.g, carry_schema_rule_of(&c->schema, schema), next);
    return CARRY_OK;
}

static bool is_name(const char *name, size_t length) {
    return length > 0 && length <= CARRY_CALL_NAME && strlen(name) == length && strpbrk(name, "<>\n") == NULL;
}

static carry_status build_parameter(calls *c, const char *name, size_t length, const carry_json *schema, uint32_t next,
                                    uint32_t *entry) {
    carry_grammar *g = c->schema.g;
    if (!is_name(name, length)) {
        return carry_fail(c->schema.ctx, CARRY_EUNSUPPORTED,
                          "the name of the parameter '%.40s': expected 1 to %d bytes without '<', '>' and line ends",
                          name, CARRY_CALL_NAME);
    }
    CARRY_TRY(build_value(c, schema, next, entry));
    *entry = literal(g, "<parameter=", carry_grammar_literal(g, name, length, literal(g, ">\n", *entry)));
    return CARRY_OK;
}

/* Any number of parameters by other names. */
static carry_status build_others(calls *c, const carry_json *schema, uint32_t next, uint32_t *entry) {
    static const carry_range first[] = {{'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const carry_range later[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    carry_grammar *g = c->schema.g;
    uint32_t value;
    *entry = carry_grammar_loop(g, next);
    CARRY_TRY(build_value(c, schema, *entry, &value));
    value = literal(g, ">\n", value);
    uint32_t name = value;
    for (int i = 0; i < 31; i++) {
        name = carry_grammar_split(g, carry_characters_utf8(g, later, 4, name), value);
    }
    carry_grammar_close_loop(g, *entry, literal(g, "<parameter=", carry_characters_utf8(g, first, 3, name)));
    return CARRY_OK;
}

static bool is_listed(const carry_json *names, const char *name, size_t length) {
    for (const carry_json *one = carry_json_first(names); one != NULL; one = one->next) {
        if (one->kind == CARRY_JSON_STRING && one->as.text.length == length &&
            memcmp(one->as.text.bytes, name, length) == 0) {
            return true;
        }
    }
    return false;
}

static carry_status build_properties(calls *c, const carry_json *properties, const carry_json *required,
                                     uint32_t *entry) {
    const carry_json *list[PARAMETERS];
    size_t count = 0;
    for (const carry_json *one = carry_json_first(properties); one != NULL; one = one->next) {
        list[count++] = one;
    }
    while (count-- > 0) {
        uint32_t one;
        const carry_json *p = list[count];
        CARRY_TRY(build_parameter(c, p->key, p->key_length, p, *entry, &one));
        *entry = is_listed(required, p->key, p->key_length) ? one : carry_grammar_split(c->schema.g, one, *entry);
    }
    return CARRY_OK;
}

/* Builds the parameters of a call, up to the end of the function. */
static carry_status build_parameters(calls *c, const carry_json *object, uint32_t *entry) {
    carry_schema *s = &c->schema;
    const carry_json *properties = carry_json_find(object, "properties");
    const carry_json *required = carry_json_find(object, "required");
    const carry_json *others = carry_json_find(object, "additionalProperties");
    const bool has_others = others == NULL || others->kind != CARRY_JSON_BOOL || others->truth;
    *entry = literal(s->g, "</function>\n</tool_call>", CARRY_GRAMMAR_END);
    others = others != NULL && others->kind == CARRY_JSON_OBJECT ? others : NULL;
    if (properties != NULL && properties->kind != CARRY_JSON_OBJECT) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, properties, "expected an object of schemas");
    }
    if (required != NULL && required->kind != CARRY_JSON_ARRAY) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, required, "expected a list of names");
    }
    if (carry_json_count(properties) > PARAMETERS || carry_json_count(required) > PARAMETERS) {
        return carry_fail(s->ctx, CARRY_ESIZE, "expected at most %d parameters", PARAMETERS);
    }
    if (object != NULL && has_others && properties == NULL) {
        CARRY_TRY(build_others(c, others, *entry, entry));
    }
    for (const carry_json *one = carry_json_first(required); one != NULL; one = one->next) {
        const char *name = carry_json_string(one);
        if (name == NULL) {
            return carry_schema_refuse(s, CARRY_EARGUMENT, required, "expected a list of names");
        }
        if (carry_json_find(properties, name) == NULL && !has_others) {
            return carry_schema_refuse(s, CARRY_EARGUMENT, one,
                                       "required, but not in properties, and additionalProperties is false");
        }
        if (carry_json_find(properties, name) == NULL) {
            CARRY_TRY(build_parameter(c, name, strlen(name), others, *entry, entry));
        }
    }
    return build_properties(c, properties, required, entry);
}

/* Calls. */

/* Finds the schema of the arguments, which must be an object; NULL: without arguments. */
static carry_status find_object(const calls *c, const carry_json **object, carry_schema_form *form) {
    const carry_schema *s = &c->schema;
    const carry_json *found;
    unsigned types;
    *object = NULL;
    *form = CARRY_FORM_TYPE;
    if (s->root == NULL) {
        return CARRY_OK;
    }
    *object = resolve(s->root);
    if (*object == NULL) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, s->root, "its $ref was not found");
    }
    CARRY_TRY(carry_schema_check(s, *object, form, &found));
    CARRY_TRY(carry_schema_types(s, *object, &types));
    if (carry_json_find(*object, "type") != NULL && types != CARRY_SCHEMA_OBJECT) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, carry_json_find(*object, "type"),
                                   "the parameters of a tool are an object");
    }
    return CARRY_OK;
}

static carry_status build_arguments(calls *c, const carry_json *object, carry_schema_form form, uint32_t next,
                                    uint32_t *entry) {
    carry_schema *s = &c->schema;
    if (object == NULL) {
        *entry = literal(s->g, "{}", next);
        return CARRY_OK;
    }
    const bool is_any = form == CARRY_FORM_TYPE && carry_json_find(object, "type") == NULL &&
                        carry_schema_implied(object) == CARRY_SCHEMA_ALL;
    *entry = carry_grammar_call(s->g, is_any ? s->rules.object : carry_schema_rule_of(s, object), next);
    return CARRY_OK;
}

static carry_status build_call(calls *c, const char *name, uint32_t *entry) {
    carry_schema *s = &c->schema;
    const carry_json *object;
    carry_schema_form form;
    CARRY_TRY(find_object(c, &object, &form));
    if (!is_name(name, strlen(name))) {
        return carry_fail(s->ctx, CARRY_EUNSUPPORTED,
                          "the name of a tool: expected 1 to %d bytes without '<', '>' and line ends", CARRY_CALL_NAME);
    }
    if (!c->is_xml) {
        CARRY_TRY(build_arguments(c, object, form, literal(s->g, "}\n</tool_call>", CARRY_GRAMMAR_END), entry));
        *entry = carry_schema_quoted(s, name, strlen(name), literal(s->g, ", \"arguments\": ", *entry));
        *entry = literal(s->g, "<tool_call>\n{\"name\": ", *entry);
    } else if (form != CARRY_FORM_TYPE) {
        return carry_schema_refuse(s, CARRY_EUNSUPPORTED, object, "expected properties");
    } else {
        CARRY_TRY(build_parameters(c, object, entry));
        *entry = literal(s->g, ">\n", *entry);
        *entry = literal(s->g, "<tool_call>\n<function=", literal(s->g, name, *entry));
    }
    return carry_schema_build_rules(s);
}

static carry_status build_tool(calls *c, const carry_json *tool, uint32_t *entry) {
    const char *name = carry_json_string(carry_json_find(tool, "name"));
    char why[400];
    c->schema.root = carry_json_find(tool, "parameters");
    c->steps = 0;
    if (name == NULL) {
        return carry_fail(c->schema.ctx, CARRY_EARGUMENT, "a tool has no name");
    }
    carry_status status = build_call(c, name, entry);
    carry_schema_free(&c->schema);
    c->schema = (carry_schema){.ctx = c->schema.ctx, .g = c->schema.g, .rules = c->schema.rules};
    if (status != CARRY_OK) {
        (void)snprintf(why, sizeof why, "%s", carry_ctx_error(c->schema.ctx));
        status = carry_fail(c->schema.ctx, status, "the tool '%.64s': %s", name, why);
    }
    return status;
}

static carry_status build_all(carry_ctx *ctx, carry_grammar *g, const carry_json *root) {
    const carry_json *repeats = carry_json_find(root, "repeats");
    const carry_json *breaks = carry_json_find(root, "breaks");
    calls c = {.schema = {.ctx = ctx, .g = g}, .is_xml = carry_json_is_text(carry_json_find(root, "form"), "xml")};
    uint32_t any = CARRY_GRAMMAR_END;
    carry_json_rules_build(g, &c.schema.rules);
    if (c.is_xml) {
        c.raw = (carry_schema_text){.any = text_rule(g), .character = carry_grammar_rule(g)};
        carry_grammar_define(g, c.raw.character, character_but(g, "<", CARRY_GRAMMAR_END));
    }
    for (const carry_json *tool = carry_json_first(carry_json_find(root, "tools")); tool != NULL; tool = tool->next) {
        uint32_t one;
        CARRY_TRY(build_tool(&c, tool, &one));
        any = any == CARRY_GRAMMAR_END ? one : carry_grammar_split(g, one, any);
    }
    const uint32_t rule = carry_grammar_rule(g);
    carry_grammar_define(g, rule, any);
    uint32_t after = CARRY_GRAMMAR_END;
    if (repeats != NULL && repeats->kind == CARRY_JSON_BOOL && repeats->truth) {
        after = carry_grammar_loop(g, CARRY_GRAMMAR_END);
        carry_grammar_close_loop(g, after, literal(g, "\n", carry_grammar_call(g, rule, after)));
    }
    uint32_t entry = carry_grammar_call(g, rule, after);
    if (breaks != NULL && breaks->kind == CARRY_JSON_BOOL && breaks->truth) {
        const uint32_t one = carry_grammar_split(g, literal(g, "\n", entry), entry);
        entry = carry_grammar_split(g, literal(g, "\n", one), entry);
    }
    carry_grammar_define(g, 0, entry);
    return CARRY_OK;
}

carry_status carry_calls_build(carry_ctx *ctx, carry_grammar *g, const char *text, size_t length) {
    carry_json *root;
    if (length > CARRY_SCHEMA_BYTES) {
        return carry_fail(ctx, CARRY_ESIZE, "the tools have %zu bytes: at most %zu", length, CARRY_SCHEMA_BYTES);
    }
    CARRY_TRY(carry_json_parse(ctx, &root, text, length, "the tools"));
    const carry_status status = build_all(ctx, g, root);
    carry_json_free(root);
    return status;
}
