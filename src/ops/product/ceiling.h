/* Measured ceilings of a device: its fastest large product, and a copy. The shares that a bench prints and the MFU
   of training are relative to these. Every implementation of a product is tried, so that none can exceed 100 %. */
#ifndef CARRY_OPS_CEILING_H
#define CARRY_OPS_CEILING_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/tensor.h"

/* CARRY_CEILINGS=rough: on the CPU, ceilings and rates are measured with copies of 16 MiB, and the ceiling of products
   only with 256 x 256. Tests, which start hundreds of programs that measure, would otherwise spend most of their time
   on that. Such rates are not kept in a wisdom file. */
bool carry_ceilings_are_rough(void);

/* Bytes that are copied to measure bandwidth. */
size_t carry_copy_bytes(size_t usual);

/* Flop/s of the fastest product of `type` with sums in f32. On the CPU, on all threads of the context: its kernels,
   OpenBLAS, and the products of linear layers in f32 and in that type, in a fraction of a second. On a GPU: every
   implementation of its operators (cuBLASLt among them), once per context; 16-bit types are measured with bf16. */
carry_status carry_ceiling_product(carry_ctx *ctx, int device, carry_dtype type, double *flops_s);

/* Bytes per second, read plus written, of a copy far larger than the caches; on the CPU on all threads. ranks: the
   number of processes or threads of this machine that measure at the same time; they divide the memory that is
   copied. */
carry_status carry_ceiling_copy(carry_ctx *ctx, int device, int ranks, double *bytes_s);

/* The CPU's product and copy, kept so that they can be measured repeatedly in turns with other work. */
typedef struct carry_yardstick carry_yardstick;

/* Uses the fastest implementation and size that this context measured last for the type (carry_ceiling_product), and
   measures them first if it has not. */
carry_status carry_yardstick_new(carry_ctx *ctx, carry_yardstick **made, carry_dtype type);
void carry_yardstick_free(carry_yardstick *yardstick);

/* Flop/s, or bytes per second of copies, by the given clock: the mean over about `seconds` of that clock, at least
   one product or copy. */
carry_status carry_yardstick_measure(carry_yardstick *yardstick, bool copies, double (*clock)(void), double seconds,
                                     double *rate);

#endif
