/* Keywords, types and references of one schema. */
#include "tokenizer/constraint/schema_types.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define HOPS 32 /* limit of references to references */

typedef enum keyword_kind { ANNOTATION, TYPE, LIMIT, FORM } keyword_kind;

typedef struct keyword {
    const char *name;
    keyword_kind kind;
    unsigned implied; /* type of a schema that has this keyword and no `type` */
    carry_schema_form form;
} keyword;

static const keyword keywords[] = {
    {"$ref", FORM, 0, CARRY_FORM_REFERENCE},
    {"const", FORM, 0, CARRY_FORM_CONST},
    {"enum", FORM, 0, CARRY_FORM_ENUM},
    {"anyOf", FORM, 0, CARRY_FORM_ANY},
    {"oneOf", FORM, 0, CARRY_FORM_ONE},
    {"allOf", FORM, 0, CARRY_FORM_ALL},
    {"type", TYPE, 0, CARRY_FORM_TYPE},
    {"properties", LIMIT, CARRY_SCHEMA_OBJECT, CARRY_FORM_TYPE},
    {"required", LIMIT, CARRY_SCHEMA_OBJECT, CARRY_FORM_TYPE},
    {"additionalProperties", LIMIT, CARRY_SCHEMA_OBJECT, CARRY_FORM_TYPE},
    {"items", LIMIT, CARRY_SCHEMA_ARRAY, CARRY_FORM_TYPE},
    {"prefixItems", LIMIT, CARRY_SCHEMA_ARRAY, CARRY_FORM_TYPE},
    {"minItems", LIMIT, CARRY_SCHEMA_ARRAY, CARRY_FORM_TYPE},
    {"maxItems", LIMIT, CARRY_SCHEMA_ARRAY, CARRY_FORM_TYPE},
    {"minLength", LIMIT, CARRY_SCHEMA_STRING, CARRY_FORM_TYPE},
    {"maxLength", LIMIT, CARRY_SCHEMA_STRING, CARRY_FORM_TYPE},
    {"pattern", LIMIT, CARRY_SCHEMA_STRING, CARRY_FORM_TYPE},
    {"format", LIMIT, CARRY_SCHEMA_STRING, CARRY_FORM_TYPE},
    {"minimum", LIMIT, CARRY_SCHEMA_NUMBER, CARRY_FORM_TYPE},
    {"maximum", LIMIT, CARRY_SCHEMA_NUMBER, CARRY_FORM_TYPE},
    {"exclusiveMinimum", LIMIT, CARRY_SCHEMA_NUMBER, CARRY_FORM_TYPE},
    {"exclusiveMaximum", LIMIT, CARRY_SCHEMA_NUMBER, CARRY_FORM_TYPE},
    {"title", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"description", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"default", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"examples", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"deprecated", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"readOnly", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"writeOnly", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"discriminator", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"$schema", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"$id", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"$comment", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"$defs", ANNOTATION, 0, CARRY_FORM_TYPE},
    {"definitions", ANNOTATION, 0, CARRY_FORM_TYPE},
};

static const keyword *keyword_of(const carry_json *member) {
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        if (member->key_length == strlen(keywords[i].name) &&
            memcmp(member->key, keywords[i].name, member->key_length) == 0) {
            return &keywords[i];
        }
    }
    return NULL;
}

