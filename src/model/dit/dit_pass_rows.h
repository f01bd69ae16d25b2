/* The inside of a training pass of the video transformer: what lies where, and who works on it. */
#ifndef CARRY_MODEL_DIT_PASS_ROWS_H
#define CARRY_MODEL_DIT_PASS_ROWS_H

#include "carry/attention.h"
#include "core/memory.h"
#include "model/dit/dit_pass.h"

#define CARRY_DIT_SHIFTS 6 /* rows of a block's modulation: shift, scale and gate, of attention and of the FFN */

/* What forward keeps of a block. [rows, dim] unless said otherwise. */
typedef struct carry_dit_rows {
    carry_tensor x, h1, q_in, k_in, v, q, k, o, y, lse; /* lse [units, heads, tokens] */
    carry_tensor x1, h3, cq_in, cq, co, clse;
    carry_tensor x2, h2, up, wide, f; /* up and wide [rows, ffn] */
    carry_tensor ck_in, ck, cv;       /* [text rows, dim] */
    carry_tensor m;                   /* [units, 6 dim]: shift1, scale1, gate1, shift2, scale2, gate2 */
} carry_dit_rows;

/* What backward needs beside. */
typedef struct carry_dit_back {
    carry_tensor dx, dh, dy, dq, dk, dv, dwide;
    carry_tensor dck, dcv, dck_in; /* [text rows, dim] */
    carry_tensor dtext, dm, de, de0, dsilu;
    carry_tensor dhead; /* [units, 2 dim] */
} carry_dit_back;

struct carry_dit_pass {
    carry_ctx *ctx;
    carry_dit *dit;
    carry_dit_pass_options options;
    int64_t units_of, units; /* of a video, of all */
    int64_t row_tokens;      /* of a frame */
    int64_t tokens;          /* of a unit */
    int64_t rows, text_rows;
    int64_t head; /* of attention: dim / heads */
    size_t memory;
    float *positions; /* carry_dit_positions */
    carry_dit_rows *block;
    carry_tensor last; /* what leaves the last block */
    carry_tensor patches, table, text_0, text_1, text;
    carry_tensor sinusoid, time_0, time_1, e, e1, e0, shifts; /* [units, ...]; shifts [units, 2 dim] of the head */
    carry_tensor head_in, out, dout;
    double *losses; /* [units] */
    carry_dit_back back;
    unsigned char *scratch; /* of threads, scratch_bytes each, for operators that work on one unit */
    size_t scratch_bytes;
    void *whole; /* for operators that work on all rows */
    size_t whole_bytes;
};

carry_tensor carry_dit_pass_w(const carry_dit_pass *pass, int64_t block, carry_dit_slot slot);
carry_tensor carry_dit_pass_dw(const carry_dit_pass *pass, int64_t block, carry_dit_slot slot);
carry_tensor carry_dit_pass_outer(const carry_dit_pass *pass, carry_dit_outer slot);
carry_tensor carry_dit_pass_douter(const carry_dit_pass *pass, carry_dit_outer slot);

/* The rows of a unit; part i of a unit's row of modulation. */
carry_tensor carry_dit_pass_unit(const carry_dit_pass *pass, carry_tensor rows, int64_t unit);
carry_tensor carry_dit_pass_part(const carry_dit_pass *pass, carry_tensor modulation, int64_t unit, int64_t part);

/* Calls work for 0..count-1, side by side on the context's threads. The first is done alone: what does not fit is
   refused there, where no other thread is at work. scratch: of the thread, scratch_bytes. */
typedef carry_status (*carry_dit_work)(const carry_dit_pass *pass, const void *user, int64_t index, void *scratch);
carry_status carry_dit_pass_each(carry_dit_pass *pass, int64_t count, carry_dit_work work, const void *user);
carry_status carry_dit_pass_units(carry_dit_pass *pass, carry_dit_work work, const void *user); /* for every unit */

/* The calls of attention of a unit, but for scratch. runs: memory for two. */
carry_attention_args carry_dit_pass_self(const carry_dit_pass *pass, const carry_dit_rows *r, int64_t unit,
                                         carry_key_run runs[2]);
carry_attention_args carry_dit_pass_cross(const carry_dit_pass *pass, const carry_dit_rows *r,
                                          const carry_dit_pass_args *args, int64_t unit, carry_key_run *run);

/* y = x W^T + b, for all rows. */
carry_status carry_dit_pass_linear(const carry_dit_pass *pass, carry_tensor y, carry_tensor x, carry_tensor W,
                                   carry_tensor b);

void carry_dit_pass_lay_out(carry_dit_pass *pass, carry_arena *arena);
/* The chunk of the video that a unit is; *noisy: which of the two. */
int64_t carry_dit_pass_chunk(const carry_dit_pass *pass, int64_t unit, bool *noisy);
/* The same as a place of [videos, chunks]. */
int64_t carry_dit_pass_place(const carry_dit_pass *pass, int64_t unit, bool *noisy);

carry_status carry_dit_pass_block(carry_dit_pass *pass, const carry_dit_pass_args *args, int64_t block);
carry_status carry_dit_pass_backward(carry_dit_pass *pass, const carry_dit_pass_args *args);

#endif
