/* Criteria: comparisons of expressions over the measured figures.

       speedup(matmul4, blelloch, diagonal, t=128) >= 1.2
       error(cyclic) < 1e-5
       products(hillis_steele, t=1024) / products(cyclic, t=1024) >= 2/3 * log2(1024) - 1
       grows(speedup(cyclic, hillis_steele, n=32), t) > 1

   A function names one method (speedup: two) and filters: a size (t=128), a word of the problem (bf16, dense), a
   setting (device=cuda), a stage (stage=cpu). If several problems match, its value is the worst of them: the least
   speedup, use, gflops, gbytes, tokens_per_s, busy and overlap, the largest of every other function. All of them must
   have been measured. min(...) and max(...) around a function take the least or largest of the measured ones instead.
   While a problem is still to be measured, min and max are bounds on one side only: a verdict that its figure could
   reverse is "not measured". mean(...) is over all matching problems and needs all of them. The time of a wrong
   result (an error above its bound) counts as not measured, and so does a time whose samples spread beyond the limit
   of its stage. grows(..., t) is the smallest factor by which the figure grows from one t to the next larger t, with
   everything else equal. */
#ifndef CARRY_LAB_CRITERIA_H
#define CARRY_LAB_CRITERIA_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

#define CARRY_CRITERION_TEXT 256

/* The result of one method on one problem, or the reason why it was not measured. */
typedef struct carry_outcome {
    const char *problem, *stage;
    char method[24];
    char device[16];
    char reason[256]; /* "" when measured */
    bool pending;     /* no method of the problem was measured yet: it may be, elsewhere or later */
    bool planned;
    int repeats;
    int64_t products;
    double spread_limit; /* times with a larger spread count as not measured; 0: no limit */
    double median, spread, flops, bytes, workspace, tokens, share, error, error_absolute, bound;
    int ranks, cores;                         /* of a problem on several ranks, else 0 */
    double received, waited, exposed;         /* of a problem on several ranks, else NaN: see carry_counts */
    double perplexity, busy, cost;            /* of a training, else 0: see carry_counts */
    double price;                             /* price of an hour of its device; 0: not stated */
    double overlap, slower_stage;             /* of a stream, else NaN and 0: see carry_counts */
    double denoise, recompute, clean, decode; /* likewise, else 0 */
} carry_outcome;

typedef enum carry_verdict_kind { CARRY_MET, CARRY_NOT_MET, CARRY_NOT_MEASURED } carry_verdict_kind;
const char *carry_verdict_name(carry_verdict_kind kind);

typedef struct carry_verdict {
    carry_verdict_kind kind;
    double value, bound; /* the two sides */
    char reason[256];    /* why it was not measured */
} carry_verdict;

typedef struct carry_criterion carry_criterion;

/* Parses the text. An error message names the column. */
carry_status carry_criterion_parse(carry_ctx *ctx, carry_criterion **criterion, const char *text);
void carry_criterion_free(carry_criterion *criterion);

/* Checks that every function matches something: `outcomes` are the planned measurements, without figures. The error
   message names the unknown method, or the column of the function whose filters fit no problem. */
carry_status carry_criterion_check(carry_ctx *ctx, const carry_criterion *criterion, const carry_outcome *outcomes,
                                   int count);
carry_verdict carry_criterion_judge(const carry_criterion *criterion, const carry_outcome *outcomes, int count);

/* Name and meaning of a function, for help; NULL past the end. */
const char *carry_criterion_function(int index, const char **about);

#endif
