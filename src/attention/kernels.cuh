/* Shared by the kernels of attention: a job, made from a call's arguments by attention.cu, and how it is cut.

   Queries are cut into tiles of rows of one head, keys into tiles that never cross the end of a run: so a bias is one
   number per tile of keys. A block takes items one after the other: first whole tiles of queries, over all keys; then
   the tiles that would not fill the last round of blocks, each cut into pieces along the keys. Pieces leave unfinished
   sums in the workspace, and combine (combine.cu) adds those of a tile in their order. */
#ifndef CARRY_ATTENTION_KERNELS_CUH
#define CARRY_ATTENTION_KERNELS_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#include "carry/attention.h"

#define CARRY_ATTENTION_ROWS 128  /* queries of a tile */
#define CARRY_ATTENTION_PIECES 32 /* of a tile, at most */
#define CARRY_ATTENTION_ROUNDS 2  /* of the blocks over pieces, at most */

struct attention_rows { /* [rows, heads, D], in elements */
    const uint16_t *data;
    int64_t row, head;
};

/* 16 bytes are loaded and stored at once, and the copy engine wants strides that go forward. */
static inline bool attention_fits(const carry_tensor *t) {
    for (int i = 0; i < 2; i++) {
        if (t->shape[i] > 1 && (t->stride[i] <= 0 || t->stride[i] % 8 != 0 || t->stride[i] >= (int64_t)1 << 38)) {
            return false;
        }
    }
    return (uintptr_t)t->data % 16 == 0;
}

struct attention_run {
    int first, count;
    float bias; /* times log2 e, as every score */
};

struct attention_cut {
    int rows, columns;     /* of a tile: queries, keys */
    int row_tiles;         /* of one head */
    int key_tiles;         /* over all runs */
    int whole;             /* tiles of queries that are done in one piece; then the rest */
    int rest, pieces;      /* tiles in pieces, pieces of each */
    float *sums, *weights; /* per piece: rows x D sums; rows x (largest score, sum of exponentials) */
};

struct attention_job {
    attention_rows q, k, v;
    uint16_t *o;
    int64_t o_row, o_head;
    float *lse;               /* [heads, queries], packed; NULL: not wanted */
    int queries, heads, keys; /* keys: rows of the buffers */
    float scale;              /* times log2 e */
    attention_cut cut;
    int runs; /* without empty ones and those whose bias is -infinity */
    attention_run run[CARRY_MAX_KEY_RUNS];
};

/* Tiles of queries that fill whole rounds of `blocks` blocks are done whole. What is left would keep a part of the
   blocks busy for a round: it is cut into as many pieces as end soonest, where a piece costs a tile of keys more for
   the sums that it leaves, and pieces at all cost two for combine. */
static inline void cut_queries(attention_cut *c, int64_t tiles, int blocks) {
    int most = c->key_tiles < CARRY_ATTENTION_PIECES ? c->key_tiles : CARRY_ATTENTION_PIECES;
    int rest = (int)(tiles % blocks), best = c->key_tiles;
    c->whole = (int)tiles;
    c->rest = 0;
    c->pieces = 1;
    for (int pieces = 2; pieces <= most && rest > 0; pieces++) {
        int rounds = (rest * pieces + blocks - 1) / blocks;
        if (rounds > CARRY_ATTENTION_ROUNDS) {
            break;
        }
        int cost = rounds * ((c->key_tiles + pieces - 1) / pieces + 1) + 2;
        if (cost < best) {
            best = cost;
            c->pieces = pieces;
            c->rest = rest;
            c->whole = (int)tiles - rest;
        }
    }
}

struct attention_item {
    int head, row; /* the first query */
    int from, to;  /* tiles of keys */
    int piece;     /* where its sums go; -1: it is whole */
};

static __device__ __forceinline__ attention_item item_of(const attention_cut &c, int index) {
    int tile = index;
    attention_item item = {0, 0, 0, c.key_tiles, -1};
    if (index >= c.whole) {
        item.piece = index - c.whole;
        tile = c.whole + item.piece / c.pieces;
        int part = item.piece % c.pieces;
        item.from = c.key_tiles * part / c.pieces;
        item.to = c.key_tiles * (part + 1) / c.pieces;
    }
    item.head = tile / c.row_tiles;
    item.row = tile % c.row_tiles * c.rows;
    return item;
}

/* A walk over tiles of keys. */
struct attention_cursor {
    int run, row, left; /* the tile starts at `row`; rows left in its run */
};

static __device__ __forceinline__ attention_cursor cursor_at(const attention_job &job, int tile) {
    int columns = job.cut.columns;
    attention_cursor at = {0, job.run[0].first, job.run[0].count};
    while (tile > 0) {
        int tiles = (at.left + columns - 1) / columns;
        if (tile < tiles) {
            at.row += tile * columns;
            at.left -= tile * columns;
            break;
        }
        tile -= tiles;
        at.run++;
        at.row = job.run[at.run].first;
        at.left = job.run[at.run].count;
    }
    return at;
}

static __device__ __forceinline__ void next_tile(const attention_job &job, attention_cursor *at, int columns) {
    at->row += columns;
    at->left -= columns;
    if (at->left <= 0 && at->run + 1 < job.runs) {
        at->run++;
        at->row = job.run[at->run].first;
        at->left = job.run[at->run].count;
    }
}

static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

static __device__ __forceinline__ float lse_of(float largest, float sum) {
    return 0.6931471805599453f * (largest + log2f(sum));
}

/* Tiles of keys over all runs. */
static inline int key_tiles(const attention_job *job, int columns) {
    int tiles = 0;
    for (int i = 0; i < job->runs; i++) {
        tiles += (int)(((int64_t)job->run[i].count + columns - 1) / columns);
    }
    return tiles;
}

/* The two ways, of hopper.cu and ampere.cu. The device is the current one. */
struct attention_way {
    const char *name;
    bool (*works)(int ordinal);
    int (*columns)(const attention_job *job, int D); /* keys of a tile */
    carry_status (*launch)(carry_ctx *ctx, const attention_job *job, int D, int blocks, int ordinal,
                           cudaStream_t stream);
};

extern const attention_way carry_attention_hopper, carry_attention_ampere;

/* Causal calls with D of 256 whose tiles of queries keep all `blocks` multiprocessors busy (hopper.cu). */
bool attention_causal_takes(const carry_attention_args *args, int ordinal, int blocks);
carry_status attention_causal_forward(carry_ctx *ctx, const attention_job *job, int key_heads, int ordinal, int blocks,
                                      cudaStream_t stream);

#endif
