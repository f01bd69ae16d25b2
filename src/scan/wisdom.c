/* Reading, keeping and writing wisdom. */
#include "scan/wisdom.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/file.h"
#include "ops/product/ceiling.h"

#define FILE_LIMIT ((size_t)1 << 20)
#define LOCK_SECONDS 10.0

static void describe_machine(carry_ctx *ctx, char machine[192]) {
    carry_device_properties cpu = {CARRY_INIT(carry_device_properties)};
    if (carry_device_properties_of(ctx, &cpu, 0) != CARRY_OK) {
        cpu = (carry_device_properties){CARRY_INIT(carry_device_properties), .name = "unknown"};
    }
    (void)snprintf(machine, 192, "%s, %ld cores, carry %s", cpu.name, sysconf(_SC_NPROCESSORS_CONF), carry_version());
}

/* Reads the file into an empty wisdom. A missing file counts as empty. A damaged file, or one from another machine or
   version, sets *foreign; it is reported (if warn) and ignored. A file that cannot be read, is not a regular file or is
   too large is an error. */
static carry_status load(carry_ctx *ctx, carry_wisdom *wisdom, bool warn, bool *foreign) {
    char *text;
    size_t length;
    *foreign = false;
    carry_status status = carry_file_read(ctx, &text, &length, ctx->wisdom, FILE_LIMIT);
    if (status == CARRY_ENOTFOUND) {
        return CARRY_OK;
    }
    CARRY_TRY(status);
    status = carry_wisdom_parse(ctx, wisdom, text, length);
    free(text);
    if (status != CARRY_OK) {
        *foreign = true;
        if (warn) {
            carry_log(ctx, CARRY_LOG_WARNING, "the wisdom in %s is ignored: %s", ctx->wisdom, ctx->error);
        }
    }
    return CARRY_OK;
}

static carry_status wisdom_of(carry_ctx *ctx, carry_wisdom **wisdom) {
    *wisdom = ctx->slots[CARRY_SLOT_WISDOM].data;
    if (*wisdom != NULL) {
        return CARRY_OK;
    }
    *wisdom = calloc(1, sizeof **wisdom);
    if (*wisdom == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: wisdom (%zu bytes)", sizeof **wisdom);
    }
    ctx->slots[CARRY_SLOT_WISDOM].data = *wisdom;
    ctx->slots[CARRY_SLOT_WISDOM].free = free;
    describe_machine(ctx, (*wisdom)->machine);
    bool foreign;
    carry_status status = ctx->wisdom != NULL ? load(ctx, *wisdom, true, &foreign) : CARRY_OK;
    if (status == CARRY_EIO || status == CARRY_ESIZE) {
        carry_log(ctx, CARRY_LOG_WARNING, "the wisdom is not used, and what is measured is not kept: %s", ctx->error);
        (*wisdom)->is_unusable = true;
        return CARRY_OK;
    }
    if (status != CARRY_OK) { /* so that the next call fails too */
        ctx->slots[CARRY_SLOT_WISDOM].data = NULL;
        ctx->slots[CARRY_SLOT_WISDOM].free = NULL;
        free(*wisdom);
    }
    return status;
}

static void put_plan(carry_wisdom *wisdom, const carry_wisdom_plan *plan) {
    int at = 0;
    while (at < wisdom->plans &&
           (wisdom->plan[at].threads != plan->threads || strcmp(wisdom->plan[at].kernels, plan->kernels) != 0 ||
            strcmp(wisdom->plan[at].key, plan->key) != 0)) {
        at++;
    }
    if (at == CARRY_WISDOM_PLANS) {
        /* Drops the oldest plan. */
        memmove(wisdom->plan, wisdom->plan + 1, sizeof wisdom->plan - sizeof wisdom->plan[0]);
        at--;
        wisdom->plans--;
    }
    wisdom->plan[at] = *plan;
    wisdom->plans = at == wisdom->plans ? at + 1 : wisdom->plans;
}

/* Locks FILE.lock, so that processes that save at the same time do so one after the other. The kernel releases the lock
   when its holder exits. Returns -1 if it cannot be taken: the file is then written anyway, and one of two processes
   may lose its plans. */
static int lock_file(carry_ctx *ctx) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s.lock", ctx->wisdom) >= (int)sizeof path) {
        return -1;
    }
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file < 0 && errno == ENOENT && carry_file_replace(ctx, path, "", 0) == CARRY_OK) { /* creates missing folders */
        file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    }
    const double until = carry_seconds() + LOCK_SECONDS;
    while (file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || carry_seconds() > until) {
            carry_log(ctx, CARRY_LOG_WARNING, "%s cannot be locked: %s", path, strerror(errno));
            (void)close(file);
            return -1;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return file;
}

