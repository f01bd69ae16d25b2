/* Shuffling without a list: computes element `index` of a shuffled 0..count-1 without the other elements. So a position
   in a shuffled epoch is one number, and resuming needs no other state. */
#ifndef CARRY_TRAIN_SHUFFLE_H
#define CARRY_TRAIN_SHUFFLE_H

#include <stdint.h>

/* A bijection of 0..count-1 for every seed and stream; 0 <= index < count. */
int64_t carry_shuffle(uint64_t seed, uint64_t stream, int64_t count, int64_t index);
/* A uniformly distributed number below count, which depends only on the arguments. */
int64_t carry_draw(uint64_t seed, uint64_t stream, uint64_t index, int64_t count);

#endif
