/* Shapes for evaluating the planner: both kinds, T 1..8192, n 4..128, batch 1..64, w 1..128. */
#ifndef CARRY_LAB_GRID_H
#define CARRY_LAB_GRID_H

#define CARRY_GRID_SHAPES 60

/* Writes the text of a problem; index is 0..CARRY_GRID_SHAPES-1. */
const char *carry_grid_problem(int index, char text[64]);

#endif
