/* Two training steps on a GPU have the CPU's losses: language models by every kernel of the delta rule, and a video
   transformer. Small enough for compute-sanitizer (CARRY_CASE: a pattern of test names). */
/* labels: gpu */
#include "train_support.h"

#include "carry/device.h"
#include "train/dit/dit_loop.h"

#define STEPS 2

static carry_status on_device(const carry_train_options *options, int device, told *t) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_train_hooks hooks = {
        .sink = {.user = t, .note = on_note}, .report = on_report, .user = t, .device = device, .resume = false};
    told_run run = {.options = options, .hooks = &hooks};
    memset(t, 0, sizeof *t);
    const carry_status status = carry_comm_threads(&ctx, 1, NULL, run_rank, &run);
    (void)snprintf(t->error, sizeof t->error, "%s", carry_ctx_error(ctx));
    carry_ctx_free(ctx);
    return status;
}

/* The second step uses the weights that the first one made, so it shows a wrong gradient. */
static void two_steps(void **state, const char *name, const char *dtype, int64_t head_dim, int64_t length,
                      double apart) {
    char out[256];
    told losses[2];
    carry_train_options o = tiny(below(out, state, name));
    (void)snprintf(o.dtype, sizeof o.dtype, "%s", dtype);
    o.heads = 1;
    o.head_dim = o.hidden = head_dim;
    o.length = length;
    o.batch = 2;
    o.layers = 1;
    o.steps = STEPS;
    o.save_every = 100;
    for (int device = 0; device < 2; device++) {
        char folder[64];
        (void)snprintf(folder, sizeof folder, "%s-%d", name, device);
        (void)below(o.out, state, folder);
        if (on_device(&o, device, &losses[device]) != CARRY_OK) {
            fail_msg("training failed: %s", losses[device].error);
        }
    }
    for (int step = 1; step <= STEPS; step++) {
        assert_near(losses[1].loss[step], losses[0].loss[step], apart);
        assert_near(losses[1].norm[step], losses[0].norm[step], 10.0 * apart * losses[0].norm[step]);
    }
}

static void test_f32_heads_of_16(void **state) {
    two_steps(state, "plain", "f32", 16, 40, 2e-5);
}

static void test_bf16_heads_of_32(void **state) {
    two_steps(state, "tiles", "bf16", 32, 80, 2e-2);
}

static void test_bf16_heads_of_128(void **state) {
    two_steps(state, "chunks", "bf16", 128, 136, 2e-2);
}

/* Shorter than a chunk, so that threads store it: initcheck does not see stores by the tensor memory accelerator. */
static void test_bf16_heads_of_128_short(void **state) {
    two_steps(state, "short", "bf16", 128, 40, 2e-2);
}

typedef struct dit_run {
    const carry_dit_train_options *options;
    carry_dit_train_hooks hooks;
    double loss[STEPS + 1];
} dit_run;

static void on_dit_step(void *user, const carry_dit_train_report *r) {
    dit_run *run = user;
    assert_in_range(r->step, 1, STEPS);
    run->loss[r->step] = r->loss;
}

static carry_status run_dit(void *user, carry_comm *comm) {
    const dit_run *run = user;
    return carry_dit_train_run(comm, run->options, &run->hooks);
}

static void test_a_video_transformer(void **state) {
    dit_run runs[2];
    carry_dit_train_options o = carry_dit_train_default();
    o.dim = 24;
    o.heads = 2;
    o.layers = 1;
    o.size = 32;
    o.chunks = o.chunk = 2;
    o.window = 4;
    o.speed = 1.0;
    o.batch = 2;
    o.steps = STEPS;
    o.warmup = 1;
    o.log_every = 1;
    o.save_every = 100;
    for (int device = 0; device < 2; device++) {
        (void)below(o.out, state, device == 0 ? "dit-cpu" : "dit-gpu");
        runs[device] = (dit_run){.options = &o, .hooks = {.report = on_dit_step, .device = device}};
        runs[device].hooks.user = &runs[device];
        carry_ctx *ctx = support_ctx(1, NULL, NULL);
        assert_ok(ctx, carry_comm_threads(&ctx, 1, NULL, run_dit, &runs[device]));
        carry_ctx_free(ctx);
    }
    for (int step = 1; step <= STEPS; step++) {
        assert_near(runs[1].loss[step], runs[0].loss[step], 1e-4);
    }
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no GPU here\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_heads_of_16),     cmocka_unit_test(test_bf16_heads_of_32),
        cmocka_unit_test(test_bf16_heads_of_128),   cmocka_unit_test(test_bf16_heads_of_128_short),
        cmocka_unit_test(test_a_video_transformer),
    };
    if (getenv("CARRY_CASE") != NULL) {
        cmocka_set_test_filter(getenv("CARRY_CASE"));
    }
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
