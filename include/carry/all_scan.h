/* All-Scan: the scan across ranks.

   Each rank holds one part of a sequence. For each of `heads` heads, the part held by rank p maps a K x V state S to
   M[p] S + L[p]. All-Scan gives every rank the state at the start of its part:

       S[0] = initial (given to rank 0, or zero),   S[p+1] = M[p] S[p] + L[p]

   This is the recurrence of scan.h with ranks as steps. A reversed scan runs from the last rank to the first; with M^T
   it propagates gradients.

       M: [heads, K, K] (dense), or [heads, K] (diagonal: row k of S is scaled by M[k]), or factors
          M = gamma (I - W^T Y) with gamma [heads], W and Y [heads, rows, K]
       L, state, initial, leaving: [heads, K, V]

   All tensors are packed f32 in memory of the communicator's device. Messages are f32 or bf16; sums are f32. On a GPU
   (a communicator of a GPU kind, such as "peer" or "nccl"; comm.h) the plan has its own stream for computation and
   messages: it starts after the work that was in the context's stream at begin, and work added to that stream after end
   waits for it.

   Algorithms. "chain" passes S from rank to rank, pipelined in blocks of columns: M never leaves its rank, and a rank
   receives heads * K * V numbers, however many ranks there are. "doubling" combines pairs (M, L) in log2 P rounds.
   "gather" is the all-gather of LASP-2 with transitions: every rank receives the pairs of all ranks before it. "heads"
   assigns some heads to each rank, which combines the pairs of all ranks for them, in two all-to-all exchanges.
   "serial" is the chain in one block, as in LASP-1. carry_all_scan_plan_new chooses by the measured latency and
   bandwidth of the communicator and the matrix product rate of this machine; all ranks get the same plan.

   A scan is begun, polled between other work, and ended, so that messages overlap with computation. Several plans may
   be in progress at once on one communicator, each with a different tag. Nothing is allocated between plan and free.
   Errors are those of the communicator (comm.h); after an error the plan can only be freed. */
#ifndef CARRY_ALL_SCAN_H
#define CARRY_ALL_SCAN_H

#include <stdbool.h>

#include "carry/comm.h"
#include "carry/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum carry_all_scan_kind {
    CARRY_ALL_SCAN_DENSE,
    CARRY_ALL_SCAN_DIAGONAL,
    CARRY_ALL_SCAN_FACTORS,
} carry_all_scan_kind;

typedef struct carry_all_scan_problem {
    carry_all_scan_kind kind;
    int64_t heads, key, value; /* heads: the total over all sequences of a batch */
    int64_t rows;              /* rows of W and Y; 0 unless kind is CARRY_ALL_SCAN_FACTORS */
    carry_dtype wire;          /* f32 or bf16 */
    bool reversed;
    bool transposed; /* use M^T instead of M; no effect on a diagonal M */
} carry_all_scan_problem;

typedef struct carry_all_scan_options {
    size_t size;           /* CARRY_INIT */
    const char *algorithm; /* NULL: chosen by the planner */
    int64_t blocks;        /* blocks of the chain, at most heads * value; 0: chosen by the planner */
    int tag;               /* 0..CARRY_MAX_COMM_TAGS-1, different for each plan in progress at the same time */
} carry_all_scan_options;

typedef struct carry_all_scan_plan carry_all_scan_plan;

/* The list of algorithms; NULL past the end. */
CARRY_API const char *carry_all_scan_name(int index);
CARRY_API const char *carry_all_scan_about(int index);

/* A collective call. The ranks compare problem and options; if they differ, CARRY_EARGUMENT reports the values of each
   rank. Free the plan before the communicator. "lasp2" and "lasp1" are accepted as names for gather and serial. */
CARRY_API carry_status carry_all_scan_plan_new(carry_comm *comm, carry_all_scan_plan **plan,
                                               const carry_all_scan_problem *problem,
                                               const carry_all_scan_options *options);
CARRY_API void carry_all_scan_plan_free(carry_all_scan_plan *plan);
/* "chain in 8 blocks over 8 ranks (threads): 1.9 ms predicted (2.1 us latency, 9.8 GB/s, ...); next doubling 4 ms" */
CARRY_API const char *carry_all_scan_plan_about(const carry_all_scan_plan *plan);
CARRY_API const char *carry_all_scan_plan_algorithm(const carry_all_scan_plan *plan);
CARRY_API double carry_all_scan_plan_seconds(const carry_all_scan_plan *plan); /* predicted */
CARRY_API size_t carry_all_scan_run_workspace(const carry_all_scan_plan *plan);

/* The state that this rank passes to the next one. */
typedef enum carry_all_scan_role {
    CARRY_ALL_SCAN_MAP,  /* M S + L */
    CARRY_ALL_SCAN_CUT,  /* L: a sequence starts in this rank, so earlier states do not pass; M is not read */
    CARRY_ALL_SCAN_PASS, /* S unchanged: this rank has no tokens; M and L are not read */
} carry_all_scan_role;

/* Outputs first. An absent tensor has data NULL. state may not overlap the others. From begin to end the caller must
   not move or write any of the tensors. */
typedef struct carry_all_scan_args {
    carry_tensor state;   /* the state at the start of this rank's part */
    carry_tensor leaving; /* M S + L; may be absent */
    carry_all_scan_role role;
    carry_tensor M; /* dense or diagonal */
    carry_tensor W, Y, gamma;
    carry_tensor L;
    carry_tensor initial; /* read by rank 0, or by the last rank when reversed; absent: zero */
} carry_all_scan_args;

/* Begin, poll as often as you like (*done becomes 1 once state is written and this rank has nothing left to do), end.
   The scan owns the workspace until end. */
CARRY_API carry_status carry_all_scan_begin(carry_all_scan_plan *plan, const carry_all_scan_args *args, void *workspace,
                                            size_t workspace_bytes);
CARRY_API carry_status carry_all_scan_poll(carry_all_scan_plan *plan, int *done);
CARRY_API carry_status carry_all_scan_end(carry_all_scan_plan *plan);
/* Begin and end. */
CARRY_API carry_status carry_all_scan_run(carry_all_scan_plan *plan, const carry_all_scan_args *args, void *workspace,
                                          size_t workspace_bytes);

/* Counts of this rank in the last scan. */
typedef struct carry_all_scan_counts {
    size_t size;                                  /* CARRY_INIT */
    int64_t bytes_sent, bytes_received, messages; /* sent and received */
    int64_t products;                             /* K x K by K x V, or K x K by K x K, each for one head */
    double flops;
    double waited; /* seconds in begin and end: the time that did not overlap with other work */
} carry_all_scan_counts;

CARRY_API carry_status carry_all_scan_counted(const carry_all_scan_plan *plan, carry_all_scan_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
