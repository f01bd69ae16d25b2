/* The gate: build, tests, profile, verdict, entry. */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "lab/climb/climb_internal.h"
#include "bench/sample.h"

#define DRIFT 0.03 /* allowance for changes of the machine since the best was measured */

typedef struct judgement {
    carry_climb *climb;
    const carry_climb_attempt *attempt;
    const climb_change *change;
    carry_climb_outcome *outcome;
    carry_climb_entry entry;
    const char *tests, *profile, *build; /* NULL: none */
    double threshold;
    int64_t repeats, run;
    bool again; /* the best is measured again, in turns with the change */
    bool refused;
    char title[160], hypothesis[2048], next[2048], summary[512], result[256], reason[512];
    char job[96], date[32], run_text[32], commit[CLIMB_HASH];
    double samples[CARRY_CLIMB_SAMPLES], best_samples[CARRY_CLIMB_SAMPLES];
    climb_figure last, best_last;
    double shares, best_shares;
} judgement;

static carry_status refuse(judgement *j, const char *format, ...) __attribute__((format(printf, 2, 3)));

static carry_status refuse(judgement *j, const char *format, ...) {
    va_list arguments;
    char text[sizeof j->reason];
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)carry_climb_line(j->reason, sizeof j->reason, text);
    j->refused = true;
    return CARRY_OK;
}

static const char *given_or(const char *given, const char *otherwise) {
    if (given != NULL) {
        return given;
    }
    return strcmp(otherwise, "none") != 0 ? otherwise : NULL;
}

/* Uses the commands given as options, else those of the log's head. */
static carry_status settle_commands(judgement *j) {
    const carry_climb_head *head = &j->climb->log->head;
    carry_ctx *ctx = j->climb->ctx;
    j->tests = given_or(j->attempt->tests, head->tests);
    j->build = given_or(j->attempt->build, head->build);
    j->profile = head->profile;
    j->repeats = j->attempt->repeats > 0 ? j->attempt->repeats : strtoll(head->repeats, NULL, 10);
    j->threshold = j->attempt->threshold > 0.0 ? j->attempt->threshold : strtod(head->threshold, NULL);
    j->again = j->build != NULL && !j->attempt->trust_baseline;
    CARRY_TRY(climb_check_repeats(ctx, j->repeats));
    CARRY_TRY(climb_check_command(ctx, "tests", j->tests != NULL ? j->tests : "none"));
    CARRY_TRY(climb_check_command(ctx, "build", j->build != NULL ? j->build : "none"));
    if (j->attempt->profile != NULL && strcmp(j->attempt->profile, j->profile) != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "the baseline was measured with '%.100s', so '%.100s' cannot be compared with it: omit "
                          "--profile, or begin another log",
                          j->profile, j->attempt->profile);
    }
    return CARRY_OK;
}

static void settle_texts(judgement *j) {
    const carry_climb_attempt *a = j->attempt;
    (void)carry_climb_line(j->hypothesis, sizeof j->hypothesis, a->hypothesis);
    (void)carry_climb_line(j->title, sizeof j->title, a->title != NULL ? a->title : "");
    if (j->title[0] == '\0') {
        (void)carry_climb_line(j->title, 72, j->hypothesis);
    }
    (void)carry_climb_line(j->next, sizeof j->next, a->next != NULL ? a->next : "");
    climb_job_name(j->climb, j->job, a->job);
    (void)snprintf(j->run_text, sizeof j->run_text, "%lld", (long long)j->run);
    (void)snprintf(j->result, sizeof j->result, j->tests != NULL ? "not reached" : "not run: no tests were given");
}