carry_status carry_schema_check(const carry_schema *s, const carry_json *schema, carry_schema_form *form,
                                const carry_json **found) {
    *form = CARRY_FORM_TYPE;
    *found = NULL;
    if (schema->kind != CARRY_JSON_OBJECT) {
        return carry_schema_refuse(s, CARRY_EARGUMENT, schema, "expected a schema: an object, true or false");
    }
    for (const carry_json *member = carry_json_first(schema); member != NULL; member = member->next) {
        const keyword *k = keyword_of(member);
        if (k == NULL) {
            return carry_schema_refuse(s, CARRY_EUNSUPPORTED, member, "this keyword is not supported");
        }
        if (k->kind == FORM && *found != NULL) {
            return carry_schema_refuse(s, CARRY_EUNSUPPORTED, member, "not supported beside another such keyword");
        }
        *found = k->kind == FORM ? member : *found;
        *form = k->kind == FORM ? k->form : *form;
    }
    for (const carry_json *member = carry_json_first(schema); member != NULL && *found != NULL; member = member->next) {
        const keyword *k = keyword_of(member);
        const bool has_values = *form == CARRY_FORM_ENUM || *form == CARRY_FORM_CONST;
        if (k->kind == LIMIT || (k->kind == TYPE && !has_values)) {
            return carry_fail(s->ctx, CARRY_EUNSUPPORTED,
                              "the JSON schema, line %u: \"%s\" beside \"%s\" is not supported", member->line, k->name,
                              (*found)->key);
        }
    }
    return CARRY_OK;
}

unsigned carry_schema_type_of(const carry_json *value) {
    switch (value->kind) {
    case CARRY_JSON_NULL:
        return CARRY_SCHEMA_NULL;
    case CARRY_JSON_BOOL:
        return CARRY_SCHEMA_BOOLEAN;
    case CARRY_JSON_NUMBER:
        return value->whole ? CARRY_SCHEMA_INTEGER | CARRY_SCHEMA_NUMBER : CARRY_SCHEMA_NUMBER;
    case CARRY_JSON_STRING:
        return CARRY_SCHEMA_STRING;
    case CARRY_JSON_ARRAY:
        return CARRY_SCHEMA_ARRAY;
    case CARRY_JSON_OBJECT:
        break;
    }
    return CARRY_SCHEMA_OBJECT;
}

static unsigned type_named(const carry_json *name) {
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (carry_json_is_text(name, names[i])) {
            return 1u << i;
        }
    }
    return 0;
}

carry_status carry_schema_types(const carry_schema *s, const carry_json *schema, unsigned *types) {
    const carry_json *type = carry_json_find(schema, "type");
    *types = type == NULL ? CARRY_SCHEMA_ALL : type_named(type);
    if (type != NULL && type->kind == CARRY_JSON_ARRAY) {
        for (const carry_json *one = carry_json_first(type); one != NULL; one = one->next) {
            const unsigned bit = type_named(one);
            if (bit == 0) {
                *types = 0;
                break;
            }
            *types |= bit;
        }
    }
    return *types != 0 ? CARRY_OK
                       : carry_schema_refuse(s, CARRY_EARGUMENT, type,
                                             "expected null, boolean, integer, number, string, array, object, or a "
                                             "list of these");
}

unsigned carry_schema_implied(const carry_json *schema) {
    unsigned types = 0;
    for (const carry_json *member = carry_json_first(schema); member != NULL; member = member->next) {
        const keyword *k = keyword_of(member);
        types |= k != NULL ? k->implied : 0;
    }
    return types != 0 ? types : CARRY_SCHEMA_ALL;
}

/* Follows one step of a JSON pointer, up to the next '/' or the end. */
static const carry_json *step_into(const carry_json *node, const char **at, const char *end) {
    char name[256];
    size_t length = 0;
    while (*at < end && **at != '/' && length < sizeof name - 1) {
        char c = *(*at)++;
        if (c == '~' && *at < end && (**at == '0' || **at == '1')) {
            c = *(*at)++ == '0' ? '~' : '/';
        } else if (c == '%' && end - *at >= 2) {
            const char digits[3] = {(*at)[0], (*at)[1], '\0'};
            c = (char)strtol(digits, NULL, 16);
            *at += 2;
        }
        name[length++] = c;
    }
    name[length] = '\0';
    if (*at < end && **at != '/') {
        return NULL;
    }
    if (node->kind == CARRY_JSON_ARRAY) {
        int64_t index = strtol(name, NULL, 10);
        for (node = carry_json_first(node); node != NULL && index > 0; index--) {
            node = node->next;
        }
        return node;
    }
    return carry_json_find(node, name);
}

