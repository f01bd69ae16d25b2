/* Experiments: the grid that a file describes, refusals before anything runs, the decision. */
#include "lab/experiment/experiment.h"

#include <math.h>
#include <unistd.h>

#include "carry/device.h"
#include "lab/experiment/experiment_runs.h"
#include "support.h"

static carry_ctx *ctx;
static char path[64];

static int open_context(void **state) {
    (void)state;
    ctx = support_ctx(1, "plain", NULL);
    (void)snprintf(path, sizeof path, "/tmp/carry-experiment-XXXXXX");
    int file = mkstemp(path);
    assert_true(file >= 0);
    (void)close(file);
    return 0;
}

static int close_context(void **state) {
    (void)state;
    (void)unlink(path);
    carry_ctx_free(ctx);
    return 0;
}

static void write_file(const char *text, size_t length) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static carry_status load(carry_experiment **e, const char *text) {
    write_file(text, strlen(text));
    return carry_experiment_load(ctx, e, path);
}

static carry_experiment *loaded(const char *text) {
    carry_experiment *e;
    assert_ok(ctx, load(&e, text));
    return e;
}

/* place is ":line:column: words". */
static void refuse(const char *place, const char *text) {
    carry_experiment *e = (carry_experiment *)&ctx;
    carry_status status = load(&e, text);
    char wanted[300];
    (void)snprintf(wanted, sizeof wanted, "%s%s", path, place);
    if (status == CARRY_OK || strstr(carry_ctx_error(ctx), wanted) == NULL) {
        fail_msg("refused with '%s', not with '%s'", status == CARRY_OK ? "nothing" : carry_ctx_error(ctx), wanted);
    }
    assert_null(e);
}

#define HEAD "name: tiny\nhypothesis: it works\n"
#define METHODS "methods: [sequential, cyclic]\n"
#define GRID "grid:\n  - problem: scan:dense:t8:n2\n"
#define SUCCESS "success:\n  - time(cyclic) > 0\n"

static void test_a_grid_is_every_combination_in_order(void **state) {
    (void)state;
    carry_experiment *e = loaded(HEAD METHODS "warm_up: 3\nrepeats: 9\ngrid:\n"
                                              "  - stage: small\n    problem: scan:dense:{type}:t{t}:n{n}\n"
                                              "    type: [f32, bf16]\n    t: [8, 16]\n    n: [2, 3, 4]\n"
                                              "  - stage: large\n    problem: scan:dense:t99:n2\n"
                                              "    methods: [sequential]\n    seconds: 0.5\n    hot: true\n"
                                              "    warm_up: 1\n    unchecked: true\n"
                                              "success:\n  - time(cyclic, stage=small) > 0\n");
    assert_int_equal(e->points, 13);
    assert_int_equal(e->stages, 2);
    assert_string_equal(e->point[0].problem, "scan:dense:f32:t8:n2");
    assert_string_equal(e->point[1].problem, "scan:dense:f32:t8:n3"); /* the last list turns fastest */
    assert_string_equal(e->point[3].problem, "scan:dense:f32:t16:n2");
    assert_string_equal(e->point[11].problem, "scan:dense:bf16:t16:n4");
    assert_string_equal(e->point[12].problem, "scan:dense:t99:n2");
    assert_int_equal(e->outcomes, 12 * 2 + 1);
    assert_string_equal(e->stage[0].name, "small");
    assert_true(e->stage[0].warm_up == 3 && e->stage[0].repeats == 9 && !e->stage[0].hot);
    assert_true(e->stage[1].warm_up == 1 && e->stage[1].repeats == 9 && e->stage[1].hot && e->stage[1].unchecked);
    assert_true(e->stage[1].seconds == 0.5);
    assert_string_equal(e->stage[1].methods[0], "sequential");
    assert_null(e->stage[1].methods[1]);
    assert_string_equal(e->name, "tiny");
    assert_string_equal(e->hypothesis, "it works");
    assert_ok(ctx, carry_experiment_stage(e, NULL));
    assert_ok(ctx, carry_experiment_stage(e, "large"));
    assert_refused(ctx, CARRY_EARGUMENT, "has no stage 'lagre'", carry_experiment_stage(e, "lagre"));
    carry_experiment_free(e);
}

