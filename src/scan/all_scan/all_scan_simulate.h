/* All-Scan on a simulated cluster. The steps of every rank are recorded from the algorithms themselves, rank after
   rank, and replayed by an event loop with measured or given costs of a network and of products.

   Recording uses a plan over a communicator that moves no data: it only records when requests are posted and waited
   for, and products are charged. The steps of an algorithm do not depend on data or time, so each rank is recorded
   alone.

   Replay runs the next operation of the rank with the least clock among those that can go on. A message occupies the
   sender's port and the receiver's for bytes / bandwidth, after earlier messages of the same port, and arrives a
   latency later. Links inside a node and to other nodes have different ports. */
#ifndef CARRY_SCAN_ALL_SCAN_SIMULATE_H
#define CARRY_SCAN_ALL_SCAN_SIMULATE_H

#include "scan/all_scan/all_scan.h"

#define CARRY_ALL_SCAN_SIMULATED 4096 /* most ranks */

/* node: ranks in a node. Index 0: links inside a node, index 1: links between nodes. */
typedef struct carry_all_scan_network {
    int node;
    double latency[2], bandwidth[2]; /* seconds, bytes/s */
} carry_all_scan_network;

typedef struct carry_all_scan_costs {
    double launch;  /* seconds of an empty kernel */
    double step;    /* seconds between two dependent products of one launch */
    double product; /* flop/s of products */
    double memory;  /* bytes/s */
} carry_all_scan_costs;

typedef struct carry_all_scan_simulated {
    double seconds;   /* until the last rank has its state */
    double predicted; /* the planner's prediction */
    int64_t blocks, messages;
    int64_t received; /* bytes received by the rank that receives most */
    char algorithm[16];
} carry_all_scan_simulated;

/* If algorithm is NULL, simulates the planner's choice for this network. */
carry_status carry_all_scan_simulate(carry_ctx *ctx, carry_all_scan_simulated *result,
                                     const carry_all_scan_problem *problem, int ranks, const char *algorithm,
                                     const carry_all_scan_network *network, const carry_all_scan_costs *costs);

/* A step of a rank, recorded and then replayed. */
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

/* all_scan_replay.c: returns the time at which the last rank has done its last step, or a negative number if out of
   memory or in a deadlock. */
double carry_all_scan_replay(const carry_all_scan_trace *traces, int ranks, const carry_all_scan_network *network);

#endif
