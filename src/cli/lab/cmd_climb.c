/* carry climb start | try | loop | lint | plot | list | show | tune. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/lab/climb.h"
#include "lab/climb/climb.h"

typedef struct asked {
    carry_ctx *ctx;
    bool json, no_wait;
    const char *log, *metric, *on, *output, *propose;
    double timeout;
    int64_t iterations;
    carry_climb_attempt attempt;
    carry_tune_options tune;
    carry_climb *climb;
    int kept;
} asked;

static void tell(void *user, const char *line) {
    const asked *a = user;
    if (!a->json) {
        (void)printf("%s%s%s\n", cli_dim(), line, cli_plain());
        (void)fflush(stdout);
    }
}

static void print_entry_json(const carry_climb_entry *e) {
    cli_json_open();
    cli_json_integer("entry", e->number);
    cli_json_text("title", e->title);
    const char *value;
    const char *name;
    for (int i = 0; (name = carry_climb_field(i, e, &value)) != NULL; i++) {
        char key[32];
        (void)snprintf(key, sizeof key, "%s", name);
        for (char *at = strchr(key, ' '); at != NULL; at = strchr(at, ' ')) {
            *at = '_';
        }
        if (strcmp(name, "throughput") == 0) {
            cli_json_number(key, e->median);
        } else if (strcmp(name, "mfu") == 0 || strcmp(name, "best mfu") == 0) {
            cli_json_number(key, name[0] == 'm' ? e->share : e->best_share);
        } else {
            cli_json_text(key, value);
        }
    }
    cli_json_number("gain_baseline", e->gain_baseline);
    cli_json_number("gain_best", e->gain_best);
    cli_json_close();
}

static const char *gain_text(char text[32], double gain) {
    (void)snprintf(text, 32, isfinite(gain) ? "%+.1f %%" : "-", 100.0 * (gain - 1.0));
    return text;
}

static const char *verdict_colour(const carry_climb_entry *e) {
    return strcmp(e->decision, "kept") == 0 ? cli_green() : strcmp(e->decision, "refused") == 0 ? cli_red() : "";
}

static void print_outcome(const asked *a, const carry_climb_entry *e, const char *output) {
    char baseline[32];
    if (a->json) {
        print_entry_json(e);
        return;
    }
    if (output != NULL && *output != '\0') {
        (void)printf("%s\n", output);
    }
    (void)printf("%sentry %d: %s%s: %s%s%s\n  %s\n", cli_bold(), e->number, e->title, cli_plain(), verdict_colour(e),
                 e->decision, cli_plain(), e->reason);
    if (e->count > 0) {
        (void)printf("  throughput %.6g, %s against the baseline\n", e->median, gain_text(baseline, e->gain_baseline));
    }
    if (strcmp(e->commit, "none") != 0) {
        (void)printf("  commit %.12s\n", e->commit);
    } else {
        (void)printf("  nothing is committed\n");
    }
    (void)fflush(stdout);
}

static const carry_climb_entry *entry_of(const asked *a, int number) {
    const carry_climb_log *log;
    return carry_climb_log_of(a->climb, &log) == CARRY_OK ? &log->entry[number] : NULL;
}

static bool is_ssh(const char *on) {
    return strncmp(on, "ssh:", 4) == 0;
}

static int start(asked *a) {
    const carry_climb_attempt *t = &a->attempt;
    carry_climb_start_options options = {.profile = t->profile,
                                         .tests = t->tests,
                                         .build = t->build,
                                         .repeats = t->repeats,
                                         .threshold = t->threshold,
                                         .command = t->command};
    if (a->metric != NULL && strcmp(a->metric, "throughput") != 0) {
        char shown[64];
        return cli_refuse("there is no metric '%s': only throughput is supported", cli_shown(shown, a->metric));
    }
    if (a->on != NULL && !is_ssh(a->on)) {
        return cli_refuse("climb start --on: expected ssh:HOST");
    }
    if ((a->on != NULL && carry_climb_on(a->climb, a->on) != CARRY_OK) ||
        carry_climb_start(a->climb, &options) != CARRY_OK) {
        return cli_failed(a->ctx);
    }
    print_outcome(a, entry_of(a, 0), NULL);
    return CLI_DONE;
}

/* Submits the attempt to the queue. The job writes the entry. */
static int submit(asked *a) {
    carry_climb_job job = {0};
    if (carry_climb_submit(a->climb, &job, &a->attempt, a->on, !a->no_wait) != CARRY_OK) {
        return cli_failed(a->ctx);
    }
    if (a->json) {
        cli_json_open();
        cli_json_integer("job", job.id);
        cli_json_text("on", a->on);
        cli_json_text("external", job.external);
        cli_json_text("state", job.state);
        cli_json_integer("code", job.code);
        cli_json_text("output", job.log);
        cli_json_close();
    } else {
        (void)printf("job %lld on %s%s%s is %s; its output: %s\n", (long long)job.id, a->on,
                     job.external[0] != '\0' ? " " : "", job.external, job.state, job.log);
    }
    if (job.entry >= 0) {
        print_outcome(a, entry_of(a, job.entry), NULL);
    }
    if (a->no_wait || job.code == 0) {
        return CLI_DONE;
    }
    return job.entry >= 0 ? CLI_WRONG
                          : cli_refuse("job %lld ended without an entry (exit %d): %s says why", (long long)job.id,
                                       job.code, job.log);
}

