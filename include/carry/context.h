/* The context: threads, the kernels chosen for this processor, the log, the last error.

   Only one thread at a time may use a context; create one for each of your threads. There is no global state, so
   contexts with different settings can coexist. */
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
    CARRY_LOG_WARNING = 0, /* default: messages that the user should see, such as a fallback and its reason */
    CARRY_LOG_INFO = 1,    /* what was chosen and why */
    CARRY_LOG_DEBUG = 2,
} carry_log_level;

/* line has no newline. Called on the thread that uses the context. */
typedef void (*carry_log_sink)(void *user, carry_log_level level, const char *line);

/* Fields that are zero use their defaults. */
typedef struct carry_ctx_options {
    size_t size;         /* CARRY_INIT */
    int threads;         /* 0: every core this process may run on */
    const char *kernels; /* NULL: the fastest for this processor; or a name from carry_kernels_name, like "plain" */
    const char *wisdom;  /* file that keeps measured rates and plans; NULL: keep them in memory only */
    carry_log_level log_level;
    carry_log_sink log; /* NULL: standard error */
    void *log_user;
} carry_ctx_options;

/* options may be NULL. On failure *ctx is NULL if memory ran out; otherwise it is a context that can only report the
   error (carry_ctx_error) and be freed. */
CARRY_API carry_status carry_ctx_new(carry_ctx **ctx, const carry_ctx_options *options);
CARRY_API void carry_ctx_free(carry_ctx *ctx);

/* The error message of the last failure, valid until the next call on this context; "" if nothing has failed. */
CARRY_API const char *carry_ctx_error(const carry_ctx *ctx);
/* The source location that reported the error, such as "scan/plan.c:120". */
CARRY_API const char *carry_ctx_error_place(const carry_ctx *ctx);

CARRY_API int carry_ctx_threads(const carry_ctx *ctx);

/* The wisdom file that programs on this machine share: $CARRY_WISDOM if set, else carry/wisdom-MACHINE in
   $XDG_CACHE_HOME or ~/.cache. Writes the path into path and returns it; returns NULL if CARRY_WISDOM is "none", if
   there is no home folder, or if size is too small. A context uses the file only if its options name it. */
CARRY_API const char *carry_wisdom_path(char *path, size_t size);

/* carry_rates reads the rates of this machine, which the cost models use, from the context's wisdom; if they are not
   there, or `again` is set, it measures them (under a second) and stores them there. carry_rate_line returns one line
   for each rate: name, value, unit; NULL past the end. */
CARRY_API carry_status carry_rates(carry_ctx *ctx, bool again);
CARRY_API const char *carry_rate_line(carry_ctx *ctx, int index);

/* The version of the headers; and of the linked library, as text such as "0.1.0". */
#define CARRY_VERSION_MAJOR 0
#define CARRY_VERSION_MINOR 1
#define CARRY_VERSION_PATCH 0
CARRY_API const char *carry_version(void);

#ifdef __cplusplus
}
#endif
#endif
