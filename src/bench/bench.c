/* Times methods on a problem. */
#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/span.h"
#include "bench/sample.h"
#include "ops/product/ceiling.h"

#define LEAST_RUNS 5
#define MOST_RUNS 2000
#define SECONDS 0.3
#define MOST_SET_BYTES 512e6
#define MOST_COPIES 64
#define MOST_BESIDE 0.1 /* maximum seconds of one measurement of a ceiling */
/* Two measurements of the same product may differ by this factor; a share up to it counts as 100 %. */
#define EQUAL 1.05

/* One problem being timed. */
typedef struct session {
    carry_ctx *ctx;
    const carry_family *family;
    void *instance;
    carry_dtype type;        /* type of its products */
    carry_ceilings ceilings; /* for that type and device, once they are measured */
    const carry_bench_options *options;
    carry_comm *comm; /* the ranks that solve the problem together, or NULL */
    int cores;        /* cores of their machines */
    carry_bench_result *results;
    int count;
    double *samples;          /* MOST_RUNS per method */
    double *waited, *exposed; /* likewise */
    double *sorted;           /* MOST_RUNS */
    /* On the CPU, the binding ceiling is measured after each turn of a method. shares: the turn's rate over that of the
       ceiling; rates: the ceiling's rate. */
    carry_yardstick *yardstick; /* NULL: not used, or not created yet */
    const carry_ceilings *given;
    double *shares, *rates;         /* MOST_RUNS per method */
    int turns[CARRY_BENCH_METHODS]; /* number of turns measured */
    bool by_copies[CARRY_BENCH_METHODS];
    double spent[CARRY_BENCH_METHODS];
} session;

static bool asked_to_stop(const session *s) {
    return s->options->stop != NULL && s->options->stop();
}

static carry_status stop_if_asked(session *s) {
    return carry_collective_agree(s->comm,
                                  asked_to_stop(s) ? carry_fail(s->ctx, CARRY_EINTERRUPTED, "interrupted") : CARRY_OK);
}

static void keep_worst(carry_bench_result *result, const carry_deviation *deviations, int count) {
    for (int i = 0; i < count; i++) {
        double now = deviations[i].error / deviations[i].bound;
        double before = result->worst.error / result->worst.bound;
        if (i == 0 || isnan(now) || now > before) {
            result->worst = deviations[i];
        }
    }
}

static carry_status compare(session *s, carry_bench_result *result) {
    CARRY_SPAN(s->ctx, "bench", "compare");
    carry_deviation deviations[CARRY_DEVIATIONS];
    int count = 0;
    carry_status status = s->family->compare(s->instance, deviations, &count);
    keep_worst(result, deviations, count);
    return status;
}

static carry_status warm_up(session *s) {
    CARRY_SPAN(s->ctx, "bench", "warm-up");
    return s->family->run(s->instance);
}

/* Chooses a method, compares it with the reference and warms up. A method that does not apply gets its reason. */
static carry_status prepare(session *s, carry_bench_result *result) {
    carry_status status = s->family->choose(s->instance, result->algorithm);
    if (status == CARRY_OK && !s->options->unchecked) {
        status = compare(s, result);
    }
    for (int i = 0; status == CARRY_OK && i < (s->options->warm_up > 1 ? s->options->warm_up : 1); i++) {
        status = warm_up(s);
    }
    if (status == CARRY_EUNSUPPORTED || status == CARRY_ERANGE || status == CARRY_EMEMORY) {
        (void)snprintf(result->reason, sizeof result->reason, "%s", carry_ctx_error(s->ctx));
        return CARRY_OK;
    }
    return status;
}

static bool wants_more(const session *s, int i) {
    const carry_bench_result *result = &s->results[i];
    double seconds = s->options->seconds > 0.0 ? s->options->seconds : SECONDS;
    int least = s->options->repeats > 0 ? s->options->repeats : LEAST_RUNS;
    if (result->reason[0] != '\0' || result->repeats >= MOST_RUNS) {
        return false;
    }
    return result->repeats < least || (s->options->repeats == 0 && s->spent[i] < seconds);
}

/* Times of one run. */
typedef struct sample {
    double seconds;
    double spent;           /* including overhead: a sample on a GPU is a graph of many runs */
    double waited, exposed; /* as in carry_counts */
    bool stop;
} sample;

