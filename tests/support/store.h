/* Shared by the tests of the run store: a temporary folder with a store in it. */
#ifndef CARRY_TESTS_STORE_H
#define CARRY_TESTS_STORE_H

#include <unistd.h>

#include "lab/process.h"
#include "lab/store/store.h"
#include "support.h"

static carry_ctx *ctx;
static char folder[64];
static char path[128];

static inline int open_folder(void **state) {
    (void)state;
    ctx = support_ctx(1, "plain", NULL);
    (void)snprintf(folder, sizeof folder, "/tmp/carry-store-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chmod(folder, 0755), 0);
    (void)snprintf(path, sizeof path, "%s/store.db", folder);
    return 0;
}

static inline int remove_folder(void **state) {
    (void)state;
    carry_process_result r;
    const char *const arguments[] = {"rm", "-rf", folder, NULL};
    assert_ok(ctx, carry_process_run(ctx, &r, &(carry_process){.arguments = arguments}));
    carry_process_free(&r);
    carry_ctx_free(ctx);
    return 0;
}

static inline carry_store *open_store(void) {
    carry_store *store;
    assert_ok(ctx, carry_store_open(ctx, &store, path));
    return store;
}

static inline int64_t begin(carry_store *store, const char *name) {
    int64_t run = 0;
    assert_ok(ctx, carry_store_begin(store, &run,
                                     &(carry_run_start){.kind = "experiment", .name = name, .command = "carry run x"}));
    assert_true(run > 0);
    return run;
}

static inline carry_stored_result some_result(const char *problem) {
    return (carry_stored_result){.problem = problem, .method = "cyclic", .device = "cpu", .reason = "", .median = 1e-3};
}

#endif
