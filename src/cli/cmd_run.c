/* carry run FILE.yaml. */
#include <math.h>
#include <string.h>

#include "cli/cli.h"
#include "core/clock.h"
#include "core/progress.h"
#include "lab/experiment.h"

#define MOST_COMMAND 2048

typedef struct show {
    carry_ctx *ctx;
    bool json, quiet;
    const char *stage; /* asked for, or NULL */
    carry_experiment *experiment;
    carry_progress bar;
    const char *heading; /* the problem whose rows are being printed */
    char reason[256];    /* why nothing of it was measured, once said */
} show;

static void began(void *user, int point, const char *problem) {
    show *s = user;
    (void)problem;
    carry_progress_step(&s->bar, point);
}

static void print_outcome_json(const carry_outcome *o) {
    cli_json_open();
    cli_json_text("problem", o->problem);
    cli_json_text("algorithm", o->method);
    cli_json_text("device", o->device);
    cli_json_text("stage", o->stage);
    if (o->reason[0] != '\0') {
        cli_json_text("left_out", o->reason);
    } else {
        cli_json_number("median_s", o->median);
        cli_json_number("spread", o->spread);
        cli_json_integer("repeats", o->repeats);
        cli_json_integer("products", o->products);
        cli_json_number("gflops", 1e-9 * o->flops / o->median);
        cli_json_number("gbytes_s", 1e-9 * o->bytes / o->median);
        cli_json_number("share", o->share);
        cli_json_number("workspace", o->workspace);
        cli_json_number("error", o->error);
        cli_json_number("error_absolute", o->error_absolute);
        cli_json_bool("planned", o->planned);
    }
    cli_json_close();
}

static void measured(void *user, const carry_outcome *o) {
    show *s = user;
    carry_progress_clear(&s->bar);
    if (s->json) {
        print_outcome_json(o);
        return;
    }
    if (s->quiet || (s->stage != NULL && strcmp(s->stage, o->stage) != 0)) {
        return;
    }
    bool first = s->heading != o->problem;
    s->heading = o->problem;
    if (o->repeats == 0 && o->reason[0] != '\0' && first) {
        (void)snprintf(s->reason, sizeof s->reason, "%s", o->reason);
        (void)printf("%s%s%s\n  %snot measured: %s%s\n", cli_bold(), o->problem, cli_plain(), cli_dim(), o->reason,
                     cli_plain());
        return;
    }
    if (first) {
        s->reason[0] = '\0';
        (void)printf("%s%s%s\n", cli_bold(), o->problem, cli_plain());
    }
    if (o->reason[0] != '\0' && strcmp(o->reason, s->reason) == 0) {
        return; /* said once for the whole problem */
    }
    char time[32];
    if (o->reason[0] != '\0') {
        (void)printf("  %s%-14s not measured: %s%s\n", cli_dim(), o->method, o->reason, cli_plain());
    } else {
        bool wrong = o->error > o->bound;
        (void)printf("  %-14s %9s  spread %3.0f %%  %5d runs  use %3.0f %%  error %.1e%s%s%s\n", o->method,
                     carry_time_text(time, o->median), 100.0 * o->spread, o->repeats, 100.0 * o->share, o->error,
                     wrong ? cli_red() : "", wrong ? " WRONG" : "", wrong ? cli_plain() : "");
    }
    (void)fflush(stdout);
}

static void print_criterion(const show *s, const carry_experiment_criterion *c) {
    const carry_verdict *v = &c->verdict;
    if (s->json) {
        cli_json_open();
        cli_json_text("criterion", c->text);
        cli_json_text("side", c->is_failure ? "failure" : "success");
        cli_json_number("value", v->value);
        cli_json_number("bound", v->bound);
        cli_json_text("verdict", carry_verdict_name(v->kind));
        cli_json_text("reason", v->reason);
        cli_json_close();
        return;
    }
    bool good = v->kind == (c->is_failure ? CARRY_NOT_MET : CARRY_MET);
    bool unknown = v->kind == CARRY_NOT_MEASURED;
    (void)printf("  %s%-12s%s %s",
                 unknown ? cli_dim()
                 : good  ? cli_green()
                         : cli_red(),
                 carry_verdict_name(v->kind), cli_plain(), c->text);
    if (unknown) {
        (void)printf("\n               %s%s%s\n", cli_dim(), v->reason, cli_plain());
    } else {
        (void)printf("   (%.4g, bound %.4g)\n", v->value, v->bound);
    }
}

static void print_criteria(const show *s, bool failures) {
    bool any = false;
    for (int i = 0; i < s->experiment->criteria; i++) {
        const carry_experiment_criterion *c = &s->experiment->criterion[i];
        if (c->is_failure == failures) {
            if (!any && !s->json) {
                (void)printf("\n%s%s%s\n", cli_bold(), failures ? "failure, if any of these is met" : "success",
                             cli_plain());
            }
            any = true;
            print_criterion(s, c);
        }
    }
}

static void print_decision(const show *s, carry_decision decision, int64_t run, const char *store) {
    if (s->json) {
        cli_json_open();
        cli_json_text("decision", carry_decision_name(decision));
        cli_json_text("experiment", s->experiment->name);
        cli_json_integer("run", run);
        cli_json_close();
        return;
    }
    (void)printf("\n%sdecision: %s%s%s\n", cli_bold(), decision == CARRY_PROCEED ? cli_green() : cli_red(),
                 carry_decision_name(decision), cli_plain());
    if (store != NULL) {
        (void)printf("stored as run %lld in %s\n  carry report %lld -o report.html\n", (long long)run, store,
                     (long long)run);
    }
}

