/* Recurrence methods by name, for training. */
#ifndef CARRY_TRAIN_RECURRENCES_H
#define CARRY_TRAIN_RECURRENCES_H

#include "carry/comm.h"
#include "model/lm/recurrence/recurrence.h"

typedef struct carry_train_recurrence_choice {
    const carry_lm_recurrence *recurrence;
    const void *options; /* options for the recurrence: the field below, or a constant */
    carry_lm_ranks_options ranks;
} carry_train_recurrence_choice;

/* sequence: the ranks that share a row, or NULL. choice must stay at the same address while it is used. CARRY_ENOTFOUND
   lists the existing methods. */
carry_status carry_train_recurrence(carry_ctx *ctx, const char *method, carry_comm *sequence,
                                    carry_train_recurrence_choice *choice);

#endif
