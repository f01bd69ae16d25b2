/* All-reduces as work in a stream: ranks that are threads of one process add up through each other's GPU memory. No CPU
   is between the parts, so that a graph can contain them (carry_graph_begin) and be launched many times.

   Each rank copies its numbers to a buffer that the others can read, raises a flag in the memory of each of them, waits
   for theirs, and adds all buffers in the order of ranks: the bits of carry_all_reduce. There are two buffers, used in
   turn: a rank that has seen the flags of round n + 1 knows that round n has been read. With more than two ranks each
   adds one slice and copies the others' slices, so that 2 (P - 1) / P of the bytes are read, not P - 1 times all.

   A rank waits on the GPU, in a kernel of one block: ranks that share a GPU do not keep each other from working. A wait
   that passes the deadline ends, and so do all later ones; carry_sums_check reports it. */
#ifndef CARRY_COMM_SUMS_H
#define CARRY_COMM_SUMS_H

#include "carry/comm.h"
#include "carry/device.h"

#define CARRY_SUMS_RANKS 8

typedef struct carry_sums carry_sums;

/* Called by all ranks of `over`; device is this rank's, bytes is the largest reduction and the same on all ranks.
   CARRY_EUNSUPPORTED, on all ranks alike: they are not threads of one process, there are more than CARRY_SUMS_RANKS,
   the build has no CUDA, more than two ranks share a GPU, or one GPU cannot read another's memory. */
carry_status carry_sums_open(carry_comm *over, carry_sums **made, int device, size_t bytes);
/* After the work of all ranks has ended. NULL is accepted. */
void carry_sums_close(carry_sums *sums);

/* data becomes the sum over all ranks, f32 or bf16, in the context's stream. All ranks call it in the same order with
   the same count. */
carry_status carry_sums_add(carry_sums *sums, void *data, int64_t count, carry_dtype type);
/* CARRY_ETIMEOUT if a wait of work that has ended found no answer within the deadline. */
carry_status carry_sums_check(const carry_sums *sums);

#endif
