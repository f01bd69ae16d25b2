/* carry run FILE.yaml. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/lab/cmd_run.h"
#include "cli/ranks.h"
#include "cli/wikitext.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/progress.h"
#include "ops/product/ceiling.h"
#include "bench/bench_ranks.h"
#include "lab/experiment/experiment_bounds.h"
#include "lab/quiet.h"

#define MOST_COMMAND 2048

/* The parsed command line, the same for every rank. */
typedef struct run_options {
    cli_common common;
    const char *path, *stage, *store, *name, *resumed, *wikitext;
    bool unstored, quiet;
    char command[MOST_COMMAND];
    int code; /* the exit code, set by rank 0 */
} run_options;

typedef struct show {
    carry_comm *comm;
    carry_ctx *ctx; /* context of this rank */
    bool prints;    /* true on rank 0, which has the store */
    bool json, quiet;
    const char *stage; /* the stage asked for, or NULL */
    carry_experiment *experiment;
    carry_progress bar;
    const char *heading; /* the problem whose rows are being printed */
    char reason[256];    /* why the problem was not measured, once that is printed; else "" */
    char note[CARRY_COLLECTIVE_NOTE];
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
        if (o->ranks > 0) {
            cli_json_integer("ranks", o->ranks);
            cli_json_integer("cores", o->cores);
            cli_json_number("bytes_per_rank", o->received);
            cli_json_number("exposed", o->exposed);
            cli_json_number("waited", o->waited);
        }
        if (o->cost > 0.0) {
            cli_json_number("perplexity", o->perplexity);
            cli_json_number("busy", o->busy > 0.0 ? o->busy : NAN);
            cli_json_number("cost_s", o->cost);
        }
        if (o->slower_stage > 0.0) {
            cli_json_number("overlap", o->overlap);
            cli_json_number("slower_stage_s", o->slower_stage);
            cli_json_number("denoise_s", o->denoise > 0.0 ? o->denoise : NAN);
            cli_json_number("recompute_s", o->recompute > 0.0 ? o->recompute : NAN);
            cli_json_number("clean_s", o->clean > 0.0 ? o->clean : NAN);
            cli_json_number("decode_s", o->decode > 0.0 ? o->decode : NAN);
        }
    }
    cli_json_close();
}

