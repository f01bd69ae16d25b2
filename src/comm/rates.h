/* Communicators, for the code that is written over them: measured rates, requests that are waited for in parts or
   withdrawn, and collectives that are barred for a while. */
#ifndef CARRY_COMM_RATES_H
#define CARRY_COMM_RATES_H

#include "carry/comm.h"

#define CARRY_COMM_FAR 16 /* distances of 1, 2, 4, ... ranks */

typedef struct carry_comm_rates {
    double latency;        /* seconds of a message of a few bytes, one way, between the slowest neighbours */
    double overhead;       /* seconds that one more such message takes which ranks pass on behind another */
    double bandwidth;      /* bytes a second, messages of a megabyte, every second rank sending at once; likewise */
    double mean_latency;   /* over all pairs of neighbours: what a way along all of them takes, by their number */
    double mean_bandwidth; /* whose inverse is the mean of the inverses */
    double near_bandwidth; /* as bandwidth, between the fastest neighbours */
    /* Between ranks that are 2^i apart, all such pairs at once, the slowest; 0 without such pairs. */
    double far_latency[CARRY_COMM_FAR], far_bandwidth[CARRY_COMM_FAR];
} carry_comm_rates;

/* A collective at the first call: a few milliseconds. All ranks get the same numbers. A communicator that was split off
   has those of its parent, where they were known. One rank: latency 0 and a bandwidth of 1e12, for nothing travels. */
carry_status carry_comm_rates_of(carry_comm *comm, carry_comm_rates *rates);

/* A part of a wait that began at `start`: until `until`, when *done may be 0 and the request goes on; not past `start`
   and the deadline, when it fails as carry_wait would. Both are carry_seconds(), and above 0. */
carry_status carry_comm_wait_since(carry_request *request, double start, double until, int *done);

/* 1: the request is done, 0: it is under way, -1: it has failed, -2: the communicator has ended. A failure is left to
   who tests or waits for the request, and until then the communicator goes on: what came earlier can be received. */
int carry_comm_peek(carry_request *request);

/* Cancels pending requests: afterwards they are empty, and the caller owns their buffers. The peers are not notified.
   The requests are in the order in which they were posted, and the last goes first: what a peer meanwhile gets is in
   order.
 */
void carry_comm_withdraw(carry_request *requests, int64_t count);

/* The communicator of the same ranks that moves host memory: the one that a kind of GPUs was opened over, or itself. */
carry_comm *carry_comm_host(carry_comm *comm);
int carry_comm_device(const carry_comm *comm); /* whose memory it moves; 0: the CPU's */

/* Over the ranks of `over`, a communicator for memory of a GPU, by the best way that there is: "nccl" where every rank
   has a GPU of its own and the library is here, "peer" for threads of one process, "ipc" for processes of one machine,
   "mpi-gpu" where MPI takes memory of GPUs, else "staged". way NULL: so chosen;
   or one of them. A collective; both are freed by the caller, the new one first. */
carry_status carry_comm_open_device(carry_comm *over, carry_comm **comm, int device, const char *way);

/* The most ranks that have the same GPU; 1 on the CPU. A collective. */
carry_status carry_comm_sharing(carry_comm *comm, int *most);

/* From now on collectives of this rank fail at once with this reason, which is borrowed; messages go on. NULL: no more.
   For those who share a communicator and must not wait for each other in it. */
void carry_comm_bar(carry_comm *comm, const char *why);

#endif
