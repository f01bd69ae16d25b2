/* carry bench PROBLEM..., carry bench --grid. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ranks.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/progress.h"
#include "ops/product/ceiling.h"
#include "bench/bench_ranks.h"
#include "bench/grid.h"

#define GRID_SECONDS 0.06
#define GRID_SLACK 1.10
#define GRID_SHARE 0.90

/* The parsed command line, the same for every rank. */
typedef struct bench_options {
    cli_common common;
    carry_bench_options options;
    bool grid;
    int words;
    char **problems;
    int code; /* the exit code, set by rank 0 */
} bench_options;

typedef struct show {
    carry_comm *comm;
    carry_ctx *ctx; /* context of this rank */
    int ranks;
    bool json;
    bool prints; /* true on rank 0; all ranks have the same results */
    carry_ceilings ceilings;
    carry_bench_options options;
    carry_progress bar;
    int64_t problem_index;
} show;

static void advance(void *user, double share) {
    show *s = user;
    carry_progress_step(&s->bar, s->problem_index * 100 + (int64_t)(100.0 * share));
}

static void print_ceilings(show *s) {
    if (s->json) {
        (void)printf("{\"ceilings\": {\"gemm_gflops\": %.6g, \"copy_gbytes_s\": %.6g}, \"threads\": %d, \"kernels\": "
                     "\"%s\"%s}\n",
                     s->ceilings.gemm_gflops, s->ceilings.copy_gbytes_s, carry_ctx_threads(s->ctx),
                     carry_ctx_kernels(s->ctx), carry_ceilings_are_rough() ? ", \"rough\": true" : "");
        (void)fflush(stdout);
        return;
    }
    (void)printf(
        "%sceilings in this run: product %.1f GFLOP/s, copy %.1f GB/s (CPU, %d threads, %s%s)\n"
        "method: checked first; %s; one warm-up; methods take turns; median; spread is the\n"
        "interquartile range over the median; share is that of the limiting ceiling, arithmetic or memory, which on\n"
        "the CPU is measured again in turns with the problem (one thread: both by processor time)%s\n%s",
        cli_dim(), s->ceilings.gemm_gflops, s->ceilings.copy_gbytes_s, carry_ctx_threads(s->ctx),
        carry_ctx_kernels(s->ctx), carry_ceilings_are_rough() ? "; CARRY_CEILINGS=rough: shares are wrong" : "",
        s->options.hot ? "one set of inputs (hot)" : "inputs rotated through more than the last-level cache",
        cli_plain(),
        s->ranks > 1
            ? "on several ranks at once: threads and ceilings are those of one rank, times those of the slowest\n"
            : "");
}

static void print_result_json(const show *s, const char *problem, const carry_bench_result *r) {
    cli_json_open();
    cli_json_text("problem", problem);
    cli_json_text("algorithm", r->algorithm);
    cli_json_text("device", cli_problem_device(problem));
    if (r->reason[0] != '\0') {
        cli_json_text("left_out", r->reason);
        cli_json_close();
        return;
    }
    cli_json_number("median_s", r->median);
    cli_json_number("spread", r->spread);
    cli_json_integer("repeats", r->repeats);
    cli_json_integer("products", r->counts.products);
    cli_json_number("gflops", 1e-9 * r->counts.flops / r->median);
    cli_json_number("gbytes_s", 1e-9 * r->counts.bytes / r->median);
    cli_json_number("share", r->share);
    cli_json_number("error", s->options.unchecked ? NAN : r->worst.error);
    cli_json_number("error_absolute", s->options.unchecked ? NAN : r->worst.absolute);
    cli_json_bool("planned", r->planned);
    if (r->ranks > 0) {
        cli_json_integer("ranks", r->ranks);
        cli_json_integer("cores", r->cores);
        cli_json_number("bytes_per_rank", r->counts.received);
        cli_json_number("predicted_s", r->counts.predicted > 0.0 ? r->counts.predicted : NAN);
        cli_json_number("exposed", r->counts.exposed >= 0.0 ? r->counts.exposed : NAN);
        cli_json_number("exposed_low", r->counts.exposed >= 0.0 ? r->exposed_low : NAN);
        cli_json_number("exposed_high", r->counts.exposed >= 0.0 ? r->exposed_high : NAN);
        cli_json_number("waited", r->counts.waited >= 0.0 ? r->counts.waited : NAN);
    } else if (s->ranks > 1) {
        cli_json_integer("ranks", s->ranks);
        cli_json_integer("rank", r->rank);
    }
    if (r->counts.first > 0.0) {
        cli_json_number("first_s", r->counts.first);
        cli_json_number("prompt_tokens_per_s", r->counts.prompt_rate);
        cli_json_number("tokens_per_s", r->counts.text_rate);
    }
    if (r->counts.slower_stage > 0.0) {
        cli_json_number("overlap", r->counts.overlap);
        cli_json_number("slower_stage_s", r->counts.slower_stage);
        cli_json_number("denoise_s", r->counts.denoise > 0.0 ? r->counts.denoise : NAN);
        cli_json_number("recompute_s", r->counts.recompute > 0.0 ? r->counts.recompute : NAN);
        cli_json_number("clean_s", r->counts.clean > 0.0 ? r->counts.clean : NAN);
        cli_json_number("decode_s", r->counts.decode > 0.0 ? r->counts.decode : NAN);
    }
    cli_json_close();
}

