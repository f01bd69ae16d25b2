/* Predicates and sizes of tensors that many checks use. */
#ifndef CARRY_CORE_TENSOR_H
#define CARRY_CORE_TENSOR_H

#include <stdbool.h>

#include "carry/tensor.h"
#include "core/memory.h"

/* Writes the shape as "[2, 3, 4]" to text, for messages. */
#define CARRY_SHAPE_TEXT 160
const char *carry_shape_text(char text[CARRY_SHAPE_TEXT], int rank, const int64_t *shape);

int64_t carry_tensor_count(const carry_tensor *tensor); /* elements */

/* Returns element `index`, counted in memory from data, of an f32, bf16 or f16 tensor. */
double carry_tensor_at(const carry_tensor *tensor, int64_t index);

/* True for f32, bf16 and f16, the types of activations and weights. */
bool carry_dtype_is_real(carry_dtype dtype);

/* Takes a packed tensor from an arena over memory of `device`. */
carry_tensor carry_arena_tensor(carry_arena *arena, int device, carry_dtype dtype, int rank, const int64_t *shape);

/* True if the indices from `from` on are packed, the last one fastest. Indices of extent 1 may have any stride. */
bool carry_tensor_is_packed(const carry_tensor *tensor, int from);

/* True if the strides guarantee that no two elements overlap, so that each can be written once. The indices from `from`
   on must be packed. The others are taken in the order of their strides: each stride must be larger than the distance
   between the first and last element over all indices with smaller strides. */
bool carry_tensor_is_apart(const carry_tensor *tensor, int from);

/* Fails with a message that contains `name` unless the tensor has the given shape, a pointer, and the alignment of
   its type. */
carry_status carry_tensor_expect(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                                 const int64_t *shape);

#endif
