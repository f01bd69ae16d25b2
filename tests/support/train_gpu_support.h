/* Small training runs on the first GPU, which may be the emulated one. */
#ifndef CARRY_TESTS_TRAIN_GPU_SUPPORT_H
#define CARRY_TESTS_TRAIN_GPU_SUPPORT_H

#include "train_support.h"

#include "carry/device.h"

/* Hooks of a run besides those that fill `told`; NULL: no hook. */
typedef struct gpu_hooks {
    bool (*stop)(void);
    void (*step)(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end);
    void (*started)(void *user, const carry_train_start *start);
} gpu_hooks;

static inline carry_status on_gpu(const carry_train_options *options, bool resume, const gpu_hooks *more, told *t) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_train_hooks hooks = {.sink = {.user = t, .note = on_note},
                               .report = on_report,
                               .evaluated = on_evaluation,
                               .user = t,
                               .stop = more != NULL ? more->stop : NULL,
                               .step = more != NULL ? more->step : NULL,
                               .started = more != NULL ? more->started : NULL,
                               .device = 1,
                               .resume = resume};
    told_run run = {.options = options, .hooks = &hooks};
    memset(t, 0, sizeof *t);
    const carry_status status = carry_comm_threads(&ctx, 1, NULL, run_rank, &run);
    (void)snprintf(t->error, sizeof t->error, "%s", carry_ctx_error(ctx));
    carry_ctx_free(ctx);
    return status;
}

static inline void gpu_ok(const carry_train_options *options, bool resume, const gpu_hooks *more, told *t) {
    if (on_gpu(options, resume, more, t) != CARRY_OK) {
        fail_msg("training failed: %s", t->error);
    }
}

/* The smallest useful run: an emulated GPU is slow. */
static inline carry_train_options small(const char *out) {
    carry_train_options o = tiny(out);
    o.batch = 2;
    o.length = 8;
    o.layers = 1;
    o.steps = 6;
    o.save_every = 2;
    return o;
}

static inline void assert_same_end(void **state, const char *one, const char *other) {
    char a[256];
    char b[256];
    (void)below(a, state, one);
    (void)below(b, state, other);
    (void)strcat(a, "/latest");
    (void)strcat(b, "/latest");
    assert_true(same_file(a, b, "model.safetensors"));
    assert_true(same_file(a, b, "optimizer.safetensors"));
}

#endif
