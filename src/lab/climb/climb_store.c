/* Writes the results of a climb into the run store. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "lab/climb/climb_internal.h"
#include "bench/sample.h"

#define PATCH_BYTES ((size_t)16 << 20)
#define TRACE_BYTES ((size_t)64 << 20)

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

carry_status climb_store_patch(carry_climb *climb, int64_t run, const char *base, const char *tree) {
    char *patch;
    climb_git_call call = {.folder = climb->root, .words = {"diff", "--no-ext-diff", "--binary", base, tree}};
    CARRY_TRY(climb_git(climb, &patch, &call));
    size_t length = strlen(patch);
    carry_status status = CARRY_OK;
    if (length > 0 && length < PATCH_BYTES) {
        patch[length] = '\n'; /* restores what climb_git removed */
        status = carry_store_artefact(climb->store, run, "change.patch", patch, length + 1);
    }
    free(patch);
    return status;
}

carry_status climb_store_trace(carry_climb *climb, int64_t run, const char *folder, char trace[512]) {
    char path[CLIMB_PATH + 520];
    char place[512];
    char *bytes;
    size_t length;
    const char *slash = strrchr(trace, '/');
    const char *name = slash != NULL ? slash + 1 : trace;
    bool whole = trace[0] == '/';
    if (*name == '\0') {
        return CARRY_OK;
    }
    (void)snprintf(path, sizeof path, "%s%s%s", whole ? "" : folder, whole ? "" : "/", trace);
    if (carry_file_read(climb->ctx, &bytes, &length, path, TRACE_BYTES) != CARRY_OK) {
        return CARRY_OK; /* the command may have printed a path that is not accessible here */
    }
    carry_status status = carry_store_artefact(climb->store, run, name, bytes, length);
    free(bytes);
    (void)snprintf(place, sizeof place, "%.200s in run %lld", name, (long long)run);
    (void)snprintf(trace, 512, "%s", place);
    return status;
}
