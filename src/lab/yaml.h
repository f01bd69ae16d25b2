/* YAML files as trees: mappings, sequences and scalars, each with its position, so that errors are reported with
   line and column. Anchors, tags and several documents are refused: experiments and cards do not need them, and
   files are not trusted. At most 1 MiB, 64 levels, 100,000 nodes, and 4,096 keys in a mapping. */
#ifndef CARRY_LAB_YAML_H
#define CARRY_LAB_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/context.h"

typedef enum carry_yaml_kind { CARRY_YAML_SCALAR, CARRY_YAML_SEQUENCE, CARRY_YAML_MAPPING } carry_yaml_kind;

typedef struct carry_yaml {
    carry_yaml_kind kind;
    int line, column;         /* from 1 */
    char *text;               /* of a scalar: its value */
    char *key;                /* the key under which a mapping holds this node, else NULL */
    int count;                /* children */
    struct carry_yaml *first; /* first child; the others follow by next, in the order written */
    struct carry_yaml *next;
    bool seen; /* carry_yaml_get has returned it; any other key is a typo (carry_yaml_finish) */
} carry_yaml;

/* Parses a text; messages call it `name`, such as "experiments/044.yaml". */
carry_status carry_yaml_parse(carry_ctx *ctx, carry_yaml **root, const char *text, size_t length, const char *name);
void carry_yaml_free(carry_yaml *root);

/* The member of a mapping, or NULL; marks it as seen. */
carry_yaml *carry_yaml_get(carry_yaml *mapping, const char *key);
/* "name:line:column: message". */
carry_status carry_yaml_fail(carry_ctx *ctx, const carry_yaml *node, const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Refuses the first member of this mapping that was never requested; the message lists the `known` keys. */
carry_status carry_yaml_finish(carry_ctx *ctx, const carry_yaml *mapping, const char *name, const char *known);
/* The value of a scalar. CARRY_EARGUMENT with its position if the node is not a scalar or not a number. */
carry_status carry_yaml_text(carry_ctx *ctx, const char **text, const carry_yaml *node, const char *name);
carry_status carry_yaml_number(carry_ctx *ctx, double *number, const carry_yaml *node, const char *name);

#endif
