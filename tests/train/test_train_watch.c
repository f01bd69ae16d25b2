/* Events during a training on a GPU: a profile of some steps records only those steps and changes nothing; steps with
   gradients that are not finite are skipped, counted and reported, and the run goes on; a full disk leaves the last
   checkpoint intact; the reported memory is the run's own. Without a GPU all of it is skipped; the emulated GPU runs
   it. */
/* labels: gpu */
#include "train_gpu_support.h"

#include <signal.h>
#include <sys/resource.h>

#include "core/clock.h"
#include "device/activity.h"

/* Steps [from, from + count), as carry profile --profile-from --profile-steps takes them. */
static struct {
    int64_t from, count;
    carry_activity_log *log;
    double began, seconds;
    bool is_absent; /* libcupti is missing */
} window;

static void watch_step(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end) {
    assert_int_equal(rank, 0);
    const bool is_inside = done + 1 >= window.from && done + 1 < window.from + window.count && !is_end;
    assert_ok(ctx, carry_stream_wait(ctx, device, carry_ctx_stream(ctx, device)));
    if (is_inside && window.log == NULL && !window.is_absent) {
        window.is_absent = carry_activity_start(ctx, &window.log, 0) != CARRY_OK;
        window.began = carry_seconds();
    } else if (!is_inside && window.log != NULL && window.seconds == 0.0) {
        window.seconds = carry_seconds() - window.began;
        assert_ok(ctx, carry_activity_stop(ctx, window.log));
    }
}

typedef struct seen {
    int64_t kernels, copies, named; /* named: kernels whose operator is known */
} seen;

/* Runs one training with a window and returns what the window recorded. */
static seen see(void **state, const char *name, bool no_graph, int64_t from, int64_t count) {
    char out[256];
    told t;
    seen s = {0};
    carry_train_options o = small(below(out, state, name));
    o.no_graph = no_graph;
    o.log_every = 3;
    window.from = from;
    window.count = count;
    window.log = NULL;
    window.seconds = 0.0;
    gpu_ok(&o, false, &(gpu_hooks){.step = watch_step}, &t);
    if (window.is_absent) {
        return s;
    }
    assert_non_null(window.log);
    assert_int_equal(window.log->lost, 0);
    assert_true(window.log->busy > 0.0 && window.log->busy <= window.seconds);
    for (int i = 0; i <= CARRY_ACTIVITY_NAMES; i++) {
        const carry_activity_sum *sum = &window.log->sum[i];
        s.kernels += sum->kind == CARRY_ACTIVITY_KERNEL ? sum->calls : 0;
        s.copies += sum->kind == CARRY_ACTIVITY_COPY ? sum->calls : 0;
        s.named += sum->kind == CARRY_ACTIVITY_KERNEL && sum->operator_name[0] != NULL ? sum->calls : 0;
    }
    carry_activity_free(window.log);
    return s;
}

static void test_a_window_sees_its_steps_alone(void **state) {
    char out[256];
    told t;
    const carry_train_options o = small(below(out, state, "unseen"));
    gpu_ok(&o, false, NULL, &t);
    const seen one = see(state, "one", true, 4, 1);
    if (window.is_absent) {
        print_message("skipped: kernels of this GPU cannot be recorded\n");
        skip();
    }
    const seen two = see(state, "two", true, 4, 2);
    const seen replayed = see(state, "replayed", false, 4, 1);
    const seen replayed_two = see(state, "replayed-two", false, 4, 2);
    assert_true(one.kernels > 50);
    assert_int_equal(two.kernels, 2 * one.kernels);
    assert_int_equal(replayed_two.kernels, 2 * replayed.kernels);
    assert_int_equal(replayed.kernels, one.kernels);
    assert_true(one.copies > 0 && one.named > one.kernels / 2);
    static const char *const runs[] = {"one", "two", "replayed", "replayed-two"};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        assert_same_end(state, "unseen", runs[i]);
    }
}

/* A weight is NaN during steps [from, until), so their gradients are NaN, too. */
static struct {
    const carry_lm *lm;
    int64_t from, until;
    float *before,
        *after; /* all weights: before the first of these steps, and after the last, when the weight is restored */
    float was;
} poison;

static void find_model(void *user, const carry_train_start *start) {
    (void)user;
    poison.lm = start->lm;
}

static void set_weight(float value) {
    const carry_parameters *own = &poison.lm->own;
    assert_ok(own->ctx, carry_parameters_upload(own, own->weights, own->parameter[poison.lm->norm].offset, &value, 1));
}

