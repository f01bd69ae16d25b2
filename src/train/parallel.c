/* The grid of ranks. */
#include "train/parallel.h"

#include "core/error.h"

carry_status carry_grid_open(carry_comm *world, carry_grid *grid, int parts) {
    const int size = carry_comm_size(world);
    const int rank = carry_comm_rank(world);
    *grid = (carry_grid){.world = world};
    if (parts < 1 || size % parts != 0) {
        return carry_fail(carry_comm_ctx(world), CARRY_EARGUMENT,
                          "%d ranks cannot be grouped by %d sequence ranks: the number must divide that of ranks", size,
                          parts);
    }
    grid->parts = parts;
    grid->part = rank % parts;
    grid->ranks = size / parts;
    grid->rank = rank / parts;
    return parts > 1 ? carry_comm_split(world, &grid->sequence, grid->rank, grid->part) : CARRY_OK;
}

void carry_grid_close(carry_grid *grid) {
    carry_comm_close(grid->sequence);
    grid->sequence = NULL;
}
