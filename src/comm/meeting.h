/* How processes of one machine find each other: CARRY_RANK and CARRY_RANKS say who they are, CARRY_MEET a folder in
   which each has a socket while they meet. */
#ifndef CARRY_COMM_MEETING_H
#define CARRY_COMM_MEETING_H

#include "carry/context.h"

/* CARRY_EUNSUPPORTED: this process was not started as one of several. */
carry_status carry_meeting_find(carry_ctx *ctx, int *rank, int *size);

/* sockets: [size], one to every other rank, -1 for this one. All ranks join as often, in the same order. Ends within
   `deadline` seconds. */
carry_status carry_meeting_join(carry_ctx *ctx, int *sockets, double deadline);

#endif