/* Gives all ranks the same sample: the time of the slowest, and whether any was asked to stop. A rank that waits and
   still finishes before the slowest costs nothing, so `exposed` is the share by which all would finish earlier if no
   rank waited. */
static carry_status time_together(session *s, sample *one) {
    CARRY_TRY(carry_barrier(s->comm));
    double before = carry_seconds();
    CARRY_TRY(s->family->run(s->instance));
    double spent = carry_seconds() - before;
    const double waited = s->family->counts(s->instance).waited;
    double most[4] = {spent, waited, spent * (1.0 - fmax(waited, 0.0)), asked_to_stop(s) ? 1.0 : 0.0};
    CARRY_TRY(carry_all_reduce(s->comm, most, 4, CARRY_F64, CARRY_REDUCE_MAX));
    *one = (sample){.seconds = most[0], .spent = most[0], .waited = most[1], .stop = most[3] > 0.0};
    one->exposed = one->waited < 0.0 ? -1.0 : fmax(0.0, 1.0 - most[2] / most[0]);
    return CARRY_OK;
}

static carry_status time_run(session *s, sample *one) {
    if (s->comm != NULL) {
        return time_together(s, one);
    }
    double before = carry_seconds();
    CARRY_TRY(s->family->time != NULL ? s->family->time(s->instance, &one->seconds) : s->family->run(s->instance));
    one->spent = carry_seconds() - before;
    one->seconds = s->family->time != NULL ? one->seconds : one->spent;
    one->stop = asked_to_stop(s);
    return CARRY_OK;
}

/* Work and traffic of the chosen method; over ranks, the maximum of each figure. */
static carry_status count(session *s, carry_counts *counts) {
    *counts = s->family->counts(s->instance);
    if (s->comm == NULL) {
        return CARRY_OK;
    }
    double most[] = {counts->flops,  counts->bytes,    (double)counts->products, counts->workspace,
                     counts->tokens, counts->received, counts->predicted};
    CARRY_TRY(carry_all_reduce(s->comm, most, sizeof most / sizeof most[0], CARRY_F64, CARRY_REDUCE_MAX));
    *counts = (carry_counts){.flops = most[0],
                             .bytes = most[1],
                             .products = (int64_t)most[2],
                             .workspace = most[3],
                             .tokens = most[4],
                             .received = most[5],
                             .predicted = most[6]};
    return CARRY_OK;
}

static int device_of(const session *s) {
    return s->family->device != NULL && s->instance != NULL ? s->family->device(s->instance) : 0;
}

/* The ceilings of the problem's device and type. Those of the CPU in f32 were measured before. */
static carry_ceilings ceilings_of(session *s, const carry_ceilings *cpu) {
    const int device = device_of(s);
    if (device == 0 && s->type == CARRY_F32) {
        return *cpu;
    }
    carry_ceilings *known = &s->ceilings;
    if (known->gemm_gflops != 0.0) {
        return *known;
    }
    double flops_s = 0.0;
    const carry_status status = device == 0 ? carry_ceiling_product(s->ctx, device, s->type, &flops_s)
                                            : carry_ceilings_measure_on(s->ctx, device, s->type, known);
    if (status != CARRY_OK) {
        *known = (carry_ceilings){.gemm_gflops = NAN, .copy_gbytes_s = NAN};
    } else if (device == 0) {
        *known = (carry_ceilings){.gemm_gflops = 1e-9 * flops_s, .copy_gbytes_s = cpu->copy_gbytes_s};
    }
    return *known;
}

static double median_of(session *s, const double *values, int count) {
    memcpy(s->sorted, values, (size_t)count * sizeof *values);
    return carry_summarise(s->sorted, count).median;
}

/* With one thread, processor time is used, to which other programs do not add. The stages of a stream are separate
   threads, so a stream uses wall-clock time. */
static double (*clock_of(const session *s, const carry_bench_result *result))(void) {
    const bool has_stages = result->counts.slower_stage > 0.0;
    return carry_ctx_threads(s->ctx) == 1 && !has_stages ? carry_thread_seconds : carry_seconds;
}

/* Measures the binding ceiling for as long as the turn took, at most MOST_BESIDE seconds, and divides the turn's mean
   rate by that of the ceiling. Other load and the processor's clock rate then affect both in the same way. */
