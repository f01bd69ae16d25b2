/* The table of communicator kinds: one const struct each, a way to move bytes between the ranks of the whole run.
   table.c is the only list. Ranks in a part of it, collectives, deadlines and error messages are written once above it
   (comm.c, collectives.c). */
#ifndef CARRY_COMM_BACKEND_H
#define CARRY_COMM_BACKEND_H

#include <stdbool.h>

#include "carry/comm.h"
#include "comm/rates.h"

#define CARRY_COMM_REASON 256

typedef enum carry_request_state {
    CARRY_REQUEST_NONE,
    CARRY_REQUEST_PENDING,
    CARRY_REQUEST_BUSY, /* its bytes are being copied; no rank may leave now */
    CARRY_REQUEST_DONE,
    CARRY_REQUEST_MISFIT, /* the peer had other_bytes */
    CARRY_REQUEST_GONE,   /* the peer has left */
    CARRY_REQUEST_ENDED,  /* the wire has */
    CARRY_REQUEST_BROKEN, /* the kind said so: the wire's reason */
} carry_request_state;

/* Shared by the communicators that were split from one opened by this rank. */
typedef struct carry_wire {
    const struct carry_comm_kind *kind;
    void *state; /* the kind's */
    int rank, size;
    int device;                     /* whose memory it moves */
    int users;                      /* communicators */
    int groups;                     /* the highest number that a communicator of this rank has had */
    int ended_by;                   /* rank that ended it, or -1 */
    char reason[CARRY_COMM_REASON]; /* in that rank's words */
} carry_wire;

/* A collective that a kind does itself, with its arguments, which have been checked. */
typedef struct carry_collective {
    const char *operation;
    enum {
        CARRY_COLLECT_BARRIER,
        CARRY_COLLECT_BROADCAST,
        CARRY_COLLECT_ALL_REDUCE,
        CARRY_COLLECT_ALL_GATHER,
        CARRY_COLLECT_ALL_GATHERV,
        CARRY_COLLECT_REDUCE_SCATTER,
        CARRY_COLLECT_ALL_TO_ALL,
    } which;
    const void *from;
    void *to;           /* alone where it is in place */
    size_t bytes;       /* of a part; of all in a broadcast */
    const size_t *each; /* of every part, in an all-gatherv */
    int64_t count;
    carry_dtype type;
    carry_reduce reduce;
    int root;
} carry_collective;

typedef struct carry_comm_kind {
    const char *name, *about;
    bool on_gpu; /* options->device is a GPU and buffers are its memory: opened over another, not split */
    /* Sets state, rank and size. */
    carry_status (*open)(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options);
    /* Starts a request that is PENDING; it may be in any state afterwards but NONE. */
    void (*post)(carry_wire *wire, carry_request *request);
    /* Until the request is neither PENDING nor BUSY, or carry_seconds() has passed `until`; 0 looks once. Sets ended_by
       and reason when the wire has ended. */
    void (*progress)(carry_wire *wire, carry_request *request, double until);
    /* Starts a collective, all of whose ranks are those of the wire, as a request without a peer. NULL: messages do. */
    void (*collect)(carry_wire *wire, carry_request *request, const carry_collective *what);
    /* Of a request that is PENDING or BUSY: it becomes NONE, or DONE where it was too late. */
    void (*cancel)(carry_wire *wire, carry_request *request);
    /* Tells the other ranks; does not wait. */
    void (*abort)(carry_wire *wire, const char *reason);
    void (*close)(carry_wire *wire);
} carry_comm_kind;

struct carry_comm {
    carry_ctx *ctx;
    carry_wire *wire;
    double deadline;
    carry_comm_counts counts;
    carry_comm_rates rates; /* latency 0: not measured yet */
    int rank, size;
    int group; /* makes its tags different from those of other communicators on the wire */
    void *scratch;
    size_t scratch_bytes;
    carry_request *requests; /* [2 size], for collectives */
    int *members;            /* [size], ranks on the wire */
    carry_comm *over;        /* the one that a kind of GPUs was opened over; else NULL */
    const char *barred;      /* why there are no collectives now (rates.h), or NULL; the caller's */
};

extern const carry_comm_kind carry_comm_self, carry_comm_kind_threads, carry_comm_mpi, carry_comm_processes,
    carry_comm_nccl, carry_comm_peer, carry_comm_ipc, carry_comm_aware, carry_comm_staged;

/* NULL: this build has no backend of this name. */
const carry_comm_kind *carry_comm_find(const char *name);
/* "self, threads" */
const char *carry_comm_names(carry_ctx *ctx);

/* Tags of the library's own operations follow those of the caller. */
enum {
    CARRY_TAG_BARRIER = CARRY_MAX_COMM_TAGS,
    CARRY_TAG_BROADCAST,
    CARRY_TAG_REDUCE,
    CARRY_TAG_GATHER,
    CARRY_TAG_TO_ALL,
    CARRY_TAG_HANDSHAKE,
    CARRY_TAG_RATES,
    CARRY_TAG_ALONE,
    CARRY_TAG_NOTICE,      /* a kind's own */
    CARRY_TAG_BITS = 11,   /* of a tag on the wire; the group is above */
    CARRY_GROUP_BITS = 17, /* together 28, which every MPI in use has */
};

/* A wait with its end: one for all the messages of a collective. */
typedef struct carry_deadline {
    const char *operation;
    double start, until;
} carry_deadline;

carry_deadline carry_deadline_from_now(const carry_comm *comm, const char *operation);

/* The arguments are known to be good. */
void carry_comm_post_send(carry_comm *comm, carry_request *request, const char *operation, const void *from,
                          size_t bytes, int peer, int tag);
void carry_comm_post_recv(carry_comm *comm, carry_request *request, const char *operation, void *to, size_t bytes,
                          int peer, int tag);
void carry_comm_post_collective(carry_comm *comm, carry_request *request, const carry_collective *what);
/* All of them, in order. On failure the rest is withdrawn. */
carry_status carry_comm_wait_all(carry_comm *comm, carry_request *requests, int count, const carry_deadline *deadline);

/* A communicator on this wire, which it counts itself a user of. */
carry_status carry_comm_new(carry_ctx *ctx, carry_comm **comm, carry_wire *wire, int rank, int size, int group);

void carry_comm_free_scratch(carry_comm *comm); /* collectives.c */
/* reduce.c: to = to + from, or the larger, element by element. */
void carry_comm_reduce_into(void *to, const void *from, int64_t count, carry_dtype type, carry_reduce reduce);

/* cuda/reduce.cu: rows is [size, count]; the first becomes the reduction of all, in their order, on the context's
   stream. */
carry_status carry_comm_reduce_rows_on_gpu(carry_ctx *ctx, int device, void *rows, int size, int64_t count,
                                           carry_dtype type, carry_reduce reduce);

/* mpi.c, once MPI has started: does it take memory of GPUs? which: "Open MPI v4.1.4 (UCX)". */
bool carry_mpi_takes_gpus(char *which, size_t size);

/* Compares version, build and agreement string. */
carry_status carry_comm_handshake(carry_comm *comm, const char *agreement);

#endif
