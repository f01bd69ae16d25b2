/* Reports: pages from a store. "test_lab_report --fill STORE" makes the store that test_report.sh reports on; its
   figures are invented, but shaped like real ones. */
#include "support.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "lab/report/html.h"
#include "lab/report/plot.h"
#include "lab/report/report.h"
#include "lab/store/store.h"

#define HOSTILE "<script>alert('x')</script>\"&\x01\xff\xe2\x80\xae</code></table>@0@`$(id)`"

static const char spec[] =
    "name: cyclic reduction\n"
    "hypothesis: Cyclic reduction does fewer products than Hillis-Steele, so it is faster from T = 1024 on.\n"
    "warm_up: 1\nrepeats: 15\n";

static char folder[] = "/tmp/carry-report-XXXXXX";

/* A number in [0, 1) that is the same on every machine. */
static double noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / 16777216.0;
}

static void put_result(carry_ctx *ctx, carry_store *store, int64_t run, const char *problem, const char *method,
                       double seconds, double flops, double error, uint32_t *state) {
    double samples[15];
    for (int i = 0; i < 15; i++) {
        samples[i] = seconds * (0.96 + 0.05 * noise(state) + (i % 7 == 6 ? 0.2 * noise(state) : 0.0));
    }
    assert_ok(ctx, carry_store_result(store, run,
                                      &(carry_stored_result){.problem = problem,
                                                             .method = method,
                                                             .device = "cpu",
                                                             .reason = "",
                                                             .planned = strcmp(method, "chunkwise") == 0,
                                                             .products = (int64_t)(flops / 65536.0),
                                                             .median = seconds,
                                                             .spread = 0.04,
                                                             .flops = flops,
                                                             .bytes = flops / 6.0 + 1e5,
                                                             .workspace = flops / 40.0,
                                                             .tokens = NAN,
                                                             .share = 0.4,
                                                             .error = error,
                                                             .error_absolute = error,
                                                             .bound = strstr(problem, "bf16") != NULL ? 2e-2 : 1e-5,
                                                             .gemm_gflops = 108.0,
                                                             .copy_gbytes_s = 11.3},
                                      samples, 15));
}

static void put_missing(carry_ctx *ctx, carry_store *store, int64_t run, const char *problem, const char *method,
                        const char *reason) {
    assert_ok(ctx, carry_store_result(store, run,
                                      &(carry_stored_result){.problem = problem,
                                                             .method = method,
                                                             .device = "cpu",
                                                             .reason = reason,
                                                             .median = NAN,
                                                             .spread = NAN,
                                                             .flops = NAN,
                                                             .bytes = NAN,
                                                             .workspace = NAN,
                                                             .tokens = NAN,
                                                             .share = NAN,
                                                             .error = NAN,
                                                             .error_absolute = NAN,
                                                             .bound = NAN,
                                                             .gemm_gflops = NAN,
                                                             .copy_gbytes_s = NAN},
                                      NULL, 0));
}

static int64_t begin(carry_ctx *ctx, carry_store *store, const char *kind, const char *name, const char *text) {
    int64_t run = 0;
    assert_ok(ctx,
              carry_store_begin(store, &run, &(carry_run_start){kind, name, "carry run experiments/026.yaml", text}));
    return run;
}

