/* Experiments: measures the grid, evaluates the criteria. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "lab/experiment/experiment.h"
#include "lab/experiment/experiment_bounds.h"
#include "lab/experiment/experiment_runs.h"
#include "lab/quiet.h"

typedef struct keeper {
    carry_experiment *e;
    const carry_experiment_options *options;
    const carry_ceilings *ceilings;
    const carry_point *point;
    bool kept;           /* an outcome of this point was kept */
    carry_ceilings of;   /* ceilings of the device of the current result */
    carry_status status; /* status of storing */
} keeper;

static carry_outcome *outcome_of(carry_experiment *e, const carry_point *point, const char *method) {
    for (int i = 0; i < e->outcomes; i++) {
        if (e->outcome[i].problem == point->problem && strcmp(e->outcome[i].method, method) == 0) {
            return &e->outcome[i];
        }
    }
    return NULL;
}

/* Stores additional metrics of problems on several ranks. The step is the index of the result in the run. */
static carry_status store_ranks(const keeper *k, const carry_outcome *o) {
    const int64_t step = o - k->e->outcome;
    CARRY_TRY(carry_store_metric(k->options->store, k->options->run, step, CARRY_RECEIVED, o->received));
    CARRY_TRY(carry_store_metric(k->options->store, k->options->run, step, CARRY_RANKS, o->ranks));
    return isnan(o->exposed) ? CARRY_OK
                             : carry_store_metric(k->options->store, k->options->run, step, CARRY_EXPOSED, o->exposed);
}

/* Stores the losses of a training over its steps. Points of the same stage are distinguished by their index in it. */
static carry_status store_curve(const keeper *k, const carry_bench_result *r) {
    int place = 0;
    for (const carry_point *p = k->e->point; p < k->point; p++) {
        place += p->stage == k->point->stage;
    }
    char name[96];
    int used = snprintf(name, sizeof name, CARRY_LOSS ":%.24s, %.40s", r->algorithm, k->e->stage[k->point->stage].name);
    if (place > 0) {
        (void)snprintf(name + used, sizeof name - (size_t)used, ", %d", place + 1);
    }
    CARRY_TRY(k->options->continues > 0 ? carry_store_forget_metric(k->options->store, k->options->run, name)
                                        : CARRY_OK);
    for (int i = 0; i < r->curve_count; i++) {
        CARRY_TRY(carry_store_metric(k->options->store, k->options->run, i + 1, name, r->curve[i]));
    }
    return CARRY_OK;
}

static carry_status store_training(const keeper *k, const carry_outcome *o, const carry_bench_result *r) {
    if (k->options->store == NULL) {
        return CARRY_OK;
    }
    if (r->curve != NULL) {
        CARRY_TRY(store_curve(k, r));
    }
    const struct {
        const char *name;
        double value;
    } figures[] = {{CARRY_PERPLEXITY, o->perplexity}, {CARRY_BUSY, o->busy}, {CARRY_TRAINING_COST, o->cost}};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        CARRY_TRY(figures[i].value > 0.0 ? carry_store_metric(k->options->store, k->options->run, o - k->e->outcome,
                                                              figures[i].name, figures[i].value)
                                         : CARRY_OK);
    }
    return CARRY_OK;
}

static carry_status store_stream(const keeper *k, const carry_outcome *o) {
    const int64_t step = o - k->e->outcome;
    if (k->options->store == NULL || !(o->slower_stage > 0.0)) {
        return CARRY_OK;
    }
    const struct {
        const char *name;
        double seconds;
    } blocks[] = {{CARRY_SLOWER_STAGE, o->slower_stage},
                  {CARRY_BLOCK_DENOISE, o->denoise},
                  {CARRY_BLOCK_RECOMPUTE, o->recompute},
                  {CARRY_BLOCK_CLEAN, o->clean},
                  {CARRY_BLOCK_DECODE, o->decode}};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        CARRY_TRY(blocks[i].seconds > 0.0
                      ? carry_store_metric(k->options->store, k->options->run, step, blocks[i].name, blocks[i].seconds)
                      : CARRY_OK);
    }
    return isnan(o->overlap) ? CARRY_OK
                             : carry_store_metric(k->options->store, k->options->run, step, CARRY_OVERLAP, o->overlap);
}

