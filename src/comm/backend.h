/* The table of communicator kinds. Each kind is one const struct: a way to move bytes between all ranks of a run.
   table.c is the only list. Subsets of the ranks, collectives, deadlines and error messages are implemented once for
   all kinds (comm.c, collectives.c). */
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
    CARRY_REQUEST_MISFIT, /* the peer's message has other_bytes bytes */
    CARRY_REQUEST_GONE,   /* the peer has left */
    CARRY_REQUEST_ENDED,  /* the wire has ended */
    CARRY_REQUEST_BROKEN, /* the kind reported an error: see the wire's reason */
} carry_request_state;

/* Shared by a communicator that this rank opened and all communicators split from it. */
typedef struct carry_wire {
    const struct carry_comm_kind *kind;
    void *state; /* the kind's */
    int rank, size;
    int device;                     /* the device whose memory it moves */
    int users;                      /* communicators */
    int groups;                     /* the highest group number that a communicator of this rank has had */
    int ended_by;                   /* rank that ended it, or -1 */
    char reason[CARRY_COMM_REASON]; /* that rank's error message */
} carry_wire;

/* A collective that the kind implements itself, with its arguments, already checked. */
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
    void *to;           /* the only buffer if the operation is in place */
    size_t bytes;       /* of one rank's part; of the whole buffer in a broadcast */
    const size_t *each; /* bytes of every part, in an all-gatherv */
    int64_t count;
    carry_dtype type;
    carry_reduce reduce;
    int root;
} carry_collective;

typedef struct carry_comm_kind {
    const char *name, *about;
    /* Buffers are memory of the GPU options->device. Such a communicator is opened over another one and cannot be
       split. */
    bool on_gpu;
    /* Sets state, rank and size. */
    carry_status (*open)(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options);
    /* Starts a PENDING request. Afterwards it may be in any state except NONE. */
    void (*post)(carry_wire *wire, carry_request *request);
    /* Works until the request is neither PENDING nor BUSY, or until carry_seconds() passes `until`; with 0 it checks
       once. Sets ended_by and reason if the wire has ended. */
    void (*progress)(carry_wire *wire, carry_request *request, double until);
    /* Starts a collective over all ranks of the wire, as a request without a peer. NULL: collectives are made of
       messages. */
    void (*collect)(carry_wire *wire, carry_request *request, const carry_collective *what);
    /* Cancels a PENDING or BUSY request: it becomes NONE, or DONE if it completed first. */
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
    carry_comm *over;        /* the communicator that a GPU communicator was opened over, else NULL */
    const char *barred;      /* why collectives are refused now (rates.h), or NULL; borrowed */
};

extern const carry_comm_kind carry_comm_self, carry_comm_kind_threads, carry_comm_mpi, carry_comm_processes,
    carry_comm_nccl, carry_comm_peer, carry_comm_ipc, carry_comm_aware, carry_comm_staged;

/* Returns NULL if this build has no kind of this name. */
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
    CARRY_TAG_BITS = 11,   /* bits of a tag on the wire; the group is in the bits above */
    CARRY_GROUP_BITS = 17, /* together 28 bits, which every MPI in use supports */
};

/* The deadline of one wait, shared by all messages of a collective. */
typedef struct carry_deadline {
    const char *operation;
    double start, until;
} carry_deadline;

carry_deadline carry_deadline_from_now(const carry_comm *comm, const char *operation);

/* These functions do not check their arguments. */
void carry_comm_post_send(carry_comm *comm, carry_request *request, const char *operation, const void *from,
                          size_t bytes, int peer, int tag);
void carry_comm_post_recv(carry_comm *comm, carry_request *request, const char *operation, void *to, size_t bytes,
                          int peer, int tag);
void carry_comm_post_collective(carry_comm *comm, carry_request *request, const carry_collective *what);
/* Waits for all requests, in order. If one fails, the rest are cancelled. */
carry_status carry_comm_wait_all(carry_comm *comm, carry_request *requests, int count, const carry_deadline *deadline);

/* Makes a communicator on this wire and counts it among the wire's users. */
carry_status carry_comm_new(carry_ctx *ctx, carry_comm **comm, carry_wire *wire, int rank, int size, int group);

void carry_comm_free_scratch(carry_comm *comm); /* collectives.c */
/* reduce.c: to = to + from, or their maximum, element by element. */
void carry_comm_reduce_into(void *to, const void *from, int64_t count, carry_dtype type, carry_reduce reduce);

/* cuda/reduce.cu: rows is [size, count]. Reduces all rows, in their order, into the first, on the context's stream. */
carry_status carry_comm_reduce_rows_on_gpu(carry_ctx *ctx, int device, void *rows, int size, int64_t count,
                                           carry_dtype type, carry_reduce reduce);

/* mpi.c, after MPI has started: returns true if MPI accepts GPU memory. Sets which to, for example, "Open MPI v4.1.4
   (UCX)". */
bool carry_mpi_takes_gpus(char *which, size_t size);

/* Compares version, build and agreement string. */
carry_status carry_comm_handshake(carry_comm *comm, const char *agreement);

#endif