/* Four methods over T for two types and two n: an experiment, as `carry run` stores it. */
static int64_t put_experiment(carry_ctx *ctx, carry_store *store, const char *name, double drift, uint32_t seed) {
    static const char *const methods[] = {"sequential", "hillis_steele", "cyclic", "chunkwise"};
    uint32_t state = seed;
    int64_t run = begin(ctx, store, "experiment", name, spec);
    for (int shape = 0; shape < 4; shape++) {
        int n = shape % 2 == 0 ? 32 : 64;
        const char *type = shape < 2 ? "f32" : "bf16";
        for (int steps = 1024; steps <= 8192; steps *= 2) {
            char problem[96];
            (void)snprintf(problem, sizeof problem, "scan:dense:%s:t%d:n%d:w1", type, steps, n);
            double base = 2.0 * n * n * (double)steps;
            double flops[] = {base, base * n * 0.5 * log2(steps), base * n * 1.5, base * 3.0};
            double rate[] = {6e9, 62e9, 55e9, 9e9 + 1e6 * steps};
            for (int i = 0; i < 4; i++) {
                if (i == 3 && shape == 3) {
                    put_missing(ctx, store, run, problem, methods[i], "chunkwise does not take bf16 with n 64");
                    continue;
                }
                put_result(ctx, store, run, problem, methods[i], drift * flops[i] / rate[i], flops[i],
                           (shape < 2 ? 2e-7 : 4e-3) * (1.0 + i + 0.3 * noise(&state)), &state);
            }
        }
    }
    const carry_stored_criterion criteria[] = {
        {"success", "speedup(cyclic, hillis_steele, t=4096, n=64) >= 1.5", 3.52, 1.5, "met", ""},
        {"success", "error(cyclic, f32) < 1e-5", 6.4e-7, 1e-5, "met", ""},
        {"success", "use(cyclic, device=cuda) > 0.8", NAN, 0.8, "not measured", "there is no GPU here"},
        {"success", "memory(cyclic) <= memory(hillis_steele)", 1.31, 1.0, "not met", ""},
        {"failure", "error(cyclic) > 1e-1", 1.2e-2, 1e-1, "not met", ""},
    };
    for (size_t i = 0; i < sizeof criteria / sizeof criteria[0]; i++) {
        assert_ok(ctx, carry_store_criterion(store, run, &criteria[i]));
    }
    assert_ok(ctx, carry_store_artefact(store, run, "trace.json.gz", "123456", 6));
    assert_ok(ctx, carry_store_end(store, run, "done", "incomplete", NULL));
    return run;
}

static int64_t put_training(carry_ctx *ctx, carry_store *store, const char *name, double rate, uint32_t seed) {
    uint32_t state = seed;
    int64_t run = begin(ctx, store, "train", name, NULL);
    for (int step = 0; step < 400; step += 5) {
        double loss = 1.4 + 4.2 * exp(-rate * step) + 0.08 * noise(&state);
        assert_ok(ctx, carry_store_metric(store, run, step, "loss", loss));
        assert_ok(ctx, carry_store_metric(store, run, step, "tokens_per_s", 5000.0 + 300.0 * noise(&state)));
    }
    assert_ok(ctx, carry_store_end(store, run, "done", NULL, NULL));
    return run;
}

/* Two trainings in one run, and a metric with the same prefix that belongs to neither. */
static int64_t put_pair(carry_ctx *ctx, carry_store *store) {
    int64_t run = begin(ctx, store, "experiment", "pair", NULL);
    for (int step = 1; step <= 30; step++) {
        assert_ok(ctx, carry_store_metric(store, run, step, "loss:cyclic, cpu", 5.0 - 0.1 * step));
        assert_ok(ctx, carry_store_metric(store, run, step, "loss:scan, cpu", 5.1 - 0.1 * step));
        assert_ok(ctx, carry_store_metric(store, run, step, "losses", 1.0 * step));
    }
    assert_ok(ctx, carry_store_end(store, run, "done", NULL, NULL));
    return run;
}

static int64_t put_hostile(carry_ctx *ctx, carry_store *store) {
    uint32_t state = 3;
    int64_t run = 0;
    assert_ok(ctx, carry_store_begin(store, &run, &(carry_run_start){HOSTILE, "hostile " HOSTILE, HOSTILE, HOSTILE}));
    put_result(ctx, store, run, HOSTILE, HOSTILE, 1e-3, 1e6, 1e-9, &state);
    put_result(ctx, store, run, HOSTILE, "'\nset output 'carry-report-escaped'\n", 1e-3, 1e6, 0.0, &state);
    put_result(ctx, store, run, "scan:dense:t8", "E\nsystem('id')\n", 1e300, 1e-300, 1e300, &state);
    put_result(ctx, store, run, "scan:dense:t9", "E\nsystem('id')\n", 1e-300, 1e300, 1e-300, &state);
    put_missing(ctx, store, run, HOSTILE, HOSTILE, HOSTILE);
    assert_ok(ctx, carry_store_criterion(store, run,
                                         &(carry_stored_criterion){HOSTILE, HOSTILE, NAN, INFINITY, HOSTILE, HOSTILE}));
    for (int i = 0; i < 12; i++) {
        char name[200];
        (void)snprintf(name, sizeof name, "%d" HOSTILE, i);
        assert_ok(ctx, carry_store_metric(store, run, INT64_MAX - i, name, i % 2 == 0 ? 1e308 : -1e308));
        assert_ok(ctx, carry_store_metric(store, run, INT64_MIN + i, name, NAN));
    }
    assert_ok(ctx, carry_store_end(store, run, "failed", HOSTILE, HOSTILE));
    return run;
}

