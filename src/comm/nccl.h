/* Shared by the files of the backend "nccl": NCCL's functions, found at run time, and the state of a carry_wire
   (backend.h). It needs the headers of CUDA and NCCL, so only those files include it. */
#ifndef CARRY_COMM_NCCL_H
#define CARRY_COMM_NCCL_H

#include <cuda_runtime.h>
#include <nccl.h>

#include "comm/backend.h"

/* X(name): the functions that are used. */
#define CARRY_NCCL_FUNCTIONS(X) \
    X(ncclGetUniqueId)          \
    X(ncclCommInitRankConfig)   \
    X(ncclCommFinalize)         \
    X(ncclCommDestroy)          \
    X(ncclCommAbort)            \
    X(ncclCommGetAsyncError)    \
    X(ncclGetErrorString)       \
    X(ncclGetLastError)         \
    X(ncclGroupStart)           \
    X(ncclGroupEnd)             \
    X(ncclSend)                 \
    X(ncclRecv)                 \
    X(ncclBroadcast)            \
    X(ncclAllReduce)            \
    X(ncclAllGather)            \
    X(ncclReduceScatter)

/* One per process: the library stays open. */
typedef struct carry_nccl_functions {
    bool found;
#define X(name) __typeof__(name) *name; /* NOLINT(bugprone-macro-parentheses): it names the field */
    CARRY_NCCL_FUNCTIONS(X)
#undef X
} carry_nccl_functions;

extern carry_nccl_functions carry_nccl;

enum { CARRY_NCCL_BATCHES = 16 /* in progress at once; more are queued */ };

typedef struct carry_nccl_room {
    ncclComm_t comm; /* NULL: aborted */
    cudaStream_t stream;
    cudaEvent_t before; /* recorded in the context's stream before a batch */
    cudaEvent_t after[CARRY_NCCL_BATCHES];
    int64_t started, finished;          /* number of batches; those up to `finished` have completed */
    bool launching;                     /* the last batch is still being put into the stream */
    bool broken;                        /* the wire's reason says why */
    carry_request *first, *last;        /* queued, linked by native.pointer */
    const carry_collective *collective; /* the collective of the queued request that has no peer */
    carry_ctx *ctx;
    void *token; /* one float of GPU memory, for barriers */
    int ordinal;
} carry_nccl_room;

/* Marks the wire as broken, with this reason. */
void carry_nccl_break_off(carry_wire *wire, const char *reason);
/* True if error is cudaSuccess; otherwise marks the wire as broken. */
bool carry_nccl_is_fine(carry_wire *wire, cudaError_t error);
/* Returns NCCL's last error text if there is one, which says more than the code. */
const char *carry_nccl_words(const carry_nccl_room *r, ncclResult_t code);
/* Aborts. Afterwards NCCL no longer uses any buffer, provided that the GPU still responds. */
void carry_nccl_give_up(carry_nccl_room *r);

carry_status carry_nccl_open(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options);
void carry_nccl_close(carry_wire *wire);

#endif
