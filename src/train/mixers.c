/* Which mixer a method is. */
#include "train/mixers.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

carry_status carry_train_mixer(carry_ctx *ctx, const char *method, carry_comm *sequence, carry_train_mixing *mixing) {
    const bool is_linear = strcmp(method, carry_lm_mixer_linear.name) == 0;
    *mixing = (carry_train_mixing){.mixer = is_linear ? &carry_lm_mixer_linear : carry_lm_mixer_named(method)};
    if (mixing->mixer == NULL) {
        char all[128] = "";
        size_t used = 0;
        for (int i = 0; carry_lm_mixer_at(i) != NULL && used < sizeof all; i++) {
            used +=
                (size_t)snprintf(all + used, sizeof all - used, "%s%s", i > 0 ? ", " : "", carry_lm_mixer_at(i)->name);
        }
        return carry_fail(ctx, CARRY_ENOTFOUND,
                          "there is no method '%.40s' in training: choose one of %s; or %s, without the delta rule",
                          method, all, carry_lm_mixer_linear.name);
    }
    if (sequence != NULL) {
        if (mixing->mixer != &carry_lm_mixer_chunk) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED,
                              "rows that are split over ranks are done by chunk alone, not by %s", method);
        }
        *mixing = (carry_train_mixing){
            .mixer = &carry_lm_mixer_ranks, .options = &mixing->ranks, .ranks = {.comm = sequence}};
    }
    return CARRY_OK;
}
