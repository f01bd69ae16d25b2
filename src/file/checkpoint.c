/* Finds the newest complete step of a run, and the folder of a model. */
#include "file/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/context.h"
#include "file/gguf.h"
#include "file/weights.h"

static bool has_file(carry_ctx *ctx, const char *folder, const char *name) {
    char path[CARRY_FILE_PATH];
    struct stat about;
    return carry_file_in(ctx, path, folder, name) == CARRY_OK && stat(path, &about) == 0;
}

carry_status carry_checkpoint_newest(carry_ctx *ctx, char folder[CARRY_FILE_PATH], const char *run, int64_t *count,
                                     const carry_checkpoint_search *search) {
    int64_t *steps;
    char first[512] = "";
    carry_status of_first = CARRY_ENOTFOUND;
    carry_status status = CARRY_ENOTFOUND;
    CARRY_TRY(carry_checkpoint_steps(ctx, &steps, count, run));
    for (int64_t i = 0; i < *count && status != CARRY_OK; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "step-%" PRId64, steps[i]);
        status = carry_file_in(ctx, folder, run, name);
        status = status == CARRY_OK ? search->check(search->user, ctx, folder) : status;
        if (status != CARRY_OK) {
            char why[512];
            (void)snprintf(why, sizeof why, "%s", carry_ctx_error(ctx));
            if (i == 0) {
                of_first = status;
                (void)snprintf(first, sizeof first, "%s", why);
            }
            search->skip(search->user, ctx, steps[i], why);
        }
    }
    free(steps);
    return status == CARRY_OK ? CARRY_OK : carry_fail(ctx, of_first, "%s", first);
}

/* Checks a step without train.json, copied or written by another program: its weights must open. */
static carry_status check_model(void *user, carry_ctx *ctx, const char *folder) {
    carry_weights weights;
    (void)user;
    if (has_file(ctx, folder, "adapter_config.json")) {
        return carry_checkpoint_verify_model(ctx, folder);
    }
    if (!has_file(ctx, folder, "config.json")) {
        return carry_fail(ctx, CARRY_ENOTFOUND, "%s has no config.json", folder);
    }
    CARRY_TRY(carry_checkpoint_verify_model(ctx, folder));
    CARRY_TRY(carry_weights_open(ctx, &weights, folder));
    carry_weights_close(&weights);
    return CARRY_OK;
}

static void warn_of(void *user, carry_ctx *ctx, int64_t step, const char *why) {
    (void)user;
    carry_log(ctx, CARRY_LOG_WARNING, "step-%" PRId64 " is skipped: %s", step, why);
}

carry_status carry_checkpoint_resolve(carry_ctx *ctx, char folder[CARRY_FILE_PATH], const char *path) {
    static const carry_checkpoint_search search = {.check = check_model, .skip = warn_of};
    struct stat about;
    int64_t count = 0;
    if (stat(path, &about) != 0) {
        const int error = errno;
        return error == ENOENT
                   ? carry_fail(ctx, CARRY_ENOTFOUND,
                                "there is no folder %s: a model is a folder with config.json and weights", path)
                   : carry_fail(ctx, CARRY_EIO, "the model %s cannot be read: %s", path, strerror(error));
    }
    if (carry_gguf_is_file(path)) {
        return snprintf(folder, CARRY_FILE_PATH, "%s", path) < CARRY_FILE_PATH
                   ? CARRY_OK
                   : carry_fail(ctx, CARRY_ESIZE, "the path %.60s... is too long", path);
    }
    if (!S_ISDIR(about.st_mode)) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%s is not a folder: a model is a folder with config.json and weights, or a "
                          ".gguf file",
                          path);
    }
    if (has_file(ctx, path, "config.json") || has_file(ctx, path, "adapter_config.json")) {
        if (snprintf(folder, CARRY_FILE_PATH, "%s", path) >= CARRY_FILE_PATH) {
            return carry_fail(ctx, CARRY_ESIZE, "the path %.60s... is too long", path);
        }
        return carry_checkpoint_verify_model(ctx, path);
    }
    carry_status status = carry_checkpoint_newest(ctx, folder, path, &count, &search);
    if (status != CARRY_OK && count > 0) {
        char first[512];
        (void)snprintf(first, sizeof first, "%s", carry_ctx_error(ctx));
        return carry_fail(ctx, status, "%s holds no complete step; the newest: %s", path, first);
    }
    return status == CARRY_OK || count > 0
               ? status
               : carry_fail(ctx, status,
                            "%s holds no model: neither a config.json nor folders of a training, named step-N", path);
}
