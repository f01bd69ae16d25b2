/* SHA-256 and SHA-1 (FIPS 180-4), incrementally. SHA-1 is used only to compare files with their names in Git. */
#ifndef CARRY_CORE_SHA_H
#define CARRY_CORE_SHA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct carry_sha {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64];
    bool is_256;
} carry_sha;

#define CARRY_SHA_TEXT 65 /* 64 or 40 lowercase hexadecimal digits and a zero */

void carry_sha_start(carry_sha *sha, bool is_256);
void carry_sha_add(carry_sha *sha, const void *data, size_t bytes);
const char *carry_sha_text(carry_sha *sha, char text[CARRY_SHA_TEXT]); /* ends the hash: no more data can be added */

#endif
