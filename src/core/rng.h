/* Philox 4x32-10, the counter-based generator: four words that are a function of a key and a counter alone. */
#ifndef CARRY_CORE_RNG_H
#define CARRY_CORE_RNG_H

#include <stdint.h>

typedef struct carry_words {
    uint32_t word[4];
} carry_words;

carry_words carry_philox(uint64_t key, uint64_t counter_high, uint64_t counter_low);

#endif