/* Keeps the plans that another process has written since the file was read. Plans of this context replace them. */
static carry_status merge_and_write(carry_ctx *ctx, const carry_wisdom *wisdom) {
    carry_wisdom *merged = calloc(1, sizeof *merged);
    char *text = NULL;
    size_t length = 0;
    if (merged == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing wisdom");
    }
    memcpy(merged->machine, wisdom->machine, sizeof merged->machine);
    bool foreign;
    carry_status status = load(ctx, merged, false, &foreign);
    if (status == CARRY_OK && foreign) {
        char aside[4096];
        if (snprintf(aside, sizeof aside, "%s.old", ctx->wisdom) < (int)sizeof aside) {
            (void)rename(ctx->wisdom, aside); /* another thread may still read it */
        }
    }
    for (int i = 0; i < wisdom->plans; i++) {
        put_plan(merged, &wisdom->plan[i]);
    }
    for (int i = 0; i < wisdom->rates; i++) {
        carry_rates_table *table =
            carry_wisdom_rates_for(merged, wisdom->rate[i].threads, wisdom->rate[i].kernels, true);
        if (table != NULL) {
            *table = wisdom->rate[i].table;
        }
    }
    if (status == CARRY_OK) {
        status = carry_wisdom_print(ctx, merged, &text, &length);
    }
    const bool is_written = status != CARRY_OK || carry_file_replace(ctx, ctx->wisdom, text, length) == CARRY_OK;
    free(text);
    free(merged);
    return is_written ? status : CARRY_EIO;
}

static carry_status save(carry_ctx *ctx, const carry_wisdom *wisdom) {
    if (ctx->wisdom == NULL || wisdom->is_unusable) {
        return CARRY_OK;
    }
    const int lock = lock_file(ctx);
    const carry_status status = merge_and_write(ctx, wisdom);
    if (lock >= 0) {
        (void)close(lock);
    }
    return status;
}

carry_status carry_wisdom_excuse(carry_ctx *ctx, carry_status status) {
    if (status == CARRY_EIO) {
        carry_log(ctx, CARRY_LOG_WARNING, "what was measured is not kept: %s", ctx->error);
    }
    return status == CARRY_EIO ? CARRY_OK : status;
}

carry_status carry_wisdom_rates(carry_ctx *ctx, const carry_rates_table **rates, bool again) {
    if (carry_rates_known(ctx) && !again) {
        return carry_rates_of(ctx, rates, false);
    }
    carry_wisdom *wisdom;
    CARRY_TRY(wisdom_of(ctx, &wisdom));
    carry_rates_table *kept = carry_wisdom_rates_for(wisdom, ctx->threads, carry_ctx_kernels(ctx), false);
    if (kept != NULL) {
        kept->remembered = true;
    }
    if (kept != NULL && !again && carry_rates_put(ctx, kept)) {
        return carry_rates_of(ctx, rates, false);
    }
    CARRY_TRY(carry_rates_of(ctx, rates, true));
    if (carry_ceilings_are_rough()) { /* for this context only: the file is also used when ceilings are not rough */
        return CARRY_OK;
    }
    kept = carry_wisdom_rates_for(wisdom, ctx->threads, carry_ctx_kernels(ctx), true);
    if (kept != NULL) {
        *kept = **rates;
    }
    return carry_wisdom_excuse(ctx, save(ctx, wisdom));
}

carry_status carry_wisdom_ready(carry_ctx *ctx) {
    carry_wisdom *wisdom;
    return wisdom_of(ctx, &wisdom);
}

const carry_wisdom_plan *carry_wisdom_find(carry_ctx *ctx, const char *key) {
    carry_wisdom *wisdom;
    if (wisdom_of(ctx, &wisdom) != CARRY_OK) {
        return NULL;
    }
    for (int i = 0; i < wisdom->plans; i++) {
        if (wisdom->plan[i].threads == ctx->threads && strcmp(wisdom->plan[i].key, key) == 0 &&
            strcmp(wisdom->plan[i].kernels, carry_ctx_kernels(ctx)) == 0) {
            return &wisdom->plan[i];
        }
    }
    return NULL;
}

carry_status carry_wisdom_remember(carry_ctx *ctx, const char *key, const char *algorithm, double seconds) {
    return carry_wisdom_remember_tuned(ctx, key, algorithm, 0, 0, seconds);
}

carry_status carry_wisdom_remember_tuned(carry_ctx *ctx, const char *key, const char *algorithm, int64_t chunk,
                                         int used, double seconds) {
    carry_wisdom *wisdom;
    CARRY_TRY(wisdom_of(ctx, &wisdom));
    carry_wisdom_plan plan = {.threads = ctx->threads, .chunk = chunk, .used = used, .seconds = seconds};
    (void)snprintf(plan.kernels, sizeof plan.kernels, "%s", carry_ctx_kernels(ctx));
    (void)snprintf(plan.key, sizeof plan.key, "%s", key);
    (void)snprintf(plan.algorithm, sizeof plan.algorithm, "%s", algorithm);
    put_plan(wisdom, &plan);
    return save(ctx, wisdom);
}
