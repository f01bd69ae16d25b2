/* A batch of products, and the way in which a bench computes it: a set of kernels, OpenBLAS or the processor's
   instructions for bf16 on the CPU, one of the ways of a GPU's table there. */
#ifndef CARRY_LAB_PRODUCT_WAY_H
#define CARRY_LAB_PRODUCT_WAY_H

#include "carry/device.h"
#include "ops/kernels/kernels.h"
#include "ops/product/bf16.h"
#include "ops/product/matmul.h"

typedef struct carry_product_way {
    carry_ctx *ctx;
    carry_product shape; /* without data */
    int device;
    carry_dtype dtype;               /* of a and b; c is f32 */
    carry_product_function function; /* on the CPU */
    const carry_kernels *kernels;    /* of 16 bits on the CPU: */
    const carry_bf16 *bf16;          /* NULL: widened to f32 */
    const char *way;                 /* on a GPU */
    char name[24];
    char about[384];
} carry_product_way;

/* Every way that this build knows; NULL past the end. */
const char *carry_product_way_name(int index);
/* NULL: as a linear layer of this type chooses. CARRY_EUNSUPPORTED where the way does not apply. */
carry_status carry_product_way_choose(carry_product_way *it, const char *wanted);
/* a, b and c as shape says, on the device. */
carry_status carry_product_way_run(const carry_product_way *it, const void *a, const void *b, void *c);

#endif
