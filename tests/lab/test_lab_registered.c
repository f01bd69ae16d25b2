/* A family that the program registers: it is found, planned, measured and judged like those of the lab, and the values
   that it reports for each step reach the store. */
#include <math.h>
#include <unistd.h>

#include "lab/experiment/experiment.h"
#include "support.h"

#define STEPS 4

typedef struct toy {
    carry_ctx *ctx;
    int chosen, ran[2];
    double loss[2][STEPS];
} toy;

static const char *toy_method(int index) {
    static const char *const names[] = {"slow", "quick"};
    return index >= 0 && index < 2 ? names[index] : NULL;
}

static carry_status toy_open(carry_ctx *ctx, void **instance, carry_problem *problem, uint64_t seed, int copies) {
    (void)seed;
    (void)copies;
    *instance = NULL;
    (void)carry_problem_size(problem, "t", 1);
    carry_status status = carry_problem_finish(ctx, problem, "t");
    if (status == CARRY_OK) {
        toy *t = calloc(1, sizeof *t);
        assert_non_null(t);
        t->ctx = ctx;
        *instance = t;
    }
    return status;
}

static carry_status toy_plan(carry_ctx *ctx, void **instance, carry_problem *problem, bool measure) {
    (void)measure;
    return toy_open(ctx, instance, problem, 0, 0);
}

static double toy_bytes(const void *instance) {
    (void)instance;
    return INFINITY;
}

static carry_status toy_choose(void *instance, const char *method) {
    ((toy *)instance)->chosen = method != NULL && strcmp(method, "quick") == 0;
    return CARRY_OK;
}

static const char *toy_chosen(const void *instance) {
    return toy_method(((const toy *)instance)->chosen);
}

static const char *toy_only(const void *instance) {
    (void)instance;
    return NULL;
}

static carry_status toy_run(void *instance) {
    (void)instance;
    return CARRY_OK;
}

static carry_status toy_time(void *instance, double *seconds) {
    toy *t = instance;
    t->ran[t->chosen]++;
    for (int i = 0; i < STEPS; i++) {
        t->loss[t->chosen][i] = 3.0 - 0.5 * i - 0.1 * t->chosen;
    }
    *seconds = t->chosen ? 1e-3 : 4e-3;
    return CARRY_OK;
}

static carry_counts toy_counts(const void *instance) {
    const toy *t = instance;
    return (carry_counts){.flops = 1e6,
                          .tokens = 100,
                          .perplexity = exp(t->loss[t->chosen][STEPS - 1]),
                          .busy = t->chosen ? 0.9 : 0.0, /* unknown for slow */
                          .cost = t->chosen ? 2.0 : 8.0,
                          .overlap = t->chosen ? 0.75 : 0.0,
                          .slower_stage = t->chosen ? 0.5e-3 : 0.0}; /* slow is no stream */
}

static const double *toy_curve(const void *instance, int *count) {
    const toy *t = instance;
    *count = t->ran[t->chosen] > 0 ? STEPS : 0;
    return t->loss[t->chosen];
}

static carry_status toy_compare(void *instance, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    (void)instance;
    deviations[0] = (carry_deviation){.tensor = "o", .bound = 1e-3};
    *count = 1;
    return CARRY_OK;
}

static const carry_family toys = {.name = "toy",
                                  .about = "a toy",
                                  .takes = "t",
                                  .example = "toy:t3",
                                  .open = toy_open,
                                  .plan = toy_plan,
                                  .close = free,
                                  .bytes = toy_bytes,
                                  .method = toy_method,
                                  .choose = toy_choose,
                                  .chosen = toy_chosen,
                                  .about_plan = toy_chosen,
                                  .only = toy_only,
                                  .run = toy_run,
                                  .time = toy_time,
                                  .counts = toy_counts,
                                  .curve = toy_curve,
                                  .compare = toy_compare};

static int families(void) {
    int count = 0;
    while (carry_family_at(count) != NULL) {
        count++;
    }
    return count;
}

static void a_family_is_registered_once(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, "plain", NULL);
    const carry_family *found;
    assert_refused(ctx, CARRY_ENOTFOUND, "allscan", carry_family_find(ctx, &found, "toy"));
    int before = families();
    carry_family_register(&toys);
    carry_family_register(&toys);
    assert_int_equal(families(), before + 1);
    assert_ok(ctx, carry_family_find(ctx, &found, "toy"));
    assert_ptr_equal(found, &toys);
    assert_refused(ctx, CARRY_ENOTFOUND, "toy", carry_family_find(ctx, &found, "tray"));
    carry_ctx_free(ctx);
}

