/* A function for every kind of runner. */
#include "engine/runner.h"

#include <inttypes.h>
#include <stdio.h>

void carry_runner_explain(carry_runner *runner, char *text, size_t size) {
    int64_t layer = -1;
    text[0] = '\0';
    if (runner->ops->router_nan != NULL && runner->ops->router_nan(runner, &layer) == CARRY_OK && layer >= 0) {
        (void)snprintf(text, size, ": the router's scores are NaN in layer %" PRId64, layer);
    }
}
