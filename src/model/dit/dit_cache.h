/* The cache of a video transformer and the memory of a forward, inside dit_*.c. */
#ifndef CARRY_MODEL_DIT_CACHE_H
#define CARRY_MODEL_DIT_CACHE_H

#include "carry/attention.h"
#include "model/dit/dit_parts.h"

struct carry_dit_cache {
    carry_dit *dit;
    carry_dit_cache_options options;
    int64_t rows, columns, per_frame; /* patches */
    int64_t frames, tokens;           /* the most of one forward */
    int64_t ring;                     /* slots after the sink's */
    int64_t next, top;                /* frames seen now, and ever since the cut: what is below top - ring is gone */
    bool has_text;
    void *memory;
    size_t bytes;
    /* State: [blocks, slots per_frame, heads, head] of this shard, and [blocks, text_len, num_heads, head]. */
    float *keys, *values, *text_keys, *text_values;
    /* Of a forward. wide is q, k, v and o, or what is between the products of the FFN, or patches. */
    float *positions, *table, *x, *normed, *wide, *sums;
    float *sinusoid, *time, *projected, *modulation; /* of every chunk */
    float *head_modulation;                          /* of one */
    float *text, *text_hidden, *text_embedded;
    void *attention;
    size_t attention_bytes;
};

/* A forward under way. */
typedef struct carry_dit_call {
    carry_dit *dit;
    carry_dit_cache *cache;
    const carry_dit_chunk *chunk;
    int chunks;
    float bias;
    int64_t tokens;
    int64_t row[CARRY_DIT_CHUNKS + 1]; /* where the tokens of a chunk begin */
} carry_dit_call;

static inline int64_t carry_dit_head(const carry_dit *dit) {
    return dit->config.dim / dit->config.num_heads;
}

int64_t carry_dit_slot_of(const carry_dit_cache *cache, int64_t frame);
/* The runs of rows that the frames start..end-1 see. */
int carry_dit_runs(const carry_dit_cache *cache, int64_t start, int64_t end, float bias,
                   carry_key_run run[CARRY_KEY_RUNS]);
carry_status carry_dit_block_forward(const carry_dit_call *call, int64_t block);
/* y = W x + b. */
carry_status carry_dit_affine(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W, carry_tensor b);
/* x = x / sqrt(mean of its square + eps) w, for rows that are whole. */
carry_status carry_dit_norm(carry_dit *dit, float *sums, carry_tensor x, carry_tensor w);

#endif