/* Runs a command that must succeed. A failure refuses the change; it is not an error of the climb. */
static carry_status pass(judgement *j, const char *what, const char *command, const char *folder, char *result,
                         size_t result_size) {
    carry_process_result ran;
    climb_tell(j->climb, "%s: %s", what, command);
    CARRY_TRY(climb_shell(j->climb, &ran, folder, command, NULL));
    carry_status status = CARRY_OK;
    if (ran.timed_out) {
        (void)snprintf(result, result_size, "ended after %.0f s", ran.seconds);
    } else if (ran.code != 0) {
        (void)snprintf(result, result_size, "failed with exit %d in %.1f s", ran.code, ran.seconds);
    } else {
        (void)snprintf(result, result_size, "passed in %.1f s", ran.seconds);
    }
    if (ran.timed_out || ran.code != 0) {
        char *out = climb_tail(ran.output);
        char *errors = climb_tail(ran.errors);
        size_t size = (out != NULL ? strlen(out) : 0) + (errors != NULL ? strlen(errors) : 0) + 2;
        j->outcome->output = malloc(size);
        if (j->outcome->output != NULL) {
            bool both = out != NULL && errors != NULL && *out != '\0' && *errors != '\0';
            (void)snprintf(j->outcome->output, size, "%s%s%s", out != NULL ? out : "", both ? "\n" : "",
                           errors != NULL ? errors : "");
        }
        free(out);
        free(errors);
        status = refuse(j, "the %s %s", what, result);
    }
    carry_process_free(&ran);
    return status;
}

/* Makes a worktree of the best commit so far and builds it once; it is used until there is a better one. */
static carry_status ready_best(judgement *j) {
    carry_climb *climb = j->climb;
    const char *commit = climb->log->entry[climb->log->best].commit;
    carry_process_result ran;
    if (climb->best_folder[0] != '\0' && strcmp(commit, climb->best_commit) == 0) {
        return CARRY_OK;
    }
    climb_worktree_remove(climb, climb->best_folder);
    CARRY_TRY(climb_worktree_add(climb, climb->best_folder, commit));
    (void)snprintf(climb->best_commit, sizeof climb->best_commit, "%s", commit);
    climb->best_there = false;
    climb_tell(climb, "building the best so far, %.12s", commit);
    CARRY_TRY(climb_shell(climb, &ran, climb->best_folder, j->build, NULL));
    int code = ran.code;
    carry_process_free(&ran);
    return code == 0 ? CARRY_OK
                     : carry_fail(climb->ctx, CARRY_EIO,
                                  "the best so far (%.12s) no longer builds: exit %d; with --trust-baseline its stored "
                                  "samples are compared with",
                                  commit, code);
}

static carry_status measure_change(judgement *j) {
    char why[256];
    CARRY_TRY(climb_measure(j->climb, &j->last, why, j->change->folder, j->profile));
    if (why[0] != '\0') {
        return refuse(j, "%s", why);
    }
    j->samples[j->entry.count++] = j->last.throughput;
    j->shares += j->last.share;
    return CARRY_OK;
}

static carry_status measure_best(judgement *j) {
    char why[256];
    CARRY_TRY(climb_measure(j->climb, &j->best_last, why, j->climb->best_folder, j->profile));
    if (why[0] != '\0') {
        return carry_fail(j->climb->ctx, CARRY_EIO, "the best so far cannot be measured: %s", why);
    }
    j->best_samples[j->entry.best_count++] = j->best_last.throughput;
    j->best_shares += j->best_last.share;
    return CARRY_OK;
}

/* Measures the change and the best in turns; which of them runs first alternates. */
static carry_status measure(judgement *j) {
    const carry_climb_entry *best = &j->climb->log->entry[j->climb->log->best];
    if (j->again) {
        CARRY_TRY(ready_best(j));
    } else {
        j->entry.best_count = best->count;
        memcpy(j->best_samples, best->sample, (size_t)best->count * sizeof *best->sample);
        j->best_shares = best->share * (double)best->count;
    }
    for (int i = 0; i < (int)j->repeats && !j->refused; i++) {
        climb_tell(j->climb, "profile %d of %lld%s", i + 1, (long long)j->repeats,
                   j->again ? ", taking turns with the best" : "");
        if (j->again && i % 2 == 1) {
            CARRY_TRY(measure_best(j));
        }
        CARRY_TRY(measure_change(j));
        if (j->again && i % 2 == 0 && !j->refused) {
            CARRY_TRY(measure_best(j));
        }
    }
    if (j->refused) { /* an incomplete comparison is dropped */
        j->entry.count = j->entry.best_count = 0;
        return CARRY_OK;
    }
    j->entry.share = carry_climb_rounded(j->shares / (double)j->entry.count);
    j->entry.best_share = carry_climb_rounded(j->best_shares / (double)j->entry.best_count);
    return CARRY_OK;
}

