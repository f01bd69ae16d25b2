/* One block of the video transformer, for streams, training and benches, on any device:

       m = modulation + e0(t) = shift1, scale1, gate1, shift2, scale2, gate2     (of each group)
       x += gate1 o(attention(rotary(norm(q(a))), keys, values)),  a = LN(x)(1 + scale1) + shift1
       x += o'(attention(norm(q'(b)), text keys, text values)),    b = LN3(x)
       x += gate2 down(gelu(up(c))),                               c = LN(x)(1 + scale2) + shift2

   Rows are the tokens of all groups: chunks of a stream, units of training, each with a t of its own. Products, norms
   and the FFN see them as one matrix; what differs between callers is what a group sees, which they are asked for. The
   block keeps what it makes where carry_dit_rows says: a stream lets most of that be the same memory, training keeps it
   for its backward pass. */
#ifndef CARRY_MODEL_DIT_BLOCK_H
#define CARRY_MODEL_DIT_BLOCK_H

#include "carry/attention.h"
#include "carry/nn.h"
#include "ops/video.h"
#include "core/tensor.h"
#include "model/dit/dit_parts.h"

#define CARRY_DIT_SHIFTS 6 /* rows of a block's modulation: shift, scale and gate, of attention and of the FFN */

/* [rows, dim] of the call's type unless said otherwise; q to o are [rows, this shard's heads]. */
typedef struct carry_dit_rows {
    carry_tensor x, h1, q_in, k_in, v, q, k, o, y; /* q and k may be q_in and k_in; y may be h1 and h3 */
    carry_tensor qkv;                              /* [rows, 3 width]: q_in, k_in and v are its columns; or absent */
    carry_tensor lse;                              /* [groups, heads, rows of one], f32; absent: not kept */
    carry_tensor x1, h3, cq_in, cq, co, clse;      /* x1, x2 and next may be x */
    carry_tensor x2, h2, up, wide, f, next;        /* up and wide [rows, ffn]; the same: GELU in place */
    carry_tensor ck_in, ck, cv;                    /* [text rows, dim] */
    carry_tensor m;                                /* [groups, 6 dim], f32 */
    /* Where blocks are chained (a stream on a GPU): the modulation of the next block. A block writes it
       there, and to h1 the norm that the next one starts with, computed together with its own last sum. Absent: not
       chained. */
    carry_tensor next_m;
} carry_dit_rows;

/* Cross-attention over a few keys: its sum over values and the product that follows are one map of the keys' weights
   (carry_key_weights), `out`, which is a function of the text alone. */
#define CARRY_DIT_FEW 48 /* keys at most: above, the product is not much smaller than it was */
typedef struct carry_dit_few {
    int64_t keys, stride; /* stride: columns of a head, a multiple of 8 */
    float last;           /* added to the last key's score */
    carry_tensor k,
        out; /* of all blocks: [blocks text_len, dim]; [blocks, dim, heads stride] and room for CARRY_DIT_FEW */
} carry_dit_few;

typedef struct carry_dit_call carry_dit_call;
/* The call of attention of a group, but for its scratch. */
typedef carry_attention_args (*carry_dit_sees)(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                               int64_t group, carry_key_run run[CARRY_MAX_KEY_RUNS]);

struct carry_dit_call {
    carry_dit *dit;
    int64_t groups;
    const int64_t *row;  /* [groups + 1]: where each begins */
    carry_tensor e0;     /* [groups, 6 dim], f32: the time's part of modulation; absent: rows->m is made already */
    carry_tensor table;  /* [rows, head/2, 2], f32: rotary positions */
    carry_tensor sums;   /* [2 rows], f32: for a mesh */
    const void *owner;   /* of the functions */
    carry_dit_sees self; /* self-attention */
    /* Where keys and values of a group's rows from `at` on are kept, for as many rows as it returns; they are put there
       before the group looks, and after the groups before it have looked: a later one may evict what an earlier one
       needs. NULL: they stay in rows->k and rows->v, and groups may look side by side. */
    int64_t (*place)(const carry_dit_call *call, int64_t block, int64_t group, int64_t at, carry_tensor *k,
                     carry_tensor *v);
    int64_t cross_groups;
    carry_dit_sees cross;
    carry_dit_few few;      /* keys 0: cross-attention by `cross` */
    unsigned char *scratch; /* of carry_dit_call_threads, scratch_bytes each */
    size_t scratch_bytes;
};

/* is_chained: h1 and m are as the block before left them. */
carry_status carry_dit_block_forward(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                     bool is_chained);
/* The keys and values of the last block, if nothing else of it is wanted. */
carry_status carry_dit_block_keys(const carry_dit_call *call, int64_t block, const carry_dit_rows *r, bool is_chained);

/* Keys and values of the text for a block's cross-attention: ck and cv, and ck_in, which may be ck. */
carry_status carry_dit_text_keys(carry_dit *dit, int64_t block, carry_tensor text, const carry_dit_rows *r);

/* out of a block, from the values that carry_dit_text_keys made. */
carry_status carry_dit_text_out(carry_dit *dit, int64_t block, const carry_dit_few *few, carry_tensor cv);
/* x2 += cross-attention of cq_in, by call->few. co is overwritten. */
carry_status carry_dit_attend_few(const carry_dit_call *call, int64_t block, const carry_dit_rows *r);

/* Memory of a block that keeps nothing: x and h [most, dim], wide [most, widest]; and the views of some rows of it. */
typedef struct carry_dit_room {
    carry_tensor x, h, wide;
} carry_dit_room;
void carry_dit_room_take(carry_dit_room *room, const carry_dit *dit, carry_arena *arena, carry_dtype dtype,
                         int64_t most);
carry_dit_rows carry_dit_rows_in(const carry_dit_room *room, const carry_dit *dit, int64_t rows);

/* Calls work for 0..count-1: on the CPU, without place, side by side on the context's threads. The first is done alone:
   what does not fit is refused there, where no other thread is at work. scratch: of the thread. */
typedef carry_status (*carry_dit_work)(const carry_dit_call *call, const void *user, int64_t index, void *scratch);
carry_status carry_dit_each(const carry_dit_call *call, int64_t count, carry_dit_work work, const void *user);
int carry_dit_call_threads(const carry_dit *dit, bool side_by_side);

/* The rows of a group; part i of a group's modulation. */
carry_tensor carry_dit_group_rows(const carry_dit_call *call, carry_tensor rows, int64_t group);
carry_tensor carry_dit_group_part(const carry_dit_call *call, carry_tensor modulation, int64_t group, int64_t part);
/* Rows as [rows, heads, head]; rows may be further apart than they are long. */
carry_tensor carry_dit_heads(const carry_dit *dit, carry_tensor rows, int64_t first, int64_t count);

#endif
