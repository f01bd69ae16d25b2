/* The time of a collective by its bytes: measured at a few sizes and interpolated linearly. Latency and bandwidth of
   single messages (rates.h) do not predict it: it includes additions, all ranks send at once, and on GPUs it waits
   for streams. */
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
    double bytes[CARRY_COMM_SIZES], seconds[CARRY_COMM_SIZES]; /* bytes of a rank's whole tensor, ascending */
} carry_comm_times;

/* A collective, which takes up to a tenth of a second where messages are slow. Times are the median of several runs
   of the slowest rank, and include the work itself, on a GPU too. */
carry_status carry_comm_times_of(carry_comm *comm, carry_comm_operation operation, carry_dtype type,
                                 carry_comm_times *times);

/* Runs the operation once. `all` and `own` have `bytes` bytes each, a multiple of the element size times the number
   of ranks. */
carry_status carry_comm_time_once(carry_comm *comm, carry_comm_operation operation, carry_dtype type, void *all,
                                  void *own, size_t bytes);

double carry_comm_time(const carry_comm_times *times, double bytes); /* pure */

#endif