static void decide(judgement *j) {
    carry_ratio r =
        carry_ratio_of(j->samples, j->entry.count, j->best_samples, j->entry.best_count, j->again ? 0.0 : DRIFT, 1);
    char figures[200];
    (void)snprintf(figures, sizeof figures, "%+.2f %% (95 %% interval %+.2f %% to %+.2f %%), %s",
                   100.0 * (r.ratio - 1.0), 100.0 * (r.low - 1.0), 100.0 * (r.high - 1.0),
                   j->again ? "measured in turns" : "against its stored samples: 3 % is allowed for drift");
    if (r.within_noise) {
        (void)refuse(j, "within noise of the best: %s", figures);
    } else if (!(r.ratio > 1.0)) {
        (void)refuse(j, "slower than the best: %s", figures);
    } else if (!(100.0 * (r.ratio - 1.0) > j->threshold)) {
        (void)refuse(j, "below the threshold of %g %%: %s", j->threshold, figures);
    } else {
        (void)snprintf(j->reason, sizeof j->reason, "faster than the best: %s", figures);
    }
}

static carry_status store_all(judgement *j) {
    carry_store *store = j->climb->store;
    const carry_climb_entry *e = &j->entry;
    CARRY_TRY(climb_store_samples(j->climb, j->run, "change", j->profile, e->sample, e->count, e->share));
    CARRY_TRY(climb_store_samples(j->climb, j->run, "best", j->profile, e->best_sample, e->best_count, e->best_share));
    CARRY_TRY(climb_store_patch(j->climb, j->run, j->change->base, j->change->tree));
    CARRY_TRY(climb_store_trace(j->climb, j->run, j->change->folder, j->last.trace));
    if (j->outcome->output != NULL) {
        CARRY_TRY(carry_store_artefact(store, j->run, "output.txt", j->outcome->output, strlen(j->outcome->output)));
    }
    carry_stored_criterion criterion = {.side = "success",
                                        .text = "faster than the best by more than noise",
                                        .value = e->count > 0 ? e->gain_best : (double)NAN,
                                        .bound = 1.0 + j->threshold / 100.0,
                                        .verdict = e->count == 0 ? "not measured"
                                                   : j->refused  ? "not met"
                                                                 : "met",
                                        .reason = j->reason};
    return carry_store_criterion(store, j->run, &criterion);
}

static carry_status commit_change(judgement *j) {
    char message[sizeof j->hypothesis + sizeof j->reason + 64];
    (void)snprintf(message, sizeof message, "%s\n\nClimb entry %d: %s", j->hypothesis, j->climb->log->count, j->reason);
    return climb_commit(j->climb, j->commit, j->change->tree, j->change->base, j->title, message);
}

/* Writes the entry and, if the change is kept, commits both. */
static carry_status record(judgement *j) {
    carry_climb *climb = j->climb;
    char *text;
    size_t length;
    if (!j->refused) {
        CARRY_TRY(commit_change(j));
    }
    j->entry.date = climb_date(j->date, climb->log);
    j->entry.commit = j->refused ? "none" : j->commit;
    j->entry.decision = j->refused ? "refused" : "kept";
    CARRY_TRY(carry_climb_log_append(climb->ctx, &text, &length, climb->log, NULL, &j->entry));
    carry_status status = j->refused
                              ? carry_file_replace(climb->ctx, climb->path, text, length)
                              : climb_keep(climb, j->commit, j->change->base, j->change->elsewhere, text, length);
    free(text);
    CARRY_TRY(status);
    CARRY_TRY(climb_reload(climb));
    j->outcome->entry = climb->log->count - 1;
    j->outcome->kept = !j->refused;
    return CARRY_OK;
}