static void test_criteria_are_templates_too(void **state) {
    (void)state;
    carry_experiment *e =
        loaded(HEAD METHODS GRID "success:\n  - criterion: time({m}) {c} 1\n    m: [cyclic, sequential]\n"
                                 "    c: ['<', '>']\nfailure:\n  - time(cyclic) > 5\n");
    assert_int_equal(e->criteria, 5);
    assert_string_equal(e->criterion[0].text, "time(cyclic) < 1");
    assert_string_equal(e->criterion[3].text, "time(sequential) > 1");
    assert_true(!e->criterion[3].is_failure && e->criterion[4].is_failure);
    carry_experiment_free(e);
}

static void test_what_a_file_lacks_is_said(void **state) {
    (void)state;
    refuse(":1:1: an experiment has a name and a hypothesis", METHODS GRID SUCCESS);
    refuse(":1:7: the name and the hypothesis must not be empty", "name: ''\nhypothesis: b\n" METHODS GRID SUCCESS);
    refuse(":1:1: the grid is empty", HEAD METHODS SUCCESS);
    refuse(":4:7: the grid is empty", HEAD METHODS "grid: []\n" SUCCESS);
    refuse(":4:6: the grid is empty", HEAD METHODS "grid:\n" SUCCESS);
    refuse(":6:8: 't' is an empty list: the grid would be empty",
           HEAD METHODS "grid:\n  - problem: scan:dense:t{t}:n2\n    t: []\n" SUCCESS);
    refuse(":4:5: there are no methods", HEAD "grid:\n  - problem: scan:dense:t8:n2\n" SUCCESS);
    refuse(":5:5: an entry of the grid must have a problem", HEAD METHODS "grid:\n  - stage: cpu\n" SUCCESS);
    refuse(":5:5: an entry of the grid must be a mapping", HEAD METHODS "grid:\n  - scan:dense\n" SUCCESS);
    refuse(":1:1: there is no criterion", HEAD METHODS GRID);
    refuse(":1:1: there is no criterion", HEAD METHODS GRID "success: []\n");
    refuse(":1:1: an experiment is a mapping", "- a\n");
    refuse(":1:1: there is nothing in it", "");
    carry_experiment *e;
    assert_refused(ctx, CARRY_ENOTFOUND, "/no/such/file.yaml", carry_experiment_load(ctx, &e, "/no/such/file.yaml"));
    assert_int_not_equal(carry_experiment_load(ctx, &e, "/dev/zero"), CARRY_OK);
}