static void fill(carry_ctx *ctx, const char *path) {
    carry_store *store;
    assert_ok(ctx, carry_store_open(ctx, &store, path));
    (void)put_experiment(ctx, store, "cyclic reduction", 1.0, 1);
    (void)put_experiment(ctx, store, "cyclic reduction, again", 1.01, 2);
    (void)put_experiment(ctx, store, "cyclic reduction, slower", 1.6, 3);
    (void)put_training(ctx, store, "small", 0.02, 4);
    (void)put_training(ctx, store, "smaller", 0.01, 5);
    (void)put_hostile(ctx, store);
    carry_store_close(store);
}

static carry_store *open_store(carry_ctx *ctx) {
    carry_store *store;
    char path[64];
    (void)snprintf(path, sizeof path, "%s/store.db", folder);
    assert_ok(ctx, carry_store_open(ctx, &store, path));
    return store;
}

static carry_report report_of(carry_ctx *ctx, const int64_t *ids, int count, const carry_report_options *options) {
    carry_store *store = open_store(ctx);
    carry_run *runs[8] = {NULL};
    carry_report report;
    for (int i = 0; i < count; i++) {
        assert_ok(ctx, carry_store_load(store, &runs[i], ids[i]));
    }
    assert_ok(ctx, carry_report_make(ctx, &report, runs, count, options));
    for (int i = 0; i < count; i++) {
        carry_run_free(runs[i]);
    }
    carry_store_close(store);
    return report;
}

static void assert_has(const carry_report *report, const char *words) {
    if (strstr(report->html, words) == NULL) {
        fail_msg("the page lacks '%s'", words);
    }
}

static int count_of(const char *text, const char *words) {
    int count = 0;
    for (const char *at = strstr(text, words); at != NULL; at = strstr(at + 1, words)) {
        count++;
    }
    return count;
}

static void test_experiment_has_its_decision_first(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_report report = report_of(ctx, (const int64_t[]){1}, 1, &(carry_report_options){0});
    assert_has(&report, "<h1>cyclic reduction</h1>");
    assert_has(&report, "Cyclic reduction does fewer products than Hillis-Steele");
    assert_has(&report, "2 met, 1 not met, 1 not measured");
    assert_has(&report, "there is no GPU here");
    assert_has(&report, "not measured: chunkwise does not take bf16 with n 64");
    assert_has(&report, "<code>scan:dense:f32:t1024:n32:w1</code>");
    assert_has(&report, "Repeats: 15. ");
    const char *decision = strstr(report.html, "Incomplete</p>");
    assert_non_null(decision);
    assert_true(decision < strstr(report.html, "<table"));
    assert_null(strstr(report.html, "src="));
    assert_null(strstr(report.html, "<script"));
    if (report.plots > 0) { /* time and speedup of four shapes, accuracy, roofline */
        assert_int_equal(report.plots, 10);
        assert_int_equal(count_of(report.html, "<figure>"), 10);
        assert_has(&report, "Speedup over hillis_steele"); /* as the criterion says */
        assert_string_equal(report.warning, "");
    } else {
        assert_has(&report, "Plots are missing.");
    }
    carry_report again = report_of(ctx, (const int64_t[]){1}, 1, &(carry_report_options){0});
    assert_int_equal(again.length, report.length);
    assert_memory_equal(again.html, report.html, report.length);
    free(again.html);
    free(report.html);
    carry_ctx_free(ctx);
}

static void test_several_runs_are_compared(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_report report =
        report_of(ctx, (const int64_t[]){1, 2, 3}, 3, &(carry_report_options){.baseline = "sequential"});
    assert_has(&report, "<h1>3 runs</h1>");
    const char *second = strstr(report.html, "Run 2 against run 1: within noise");
    const char *third = strstr(report.html, "Run 3 against run 1: they differ");
    assert_non_null(second);
    assert_non_null(third);
    assert_true(second < third);
    const char *noise_in_second = strstr(second, "within noise");
    assert_non_null(noise_in_second);
    assert_true(noise_in_second < third);
    assert_null(strstr(third, ">within noise")); /* 1.6 times is not noise */
    assert_int_equal(count_of(third, "slower</td>"), 60);
    assert_has(&report, "id=\"run-3\"");
    free(report.html);
    carry_ctx_free(ctx);
}

static void test_curves_of_several_runs_are_overlaid(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_report report = report_of(ctx, (const int64_t[]){4, 5}, 2, &(carry_report_options){0});
    if (report.plots > 0) {
        assert_int_equal(report.plots, 2);
        assert_has(&report, "<b>loss over steps</b>");
        assert_has(&report, "run 5, smaller</li>");
    }
    free(report.html);
    carry_ctx_free(ctx);
}

