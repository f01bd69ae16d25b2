/* Fixes the baseline of a climb. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/climb/climb_internal.h"

#define REPEATS 5
#define THRESHOLD 1.0

static carry_status measure_baseline(carry_climb *climb, const carry_climb_start_options *options,
                                     carry_climb_entry *entry, climb_figure *last, int64_t repeats) {
    double shares = 0.0;
    for (int64_t i = 0; i < repeats; i++) {
        char why[256];
        climb_tell(climb, "profile %lld of %lld", (long long)i + 1, (long long)repeats);
        CARRY_TRY(climb_measure(climb, last, why, climb->root, options->profile));
        if (why[0] != '\0') {
            return carry_fail(climb->ctx, CARRY_EARGUMENT, "there is no baseline: %s", why);
        }
        entry->sample[entry->count++] = last->throughput;
        shares += last->share;
    }
    entry->share = carry_climb_rounded(shares / (double)repeats);
    return CARRY_OK;
}

static carry_status must_pass(carry_climb *climb, const char *what, const char *command) {
    carry_process_result result;
    if (command == NULL) {
        return CARRY_OK;
    }
    climb_tell(climb, "%s: %s", what, command);
    CARRY_TRY(climb_shell(climb, &result, climb->root, command, NULL));
    int code = result.code;
    carry_process_free(&result);
    return code == 0 ? CARRY_OK
                     : carry_fail(climb->ctx, CARRY_EARGUMENT,
                                  "the %s command fails with exit %d before anything is changed: there is no baseline",
                                  what, code);
}

static carry_status fix_baseline(carry_climb *climb, const carry_climb_start_options *options, int64_t run) {
    int64_t repeats = options->repeats > 0 ? options->repeats : REPEATS;
    double samples[CARRY_CLIMB_SAMPLES];
    char date[32];
    char head[CLIMB_HASH];
    char run_text[32];
    char repeats_text[32];
    char threshold[32];
    climb_figure last;
    carry_climb_entry entry = {.title = "Baseline",
                               .hypothesis = "none: what every change is measured against",
                               .tests = options->tests,
                               .result = options->tests != NULL ? "passed" : "not run: no tests were given",
                               .profile = options->profile,
                               .decision = "baseline",
                               .reason = "the start of the climb",
                               .sample = samples,
                               .best_share = (double)NAN};
    CARRY_TRY(climb_head(climb, head));
    CARRY_TRY(must_pass(climb, "build", options->build));
    CARRY_TRY(must_pass(climb, "tests", options->tests));
    CARRY_TRY(measure_baseline(climb, options, &entry, &last, repeats));
    CARRY_TRY(climb_refuse_dirty(climb, "the build, the tests or the profile command made them; let git ignore them"));
    (void)snprintf(run_text, sizeof run_text, "%lld", (long long)run);
    (void)snprintf(repeats_text, sizeof repeats_text, "%lld", (long long)repeats);
    (void)snprintf(threshold, sizeof threshold, "%g", options->threshold > 0.0 ? options->threshold : THRESHOLD);
    entry.date = climb_date(date, NULL);
    entry.commit = entry.on = head;
    entry.run = run_text;
    entry.trace = last.trace;
    entry.hotspots = last.hotspots;
    carry_climb_head commands = {.metric = "throughput",
                                 .profile = options->profile,
                                 .tests = options->tests,
                                 .build = options->build,
                                 .repeats = repeats_text,
                                 .threshold = threshold};
    char *text;
    size_t length;
    carry_climb_figures(NULL, &entry);
    CARRY_TRY(climb_store_samples(climb, run, "baseline", options->profile, entry.sample, entry.count, entry.share));
    CARRY_TRY(carry_climb_log_append(climb->ctx, &text, &length, NULL, &commands, &entry));
    carry_status status = climb_keep(climb, head, head, false, text, length);
    free(text);
    return status == CARRY_OK ? climb_reload(climb) : status;
}

carry_status carry_climb_start(carry_climb *climb, const carry_climb_start_options *options) {
    if (climb->log != NULL) {
        return carry_fail(climb->ctx, CARRY_EARGUMENT,
                          "%s has a baseline and %d entr%s already: go on with climb try, or name another log with "
                          "--log",
                          climb->relative, climb->log->count - 1, climb->log->count == 2 ? "y" : "ies");
    }
    if (options->profile == NULL) {
        return carry_fail(climb->ctx, CARRY_EARGUMENT, "climb start needs --profile CMD, which prints figures as JSON");
    }
    CARRY_TRY(climb_check_repeats(climb->ctx, options->repeats));
    CARRY_TRY(climb_check_command(climb->ctx, "profile", options->profile));
    CARRY_TRY(climb_check_command(climb->ctx, "tests", options->tests != NULL ? options->tests : "none"));
    CARRY_TRY(climb_check_command(climb->ctx, "build", options->build != NULL ? options->build : "none"));
    CARRY_TRY(climb_refuse_dirty(climb, "the baseline is a commit, so commit or stash them first"));
    int64_t run;
    CARRY_TRY(carry_store_begin(
        climb->store, &run,
        &(carry_run_start){.kind = "climb", .name = "climb baseline", .command = options->command, .spec = NULL}));
    carry_status status = fix_baseline(climb, options, run);
    return status == CARRY_OK ? carry_store_end(climb->store, run, "done", "baseline", "climb entry 0")
                              : climb_store_failed(climb, run, status);
}