static void test_typos_are_refused_with_their_place(void **state) {
    (void)state;
    refuse(":8:7: unknown key 'nmae': expected name, hypothesis", HEAD METHODS GRID SUCCESS "nmae: x\n");
    refuse(":6:13: 'repeat' is neither a list of values for a template nor known here: problem, stage",
           HEAD METHODS GRID "    repeat: 7\n" SUCCESS);
    refuse(":5:14: '{n}' has a list of values, but 'scan:dense:t8' does not use it",
           HEAD METHODS "grid:\n  - problem: scan:dense:t8\n    n: [1, 2]\n" SUCCESS);
    refuse(":5:14: '{t}' in 'scan:dense:t{t}' has no list of values beside it",
           HEAD METHODS "grid:\n  - problem: scan:dense:t{t}\n" SUCCESS);
    refuse(":5:14: '{t}' in 'scan:dense:t{t' has no list",
           HEAD METHODS "grid:\n  - problem: 'scan:dense:t{t'\n" SUCCESS);
    refuse(":4:14: there is no method 'cylcic' for problems of the family 'scan'",
           HEAD "grid:\n  - problem: scan:dense:t8:n2\n    methods: [cylcic]\n" SUCCESS);
    refuse(":3:10: 'methods' must be a list of 1 to 24 names", HEAD "methods: cyclic\n" GRID SUCCESS);
    refuse(":3:20: duplicate method", HEAD "methods: [cyclic,  cyclic]\n" GRID SUCCESS);
    refuse(":5:14: scan has no size 'q'", HEAD METHODS "grid:\n  - problem: scan:dense:q8\n" SUCCESS);
    refuse(":5:14: there is no problem family 'scna'", HEAD METHODS "grid:\n  - problem: scna:dense\n" SUCCESS);
    refuse(":5:14: the stage 'all' has the problem 'scan:dense:t8' twice",
           HEAD METHODS "grid:\n  - problem: scan:dense:t{t}\n    t: [8, 4, 8]\n" SUCCESS);
    refuse(":6:13: needs 'gpu': expected cuda, gpus, train, stream or a problem family",
           HEAD METHODS GRID "    needs: [gpu]\n" SUCCESS);
    refuse(":4:10: 'warm_up' must be a whole number from 1 to 1000", HEAD METHODS "warm_up: 0\n" GRID SUCCESS);
    refuse(":4:10: 'repeats' must be a whole number from 1 to 2000", HEAD METHODS "repeats: 1.5\n" GRID SUCCESS);
    refuse(":4:10: 'repeats' must be a number", HEAD METHODS "repeats: many\n" GRID SUCCESS);
    refuse(":4:10: 'seconds' must be more than 0", HEAD METHODS "seconds: -1\n" GRID SUCCESS);
    refuse(":4:6: 'hot' must be true or false", HEAD METHODS "hot: yes\n" GRID SUCCESS);
    refuse(":7:5: a criterion is a text", HEAD METHODS GRID "failure:\n  - text: time(cyclic) > 1\n");
    refuse(":7:5: the criterion 'tmie(cyclic) > 0', column 1: there is no function 'tmie'",
           HEAD METHODS GRID "success:\n  - tmie(cyclic) > 0\n");
    refuse(":7:5: the criterion 'speedup(cyclic, blelloch) > 0', column 1: it names the method 'blelloch'",
           HEAD METHODS GRID "success:\n  - speedup(cyclic, blelloch) > 0\n");
    refuse(":7:5: the criterion 'time(cyclic, t=9) > 0', column 1: no problem",
           HEAD METHODS GRID "success:\n  - time(cyclic, t=9) > 0\n");
}

static void test_lengths_and_counts_are_bounded(void **state) {
    (void)state;
    size_t room = 200000;
    char *text = malloc(room);
    assert_non_null(text);
    size_t length = (size_t)sprintf(text, HEAD METHODS SUCCESS
                                    "grid:\n  - problem: scan:dense:t{t}:n{n}\n    n: [1, 2]\n    t: [1");
    for (int i = 2; i <= 300; i++) {
        length += (size_t)sprintf(text + length, ", %d", i);
    }
    (void)sprintf(text + length, "]\n");
    refuse(":7:5: the grid has more than 512 problems", text);
    length = (size_t)sprintf(text, HEAD METHODS SUCCESS "grid:\n");
    for (int i = 1; i <= 17; i++) {
        length += (size_t)sprintf(text + length, "  - problem: scan:dense:t%d\n", i);
    }
    refuse(":23:5: the grid has too many entries", text);
    length = (size_t)sprintf(text, HEAD METHODS GRID "success:\n");
    for (int i = 0; i < 129; i++) {
        length += (size_t)sprintf(text + length, "  - time(cyclic) > %d\n", i);
    }
    refuse(":135:5: there are too many criteria", text);
    (void)sprintf(text, HEAD METHODS "grid:\n  - problem: scan:dense:t{t}\n    t: ['%0500d']\n" SUCCESS, 8);
    refuse(":5:14: ", text);
    (void)sprintf(text, HEAD METHODS "grid:\n  - problem: scan:dense\n    stage: '%050d'\n" SUCCESS, 8);
    refuse(":6:12: a stage's name has 1 to 39 letters", text);
    (void)sprintf(text, HEAD METHODS "grid:\n  - problem: scan:dense\n    %0300d: [1]\n" SUCCESS, 8);
    refuse(":5:14: ", text);
    (void)sprintf(text, HEAD METHODS "grid:\n  - problem: scan:{a}{b}{c}{d}{e}{f}{g}{h}{i}\n    a: [1]\n    b: [1]\n"
                                     "    c: [1]\n    d: [1]\n    e: [1]\n    f: [1]\n    g: [1]\n    h: [1]\n"
                                     "    i: [1]\n" SUCCESS);
    refuse(":14:8: too many lists", text);
    free(text);
}

