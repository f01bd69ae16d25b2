/* Recurrences of a pass, whose states may be in a pool. */
#include "core/context.h"
#include "model/lm/mixers/delta.h"

carry_status carry_lm_open_recurrence(carry_lm_pass *pass, void **opened, const carry_lm_recurrence *method,
                                      carry_delta_problem *problem) {
    const carry_lm_pass_options *options = &pass->options;
    const void *given = options->recurrence_options;
    *opened = NULL;
    if (options->pooled > 0 && method->pooled == NULL) {
        return carry_fail(pass->ctx, CARRY_EUNSUPPORTED, "the method %s does not support states in a pool",
                          method->name);
    }
    if (options->pooled > 0 && method != &carry_lm_recurrence_chunk) {
        problem->tokens = 1;
    }
    if (options->same_bits && method == &carry_lm_recurrence_chunk) {
        given = "recurrent";
    }
    CARRY_TRY(method->open(pass->ctx, opened, problem, given));
    const carry_status status = options->pooled > 0 ? method->open_pooled(*opened, options->pooled) : CARRY_OK;
    if (status != CARRY_OK) {
        method->close(*opened);
        *opened = NULL;
    }
    return status;
}