/* From the first figure to the decision; what was stored stays stored whatever happens. */
static int measure_and_judge(show *s, carry_experiment_options *options) {
    carry_ceilings ceilings;
    carry_decision decision = CARRY_INCOMPLETE;
    carry_status status = carry_ceilings_measure(s->ctx, &ceilings);
    if (status == CARRY_OK && !s->json) {
        (void)printf("ceilings in this run: 512^3 product %.1f GFLOP/s, copy %.1f GB/s (%d threads, %s)\n",
                     ceilings.gemm_gflops, ceilings.copy_gbytes_s, carry_ctx_threads(s->ctx),
                     carry_ctx_kernels(s->ctx));
    }
    carry_progress_start(&s->bar, stderr, s->experiment->name, s->experiment->points);
    status = status == CARRY_OK ? carry_experiment_measure(s->experiment, &ceilings, options) : status;
    carry_progress_clear(&s->bar);
    if (status == CARRY_OK) {
        status = carry_experiment_judge(s->experiment, &decision, options);
    }
    if (status != CARRY_OK) {
        int code = cli_failed(s->ctx);
        if (options->store != NULL) { /* on a full disk this fails as well: the run is then marked killed later */
            char note[400];
            (void)snprintf(note, sizeof note, "%.390s", carry_ctx_error(s->ctx));
            (void)carry_store_end(options->store, options->run, status == CARRY_EINTERRUPTED ? "interrupted" : "failed",
                                  "", note);
        }
        return code;
    }
    print_criteria(s, false);
    print_criteria(s, true);
    if (options->store != NULL &&
        carry_store_end(options->store, options->run, "done", carry_decision_name(decision), "") != CARRY_OK) {
        return cli_failed(s->ctx);
    }
    print_decision(s, decision, options->run, options->store != NULL ? carry_store_path(options->store) : NULL);
    return decision == CARRY_PROCEED ? CLI_DONE : CLI_WRONG;
}

static int run_experiment(show *s, const char *path, const char *store_path, bool unstored, const char *command,
                          uint64_t seed) {
    carry_experiment_options options = {
        .stage = s->stage, .seed = seed, .stop = cli_interrupted, .began = began, .measured = measured, .user = s};
    if (carry_experiment_load(s->ctx, &s->experiment, path) != CARRY_OK) {
        return cli_failed(s->ctx);
    }
    int code = carry_experiment_stage(s->experiment, s->stage) == CARRY_OK ? CLI_DONE : cli_failed(s->ctx);
    if (code == CLI_DONE && !unstored) {
        carry_run_start start = {
            .kind = "experiment", .name = s->experiment->name, .command = command, .spec = s->experiment->text};
        if (carry_store_open(s->ctx, &options.store, store_path) != CARRY_OK ||
            carry_store_begin(options.store, &options.run, &start) != CARRY_OK) {
            code = cli_failed(s->ctx);
        }
    }
    if (code == CLI_DONE) {
        if (!s->json) {
            (void)printf("%s%s%s\n%s\n", cli_bold(), s->experiment->name, cli_plain(), s->experiment->hypothesis);
        }
        code = measure_and_judge(s, &options);
    }
    carry_store_close(options.store);
    carry_experiment_free(s->experiment);
    return code;
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    show s = {0};
    const char *store = NULL;
    bool unstored = false;
    char command[MOST_COMMAND];
    (void)cli_command(command, sizeof command, "run", count, arguments);
    const cli_option own[] = {
        {"stage", 0, CLI_TEXT, &s.stage, "NAME", "only this stage of the grid"},
        {"store", 0, CLI_TEXT, &store, "FILE", "the run store ($CARRY_STORE, or .carry/store.db of the project)"},
        {"no-store", 0, CLI_FLAG, &unstored, NULL, "keep nothing"},
        {"quiet", 'q', CLI_FLAG, &s.quiet, NULL, "criteria and decision only"},
        {0},
    };
    int words = cli_parse(&cli_run, count, arguments, own, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (words != 1) {
        return cli_refuse("run needs one experiment, for example experiments/044-matmulscan.yaml");
    }
    s.ctx = cli_open(&common);
    if (s.ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    cli_catch_interrupt();
    s.json = common.json;
    int code = run_experiment(&s, arguments[0], store, unstored, command, (uint64_t)common.seed);
    carry_ctx_free(s.ctx);
    return code;
}

const cli_verb cli_run = {
    .name = "run",
    .arguments = "FILE.yaml",
    .summary = "run an experiment: grid, methods, criteria; a verdict per criterion",
    .details =
        "The file names a hypothesis, a grid of problems, methods, and criteria as expressions over what is measured:\n"
        "  speedup(A, B)  time(A)  error(A)  absolute_error(A)  products(A)  memory(A)  use(A)  gflops(A)  gbytes(A)\n"
        "  tokens_per_s(A), each with filters (t=128, bf16, device=cuda, stage=cpu); min(...), max(...), log2(...),\n"
        "  grows(speedup(A, B), t), + - * / and one of >= > <= < ==\n"
        "Everything is checked before anything runs. Where several problems fit, the worst of them counts; the time\n"
        "of a wrong result counts as not measured. docs/experiments.md has the whole of it. Each result is stored\n"
        "with its samples as soon as it is there. Exit 0: every criterion is as it should be (proceed); 1: not so\n"
        "(stop), or something could not be measured here (incomplete).",
    .example = "carry run experiments/044-matmulscan.yaml --stage cpu",
    .run = run,
};