/* A need that this machine lacks is a reason to skip; a misspelt need beside it is still an error. */
static void test_needs_that_are_not_here(void **state) {
    (void)state;
#define RANKS                                                                                                 \
    "grid:\n  - stage: ranks\n    problem: allscan:wy:p{p}\n    p: [2, 8]\n    methods: [chain]\n    needs: " \
    "[allscan]\n"
    carry_experiment *e = loaded(HEAD METHODS RANKS "success:\n  - time(chain, p=8) < 1\n");
    assert_int_equal(e->points, 2);
    assert_string_equal(e->point[0].missing, "");
    carry_experiment_free(e);
    refuse(":11:5: the criterion 'time(chain, p=9) < 1'", HEAD METHODS RANKS "success:\n  - time(chain, p=9) < 1\n");
#define GPU "grid:\n  - problem: scan:dense:t8:n2:device=cuda\n    needs: [cuda]\n"
    e = loaded(HEAD METHODS GPU "success:\n  - time(cyclic, device=cuda) < 1\n");
    if (carry_device_count() < 2) {
        assert_string_equal(e->point[0].missing, "there is no GPU here");
    }
    carry_experiment_free(e);
    refuse(":5:14: there is no method 'cylcic'",
           HEAD "methods: [cylcic]\n" GPU "success:\n  - time(cylcic) < 1\n"); /* also without a GPU */
}

static int told;

static void count(void *user, const carry_outcome *outcome) {
    (void)user;
    (void)outcome;
    told++;
}

static carry_decision run(const char *text, const char *stage, carry_experiment **kept) {
    carry_experiment *e = loaded(text);
    carry_decision decision = CARRY_INCOMPLETE;
    carry_experiment_options options = {.stage = stage, .seed = 1, .measured = count};
    told = 0;
    assert_ok(ctx, carry_experiment_measure(e, &(carry_ceilings){1, 1}, &options));
    assert_int_equal(told, e->outcomes);
    assert_ok(ctx, carry_experiment_judge(e, &decision, &options));
    if (kept != NULL) {
        *kept = e;
    } else {
        carry_experiment_free(e);
    }
    return decision;
}

#define TIMED HEAD METHODS "repeats: 3\nspread: 1000\n" GRID

static void test_decisions(void **state) {
    (void)state;
    assert_int_equal(run(TIMED SUCCESS, NULL, NULL), CARRY_PROCEED);
    assert_int_equal(run(TIMED "success:\n  - time(cyclic) > 1e9\n", NULL, NULL), CARRY_STOP);
    assert_int_equal(run(TIMED SUCCESS "failure:\n  - time(cyclic) > 0\n", NULL, NULL), CARRY_STOP);
    assert_int_equal(run(TIMED SUCCESS "failure:\n  - time(cyclic) > 1e9\n", NULL, NULL), CARRY_PROCEED);
    assert_int_equal(run(TIMED "success:\n  - time(cyclic) / (1 - 1) > 0\n", NULL, NULL), CARRY_INCOMPLETE);
    /* A criterion that fails decides, even if another one was not measured. */
    assert_int_equal(run(TIMED "success:\n  - time(cyclic) / (1 - 1) > 0\n  - 1 > 2\n", NULL, NULL), CARRY_STOP);
    carry_experiment *e;
    assert_int_equal(run(TIMED "    stage: one\n  - problem: scan:dense:t9:n2\n    stage: two\n" SUCCESS, "one", &e),
                     CARRY_INCOMPLETE);
    assert_int_equal(e->criterion[0].verdict.kind, CARRY_NOT_MEASURED);
    assert_non_null(strstr(e->criterion[0].verdict.reason, "the stage 'two' was not asked for"));
    assert_true(e->outcome[0].repeats == 3 && e->outcome[0].median > 0.0 && e->outcome[2].repeats == 0);
    assert_true(e->outcome[1].error <= e->outcome[1].bound && e->outcome[1].products > 0);
    carry_experiment_free(e);
}

