/* Converts JSON schemas to grammars.

   The texts of a grammar are JSON values that the schema allows, written as models write them: members are in the order
   of `properties`, and between tokens there is nothing, a space, or one or two line ends and an indentation. Every text
   that the grammar allows is valid, but it does not allow every valid text. If `properties` is given and
   `additionalProperties` is not, other members are not allowed. Integers have at most 16 digits unless the limits in
   the schema have more, fractions at most 16 digits and exponents at most 2.

   Supported: type, enum, const, properties, required, additionalProperties, items, prefixItems, minItems, maxItems,
   minLength, maxLength, pattern, format (a list of names), minimum, maximum, exclusiveMinimum, exclusiveMaximum, anyOf,
   oneOf of alternatives that exclude each other by their types or by the const of a required property, allOf of one
   schema, $ref inside the document, $defs, definitions, and annotations. Limits of numbers that are not integers must
   be whole and not exclusive; pattern, format and lengths are not supported together. Other keywords are refused by
   name. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_SCHEMA_H
#define CARRY_TOKENIZER_CONSTRAINT_SCHEMA_H

#include "tokenizer/constraint/grammar.h"

#define CARRY_SCHEMA_BYTES ((size_t)1 << 20)

/* Defines rule 0 of a new grammar. Messages name the place as a JSON pointer. */
carry_status carry_schema_build(carry_ctx *ctx, carry_grammar *g, const char *text, size_t length);

#endif