static int try_one(asked *a) {
    carry_climb_outcome outcome;
    if (a->on != NULL && !is_ssh(a->on)) {
        return submit(a);
    }
    if (a->on != NULL && a->no_wait) {
        return cli_refuse("--no-wait: not possible with --on %s, since the result is judged here", a->on);
    }
    if (a->on != NULL && carry_climb_on(a->climb, a->on) != CARRY_OK) {
        return cli_failed(a->ctx);
    }
    a->attempt.job = a->on != NULL ? a->on : a->attempt.job;
    if (carry_climb_try(a->climb, &a->attempt, &outcome) != CARRY_OK) {
        free(outcome.output);
        return cli_failed(a->ctx);
    }
    print_outcome(a, entry_of(a, outcome.entry), outcome.output);
    free(outcome.output);
    return outcome.kept ? CLI_DONE : CLI_WRONG;
}

static void judged(void *user, const carry_climb_outcome *outcome) {
    asked *a = user;
    a->kept += outcome->kept;
    print_outcome(a, entry_of(a, outcome->entry), outcome->output);
}

static int loop(asked *a) {
    carry_climb_loop_options options = {
        .propose = a->propose, .iterations = a->iterations, .judged = judged, .user = a};
    if (carry_climb_loop(a->climb, &a->attempt, &options) != CARRY_OK) {
        return cli_failed(a->ctx);
    }
    if (a->json) {
        cli_json_open();
        cli_json_integer("iterations", a->iterations);
        cli_json_integer("kept", a->kept);
        cli_json_close();
    } else {
        (void)printf("%d of %lld proposals were kept\n", a->kept, (long long)a->iterations);
    }
    return CLI_DONE;
}

static int lint(asked *a) {
    carry_status status = carry_climb_lint(a->climb);
    if (status != CARRY_OK) {
        (void)cli_failed(a->ctx);
        return status == CARRY_ERANGE ? CLI_WRONG : CLI_IMPOSSIBLE;
    }
    const carry_climb_log *log;
    (void)carry_climb_log_of(a->climb, &log);
    if (a->json) {
        cli_json_open();
        cli_json_text("log", carry_climb_path(a->climb));
        cli_json_integer("entries", log->count);
        cli_json_bool("ok", true);
        cli_json_close();
    } else {
        (void)printf("%s: %d entries, all in order\n", carry_climb_path(a->climb), log->count);
    }
    return CLI_DONE;
}

static int plot(asked *a) {
    const char *path = a->output != NULL ? a->output : "climb.svg";
    if (carry_climb_plot(a->climb, path) != CARRY_OK) {
        return cli_failed(a->ctx);
    }
    if (a->json) {
        cli_json_open();
        cli_json_text("plot", path);
        cli_json_close();
    } else {
        (void)printf("%s\n", path);
    }
    return CLI_DONE;
}

static int list(asked *a) {
    const carry_climb_log *log;
    if (carry_climb_log_of(a->climb, &log) != CARRY_OK) {
        return cli_failed(a->ctx);
    }
    if (!a->json) {
        (void)printf("%5s  %-20s  %-8s  %12s  %9s  %9s  %s\n", "entry", "date", "decision", "throughput", "best",
                     "baseline", "title");
    }
    for (int i = 0; i < log->count; i++) {
        const carry_climb_entry *e = &log->entry[i];
        char best[32];
        char baseline[32];
        if (a->json) {
            print_entry_json(e);
            continue;
        }
        (void)printf("%5d  %-20s  %s%-8s%s  %12s  %9s  %9s  %s\n", e->number, e->date, verdict_colour(e), e->decision,
                     cli_plain(), strcmp(e->throughput, "none") != 0 ? e->throughput : "-",
                     gain_text(best, e->gain_best), gain_text(baseline, e->gain_baseline), e->title);
    }
    return CLI_DONE;
}

