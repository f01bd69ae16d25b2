/* Training a video transformer: the loss falls, ranks agree, a resumed run has the bits of one that was not stopped,
   and errors end a run with a message. */
#include "train_support.h"

#include "train/dit/dit_loop.h"

typedef struct dit_told {
    double loss[SUPPORT_STEPS + 1];
    int64_t last, prompts;
    char error[512];
} dit_told;

typedef struct dit_run {
    const carry_dit_train_options *options;
    const carry_dit_train_hooks *hooks;
} dit_run;

static void on_step(void *user, const carry_dit_train_report *r) {
    dit_told *t = user;
    assert_in_range(r->step, 1, SUPPORT_STEPS);
    t->loss[r->step] = r->loss;
    t->last = r->step;
}

static void on_evaluated(void *user, int64_t step, const carry_dit_evaluation *evaluation) {
    dit_told *t = user;
    (void)step;
    t->prompts = evaluation->prompts;
    assert_true(evaluation->both <= evaluation->colours && evaluation->both <= evaluation->directions &&
                evaluation->colours <= evaluation->prompts);
}

static carry_status run_dit(void *user, carry_comm *comm) {
    const dit_run *run = user;
    return carry_dit_train_run(comm, run->options, run->hooks);
}

/* A model of some thousand numbers on pictures of 32 x 32. */
static carry_dit_train_options small(const char *out) {
    carry_dit_train_options o = carry_dit_train_default();
    (void)snprintf(o.out, sizeof o.out, "%s", out);
    o.dim = 24;
    o.heads = 2;
    o.layers = 1;
    o.size = 32;
    o.chunks = 2;
    o.chunk = 2;
    o.window = 4;
    o.speed = 1.0;
    o.batch = 6;
    o.steps = 10;
    o.warmup = 2;
    o.log_every = 1;
    o.save_every = 4;
    o.keep = 2;
    return o;
}

static carry_status dit_on(int ranks, const carry_dit_train_options *options, bool resume, bool (*stop)(void),
                           dit_told *t) {
    carry_ctx *ctxs[SUPPORT_RANKS] = {NULL};
    const carry_dit_train_hooks hooks = {
        .report = on_step, .evaluated = on_evaluated, .user = t, .stop = stop, .resume = resume};
    dit_run run = {.options = options, .hooks = &hooks};
    memset(t, 0, sizeof *t);
    for (int i = 0; i < ranks; i++) {
        ctxs[i] = support_ctx(i == 0 ? 2 : 1, NULL, NULL);
    }
    carry_status status = carry_comm_threads(ctxs, ranks, NULL, run_dit, &run);
    (void)snprintf(t->error, sizeof t->error, "%s", carry_ctx_error(ctxs[0]));
    for (int i = 0; i < ranks; i++) {
        carry_ctx_free(ctxs[i]);
    }
    return status;
}

static void dit_ok(int ranks, const carry_dit_train_options *options, bool resume, dit_told *t) {
    if (dit_on(ranks, options, resume, NULL, t) != CARRY_OK) {
        fail_msg("training failed: %s", t->error);
    }
}

/* The velocity starts at zero, so the loss starts at the mean square of the target: 1 from the noise and some 2 from
   the latents of pictures this small. */
static void test_the_loss_falls_and_a_model_is_left(void **state) {
    char out[256];
    dit_told t;
    carry_dit_train_options o = small(below(out, state, "falls"));
    o.steps = support_cases(SUPPORT_STEPS, 16);
    o.batch = 12;
    o.rate = 1e-2;
    o.save_every = 100;
    dit_ok(1, &o, false, &t);
    double last = 0.0;
    for (int64_t i = o.steps - 9; i <= o.steps; i++) {
        last += t.loss[i] / 10.0;
    }
    if (!(t.loss[1] > 1.5 && last < (o.steps == SUPPORT_STEPS ? 0.9 : 1.0) * t.loss[1])) {
        fail_msg("the loss was %g in the first step and is %g", t.loss[1], last);
    }
    assert_int_equal(t.prompts, 30);
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_dit_config config;
    carry_dit *dit;
    assert_ok(ctx, carry_dit_config_read(ctx, &config, out));
    assert_int_equal(config.dim, 24);
    assert_int_equal(config.chunk_frames, 2);
    assert_int_equal(config.window_frames, 4);
    assert_ok(ctx, carry_dit_new(ctx, &dit, &config, NULL, 0));
    assert_ok(ctx, carry_dit_load(dit, out));
    carry_dit_free(dit);
    carry_ctx_free(ctx);
}

