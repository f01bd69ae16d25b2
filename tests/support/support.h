/* Shared by all tests: cmocka with the headers it needs, and a context that does not measure the machine and fails the
   test if it cannot be made. */
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
#include <unistd.h>

#include <cmocka.h>

#include "carry/carry.h"
#include "core/clock.h"
#include "ops/product/rates.h"

/* Runs only the tests that CMOCKA_TEST_FILTER matches: cmocka does not read the environment itself. */
__attribute__((constructor)) static inline void support_filter(void) {
    cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
}

/* For tests that provoke warnings on purpose. */
static inline void support_silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

/* Rates of about 10 GFLOP/s and 10 GB/s. Measuring takes 0.3 s of processor time for every context that plans, several
   seconds under sanitizers and 15 under qemu; tests of measuring itself have contexts of their own. */
static inline carry_rates_table support_rates(void) {
    carry_rates_table made = {0};
    static const int widths[CARRY_RATE_WIDTHS] = {1, 8, 32, 128};
    for (int i = 0; i < CARRY_RATE_SIZES; i++) {
        const double n = 4 << i;
        for (int j = 0; j < CARRY_RATE_WIDTHS; j++) {
            made.product[i][j] = 3e-8 + 2e-10 * n * n * widths[j];
        }
    }
    for (int i = 0; i < CARRY_RATE_STEPS; i++) {
        made.step[i] = 4e-9 + 2e-10 * (4 << (3 * i));
    }
    made.apply_call = 2e-8;
    made.fork = 1e-5;
    made.memory = made.memory_one = made.large_own = 1e10;
    made.cache_bytes = 2e6;
    return made;
}

/* With a wisdom file, rates come from the file or are measured. */
static inline carry_ctx *support_ctx(int threads, const char *kernels, const char *wisdom) {
    carry_ctx *ctx;
    carry_status status =
        carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = threads, .kernels = kernels,
                                                 .wisdom = wisdom, .log = support_silent});
    if (status != CARRY_OK) {
        fail_msg("no context: %s", ctx != NULL ? carry_ctx_error(ctx) : "out of memory");
    }
    const carry_rates_table rates = support_rates();
    assert_true(wisdom != NULL || carry_rates_put(ctx, &rates));
    return ctx;
}

/* For loops of the tests themselves that the sanitizers need not watch, such as references in float64, which would take
   five to fifteen times longer. Not for functions that the library calls or that read its results: there a sanitizer
   must see a thread that is still writing them. */
#define SUPPORT_UNWATCHED __attribute__((no_sanitize("address", "undefined", "thread")))

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SUPPORT_SANITIZED true
#else
#define SUPPORT_SANITIZED false
#endif

/* The number of cases of a test that run the same lines of the library. Few suffice under a sanitizer, where each takes
   many times longer and which looks for races and bad accesses, not for wrong numbers. CARRY_TEST_CASES=all or few
   overrides this. */
static inline int support_cases(int all, int few) {
    const char *asked = getenv("CARRY_TEST_CASES");
    bool less = asked != NULL && asked[0] != 0 ? strcmp(asked, "few") == 0 : SUPPORT_SANITIZED;
    return less ? few : all;
}

/* True if a test runs case number `turn` of its loops: all of them, or every `few`-th where few suffice. If `few` has
   no divisor in common with the loops' lengths, every value of each loop still occurs. */
static inline bool support_takes(int turn, int few) {
    return turn % support_cases(1, few) == 0;
}

/* The path of golden vectors by name: in ../shared/vectors, which has more cases, or else in tests/golden/vectors.
   False if they are in neither. */
static inline bool support_vectors(char *path, size_t size, const char *name) {
    static const char *const folders[] = {"../shared/vectors", "tests/golden/vectors"};
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, size, "%s/%s/%s", CARRY_SOURCE, folders[i], name);
        if (access(path, R_OK) == 0) {
            return true;
        }
    }
    return false;
}

/* Repeats an expression every 10 ms until it is true, and fails the test after two minutes. Tests wait for events, with
   a limit far longer than a busy machine needs, and never for a fixed time. */
#define SUPPORT_PATIENCE 120.0 /* seconds */
#define support_wait_for(expression)                                            \
    do {                                                                        \
        const double support_end = carry_seconds() + SUPPORT_PATIENCE;          \
        while (!(expression)) {                                                 \
            if (carry_seconds() > support_end) {                                \
                fail_msg("not within %g s: %s", SUPPORT_PATIENCE, #expression); \
            }                                                                   \
            (void)usleep(10000);                                                \
        }                                                                       \
    } while (0)

/* Fails the test with the library's message unless the status is CARRY_OK. */
#define assert_ok(ctx, expression)                                                                         \
    do {                                                                                                   \
        carry_status support_status = (expression);                                                        \
        if (support_status != CARRY_OK) {                                                                  \
            fail_msg("%s: %s (%s)", #expression, carry_ctx_error(ctx), carry_status_name(support_status)); \
        }                                                                                                  \
    } while (0)

/* Expects a refusal with this status and a message that contains these words. */
#define assert_refused(ctx, expected, words, expression)                                                         \
    do {                                                                                                         \
        carry_status support_status = (expression);                                                              \
        if (support_status != (expected) || strstr(carry_ctx_error(ctx), (words)) == NULL) {                     \
            fail_msg("%s: expected %s with '%s', got %s: %s", #expression, carry_status_name(expected), (words), \
                     carry_status_name(support_status), carry_ctx_error(ctx));                                   \
        }                                                                                                        \
    } while (0)

#endif