static void test_curves_of_one_name_share_a_plot(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_store *store = open_store(ctx);
    int64_t run = put_pair(ctx, store);
    carry_store_close(store);
    carry_report report = report_of(ctx, &run, 1, &(carry_report_options){0});
    if (report.plots > 0) {
        assert_int_equal(report.plots, 2);
        assert_has(&report, "<b>loss over steps</b>");
        assert_has(&report, "<b>losses over steps</b>");
        assert_has(&report, " cyclic, cpu</li>");
        assert_has(&report, " scan, cpu</li>");
    }
    free(report.html);
    carry_ctx_free(ctx);
}

/* As experiment_run.c stores them: the step is the index of the result. */
static void test_figures_of_results_stand_with_the_results(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_store *store = open_store(ctx);
    uint32_t state = 7;
    int64_t run = begin(ctx, store, "experiment", "streams", NULL);
    put_result(ctx, store, run, "stream:t8", "pipeline", 1e-3, 1e6, 0.0, &state);
    put_missing(ctx, store, run, "stream:t8", "mesh", "there is no room for it");
    put_result(ctx, store, run, "stream:t9", "pipeline", 2e-3, 1e6, 0.0, &state);
    assert_ok(ctx, carry_store_metric(store, run, 0, "overlap", 0.875));
    assert_ok(ctx, carry_store_metric(store, run, 2, "slower_stage", 0.0125));
    assert_ok(ctx, carry_store_metric(store, run, 0, "contention", 0.03));
    assert_ok(ctx, carry_store_end(store, run, "done", NULL, NULL));
    carry_store_close(store);
    carry_report report = report_of(ctx, &run, 1, &(carry_report_options){0});
    assert_null(strstr(report.html, "ver steps"));
    assert_has(&report, "Overlap</th><th scope=\"col\" class=\"n\">Slower stage</th></tr>");
    assert_null(strstr(report.html, "Perplexity"));
    const char *first = strstr(report.html, "<td class=\"n\">0.875</td><td class=\"n\">\xE2\x80\x93</td></tr>");
    assert_non_null(first);
    assert_true(first < strstr(report.html, "<code>stream:t9</code></span>"));
    assert_has(&report, "<td class=\"n\">\xE2\x80\x93</td><td class=\"n\">12.5\xE2\x80\xAFms</td></tr>");
    assert_has(&report, "<code>stream:t8</code> <small>contention 3.0\xE2\x80\xAF%</small></span>");
    assert_has(&report, "<td class=\"open words\" colspan=\"12\">not measured: there is no room");
    free(report.html);
    carry_ctx_free(ctx);
}

/* As cmd_profile.c keeps them. */
static void test_a_profile_has_its_hotspots_in_a_table(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_store *store = open_store(ctx);
    int64_t run = begin(ctx, store, "profile", "bench", NULL);
    assert_ok(ctx, carry_store_metric(store, run, 0, "wall_s", 1.5));
    assert_ok(ctx, carry_store_metric(store, run, 0, "scan/up and down self_s", 0.25));
    assert_ok(ctx, carry_store_metric(store, run, 0, "scan/up and down calls", 7.0));
    assert_ok(ctx, carry_store_metric(store, run, 1, "a/b self_s", 0.125));
    assert_ok(ctx, carry_store_metric(store, run, 0, "gpu/scan/dense total_s", 0.5));
    assert_ok(ctx, carry_store_end(store, run, "done", NULL, NULL));
    carry_store_close(store);
    carry_report report = report_of(ctx, &run, 1, &(carry_report_options){0});
    assert_int_equal(report.plots, 0);
    assert_null(strstr(report.html, "ver steps"));
    const char *first = strstr(report.html, "<th scope=\"row\">scan/up and down</th><td class=\"n\">250");
    const char *second = strstr(report.html, "<th scope=\"row\">a/b</th><td class=\"n\">125");
    assert_true(first != NULL && second != NULL && first < second);
    assert_has(&report, "<td class=\"n\">7</td></tr>");
    assert_null(strstr(report.html, "MFU"));
    assert_has(&report, "<th scope=\"row\">scan/dense</th><td class=\"n\">500");
    free(report.html);
    carry_ctx_free(ctx);
}

