/* The matmul scan of one sequence at a given radix, for matmul.c and matmul_log.c. */
#ifndef CARRY_SCAN_MATMUL_H
#define CARRY_SCAN_MATMUL_H

#include "scan/element.h"

void carry_scan_matmul_solve(carry_scan_item *item, int64_t radix);
size_t carry_scan_matmul_bytes(const carry_scan_shape *shape, int64_t radix);

#endif