/* The value of a metric at a step, or NaN if it is missing. */
static double metric(const carry_run *run, const char *name, int64_t step) {
    for (int i = 0; i < run->metrics; i++) {
        if (strcmp(run->metric[i].name, name) == 0 && run->metric[i].step == step) {
            return run->metric[i].value;
        }
    }
    return NAN;
}

static const char experiment[] =
    "name: toys\nhypothesis: quick is quicker\nmethods: [slow, quick]\n"
    "grid:\n  - stage: cpu\n    problem: toy:t{t}\n    t: [1, 2]\n    repeats: 2\n    spread: 1000\n"
    "success:\n  - speedup(quick, slow) >= 4\n"
    "  - tokens_per_s(quick) / tokens_per_s(slow) >= 3.9\n"
    "  - perplexity(quick) / perplexity(slow) <= 0.91\n"
    "  - busy(quick) > 0.7\n  - mean(cost(quick)) / mean(cost(slow)) <= 1 / 3\n"
    "  - overlap(quick) == 0.75\n  - time(quick) / slower_stage(quick) <= 2.1\n"
    "failure:\n  - perplexity(slow) < 1\n";

static void what_it_gives_is_judged_and_stored(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, "plain", NULL);
    char folder[] = "/tmp/carry-registered-XXXXXX";
    char file[64], store_path[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(file, sizeof file, "%s/toys.yaml", folder);
    (void)snprintf(store_path, sizeof store_path, "%s/store.db", folder);
    FILE *stream = fopen(file, "w");
    assert_non_null(stream);
    assert_true(fputs(experiment, stream) >= 0 && fclose(stream) == 0);
    carry_family_register(&toys);
    carry_store *store;
    carry_experiment *e;
    carry_experiment_options options = {0};
    carry_decision decision;
    carry_run *run;
    assert_ok(ctx, carry_store_open(ctx, &store, store_path));
    assert_ok(ctx, carry_store_begin(store, &options.run, &(carry_run_start){"experiment", "toys", "carry run", NULL}));
    options.store = store;
    assert_ok(ctx, carry_experiment_load(ctx, &e, file));
    const carry_ceilings ceilings = {.gemm_gflops = 1.0, .copy_gbytes_s = 1.0};
    assert_ok(ctx, carry_experiment_measure(e, &ceilings, &options));
    assert_ok(ctx, carry_experiment_judge(e, &decision, &options));
    assert_int_equal(decision, CARRY_PROCEED);
    assert_ok(ctx, carry_store_load(store, &run, options.run));
    for (int i = 0; i < STEPS; i++) {
        assert_true(metric(run, "loss:slow, cpu", i + 1) == 3.0 - 0.5 * i);
        assert_true(metric(run, "loss:quick, cpu", i + 1) == 3.0 - 0.5 * i - 0.1);
        assert_true(metric(run, "loss:quick, cpu, 2", i + 1) == 3.0 - 0.5 * i - 0.1);
    }
    assert_true(isnan(metric(run, "loss:slow, cpu", 0)) && isnan(metric(run, "loss:slow, cpu", STEPS + 1)));
    assert_true(metric(run, CARRY_PERPLEXITY, 0) == exp(1.5));
    assert_true(metric(run, CARRY_BUSY, 1) == 0.9 && isnan(metric(run, CARRY_BUSY, 0)));
    assert_true(metric(run, CARRY_TRAINING_COST, 0) == 8.0 && metric(run, CARRY_TRAINING_COST, 3) == 2.0);
    assert_true(metric(run, CARRY_OVERLAP, 1) == 0.75 && metric(run, CARRY_SLOWER_STAGE, 1) == 0.5e-3);
    assert_true(isnan(metric(run, CARRY_OVERLAP, 0)) && isnan(metric(run, CARRY_SLOWER_STAGE, 0)));
    carry_run_free(run);
    carry_experiment_free(e);
    carry_store_close(store);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_family_is_registered_once),
        cmocka_unit_test(what_it_gives_is_judged_and_stored),
    };
    return cmocka_run_group_tests_name("lab/registered", tests, NULL, NULL);
}
