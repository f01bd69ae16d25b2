/* The time of a collective, by its bytes: measured at a few sizes, and between them by a line. Latency and bandwidth of
   single messages (rates.h) do not tell it: sums are made, all ranks send at once, and on GPUs streams are waited for.
 */
#ifndef CARRY_COMM_TIMES_H
#define CARRY_COMM_TIMES_H

#include "carry/comm.h"

typedef enum carry_comm_operation {
    CARRY_TIME_ALL_REDUCE,
    CARRY_TIME_ALL_GATHER,
    CARRY_TIME_REDUCE_SCATTER,
    CARRY_TIME_BROADCAST,
    CARRY_TIME_SEND_RECEIVE, /* to the next rank, from the one before */
} carry_comm_operation;

enum { CARRY_COMM_SIZES = 4 };

typedef struct carry_comm_times {
    double bytes[CARRY_COMM_SIZES], seconds[CARRY_COMM_SIZES]; /* of a rank's whole tensor; rising */
} carry_comm_times;

/* A collective: up to a tenth of a second where messages are slow. The slowest rank counts, the median of some trips.
   Until the work has happened, on a GPU too. */
carry_status carry_comm_times_of(carry_comm *comm, carry_comm_operation operation, carry_dtype type,
                                 carry_comm_times *times);

/* One of them: `all` and `own` have `bytes` each, a multiple of the elements of all ranks. */
carry_status carry_comm_time_once(carry_comm *comm, carry_comm_operation operation, carry_dtype type, void *all,
                                  void *own, size_t bytes);

double carry_comm_time(const carry_comm_times *times, double bytes); /* pure */

#endif
