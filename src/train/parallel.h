/* Ranks as a grid: data ranks have different rows of a batch, sequence ranks have different tokens of the same rows.

   Rank r of the communicator is sequence rank r % parts of data rank r / parts: ranks that share a sequence are
   neighbours, since they communicate in every layer. */
#ifndef CARRY_TRAIN_PARALLEL_H
#define CARRY_TRAIN_PARALLEL_H

#include "carry/comm.h"

typedef struct carry_grid {
    carry_comm *world;    /* borrowed */
    carry_comm *sequence; /* the ranks that share this rank's rows; NULL if there are no others */
    int rank, ranks;      /* data rank, and number of data ranks */
    int part, parts;      /* sequence rank, and number of sequence ranks */
} carry_grid;

/* A collective. CARRY_EARGUMENT if parts does not divide the number of ranks. */
carry_status carry_grid_open(carry_comm *world, carry_grid *grid, int parts);
void carry_grid_close(carry_grid *grid);

#endif
