/* Making and freeing contexts; the last error; the log. */
#include "core/context.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sized.h"
#include "core/span.h"
#include "core/threads.h"

#define MAX_THREADS 1024
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static void log_to_stderr(void *user, carry_log_level level, const char *line) {
    (void)user;
    static const char *const prefixes[] = {"error: ", "warning: ", "", "debug: "};
    (void)fprintf(stderr, "carry: %s%s\n", prefixes[level - CARRY_LOG_ERROR], line);
}

/* Returns the path after "src/", since the part before it does not help the reader of a message. */
static const char *after_src(const char *file) {
    const char *found = NULL;
    for (const char *at = strstr(file, "src/"); at != NULL; at = strstr(at + 1, "src/")) {
        found = at;
    }
    return found != NULL ? found + 4 : file;
}

static carry_status copy_text(carry_ctx *ctx, char **to, const char *from, const char *what) {
    if (from == NULL) {
        return CARRY_OK;
    }
    if (*from == '\0') {
        return carry_fail(ctx, CARRY_EARGUMENT, "the option %s is empty: give a value, or NULL for the default", what);
    }
    *to = strdup(from);
    return *to != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: the option %s", what);
}

static carry_status apply_options(carry_ctx *ctx, const carry_ctx_options *options) {
    if (options->log_level < CARRY_LOG_ERROR || options->log_level > CARRY_LOG_DEBUG) {
        return carry_fail(ctx, CARRY_EARGUMENT, "log level %d: expected -1 (error) to 2 (debug)",
                          (int)options->log_level);
    }
    ctx->log_level = options->log_level;
    if (options->log != NULL) {
        ctx->log = options->log;
        ctx->log_user = options->log_user;
    }
    if (options->threads < 0 || options->threads > MAX_THREADS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%d threads asked for: give 1 to %d, or 0 for every core",
                          options->threads, MAX_THREADS);
    }
    ctx->threads = options->threads > 0 ? options->threads : carry_cores();
    CARRY_TRY(copy_text(ctx, &ctx->kernels, options->kernels, "kernels"));
    CARRY_TRY(copy_text(ctx, &ctx->wisdom, options->wisdom, "wisdom"));
    return carry_pool_new(ctx, &ctx->pool, ctx->threads);
}

void carry_fail_at(carry_ctx *ctx, carry_status status, const char *file, int line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(ctx->error, sizeof ctx->error, format, arguments);
    va_end(arguments);
    for (char *at = ctx->error; *at != '\0'; at++) { /* names come from files: replace control characters */
        *at = (char)((unsigned char)*at < 0x20 || *at == 0x7f ? '?' : *at);
    }
    (void)snprintf(ctx->error_place, sizeof ctx->error_place, "%s:%d", after_src(file), line);
    ctx->error_status = status;
}

void carry_log(carry_ctx *ctx, carry_log_level level, const char *format, ...) {
    if (level > ctx->log_level) {
        return;
    }
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    ctx->log(ctx->log_user, level, line);
}

carry_status carry_ctx_new(carry_ctx **ctx, const carry_ctx_options *options) {
    carry_ctx_options own;
    *ctx = calloc(1, sizeof **ctx);
    if (*ctx == NULL) {
        return CARRY_EMEMORY;
    }
    (*ctx)->log = log_to_stderr;
    CARRY_TRY(CARRY_SIZED_READ(*ctx, carry_ctx_options, &own, options));
    return apply_options(*ctx, &own);
}

void carry_ctx_free(carry_ctx *ctx) {
    if (ctx == NULL) {
        return;
    }
    for (int i = 0; i < CARRY_SLOT_COUNT; i++) {
        if (ctx->slots[i].free != NULL) {
            ctx->slots[i].free(ctx->slots[i].data);
        }
    }
    carry_pool_free(ctx->pool);
    carry_recording_free(ctx->recording);
    free(ctx->kernels);
    free(ctx->wisdom);
    free(ctx);
}

const char *carry_ctx_error(const carry_ctx *ctx) {
    return ctx->error;
}

const char *carry_ctx_error_place(const carry_ctx *ctx) {
    return ctx->error_place;
}

int carry_ctx_threads(const carry_ctx *ctx) {
    return ctx->threads;
}

const char *carry_version(void) {
    return TEXT(CARRY_VERSION_MAJOR) "." TEXT(CARRY_VERSION_MINOR) "." TEXT(CARRY_VERSION_PATCH);
}
