/* The key of a cuBLASLt plan: all properties of a product that the plan depends on. */
#ifndef CARRY_OPS_BLASLT_KEY_CUH
#define CARRY_OPS_BLASLT_KEY_CUH

#include <stdint.h>
#include <string.h>

#include "ops/device.h"

/* No algorithm requires an alignment above 256. */
static uint32_t alignment(const void *pointer) {
    uint32_t of = 256;
    while ((uintptr_t)pointer % of != 0) {
        of /= 2;
    }
    return of;
}

/* The smaller alignment of c and of its base. */
static uint32_t alignment_of_c(const carry_device_product *p) {
    const uint32_t of = alignment(p->c), base = p->base != NULL ? alignment(p->base) : of;
    return base < of ? base : of;
}

/* Two products with the same key have the same plan. Fields are copied one by one into zeroed memory, since padding
   is compared too. */
static carry_device_product key_of(const carry_device_product *p, bool has_workspace) {
    carry_device_product key;
    memset(&key, 0, sizeof key);
    key.m = p->m;
    key.n = p->n;
    key.k = p->k;
    key.count = p->count;
    key.a = (const void *)(uintptr_t)alignment(p->a);
    key.b = (const void *)(uintptr_t)alignment(p->b);
    key.c = (void *)(uintptr_t)alignment_of_c(p);
    key.a_row = p->a_row;
    key.b_row = p->b_row;
    key.c_row = p->c_row;
    key.a_next = p->a_next;
    key.b_next = p->b_next;
    key.c_next = p->c_next;
    key.type = p->type;
    key.c_type = p->c_type;
    key.a_transposed = p->a_transposed;
    key.b_transposed = p->b_transposed;
    key.accumulate = p->accumulate;
    key.ordinal = has_workspace ? p->ordinal : -1 - p->ordinal;
    key.bias = p->bias != NULL ? (const void *)(uintptr_t)alignment(p->bias) : NULL;
    key.gelu = p->gelu;
    key.b_is_square = p->b_is_square;
    key.one_scale = p->one_scale;
    key.row_scales = p->row_scales;
    key.a_is_e5m2 = p->a_is_e5m2;
    key.b_is_e5m2 = p->b_is_e5m2;
    key.a_scales = p->a_scales != NULL ? (const float *)(uintptr_t)1 : NULL;
    return key;
}

#endif
