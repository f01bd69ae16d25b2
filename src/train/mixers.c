/* Which mixer a method is. */
#include "train/mixers.h"

#include <string.h>

#include "core/error.h"

carry_status carry_train_mixer(carry_ctx *ctx, const char *method, carry_comm *sequence, carry_train_mixing *mixing) {
    *mixing = (carry_train_mixing){.mixer = &carry_lm_mixer_chunk};
    if (strcmp(method, "chunk") != 0) {
        return carry_fail(ctx, CARRY_ENOTFOUND, "there is no method '%.40s' in training: chunk there is", method);
    }
    if (sequence != NULL) {
        *mixing = (carry_train_mixing){
            .mixer = &carry_lm_mixer_ranks, .options = &mixing->ranks, .ranks = {.comm = sequence}};
    }
    return CARRY_OK;
}
