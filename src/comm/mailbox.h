/* Where the ranks of one process meet: each rank has a slot with the messages that were posted to it.

   Nothing is buffered. The second side to arrive, sender or receiver, copies directly from one buffer to the other,
   without holding the lock. */
#ifndef CARRY_COMM_MAILBOX_H
#define CARRY_COMM_MAILBOX_H

#include "comm/backend.h"

typedef struct carry_mailbox carry_mailbox;

carry_mailbox *carry_mailbox_new(int size); /* NULL if memory runs out */
void carry_mailbox_free(carry_mailbox *mailbox);

/* Returns false if the slot is taken. */
bool carry_mailbox_enter(carry_mailbox *mailbox, int rank);
/* Cancels this rank's pending requests. Ranks that wait for it return. */
void carry_mailbox_leave(carry_mailbox *mailbox, int rank);

/* The functions of a communicator kind, for a wire whose state is a mailbox. */
void carry_mailbox_post(carry_wire *wire, carry_request *request);
void carry_mailbox_progress(carry_wire *wire, carry_request *request, double until);
void carry_mailbox_cancel(carry_wire *wire, carry_request *request);
void carry_mailbox_abort(carry_wire *wire, const char *reason);

#endif
