/* Wisdom: rates and plans that were measured on this machine, kept in a small text file.

       carry-wisdom 1
       machine Neoverse-V1, 2 cores, carry 0.1.0
       rate 2 neon fork 1.1e-06                                 threads, kernels, name, value
       plan 2 neon scan:dense:f32:b1:t1024:n32:w1 sequential 5.4e-05   threads, kernels, problem, algorithm, seconds
       plan 2 neon scan:dense:f32:b1:t8192:n8:w1 chunkwise,chunk=512,threads=1 2e-04   with its chunk and threads
       end 5f3a9c10                                             CRC-32C of everything before this line

   A file from another machine or version, or a damaged one, is ignored with a warning, and moved to FILE.old when
   something is measured and written. A file that cannot be read or written at all is left alone, with a warning, and
   measurements are kept in memory. Processes that write at the same time wait for each other (FILE.lock), and each
   merges its plans with those in the file. */
#ifndef CARRY_SCAN_WISDOM_H
#define CARRY_SCAN_WISDOM_H

#include "ops/product/rates.h"
#include "scan/plan.h"

#define CARRY_WISDOM_PLANS 4096
#define CARRY_WISDOM_RATES 16

typedef struct carry_wisdom_plan {
    int threads;
    char kernels[16];
    char key[CARRY_SCAN_KEY];
    char algorithm[24];
    int64_t chunk; /* 0: the algorithm chooses */
    int used;      /* threads of the context that the plan uses; 0: all */
    double seconds;
} carry_wisdom_plan;

typedef struct carry_wisdom {
    char machine[192];
    bool is_unusable; /* the file cannot be read */
    int plans, rates;
    carry_wisdom_plan plan[CARRY_WISDOM_PLANS];
    struct {
        int threads;
        char kernels[16];
        carry_rates_table table;
    } rate[CARRY_WISDOM_RATES];
} carry_wisdom;

/* Reads a file's text into an empty wisdom whose machine is set. CARRY_EFORMAT: damaged (the message has the line).
   CARRY_EUNSUPPORTED: from another machine or version. In both cases the wisdom is empty afterwards. */
carry_status carry_wisdom_parse(carry_ctx *ctx, carry_wisdom *wisdom, const char *text, size_t length);
/* Returns the file's text in *text; the caller frees it. */
carry_status carry_wisdom_print(carry_ctx *ctx, const carry_wisdom *wisdom, char **text, size_t *length);

/* The entry for these threads and kernels, created if `make` is set. NULL: not found, or the table is full. */
carry_rates_table *carry_wisdom_rates_for(carry_wisdom *wisdom, int threads, const char *kernels, bool make);

/* The rates of this context, from wisdom, or measured and then remembered. */
carry_status carry_wisdom_rates(carry_ctx *ctx, const carry_rates_table **rates, bool again);
/* Reads the file if that was not done yet. A file that cannot be read only produces a warning. */
carry_status carry_wisdom_ready(carry_ctx *ctx);
/* The remembered plan, or NULL. */
const carry_wisdom_plan *carry_wisdom_find(carry_ctx *ctx, const char *key);
/* Remembers a measured plan, and writes the file if the context has one that could be read. CARRY_EIO: the file cannot
   be written, or no longer be read, and only this context has the plan. */
carry_status carry_wisdom_remember(carry_ctx *ctx, const char *key, const char *algorithm, double seconds);
/* The same with a chunk (0: the algorithm's choice) and a number of threads (0: all), as carry climb tune finds
   them. */
carry_status carry_wisdom_remember_tuned(carry_ctx *ctx, const char *key, const char *algorithm, int64_t chunk,
                                         int used, double seconds);
/* For callers that can do without the file: turns CARRY_EIO of the functions above into a warning. */
carry_status carry_wisdom_excuse(carry_ctx *ctx, carry_status status);

#endif
