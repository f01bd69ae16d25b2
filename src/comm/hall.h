/* Where ranks of one process meet: a seat for each, with the messages that are announced to it.

   Nothing is buffered. Who comes second, sender or receiver, copies straight from the one's buffer into the other's;
   the lock is not held meanwhile. */
#ifndef CARRY_COMM_HALL_H
#define CARRY_COMM_HALL_H

#include "comm/backend.h"

typedef struct carry_hall carry_hall;

carry_hall *carry_hall_new(int size); /* NULL: no memory */
void carry_hall_free(carry_hall *hall);

/* False: somebody has sat there. */
bool carry_hall_enter(carry_hall *hall, int rank);
/* Withdraws this rank's requests. Who waits for it ends. */
void carry_hall_leave(carry_hall *hall, int rank);

/* As of a kind, for a wire whose state is a hall. */
void carry_hall_post(carry_wire *wire, carry_request *request);
void carry_hall_progress(carry_wire *wire, carry_request *request, double until);
void carry_hall_cancel(carry_wire *wire, carry_request *request);
void carry_hall_abort(carry_wire *wire, const char *reason);

#endif
