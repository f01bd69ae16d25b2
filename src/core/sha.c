/* The compression functions as the standard states them. */
#include "core/sha.h"

#include <stdio.h>
#include <string.h>

static uint32_t left(uint32_t x, int bits) {
    return x << bits | x >> (32 - bits);
}

static uint32_t right(uint32_t x, int bits) {
    return x >> bits | x << (32 - bits);
}

static uint32_t word(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void block_256(uint32_t *state, const unsigned char *block) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    };
    uint32_t w[64] = {0}, v[8];
    for (int i = 0; i < 16; i++) {
        w[i] = word(block + 4 * i);
    }
    for (int i = 16; i < 64; i++) {
        w[i] = w[i - 16] + (right(w[i - 15], 7) ^ right(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
               (right(w[i - 2], 17) ^ right(w[i - 2], 19) ^ w[i - 2] >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t one = v[7] + (right(v[4], 6) ^ right(v[4], 11) ^ right(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) +
                       k[i] + w[i];
        uint32_t two =
            (right(v[0], 2) ^ right(v[0], 13) ^ right(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

static void block_1(uint32_t *state, const unsigned char *block) {
    static const uint32_t k[4] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    uint32_t w[80] = {0}, a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int i = 0; i < 80; i++) {
        w[i] = i < 16 ? word(block + 4 * i) : left(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
        uint32_t f = i < 20 ? (b & c) | (~b & d) : i < 40 || i >= 60 ? b ^ c ^ d : (b & c) | (b & d) | (c & d);
        uint32_t next = left(a, 5) + f + e + k[i / 20] + w[i];
        e = d;
        d = c;
        c = left(b, 30);
        b = a;
        a = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

void carry_sha_start(carry_sha *sha, bool is_256) {
    static const uint32_t start_256[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    static const uint32_t start_1[8] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    *sha = (carry_sha){.is_256 = is_256};
    memcpy(sha->state, is_256 ? start_256 : start_1, sizeof sha->state);
}

void carry_sha_add(carry_sha *sha, const void *data, size_t bytes) {
    const unsigned char *at = data;
    while (bytes > 0) {
        size_t used = sha->bytes % 64, taken = 64 - used < bytes ? 64 - used : bytes;
        memcpy(sha->block + used, at, taken);
        sha->bytes += taken;
        at += taken;
        bytes -= taken;
        if (used + taken == 64) {
            (sha->is_256 ? block_256 : block_1)(sha->state, sha->block);
        }
    }
}

const char *carry_sha_text(carry_sha *sha, char text[CARRY_SHA_TEXT]) {
    static const unsigned char zeros[64] = {0};
    unsigned char length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)(sha->bytes * 8 >> (56 - 8 * i));
    }
    carry_sha_add(sha, "\x80", 1);
    carry_sha_add(sha, zeros, (size_t)((120 - sha->bytes % 64) % 64));
    carry_sha_add(sha, length, 8);
    for (int i = 0; i < (sha->is_256 ? 8 : 5); i++) {
        (void)snprintf(text + 8 * i, 9, "%08x", sha->state[i]);
    }
    return text;
}
