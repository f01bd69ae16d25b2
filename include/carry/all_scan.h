/* All-Scan: the scan across ranks.

   Rank p holds, for each of `heads` heads, what its part of the sequence does to a state of K x V: S -> M S + L. It
   gets the state that enters its part,

       S[0] = initial (given to rank 0, or zero),   S[p+1] = M[p] S[p] + L[p],

   that is the recurrence of scan.h with ranks for steps. Reversed, it goes from the last rank to the first, which with
   M^T is the way of a gradient.

       M: [heads, K, K] (dense), or [heads, K] (diagonal: row k of S is scaled by M[k]), or factors
          M = gamma (I - W^T Y) with gamma [heads], W and Y [heads, rows, K]
       L, state, initial, leaving: [heads, K, V]

   all packed f32 in memory of the communicator's device; what travels is f32 or bf16, sums are f32. On a GPU (a
   communicator "peer", "staged" or "nccl", comm.h) begin starts after what the context's stream has been given, work
   and messages are on a stream of the plan's own, and what the context's stream is given after end comes after them.

   Algorithms. "chain" hands S on, pipelined in blocks of columns: M never leaves its rank, and a rank receives heads K
   V numbers whatever the number of ranks is. "doubling" combines pairs (M, L) in log2 P rounds. "gather" is LASP-2's
   all-gather, with transitions: every rank receives the pairs of all those before it. "heads" has each rank take
   some heads through all ranks' pairs, in two exchanges of all with all. "serial" is the chain in one piece, LASP-1's.
   carry_all_scan_plan_new picks by the communicator's measured latency and bandwidth and this machine's rate of
   products; all ranks get the same plan.

   A scan is begun, polled between other work, and ended, so that states travel while the rank computes; several plans
   may be under way at once on one communicator, each with a tag of its own. Nothing is allocated between plan and free.
   Failures are the communicator's (comm.h); after one the plan can only be freed. */
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
    int64_t heads, key, value; /* heads: of all sequences of a batch together */
    int64_t rows;              /* of W and Y; 0 unless the kind is factors */
    carry_dtype wire;          /* f32 or bf16 */
    bool reversed;
    bool transposed; /* M^T for M; the same for diagonal */
} carry_all_scan_problem;

typedef struct carry_all_scan_options {
    const char *algorithm; /* NULL: the planner's choice */
    int64_t blocks;        /* of the chain; 0: its own choice; at most heads * value */
    int tag;               /* 0..CARRY_COMM_TAGS-1; plans under way at once have different ones */
} carry_all_scan_options;

typedef struct carry_all_scan_plan carry_all_scan_plan;

/* The list of algorithms; NULL past the end. */
CARRY_API const char *carry_all_scan_name(int index);
CARRY_API const char *carry_all_scan_about(int index);

/* A collective: the ranks compare problem and options, and CARRY_EARGUMENT says who has what where they differ. The
   communicator outlives the plan. "lasp2" and "lasp1" are understood as gather and serial. */
CARRY_API carry_status carry_all_scan_plan_new(carry_comm *comm, carry_all_scan_plan **plan,
                                               const carry_all_scan_problem *problem,
                                               const carry_all_scan_options *options);
CARRY_API void carry_all_scan_plan_free(carry_all_scan_plan *plan);
/* "chain in 8 blocks over 8 ranks (threads): 1.9 ms predicted (2.1 us latency, 9.8 GB/s, ...); next doubling 4 ms" */
CARRY_API const char *carry_all_scan_plan_about(const carry_all_scan_plan *plan);
CARRY_API const char *carry_all_scan_plan_algorithm(const carry_all_scan_plan *plan);
CARRY_API double carry_all_scan_plan_seconds(const carry_all_scan_plan *plan); /* predicted */
CARRY_API size_t carry_all_scan_workspace(const carry_all_scan_plan *plan);

/* What this rank's part is. */
typedef enum carry_all_scan_role {
    CARRY_ALL_SCAN_MAP,  /* M S + L */
    CARRY_ALL_SCAN_CUT,  /* L alone: a sequence starts here, nothing from before passes; M is not read */
    CARRY_ALL_SCAN_PASS, /* S as it came: a rank without tokens; M and L are not read */
} carry_all_scan_role;

/* Outputs first. What is not there has data NULL. state may not overlap the others; all of them stay where they are,
   unwritten by the caller, from begin to end. */
typedef struct carry_all_scan_args {
    carry_tensor state;   /* that enters this rank */
    carry_tensor leaving; /* M S + L; may be absent */
    carry_all_scan_role role;
    carry_tensor M; /* dense or diagonal */
    carry_tensor W, Y, gamma;
    carry_tensor L;
    carry_tensor initial; /* read by rank 0, the last one when reversed; absent: zero */
} carry_all_scan_args;

/* Begin, poll as often as you like (*done is 1 once state is there and nothing of this rank's is left to do), end. The
   workspace belongs to the scan until its end. */
CARRY_API carry_status carry_all_scan_begin(carry_all_scan_plan *plan, const carry_all_scan_args *args, void *workspace,
                                            size_t workspace_bytes);
CARRY_API carry_status carry_all_scan_poll(carry_all_scan_plan *plan, int *done);
CARRY_API carry_status carry_all_scan_end(carry_all_scan_plan *plan);
/* Begin and end. */
CARRY_API carry_status carry_all_scan_run(carry_all_scan_plan *plan, const carry_all_scan_args *args, void *workspace,
                                          size_t workspace_bytes);

/* What this rank did in the last scan. */
typedef struct carry_all_scan_counts {
    int64_t bytes_sent, bytes_received, messages; /* sent and received */
    int64_t products;                             /* of K x K by K x V or by K x K, one head each */
    double flops;
    double waited; /* seconds in end, and in begin: what was not hidden behind other work */
} carry_all_scan_counts;

CARRY_API carry_all_scan_counts carry_all_scan_counted(const carry_all_scan_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
