/* Recurrence methods by name, for training. */
#ifndef CARRY_TRAIN_MIXERS_H
#define CARRY_TRAIN_MIXERS_H

#include "carry/comm.h"
#include "model/lm/mixer.h"

typedef struct carry_train_mixing {
    const carry_lm_mixer *mixer;
    const void *options; /* the mixer's own: the field below, or constant */
    carry_lm_ranks_options ranks;
} carry_train_mixing;

/* sequence: the ranks that share a row, or NULL. mixing stays where it is while it is used. CARRY_ENOTFOUND names the
   methods that there are. */
carry_status carry_train_mixer(carry_ctx *ctx, const char *method, carry_comm *sequence, carry_train_mixing *mixing);

#endif
