/* Failing with an error message. carry_fail stores status, source line and message in the context and returns the
   status, so that an error takes one statement:

       return carry_fail(ctx, CARRY_ESHAPE, "b has %lld steps and A has %lld", ...);

   The status is evaluated twice, the second time after formatting: if it depends on errno, copy errno first. */
#ifndef CARRY_CORE_ERROR_H
#define CARRY_CORE_ERROR_H

#include "carry/context.h"

#define CARRY_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))

void carry_fail_at(carry_ctx *ctx, carry_status status, const char *file, int line, const char *format, ...)
    CARRY_PRINTF(5, 6);

/* The macro yields the status itself, so that the compiler and the reader of the caller see that it fails. */
#define carry_fail(ctx, status, ...) (carry_fail_at(ctx, status, __FILE__, __LINE__, __VA_ARGS__), (status))

/* Returns from the caller on failure; the message is already in the context. */
#define CARRY_TRY(expression)                    \
    do {                                         \
        carry_status try_status_ = (expression); \
        if (try_status_ != CARRY_OK) {           \
            return try_status_;                  \
        }                                        \
    } while (0)

#endif