/* Formats a rate; "-" for NaN. */
static const char *rate_text(char text[32], double rate) {
    (void)snprintf(text, 32, "%.1f", rate);
    return isnan(rate) ? "-" : text;
}

static void print_result(const show *s, const carry_bench_result *r, double fastest) {
    if (r->reason[0] != '\0') {
        (void)printf("  %s%-14s left out: %s%s\n", cli_dim(), r->algorithm, r->reason, cli_plain());
        return;
    }
    char time[32];
    char error[32];
    (void)snprintf(error, sizeof error, "%.1e", r->worst.error);
    char together[CLI_TOGETHER];
    char overlapped[CLI_TOGETHER];
    char gflops[32];
    char gbytes[32];
    char share[32] = "-";
    char products[32] = "-"; /* for methods that do not count them */
    if (r->counts.products > 0) {
        (void)snprintf(products, sizeof products, "%lld", (long long)r->counts.products);
    }
    if (!isnan(r->share)) {
        (void)snprintf(share, sizeof share, "%.0f %%", 100.0 * r->share);
    }
    char predicted[48] = "";
    if (r->counts.predicted > 0.0) {
        char believed[32];
        (void)snprintf(predicted, sizeof predicted, "predicted %s  ", carry_time_text(believed, r->counts.predicted));
    }
    bool best = r->median == fastest;
    (void)printf("  %s%-14s %9s  %4.0f %% %6d %9s %8s %7s  %6s  %8s  %s%s%s%s%s%s\n", best ? cli_green() : "",
                 r->algorithm, carry_time_text(time, r->median), 100.0 * r->spread, r->repeats, products,
                 rate_text(gflops, 1e-9 * r->counts.flops / r->median),
                 rate_text(gbytes, 1e-9 * r->counts.bytes / r->median), share, s->options.unchecked ? "-" : error,
                 predicted, cli_together(together, r->ranks, r->counts.received, r->counts.exposed, r->counts.waited),
                 cli_overlapped(overlapped, r->counts.overlap, r->counts.slower_stage), r->planned ? "planned" : "",
                 best ? " fastest" : "", cli_plain());
    if (r->counts.first > 0.0) {
        (void)printf("  %-14s prompts %.0f tokens/s, first token after %s; texts %.0f tokens/s (last run)\n", "",
                     r->counts.prompt_rate, carry_time_text(time, r->counts.first), r->counts.text_rate);
    }
}

static carry_status bench_problem(show *s, const char *problem, carry_bench_result *results, int *count) {
    carry_status status = carry_bench_problem_ranks(s->comm, problem, &s->ceilings, &s->options, results, count);
    carry_progress_clear(&s->bar);
    return status;
}

static double fastest_of(const carry_bench_result *results, int count) {
    double fastest = INFINITY;
    for (int i = 0; i < count; i++) {
        if (results[i].reason[0] == '\0' && results[i].median < fastest) {
            fastest = results[i].median;
        }
    }
    return fastest;
}

static bool is_wrong(const show *s, const carry_bench_result *r) {
    return r->reason[0] == '\0' && !s->options.unchecked && !(r->worst.error <= r->worst.bound);
}

/* Prints the note about problems of several ranks once. */
static void print_note(const carry_bench_result *results, int count) {
    char note[CARRY_COLLECTIVE_NOTE];
    for (int i = 0; i < count; i++) {
        if (results[i].ranks > 0 && carry_collective_note(note, results[i].ranks, results[i].cores)[0] != '\0') {
            (void)printf("  %s%s%s\n", cli_dim(), note, cli_plain());
            return;
        }
    }
}

