/* One chunk of one head: its rows in f32, its decays and its two triangles.

   G is the cumulative gate inside the chunk. Only differences of G are exponentiated, all of them <= 0. G is summed in
   double, and gates below -4096 count as -4096: e^-4096 is 0 as for a deeper gate or -inf, and the gates after it are
   not lost to rounding.

       fade[i]   = e^{G[i]}             what is left of the incoming state at token i
       left[i]   = e^{G[C]-G[i]}        what is left of token i at the chunk's end
       nA[i,j]   = -beta[i] e^{G[i]-G[j]} k[i].k[j]   j < i, else 0
       P[i,j]    = scale e^{G[i]-G[j]} q[i].k[j]      j <= i, else 0

   With a key gate, G has a value for each channel, and the power is inside the sum over channels.

   V' = (I + A)^-1 R, with A = -nA and R = beta (V - fade K S) (forward.c), is solved by blocks of 16: products with the
   rows above, then with the inverse of the 16 x 16 diagonal block. */
#ifndef CARRY_DELTA_CHUNK_H
#define CARRY_DELTA_CHUNK_H

#include "delta/plan.h"

#define CARRY_DELTA_BLOCK 16

/* q and k as given, in bf16, packed into panels for products by terms (terms.h). */
typedef struct carry_delta_panels {
    uint16_t *q, *k;               /* left operands: tokens by channels */
    uint16_t *q_across, *k_across; /* left operands: channels by tokens */
    uint16_t *k_columns;           /* right operand: channels by tokens */
} carry_delta_panels;

/* Rows of a chunk that the value heads of a group share. */
typedef struct carry_delta_rows {
    int64_t tokens;
    float *q, *k;           /* [C, K], after l2norm */
    float *q_norm, *k_norm; /* [C]: 1/sqrt(sum of squares + 1e-6), or 1 */
    float *k_across;        /* [K, C]: k transposed */
    float *kk, *qk;         /* [C, C], lower triangle with its diagonal, complete in blocks of 16 */
    bool with_q;            /* if false, q, qk and P of the heads are not computed */
    bool with_q_across;     /* panels.q_across is needed too */
    bool norms_suffice;     /* with products by terms, q and k are loaded only by carry_delta_rows_in_f32 */
    bool in_f32;            /* q and k are loaded in f32 */
    bool exact;             /* products go by terms, which use: */
    carry_delta_panels panels;
} carry_delta_rows;

/* Scratch arrays of one value head. by_key arrays are [C, K] with a key gate, else [C] (one number for each token). */
typedef struct carry_delta_head {
    float *g;           /* the gate */
    double *G;          /* its inclusive sums */
    float *fade, *left; /* by_key */
    float *end;         /* [K]: e^{G[C]} */
    float *beta;        /* [C] */
    float *nA, *P;      /* [C, C] */
    float *inverse;     /* [C, 16]: inverses of the diagonal blocks, one under the other */
    float *D;           /* [C, C]: decays e^{G[i]-G[j]}, for backward; not with a key gate */
    /* With a key gate: decays relative to the first token b of a block of 16, and rows times them. */
    float *before, *before_k;         /* [C, K]: e^{G[b]-G[j]}, and k[j] e^{G[b]-G[j]}, j < b */
    float *after, *after_k, *after_q; /* [16, K]: e^{G[i]-G[b]} for the block's tokens, and k[i] and q[i] times it */
} carry_delta_head;

/* `count` floats of an arena and five cache lines of padding: arrays whose sizes are powers of two would otherwise map
   to the same sets of a cache, and a load waits for an earlier store whose address has the same last 12 bits. */
static inline float *carry_delta_floats(carry_arena *arena, size_t count) {
    return (float *)carry_arena_take(arena, count + 5 * (CARRY_ALIGN / sizeof(float)), sizeof(float));
}

void carry_delta_rows_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_rows *rows);
void carry_delta_head_take(const carry_delta_plan *plan, carry_arena *arena, carry_delta_head *head);

/* A dot product in sixteen partial sums, so that additions do not wait for each other. */
static inline float carry_delta_dot(const float *a, const float *b, int64_t count) {
    float part[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        for (int j = 0; j < 16; j++) {
            part[j] += a[i + j] * b[i + j];
        }
    }
    float sum = 0.0f;
    for (; i < count; i++) {
        sum += a[i] * b[i];
    }
    for (int j = 0; j < 16; j++) {
        sum += part[j];
    }
    return sum;
}

