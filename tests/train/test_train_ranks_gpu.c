/* Training on ranks that share a GPU: data ranks and sequence ranks have the losses of one rank on the CPU, and a run
   is saved and resumed. Skipped without a GPU; an emulated one is slow, so the runs are small. */
/* labels: gpu */
#include "train_support.h"

#include "carry/device.h"

enum { SKIPPED = 77 };

static carry_status train_on_gpu(int ranks, const carry_train_options *options, bool resume, told *t) {
    carry_ctx *ctxs[SUPPORT_RANKS] = {NULL};
    carry_train_hooks hooks = {.sink = {.user = t, .note = on_note},
                               .report = on_report,
                               .evaluated = on_evaluation,
                               .user = t,
                               .device = 1,
                               .resume = resume};
    told_run run = {.options = options, .hooks = &hooks};
    memset(t, 0, sizeof *t);
    for (int i = 0; i < ranks; i++) {
        ctxs[i] = support_ctx(1, NULL, NULL);
    }
    const carry_status status = carry_comm_threads(ctxs, ranks, NULL, run_rank, &run);
    (void)snprintf(t->error, sizeof t->error, "%s", carry_ctx_error(ctxs[0]));
    for (int i = 0; i < ranks; i++) {
        carry_ctx_free(ctxs[i]);
    }
    return status;
}

static carry_train_options small(const char *out) {
    carry_train_options o = tiny(out);
    o.batch = 4;
    o.length = 8;
    o.layers = 1;
    o.steps = 4;
    o.save_every = 2;
    return o;
}

/* f32: sums are in another order, and AdamW's first steps have the size of the learning rate whatever the size of the
   gradient: an element near zero may change its sign and move by twice the rate. Losses of a few steps stay within 1e-3
   of each other; a wrong gradient is off by more than 1e-2. */
static void test_ranks_on_a_gpu_have_the_losses_of_one(void **state) {
    static const struct { int ranks, parts; } grids[] = {{2, 1}, {2, 2}, {4, 2}, {4, 4}};
    char out[256];
    told one;
    told many;
    carry_train_options o = small(below(out, state, "one"));
    train_ok(1, &o, false, &one);
    for (size_t i = 0; i < sizeof grids / sizeof grids[0]; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "many-%zu", i);
        o = small(below(out, state, name));
        o.sequence_ranks = grids[i].parts;
        if (train_on_gpu(grids[i].ranks, &o, false, &many) != CARRY_OK) {
            fail_msg("%d ranks, %d of a sequence: %s", grids[i].ranks, grids[i].parts, many.error);
        }
        for (int step = 1; step <= 4; step++) {
            assert_near(many.loss[step], one.loss[step], 1e-3 * one.loss[step]);
            assert_near(many.norm[step], one.norm[step], 5e-3 * one.norm[step]);
        }
    }
}

static void test_a_run_on_gpu_ranks_is_resumed(void **state) {
    char out[256];
    told whole;
    told rest;
    carry_train_options o = small(below(out, state, "whole"));
    o.sequence_ranks = 2;
    assert_int_equal(train_on_gpu(2, &o, false, &whole), CARRY_OK);
    (void)below(o.out, state, "half");
    o.steps = 2;
    o.warmup = 1;
    carry_train_options all = o;
    assert_int_equal(train_on_gpu(2, &o, false, &rest), CARRY_OK);
    all.steps = 4;
    assert_int_equal(train_on_gpu(2, &all, true, &rest), CARRY_OK);
    assert_int_equal(rest.last, 4);
    assert_true(isfinite(rest.loss[4]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ranks_on_a_gpu_have_the_losses_of_one, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_run_on_gpu_ranks_is_resumed, make_folder, remove_folder),
    };
    if (carry_device_count() < 2) {
        print_message("skipped: there is no GPU here\n");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
