/* The loop over steps with a trainee of two weights: the sums of steps may be read after each or many steps later, as
   on a GPU; either way, a step that is not finite is found, named and does not change the weights. */
#include "train_support.h"

#include "train/steps.h"

#define STEPS 23

typedef struct fake {
    carry_steps loop;
    carry_parameters own;
    int64_t bad;  /* the first step whose gradient is not finite, or -1 */
    int64_t bads; /* the number of such steps from `bad` on */
    int notes;
    int reports;
    double mean, loss;
    float last[2]; /* the weights when a step begins */
} fake;

static carry_status next(void *self, carry_position *after) {
    const fake *f = self;
    *after = (carry_position){.row = f->loop.step + 1};
    return CARRY_OK;
}

/* The loss is the sum of (w - 3)^2 / 2 over the two weights. */
static carry_status gradients(void *self, carry_tensor total, carry_status (*ready)(void *, int64_t, int64_t),
                              void *user) {
    fake *f = self;
    double *sums = total.data;
    (void)user;
    assert_null(ready); /* one rank */
    for (int i = 0; i < 2; i++) {
        const float off = f->own.weights[i] - 3.0f;
        f->own.gradients[i] += f->bad >= 0 && f->loop.step >= f->bad && f->loop.step < f->bad + f->bads ? NAN : off;
        sums[0] += 0.5 * (double)off * (double)off;
    }
    sums[1] += 2.0;
    return CARRY_OK;
}

static void report(void *self, const carry_steps_report *r) {
    fake *f = self;
    f->reports++;
    f->mean = r->mean;
    f->loss = r->loss;
    assert_true(r->since >= 1 && r->step == f->loop.step);
}

static carry_status evaluate(void *self) {
    (void)self;
    return CARRY_OK;
}

static carry_status save(const void *model, const char *folder) {
    const fake *f = model;
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(f->own.ctx, path, folder, "config.json"));
    CARRY_TRY(carry_file_replace(f->own.ctx, path, "{}", 2));
    return carry_parameters_save(&f->own, folder, CARRY_F32);
}

static carry_status describe(const void *self, carry_checkpoint *checkpoint) {
    checkpoint->model = self;
    checkpoint->save = save;
    return CARRY_OK;
}

static carry_status explain(void *self, char *text, size_t size) {
    (void)self;
    (void)snprintf(text, size, "layer 3, token 5");
    return CARRY_OK;
}

static const carry_trainee trainee = {.resume = "again",
                                      .next = next,
                                      .gradients = gradients,
                                      .explain = explain,
                                      .report = report,
                                      .evaluate = evaluate,
                                      .describe = describe};
static const carry_train_key keys[] = {{0}};

static void note(void *user, int64_t step, const char *line) {
    fake *f = user;
    assert_non_null(strstr(line, "was skipped"));
    assert_non_null(strstr(line, "; layer 3, token 5 ("));
    assert_in_range(step, f->bad + 1, f->bad + f->bads);
    f->notes++;
}

/* `bads` steps from `bad` on are not finite, and at most `limit` in a row may be skipped. */
static carry_status train_skipping(fake *f, carry_comm *comm, int64_t lag, int64_t log_every, int64_t bad, int64_t bads,
                                   int64_t limit, const char *out) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    *f = (fake){.bad = bad, .bads = bads};
    const carry_sink sink = {.user = f, .note = note};
    assert_ok(ctx, carry_parameters_open(ctx, &f->own, 0, 1));
    (void)carry_parameters_add(&f->own, (carry_parameter){.name = "w", .rank = 1, .shape = {2}});
    assert_ok(ctx, carry_parameters_allocate(&f->own));
    assert_ok(ctx, carry_parameters_want_gradients(&f->own));
    carry_steps *s = &f->loop;
    carry_steps_init(s, comm, out, &sink);
    assert_ok(ctx, carry_steps_find(s, false));
    s->trainee = &trainee;
    s->self = f;
    s->log_every = log_every;
    s->save_every = 1000;
    s->keep = 1;
    s->keys = keys;
    s->options = f;
    s->seen_each = 2;
    s->lag = lag;
    s->skip_limit = limit;
    s->schedule = (carry_schedule){.kind = CARRY_SCHEDULE_CONSTANT, .rate = 0.1, .final = 0.1, .steps = STEPS};
    const carry_optimizer_options adam = {.b1 = 0.9, .b2 = 0.99, .eps = 1e-8, .clip = 1.0};
    assert_ok(ctx, carry_steps_open(s, &f->own, &adam));
    carry_status status = carry_steps_run(s);
    f->last[0] = f->own.weights[0];
    f->last[1] = f->own.weights[1];
    carry_steps_close(s);
    carry_parameters_free(&f->own);
    return status;
}

