/* The shapes for evaluating the planner. */
#include "bench/grid.h"

#include <stdio.h>

/* Chosen to include every corner that fits in memory, the shapes of experiments 026 and 044, and shapes of models;
   the largest has 64 M elements. */
static const struct {
    int batch, steps, n, width;
} diagonal[] =
    {
        {1, 1, 4, 1},       {1, 16, 4, 1},      {1, 256, 4, 1},     {1, 2048, 4, 1},   {1, 8192, 4, 1},
        {8, 256, 4, 1},     {64, 8192, 4, 1},   {1, 64, 16, 64},    {1, 128, 16, 64},  {1, 256, 16, 64},
        {1, 1024, 16, 64},  {1, 8192, 16, 64},  {8, 64, 16, 64},    {8, 1024, 16, 64}, {64, 64, 16, 64},
        {64, 256, 16, 64},  {64, 1024, 16, 64}, {1, 1, 128, 64},    {1, 32, 128, 64},  {1, 1024, 128, 64},
        {1, 8192, 128, 64}, {8, 1024, 128, 64}, {64, 128, 128, 64}, {1, 512, 128, 1},  {1, 8192, 128, 1},
        {8, 2048, 128, 1},  {64, 2048, 128, 1}, {1, 8192, 32, 1},   {2, 4096, 32, 8},  {64, 1, 64, 64},
},
  dense[] = {
      {1, 1, 4, 1},     {1, 64, 4, 1},     {1, 1024, 4, 1},  {1, 8192, 4, 1},   {64, 1024, 4, 1},   {1, 16, 16, 1},
      {1, 1024, 16, 1}, {1, 8192, 16, 1},  {8, 1024, 16, 1}, {64, 256, 16, 1},  {1, 64, 16, 64},    {1, 1024, 16, 64},
      {8, 256, 16, 64}, {64, 128, 16, 64}, {1, 1024, 32, 1}, {1, 4096, 32, 1},  {1, 8192, 32, 1},   {8, 1024, 32, 1},
      {64, 128, 32, 1}, {1, 512, 32, 32},  {1, 1024, 64, 1}, {1, 4096, 64, 1},  {1, 8192, 64, 1},   {8, 512, 64, 1},
      {64, 64, 64, 64}, {1, 256, 64, 64},  {1, 256, 128, 1}, {1, 2048, 128, 1}, {8, 128, 128, 128}, {64, 16, 128, 1},
};

#define DIAGONAL_COUNT ((int)(sizeof diagonal / sizeof diagonal[0]))

const char *carry_grid_problem(int index, char text[64]) {
    _Static_assert(sizeof diagonal / sizeof diagonal[0] + sizeof dense / sizeof dense[0] == CARRY_GRID_SHAPES,
                   "60 shapes");
    if (index < DIAGONAL_COUNT) {
        (void)snprintf(text, 64, "scan:diagonal:f32:b%d:t%d:n%d:w%d", diagonal[index].batch, diagonal[index].steps,
                       diagonal[index].n, diagonal[index].width);
    } else {
        index -= DIAGONAL_COUNT;
        (void)snprintf(text, 64, "scan:dense:f32:b%d:t%d:n%d:w%d", dense[index].batch, dense[index].steps,
                       dense[index].n, dense[index].width);
    }
    return text;
}