/* The number of the entry that a word names, or -1. */
static long number_of(const carry_climb_log *log, const char *word) {
    if (strcmp(word, "last") == 0 || strcmp(word, "best") == 0) {
        return word[0] == 'l' ? log->count - 1 : log->best;
    }
    char *end = NULL;
    long number = strtol(word, &end, 10);
    return *word != '\0' && *end == '\0' && number >= 0 && number < log->count ? number : -1;
}

static int show(asked *a, const char *word) {
    const carry_climb_log *log;
    if (carry_climb_log_of(a->climb, &log) != CARRY_OK) {
        return cli_failed(a->ctx);
    }
    long number = number_of(log, word);
    if (number < 0) {
        char shown[64];
        return cli_refuse("there is no entry '%s': give 0 to %d, best or last", cli_shown(shown, word), log->count - 1);
    }
    const carry_climb_entry *e = &log->entry[number];
    if (a->json) {
        print_entry_json(e);
        return CLI_DONE;
    }
    (void)printf("%s%d. %s%s\n", cli_bold(), e->number, e->title, cli_plain());
    const char *value;
    const char *name;
    for (int i = 0; (name = carry_climb_field(i, e, &value)) != NULL; i++) {
        (void)printf("%-17s %s\n", name, value);
    }
    return CLI_DONE;
}

typedef struct what {
    const char *name;
    int (*run)(asked *a);
    bool writes;
} what;

static const what whats[] = {
    {"start", start, true},
    {"try", try_one, true},
    {"loop", loop, true},
    {"lint", lint, false},
    {"plot", plot, false},
    {"list", list, false},
    {0},
};

