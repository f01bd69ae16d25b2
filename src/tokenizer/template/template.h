/* Chat templates: an interpreter for Jinja as transformers configures it.

   Hugging Face stores a chat template as a Jinja program. This interpreter runs the part of the language that templates
   use and prints the same text as Jinja2 in transformers' environment (ImmutableSandboxedEnvironment, trim_blocks,
   lstrip_blocks, the extensions loopcontrols and `generation`). A template that needs more (include, block, ...) is
   refused when it is parsed, with the line and the feature.

   A template is untrusted input. Parsing limits its size and nesting; rendering limits evaluation steps, depth, memory
   and output. Integers have 64 bits; unlike in Python, where they have no limit, an overflow is an error. */
#ifndef CARRY_TEMPLATE_H
#define CARRY_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "carry/context.h"
#include "core/json.h"

#define CARRY_TEMPLATE_BYTES ((size_t)4 << 20) /* largest size of a template */

typedef struct carry_template carry_template; /* read-only once parsed: threads may share it */

/* name: the template's name in messages. CARRY_EFORMAT: a syntax error. CARRY_EUNSUPPORTED: a feature that is not
   supported. Both messages have the line. */
carry_status carry_template_parse(carry_ctx *ctx, carry_template **parsed, const char *text, size_t length,
                                  const char *name);
void carry_template_free(carry_template *parsed);
/* True if the template uses a variable of this name. */
bool carry_template_names(const carry_template *parsed, const char *name);

typedef struct carry_template_limits {
    int64_t steps; /* 0 means the default, in each field */
    size_t memory, output;
} carry_template_limits;

typedef struct carry_template_input {
    const carry_json *const *objects; /* variables; a later object overrides an earlier one */
    int count;
    const struct tm *now; /* time for strftime_now; NULL: local time */
    carry_template_limits limits;
    char **raised; /* receives the message if the template calls raise_exception; the caller frees it. May be NULL */
} carry_template_input;

/* The caller frees *text, which is NUL-terminated. CARRY_EARGUMENT: the template called raise_exception; its message is
   shortened and stripped of control characters. Other errors name the template and the line. */
carry_status carry_template_render(carry_ctx *ctx, const carry_template *parsed, const carry_template_input *input,
                                   char **text, size_t *length);

#endif
