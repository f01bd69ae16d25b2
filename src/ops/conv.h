/* Shared by the convolution and its gradient: checks, borders of sequences, and rows of channels as f32. */
#ifndef CARRY_OPS_CONV_H
#define CARRY_OPS_CONV_H

#include "ops/nn.h"

/* Channels done together: their taps and rows stay in the first-level cache. */
#define CARRY_CONV_CHANNELS 256
#define CARRY_CONV_RING 32 /* a power of two, at least twice the largest width */

typedef struct carry_conv_problem {
    const carry_kernels *kernels;
    carry_tensor x, w, before;
    const int64_t *borders; /* cu_seqlens, or NULL */
    int64_t sequences;
    int64_t batch, tokens, channels, width;
    carry_activation activation;
} carry_conv_problem;

/* Takes the sizes from x and w, which carry_conv_expect checks; kernels is NULL. */
carry_conv_problem carry_conv_problem_of(carry_tensor x, carry_tensor w, carry_tensor before, carry_tensor cu_seqlens,
                                         carry_activation activation);
carry_status carry_conv_expect(carry_ctx *ctx, const carry_conv_problem *p, const carry_tensor *cu_seqlens);

/* Finds the first token of t's sequence, and the one after its last. *first_sequence: true for the first sequence,
   which continues from `before`; later ones start from zeros. */
void carry_conv_borders(const carry_conv_problem *p, int64_t t, int64_t *begin, int64_t *end, bool *first_sequence);

/* taps[i * CARRY_CONV_CHANNELS + c] = w[at + c][i], or if reversed w[at + c][width - 1 - i]. */
void carry_conv_taps(const carry_conv_problem *p, float *taps, int64_t at, int64_t count, bool reversed);

/* Rows of x as f32, one sequence after another: 16-bit rows are widened once and kept in a ring. */
typedef struct carry_conv_rows {
    int64_t kept; /* the last token in the ring */
    float ring[CARRY_CONV_RING * CARRY_CONV_CHANNELS];
    float zeros[CARRY_CONV_CHANNELS];
} carry_conv_rows;

void carry_conv_rows_start(carry_conv_rows *rows);
/* Sets `seen` to the `width` rows, of channels at..at+count-1, that token t sees. Tokens must be requested in
   ascending order. */
void carry_conv_rows_of(const carry_conv_problem *p, carry_conv_rows *rows, const float *seen[CARRY_CONV_WIDTHS],
                        int64_t b, int64_t t, int64_t at, int64_t count);

#endif
