/* Compares results with a float64 reference. */
#ifndef CARRY_LAB_DEVIATION_H
#define CARRY_LAB_DEVIATION_H

#include "carry/tensor.h"
#include "bench/family/family.h"

/* Compares a packed tensor with the same number of doubles. */
carry_deviation carry_deviation_of(const char *name, const carry_tensor *result, const double *reference, double bound);
/* Fills a packed tensor with NaN, so that elements that a run does not write are noticed. */
void carry_poison(const carry_tensor *tensor);
/* The unit roundoff of a type: half a unit in the last place, relative. */
double carry_unit_roundoff(carry_dtype dtype);

#endif
