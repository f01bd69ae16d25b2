/* Communicators: ranks that work on one thing and send each other bytes.

   Kinds. "self" is one rank alone; "threads" are ranks that are threads of one process (carry_comm_threads starts
   them); "mpi" are processes that mpirun or srun started; "processes" are processes of one machine, without MPI: who
   starts them sets CARRY_RANK, CARRY_RANKS and CARRY_MEET, a folder of their own (carry --processes N does). What is
   written over a communicator does not know its kind. "peer", "ipc", "staged" and "nccl" move memory of GPUs and are
   opened over a communicator of one of those kinds, with the same ranks: "peer" between threads of one process, "ipc"
   between processes of one machine (CUDA IPC), either of which may share a GPU; "staged" through pinned memory, over
   any kind; "nccl" with a GPU for each rank. They differ, see below.

   Ownership. A communicator is used by the one thread that opened it, with the context it was opened with, which
   outlives it. Buffers and requests are the caller's; from the start of an operation until it has been waited for they
   stay where they are, what is sent is not written and what is received is not touched. Buffers are memory of the CPU,
   with kinds of GPUs of options->device.

   Order. Messages between two ranks with the same tag arrive in the order they were sent; a receive names its sender,
   so which message it gets never depends on timing. A receive asks for exactly the bytes that were sent. A send may
   wait until its receiver is there: two ranks that send to each other use carry_isend. Every rank of a communicator
   calls the same collectives in the same order, with the same sizes.

   Determinism. Reductions add in the order of ranks, ((x0 + x1) + x2) + ..., whatever arrives first.

   Deadlines and failures. Every wait ends within the communicator's deadline. CARRY_ETIMEOUT: a rank did not come.
   CARRY_EPEER: one has failed, left or aborted. CARRY_ESHAPE: sizes do not agree. The error message names the
   operation, the rank and the seconds waited. Any of the three ends the communicator and all that were split from the
   same one: the other ranks are told, and every wait of theirs, now or later, ends with CARRY_EPEER and the first
   message. (A process that was killed cannot tell: the others then end at their deadline.) An argument that is refused
   (CARRY_EARGUMENT) ends nothing.

   Peer, ipc and staged. An operation starts after what the context's stream of that GPU has been given when it is
   posted, and when it has been waited for its result is there for what that stream is given next: streams are ordered
   by events, and the CPU waits for the other rank's CPU, not for GPUs. Tags, sizes, deadlines and the order of sums are
   those of the kind below. They cannot be split. What "ipc" exchanges goes through memory of its own, as much as is
   under way at once, which the process keeps until it ends.

   NCCL. Operations start after what the context's stream of that GPU has been given, and have happened when they have
   been waited for. NCCL has no tags and does not compare sizes: messages between two ranks are matched in the order
   they were posted, whatever their tags, and sizes that differ hang or are cut. What was posted since the last wait (or
   test) starts together with the next one and ends together: post a send to this rank itself, or to one that sends
   here, before waiting for the receive. Reductions are in NCCL's order, not that of ranks: the same from run to run on
   the same GPUs and links, and a maximum may pass over NaN. It cannot be split. A rank that gives up cannot tell the
   others through NCCL: they end at their deadline. */
#ifndef CARRY_COMM_H
#define CARRY_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_COMM_DEADLINE 60.0 /* seconds, unless told otherwise */
#define CARRY_COMM_TAGS 1024     /* tags are 0..1023 */
#define CARRY_COMM_AGREEMENT 160 /* bytes of the agreement string, including the terminating NUL */

typedef struct carry_comm carry_comm;
struct carry_rank; /* one rank of carry_comm_threads; the library's */

typedef struct carry_comm_options {
    double deadline;               /* seconds; 0: CARRY_COMM_DEADLINE */
    const char *agreement;         /* what must be the same on all ranks (shapes, type, algorithm); NULL: nothing */
    int device;                    /* where buffers are: a GPU for "peer", "ipc", "staged", "nccl"; else 0 */
    const struct carry_rank *rank; /* "threads": which one this is; other kinds: NULL */
    carry_comm *over;              /* kinds of GPUs: of the same ranks and context, and outlives the new one; "nccl":
                                      used while opening, NULL: one rank alone */
} carry_comm_options;

typedef enum carry_reduce_type {
    CARRY_REDUCE_F32,
    CARRY_REDUCE_F64,
    CARRY_REDUCE_I64,
    CARRY_REDUCE_BF16
} carry_reduce_type;
/* Sums of i64 wrap around; sums of bf16 are added in f32 and rounded after every rank. The maximum of anything and NaN
 * is NaN. */
typedef enum carry_reduce { CARRY_REDUCE_SUM, CARRY_REDUCE_MAX } carry_reduce;

