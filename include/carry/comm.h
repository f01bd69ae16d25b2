/* Communicators: groups of ranks that exchange messages.

   Kinds. "self" is a single rank. "threads": the ranks are threads of one process, started by carry_comm_threads.
   "mpi": processes started by mpirun or srun. "processes": processes on one machine, without MPI; their launcher sets
   CARRY_RANK, CARRY_RANKS and CARRY_MEET, a folder used by these ranks only (carry --processes N does this). Code that
   uses a communicator does not depend on its kind. "peer", "ipc", "mpi-gpu", "staged" and "nccl" move GPU memory; they
   are opened on top of a communicator of one of the kinds above, with the same ranks: "peer" between threads of one
   process, "ipc" between processes on one machine (CUDA IPC), "mpi-gpu" on top of an MPI that accepts GPU memory,
   "staged" through pinned memory on top of any kind, "nccl" with one GPU per rank. "peer" and "ipc" may share a GPU.

   Ownership. A communicator is used only by the thread that opened it, with the context it was opened with; free it
   before that context. Buffers and requests belong to the caller. From the start of an operation until it has been
   waited for, do not move them, write to a buffer being sent, or touch one being received. Buffers are CPU memory; for
   the GPU kinds they are memory of options->device.

   Order. Messages between two ranks with the same tag arrive in the order they were sent. A receive names its sender,
   so which message it gets never depends on timing. A receive must ask for exactly the number of bytes sent. A send may
   block until its receiver is ready: two ranks that send to each other must use carry_isend. Every rank of a
   communicator calls the same collectives in the same order, with the same sizes.

   Determinism. Reductions add in rank order, ((x0 + x1) + x2) + ..., whatever the order of arrival.

   Deadlines and failures. Every wait ends within the communicator's deadline. CARRY_ETIMEOUT: a rank did not arrive.
   CARRY_EPEER: a rank failed, left or aborted. CARRY_ESHAPE: sizes differ between ranks. The error message names the
   operation, the rank and the seconds waited. Each of the three ends the communicator and all communicators split from
   the same one: the other ranks are notified, and all their waits, current and later, end with CARRY_EPEER and the
   first error message. (A killed process cannot notify the others: they end at their deadline.) A refused argument
   (CARRY_EARGUMENT) does not end the communicator.

   Peer, ipc and staged. An operation starts after the work that is in the context's stream for that GPU when the
   operation is posted. Work added to that stream after the wait sees the result. Streams are ordered by events: the CPU
   waits for the CPU of the other rank, not for GPUs. Tags, sizes, deadlines and the order of sums are those of the
   communicator underneath. These kinds cannot be split. "ipc" copies messages through buffers of its own, as large as
   the messages in flight at once; the process keeps them until it exits. "mpi-gpu" differs in one point: when an
   operation has been waited for, its data has arrived.

   NCCL. Operations start after the work already in the context's stream for that GPU, and are complete when they have
   been waited for. NCCL has no tags and does not compare sizes: messages between two ranks are matched in the order
   they were posted, whatever their tags, and different sizes hang or truncate. Operations posted since the last wait or
   test start together at the next one and end together, so post a send to this rank itself, or to a rank that sends
   here, before waiting for the receive. Reductions use NCCL's order, not rank order: results repeat from run to run on
   the same GPUs and links, and a maximum may ignore NaN. This kind cannot be split. A rank that gives up cannot notify
   the others through NCCL: they end at their deadline. */
#ifndef CARRY_COMM_H
#define CARRY_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_COMM_DEADLINE 60.0      /* the default, in seconds */
#define CARRY_MAX_COMM_TAGS 1024      /* tags are 0..1023 */
#define CARRY_MAX_AGREEMENT_BYTES 160 /* bytes of the agreement string, including the terminating NUL */

typedef struct carry_comm carry_comm;
struct carry_rank; /* one rank of carry_comm_threads; internal */

typedef struct carry_comm_options {
    size_t size;                   /* CARRY_INIT */
    double deadline;               /* seconds; 0: CARRY_COMM_DEADLINE */
    const char *agreement;         /* text that must be equal on all ranks (shapes, type, algorithm); NULL: none */
    int device;                    /* where buffers are: a GPU for the GPU kinds; else 0 */
    const struct carry_rank *rank; /* "threads": which rank this is; other kinds: NULL */
    carry_comm *over;              /* GPU kinds: the communicator underneath, with the same ranks and context; free it
                                      last. "nccl" uses it only to open; NULL there means a single rank */
} carry_comm_options;

/* Reductions accept f32, f64, i64 and bf16. Sums of i64 wrap around; sums of bf16 are added in f32 and rounded after
   every rank. The maximum of a number and NaN is NaN. */
typedef enum carry_reduce { CARRY_REDUCE_SUM, CARRY_REDUCE_MAX } carry_reduce;

/* An operation in progress. A request that is all zero is empty, and waiting for it returns at once. The fields are
   internal. */
