/* GPU side of comm/sums.h, in cuda/sums.cu and cuda/sums_system.cu. */
#ifndef CARRY_COMM_SUMS_DEVICE_H
#define CARRY_COMM_SUMS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/sums.h"

/* At the start of each rank's GPU memory, before its buffers. The other ranks write the flags. */
typedef struct carry_sums_state {
    unsigned long long round; /* reductions so far */
    /* flag[0][r]: rounds for which the numbers of rank r are ready; flag[1][r]: rounds for which its slice is. */
    unsigned long long flag[2][CARRY_SUMS_RANKS];
    unsigned blocks; /* blocks of the running kernel that have finished */
    unsigned late;   /* a wait has passed its deadline */
} carry_sums_state;

#define CARRY_SUMS_HEAD 512 /* bytes before the buffers */

/* Kernel argument. */
typedef struct carry_sums_device {
    int rank, ranks, ordinal;
    void *memory[CARRY_SUMS_RANKS]; /* memory of every rank: its state, then two buffers */
    size_t bytes;                   /* of a buffer, a multiple of 16 */
    unsigned long long patience;    /* nanoseconds */
    int *over; /* [ranks], pinned host memory; nonzero: the rank has closed, or has waited too long */
} carry_sums_device;

/* Allocates zeroed memory that the GPUs with these ordinals can read and write. */
carry_status carry_sums_alloc(carry_ctx *ctx, void **memory, int ordinal, const int *ordinals, int ranks, size_t bytes);
void carry_sums_free(int ordinal, void *memory);
carry_status carry_sums_enqueue(carry_ctx *ctx, const carry_sums_device *d, void *data, int64_t count, carry_dtype type,
                                carry_stream *stream);

/* The number of ranks that may share one GPU (cuda/sums_system.cu). */
int carry_sums_sharing(void);
/* cuda/sums_system.cu. Both functions return 0 or CUDA's error. carry_sums_reach gives the current device,
   `ordinal`, access to the memory of `other`. */
int carry_sums_reach(int ordinal, int other);
/* Waits, in the stream, until all ranks have raised this flag to the round in the state. */
int carry_sums_wait(const carry_sums_device *d, int flag, void *stream);

#endif