/* Prints the ceilings for results on another device or in another type than f32 on the CPU. */
static void print_other_ceilings(const show *s, const carry_bench_result *results, int count) {
    int i = 0;
    while (i < count && (results[i].reason[0] != '\0' || (results[i].device == 0 && results[i].type == CARRY_F32))) {
        i++;
    }
    if (i == count || isnan(results[i].share)) {
        return;
    }
    const carry_bench_result *r = &results[i];
    if (s->json) {
        (void)printf(
            "{\"ceilings\": {\"gemm_gflops\": %.6g, \"copy_gbytes_s\": %.6g}, \"device\": %d, \"type\": \"%s\"}\n",
            r->ceilings.gemm_gflops, r->ceilings.copy_gbytes_s, r->device, carry_dtype_name(r->type));
        return;
    }
    (void)printf("  %sceilings of device %d in this run: %s product %.1f GFLOP/s, copy %.1f GB/s%s\n", cli_dim(),
                 r->device, carry_dtype_name(r->type), r->ceilings.gemm_gflops, r->ceilings.copy_gbytes_s, cli_plain());
}

static void print_results(const show *s, const char *problem, const carry_bench_result *results, int count) {
    if (!s->json && count > 0) {
        (void)printf("%s%s%s\n  %-14s %9s  %6s %6s %9s %8s %7s  %6s  %8s\n", cli_bold(), problem, cli_plain(),
                     "algorithm", "median", "spread", "runs", "products", "GFLOP/s", "GB/s", "share", "error");
        print_note(results, count);
    }
    print_other_ceilings(s, results, count);
    for (int i = 0; i < count; i++) {
        const carry_bench_result *r = &results[i];
        if (s->json) {
            print_result_json(s, problem, r);
        } else {
            print_result(s, r, fastest_of(results, count));
        }
        if (is_wrong(s, r)) {
            (void)cli_refuse("%s is wrong on %s: error %.2e, bound %.2e", r->algorithm, problem, r->worst.error,
                             r->worst.bound);
        }
    }
    (void)fflush(stdout); /* a program that follows the file sees each problem when it is done */
}

static carry_status bench_one(show *s, const char *problem, int *code) {
    carry_bench_result results[CARRY_BENCH_METHODS];
    int count = 0;
    carry_status status = bench_problem(s, problem, results, &count);
    if (s->prints) {
        print_results(s, problem, results, count);
    }
    for (int i = 0; i < count; i++) {
        *code = is_wrong(s, &results[i]) ? CLI_WRONG : *code;
    }
    return status;
}

/* Prints one line of the planner's test. within: the chosen method is at most a tenth slower than the best. */
static void print_grid_line(const show *s, const char *problem, const carry_bench_result *planned,
                            const carry_bench_result *best, bool within) {
    if (s->json) {
        cli_json_open();
        cli_json_text("problem", problem);
        cli_json_text("planned", planned->algorithm);
        cli_json_number("planned_s", planned->median);
        cli_json_text("best", best->algorithm);
        cli_json_number("best_s", best->median);
        cli_json_number("ratio", planned->median / best->median);
        cli_json_bool("within", within);
        cli_json_close();
        return;
    }
    char planned_time[32];
    char best_time[32];
    (void)printf("%-36s %-12s %9s  %-12s %9s  %5.2f  %s%s%s\n", problem, planned->algorithm,
                 carry_time_text(planned_time, planned->median), best->algorithm,
                 carry_time_text(best_time, best->median), planned->median / best->median,
                 within ? cli_green() : cli_red(), within ? "ok" : "SLOWER", cli_plain());
}

static void print_grid_end(const show *s, int within, int sequential_within, bool ok) {
    if (s->json) {
        cli_json_open();
        cli_json_integer("within", within);
        cli_json_integer("shapes", CARRY_GRID_SHAPES);
        cli_json_integer("sequential_within", sequential_within);
        cli_json_bool("ok", ok);
        cli_json_close();
    } else {
        (void)printf("the planner's choice is within 10 %% of the best algorithm on %d of %d shapes (%.0f %%); always "
                     "sequential\n"
                     "would be on %d\n",
                     within, CARRY_GRID_SHAPES, 100.0 * within / CARRY_GRID_SHAPES, sequential_within);
    }
}

