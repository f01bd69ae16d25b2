/* Finds the recurrence of a method's name. */
#include "train/recurrences.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

carry_status carry_train_recurrence(carry_ctx *ctx, const char *method, carry_comm *sequence,
                                    carry_train_recurrence_choice *choice) {
    const bool is_linear = strcmp(method, carry_lm_recurrence_linear.name) == 0;
    *choice = (carry_train_recurrence_choice){.recurrence = is_linear ? &carry_lm_recurrence_linear
                                                                      : carry_lm_recurrence_named(method)};
    if (choice->recurrence == NULL) {
        char all[128] = "";
        size_t used = 0;
        for (int i = 0; carry_lm_recurrence_at(i) != NULL && used < sizeof all; i++) {
            used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i > 0 ? ", " : "",
                                     carry_lm_recurrence_at(i)->name);
        }
        return carry_fail(ctx, CARRY_ENOTFOUND,
                          "there is no method '%.40s' in training: choose one of %s; or %s, without the delta rule",
                          method, all, carry_lm_recurrence_linear.name);
    }
    if (sequence != NULL) {
        if (choice->recurrence != &carry_lm_recurrence_chunk) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED,
                              "rows that are split over ranks are done by chunk alone, not by %s", method);
        }
        *choice = (carry_train_recurrence_choice){
            .recurrence = &carry_lm_recurrence_ranks, .options = &choice->ranks, .ranks = {.comm = sequence}};
    }
    return CARRY_OK;
}