static carry_status train(fake *f, carry_comm *comm, int64_t lag, int64_t log_every, int64_t bad, const char *out) {
    return train_skipping(f, comm, lag, log_every, bad, 1, 0, out);
}

static void test_sums_that_are_read_later_change_nothing(void **state) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *comm;
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
    char out[256];
    (void)below(out, state, "run");
    fake each;
    fake later;
    assert_ok(ctx, train(&each, comm, 1, 5, -1, out));
    assert_int_equal(each.reports, 1 + STEPS / 5 + 1);
    for (int64_t lag = 2; lag <= CARRY_STEPS_LAG; lag = 3 * lag + 1) { /* 2, 7, 22: also read between reports */
        assert_ok(ctx, train(&later, comm, lag, 5, -1, out));
        assert_memory_equal(each.last, later.last, sizeof each.last);
        assert_int_equal(each.reports, later.reports);
        assert_true(each.loss == later.loss);
        assert_true(each.mean == later.mean);
    }
    carry_comm_close(comm);
    carry_ctx_free(ctx);
}

static void test_a_step_that_is_not_finite_is_found_and_leaves_the_weights(void **state) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *comm;
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
    char out[256];
    (void)below(out, state, "run");
    fake at_once;
    fake later;
    for (int64_t bad = 0; bad < STEPS; bad += 6) {
        char wanted[64];
        (void)snprintf(wanted, sizeof wanted, "step %d has a loss of", (int)bad + 1);
        assert_refused(ctx, CARRY_ERANGE, wanted, train(&at_once, comm, 1, 10, bad, out));
        assert_refused(ctx, CARRY_ERANGE, wanted, train(&later, comm, 16, 10, bad, out));
        assert_int_equal(later.loop.step, bad);
        assert_int_equal(later.loop.seen, 2 * bad);
        assert_int_equal(later.loop.position.row, bad);
        assert_memory_equal(at_once.last, later.last, sizeof later.last);
    }
    carry_comm_close(comm);
    carry_ctx_free(ctx);
}

/* Skipped steps change no weight, whenever they are found; one too many in a row ends the run in the state before the
   first. */
static void test_steps_that_are_not_finite_are_skipped_and_counted(void **state) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *comm;
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
    char out[256];
    (void)below(out, state, "run");
    fake at_once;
    fake later;
    for (int64_t bads = 1; bads <= 4; bads++) {
        assert_ok(ctx, train_skipping(&at_once, comm, 1, 10, 6, bads, 4, out));
        assert_ok(ctx, train_skipping(&later, comm, 16, 10, 6, bads, 4, out));
        assert_int_equal(at_once.notes, bads);
        assert_int_equal(later.notes, bads);
        assert_int_equal(later.loop.skipped, bads);
        assert_memory_equal(at_once.last, later.last, sizeof later.last);
        assert_true(isfinite(later.loss) && later.loss == at_once.loss);
    }
    static const int64_t lags[] = {1, 16};
    for (int i = 0; i < 2; i++) {
        assert_refused(ctx, CARRY_ERANGE, "step 7, the first of 5 in a row",
                       train_skipping(&later, comm, lags[i], 10, 6, 9, 4, out));
        assert_int_equal(later.loop.step, 6);
        assert_int_equal(later.loop.position.row, 6);
        assert_int_equal(later.notes, 4);
    }
    fake six;
    assert_refused(ctx, CARRY_ERANGE, "step 7", train(&six, comm, 1, 10, 6, out));
    assert_memory_equal(six.last, later.last, sizeof later.last);
    carry_comm_close(comm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_that_are_read_later_change_nothing),
        cmocka_unit_test(test_a_step_that_is_not_finite_is_found_and_leaves_the_weights),
        cmocka_unit_test(test_steps_that_are_not_finite_are_skipped_and_counted),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