static carry_status bench_grid(show *s, int *code) {
    int within = 0;
    int sequential_within = 0;   /* the score of always choosing sequential */
    s->options.unchecked = true; /* carry check and the tests do that; this only times 60 shapes */
    if (s->options.seconds == 0.0) {
        s->options.seconds = GRID_SECONDS;
    }
    if (s->prints && !s->json) {
        (void)printf("%-36s %-12s %9s  %-12s %9s  %5s\n", "problem", "planned", "median", "best", "median", "ratio");
    }
    for (int i = 0; i < CARRY_GRID_SHAPES; i++) {
        char problem[64];
        carry_bench_result results[CARRY_BENCH_METHODS];
        const carry_bench_result *planned = NULL;
        const carry_bench_result *best = NULL;
        const carry_bench_result *sequential = NULL;
        int count = 0;
        s->problem_index = i;
        CARRY_TRY(bench_problem(s, carry_grid_problem(i, problem), results, &count));
        for (int j = 0; j < count; j++) {
            if (results[j].reason[0] == '\0') {
                planned = results[j].planned ? &results[j] : planned;
                sequential = strcmp(results[j].algorithm, "sequential") == 0 ? &results[j] : sequential;
                best = best == NULL || results[j].median < best->median ? &results[j] : best;
            }
        }
        if (planned == NULL || best == NULL) {
            return carry_fail(s->ctx, CARRY_EUNSUPPORTED, "%s: the planner's choice could not be timed", problem);
        }
        bool ok = planned->median <= GRID_SLACK * best->median;
        within += ok;
        sequential_within += sequential != NULL && sequential->median <= GRID_SLACK * best->median;
        if (s->prints) {
            print_grid_line(s, problem, planned, best, ok);
        }
    }
    const bool ok = within >= GRID_SHARE * CARRY_GRID_SHAPES;
    if (s->prints) {
        print_grid_end(s, within, sequential_within, ok);
    }
    *code = ok ? CLI_DONE : CLI_WRONG;
    return CARRY_OK;
}

/* True if every problem is simulated, so that this machine's ceilings do not matter. Text that cannot be parsed is
   refused later. */
static bool are_simulated(carry_ctx *ctx, const bench_options *given) {
    bool all = given->words > 0 && !given->grid;
    for (int i = 0; all && i < given->words; i++) {
        carry_problem problem;
        const carry_family *family;
        all = carry_problem_parse(ctx, &problem, given->problems[i]) == CARRY_OK &&
              carry_family_of(ctx, &family, &problem) == CARRY_OK && family->is_simulated;
    }
    return all;
}

static carry_status bench_all(show *s, const bench_options *given, int *code) {
    const bool simulated = are_simulated(s->ctx, given);
    CARRY_TRY(simulated ? CARRY_OK : carry_ceilings_measure_ranks(s->comm, &s->ceilings));
    if (s->prints && simulated && !s->json) {
        (void)printf("%stimes are simulated: no ceilings, no shares%s\n", cli_dim(), cli_plain());
    } else if (s->prints && !simulated) {
        print_ceilings(s);
    }
    if (s->prints) {
        carry_progress_start(&s->bar, stderr, "benching", 100 * (given->grid ? CARRY_GRID_SHAPES : given->words));
    }
    if (given->grid) {
        return bench_grid(s, code);
    }
    for (int i = 0; i < given->words; i++) {
        s->problem_index = i;
        CARRY_TRY(bench_one(s, given->problems[i], code));
    }
    return CARRY_OK;
}

static carry_status bench_rank(void *user, carry_comm *comm) {
    bench_options *given = user;
    show s = {.comm = comm, .ctx = carry_comm_ctx(comm), .ranks = carry_comm_size(comm), .json = given->common.json};
    s.prints = carry_comm_rank(comm) == 0;
    s.options = given->options;
    s.options.progress = advance;
    s.options.progress_user = &s;
    int code = CLI_DONE;
    carry_status status = bench_all(&s, given, &code);
    if (s.prints || cli_process_rank() > 0) { /* ranks that are threads share `given`, so only rank 0 writes to it */
        given->code = code;
    }
    return status;
}

