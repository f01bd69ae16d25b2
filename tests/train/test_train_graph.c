/* Training on a GPU: a step replayed as a graph has the bits of one launched kernel by kernel, a resumed run has those
   of one that was not stopped, and steps with gradients that are not finite are skipped. Without a GPU all of it is
   reported as skipped; the emulated GPU records graphs too. */
/* labels: gpu */
#include "train_gpu_support.h"

/* Some losses are reported after each step, others once in four: the time of reading must not matter either. */
static void graph_equals_plain(void **state, const char *dtype, int64_t accumulate, bool recompute) {
    char name[64];
    char plain_name[64];
    told plain;
    told graph;
    (void)snprintf(plain_name, sizeof plain_name, "plain-%s-%d", dtype, (int)accumulate);
    (void)snprintf(name, sizeof name, "graph-%s-%d", dtype, (int)accumulate);
    char out[256];
    carry_train_options o = small(below(out, state, plain_name));
    (void)snprintf(o.dtype, sizeof o.dtype, "%s", dtype);
    o.accumulate = accumulate;
    o.recompute = recompute;
    o.no_graph = true;
    o.eval_every = 3;
    gpu_ok(&o, false, NULL, &plain);
    (void)below(o.out, state, name);
    o.no_graph = false;
    o.log_every = 4;
    gpu_ok(&o, false, NULL, &graph);
    assert_int_equal(graph.notes, plain.notes); /* no note that a step cannot be recorded */
    static const int told_steps[] = {1, 4, 6};
    for (size_t i = 0; i < sizeof told_steps / sizeof told_steps[0]; i++) {
        const int step = told_steps[i];
        assert_true(graph.loss[step] == plain.loss[step] && graph.norm[step] == plain.norm[step]);
        assert_true(graph.rate[step] == plain.rate[step]);
    }
    assert_true(graph.evaluation == plain.evaluation);
    assert_same_end(state, plain_name, name);
}

static void test_a_replayed_step_has_the_bits_of_a_launched_one(void **state) {
    graph_equals_plain(state, "f32", 1, false);
    graph_equals_plain(state, "bf16", 2, true);
}

static int allowed;

static bool stop_later(void) {
    return --allowed < 0;
}

static void test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(void **state) {
    char out[256];
    told t;
    carry_train_options o = small(below(out, state, "whole"));
    o.log_every = 3;
    gpu_ok(&o, false, NULL, &t);
    (void)below(o.out, state, "halves");
    allowed = 3;
    assert_int_equal(on_gpu(&o, false, &(gpu_hooks){.stop = stop_later}, &t), CARRY_EINTERRUPTED);
    gpu_ok(&o, true, NULL, &t);
    assert_same_end(state, "whole", "halves");
}

/* A learning rate so high that weights leave the range of f32. */
static carry_train_options blown(const char *out, int64_t limit) {
    carry_train_options o = small(out);
    o.rate = 1e30;
    o.warmup = 0;
    o.decay = 1e3;
    o.clip = 0.0;
    o.steps = 16;
    o.save_every = 1000;
    o.log_every = 7;
    o.skip_limit = limit;
    return o;
}

static void test_too_many_steps_in_a_row_that_are_not_finite_end_the_run(void **state) {
    char out[256];
    char wanted[64];
    told t;
    for (int64_t limit = 0; limit <= 4; limit += 4) {
        (void)snprintf(wanted, sizeof wanted, "blown-%d", (int)limit);
        const carry_train_options o = blown(below(out, state, wanted), limit);
        assert_int_equal(on_gpu(&o, false, NULL, &t), CARRY_ERANGE);
        assert_non_null(strstr(t.error, "not finite"));
        (void)snprintf(wanted, sizeof wanted, "the first of %d in a row", (int)limit + 1);
        assert_true(limit == 0 || strstr(t.error, wanted) != NULL);
        assert_int_equal(t.notes, limit); /* one for each skipped step */
    }
}

/* Sums in another order: losses stay within 2e-4 of each other over 6 steps, as between ranks (test_train_loop). */
static void test_every_method_learns_alike(void **state) {
    char out[256];
    told chunk;
    told other;
    carry_train_options o = small(below(out, state, "chunk"));
    o.length = 12;
    gpu_ok(&o, false, NULL, &chunk);
    static const char *const methods[] = {"cyclic", "scan", "blelloch", "sequential"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        (void)below(o.out, state, methods[i]);
        (void)snprintf(o.method, sizeof o.method, "%s", methods[i]);
        gpu_ok(&o, false, NULL, &other);
        assert_int_equal(other.notes, 0);
        for (int step = 1; step <= 6; step++) {
            assert_near(other.loss[step], chunk.loss[step], 2e-4);
            assert_near(other.norm[step], chunk.norm[step], 2e-3 * chunk.norm[step] + 1e-4);
        }
    }
    (void)below(o.out, state, "linear");
    (void)snprintf(o.method, sizeof o.method, "linear");
    assert_int_not_equal(on_gpu(&o, false, NULL, &other), CARRY_OK);
    assert_non_null(strstr(other.error, "--device cpu"));
}

/* The emulated GPU has 4 GB, real ones more: too many rows for either. */
static void test_a_batch_that_does_not_fit_is_refused_with_what_fits(void **state) {
    char out[256];
    told t;
    carry_train_options o = small(below(out, state, "large"));
    o.hidden = 64;
    o.batch = (int64_t)1 << 22;
    assert_int_equal(on_gpu(&o, false, NULL, &t), CARRY_EMEMORY);
    assert_non_null(strstr(t.error, "too much"));
    assert_non_null(strstr(t.error, "--accumulate"));
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no GPU here\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_replayed_step_has_the_bits_of_a_launched_one),
        cmocka_unit_test(test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped),
        cmocka_unit_test(test_every_method_learns_alike),
        cmocka_unit_test(test_a_batch_that_does_not_fit_is_refused_with_what_fits),
        cmocka_unit_test(test_too_many_steps_in_a_row_that_are_not_finite_end_the_run),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