static carry_status look_beside(session *s, int i, int runs, double (*clock)(void), double spent) {
    const carry_counts *counts = &s->results[i].counts;
    const int turn = s->turns[i];
    if (s->given == NULL || s->comm != NULL || s->family->is_simulated || device_of(s) != 0 || turn == MOST_RUNS) {
        return CARRY_OK;
    }
    if (turn == 0) {
        const carry_ceilings all = ceilings_of(s, s->given);
        s->by_copies[i] = !(counts->flops / all.gemm_gflops >= counts->bytes / all.copy_gbytes_s);
    }
    if (s->yardstick == NULL) {
        CARRY_TRY(carry_yardstick_new(s->ctx, &s->yardstick, s->type));
    }
    double rate;
    CARRY_TRY(carry_yardstick_measure(s->yardstick, s->by_copies[i], clock, fmin(spent, MOST_BESIDE), &rate));
    const double work = s->by_copies[i] ? counts->bytes : counts->flops;
    s->rates[i * MOST_RUNS + turn] = rate;
    s->shares[i * MOST_RUNS + turn] = work * runs / spent / rate;
    s->turns[i]++;
    return CARRY_OK;
}

/* A method's turn: several runs in a row, so that choosing it again (a new plan) does not dominate short problems. */
static carry_status take_turn(session *s, int i) {
    CARRY_SPAN(s->ctx, "bench", "turn");
    carry_bench_result *result = &s->results[i];
    carry_status status = s->family->choose(s->instance, result->algorithm);
    status = status == CARRY_OK ? s->family->run(s->instance) : status;
    /* The method worked before, so the times measured so far are kept. */
    if (status == CARRY_EUNSUPPORTED || status == CARRY_EMEMORY) {
        (void)snprintf(result->reason, sizeof result->reason, "%s", carry_ctx_error(s->ctx));
        return CARRY_OK;
    }
    CARRY_TRY(status);
    const int first = result->repeats;
    double (*clock)(void) = clock_of(s, result);
    const double start = clock();
    double spent = 0.0;
    do {
        sample one = {0};
        CARRY_TRY(time_run(s, &one));
        s->waited[i * MOST_RUNS + result->repeats] = one.waited;
        s->exposed[i * MOST_RUNS + result->repeats] = one.exposed;
        s->samples[i * MOST_RUNS + result->repeats++] = one.seconds;
        s->spent[i] += one.spent;
        spent += one.spent;
        if (one.stop) {
            return carry_fail(s->ctx, CARRY_EINTERRUPTED, "interrupted");
        }
    } while (wants_more(s, i) && spent < 0.03);
    const double worked = clock() - start;
    CARRY_TRY(count(s, &result->counts));
    return look_beside(s, i, result->repeats - first, clock, worked);
}

static carry_status take_turns(session *s) {
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < s->count; i++) {
            if (wants_more(s, i)) {
                CARRY_TRY(take_turn(s, i));
                more = true;
                if (s->options->progress != NULL) {
                    double wanted = s->options->seconds > 0.0 ? s->options->seconds : SECONDS;
                    s->options->progress(s->options->progress_user, fmin(1.0, s->spent[i] / wanted));
                }
            }
        }
    }
    return CARRY_OK;
}