/* Checks every problem before the first is timed and before ranks are started. */
static int refuse_bad_problems(const bench_options *given) {
    carry_ctx *ctx;
    carry_status status = carry_ctx_new(
        &ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1, .kernels = given->common.kernels});
    for (int i = 0; i < given->words && status == CARRY_OK; i++) {
        carry_problem problem;
        const carry_family *family;
        void *instance = NULL;
        status = carry_problem_parse(ctx, &problem, given->problems[i]);
        status = status == CARRY_OK ? carry_family_of(ctx, &family, &problem) : status;
        status = status == CARRY_OK ? carry_family_plan(family, ctx, &instance, &problem, false) : status;
        if (status == CARRY_OK) {
            carry_family_close(family, instance);
        }
    }
    int code = status == CARRY_OK ? CLI_DONE : cli_refuse("%s", ctx != NULL ? carry_ctx_error(ctx) : "out of memory");
    carry_ctx_free(ctx);
    return code;
}

static int run(int count, char **arguments) {
    bench_options given = {.problems = arguments, .options = {.stop = cli_interrupted}};
    int64_t repeats = 0;
    const char *device = NULL;
    char *texts = NULL;
    const cli_option own[] = {
        {"repeats", 0, CLI_NUMBER, &repeats, "N", "runs per algorithm, up to 2000 (by time)"},
        {"seconds", 0, CLI_SECONDS, &given.options.seconds, "S",
         "seconds per algorithm, or 2000 runs if they take less (0.3)"},
        {"hot", 0, CLI_FLAG, &given.options.hot, NULL,
         "use one set of inputs, in cache if it fits, instead of rotating"},
        {"unchecked", 0, CLI_FLAG, &given.options.unchecked, NULL,
         "skip the comparison with float64 (for very large problems)"},
        {"grid", 0, CLI_FLAG, &given.grid, NULL, "evaluate the planner: its choice against the best, 60 shapes"},
        {"device", 0, CLI_TEXT, &device, "NAME",
         "for problems that do not name one: cpu, cuda or cuda:N (a GPU if there is one)"},
        {0},
    };
    given.words = cli_parse(&cli_bench, count, arguments, own, &given.common);
    if (given.words < 0 || given.common.help) {
        return given.words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (given.grid == (given.words > 0)) {
        return cli_refuse(given.grid ? "bench --grid takes no problem"
                                     : "bench needs a problem, for example scan:dense:t1024:n32");
    }
    if (repeats > 2000) {
        return cli_refuse("--repeats %lld: expected at most 2000", (long long)repeats);
    }
    int code = refuse_bad_problems(&given);
    code = code == CLI_DONE ? cli_device_problems(&given.common, device, given.words, given.problems, &texts) : code;
    code = code == CLI_DONE ? cli_ranks_problems("bench", given.words, given.problems, true) : code;
    if (code == CLI_DONE) {
        cli_catch_interrupt();
        given.options.seed = (uint64_t)given.common.seed;
        given.options.repeats = (int)repeats;
        code = cli_on_ranks(&given.common, bench_rank, &given) == CARRY_OK ? given.code : CLI_IMPOSSIBLE;
    }
    free(texts);
    return code;
}

const cli_verb cli_bench = {
    .name = "bench",
    .arguments = "PROBLEM...",
    .summary = "time every applicable algorithm, next to the measured ceilings of the machine",
    .details =
        "For each algorithm, prints the median and spread of its runs, the number of matrix products, GFLOP/s, GB/s\n"
        "(inputs and outputs counted once), the share of the limiting ceiling, and the error against float64. carry\n"
        "list problems shows the problem grammar; :algo=NAME times one algorithm.\n"
        "\n"
        "On the CPU a share compares like with like: after each turn of an algorithm the limiting ceiling, a large\n"
        "product or a copy, is measured for as long as the turn took, and the share is the median over the turns of\n"
        "one mean rate over the other. On one thread both are measured in processor time. A share of 100 to 105 %,\n"
        "which is the noise of two measurements, is shown as 100 %.\n"
        "\n"
        "carry --ranks N bench ... and mpirun -n N carry bench ... measure on N ranks at once, each with its share\n"
        "of the threads. The figures of an algorithm are those of its slowest rank, which --json names (ranks,\n"
        "rank). A ceiling is the smallest of any rank, measured on all at once. The first p ranks work together on a\n"
        "problem for p ranks (allscan:...:p8, delta:...:p4); if carry runs as a single process, the ranks are\n"
        "threads. The figures are then those of the rank with the most work, and the bytes those that it received.",
    .example = "carry bench scan:dense:f32:t1024:n32:w1 matmul:b4096:n32",
    .run = run,
    .on_ranks = true,
};