/* Prints the note when it has changed. */
static void print_note(show *s, const carry_outcome *o) {
    char note[CARRY_COLLECTIVE_NOTE];
    if (o->ranks > 0 && strcmp(carry_collective_note(note, o->ranks, o->cores), s->note) != 0) {
        memcpy(s->note, note, sizeof note);
        if (note[0] != '\0') {
            (void)printf("  %s%s%s\n", cli_dim(), note, cli_plain());
        }
    }
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
        print_note(s, o);
    }
    if (o->reason[0] != '\0' && strcmp(o->reason, s->reason) == 0) {
        return; /* the reason is printed once for the whole problem */
    }
    char time[32];
    if (o->reason[0] != '\0') {
        (void)printf("  %s%-14s not measured: %s%s\n", cli_dim(), o->method, o->reason, cli_plain());
    } else {
        char together[CLI_TOGETHER];
        char overlapped[CLI_TOGETHER];
        char use[CLI_FIGURE], error[CLI_FIGURE];
        bool wrong = o->error > o->bound;
        (void)printf("  %-14s %9s  spread %3.0f %%  %5d runs  %s%s%s%s%s%s%s\n", o->method,
                     carry_time_text(time, o->median), 100.0 * o->spread, o->repeats, cli_use(use, o->share),
                     cli_together(together, o->ranks, o->received, isnan(o->exposed) ? -1.0 : o->exposed, o->waited),
                     cli_overlapped(overlapped, o->overlap, o->slower_stage), cli_error(error, o->error),
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

/* The outcome with the largest spread of its times relative to the limit of its stage; NULL if no outcome has a
   spread. */
static const carry_outcome *least_steady(const carry_experiment *e) {
    const carry_outcome *worst = NULL;
    for (int i = 0; i < e->outcomes; i++) {
        const carry_outcome *o = &e->outcome[i];
        if (o->reason[0] == '\0' && o->spread > 0.0 &&
            (worst == NULL || o->spread / o->spread_limit > worst->spread / worst->spread_limit)) {
            worst = o;
        }
    }
    return worst;
}

/* Prints a warning with the decision if the times spread too much: on a busy machine they decide little. */
static void print_warning(const show *s) {
    const carry_outcome *o = least_steady(s->experiment);
    const bool spreads = o != NULL && o->spread > o->spread_limit;
    if (s->experiment->contention > CARRY_NOT_QUIET || spreads) {
        (void)printf("%swarning: the machine was not quiet: other processes took up to %.0f %% of a problem's time",
                     cli_red(), 100.0 * s->experiment->contention);
        if (spreads) {
            (void)printf(", and the times of %s on %s spread by %.0f %% (limit %.0f %%)", o->method, o->problem,
                         100.0 * o->spread, 100.0 * o->spread_limit);
        }
        (void)printf("%s\n", cli_plain());
    }
}

static void print_decision(const show *s, carry_decision decision, int64_t run, const char *store) {
    if (s->json) {
        cli_json_open();
        cli_json_text("decision", carry_decision_name(decision));
        cli_json_text("experiment", s->experiment->name);
        cli_json_integer("run", run);
        const carry_outcome *o = least_steady(s->experiment);
        if (s->experiment->price > 0.0) {
            cli_json_number("gpu_s", carry_bounds_gpu_seconds(s->experiment));
            cli_json_number("price", carry_bounds_gpu_seconds(s->experiment) / 3600.0 * s->experiment->price);
        }
        cli_json_number("contention", s->experiment->contention);
        cli_json_number("spread", o != NULL ? o->spread : NAN);
        cli_json_bool("quiet",
                      s->experiment->contention <= CARRY_NOT_QUIET && (o == NULL || o->spread <= o->spread_limit));
        cli_json_close();
        return;
    }
    (void)printf("\n%sdecision: %s%s%s\n", cli_bold(), decision == CARRY_PROCEED ? cli_green() : cli_red(),
                 carry_decision_name(decision), cli_plain());
    print_warning(s);
    if (s->experiment->price > 0.0) {
        const double seconds = carry_bounds_gpu_seconds(s->experiment);
        (void)printf("GPU time: %.0f s, price %.4g at %.4g an hour\n", seconds, seconds / 3600.0 * s->experiment->price,
                     s->experiment->price);
    }
    if (store != NULL) {
        (void)printf("stored as run %lld in %s\n  carry report %lld -o report.html\n", (long long)run, store,
                     (long long)run);
    }
}

static carry_status measure(show *s, const carry_experiment_options *options, carry_decision *decision) {
    carry_ceilings ceilings;
    CARRY_TRY(carry_ceilings_measure_ranks(s->comm, &ceilings));
    if (s->prints && !s->json) {
        (void)printf("ceilings in this run: product %.1f GFLOP/s, copy %.1f GB/s (%d threads, %s%s)\n",
                     ceilings.gemm_gflops, ceilings.copy_gbytes_s, carry_ctx_threads(s->ctx), carry_ctx_kernels(s->ctx),
                     carry_ceilings_are_rough() ? "; CARRY_CEILINGS=rough: shares are wrong" : "");
    }
    if (s->prints) {
        carry_progress_start(&s->bar, stderr, s->experiment->name, s->experiment->points);
    }
    const carry_status status = carry_experiment_measure(s->experiment, &ceilings, options);
    if (s->prints) {
        carry_progress_clear(&s->bar);
    }
    return status == CARRY_OK ? carry_experiment_judge(s->experiment, decision, options) : status;
}

/* Measures and decides. Results that were stored stay stored in any case. */
static carry_status measure_and_judge(show *s, carry_experiment_options *options, int *code) {
    carry_decision decision = CARRY_INCOMPLETE;
    const carry_status status = measure(s, options, &decision);
    if (status != CARRY_OK) {
        if (options->store != NULL) { /* this also fails on a full disk; the run is then marked as killed later */
            char note[400];
            (void)snprintf(note, sizeof note, "%.390s", carry_ctx_error(s->ctx));
            (void)carry_store_end(options->store, options->run, status == CARRY_EINTERRUPTED ? "interrupted" : "failed",
                                  "", note);
            return carry_fail(s->ctx, status, "%s", note);
        }
        return status;
    }
    if (!s->prints) {
        return CARRY_OK;
    }
    if (!s->json && !s->quiet) {
        cli_print_received(s->experiment);
    }
    print_criteria(s, false);
    print_criteria(s, true);
    if (options->store != NULL) {
        CARRY_TRY(carry_store_end(options->store, options->run, "done", carry_decision_name(decision), s->note));
    }
    print_decision(s, decision, options->run, options->store != NULL ? carry_store_path(options->store) : NULL);
    *code = decision == CARRY_PROCEED ? CLI_DONE : CLI_WRONG;
    return CARRY_OK;
}

static carry_status begin(show *s, const run_options *given, carry_experiment_options *options) {
    CARRY_TRY(carry_experiment_load(s->ctx, &s->experiment, given->path));
    CARRY_TRY(carry_experiment_stage(s->experiment, given->stage));
    if (!s->prints || given->unstored) {
        return CARRY_OK;
    }
    const carry_run_start start = {.kind = "experiment",
                                   .name = given->name != NULL ? given->name : s->experiment->name,
                                   .command = given->command,
                                   .spec = s->experiment->text};
    CARRY_TRY(carry_store_open(s->ctx, &options->store, given->store));
    return carry_store_begin(options->store, &options->run, &start);
}

static carry_status run_experiment(show *s, const run_options *given, int *code) {
    carry_experiment_options options = {.stage = given->stage,
                                        .seed = (uint64_t)given->common.seed,
                                        .comm = s->comm,
                                        .stop = cli_interrupted,
                                        .began = s->prints ? began : NULL,
                                        .measured = s->prints ? measured : NULL,
                                        .user = s};
    char resumed[CLI_CONTINUED_NAME];
    carry_status status = given->resumed != NULL ? cli_run_continue(s->comm, &s->experiment, &options, given->store,
                                                                    given->resumed, given->command, resumed)
                                                 : begin(s, given, &options);
    if (status == CARRY_OK) {
        if (s->prints && !s->json) {
            (void)printf("%s%s%s\n%s\n", cli_bold(), s->experiment->name, cli_plain(), s->experiment->hypothesis);
        }
        status = cli_run_text(s->ctx, s->experiment, &options, s->prints && !s->json);
        status = status == CARRY_OK ? measure_and_judge(s, &options, code) : status;
    }
    carry_store_close(options.store);
    carry_experiment_free(s->experiment);
    return status;
}

static carry_status run_rank(void *user, carry_comm *comm) {
    run_options *given = user;
    show s = {.comm = comm,
              .ctx = carry_comm_ctx(comm),
              .json = given->common.json,
              .quiet = given->quiet,
              .stage = given->stage};
    s.prints = carry_comm_rank(comm) == 0;
    int code = CLI_DONE;
    CARRY_TRY(run_experiment(&s, given, &code));
    CARRY_TRY(carry_broadcast(comm, &code, sizeof code, 0));
    if (s.prints || cli_process_rank() > 0) { /* ranks that are threads share `given`, so only rank 0 writes to it */
        given->code = code;
    }
    return CARRY_OK;
}

static int run(int count, char **arguments) {
    run_options given = {.code = CLI_DONE};
    (void)cli_command(given.command, sizeof given.command, "run", count, arguments);
    const cli_option own[] = {
        {"stage", 0, CLI_TEXT, &given.stage, "NAME", "measure only this stage of the grid"},
        {"continue", 0, CLI_TEXT, &given.resumed, "RUN",
         "measure what is missing from this stored run, and judge all results"},
        {"name", 0, CLI_TEXT, &given.name, "NAME",
         "name of the stored run (that of the experiment); NAME/ numbers a series"},
        {"store", 0, CLI_TEXT, &given.store, "FILE", "the run store ($CARRY_STORE, or .carry/store.db of the project)"},
        {"no-store", 0, CLI_FLAG, &given.unstored, NULL, "store nothing"},
        {"wikitext", 0, CLI_TEXT, &given.wikitext, "FOLDER",
         "the text of problems with data=wikitext ($CARRY_WIKITEXT, data/wikitext-103, else docs)"},
        {"quiet", 'q', CLI_FLAG, &given.quiet, NULL, "print only criteria and decision"},
        {0},
    };
    int words = cli_parse(&cli_run, count, arguments, own, &given.common);
    if (words < 0 || given.common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (given.resumed != NULL && (words > 0 || given.unstored || given.name != NULL)) {
        return cli_refuse("--continue takes the experiment, the store and the name of the run: omit %s",
                          words > 0        ? "the file"
                          : given.unstored ? "--no-store"
                                           : "--name");
    }
    if (words != 1 && given.resumed == NULL) {
        return cli_refuse("run needs one experiment, for example experiments/044-matmulscan.yaml");
    }
    if (given.resumed != NULL && cli_store_there(given.store) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    if (given.wikitext != NULL && setenv(CLI_WIKITEXT, given.wikitext, 1) != 0) {
        return cli_refuse("--wikitext '%s': cannot be passed on", given.wikitext);
    }
    given.path = arguments[0];
    cli_catch_interrupt();
    return cli_on_ranks(&given.common, run_rank, &given) == CARRY_OK ? given.code : CLI_IMPOSSIBLE;
}

const cli_verb cli_run = {
    .name = "run",
    .arguments = "FILE.yaml | NAME | --continue RUN",
    .summary = "run an experiment, with a verdict per criterion and a decision",
    .details =
        "The file has a hypothesis, a grid of problems, methods, and criteria, which compare (>= > <= < ==)\n"
        "  speedup(A, B)  time(A)  error(A)  absolute_error(A)  products(A)  memory(A)  use(A)  gflops(A)  gbytes(A)\n"
        "  tokens_per_s(A)  received(A)  exposed(A)  perplexity(A)  busy(A)  cost(A)  money(A)  overlap(A)\n"
        "  slower_stage(A)  denoise(A)  recompute(A)  clean(A)  decode(A), each with filters\n"
        "  (t=128, bf16, device=cuda, stage=cpu); min(...), max(...), mean(...), log2(...), grows(speedup(A, B), t), + "
        "- * /\n"
        "docs/experiments.md describes the format. The whole file is checked before anything runs. If several\n"
        "problems match a criterion, the worst case counts; the time of a wrong result counts as not measured. Each\n"
        "result is stored with its samples as soon as it is measured. Exits with 0 for the decision proceed, 1 for\n"
        "stop or incomplete. A run is incomplete if something was not measured, even if no criterion uses it:\n"
        "--continue RUN measures the rest later, or on another machine, with the same commit. Problems for several\n"
        "ranks (allscan:...:p8) run on the ranks of --ranks or mpirun, else on threads; rank 0 prints and stores.",
    .example = "carry run experiments/044-matmulscan.yaml --stage cpu",
    .run = run,
    .on_ranks = true,
};
