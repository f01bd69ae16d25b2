/* Questions about one schema: keywords, types, references. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_SCHEMA_TYPES_H
#define CARRY_TOKENIZER_CONSTRAINT_SCHEMA_TYPES_H

#include "tokenizer/constraint/schema_inside.h"

typedef enum carry_schema_form {
    CARRY_FORM_TYPE, /* by its types */
    CARRY_FORM_REFERENCE,
    CARRY_FORM_ANY,
    CARRY_FORM_ONE,
    CARRY_FORM_ALL,
    CARRY_FORM_ENUM,
    CARRY_FORM_CONST,
} carry_schema_form;

/* Finds the keyword that decides the form of the schema (*found). Refuses unknown keywords, and keywords that are not
   supported beside it. */
carry_status carry_schema_check(const carry_schema *s, const carry_json *schema, carry_schema_form *form,
                                const carry_json **found);
unsigned carry_schema_type_of(const carry_json *value);
/* *types: the bits of `type`, or all bits if it is absent. */
carry_status carry_schema_types(const carry_schema *s, const carry_json *schema, unsigned *types);
/* Returns the types that the other keywords of a schema without `type` imply. */
unsigned carry_schema_implied(const carry_json *schema);
/* Returns the node that a reference such as "#/$defs/a" refers to; NULL if it is not found. */
const carry_json *carry_schema_refer(const carry_json *root, const carry_json *reference);
/* *schema: the schema that a $ref refers to. */
carry_status carry_schema_find(const carry_schema *s, const carry_json *reference, const carry_json **schema);
/* True if no value can match both schemas. */
bool carry_schema_excludes(const carry_schema *s, const carry_json *one, const carry_json *other);

#endif
