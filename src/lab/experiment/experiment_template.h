/* Templates of an experiment: "scan:dense:t{t}:n{n}" with the lists t: [...] and n: [...]. */
#ifndef CARRY_LAB_EXPERIMENT_TEMPLATE_H
#define CARRY_LAB_EXPERIMENT_TEMPLATE_H

#include "lab/experiment/experiment.h"

/* A letter of a template and its current value. */
typedef struct carry_binding {
    const char *key, *value;
} carry_binding;

typedef struct carry_bindings {
    int count;
    carry_binding of[CARRY_EXPERIMENT_BINDINGS];
} carry_bindings;

typedef carry_status (*carry_template_call)(carry_experiment *e, carry_yaml *entry, const carry_bindings *b,
                                            void *user);

/* Substitutes the bindings in the node's text. Refuses a letter without a list, and a list that is not used. */
carry_status carry_template_fill(carry_experiment *e, char *to, size_t size, const carry_yaml *node,
                                 const carry_bindings *b);
/* Calls `call` with every combination of the lists in a mapping; the last list varies fastest. known: keys that are
   not lists. */
carry_status carry_template_each(carry_experiment *e, carry_yaml *entry, const char *const *known,
                                 carry_template_call call, void *user);

#endif
