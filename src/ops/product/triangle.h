/* Products with triangles in which zeros stay zeros. 0 * NaN is NaN, so in a plain product with a triangle stored as
   a square, a NaN or an infinity in one row of b would reach rows of c that do not depend on it. */
#ifndef CARRY_OPS_TRIANGLE_H
#define CARRY_OPS_TRIANGLE_H

#include "ops/kernels/kernels.h"

#define CARRY_TRIANGLE_ROWS 16     /* of c, at most */
#define CARRY_TRIANGLE_COLUMNS 512 /* of c, at most */

/* True if every number is finite. */
bool carry_all_finite(const float *numbers, int64_t count);

/* c = a b + base (count 1, b not transposed), where columns first..first+m-1 of a are a triangle: of these, row i
   uses rows first..first+i of b, or with `upper` first+i..first+m-1. For finite numbers the bits are those of
   kernels->product. b is the memory that product.b points to; it may be changed during the call. */
void carry_triangle_product(const carry_kernels *kernels, const carry_product *product, float *b, int64_t first,
                            bool upper);

#endif
