/* The context: threads, the kernels chosen for this processor, the log, the last error.

   A context is used by one thread at a time; make one per thread of your own. It has no globals behind it, so two
   contexts with different settings live side by side. */
#ifndef CARRY_CONTEXT_H
#define CARRY_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_ctx carry_ctx;

typedef enum carry_log_level {
    CARRY_LOG_ERROR = -1,
    CARRY_LOG_WARNING = 0, /* the default: what a person should know, such as a fallback and its reason */
    CARRY_LOG_INFO = 1,    /* what was chosen and why */
    CARRY_LOG_DEBUG = 2,
} carry_log_level;

/* One line, without a newline. Called on the thread that uses the context. */
typedef void (*carry_log_sink)(void *user, carry_log_level level, const char *line);

/* All zero is a good set of options. */
typedef struct carry_ctx_options {
    int threads; /* 0: every core this process may run on */
    const char
        *kernels;       /* NULL: the fastest this processor has; else a name from carry_kernels_name, such as "plain" */
    const char *wisdom; /* file that keeps measured rates and plans; NULL: keep them in memory only */
    carry_log_level log_level;
    carry_log_sink log; /* NULL: standard error */
    void *log_user;
} carry_ctx_options;

/* options may be NULL. On failure *ctx is NULL when memory ran out, else a context that can only tell its error
   (carry_ctx_error) and be freed. */
CARRY_API carry_status carry_ctx_new(carry_ctx **ctx, const carry_ctx_options *options);
CARRY_API void carry_ctx_free(carry_ctx *ctx);

/* The error message of the last failure, valid until the next call on this context; "" when there was none. */
CARRY_API const char *carry_ctx_error(const carry_ctx *ctx);
/* Where in the source it was refused, as "scan/plan.c:120". */
CARRY_API const char *carry_ctx_error_place(const carry_ctx *ctx);

CARRY_API int carry_ctx_threads(const carry_ctx *ctx);

/* The wisdom file that programs on this machine share: $CARRY_WISDOM, else wisdom-MACHINE under carry/ in
   $XDG_CACHE_HOME or ~/.cache. Written into path, which is returned; NULL where CARRY_WISDOM is none, or there is no
   home folder, or size is too small. Contexts use it only when it is given as their option. */
CARRY_API const char *carry_wisdom_path(char *path, size_t size);

/* This machine's rates, as cost models use them: read from the context's wisdom, else measured now (under a second) and
   written there. One line each: name, value, unit; NULL past the end. */
CARRY_API carry_status carry_rates(carry_ctx *ctx, bool again);
CARRY_API const char *carry_rate_line(carry_ctx *ctx, int index);

/* "0.1.0", of the library that is linked, and of the headers. */
#define CARRY_VERSION_MAJOR 0
#define CARRY_VERSION_MINOR 1
#define CARRY_VERSION_PATCH 0
CARRY_API const char *carry_version(void);

#ifdef __cplusplus
}
#endif
#endif
