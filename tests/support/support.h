/* What the tests share: cmocka with the headers it needs, and a context that fails the test when it cannot be made. */
#ifndef CARRY_TESTS_SUPPORT_H
#define CARRY_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carry/carry.h"

/* Some tests of a program alone, by their names: cmocka does not read the environment itself. */
__attribute__((constructor)) static inline void support_filter(void) {
    cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
}

/* Tests that provoke warnings on purpose need not show them. */
static inline void support_silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

static inline carry_ctx *support_ctx(int threads, const char *kernels, const char *wisdom) {
    carry_ctx *ctx;
    carry_status status = carry_ctx_new(
        &ctx, &(carry_ctx_options){.threads = threads, .kernels = kernels, .wisdom = wisdom, .log = support_silent});
    if (status != CARRY_OK) {
        fail_msg("no context: %s", ctx != NULL ? carry_ctx_error(ctx) : "no memory");
    }
    return ctx;
}

/* Loops of the tests themselves that the sanitizers need not watch, and that take five to fifteen times longer when
   they do: references in float64. Not for what the library calls, nor for what reads its results: a thread that still
   writes them is seen there. */
#define SUPPORT_UNWATCHED __attribute__((no_sanitize("address", "undefined", "thread")))

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SUPPORT_SANITIZED true
#else
#define SUPPORT_SANITIZED false
#endif

/* How many cases a test goes through that take the same lines of the library. Few suffice where each takes many times
   longer: under a sanitizer, which looks for races and bad accesses and not for numbers. CARRY_TEST_CASES=all or few
   decides otherwise. */
static inline int support_cases(int all, int few) {
    const char *asked = getenv("CARRY_TEST_CASES");
    bool less = asked != NULL && asked[0] != 0 ? strcmp(asked, "few") == 0 : SUPPORT_SANITIZED;
    return less ? few : all;
}

/* Success, or the test fails with the library's own message. */
#define assert_ok(ctx, expression)                                                                         \
    do {                                                                                                   \
        carry_status support_status = (expression);                                                        \
        if (support_status != CARRY_OK) {                                                                  \
            fail_msg("%s: %s (%s)", #expression, carry_ctx_error(ctx), carry_status_name(support_status)); \
        }                                                                                                  \
    } while (0)

/* A refusal with this status whose message contains these words. */
#define assert_refused(ctx, expected, words, expression)                                                         \
    do {                                                                                                         \
        carry_status support_status = (expression);                                                              \
        if (support_status != (expected) || strstr(carry_ctx_error(ctx), (words)) == NULL) {                     \
            fail_msg("%s: expected %s with '%s', got %s: %s", #expression, carry_status_name(expected), (words), \
                     carry_status_name(support_status), carry_ctx_error(ctx));                                   \
        }                                                                                                        \
    } while (0)

#endif
