/* What a climb puts into the run store. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "lab/climb_internal.h"
#include "lab/sample.h"

carry_status climb_store_samples(carry_climb *climb, int64_t run, const char *method, const char *profile,
                                 const double *samples, int count, double share) {
    double seconds[CARRY_CLIMB_SAMPLES];
    double sorted[CARRY_CLIMB_SAMPLES];
    if (count < 1) {
        return CARRY_OK;
    }
    for (int i = 0; i < count; i++) {
        seconds[i] = sorted[i] = 1.0 / samples[i];
    }
    carry_summary summary = carry_summarise(sorted, count);
    carry_stored_result result = {.problem = profile,
                                  .method = method,
                                  .device = "",
                                  .reason = "",
                                  .median = summary.median,
                                  .spread = summary.spread,
                                  .flops = (double)NAN,
                                  .bytes = (double)NAN,
                                  .workspace = (double)NAN,
                                  .tokens = (double)NAN,
                                  .share = share,
                                  .error = (double)NAN,
                                  .error_absolute = (double)NAN,
                                  .bound = (double)NAN,
                                  .gemm_gflops = (double)NAN,
                                  .copy_gbytes_s = (double)NAN};
    return carry_store_result(climb->store, run, &result, seconds, count);
}

carry_status climb_store_failed(carry_climb *climb, int64_t run, carry_status status) {
    char why[512];
    (void)snprintf(why, sizeof why, "%s", carry_ctx_error(climb->ctx));
    (void)carry_store_end(climb->store, run, status == CARRY_EINTERRUPTED ? "interrupted" : "failed", NULL, why);
    return carry_fail(climb->ctx, status, "%s", why);
}
