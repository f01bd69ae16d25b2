/* Shared by the files of forward attention: a call, the scratch memory of a unit of work, and blocks of keys. */
#ifndef CARRY_ATTENTION_FORWARD_H
#define CARRY_ATTENTION_FORWARD_H

#include "attention/attention.h"
#include "ops/product/bf16.h"

/* Keys are converted and transposed once for a block of queries, so a block has many queries. Scores are computed for
   CARRY_ATTENTION_ROWS queries at a time: with D = 128, these scores are 16 KB, and the rows of q, the rows of o, K^T
   and V are 32 KB each. */
#define CARRY_ATTENTION_QUERIES 256
#define CARRY_ATTENTION_ROWS 64
#define CARRY_ATTENTION_KEYS 64
/* If products use tiles of bf16 (ops/kernels/bf16.h: terms), q, k and v are bf16 and need no splitting. exp(score -
   m) is split into the sum of two bf16 terms, with an error below 2^-18. */
#define CARRY_ATTENTION_TERMS 2
#define CARRY_ATTENTION_UNIT 32 /* panels are padded to a multiple of this along k and across it */

typedef struct carry_attention_call {
    const carry_attention_args *args;
    const carry_attention_pages *pages; /* of keys and values in a pool (ops/pool.h); NULL: they are in order */
    const carry_kernels *kernels;
    carry_key_run seen[CARRY_MAX_KEY_RUNS];
    int runs;
    int64_t T, D, S;
    int64_t blocks, queries; /* blocks of a head, and queries in each but the last */
    const carry_bf16 *tiled; /* kernels for tiles, or NULL for f32 products */
    float scale;
} carry_attention_call;

typedef struct carry_attention_scratch {
    float *q, *o;
    float *k, *v, *turned; /* a block of keys and values; turned is k^T */
    float *scores;
    float *most, *sum;
    uint16_t *q_panels, *k_panels, *v_panels, *terms;
    float *scales;
} carry_attention_scratch;

_Static_assert(CARRY_ATTENTION_ROWS % CARRY_ATTENTION_UNIT == 0 && CARRY_ATTENTION_KEYS % CARRY_ATTENTION_UNIT == 0,
               "panels of a block are whole");

/* Rounds a size up to whole panels. */
static inline int64_t carry_attention_padded(int64_t size) {
    return (size + CARRY_ATTENTION_UNIT - 1) / CARRY_ATTENTION_UNIT * CARRY_ATTENTION_UNIT;
}

/* A block of keys, loaded for the queries of a unit. */
typedef struct carry_attention_block {
    int64_t key_head, first, keys;
    const float *k, *v; /* f32; with tiles, both are in panels instead */
    bool has_bad;       /* v has zeros in place of NaN and infinity */
} carry_attention_block;

/* Packs rows first..first+count-1 of a head into panels. Rows are the lines of a panel, or its k if `across`. */
void carry_attention_pack(carry_bf16_pack pack, uint16_t *to, const carry_tensor *from, int64_t head, int64_t first,
                          int64_t count, bool across);
/* Finds the keys among first..first+keys-1 that query t sees: *from..*end-1, relative to first. Returns false if it
   sees none. */
bool carry_attention_seen_keys(const carry_attention_call *call, int64_t t, int64_t first, int64_t keys, int64_t *from,
                               int64_t *end);
/* Loads a block of keys for the queries query..query+queries-1. */
carry_attention_block carry_attention_load_block(const carry_attention_call *call, const carry_attention_scratch *s,
                                                 int64_t key_head, int64_t query, int64_t queries, int64_t first,
                                                 int64_t keys);
/* Computes s->scores [rows, keys] for the queries from row `at` on. */
void carry_attention_scores(const carry_attention_call *call, const carry_attention_scratch *s,
                            const carry_attention_block *block, int64_t at, int64_t rows);
/* s->o += weights in s->scores times values, for the queries from row `at` on. `query` is the index of the first of
   them. */
void carry_attention_add_block(const carry_attention_call *call, const carry_attention_scratch *s,
                               const carry_attention_block *block, int64_t query, int64_t at, int64_t rows);

#endif
