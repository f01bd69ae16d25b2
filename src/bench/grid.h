/* The evaluation of the planner: shapes of both kinds, T 1..8192, n 4..128, batch 1..64, w 1..128. */
#ifndef CARRY_LAB_GRID_H
#define CARRY_LAB_GRID_H

#define CARRY_GRID_SHAPES 60

/* The problem's text into text; index 0..CARRY_GRID_SHAPES-1. */
const char *carry_grid_problem(int index, char text[64]);

#endif
