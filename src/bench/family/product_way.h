/* A batch of products, and the method by which a bench computes it: on the CPU a set of kernels, OpenBLAS or the
   processor's bf16 instructions; on a GPU one of the methods in its table. */
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
    const carry_kernels *kernels;    /* for 16-bit operands on the CPU: */
    const carry_bf16 *bf16;          /* NULL: widened to f32 */
    const char *way;                 /* on a GPU */
    char name[24];
    char about[384];
} carry_product_way;

/* The name of every method that this build has; NULL past the end. */
const char *carry_product_way_name(int index);
/* wanted NULL: chooses as a linear layer of this type does. CARRY_EUNSUPPORTED if the method does not apply. */
carry_status carry_product_way_choose(carry_product_way *it, const char *wanted);
/* Computes the batch. a, b and c have the layout of `shape` and are on the device. */
carry_status carry_product_way_run(const carry_product_way *it, const void *a, const void *b, void *c);

#endif