/* True for "#", and for "#/" and a path. */
static bool is_inside(const carry_json *reference) {
    const char *text = reference->kind == CARRY_JSON_STRING ? reference->as.text.bytes : "";
    return text[0] == '#' && (reference->as.text.length == 1 || text[1] == '/');
}

const carry_json *carry_schema_refer(const carry_json *root, const carry_json *reference) {
    if (!is_inside(reference)) {
        return NULL;
    }
    const char *text = reference->as.text.bytes;
    const char *end = text + reference->as.text.length;
    for (text++; root != NULL && text < end;) {
        text++;
        root = step_into(root, &text, end);
    }
    return root;
}

carry_status carry_schema_find(const carry_schema *s, const carry_json *reference, const carry_json **schema) {
    if (!is_inside(reference)) {
        return carry_schema_refuse(s, CARRY_EUNSUPPORTED, reference,
                                   "expected a reference inside the schema: #, or #/ and a path");
    }
    *schema = carry_schema_refer(s->root, reference);
    return *schema != NULL ? CARRY_OK : carry_schema_refuse(s, CARRY_EARGUMENT, reference, "not found in the schema");
}

/* Follows references. Returns NULL if one is not found, or after HOPS of them. */
static const carry_json *resolve(const carry_schema *s, const carry_json *schema) {
    for (int hop = 0; hop < HOPS; hop++) {
        const carry_json *reference = carry_json_find(schema, "$ref");
        if (reference == NULL) {
            return schema;
        }
        if (carry_schema_find(s, reference, &schema) != CARRY_OK) {
            return NULL;
        }
    }
    return NULL;
}

/* Returns the types of values that can match, as bits; integers have both bits. */
static unsigned types_of(const carry_schema *s, const carry_json *schema) {
    const carry_json *constant = carry_json_find(schema, "const");
    const carry_json *values = carry_json_find(schema, "enum");
    unsigned types = 0;
    if (constant != NULL) {
        return carry_schema_type_of(constant);
    }
    for (const carry_json *value = carry_json_first(values); value != NULL; value = value->next) {
        types |= carry_schema_type_of(value);
    }
    if (types == 0 && carry_schema_types(s, schema, &types) != CARRY_OK) {
        return CARRY_SCHEMA_ALL;
    }
    return (types & (CARRY_SCHEMA_INTEGER | CARRY_SCHEMA_NUMBER)) != 0
               ? types | CARRY_SCHEMA_INTEGER | CARRY_SCHEMA_NUMBER
               : types;
}

static bool requires(const carry_json *schema, const carry_json *property) {
    const carry_json *required = carry_json_find(schema, "required");
    for (const carry_json *name = carry_json_first(required); name != NULL; name = name->next) {
        if (carry_json_is_text(name, property->key)) {
            return true;
        }
    }
    return false;
}

/* Returns the string that a property must equal, or NULL if it is not restricted to one string. */
static const carry_json *only_value(const carry_json *property) {
    const carry_json *value = carry_json_find(property, "const");
    const carry_json *values = carry_json_find(property, "enum");
    value = value == NULL && carry_json_count(values) == 1 ? carry_json_first(values) : value;
    return value != NULL && value->kind == CARRY_JSON_STRING ? value : NULL;
}

bool carry_schema_excludes(const carry_schema *s, const carry_json *one, const carry_json *other) {
    one = resolve(s, one);
    other = resolve(s, other);
    if (one == NULL || other == NULL) {
        return false;
    }
    const unsigned both = types_of(s, one) & types_of(s, other);
    if (both != CARRY_SCHEMA_OBJECT) {
        return both == 0;
    }
    const carry_json *properties = carry_json_find(other, "properties");
    for (const carry_json *p = carry_json_first(carry_json_find(one, "properties")); p != NULL; p = p->next) {
        const carry_json *mine = only_value(p);
        const carry_json *theirs = mine != NULL ? only_value(carry_json_find(properties, p->key)) : NULL;
        if (theirs != NULL && !carry_json_is_text(theirs, mine->as.text.bytes) && requires(one, p) &&
            requires(other, p)) {
            return true;
        }
    }
    return false;
}