static carry_status store_outcome(const keeper *k, const carry_outcome *o, const double *samples) {
    if (k->options->store == NULL) {
        return CARRY_OK;
    }
    bool measured = o->reason[0] == '\0';
    carry_stored_result stored = {.problem = o->problem,
                                  .method = o->method,
                                  .device = o->device,
                                  .reason = o->reason,
                                  .planned = o->planned,
                                  .products = o->products,
                                  .median = measured ? o->median : NAN,
                                  .spread = measured ? o->spread : NAN,
                                  .flops = o->flops,
                                  .bytes = o->bytes,
                                  .workspace = o->workspace,
                                  .tokens = o->tokens,
                                  .share = measured ? o->share : NAN,
                                  .error = o->error,
                                  .error_absolute = o->error_absolute,
                                  .bound = o->bound,
                                  .gemm_gflops = k->of.gemm_gflops > 0.0 ? k->of.gemm_gflops : NAN,
                                  .copy_gbytes_s = k->of.copy_gbytes_s > 0.0 ? k->of.copy_gbytes_s : NAN};
    const int count = measured ? o->repeats : 0;
    CARRY_TRY(
        k->options->continues > 0
            ? carry_store_result_at(k->options->store, k->options->run, o - k->e->outcome, &stored, samples, count)
            : carry_store_result(k->options->store, k->options->run, &stored, samples, count));
    if (measured && k->options->continues > 0) {
        CARRY_TRY(carry_store_metric(k->options->store, k->options->run, o - k->e->outcome, CARRY_INVOCATION,
                                     k->options->continues));
    }
    return measured && o->ranks > 0 ? store_ranks(k, o) : CARRY_OK;
}

static void tell(const keeper *k, const carry_outcome *o) {
    if (k->options->measured != NULL) {
        k->options->measured(k->options->user, o);
    }
}

static void keep(void *user, const carry_bench_result *r, const double *samples) {
    keeper *k = user;
    carry_outcome *o = outcome_of(k->e, k->point, r->algorithm);
    if (o == NULL) {
        return;
    }
    k->of = r->ceilings;
    bool checked = !k->e->stage[k->point->stage].unchecked && r->reason[0] == '\0';
    (void)snprintf(o->reason, sizeof o->reason, "%s", r->reason);
    o->pending = false;
    o->planned = r->planned;
    o->repeats = r->repeats;
    o->products = r->counts.products;
    o->median = r->median;
    o->spread = r->spread;
    o->flops = r->counts.flops;
    o->bytes = r->counts.bytes;
    o->workspace = r->counts.workspace;
    o->tokens = r->counts.tokens;
    o->share = r->share;
    o->ranks = r->ranks;
    o->cores = r->cores;
    o->received = r->ranks > 0 ? r->counts.received : NAN;
    o->waited = r->ranks > 0 && r->counts.waited >= 0.0 ? r->counts.waited : NAN;
    o->exposed = r->ranks > 0 && r->counts.exposed >= 0.0 ? r->counts.exposed : NAN;
    o->perplexity = r->counts.perplexity;
    o->busy = r->counts.busy;
    o->cost = r->counts.cost;
    o->slower_stage = r->counts.slower_stage;
    o->denoise = r->counts.denoise;
    o->recompute = r->counts.recompute;
    o->clean = r->counts.clean;
    o->decode = r->counts.decode;
    o->overlap = r->counts.slower_stage > 0.0 ? r->counts.overlap : NAN;
    o->error = checked ? r->worst.error : NAN;
    o->error_absolute = checked ? r->worst.absolute : NAN;
    o->bound = checked ? r->worst.bound : NAN;
    if (checked && isnan(o->error)) { /* the result has a NaN, which counts as an infinite error */
        o->error = o->error_absolute = INFINITY;
    }
    k->kept = true;
    if (k->status == CARRY_OK) {
        k->status = store_outcome(k, o, samples);
    }
    if (k->status == CARRY_OK && r->reason[0] == '\0') {
        k->status = store_training(k, o, r);
        k->status = k->status == CARRY_OK ? store_stream(k, o) : k->status;
    }
    tell(k, o);
}

/* Stores the reason for every method of a problem that cannot be run at all. */
static carry_status keep_reason(keeper *k, const char *reason) {
    carry_experiment *e = k->e;
    const carry_stage *stage = &e->stage[k->point->stage];
    k->of = (carry_ceilings){0};
    for (int m = 0; stage->methods[m] != NULL; m++) {
        carry_outcome *o = outcome_of(e, k->point, stage->methods[m]);
        o->error = o->error_absolute = o->bound = NAN;
        o->pending = true;
        (void)snprintf(o->reason, sizeof o->reason, "%s", reason);
        CARRY_TRY(store_outcome(k, o, NULL));
        tell(k, o);
    }
    return CARRY_OK;
}

