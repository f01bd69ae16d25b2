/* Training with products in 8-bit floats, on the CPU and on the first GPU, which may be emulated: losses near those in
   bf16, the same bits after a resume and in graphs, and refusals. */
/* labels: gpu */
#include "train_support.h"

#include "carry/device.h"

/* Sizes that are multiples of 16, so that all sites of the list are used on a GPU. */
static carry_train_options sized(const char *out, const char *fp8, int device) {
    carry_train_options o = tiny(out);
    o.vocab = 16;
    o.hidden = 32;
    o.head_dim = 16;
    o.layers = device == 0 ? 2 : 1; /* an emulated GPU is slow */
    o.batch = 2;
    o.length = 8;
    o.steps = device == 0 ? 8 : 4;
    o.save_every = o.steps / 2;
    (void)snprintf(o.dtype, sizeof o.dtype, "bf16");
    (void)snprintf(o.fp8, sizeof o.fp8, "%s", fp8);
    return o;
}

static carry_status run_on(const carry_train_options *options, int device, bool resume, bool slow, told *t) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_train_hooks hooks = {.sink = {.user = t, .note = on_note},
                               .report = on_report,
                               .evaluated = on_evaluation,
                               .user = t,
                               .device = device,
                               .slow_fp8 = slow,
                               .resume = resume};
    told_run run = {.options = options, .hooks = &hooks};
    memset(t, 0, sizeof *t);
    const carry_status status = carry_comm_threads(&ctx, 1, NULL, run_rank, &run);
    (void)snprintf(t->error, sizeof t->error, "%s", carry_ctx_error(ctx));
    carry_ctx_free(ctx);
    return status;
}

static void run_ok(const carry_train_options *options, int device, bool resume, told *t) {
    if (run_on(options, device, resume, true, t) != CARRY_OK) {
        fail_msg("training failed: %s", t->error);
    }
}

static void assert_same_file(const char *out, const char *other, const char *name) {
    size_t length, other_length;
    char *bytes = bytes_of(out, name, &length), *others = bytes_of(other, name, &other_length);
    assert_int_equal(length, other_length);
    assert_memory_equal(bytes, others, length);
    free(bytes);
    free(others);
}

/* A run whose last checkpoint is removed goes on from the one before. */
static void check_resume(void **state, int device) {
    char whole[256], again[256], name[64], path[600];
    told t;
    const carry_train_options first = sized(below(whole, state, device == 0 ? "whole" : "whole-gpu"), "all", device);
    carry_train_options second = sized(below(again, state, device == 0 ? "again" : "again-gpu"), "all", device);
    run_ok(&first, device, false, &t);
    run_ok(&second, device, false, &t);
    (void)snprintf(name, sizeof name, "step-%d/optimizer.safetensors", (int)second.steps);
    (void)snprintf(path, sizeof path, "%s/%s", again, name);
    assert_int_equal(unlink(path), 0);
    second.no_graph = true; /* other launches, the same bits */
    run_ok(&second, device, true, &t);
    assert_same_file(whole, again, name);
    size_t length;
    char *bytes = bytes_of(whole, name, &length);
    assert_non_null(strstr(bytes + 8, "fp8.scales")); /* in the JSON header, after its length */
    free(bytes);
    (void)snprintf(name, sizeof name, "step-%d/model.safetensors", (int)second.steps);
    assert_same_file(whole, again, name);
}

static void test_a_resumed_run_has_the_same_bits(void **state) {
    check_resume(state, 0);
    if (carry_device_count() > 1) {
        check_resume(state, 1);
    }
}

/* With another list, scales are measured again. */
static void test_another_list_goes_on(void **state) {
    char out[256];
    told t;
    carry_train_options o = sized(below(out, state, "list"), "down", 0);
    run_ok(&o, 0, false, &t);
    o.steps *= 2;
    (void)snprintf(o.fp8, sizeof o.fp8, "o:forward,down");
    run_ok(&o, 0, true, &t);
    assert_true(isfinite(t.loss[o.steps]));
}

/* Losses of a few steps from the same weights: near log 16. */
static void test_losses_are_near_those_in_bf16(void **state) {
    char out[256], other[256];
    told with, without;
    const carry_train_options o = sized(below(out, state, "with"), "all", 0);
    const carry_train_options p = sized(below(other, state, "without"), "", 0);
    run_ok(&o, 0, false, &with);
    run_ok(&p, 0, false, &without);
    assert_true(with.loss[1] != without.loss[1]);
    assert_non_null(strstr(with.note, "--fp8 all: qkv, up in bf16")); /* on the CPU maps are separate products */
    for (int64_t i = 1; i <= o.steps; i++) {
        assert_near(with.loss[i], without.loss[i], 0.05);
    }
}

static void test_slow_devices_and_ranks_are_refused(void **state) {
    char out[256];
    told t;
    carry_train_options o = sized(below(out, state, "refused"), "all", 0);
    assert_int_equal(run_on(&o, 0, false, false, &t), CARRY_EUNSUPPORTED);
    assert_non_null(strstr(t.error, "compute capability 8.9"));
    assert_int_equal(train_on(2, &o, false, NULL, &t), CARRY_EUNSUPPORTED);
    assert_non_null(strstr(t.error, "one rank, not 2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_resumed_run_has_the_same_bits),
        cmocka_unit_test(test_another_list_goes_on),
        cmocka_unit_test(test_losses_are_near_those_in_bf16),
        cmocka_unit_test(test_slow_devices_and_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