typedef struct carry_request {
    carry_comm *comm;
    const char *operation;
    const void *from; /* of a send */
    void *to;         /* of a receive */
    size_t bytes, other_bytes;
    int peer;              /* its rank in this communicator */
    int world_self, world; /* ranks of this one and the peer in the communicator that was opened, before any split */
    int tag, state;
    union {
        void *pointer;
        long number;
    } native;
    void *reserved[4];
} carry_request;

typedef struct carry_comm_counts {
    size_t size; /* CARRY_INIT */
    int64_t bytes_sent, bytes_received, messages_sent, messages_received;
    double waited; /* seconds */
} carry_comm_counts;

/* The kinds in this build: "self", "threads", ...; NULL past the end. */
CARRY_API const char *carry_comm_kind_name(int index);
CARRY_API const char *carry_comm_kind_about(int index);

/* Every rank calls this once. options NULL: the default deadline and no agreement string. The ranks compare the library
   version, how it was built, and their agreement strings; if these differ, all ranks get CARRY_EARGUMENT with the
   values of each rank. On failure *comm is NULL. */
CARRY_API carry_status carry_comm_open(carry_ctx *ctx, carry_comm **comm, const char *kind,
                                       const carry_comm_options *options);
/* Call it after all requests have been waited for. NULL is allowed. A rank that gives up early calls carry_comm_abort
   first. */
CARRY_API void carry_comm_close(carry_comm *comm);

/* Runs function in every rank of a "threads" communicator; rank r uses ctxs[r], and rank 0 is the calling thread. A
   rank whose function fails ends the others. Returns when all ranks have returned, with the status of the lowest rank
   that failed by itself, and its error message in ctxs[0]. */
typedef carry_status (*carry_comm_function)(void *user, carry_comm *comm);
CARRY_API carry_status carry_comm_threads(carry_ctx *const *ctxs, int ranks, const carry_comm_options *options,
                                          carry_comm_function function, void *user);

CARRY_API int carry_comm_rank(const carry_comm *comm);
CARRY_API int carry_comm_size(const carry_comm *comm);
CARRY_API const char *carry_comm_name(const carry_comm *comm); /* the name of its kind */
CARRY_API carry_ctx *carry_comm_ctx(const carry_comm *comm);
CARRY_API double carry_comm_deadline(const carry_comm *comm);
CARRY_API carry_status carry_comm_set_deadline(carry_comm *comm, double seconds);
/* Counts since the communicator was opened or split. */
CARRY_API carry_status carry_comm_counted(const carry_comm *comm, carry_comm_counts *counts);

/* A collective call. Ranks of equal colour form a new communicator, ordered by key, then by rank; a colour below 0
   gives NULL. The new communicator has the deadline of its parent, may outlive it, and is freed the same way. */
CARRY_API carry_status carry_comm_split(carry_comm *comm, carry_comm **part, int64_t colour, int64_t key);

/* Ends the communicator on all ranks: they get CARRY_EPEER with this reason. Only the first reason is kept. */
CARRY_API void carry_comm_abort(carry_comm *comm, const char *reason);

CARRY_API carry_status carry_send(carry_comm *comm, const void *from, size_t bytes, int to_rank, int tag);
CARRY_API carry_status carry_recv(carry_comm *comm, void *to, size_t bytes, int from_rank, int tag);
CARRY_API carry_status carry_isend(carry_comm *comm, carry_request *request, const void *from, size_t bytes,
                                   int to_rank, int tag);
CARRY_API carry_status carry_irecv(carry_comm *comm, carry_request *request, void *to, size_t bytes, int from_rank,
                                   int tag);
/* When it returns, even on failure, the request is reset and the caller may use the buffer again. */
CARRY_API carry_status carry_wait(carry_request *request);
/* Sets *done to 1 if the operation is complete, as after carry_wait, else to 0. Does not block. */
CARRY_API carry_status carry_test(carry_request *request, int *done);

CARRY_API carry_status carry_barrier(carry_comm *comm);
CARRY_API carry_status carry_broadcast(carry_comm *comm, void *data, size_t bytes, int root);
/* Reduces count elements in place. The communicator keeps a scratch buffer of that size (for small data, that size per
   rank). */
CARRY_API carry_status carry_all_reduce(carry_comm *comm, void *data, int64_t count, carry_dtype dtype,
                                        carry_reduce reduce);
/* all: [size, bytes]; piece may be this rank's part of it. */
CARRY_API carry_status carry_all_gather(carry_comm *comm, void *all, const void *piece, size_t bytes);
/* Like carry_all_gather, with pieces of different sizes, bytes[rank] each, stored one after the other. */
CARRY_API carry_status carry_all_gatherv(carry_comm *comm, void *all, const void *piece, const size_t *bytes);
/* piece: [count], the reduction over all ranks of row `rank` of all: [size, count]. They do not overlap. */
CARRY_API carry_status carry_reduce_scatter(carry_comm *comm, void *piece, const void *all, int64_t count,
                                            carry_dtype dtype, carry_reduce reduce);
/* to, from: [size, bytes]; row r of from is sent to rank r, which stores it in the row of the sender. They do not
   overlap. */
CARRY_API carry_status carry_all_to_all(carry_comm *comm, void *to, const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
