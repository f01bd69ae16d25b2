/* Grammars of tool calls: one call of a given tool, or several, in the form that the model writes.

       json                                        xml
       <tool_call>                                 <tool_call>
       {"name": "NAME", "arguments": {...}}        <function=NAME>
       </tool_call>                                <parameter=KEY>
                                                   VALUE
                                                   </parameter>
                                                   </function>
                                                   </tool_call>

   Arguments follow the tool's schema (schema.h). In xml a parameter that may be a string is written as it is, without
   quotes; any other is JSON. Such a string does not contain </parameter>, and no '<' if its length is limited;
   alternatives of such a parameter that are not strings are left out. A tool without parameters has no arguments. */
#ifndef CARRY_TOKENIZER_CONSTRAINT_CALLS_H
#define CARRY_TOKENIZER_CONSTRAINT_CALLS_H

#include "core/json.h"
#include "tokenizer/constraint/grammar.h"

#define CARRY_CALL_NAME 255 /* longest name of a tool or parameter, in bytes */

/* Defines rule 0 of a new grammar from a JSON object:
       form     "json" or "xml"
       tools    a list of {"name": ..., "parameters": SCHEMA}; at least one
       repeats  true: more calls may follow the first
       breaks   true: up to two line ends may precede the first call */
carry_status carry_calls_build(carry_ctx *ctx, carry_grammar *g, const char *text, size_t length);

/* True if a parameter is written as text in xml: its schema allows strings, or is unknown. */
bool carry_call_is_text(const carry_json *parameters, const char *name);

#endif