static carry_status judge(judgement *j) {
    const char *folder = j->change->folder;
    char built[128];
    if (j->change->failure != NULL) {
        (void)refuse(j, "%s", j->change->failure);
    } else {
        CARRY_TRY(climb_describe(j->climb, j->summary, sizeof j->summary, j->change->base, j->change->tree));
    }
    if (!j->refused && j->build != NULL) {
        CARRY_TRY(pass(j, "build", j->build, folder, built, sizeof built));
    }
    if (!j->refused && j->tests != NULL) {
        CARRY_TRY(pass(j, "tests", j->tests, folder, j->result, sizeof j->result));
    }
    if (!j->refused) {
        CARRY_TRY(measure(j));
    }
    if (!j->refused) {
        decide(j);
    }
    if (j->change->failure == NULL) {
        CARRY_TRY(climb_tree_stands(j->climb, folder));
    }
    carry_climb_figures(j->climb->log, &j->entry);
    CARRY_TRY(store_all(j));
    return record(j);
}

carry_status climb_check_hypothesis(carry_ctx *ctx, const carry_climb_attempt *attempt) {
    const char *text = attempt->hypothesis;
    return text != NULL && strspn(text, " \t\r\n") < strlen(text)
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EARGUMENT, "climb try needs --hypothesis \"why this should be faster\"");
}

carry_status climb_judge(carry_climb *climb, const carry_climb_attempt *attempt, const climb_change *change,
                         carry_climb_outcome *outcome) {
    judgement *j = calloc(1, sizeof *j);
    if (j == NULL) {
        return carry_fail(climb->ctx, CARRY_EMEMORY, "out of memory: judging a change");
    }
    *j = (judgement){.climb = climb, .attempt = attempt, .change = change, .outcome = outcome};
    carry_status status = settle_commands(j);
    status = status == CARRY_OK
                 ? carry_store_begin(climb->store, &j->run,
                                     &(carry_run_start){.kind = "climb",
                                                        .name = attempt->title != NULL ? attempt->title : "climb",
                                                        .command = attempt->command})
                 : status;
    if (status == CARRY_OK) {
        settle_texts(j);
        j->entry = (carry_climb_entry){.title = j->title,
                                       .hypothesis = j->hypothesis,
                                       .change = j->summary,
                                       .tests = j->tests,
                                       .result = j->result,
                                       .profile = j->profile,
                                       .job = j->job,
                                       .trace = j->last.trace,
                                       .hotspots = j->last.hotspots,
                                       .reason = j->reason,
                                       .on = change->base,
                                       .run = j->run_text,
                                       .next = j->next,
                                       .sample = j->samples,
                                       .best_sample = j->best_samples,
                                       .share = (double)NAN,
                                       .best_share = (double)NAN};
        status = judge(j);
        if (status == CARRY_OK) {
            char note[64];
            (void)snprintf(note, sizeof note, "climb entry %d", outcome->entry);
            status = carry_store_end(climb->store, j->run, "done", outcome->kept ? "kept" : "refused", note);
        } else {
            status = climb_store_failed(climb, j->run, status);
        }
    }
    free(j);
    return status;
}

carry_status carry_climb_try(carry_climb *climb, const carry_climb_attempt *attempt, carry_climb_outcome *outcome) {
    const carry_climb_log *log;
    char base[CLIMB_HASH];
    char tree[CLIMB_HASH];
    char before[CLIMB_HASH];
    *outcome = (carry_climb_outcome){0};
    CARRY_TRY(climb_check_hypothesis(climb->ctx, attempt));
    CARRY_TRY(carry_climb_log_of(climb, &log));
    CARRY_TRY(carry_climb_lint(climb));
    CARRY_TRY(climb_head(climb, base));
    climb_git_call ask = {.folder = climb->root, .words = {"rev-parse", "HEAD^{tree}"}};
    CARRY_TRY(climb_git_hash(climb, before, &ask));
    CARRY_TRY(climb_tree(climb, tree, climb->root, base));
    if (attempt->tree != NULL && strcmp(attempt->tree, tree) != 0) {
        return carry_fail(climb->ctx, CARRY_EARGUMENT,
                          "the working tree is not what it was when this was submitted: submit it again");
    }
    if (strcmp(tree, before) == 0) {
        return carry_fail(climb->ctx, CARRY_EARGUMENT,
                          "nothing is changed since %.12s: climb try judges what is not committed yet", base);
    }
    climb_change change = {.folder = climb->root, .base = base, .tree = tree};
    return climb_judge(climb, attempt, &change, outcome);
}
