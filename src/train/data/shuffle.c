/* A Feistel network over the smallest even number of bits that can hold count, applied until the result is below count.
   The network is a bijection, so the repetition is one too; at most 4 applications are expected. */
#include "train/data/shuffle.h"

#include "core/rng.h"

#define ROUNDS 6

int64_t carry_shuffle(uint64_t seed, uint64_t stream, int64_t count, int64_t index) {
    if (count < 2) {
        return index;
    }
    int half = 1;
    while (2 * half < 63 && (int64_t)1 << (2 * half) < count) {
        half++;
    }
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t at = (uint64_t)index;
    do {
        uint64_t left = at >> half;
        uint64_t right = at & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            carry_words words = carry_philox(seed, stream, right << 3 | round);
            uint64_t mixed = ((uint64_t)words.word[1] << 32 | words.word[0]) & mask;
            uint64_t old = right;
            right = left ^ mixed;
            left = old;
        }
        at = left << half | right;
    } while (at >= (uint64_t)count);
    return (int64_t)at;
}

int64_t carry_draw(uint64_t seed, uint64_t stream, uint64_t index, int64_t count) {
    /* The bias of the remainder of 64 bits is below 2^-32 for every count that fits into 32 bits. */
    carry_words words = carry_philox(seed, stream, index);
    return (int64_t)(((uint64_t)words.word[1] << 32 | words.word[0]) % (uint64_t)count);
}