static void summarise(session *s, int i, const carry_ceilings *ceilings) {
    carry_bench_result *result = &s->results[i];
    int n = result->repeats;
    if (n > 0) {
        result->reason[0] = '\0';
    } else {
        if (result->reason[0] == '\0') {
            (void)snprintf(result->reason, sizeof result->reason, "not reached");
        }
        return;
    }
    double *samples = s->samples + (size_t)i * MOST_RUNS;
    memcpy(s->sorted, samples, (size_t)n * sizeof *samples);
    carry_summary summary = carry_summarise(s->sorted, n);
    result->median = summary.median;
    result->spread = summary.spread;
    if (s->comm != NULL) {
        result->counts.waited = median_of(s, s->waited + (size_t)i * MOST_RUNS, n);
        memcpy(s->sorted, s->exposed + (size_t)i * MOST_RUNS, (size_t)n * sizeof *s->sorted);
        const carry_summary exposed = carry_summarise(s->sorted, n);
        result->counts.exposed = exposed.median;
        result->exposed_low = exposed.quartile_low;
        result->exposed_high = exposed.quartile_high;
        result->ranks = carry_comm_size(s->comm);
        result->cores = s->cores;
    }
    if (s->family->is_simulated) {
        result->ceilings = (carry_ceilings){.gemm_gflops = NAN, .copy_gbytes_s = NAN};
        result->share = NAN;
    } else if (ceilings != NULL && s->comm != NULL) {
        /* Ranks share cores in an unknown way, so there is no ceiling for a rank. */
        result->ceilings = *ceilings;
        result->share = NAN;
    } else if (ceilings != NULL) {
        carry_ceilings here = ceilings_of(s, ceilings);
        double arithmetic = 1e-9 * result->counts.flops / here.gemm_gflops;
        double movement = 1e-9 * result->counts.bytes / here.copy_gbytes_s;
        result->share = fmax(arithmetic, movement) / result->median;
        if (s->turns[i] > 0) {
            const double rate = 1e-9 * median_of(s, s->rates + (size_t)i * MOST_RUNS, s->turns[i]);
            *(s->by_copies[i] ? &here.copy_gbytes_s : &here.gemm_gflops) = rate;
            result->share = median_of(s, s->shares + (size_t)i * MOST_RUNS, s->turns[i]);
            result->share = result->share > 1.0 && result->share < EQUAL ? 1.0 : result->share;
        }
        result->ceilings = here;
        result->device = device_of(s);
        result->type = s->type;
    }
}

/* The number of input sets that together are twice as large as the last-level cache; ranks are assumed to share it. */
static carry_status copies_for(const session *s, int *copies) {
    carry_device_properties device = {CARRY_INIT(carry_device_properties)};
    double bytes = s->family->bytes(s->instance) * (s->comm != NULL ? carry_comm_size(s->comm) : 1);
    int64_t wanted = 1;
    if (!s->options->hot && carry_device_properties_of(s->ctx, &device, device_of(s)) == CARRY_OK) {
        double room = fmin(2.0 * (double)(device.cache > 0 ? device.cache : (size_t)32 << 20), MOST_SET_BYTES);
        wanted = (int64_t)fmin(ceil(room / bytes), MOST_COPIES);
    }
    if (s->comm != NULL) {
        CARRY_TRY(carry_all_reduce(s->comm, &wanted, 1, CARRY_I64, CARRY_REDUCE_MAX));
    }
    *copies = wanted > 1 ? (int)wanted : 1;
    return CARRY_OK;
}

static carry_status open_session(session *s, const char *text) {
    CARRY_SPAN(s->ctx, "bench", "inputs");
    carry_problem problem;
    int copies;
    CARRY_TRY(carry_problem_parse(s->ctx, &problem, text));
    CARRY_TRY(carry_family_of(s->ctx, &s->family, &problem));
    s->type = carry_problem_type(&problem, s->family->type);
    problem.comm = s->comm;
    carry_problem again = problem;
    CARRY_TRY(carry_family_open(s->family, s->ctx, &s->instance, &problem, s->options->seed, 1));
    CARRY_TRY(copies_for(s, &copies));
    if (copies > 1) {
        carry_family_close(s->family, s->instance);
        s->instance = NULL;
        CARRY_TRY(carry_family_open(s->family, s->ctx, &s->instance, &again, s->options->seed, copies));
    }
    return s->comm != NULL ? carry_collective_cores(s->comm, &s->cores) : CARRY_OK;
}

static carry_status add_method(session *s, const char *name, const char *planned) {
    if (s->count == CARRY_BENCH_METHODS) {
        return carry_fail(s->ctx, CARRY_ESIZE, "more than %d methods cannot be timed at once", CARRY_BENCH_METHODS);
    }
    carry_bench_result *result = &s->results[s->count++];
    *result = (carry_bench_result){.planned = strcmp(name, planned) == 0};
    (void)snprintf(result->algorithm, sizeof result->algorithm, "%s", name);
    return CARRY_OK;
}

static carry_status list_methods(session *s) {
    const char *only = s->family->only(s->instance);
    CARRY_TRY(s->family->choose(s->instance, NULL));
    char planned[24];
    (void)snprintf(planned, sizeof planned, "%s", s->family->chosen(s->instance));
    if (only != NULL) { /* an unknown name, or one that does not apply, is an error here, not a reason in the result */
        CARRY_TRY(s->family->choose(s->instance, only));
    }
    for (int i = 0; s->options->methods != NULL && s->options->methods[i] != NULL; i++) {
        CARRY_TRY(add_method(s, s->options->methods[i], planned));
    }
    if (s->options->methods != NULL) {
        return CARRY_OK;
    }
    for (int i = 0; s->family->method(i) != NULL && s->count < CARRY_BENCH_METHODS; i++) {
        const char *name = s->family->method(i);
        if (only == NULL || strcmp(only, name) == 0) {
            CARRY_TRY(add_method(s, name, planned));
        }
    }
    return CARRY_OK;
}