static int open_and_run(asked *a, int words, char **arguments) {
    const char *name = arguments[0];
    bool takes_word = strcmp(name, "show") == 0 || strcmp(name, "tune") == 0;
    const what *w = whats;
    while (w->name != NULL && strcmp(w->name, name) != 0) {
        w++;
    }
    if (w->name == NULL && !takes_word) {
        char shown[64];
        return cli_refuse("climb has no '%s': expected start, try, loop, lint, plot, list, show or tune",
                          cli_shown(shown, name));
    }
    if (words != (takes_word ? 2 : 1)) {
        return takes_word ? cli_refuse("climb %s needs %s, and nothing else", name,
                                       name[0] == 's' ? "the number of an entry" : "a problem")
                          : cli_refuse("climb %s takes options only (quote values that have spaces)", name);
    }
    cli_catch_interrupt();
    cli_limit_interrupt(10.0); /* a command that does not end is killed first */
    if (strcmp(name, "tune") == 0) {
        return cli_climb_tune(a->ctx, arguments[1], &a->tune, a->json);
    }
    carry_climb_options options = {.log = a->log,
                                   .writes = w->name != NULL && w->writes,
                                   .seconds = a->timeout,
                                   .stop = cli_interrupted,
                                   .tell = tell,
                                   .user = a};
    if (carry_climb_open(a->ctx, &a->climb, &options) != CARRY_OK) {
        return cli_failed(a->ctx);
    }
    int code = w->name != NULL ? w->run(a) : show(a, arguments[1]);
    carry_climb_close(a->climb);
    return code;
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    asked a = {0};
    carry_climb_attempt *t = &a.attempt;
    char command[4096];
    const cli_option own[] = {
        {"log", 0, CLI_TEXT, &a.log, "FILE", "the log (climb.md in the root of the repository)"},
        {"profile", 0, CLI_TEXT, &t->profile, "CMD",
         "command that prints figures as JSON lines; run by sh -c in the root"},
        {"tests", 0, CLI_TEXT, &t->tests, "CMD", "command that must exit with 0 (as given to start)"},
        {"build", 0, CLI_TEXT, &t->build, "CMD", "command to run before both; allows building the best commit again"},
        {"repeats", 0, CLI_NUMBER, &t->repeats, "N", "runs of the profile command, 3 to 200 (5)"},
        {"threshold", 0, CLI_SECONDS, &t->threshold, "PERCENT", "smallest gain that counts (1)"},
        {"metric", 0, CLI_TEXT, &a.metric, "NAME", "start: the quantity to optimise (throughput)"},
        {"hypothesis", 0, CLI_TEXT, &t->hypothesis, "TEXT", "try: why this should be faster"},
        {"title", 0, CLI_TEXT, &t->title, "TEXT", "try: title of the entry and the commit (the hypothesis)"},
        {"next", 0, CLI_TEXT, &t->next, "TEXT", "try: what to try next"},
        {"trust-baseline", 0, CLI_FLAG, &t->trust_baseline, NULL, "compare with stored samples even with --build"},
        {"on", 0, CLI_TEXT, &a.on, "QUEUE", "try: run as a job, local or slurm; try, start: run commands on ssh:HOST"},
        {"no-wait", 0, CLI_FLAG, &a.no_wait, NULL, "with --on: do not wait for the job"},
        {"tree", 0, CLI_TEXT, &t->tree, "HASH", "try: the tree that may be judged (--on sets it)"},
        {"job", 0, CLI_TEXT, &t->job, "TEXT", "try: the name of the job in the entry (--on sets it)"},
        {"timeout", 0, CLI_SECONDS, &a.timeout, "S", "time limit of every command (3600)"},
        {"propose", 0, CLI_TEXT, &a.propose, "CMD", "loop: command that changes the folder it runs in"},
        {"iterations", 0, CLI_NUMBER, &a.iterations, "N", "loop: number of iterations"},
        {"output", 'o', CLI_TEXT, &a.output, "FILE", "plot: the file to write (climb.svg)"},
        {"seconds", 0, CLI_SECONDS, &a.tune.seconds, "S", "tune: time for each side of a comparison (0.25)"},
        {"unchecked", 0, CLI_FLAG, &a.tune.unchecked, NULL, "tune: omit the comparison with float64"},
        {0},
    };
    (void)cli_command(command, sizeof command, "climb", count, arguments);
    int words = cli_parse(&cli_climb, count, arguments, own, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (words == 0) {
        return cli_refuse("climb needs a word: start, try, loop, lint, plot, list, show or tune");
    }
    a.ctx = cli_open(&common);
    if (a.ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    a.json = common.json;
    a.tune.seed = (uint64_t)common.seed;
    a.tune.threshold = t->threshold;
    t->command = command;
    int code = open_and_run(&a, words, arguments);
    carry_ctx_free(a.ctx);
    return code;
}

const cli_verb cli_climb = {
    .name = "climb",
    .arguments = "WHAT",
    .summary = "optimise step by step: a hypothesis, a change, tests and a measurement, a log",
    .details =
        "  start          measure HEAD with --profile CMD as the baseline, and start the log\n"
        "  try            judge the changes in the working tree: commit them, or refuse them and leave them alone\n"
        "  loop           --iterations times, let --propose CMD make a change in a worktree and judge it\n"
        "  lint           check that the log is complete and in order, its figures agree and its commits exist\n"
        "  plot           draw throughput over iterations as SVG (gnuplot)\n"
        "  list, show N   print the entries, or one: a number, best or last\n"
        "  tune PROBLEM   search over the algorithm, chunk and threads of a plan, and save the best as wisdom\n"
        "\n"
        "A change is accepted if the build and the tests exit with 0 and the profile command is faster than the best\n"
        "commit so far, by more than the threshold and by more than noise (the 95 % interval of a bootstrap excludes\n"
        "1). With --build the best commit is built in a worktree and measured alternately with the change; without\n"
        "it the change is compared with the samples in the log, allowing 3 % for drift. A profile command prints\n"
        "lines as carry bench --json does, or {\"throughput\": X, \"mfu\": Y, \"samples\": [...], \"trace\": FILE,\n"
        "\"hotspots\": TEXT}, or training steps with tokens_per_s. An accepted change becomes two commits, the change\n"
        "and the log; git commit hooks are not run.\n"
        "\n"
        "The --propose command finds CARRY_CLIMB_ITERATION, CARRY_CLIMB_LOG and CARRY_CLIMB_BEST in its environment;\n"
        "lines of its output that start with 'title:', 'hypothesis:' and 'next:' are added to the entry. Samples,\n"
        "patches and the output of failed tests are in the run store (carry runs). Exits with 1 if a change is\n"
        "refused or the log is wrong.",
    .example = "carry climb start --build 'make -s' --tests 'make -s check' --profile 'build/carry bench --json "
               "scan:dense:n32'\n"
               "  carry climb try --hypothesis 'two rows at a time hide the latency of the adds'",
    .run = run,
};