/* `runs`: samples are the medians of several runs, each of which opens the problem again. */
static void test_a_problem_is_measured_several_times(void **state) {
    (void)state;
    carry_experiment *e;
    assert_int_equal(run(HEAD METHODS "repeats: 7\nspread: 1000\n" GRID "    runs: 3\n" SUCCESS, NULL, &e),
                     CARRY_PROCEED);
    assert_true(e->outcome[0].repeats == 3 && e->outcome[1].repeats == 3 && e->outcome[0].median > 0.0);
    assert_true(e->outcome[1].error > 0.0 && e->outcome[1].error <= e->outcome[1].bound);
    carry_experiment_free(e);
    refuse(":4:7: 'runs' must be a whole number from 1 to 25", HEAD METHODS "runs: 26\n" GRID SUCCESS);
    refuse(":4:7: 'runs' must be a whole number from 1 to 25", HEAD METHODS "runs: 0\n" GRID SUCCESS);
}

typedef struct combined {
    carry_bench_result results[2];
    double samples[2][3];
    int count;
} combined;

static void take(void *user, const carry_bench_result *result, const double *samples) {
    combined *c = user;
    c->results[c->count] = *result;
    memcpy(c->samples[c->count++], samples, sizeof c->samples[0]);
}

static void test_runs_are_combined_by_their_medians(void **state) {
    (void)state;
    static const double medians[] = {4.0, 1.0, 2.0}, errors[] = {1e-7, 3e-7, 2e-7};
    carry_runs *runs = carry_runs_new();
    assert_non_null(runs);
    for (int i = 0; i < 3; i++) {
        carry_bench_result a = {.algorithm = "chain", .median = medians[i], .repeats = 30, .share = NAN};
        carry_bench_result b = {.algorithm = "heads", .median = 1.0, .repeats = 30};
        a.worst = (carry_deviation){.error = errors[i], .bound = 1e-5};
        a.counts.exposed = 0.1 * (i + 1);
        (void)snprintf(b.reason, sizeof b.reason, "%s", i == 1 ? "no memory" : "");
        carry_runs_add(runs, &a, NULL);
        carry_runs_add(runs, &b, NULL);
    }
    combined all = {0};
    carry_runs_tell(runs, take, &all);
    carry_runs_free(runs);
    assert_int_equal(all.count, 2);
    assert_true(all.results[0].median == 2.0 && all.results[0].repeats == 3 && all.results[0].spread > 0.0);
    assert_true(all.results[0].worst.error == 3e-7 && fabs(all.results[0].counts.exposed - 0.2) < 1e-12);
    assert_true(isnan(all.results[0].share));
    assert_memory_equal(all.samples[0], medians, sizeof medians); /* in the order taken */
    assert_string_equal(all.results[1].reason, "no memory");
}

/* The price of a GPU hour turns the seconds of a training into money; without a price, money is not measured. */
static void test_costs_in_money(void **state) {
    (void)state;
    static const char *const prices[] = {"", "price: {gpu_hour: 2.5}\n"};
    for (int i = 0; i < 2; i++) {
        char text[512];
        carry_decision decision;
        (void)snprintf(text, sizeof text, HEAD METHODS "%s" GRID "success:\n  - money(cyclic) <= 0.5\n", prices[i]);
        carry_experiment *e = loaded(text);
        assert_true(e->price == (i == 0 ? 0.0 : 2.5));
        for (int o = 0; o < e->outcomes; o++) {
            e->outcome[o].reason[0] = '\0';
            e->outcome[o].pending = false;
            e->outcome[o].cost = 360.0;
            e->outcome[o].price = e->price; /* as of a GPU */
        }
        assert_ok(ctx, carry_experiment_judge(e, &decision, &(carry_experiment_options){0}));
        assert_int_equal(decision, i == 0 ? CARRY_INCOMPLETE : CARRY_PROCEED);
        assert_true(i == 0 || fabs(e->criterion[0].verdict.value - 0.25) < 1e-12);
        carry_experiment_free(e);
    }
    refuse(":4:8: 'price' must be a mapping", HEAD METHODS "price: 3\n" GRID SUCCESS);
    refuse(":4:19: 'gpu_hour' must be more than 0", HEAD METHODS "price: {gpu_hour: 0}\n" GRID SUCCESS);
    refuse(":4:32: unknown key", HEAD METHODS "price: {gpu_hour: 1, cpu_hour: 1}\n" GRID SUCCESS);
}

