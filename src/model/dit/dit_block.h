/* One block of the video transformer, for streams, training and benches, on any device:

       m = modulation + e0(t) = shift1, scale1, gate1, shift2, scale2, gate2     (of each group)
       x += gate1 o(attention(rotary(norm(q(a))), keys, values)),  a = LN(x)(1 + scale1) + shift1
       x += o'(attention(norm(q'(b)), text keys, text values)),    b = LN3(x)
       x += gate2 down(gelu(up(c))),                               c = LN(x)(1 + scale2) + shift2

   Rows are the tokens of all groups: chunks of a stream, or units of training, each with its own t. Products, norms and
   the FFN process them as one matrix. Callers differ in the keys to which a group attends, which they provide by
   callbacks. The block stores its results in carry_dit_rows: in a stream most of these tensors share memory, in
   training they are kept for the backward pass. */
#ifndef CARRY_MODEL_DIT_BLOCK_H
#define CARRY_MODEL_DIT_BLOCK_H

#include "carry/attention.h"
#include "carry/nn.h"
#include "ops/fp8_rows.h"
#include "ops/video.h"
#include "core/tensor.h"
#include "model/dit/dit_parts.h"

#define CARRY_DIT_SHIFTS 6 /* rows of a block's modulation: shift, scale and gate, for attention and for the FFN */

/* Tensors are [rows, dim] in the call's type unless noted; q to o are [rows, width of this shard's heads]. */
typedef struct carry_dit_rows {
    carry_tensor x, h1, q_in, k_in, v, q, k, o, y; /* q may alias q_in, k k_in; y may alias h1, h3 */
    carry_tensor qkv;                              /* [rows, 3 width]: q_in, k_in and v are its columns; or absent */
    carry_tensor lse;                              /* [groups, heads, rows of a group], f32; absent: not kept */
    carry_tensor x1, h3, cq_in, cq, co, clse;      /* x1, x2 and next may be x */
    carry_tensor x2, h2, up, wide, f, next;        /* up and wide are [rows, ffn]; if they are the same tensor, GELU is
                                                      in place */
    carry_tensor ck_in, ck, cv;                    /* [text rows, dim] */
    carry_tensor m;                                /* [groups, 6 dim], f32 */
    /* For chained blocks (a stream on a GPU): the modulation of the next block. A block writes it here, and writes to
       h1 the norm with which the next block starts, computed together with its own last sum. Absent: not chained. */
    carry_tensor next_m;
} carry_dit_rows;

/* Cross-attention over a few keys (dit_few.c). The values and the output projection are merged into one matrix `out`,
   which depends only on the text; it is applied to the attention weights of the keys (carry_key_weights). */
#define CARRY_DIT_FEW 48 /* maximum number of keys: above it, the merged product saves little */
typedef struct carry_dit_few {
    int64_t keys, stride; /* stride: columns of a head in `out`, a multiple of 8 */
    float last;           /* added to the last key's score */
    carry_tensor k, out;  /* of all blocks: k [blocks text_len, dim]; out [blocks, dim, heads stride], with memory for
                             CARRY_DIT_FEW keys */
} carry_dit_few;

typedef struct carry_dit_call carry_dit_call;
/* Returns the arguments of attention for a group, without its scratch memory. */
typedef carry_attention_args (*carry_dit_sees)(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                               int64_t group, carry_key_run run[CARRY_MAX_KEY_RUNS]);

struct carry_dit_call {
    carry_dit *dit;
    int64_t groups;
    const int64_t *row;  /* [groups + 1]: the first row of each group */
    carry_tensor e0;     /* [groups, 6 dim], f32: the part of modulation that depends on time; absent: rows->m is
                            already computed */
    carry_tensor table;  /* [rows, head/2, 2], f32: rotary positions */
    carry_tensor sums;   /* [2 rows], f32: for a mesh */
    const void *owner;   /* of the functions */
    carry_dit_sees self; /* self-attention */
    /* Gives the memory for the keys and values of a group's rows from row `at` on; returns the number of rows for which
       it is valid. The block writes them to this memory before the group attends, and after all earlier groups have
       attended, since a later group may evict frames that an earlier one needs. NULL: keys and values stay in rows->k
       and rows->v, and groups may attend in parallel. */
    int64_t (*place)(const carry_dit_call *call, int64_t block, int64_t group, int64_t at, carry_tensor *k,
                     carry_tensor *v);
    int64_t cross_groups;
    carry_dit_sees cross;
    carry_dit_few few;      /* keys 0: cross-attention by `cross` */
    carry_fp8_rows codes;   /* memory for activations in 8-bit floats; absent: products are not in 8-bit floats */
    unsigned char *scratch; /* of carry_dit_call_threads, scratch_bytes each */
    size_t scratch_bytes;
};

/* is_chained: the previous block has written h1 and m. */
carry_status carry_dit_block_forward(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                     bool is_chained);
/* Computes only the keys and values of the last block, if its other results are not needed. */
carry_status carry_dit_block_keys(const carry_dit_call *call, int64_t block, const carry_dit_rows *r, bool is_chained);

/* Computes the keys and values of the text for a block's cross-attention: ck and cv, and ck_in, which may be ck. */
carry_status carry_dit_text_keys(carry_dit *dit, int64_t block, carry_tensor text, const carry_dit_rows *r);

/* Computes `out` of a block from the values that carry_dit_text_keys computed. */
carry_status carry_dit_text_out(carry_dit *dit, int64_t block, const carry_dit_few *few, carry_tensor cv);
/* x2 += cross-attention of cq_in, by call->few. co is overwritten. */
carry_status carry_dit_attend_few(const carry_dit_call *call, int64_t block, const carry_dit_rows *r);

/* Memory of a block that keeps no activations: x and h [most, dim], wide [most, widest]. carry_dit_rows_in returns the
   views for `rows` rows of it. */
typedef struct carry_dit_room {
    carry_tensor x, h, wide;
} carry_dit_room;
void carry_dit_room_take(carry_dit_room *room, const carry_dit *dit, carry_arena *arena, carry_dtype dtype,
                         int64_t most);
carry_dit_rows carry_dit_rows_in(const carry_dit_room *room, const carry_dit *dit, int64_t rows);

/* Calls work for the indices 0 .. count-1. On the CPU, if call->place is NULL, index 0 runs first and the others then
   run in parallel on the context's threads: invalid arguments fail before other threads start. Otherwise the indices
   run one after the other. scratch: memory of the thread that runs the index. */
typedef carry_status (*carry_dit_work)(const carry_dit_call *call, const void *user, int64_t index, void *scratch);
carry_status carry_dit_each(const carry_dit_call *call, int64_t count, carry_dit_work work, const void *user);
int carry_dit_call_threads(const carry_dit *dit, bool side_by_side);

/* group_rows: the rows of a group. group_part: part `part` (shift, scale or gate) of a group's modulation. */
carry_tensor carry_dit_group_rows(const carry_dit_call *call, carry_tensor rows, int64_t group);
carry_tensor carry_dit_group_part(const carry_dit_call *call, carry_tensor modulation, int64_t group, int64_t part);
/* A view of rows as [rows, heads, head]; the row stride may be larger than the row. */
carry_tensor carry_dit_heads(const carry_dit *dit, carry_tensor rows, int64_t first, int64_t count);

#endif
