/* Speeds of this machine, measured with the kernels of a context: the inputs of the cost models.

   Measuring takes a fraction of a second, once per context; scan/wisdom.c keeps the result in a file. */
#ifndef CARRY_OPS_RATES_H
#define CARRY_OPS_RATES_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

/* Splitting work over threads: each further thread adds this fraction of one thread's speed (threads are idle at the
   end of each level of a scan). */
#define CARRY_TIME_SPLIT 0.85

#define CARRY_RATE_SIZES 6  /* n = 4, 8, 16, 32, 64, 128 */
#define CARRY_RATE_WIDTHS 4 /* w = 1, 8, 32, 128 */
#define CARRY_RATE_STEPS 5  /* n*w = 4, 32, 256, 2048, 16384 */

typedef struct carry_rates_table {
    double product[CARRY_RATE_SIZES][CARRY_RATE_WIDTHS]; /* seconds of an n x n by n x w product, operands in cache */
    double step[CARRY_RATE_STEPS];                       /* seconds of a diagonal step of n*w elements, in cache */
    double apply_call;                                   /* seconds added when steps are single calls of the kernel */
    double fork;                                         /* seconds to give work to all threads and wait for it */
    double memory;         /* bytes per second, read plus written, beyond the caches, all threads */
    double memory_one;     /* the same, one thread alone */
    double cache_bytes;    /* total of the caches of all threads */
    double large_own;      /* flop/s of Carry's own product of 512 x 512 x 512, one thread */
    double large_bf16;     /* the same for bf16, by the processor's instructions; 0: not supported */
    double large_blas;     /* the same for OpenBLAS; 0: not built in */
    double large_integers; /* the same for bf16 with a weight in q8_0, by integers; 0: not supported or not measured */
    /* Size from which products use OpenBLAS, because it is faster by a tenth; 0: never. */
    double blas_from;
    bool remembered; /* read from a file, not measured by this process */
} carry_rates_table;

/* The table as a list of named numbers, for printing and for the wisdom file; NULL past the end. */
double *carry_rates_number(carry_rates_table *rates, int index, char name[32], const char **unit);

/* The rates of this context, measured at the first call, or again if asked. */
carry_status carry_rates_of(carry_ctx *ctx, const carry_rates_table **rates, bool again);
/* Sets rates, such as those from a file. Returns false if a number is not finite, is negative or above 1e18, or is 0
   where the table does not allow 0; or if memory runs out. */
bool carry_rates_put(carry_ctx *ctx, const carry_rates_table *rates);
bool carry_rates_known(const carry_ctx *ctx);

/* Bytes per second that this many busy threads move from and to memory. Inputs are assumed to be in memory, since
   the contents of the caches are not known when a plan is made. */
double carry_rates_bandwidth(const carry_rates_table *rates, double busy);

/* True if bf16 is faster when widened to f32 than with the processor's instructions for it. */
static inline bool carry_rates_bf16_slower(const carry_rates_table *rates) {
    return rates->large_bf16 > 0.0 && rates->large_bf16 < rates->large_own;
}

/* Seconds, by interpolation: of an n x n by n x width product; of one step of kernels->diagonal_scan; and of one item
   of kernels->diagonal_apply. */
double carry_rates_product(const carry_rates_table *rates, int64_t n, int64_t width);
double carry_rates_diagonal_step(const carry_rates_table *rates, int64_t elements);
double carry_rates_diagonal(const carry_rates_table *rates, int64_t n, int64_t width);

#endif