/* An operation under way. All zero: none, and waiting for it returns at once. The fields are the library's. */
typedef struct carry_request {
    carry_comm *comm;
    const char *operation;
    const void *from; /* a send */
    void *to;         /* a receive */
    size_t bytes, other_bytes;
    int peer;              /* in the communicator */
    int world_self, world; /* this rank and the peer in the one that was opened */
    int tag, state;
    union {
        void *pointer;
        long number;
    } native;
} carry_request;

typedef struct carry_comm_counts {
    int64_t bytes_sent, bytes_received, messages_sent, messages_received;
    double waited; /* seconds */
} carry_comm_counts;

/* Kinds that this build has: "self", "threads", ...; NULL past the end. about may be NULL. */
CARRY_API const char *carry_comm_kind_name(int index, const char **about);

/* Every rank opens, once. options NULL: the default deadline and no agreement. The ranks compare the library's version,
   how it was built, and their agreement strings; where they differ all of them get CARRY_EARGUMENT with what each rank
   has. On failure *comm is NULL. */
CARRY_API carry_status carry_comm_open(carry_ctx *ctx, carry_comm **comm, const char *kind,
                                       const carry_comm_options *options);
/* When all its requests have been waited for. NULL is fine. A rank that gives up early calls carry_comm_abort
   before. */
CARRY_API void carry_comm_free(carry_comm *comm);

/* Runs function in every rank of a "threads" communicator; rank r uses ctxs[r], and rank 0 is the calling thread. A
   rank whose function fails ends the others. Returns when all have, with the status of the lowest rank that failed for
   a reason of its own and its error message in ctxs[0]. */
typedef carry_status (*carry_comm_function)(void *user, carry_comm *comm);
CARRY_API carry_status carry_comm_threads(carry_ctx *const *ctxs, int ranks, const carry_comm_options *options,
                                          carry_comm_function function, void *user);

CARRY_API int carry_comm_rank(const carry_comm *comm);
CARRY_API int carry_comm_size(const carry_comm *comm);
CARRY_API const char *carry_comm_name(const carry_comm *comm); /* of its kind */
CARRY_API carry_ctx *carry_comm_ctx(const carry_comm *comm);
CARRY_API double carry_comm_deadline(const carry_comm *comm);
CARRY_API carry_status carry_comm_set_deadline(carry_comm *comm, double seconds);
CARRY_API carry_comm_counts carry_comm_counted(const carry_comm *comm); /* since it was opened or split */

/* A collective. Ranks of equal colour form a new communicator, ordered by key, then by rank; a colour below 0 gives
   NULL. It has the deadline of its parent, may outlive it, and is freed like it. */
CARRY_API carry_status carry_comm_split(carry_comm *comm, carry_comm **part, int64_t colour, int64_t key);

/* Ends it for all ranks: they get CARRY_EPEER with this reason. The first one counts. */
CARRY_API void carry_comm_abort(carry_comm *comm, const char *reason);

CARRY_API carry_status carry_send(carry_comm *comm, const void *from, size_t bytes, int to_rank, int tag);
CARRY_API carry_status carry_recv(carry_comm *comm, void *to, size_t bytes, int from_rank, int tag);
CARRY_API carry_status carry_isend(carry_comm *comm, carry_request *request, const void *from, size_t bytes,
                                   int to_rank, int tag);
CARRY_API carry_status carry_irecv(carry_comm *comm, carry_request *request, void *to, size_t bytes, int from_rank,
                                   int tag);
/* Afterwards, failed or not, the request is reset and the buffer is the caller's. */
CARRY_API carry_status carry_wait(carry_request *request);
/* *done is 1 when it need not be waited for any more, as after carry_wait; else 0. Never waits. */
CARRY_API carry_status carry_test(carry_request *request, int *done);

CARRY_API carry_status carry_barrier(carry_comm *comm);
CARRY_API carry_status carry_broadcast(carry_comm *comm, void *data, size_t bytes, int root);
/* In place, count elements; uses as many again of the communicator's own memory. */
CARRY_API carry_status carry_all_reduce(carry_comm *comm, void *data, int64_t count, carry_reduce_type type,
                                        carry_reduce reduce);
/* all: [size, bytes]; piece may be this rank's place in it. */
CARRY_API carry_status carry_all_gather(carry_comm *comm, void *all, const void *piece, size_t bytes);
/* The pieces, of bytes[rank] each, one after the other. */
CARRY_API carry_status carry_all_gatherv(carry_comm *comm, void *all, const void *piece, const size_t *bytes);
/* piece: [count], the reduction of this rank's place in everybody's all: [size, count]. They do not overlap. */
CARRY_API carry_status carry_reduce_scatter(carry_comm *comm, void *piece, const void *all, int64_t count,
                                            carry_reduce_type type, carry_reduce reduce);
/* to, from: [size, bytes]; place r of from goes to rank r, into this rank's place of to. They do not overlap. */
CARRY_API carry_status carry_all_to_all(carry_comm *comm, void *to, const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