static void poison_step(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end) {
    const carry_parameters *own = &poison.lm->own;
    (void)rank;
    (void)is_end;
    assert_ok(ctx, carry_stream_wait(ctx, device, carry_ctx_stream(ctx, device)));
    if (done + 1 == poison.from) {
        poison.before = calloc((size_t)own->count, sizeof *poison.before);
        poison.after = calloc((size_t)own->count, sizeof *poison.after);
        assert_true(poison.before != NULL && poison.after != NULL);
        assert_ok(ctx, carry_parameters_download(own, poison.before, own->weights, 0, own->count));
        poison.was = poison.before[own->parameter[poison.lm->norm].offset];
        set_weight(NAN);
    } else if (done + 1 == poison.until) {
        set_weight(poison.was);
        assert_ok(ctx, carry_parameters_download(own, poison.after, own->weights, 0, own->count));
        assert_memory_equal(poison.after, poison.before, (size_t)own->count * sizeof *poison.before);
    }
}

static const gpu_hooks poisoning = {.step = poison_step, .started = find_model};

static void free_poison(void) {
    free(poison.before);
    free(poison.after);
    poison.before = poison.after = NULL;
}

/* With kernels launched one by one and replayed; with losses read after every step and only at the end. */
static void test_steps_that_are_not_finite_are_left_out_and_the_run_goes_on(void **state) {
    char out[256];
    told t;
    for (int way = 0; way < 4; way++) {
        char name[32];
        (void)snprintf(name, sizeof name, "poisoned-%d", way);
        carry_train_options o = small(below(out, state, name));
        o.no_graph = way % 2 == 1;
        o.log_every = way < 2 ? 1 : 8;
        o.save_every = 100;
        o.steps = 8;
        o.skip_limit = 3;
        poison.from = 4;
        poison.until = 6;
        gpu_ok(&o, false, &poisoning, &t);
        assert_int_equal(t.notes, 2); /* steps 4 and 5 */
        assert_non_null(strstr(t.note, "step 5 was skipped"));
        assert_non_null(strstr(t.note, "2 in a row, 2 in all"));
        assert_int_equal(t.last, 8);
        assert_true(isfinite(t.loss[8]) && isfinite(t.norm[8]));
        free_poison();
    }
}

/* The state before the first bad step is saved, and a run that resumes from it completes. */
static void test_one_too_many_of_them_ends_the_run_with_the_state_before(void **state) {
    char out[256];
    told t;
    carry_train_options o = small(below(out, state, "ended"));
    o.save_every = 100;
    o.log_every = 8;
    o.steps = 8;
    o.skip_limit = 1;
    poison.from = 4;
    poison.until = 100;
    assert_int_equal(on_gpu(&o, false, &poisoning, &t), CARRY_ERANGE);
    free_poison();
    assert_non_null(strstr(t.error, "step 4, the first of 2 in a row that are not finite"));
    assert_non_null(strstr(t.error, "model.norm.weight was not finite before it"));
    assert_non_null(strstr(t.error, "step-3"));
    assert_int_equal(t.notes, 1);
}

static struct rlimit unlimited;

static void fill_disk(carry_ctx *ctx, int rank, int device, int64_t done, bool is_end) {
    (void)ctx;
    (void)rank;
    (void)device;
    (void)is_end;
    const struct rlimit little = {.rlim_cur = 8192, .rlim_max = unlimited.rlim_max};
    if (done == 3) {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    }
}

/* A limit on the size of files fails a write in the middle, as a full disk does. */
static void test_a_disk_that_fills_leaves_the_last_checkpoint(void **state) {
    char out[256];
    told t;
    carry_train_options o = small(below(out, state, "full"));
    gpu_ok(&o, false, NULL, &t);
    (void)below(o.out, state, "filled");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    const carry_status status = on_gpu(&o, false, &(gpu_hooks){.step = fill_disk}, &t);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
    assert_int_equal(status, CARRY_EIO);
    assert_non_null(strstr(t.error, "the checkpoint of step 4 is not written, that of step 2 is kept"));
    gpu_ok(&o, true, NULL, &t); /* and room again */
    assert_same_end(state, "full", "filled");
}

static void test_the_memory_that_is_reported_is_the_runs_own(void **state) {
    char out[256];
    told alone;
    told beside;
    const size_t bytes = (size_t)256 << 20; /* more than the run uses, including libraries */
    carry_ctx *other = support_ctx(1, NULL, NULL);
    void *theirs;
    carry_train_options o = small(below(out, state, "alone"));
    o.steps = 2;
    gpu_ok(&o, false, NULL, &alone);
    assert_ok(other, carry_device_alloc(other, &theirs, 1, bytes));
    (void)below(o.out, state, "beside");
    gpu_ok(&o, false, NULL, &beside);
    assert_true(alone.memory > 0.0 && alone.memory < (double)bytes);
    assert_true(beside.memory == alone.memory);
    carry_device_free(other, 1, theirs);
    carry_ctx_free(other);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no GPU here\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_window_sees_its_steps_alone),
        cmocka_unit_test(test_steps_that_are_not_finite_are_left_out_and_the_run_goes_on),
        cmocka_unit_test(test_one_too_many_of_them_ends_the_run_with_the_state_before),
        cmocka_unit_test(test_a_disk_that_fills_leaves_the_last_checkpoint),
        cmocka_unit_test(test_the_memory_that_is_reported_is_the_runs_own),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