static void test_hostile_texts_stay_texts(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_report report = report_of(ctx, (const int64_t[]){6, 1}, 2, &(carry_report_options){0});
    assert_null(strstr(report.html, "<script"));
    assert_null(strstr(report.html, "alert('"));
    assert_null(strchr(report.html, '\x01'));
    assert_null(strchr(report.html, '\xff'));
    assert_has(&report, "&lt;script&gt;alert(&#39;x&#39;)");
    assert_int_equal(count_of(report.html, "<table"), count_of(report.html, "</table>"));
    assert_int_equal(access("carry-report-escaped", F_OK), -1);
    free(report.html);
    carry_ctx_free(ctx);
}

static void test_without_gnuplot_the_page_says_so(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char *path = strdup(getenv("PATH") != NULL ? getenv("PATH") : "");
    assert_int_equal(setenv("PATH", folder, 1), 0);
    carry_report missing = report_of(ctx, (const int64_t[]){1}, 1, &(carry_report_options){0});
    assert_int_equal(missing.plots, 0);
    assert_non_null(strstr(missing.warning, "gnuplot is not installed here"));
    assert_int_equal(count_of(missing.html, "Plots are missing."), 1);
    assert_has(&missing, "<code>scan:dense:f32:t1024:n32:w1</code>");
    free(missing.html);
    static const struct {
        const char *script, *says;
    } fakes[] = {{"#!/bin/sh\necho 'line 3: no terminal' >&2\nexit 1\n", "no terminal"},
                 {"#!/bin/sh\necho hello\n", "not the SVG"},
                 {"#!/bin/sh\nkill -9 $$\n", "exit 137"}};
    for (size_t i = 0; i < sizeof fakes / sizeof fakes[0]; i++) {
        char file[96];
        (void)snprintf(file, sizeof file, "%s/gnuplot", folder);
        assert_ok(ctx, carry_file_replace(ctx, file, fakes[i].script, strlen(fakes[i].script)));
        assert_int_equal(chmod(file, 0755), 0);
        carry_report failing = report_of(ctx, (const int64_t[]){1}, 1, &(carry_report_options){0});
        assert_int_equal(failing.plots, 0);
        if (strstr(failing.warning, fakes[i].says) == NULL) {
            fail_msg("expected '%s', got: %s", fakes[i].says, failing.warning);
        }
        free(failing.html);
        (void)unlink(file);
    }
    assert_int_equal(setenv("PATH", path, 1), 0);
    free(path);
    carry_ctx_free(ctx);
}

static void test_what_cannot_be_reported_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_report report;
    carry_run empty = {.kind = "bench",
                       .name = "n",
                       .command = "c",
                       .spec = "",
                       .folder = "",
                       .commit = "",
                       .state = "killed",
                       .decision = "",
                       .note = ""};
    carry_run *runs[] = {&empty};
    assert_refused(ctx, CARRY_EARGUMENT, "1 to 32 runs",
                   carry_report_make(ctx, &report, runs, 0, &(carry_report_options){0}));
    assert_refused(ctx, CARRY_ENOTFOUND, "no run of this report has a method 'fastest'",
                   carry_report_make(ctx, &report, runs, 1, &(carry_report_options){.baseline = "fastest"}));
    assert_ok(ctx,
              carry_report_make(ctx, &report, runs, 1, &(carry_report_options){0})); /* a run that stored nothing */
    assert_has(&report, "Killed");
    free(report.html);
    carry_ctx_free(ctx);
}

static int make_store(void **unused) {
    (void)unused;
    char path[64];
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    (void)snprintf(path, sizeof path, "%s/store.db", folder);
    fill(ctx, path);
    carry_ctx_free(ctx);
    return 0;
}

static int remove_store(void **unused) {
    (void)unused;
    static const char *const files[] = {"store.db", "store.db-wal", "store.db-shm"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        (void)unlink(path);
    }
    return rmdir(folder);
}

static int fill_only(const char *path) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    fill(ctx, path);
    carry_ctx_free(ctx);
    return 0;
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "--fill") == 0) {
        return fill_only(arguments[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experiment_has_its_decision_first),
        cmocka_unit_test(test_several_runs_are_compared),
        cmocka_unit_test(test_curves_of_several_runs_are_overlaid),
        cmocka_unit_test(test_curves_of_one_name_share_a_plot),
        cmocka_unit_test(test_figures_of_results_stand_with_the_results),
        cmocka_unit_test(test_a_profile_has_its_hotspots_in_a_table),
        cmocka_unit_test(test_hostile_texts_stay_texts),
        cmocka_unit_test(test_without_gnuplot_the_page_says_so),
        cmocka_unit_test(test_what_cannot_be_reported_is_refused),
    };
    return cmocka_run_group_tests(tests, make_store, remove_store);
}
