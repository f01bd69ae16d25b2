/* Internal functions of communicators: measured latency and bandwidth, waiting for a request in steps, cancelling
   requests, and disabling collectives temporarily. */
#ifndef CARRY_COMM_RATES_H
#define CARRY_COMM_RATES_H

#include "carry/comm.h"

#define CARRY_COMM_FAR 16 /* distances of 1, 2, 4, ... ranks */

typedef struct carry_comm_rates {
    double latency;  /* seconds of a message of a few bytes, one way, between the slowest neighbours */
    double overhead; /* seconds that one more such message adds when ranks pass it on behind another */
    /* Bytes per second of messages of a megabyte between the slowest neighbours, with every second rank sending at
       once. */
    double bandwidth;
    /* Mean over all pairs of neighbours, so a message along all of them takes this times their number. */
    double mean_latency;
    double mean_bandwidth; /* from the mean of the times, not of the rates */
    double near_bandwidth; /* like bandwidth, between the fastest neighbours */
    /* Between ranks that are 2^i apart, with all such pairs sending at once: the slowest pair. 0 if there are no
       such pairs. */
    double far_latency[CARRY_COMM_FAR], far_bandwidth[CARRY_COMM_FAR];
} carry_comm_rates;

/* A collective at the first call, which takes a few milliseconds. All ranks get the same numbers. A communicator
   that was split off has the rates of its parent, if they were known. With one rank, latency is 0 and bandwidth
   1e12, since no messages are sent. */
carry_status carry_comm_rates_of(carry_comm *comm, carry_comm_rates *rates);

/* One step of a wait that began at `start`. Returns at `until`, with *done 0 if the request is not finished. Past
   `start` plus the deadline it fails as carry_wait would. Both times are values of carry_seconds() and above 0. */
carry_status carry_comm_wait_since(carry_request *request, double start, double until, int *done);

/* 1: the request is done; 0: it is in progress; -1: it has failed; -2: the communicator has ended. A failure is
   reported only when the request is tested or waited for; until then the communicator works, so that earlier
   messages can be received. */
int carry_comm_peek(carry_request *request);

/* Cancels pending requests: afterwards they are empty, and the caller owns their buffers. The peers are not
   notified. The requests must be in the order in which they were posted. The last is cancelled first, so that
   messages which a peer still gets are in order. */
void carry_comm_withdraw(carry_request *requests, int64_t count);

/* The communicator of the same ranks that moves host memory: the one that a GPU communicator was opened over, or
   comm itself. */
carry_comm *carry_comm_host(carry_comm *comm);
int carry_comm_device(const carry_comm *comm); /* the device whose memory it moves; 0: the CPU */

/* Opens a communicator for GPU memory over the ranks of `over`. With way NULL it chooses the best: "nccl" if every
   rank has its own GPU and the library is installed, "peer" for threads of one process, "ipc" for processes of one
   machine, "mpi-gpu" if MPI accepts GPU memory, else "staged". Otherwise way is one of these names. A collective.
   The caller frees both communicators, the new one first. */
carry_status carry_comm_open_device(carry_comm *over, carry_comm **comm, int device, const char *way);

/* *most: the largest number of ranks that share one GPU; 1 on the CPU. A collective. */
carry_status carry_comm_sharing(carry_comm *comm, int *most);

/* From now on, collectives of this rank fail at once with the reason `why`, which is borrowed; messages still work.
   NULL allows collectives again. For users of a shared communicator who must not wait for each other in it. */
void carry_comm_bar(carry_comm *comm, const char *why);

#endif
