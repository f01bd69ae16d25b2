/* XXH64 (Yann Collet's xxHash, 64 bits): detects damaged or different data. It is not a signature: an attacker can make
   two texts with the same hash.

   Why not CRC-32C, which core has too: models and states are identified by their hash alone, and among ten thousand
   hashes of 32 bits, two are equal with a probability of 1%. Why not a cryptographic hash: XXH64 reads about 8 bytes
   a nanosecond on one core without special instructions, so a model of 1.5 GB is hashed in a fraction of a second. */
#ifndef CARRY_CORE_HASH_H
#define CARRY_CORE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t carry_hash(uint64_t seed, const void *data, size_t bytes);

/* The hash of token ids, one after another: carry_hash of an id's 8 bytes (little-endian), with the hash of the ids
   before it as the seed. The hash of no ids is 0. */
uint64_t carry_hash_ids(uint64_t before, const int64_t *ids, int64_t count);

#define CARRY_HASH_TEXT 17 /* 16 lowercase hexadecimal digits and a zero */
const char *carry_hash_text(char text[CARRY_HASH_TEXT], uint64_t hash);
bool carry_hash_parse(uint64_t *hash, const char *text); /* false for any other text */

#endif