static void find_curve(session *s, carry_bench_result *result) {
    if (s->family != NULL && s->family->curve != NULL && result->reason[0] == '\0' &&
        s->family->choose(s->instance, result->algorithm) == CARRY_OK) {
        result->curve = s->family->curve(s->instance, &result->curve_count);
    }
}

/* Runs the bench on this rank, from making inputs to computing the figures. */
static carry_status bench(session *s, const char *problem, const carry_ceilings *ceilings) {
    CARRY_SPAN(s->ctx, "bench", "problem");
    const size_t each = (size_t)CARRY_BENCH_METHODS * MOST_RUNS;
    s->samples = calloc(5 * each + MOST_RUNS, sizeof *s->samples);
    CARRY_TRY(carry_collective_agree(
        s->comm, s->samples != NULL ? CARRY_OK : carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: samples")));
    s->waited = s->samples + each;
    s->exposed = s->waited + each;
    s->shares = s->exposed + each;
    s->rates = s->shares + each;
    s->sorted = s->rates + each;
    s->given = ceilings;
    carry_status status = open_session(s, problem);
    if (status == CARRY_OK) {
        status = list_methods(s);
    }
    for (int i = 0; status == CARRY_OK && i < s->count; i++) {
        status = prepare(s, &s->results[i]);
        status = status == CARRY_OK ? stop_if_asked(s) : status;
    }
    if (status == CARRY_OK) {
        status = take_turns(s);
    }
    const bool keeps = s->options->keep != NULL && (s->comm == NULL || carry_comm_rank(s->comm) == 0);
    for (int i = 0; i < s->count; i++) {
        summarise(s, i, ceilings);
        if (keeps) {
            find_curve(s, &s->results[i]);
            s->options->keep(s->options->keep_user, &s->results[i], s->samples + (size_t)i * MOST_RUNS);
            s->results[i].curve = NULL;
        }
    }
    return status;
}

/* Times one problem on one rank, or on all ranks of comm. */
static carry_status bench_on(carry_ctx *ctx, carry_comm *comm, const char *problem, const carry_ceilings *ceilings,
                             const carry_bench_options *options, carry_bench_result *results, int *count) {
    session s = {.ctx = ctx, .options = options, .results = results, .comm = comm};
    const carry_status status = bench(&s, problem, ceilings);
    free(s.samples);
    carry_yardstick_free(s.yardstick);
    *count = s.count;
    if (s.instance != NULL) {
        carry_family_close(s.family, s.instance);
    }
    return status;
}

/* Shared by the ranks of a problem. */
typedef struct together {
    const char *problem;
    const carry_ceilings *ceilings;
    const carry_bench_options *options;
    carry_bench_result *results; /* results of rank 0 */
    int *count;
} together;

static carry_status bench_rank(void *user, carry_comm *comm) {
    const together *all = user;
    const bool is_first = carry_comm_rank(comm) == 0;
    carry_bench_options options = *all->options;
    carry_bench_result others[CARRY_BENCH_METHODS];
    int count;
    options.progress = is_first ? options.progress : NULL;
    return bench_on(carry_comm_ctx(comm), comm, all->problem, all->ceilings, &options, is_first ? all->results : others,
                    is_first ? all->count : &count);
}

carry_status carry_bench_problem(carry_ctx *ctx, const char *problem, const carry_ceilings *ceilings,
                                 const carry_bench_options *options, carry_bench_result results[CARRY_BENCH_METHODS],
                                 int *count) {
    const int ranks = carry_collective_ranks(ctx, problem);
    *count = 0;
    if (ranks == 0) {
        return bench_on(ctx, NULL, problem, ceilings, options, results, count);
    }
    together all = {.problem = problem, .ceilings = ceilings, .options = options, .results = results, .count = count};
    return carry_collective_run(ctx, options->comm, ranks, bench_rank, &all);
}
