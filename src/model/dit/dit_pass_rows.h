/* Internals of a training pass of the video transformer: its memory layout and its functions. */
#ifndef CARRY_MODEL_DIT_PASS_ROWS_H
#define CARRY_MODEL_DIT_PASS_ROWS_H

#include "model/dit/dit_block.h"
#include "model/dit/dit_pass.h"

/* Tensors of backward, in addition to the rows of blocks. They are [rows, dim] unless noted. */
typedef struct carry_dit_back {
    carry_tensor dx, dh, dy, dq, dk, dv, dwide;
    carry_tensor dck, dcv, dck_in, dtext;   /* [text rows, dim] */
    carry_tensor dm, de, de0, dsilu, dhead; /* f32: [units, 6, 1, 6, 1 and 2 dim] */
} carry_dit_back;

/* Inputs that are computed in host memory, f32. The CPU uses them there; for a GPU they are copied to the device. */
typedef struct carry_dit_inputs {
    carry_tensor patches, table, sinusoid, target, weight;
} carry_dit_inputs;

struct carry_dit_pass {
    carry_ctx *ctx;
    carry_dit *dit;
    carry_dit_pass_options options;
    const carry_dit_pass_args *args; /* of the call */
    int64_t units_of, units;         /* units of a video; units of all videos */
    int64_t row_tokens;              /* tokens of a frame */
    int64_t tokens;                  /* tokens of a unit */
    int64_t rows, text_rows;
    size_t memory;
    float *positions; /* carry_dit_positions */
    int64_t *row;     /* [units + 1] */
    carry_dit_rows *block;
    carry_dit_call call;
    carry_dit_inputs in, host;
    void *host_memory;            /* for a pass on a GPU */
    carry_tensor narrow, text_in; /* patches and text in the type of activations */
    carry_tensor text_wide;       /* the text on a GPU, f32 */
    carry_tensor text_0, text_1, text;
    carry_tensor time_0, time_1, e, e1, e0, shifts; /* [units, ...], f32; shifts: [units, 2 dim], for the head */
    carry_tensor head_in, out, wide_out, dout;      /* wide_out: out in f32 */
    carry_tensor losses, total;                     /* f64: [units], [1] */
    carry_dit_back back;
    void *whole; /* workspace of operators that work on all rows */
    size_t whole_bytes;
};

void carry_dit_pass_lay_out(carry_dit_pass *pass, carry_arena *arena);
void carry_dit_pass_lay_out_host(carry_dit_pass *pass, carry_arena *arena);
/* Returns the unit's index in [videos, chunks]; *noisy says whether it is the noisy or the clean copy. */
int64_t carry_dit_pass_place(const carry_dit_pass *pass, int64_t unit, bool *noisy);
carry_attention_args carry_dit_pass_self(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                         int64_t unit, carry_key_run *run);
carry_attention_args carry_dit_pass_cross(const carry_dit_call *call, int64_t block, const carry_dit_rows *r,
                                          int64_t unit, carry_key_run *run);

carry_status carry_dit_pass_backward(carry_dit_pass *pass);

#endif
