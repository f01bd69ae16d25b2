/* How processes of one machine find each other. CARRY_RANK and CARRY_RANKS give their rank and number; CARRY_MEET is
   a folder in which each process has a socket while they meet. */
#ifndef CARRY_COMM_MEETING_H
#define CARRY_COMM_MEETING_H

#include "carry/context.h"

/* Returns CARRY_EUNSUPPORTED if this process was not started as one of several. */
carry_status carry_meeting_find(carry_ctx *ctx, int *rank, int *size);

/* sockets: [size], one to every other rank and -1 for this one. All ranks must call this equally often and in the
   same order. Returns within `deadline` seconds. */
carry_status carry_meeting_join(carry_ctx *ctx, int *sockets, double deadline);

#endif
