/* Operators on pools of states: rows of fixed size in slots, keys and values in pages.

   A sequence has one slot, and a list of pages of CARRY_POOL_PAGE tokens each: token t is row
   pages[t / CARRY_POOL_PAGE] * CARRY_POOL_PAGE + t % CARRY_POOL_PAGE of the pool. Lists of slots, pages, rows and
   positions are on the tensors' device, and the caller has checked them; those of carry_conv_pieces are in host memory,
   and it checks them. Tensors are on one device. */
#ifndef CARRY_OPS_POOL_H
#define CARRY_OPS_POOL_H

#include "carry/nn.h"

#define CARRY_POOL_PAGE 64

#ifdef __cplusplus
extern "C" {
#endif

/* carry_conv for one token of each of B sequences, for several inputs. The last W - 1 inputs of a sequence are row
   from[b] of `tails`; shifted by one token, they are stored in row slots[b]. */
#define CARRY_CONV_STEP_MAPS 3
typedef struct carry_conv_step_map {
    carry_tensor y, x;  /* [B, channels]; on a GPU the row stride of x may be larger than a row */
    carry_tensor w;     /* [channels, W] or [channels, 1, W] */
    carry_tensor tails; /* [slots, W - 1, channels], f32 */
    carry_activation activation;
} carry_conv_step_map;
typedef struct carry_conv_step_args {
    carry_conv_step_map map[CARRY_CONV_STEP_MAPS];
    int maps;             /* number of maps, which share type, B and W */
    const int32_t *slots; /* [B], no slot twice */
    const int32_t *from;  /* [B], disjoint from `slots`; NULL: the same as slots, in place */
} carry_conv_step_args;
carry_status carry_conv_step(carry_ctx *ctx, const carry_conv_step_args *args);

/* carry_conv for pieces of several sequences, with several maps. Piece i has rows starts[i] to starts[i + 1] - 1 of x
   and y. tails[slots[i]] has the W - 1 rows of x before the piece, and is replaced by the last W - 1 rows of x at the
   end of the piece. */
typedef struct carry_conv_pieces_args {
    carry_conv_step_map map[CARRY_CONV_STEP_MAPS]; /* x and y: [starts[pieces], channels] or more rows */
    int maps;                                      /* number of maps, which share type, rows and W */
    int64_t pieces;
    const int64_t *starts; /* [pieces + 1], ascending, in host memory */
    const int32_t *slots;  /* [pieces], no slot twice, in host memory */
} carry_conv_pieces_args;
carry_status carry_conv_pieces(carry_ctx *ctx, const carry_conv_pieces_args *args);
/* The same by a call of carry_conv for each map of each piece. */
carry_status carry_conv_each_piece(carry_ctx *ctx, const carry_conv_pieces_args *args);
/* Checks a map of either call; `first` is the first map. */
carry_status carry_conv_expect_map(carry_ctx *ctx, const carry_conv_step_map *map, const carry_conv_step_map *first);

/* pool[to[i]] = pool[from[i]] for i < count: pool [R, n]. `to` has no row twice, and no row is in both lists. */
carry_status carry_copy_slots(carry_ctx *ctx, carry_tensor pool, const int32_t *to, const int32_t *from, int64_t count);

/* carry_take_slots: to[i] = pool[slots[i]]. carry_put_slots: pool[slots[i]] = from[i], with no slot twice. pool [R, n],
   to and from [B, n], of one type; or a pool in bf16 with rows in f32, which are rounded to the nearest, ties to even.
   */
carry_status carry_take_slots(carry_ctx *ctx, carry_tensor to, carry_tensor pool, const int32_t *slots);
carry_status carry_put_slots(carry_ctx *ctx, carry_tensor pool, carry_tensor from, const int32_t *slots);

/* to[rows[i]] = from[i]: to [R, n], from [T, n], of one type, or on the CPU of any two types. `rows` has no row
   twice. */
carry_status carry_put_rows(carry_ctx *ctx, carry_tensor to, carry_tensor from, const int64_t *rows);

/* Copies the first S tokens of a sequence from the pool [R, n] to `to` [S, n]. */
carry_status carry_take_pages(carry_ctx *ctx, carry_tensor to, carry_tensor from, const int32_t *pages);

/* The same for a pool of heads in 8 bits (ops/f8.h): numbers [R, H, D], 8-bit floats; scales [R, H], bytes. from and to
   [T, H, D], in f32, bf16 or f16. */
typedef struct carry_f8_pool {
    carry_tensor numbers, scales;
} carry_f8_pool;
carry_status carry_put_rows_f8(carry_ctx *ctx, carry_f8_pool to, carry_tensor from, const int64_t *rows);
carry_status carry_take_pages_f8(carry_ctx *ctx, carry_tensor to, carry_f8_pool from, const int32_t *pages);

/* table[t, i] = cos and sin of positions[t] * rates[i], the angle rounded to f32: table [T, half, 2], f32. */
carry_status carry_rotary_turns(carry_ctx *ctx, carry_tensor table, const int64_t *positions, const float *rates);

#ifdef __cplusplus
}
#endif
#endif
