/* All-Scan on a simulated cluster: the work of every rank is recorded from the algorithms themselves, rank
   after rank, and replayed by an event loop with the costs of a network and of products that were measured or stated.

   Recording. A plan over a communicator that moves nothing: its requests are posted and waited for, and that is all
   that happens to them; products are charged. No algorithm's way depends on data or time, so one rank needs no other.

   Replay. Of all ranks that can go on, the one whose clock is least does its next operation. A message takes the
   sender's port and the receiver's, one after the other for messages of the same port, for bytes / bandwidth, and
   arrives a latency after that. Ports inside a node and to other nodes are different ones. */
#ifndef CARRY_SCAN_ALL_SCAN_SIMULATE_H
#define CARRY_SCAN_ALL_SCAN_SIMULATE_H

#include "scan/all_scan/all_scan.h"

#define CARRY_ALL_SCAN_SIMULATED 4096 /* ranks */

/* Ranks of a node; index 0: links inside a node, 1: between two. */
typedef struct carry_all_scan_network {
    int node;
    double latency[2], bandwidth[2]; /* seconds, bytes a second */
} carry_all_scan_network;

typedef struct carry_all_scan_costs {
    double launch;  /* seconds of a kernel that does nothing */
    double step;    /* seconds between two products of one launch that depend on each other */
    double product; /* operations a second of products */
    double memory;  /* bytes a second */
} carry_all_scan_costs;

typedef struct carry_all_scan_simulated {
    double seconds;   /* until the last rank has its state */
    double predicted; /* by the planner */
    int64_t blocks, messages;
    int64_t received; /* bytes, of the rank that receives most */
    char algorithm[16];
} carry_all_scan_simulated;

/* algorithm NULL: the planner's choice, for this network. */
carry_status carry_all_scan_simulate(carry_ctx *ctx, carry_all_scan_simulated *result,
                                     const carry_all_scan_problem *problem, int ranks, const char *algorithm,
                                     const carry_all_scan_network *network, const carry_all_scan_costs *costs);

/* Between record and replay. */
typedef enum carry_all_scan_step_kind {
    CARRY_STEP_COMPUTE,
    CARRY_STEP_SEND,
    CARRY_STEP_SENT,
    CARRY_STEP_RECEIVED,
} carry_all_scan_step_kind;

typedef struct carry_all_scan_step {
    carry_all_scan_step_kind kind;
    int peer;
    double amount; /* seconds, or bytes */
} carry_all_scan_step;

typedef struct carry_all_scan_trace {
    carry_all_scan_step *steps;
    int64_t count, room;
    bool no_memory;
} carry_all_scan_trace;

/* all_scan_replay.c: the time when the last rank has done its last step; below 0: out of memory, or a deadlock.
 */
double carry_all_scan_replay(const carry_all_scan_trace *traces, int ranks, const carry_all_scan_network *network);

#endif
