/* Shared by the kernels of attention: a job, which attention.cu makes from a call's arguments, and its division into
   items.

   Queries are divided into tiles of rows of one head, keys into tiles that never cross the end of a run, so that each
   tile of keys has one bias. A block processes items one after the other: first whole tiles of queries, over all keys,
   then the tiles that would not fill the last round of blocks, each divided into pieces along the keys. Pieces store
   partial sums in the workspace, and combine (combine.cuh) adds those of a tile in order. */
#ifndef CARRY_ATTENTION_KERNELS_CUH
#define CARRY_ATTENTION_KERNELS_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#include "carry/attention.h"

#define CARRY_ATTENTION_ROWS 128  /* queries of a tile */
#define CARRY_ATTENTION_PIECES 32 /* most pieces of a tile */
#define CARRY_ATTENTION_ROUNDS 2  /* most rounds of the blocks over pieces */

struct attention_rows { /* [rows, heads, D]; strides in elements */
    const uint16_t *data;
    int64_t row, head;
};

/* True if rows can be loaded and stored 16 bytes at a time and strides are positive, as the copy engine requires. */
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
    int rows, columns;     /* queries and keys of a tile */
    int row_tiles;         /* tiles of queries of one head */
    int key_tiles;         /* tiles of keys over all runs */
    int whole;             /* tiles of queries that are not divided; they come first */
    int rest, pieces;      /* tiles that are divided, and the pieces of each */
    float *sums, *weights; /* for each piece: rows x D sums; rows x (largest score, sum of exponentials) */
};

struct attention_job {
    attention_rows q, k, v;
    uint16_t *o;
    int64_t o_row, o_head;
    float *lse;               /* [heads, queries], packed, or NULL if not wanted */
    int queries, heads, keys; /* keys: rows of the buffers */
    float scale;              /* times log2 e */
    attention_cut cut;
    int runs; /* number of runs, without empty ones and those whose bias is -infinity */
    attention_run run[CARRY_MAX_KEY_RUNS];
};

/* Tiles of queries that fill whole rounds of `blocks` blocks are not divided. The remaining tiles would keep only some
   of the blocks busy for a round, so they are divided into the number of pieces that finishes first. In this estimate a
   piece costs one more tile of keys for the sums that it stores, and dividing costs two more for combine. */
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
    int head, row; /* row: the first query */
    int from, to;  /* tiles of keys */
    int piece;     /* the index of its sums; -1: not divided */
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

/* A position in the walk over tiles of keys. */
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

/* The number of tiles of keys over all runs. */
static inline int key_tiles(const attention_job *job, int columns) {
    int tiles = 0;
    for (int i = 0; i < job->runs; i++) {
        tiles += (int)(((int64_t)job->run[i].count + columns - 1) / columns);
    }
    return tiles;
}

/* The two sets of kernels, in hopper.cu and ampere.cu. They run on the current device. */
struct attention_way {
    const char *name;
    bool (*works)(int ordinal);
    int (*columns)(const attention_job *job, int D); /* keys of a tile */
    carry_status (*launch)(carry_ctx *ctx, const attention_job *job, int D, int blocks, int ordinal,
                           cudaStream_t stream);
};

extern const attention_way carry_attention_hopper, carry_attention_ampere;

/* hopper.cu: true for causal calls with D of 256 on a Hopper GPU, without key runs and without a window that hides
   keys, if they have at least as many keys as queries, and at least `blocks` (the number of multiprocessors) tiles of
   queries over all heads. */
bool attention_causal_takes(const carry_attention_args *args, int ordinal, int blocks);
carry_status attention_causal_forward(carry_ctx *ctx, const attention_job *job, int key_heads, int ordinal, int blocks,
                                      cudaStream_t stream);

#endif
