/* Measured ceilings of a device: its fastest large product, and a copy. The shares that a bench prints and the MFU of
   training are relative to these. Every implementation of a product is tried: none can push a share beyond 100 %. */
#ifndef CARRY_OPS_CEILING_H
#define CARRY_OPS_CEILING_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/tensor.h"

/* CARRY_CEILINGS=rough: ceilings and rates are measured with copies of 16 MiB and products of 256 x 256 only. Tests,
   which start hundreds of programs that measure, would otherwise spend most of their time on that. Such rates are not
   kept in a wisdom file. */
bool carry_ceilings_are_rough(void);

/* Bytes that are copied to measure bandwidth. */
size_t carry_copy_bytes(size_t usual);

/* Flop/s of the best product of `type` with sums in f32: on the CPU on all threads of the context, by its kernels, by
   OpenBLAS and by what linear layers take in f32 and in that type, in about a tenth of a second; on a GPU by every way
   of its operators (cuBLASLt among them), once per context. */
carry_status carry_ceiling_product(carry_ctx *ctx, int device, carry_dtype type, double *flops_s);

/* Bytes a second, read plus written, of a copy far beyond the caches; on the CPU on all threads. ranks: processes or
   threads of this machine that measure at the same time, which divide the memory that is copied. */
carry_status carry_ceiling_copy(carry_ctx *ctx, int device, int ranks, double *bytes_s);

/* The CPU's product and copy, kept to be measured again and again beside other work, in turns with it. */
typedef struct carry_yardstick carry_yardstick;

/* The product is the fastest way and side that this context measured last for the type (carry_ceiling_product). */
carry_status carry_yardstick_new(carry_ctx *ctx, carry_yardstick **made, carry_dtype type);
void carry_yardstick_free(carry_yardstick *yardstick);

/* Flop/s, or bytes/s of copies, by a clock: the mean over about `seconds` of that clock, at least one product or
   copy. */
carry_status carry_yardstick_measure(carry_yardstick *yardstick, bool copies, double (*clock)(void), double seconds,
                                     double *rate);

#endif
