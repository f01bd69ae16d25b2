/* All-reduces as work in a stream: ranks that are threads of one process add through each other's GPU memory. The
   CPU takes no part in the steps, so that a graph can contain them (carry_graph_begin) and be launched many times.

   Each rank copies its numbers to a buffer that the others can read, raises a flag in the memory of each of them,
   waits for their flags, and adds all buffers in the order of ranks: the result has the same bits as
   carry_all_reduce. There are two buffers, used in turn: a rank that has seen the flags of round n + 1 knows that
   round n has been read. With more than two ranks, each adds one slice and copies the others' slices: of P ranks,
   each reads 2 (P - 1) / P times the data from the others instead of P - 1 times.

   A rank waits on the GPU, in a kernel of one block, so that ranks that share a GPU do not block each other. A wait
   that passes the deadline ends, and so do all later ones; carry_sums_check reports it. */
#ifndef CARRY_COMM_SUMS_H
#define CARRY_COMM_SUMS_H

#include "carry/comm.h"
#include "carry/device.h"

#define CARRY_SUMS_RANKS 8

typedef struct carry_sums carry_sums;

/* Called by all ranks of `over`. device is this rank's device; bytes is the size of the largest reduction and the
   same on all ranks. Returns CARRY_EUNSUPPORTED, on all ranks alike, if they are not threads of one process, there
   are more than CARRY_SUMS_RANKS, the device is the CPU, the build has no CUDA, more than two ranks share a GPU, or a
   GPU cannot read another's memory. */
carry_status carry_sums_open(carry_comm *over, carry_sums **made, int device, size_t bytes);
/* Call it after the work of all ranks has ended. NULL is accepted. */
void carry_sums_close(carry_sums *sums);

/* Replaces data (f32 or bf16) by the sum over all ranks, in the context's stream. All ranks call it in the same
   order with the same count. */
carry_status carry_sums_add(carry_sums *sums, void *data, int64_t count, carry_dtype type);
/* Returns CARRY_ETIMEOUT if a wait, in work that has ended, passed its deadline. */
carry_status carry_sums_check(const carry_sums *sums);

#endif