/* Times that spread beyond the limit of their stage decide nothing; errors still decide. */
static void test_times_that_spread_are_not_measured(void **state) {
    (void)state;
    static const struct {
        const char *limit;
        double spread;
        carry_verdict_kind kind;
    } cases[] = {{"", 2.43, CARRY_NOT_MEASURED},
                 {"", 0.3, CARRY_MET},
                 {"spread: 3\n", 2.43, CARRY_MET},
                 {"spread: 0.1\n", 0.3, CARRY_NOT_MEASURED}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        carry_decision decision;
        (void)snprintf(text, sizeof text,
                       HEAD METHODS "%s" GRID "success:\n  - speedup(cyclic, sequential) >= 1\n  - error(cyclic) < 1\n",
                       cases[i].limit);
        carry_experiment *e = loaded(text);
        for (int o = 0; o < e->outcomes; o++) {
            e->outcome[o].reason[0] = '\0';
            e->outcome[o].pending = false;
            e->outcome[o].median = 1.0;
            e->outcome[o].spread = o == 0 ? cases[i].spread : 0.01;
        }
        assert_ok(ctx, carry_experiment_judge(e, &decision, &(carry_experiment_options){0}));
        assert_int_equal(e->criterion[0].verdict.kind, cases[i].kind);
        assert_int_equal(e->criterion[1].verdict.kind, CARRY_MET);
        assert_int_equal(decision, cases[i].kind == CARRY_MET ? CARRY_PROCEED : CARRY_INCOMPLETE);
        assert_true(cases[i].kind == CARRY_MET || strstr(e->criterion[0].verdict.reason, "not quiet") != NULL);
        carry_experiment_free(e);
    }
    refuse(":4:9: 'spread' must be more than 0", HEAD METHODS "spread: 0\n" GRID SUCCESS);
}

/* A method that does not apply to a problem is reported as not measured, with the planner's reason. */
static void test_a_method_that_does_not_apply_has_a_reason(void **state) {
    (void)state;
    carry_experiment *e;
    assert_int_equal(run(HEAD "methods: [sequential, matmul_log]\nrepeats: 3\nspread: 1000\n" GRID
                              "success:\n  - time(matmul_log) > 0\n",
                         NULL, &e),
                     CARRY_INCOMPLETE);
    assert_true(strlen(e->criterion[0].verdict.reason) > 20);
    assert_true(e->outcome[0].reason[0] == '\0' && e->outcome[1].reason[0] != '\0');
    carry_experiment_free(e);
}

static bool at_once(void) {
    return true;
}

/* 35 TB, more than any machine has: both figures are in the reason, and nothing is allocated. */
static void test_a_problem_larger_than_memory_is_not_measured(void **state) {
    (void)state;
    carry_experiment *e = loaded(HEAD METHODS "grid:\n  - problem: scan:dense:t{t}:n64\n    t: [2147483647]\n" SUCCESS);
    carry_experiment_options options = {.seed = 1};
    assert_ok(ctx, carry_experiment_measure(e, &(carry_ceilings){1, 1}, &options));
    for (int i = 0; i < e->outcomes; i++) {
        if (strstr(e->outcome[i].reason, "needs 3.63e+04 GB of memory, and ") == NULL ||
            strstr(e->outcome[i].reason, " GB are available: reduce b, t, n or w") == NULL) {
            fail_msg("the reason is '%s'", e->outcome[i].reason);
        }
    }
    carry_experiment_free(e);
}

static void test_a_stop_is_heeded(void **state) {
    (void)state;
    carry_experiment *e = loaded(TIMED SUCCESS);
    carry_experiment_options options = {.seed = 1, .stop = at_once};
    assert_refused(ctx, CARRY_EINTERRUPTED, "interrupted",
                   carry_experiment_measure(e, &(carry_ceilings){1, 1}, &options));
    carry_experiment_free(e);
}