static bool has_ranks(const carry_experiment_options *options) {
    return options->comm != NULL && carry_comm_size(options->comm) > 1;
}

/* Measures a problem `runs` times and keeps the combined results. */
static carry_status measure_runs(keeper *k, carry_bench_options *options, int runs) {
    carry_bench_result results[CARRY_BENCH_METHODS];
    carry_ctx *ctx = k->e->ctx;
    int count = 0;
    if (runs == 1) {
        return carry_bench_problem(ctx, k->point->problem, k->ceilings, options, results, &count);
    }
    carry_runs *all = carry_runs_new();
    carry_status status =
        carry_collective_agree(has_ranks(k->options) ? k->options->comm : NULL,
                               all != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: %d runs", runs));
    options->keep = carry_runs_add;
    options->keep_user = all;
    for (int i = 0; status == CARRY_OK && i < runs; i++) {
        status = carry_bench_problem(ctx, k->point->problem, k->ceilings, options, results, &count);
    }
    if (status == CARRY_OK) {
        carry_runs_tell(all, keep, k);
    }
    carry_runs_free(all);
    return status;
}

static carry_status measure_point(keeper *k) {
    const carry_stage *stage = &k->e->stage[k->point->stage];
    carry_ctx *ctx = k->e->ctx;
    if (k->options->stage != NULL && strcmp(k->options->stage, stage->name) != 0) {
        char reason[96];
        (void)snprintf(reason, sizeof reason, "the stage '%s' was not asked for", stage->name);
        return keep_reason(k, reason);
    }
    if (k->point->missing[0] != '\0') {
        return keep_reason(k, k->point->missing);
    }
    if (has_ranks(k->options) && carry_collective_ranks(ctx, k->point->problem) == 0) {
        return keep_reason(k, "it is a problem of one rank, and this run is on several");
    }
    carry_bench_options options = {.repeats = stage->repeats,
                                   .seconds = stage->seconds,
                                   .hot = stage->hot,
                                   .unchecked = stage->unchecked,
                                   .warm_up = stage->warm_up,
                                   .methods = stage->methods,
                                   .seed = k->options->seed,
                                   .comm = k->options->comm,
                                   .keep = keep,
                                   .keep_user = k,
                                   .stop = k->options->stop};
    const carry_status status = measure_runs(k, &options, stage->runs);
    if (k->status != CARRY_OK) {
        return k->status; /* measuring ends if results cannot be stored */
    }
    if (!k->kept && (status == CARRY_EUNSUPPORTED || status == CARRY_EMEMORY || status == CARRY_ESIZE)) {
        char reason[256];
        (void)snprintf(reason, sizeof reason, "%.250s", carry_ctx_error(ctx));
        return keep_reason(k, reason);
    }
    return status;
}

/* Stores how much other processes disturbed a point, for comparisons of runs. The step is the index of the point's
   first result in the run. */
static carry_status store_contention(const keeper *k, carry_quiet before) {
    const double contention = k->kept ? carry_quiet_contention(before, carry_ctx_threads(k->e->ctx)) : 0.0;
    k->e->contention = fmax(k->e->contention, contention);
    if (k->options->store == NULL || !k->kept) {
        return CARRY_OK;
    }
    const carry_outcome *first = outcome_of(k->e, k->point, k->e->stage[k->point->stage].methods[0]);
    return carry_store_metric(k->options->store, k->options->run, first - k->e->outcome, CARRY_CONTENTION, contention);
}

carry_status carry_experiment_stage(const carry_experiment *e, const char *stage) {
    for (int i = 0; i < e->stages; i++) {
        if (stage == NULL || strcmp(stage, e->stage[i].name) == 0) {
            return CARRY_OK;
        }
    }
    return carry_fail(e->ctx, CARRY_EARGUMENT, "%s has no stage '%.40s'", e->path, stage);
}

/* Stores the wall-clock seconds that a problem took, for budgets. */
static carry_status store_cost(const keeper *k, double seconds) {
    k->e->stage[k->point->stage].spent += seconds;
    const bool bounded = k->e->budget > 0.0 || k->e->price > 0.0 || k->e->stage[k->point->stage].budget > 0.0;
    if (k->options->store == NULL || !k->kept || !bounded) {
        return CARRY_OK;
    }
    const carry_outcome *first = outcome_of(k->e, k->point, k->e->stage[k->point->stage].methods[0]);
    return carry_store_metric(k->options->store, k->options->run, first - k->e->outcome, CARRY_COST, seconds);
}

/* A problem for which no method could be timed stays pending. */
static void settle_pending(carry_experiment *e, const carry_point *point) {
    bool any = false;
    for (int i = 0; i < e->outcomes; i++) {
        any = any || (e->outcome[i].problem == point->problem && e->outcome[i].reason[0] == '\0');
    }
    for (int i = 0; i < e->outcomes; i++) {
        if (e->outcome[i].problem == point->problem) {
            e->outcome[i].pending = !any;
        }
    }
}

/* Sent by rank 0, which has the outcomes, to the other ranks. */
typedef struct order {
    bool is_done;
    char reason[256]; /* why the problem is not measured, or "" */
} order;

static carry_status give_order(const keeper *k, order *o) {
    const bool ranks = has_ranks(k->options);
    *o = (order){.is_done = k->point->is_done};
    if (!ranks || carry_comm_rank(k->options->comm) == 0) {
        (void)carry_bounds_reached(k->e, k->point, o->reason);
    }
    return ranks ? carry_broadcast(k->options->comm, o, sizeof *o, 0) : CARRY_OK;
}

static carry_status take_point(keeper *k) {
    order o;
    CARRY_TRY(give_order(k, &o));
    if (o.is_done) {
        return CARRY_OK;
    }
    if (o.reason[0] != '\0') {
        return keep_reason(k, o.reason);
    }
    const carry_quiet before = carry_quiet_now();
    const double began = carry_seconds();
    CARRY_TRY(measure_point(k));
    settle_pending(k->e, k->point);
    CARRY_TRY(store_contention(k, before));
    return store_cost(k, k->kept ? carry_seconds() - began : 0.0);
}

carry_status carry_experiment_measure(carry_experiment *e, const carry_ceilings *ceilings,
                                      const carry_experiment_options *options) {
    CARRY_TRY(carry_experiment_stage(e, options->stage));
    keeper k = {.e = e, .options = options, .ceilings = ceilings};
    for (int i = 0; i < e->points; i++) {
        k.point = &e->point[i];
        k.kept = false;
        if (options->began != NULL) {
            options->began(options->user, i, k.point->problem);
        }
        CARRY_TRY(take_point(&k));
        const bool stops = options->stop != NULL && options->stop();
        CARRY_TRY(carry_collective_agree(has_ranks(options) ? options->comm : NULL,
                                         stops ? carry_fail(e->ctx, CARRY_EINTERRUPTED, "interrupted") : CARRY_OK));
    }
    return CARRY_OK;
}

carry_status carry_experiment_judge(carry_experiment *e, carry_decision *decision,
                                    const carry_experiment_options *options) {
    bool stop = false;
    bool incomplete = false;
    for (int i = 0; i < e->outcomes; i++) {
        incomplete = incomplete || e->outcome[i].pending;
    }
    for (int i = 0; i < e->criteria; i++) {
        carry_experiment_criterion *c = &e->criterion[i];
        c->verdict = carry_criterion_judge(c->parsed, e->outcome, e->outcomes);
        stop = stop || c->verdict.kind == (c->is_failure ? CARRY_MET : CARRY_NOT_MET);
        incomplete = incomplete || c->verdict.kind == CARRY_NOT_MEASURED;
        if (options->store != NULL) {
            CARRY_TRY(carry_store_criterion(options->store, options->run,
                                            &(carry_stored_criterion){.side = c->is_failure ? "failure" : "success",
                                                                      .text = c->text,
                                                                      .value = c->verdict.value,
                                                                      .bound = c->verdict.bound,
                                                                      .verdict = carry_verdict_name(c->verdict.kind),
                                                                      .reason = c->verdict.reason}));
        }
    }
    *decision = stop ? CARRY_STOP : incomplete ? CARRY_INCOMPLETE : CARRY_PROCEED;
    return CARRY_OK;
}

const char *carry_decision_name(carry_decision decision) {
    return decision == CARRY_PROCEED ? "proceed" : decision == CARRY_STOP ? "stop" : "incomplete";
}
