/* What a communicator does per second, and requests that are given up: for what is written over it. */
#ifndef CARRY_COMM_RATES_H
#define CARRY_COMM_RATES_H

#include "carry/comm.h"

typedef struct carry_comm_rates {
    double latency;   /* seconds of a message of a few bytes, one way */
    double bandwidth; /* bytes a second, messages of a megabyte, every second rank sending at once */
} carry_comm_rates;

/* A collective at the first call: a few milliseconds. The slowest pair of neighbours counts, and all ranks get the same
   numbers. A communicator that was split off has those of its parent, where they were known. One rank: latency 0 and a
   bandwidth of 1e12, for nothing travels. */
carry_status carry_comm_rates_of(carry_comm *comm, carry_comm_rates *rates);

/* Gives up what is under way: afterwards they are none, and their buffers the caller's. The peers are not told. */
void carry_comm_withdraw(carry_request *requests, int64_t count);

#endif