static void test_the_shipped_experiments_load(void **state) {
    (void)state;
    static const struct {
        const char *file, *name;
        int points, criteria;
    } shipped[] = {{"026-cyclic-reduction", "026-cyclic-reduction", 17, 12},
                   {"026-training", "026-training", 2, 9},
                   {"026-training-gpu", "026-training-gpu", 1, 6},
                   {"044-matmulscan", "044-matmulscan", 27, 29},
                   {"055-allscan", "055-allscan", 59, 32},
                   {"stream-overlap", "stream-overlap", 8, 16},
                   {"stream-overlap-wan", "stream-overlap-wan", 2, 4}};
    for (size_t i = 0; i < sizeof shipped / sizeof shipped[0]; i++) {
        char file[512];
        (void)snprintf(file, sizeof file, "%s/experiments/%s.yaml", CARRY_SOURCE, shipped[i].file);
        carry_experiment *e;
        assert_ok(ctx, carry_experiment_load(ctx, &e, file));
        assert_string_equal(e->name, shipped[i].name);
        assert_true(e->points >= shipped[i].points);
        assert_true(e->criteria >= shipped[i].criteria);
        carry_experiment_free(e);
    }
}

/* 055 proceeds only on measured GPUs: the stage needs ranks with a GPU each, not ranks that share one. */
static void test_055_needs_a_gpu_for_each_rank(void **state) {
    (void)state;
    char file[512];
    carry_experiment *e;
    int ranks = 0;
    (void)snprintf(file, sizeof file, "%s/experiments/055-allscan.yaml", CARRY_SOURCE);
    assert_ok(ctx, carry_experiment_load(ctx, &e, file));
    for (int i = 0; i < e->points; i++) {
        const bool each = strstr(e->point[i].problem, ":device=gpus") != NULL;
        ranks += each && strncmp(e->point[i].problem, "allscan:", 8) == 0;
        assert_true(!each || carry_device_count() > 8 || e->point[i].missing[0] != '\0' ||
                    strstr(e->point[i].problem, ":p8") == NULL);
    }
    assert_int_equal(ranks, 6); /* 2, 4 and 8 ranks, two kinds */
    carry_decision decision;
    for (int i = 0; i < e->outcomes; i++) { /* everything is measured except the GPUs: not enough */
        carry_outcome *o = &e->outcome[i];
        o->pending = strstr(o->problem, ":device=gpus") != NULL;
        o->reason[o->pending ? 1 : 0] = '\0';
        o->median = strcmp(o->method, "gather") == 0 ? 1e-3 : 1e-4;
        o->received = strcmp(o->method, "gather") == 0 ? 1e6 : 1e5;
    }
    assert_ok(ctx, carry_experiment_judge(e, &decision, &(carry_experiment_options){0}));
    assert_int_equal(decision, CARRY_INCOMPLETE);
    carry_experiment_free(e);
}

/* A file cut at every byte is a valid experiment or gives an error message. */
static void test_cut_at_every_byte(void **state) {
    (void)state;
    static const char whole[] =
        HEAD METHODS "grid:\n  - problem: scan:dense:t{t}:n2\n    t: [8, 9]\n    needs: [scan]\n" SUCCESS;
    for (size_t length = 0; length < sizeof whole - 1; length++) {
        carry_experiment *e;
        write_file(whole, length);
        if (carry_experiment_load(ctx, &e, path) == CARRY_OK) {
            carry_experiment_free(e);
        } else {
            assert_non_null(strstr(carry_ctx_error(ctx), path));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_grid_is_every_combination_in_order),
        cmocka_unit_test(test_criteria_are_templates_too),
        cmocka_unit_test(test_what_a_file_lacks_is_said),
        cmocka_unit_test(test_typos_are_refused_with_their_place),
        cmocka_unit_test(test_lengths_and_counts_are_bounded),
        cmocka_unit_test(test_needs_that_are_not_here),
        cmocka_unit_test(test_decisions),
        cmocka_unit_test(test_a_problem_is_measured_several_times),
        cmocka_unit_test(test_runs_are_combined_by_their_medians),
        cmocka_unit_test(test_costs_in_money),
        cmocka_unit_test(test_times_that_spread_are_not_measured),
        cmocka_unit_test(test_a_method_that_does_not_apply_has_a_reason),
        cmocka_unit_test(test_a_problem_larger_than_memory_is_not_measured),
        cmocka_unit_test(test_a_stop_is_heeded),
        cmocka_unit_test(test_the_shipped_experiments_load),
        cmocka_unit_test(test_055_needs_a_gpu_for_each_rank),
        cmocka_unit_test(test_cut_at_every_byte),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
