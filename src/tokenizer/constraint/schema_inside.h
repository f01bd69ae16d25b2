/* Shared by the files that turn schemas into grammars. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_SCHEMA_INSIDE_H
#define CARRY_TOKENIZER_CONSTRAINT_SCHEMA_INSIDE_H

#include "core/json.h"
#include "tokenizer/constraint/grammar.h"

/* Types, as bits. */
enum {
    CARRY_SCHEMA_NULL = 1,
    CARRY_SCHEMA_BOOLEAN = 2,
    CARRY_SCHEMA_INTEGER = 4,
    CARRY_SCHEMA_NUMBER = 8,
    CARRY_SCHEMA_STRING = 16,
    CARRY_SCHEMA_ARRAY = 32,
    CARRY_SCHEMA_OBJECT = 64,
    CARRY_SCHEMA_ALL = 1 + 2 + 8 + 16 + 32 + 64,
};

/* Rules for JSON without a schema. */
typedef struct carry_json_rules {
    uint32_t space;     /* optional white space between tokens */
    uint32_t character; /* a character of a string */
    uint32_t string, number, integer, value, object, array;
} carry_json_rules;
void carry_json_rules_build(carry_grammar *g, carry_json_rules *rules);

typedef struct carry_schema_rule {
    const carry_json *schema;
    uint32_t rule;
} carry_schema_rule;

typedef struct carry_schema {
    carry_ctx *ctx;
    carry_grammar *g;
    const carry_json *root;
    carry_json_rules rules;
    /* Schemas whose rules are built or will be, in the order in which they were first met. */
    carry_schema_rule *made;
    size_t count, room;
    size_t *slot; /* hash table of indices into `made`, plus 1 */
    size_t slots;
} carry_schema;

/* Builds the rules of all schemas that carry_schema_rule_of was asked for, and of the schemas inside them. */
carry_status carry_schema_build_rules(carry_schema *s);
void carry_schema_free(carry_schema *s);
/* Returns the rule of a schema inside the document, which is built later; 0 after a failure of the grammar. */
uint32_t carry_schema_rule_of(carry_schema *s, const carry_json *schema);
/* Returns CARRY_EUNSUPPORTED or CARRY_EARGUMENT with a message that has the line and key of the node. */
carry_status carry_schema_refuse(const carry_schema *s, carry_status status, const carry_json *node, const char *why);
/* Reads an integer of at least 0 from `key`; `other` if the key is absent. */
carry_status carry_schema_count(const carry_schema *s, const carry_json *schema, const char *key, int64_t other,
                                int64_t *value);

/* How strings are written. */
typedef struct carry_schema_text {
    bool in_json;       /* in quotes, with escapes */
    uint32_t any;       /* rule of any string, with its quotes */
    uint32_t character; /* rule of a character of a string */
} carry_schema_text;
/* Like carry_schema_string, for another way to write strings. */
carry_status carry_schema_text_string(carry_schema *s, const carry_json *schema, const carry_schema_text *how,
                                      uint32_t next, uint32_t *entry);

/* Each builds the graph of one type, followed by next; *entry is its first node. */
carry_status carry_schema_string(carry_schema *s, const carry_json *schema, uint32_t next, uint32_t *entry);
carry_status carry_schema_number(carry_schema *s, const carry_json *schema, bool is_integer, uint32_t next,
                                 uint32_t *entry);
carry_status carry_schema_array(carry_schema *s, const carry_json *schema, uint32_t next, uint32_t *entry);
carry_status carry_schema_object(carry_schema *s, const carry_json *schema, uint32_t next, uint32_t *entry);
/* Reads one given value, of enum or const. */
uint32_t carry_schema_literal(carry_schema *s, const carry_json *value, uint32_t next);
/* Reads a string in quotes, with escapes. */
uint32_t carry_schema_quoted(carry_schema *s, const char *text, size_t length, uint32_t next);
/* Reads `rule` `least` to `most` times; no upper limit if most is below 0. */
uint32_t carry_schema_repeat(carry_schema *s, uint32_t rule, int64_t least, int64_t most, uint32_t next);
/* Integers from low to high, without leading zeros. has_low and has_high: whether the limit applies. */
uint32_t carry_schema_integers(carry_grammar *g, bool has_low, int64_t low, bool has_high, int64_t high, uint32_t next);

#endif
