/* One block of a video transformer as the problem family `block` runs it: its tensors on a device, and the call. */
#ifndef CARRY_BENCH_BLOCK_SIDE_H
#define CARRY_BENCH_BLOCK_SIDE_H

#include "model/dit/dit_block.h"

#define CARRY_BLOCK_RUNS 3

/* The sizes of a block. Its tokens go into the last rows of a cache of `keys` rows. */
typedef struct carry_block_sizes {
    int64_t heads, head, ffn, queries, keys, text;
    int runs; /* number of runs of keys that are attended to; 0: all keys */
    carry_key_run run[CARRY_BLOCK_RUNS];
} carry_block_sizes;

/* Tensors of a block other than its weights. */
enum {
    CARRY_BLOCK_X,
    CARRY_BLOCK_MODULATION,
    CARRY_BLOCK_TABLE,
    CARRY_BLOCK_K,
    CARRY_BLOCK_V,
    CARRY_BLOCK_TEXT_K,
    CARRY_BLOCK_TEXT_V,
    CARRY_BLOCK_TENSORS
};

typedef struct carry_block_side {
    const carry_block_sizes *sizes;
    carry_dit *dit; /* one block of these sizes */
    carry_dtype dtype;
    int64_t rows;
    const int64_t *token; /* the token of each row; NULL: all tokens */
    carry_tensor t[CARRY_BLOCK_TENSORS];
    carry_dit_room room;
    void *memory; /* of the tensors and the block's buffers */
    size_t bytes;
    unsigned char *scratch;
    size_t scratch_bytes;
} carry_block_side;

carry_dit_config carry_block_config(const carry_block_sizes *it);
/* take allocates the tensors and the memory of a run on the device of dit; give frees them, and dit too. */
carry_status carry_block_side_take(carry_block_side *s);
void carry_block_side_give(carry_block_side *s);
carry_status carry_block_side_run(carry_block_side *s);

#endif
