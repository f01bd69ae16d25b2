/* GPU side of comm/sums.h, in cuda/sums.cu and cuda/sums_system.cu. */
#ifndef CARRY_COMM_SUMS_DEVICE_H
#define CARRY_COMM_SUMS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/sums.h"

/* In the memory of a rank's GPU, before its buffers. Flags are written by the other ranks. */
typedef struct carry_sums_state {
    unsigned long long round;                     /* reductions so far */
    unsigned long long flag[2][CARRY_SUMS_RANKS]; /* rounds of which each rank's numbers, and its slice, are there */
    unsigned blocks;                              /* of the kernel under way that have ended */
    unsigned late;                                /* a wait has passed its deadline */
} carry_sums_state;

#define CARRY_SUMS_HEAD 512 /* bytes before the buffers */

/* Kernel argument. */
typedef struct carry_sums_device {
    int rank, ranks, ordinal;
    void *memory[CARRY_SUMS_RANKS]; /* of every rank: state, then two buffers */
    size_t bytes;                   /* of a buffer, a multiple of 16 */
    unsigned long long patience;    /* nanoseconds */
    int *over;                      /* [ranks], pinned host memory: a rank has closed, or has waited too long */
} carry_sums_device;

/* Zeroed memory that the GPUs with these ordinals can read and write. */
carry_status carry_sums_alloc(carry_ctx *ctx, void **memory, int ordinal, const int *ordinals, int ranks, size_t bytes);
void carry_sums_free(int ordinal, void *memory);
carry_status carry_sums_enqueue(carry_ctx *ctx, const carry_sums_device *d, void *data, int64_t count, carry_dtype type,
                                carry_stream *stream);

/* The number of ranks that may share one GPU (cuda/sums_system.cu). */
int carry_sums_sharing(void);
/* cuda/sums_system.cu; both return 0, or CUDA's error. reach: the device that is set can use the other's memory. */
int carry_sums_reach(int ordinal, int other);
/* Until all ranks have raised this flag to the state's round. */
int carry_sums_wait(const carry_sums_device *d, int flag, void *stream);

#endif