/* Loads q (if rows->with_q) and k of one head for `tokens` tokens from index `first` of dimension T on. Computes kk and
   qk, unless there is a key gate. */
void carry_delta_rows_load(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                           int64_t head, int64_t tokens, carry_delta_rows *rows);
/* Loads q and k of these rows in f32 unless that is done already. */
void carry_delta_rows_in_f32(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                             int64_t head, carry_delta_rows *rows);
/* carry_delta_token_load loads one token without kk and qk. carry_delta_token_head_load loads its gate and beta,
   without triangles: it sets only head->g, head->end and head->beta. */
void carry_delta_token_load(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t token,
                            int64_t head, carry_delta_rows *rows);
void carry_delta_token_head_load(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch,
                                 int64_t token, int64_t value_head, carry_delta_head *head);
/* Loads gate and beta of one value head, and computes decays and triangles. */
void carry_delta_head_load(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                           int64_t value_head, const carry_delta_rows *rows, carry_delta_head *head);

/* gate.c. gate_load loads the gates of some tokens, gate_end computes head->end of one token, gate_sum computes G and
   the values that depend only on G (fade, left, end). */
void carry_delta_gate_load(const carry_delta_plan *plan, const carry_delta_inputs *in, int64_t batch, int64_t first,
                           int64_t value_head, int64_t tokens, float *g);
void carry_delta_gate_end(const carry_delta_plan *plan, carry_delta_head *head, const float *g);
void carry_delta_gate_sum(const carry_delta_plan *plan, carry_delta_head *head, int64_t tokens);
/* gate.c, with a key gate. key_triangles computes nA and P, key_factors the factors of the block of `size` tokens from
   `block` on, key_decays e^{G[i]-G[j]} for all channels. */
void carry_delta_key_triangles(const carry_delta_plan *plan, const carry_delta_rows *rows, carry_delta_head *head);
void carry_delta_key_factors(const carry_delta_plan *plan, const carry_delta_rows *rows, carry_delta_head *head,
                             int64_t block, int64_t size);
void carry_delta_key_decays(const carry_delta_plan *plan, const carry_delta_head *head, int64_t i, int64_t j,
                            float *to);

/* X <- (I + A)^-1 X, and X <- (I + A)^-T X. X is [C, columns]; beside is scratch for 16 rows. */
void carry_delta_solve(const carry_delta_plan *plan, const carry_delta_head *head, int64_t tokens, float *X,
                       int64_t columns, float *beside);
void carry_delta_solve_transposed(const carry_delta_plan *plan, const carry_delta_head *head, int64_t tokens, float *X,
                                  int64_t columns, float *beside);

/* to[i] = constant * factor[i] * by[i] * from[i] for the rows of a chunk. by is one number for each row, or [C, K] with
   a key gate. factor is one number for each row; NULL: 1. */
void carry_delta_scale_rows(const carry_delta_plan *plan, float *to, const float *from, const float *by,
                            const float *factor, float constant, int64_t tokens);

/* Converts rows of a [B, T, heads, size] tensor to f32, and back. */
void carry_delta_load(const carry_delta_plan *plan, float *to, const carry_tensor *from, int64_t batch, int64_t first,
                      int64_t head, int64_t tokens, int64_t offset, int64_t size);
void carry_delta_store(const carry_delta_plan *plan, const carry_tensor *to, const float *from, int64_t batch,
                       int64_t first, int64_t head, int64_t tokens, int64_t offset, int64_t size);
/* The address of a head's elements for one token. */
void *carry_delta_place(const carry_tensor *tensor, int64_t batch, int64_t token, int64_t head);
/* Reads one number for a token of a [B, T, HV] tensor. */
float carry_delta_scalar(const carry_tensor *from, int64_t batch, int64_t token, int64_t head);
void carry_delta_scalars(float *to, const carry_tensor *from, int64_t batch, int64_t first, int64_t head,
                         int64_t tokens); /* the same for several tokens */
void carry_delta_scalar_store(const carry_tensor *to, int64_t batch, int64_t token, int64_t head, float value);

#endif
