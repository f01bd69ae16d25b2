/* Checks the memory of a problem before it is allocated: the system grants more memory than it has, and a process that
   then uses all of it swaps or is killed. */
#ifndef CARRY_BENCH_FAMILY_CAPACITY_H
#define CARRY_BENCH_FAMILY_CAPACITY_H

#include "carry/carry.h"

/* CARRY_EMEMORY, with both figures, if the host does not have `bytes` available. sizes: the problem's sizes to
   reduce, such as "b, t, n or w". */
carry_status carry_check_capacity(carry_ctx *ctx, double bytes, const char *sizes);

#endif