/* Sums over videos in another order: a few 2^-24 of gradients, which ten steps of Adam amplify. */
static void test_ranks_agree(void **state) {
    char out[256];
    dit_told one;
    dit_told many;
    carry_dit_train_options o = small(below(out, state, "rank-1"));
    dit_ok(1, &o, false, &one);
    for (int ranks = support_cases(2, 3); ranks <= 3; ranks++) {
        char name[32];
        (void)snprintf(name, sizeof name, "rank-%d", ranks);
        (void)below(o.out, state, name);
        dit_ok(ranks, &o, false, &many);
        for (int i = 1; i <= 10; i++) {
            assert_near(many.loss[i], one.loss[i], 2e-4 * one.loss[i]);
        }
    }
}

static _Atomic int steps_allowed;

static bool stop_later(void) {
    return --steps_allowed < 0;
}

static void test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(void **state) {
    for (int ranks = support_cases(1, 2); ranks <= 2; ranks++) {
        char a[256];
        char b[256];
        char name[32];
        dit_told whole;
        dit_told part;
        dit_told rest;
        (void)snprintf(name, sizeof name, "whole-%d", ranks);
        carry_dit_train_options o = small(below(a, state, name));
        dit_ok(ranks, &o, false, &whole);
        (void)snprintf(name, sizeof name, "part-%d", ranks);
        (void)below(o.out, state, name);
        steps_allowed = 5 * ranks;
        assert_int_equal(dit_on(ranks, &o, false, stop_later, &part), CARRY_EINTERRUPTED);
        assert_non_null(strstr(part.error, "--resume"));
        dit_ok(ranks, &o, true, &rest);
        for (int64_t i = part.last + 1; i <= 10; i++) {
            assert_true(rest.loss[i] == whole.loss[i]);
        }
        assert_true(same_file(a, below(b, state, name), "model.safetensors"));
        (void)snprintf(name, sizeof name, "whole-%d/latest", ranks);
        (void)below(a, state, name);
        (void)snprintf(name, sizeof name, "part-%d/latest", ranks);
        assert_true(same_file(a, below(b, state, name), "model.safetensors"));
        assert_true(same_file(a, b, "optimizer.safetensors"));
    }
}

static void test_a_loss_that_is_not_finite_ends_the_run_and_saves(void **state) {
    char out[256];
    dit_told t;
    carry_dit_train_options o = small(below(out, state, "nan"));
    o.speed = INFINITY; /* pixels are NaN: nothing can be drawn */
    assert_int_equal(dit_on(1, &o, false, NULL, &t), CARRY_ERANGE);
    assert_non_null(strstr(t.error, "a lower --rate"));
    assert_non_null(strstr(t.error, "step-0"));
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_dit_config config;
    assert_ok(ctx, carry_dit_config_read(ctx, &config, below(out, state, "nan/step-0")));
    carry_ctx_free(ctx);
}

static void test_what_cannot_be_trained_is_refused(void **state) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_dit_train_options o = small("nowhere");
    (void)state;
    assert_ok(ctx, carry_dit_train_check(ctx, &o, 3));
    assert_refused(ctx, CARRY_EARGUMENT, "multiple of 4", carry_dit_train_check(ctx, &o, 4));
    o.size = 40;
    assert_refused(ctx, CARRY_EARGUMENT, "32 and 48", carry_dit_train_check(ctx, &o, 1));
    o.size = 32;
    o.window = 1;
    assert_refused(ctx, CARRY_ERANGE, "window", carry_dit_train_check(ctx, &o, 1));
    o.window = 4;
    (void)snprintf(o.dtype, sizeof o.dtype, "i64");
    assert_refused(ctx, CARRY_EARGUMENT, "i64", carry_dit_train_check(ctx, &o, 1));
    o = small("nowhere");
    o.dim = o.layers = o.heads = 0;
    (void)snprintf(o.config, sizeof o.config, "14B");
    assert_refused(ctx, CARRY_EARGUMENT, "shapes", carry_dit_train_check(ctx, &o, 1));
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_loss_falls_and_a_model_is_left),
        cmocka_unit_test(test_ranks_agree),
        cmocka_unit_test(test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped),
        cmocka_unit_test(test_a_loss_that_is_not_finite_ends_the_run_and_saves),
        cmocka_unit_test(test_what_cannot_be_trained_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
