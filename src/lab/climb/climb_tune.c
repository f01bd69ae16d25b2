/* The hill-climb over a plan's parameters. */
#include "lab/climb/climb_tune.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/climb/climb_tuning.h"
#include "scan/algorithm.h"

#define LEAST_CHUNK 16

static bool same(const carry_tune_setting *a, const carry_tune_setting *b) {
    return strcmp(a->algorithm, b->algorithm) == 0 && a->chunk == b->chunk && a->threads == b->threads;
}

static void note_holdable(tuning *t, const carry_tune_setting *setting, double seconds) {
    int at = 0;
    while (at < t->holdable_count && t->holdable[at].setting.threads != setting->threads) {
        at++;
    }
    if (at < TUNE_HELD) {
        t->holdable[at].setting = *setting;
        t->holdable[at].seconds = seconds;
        t->holdable_count += at == t->holdable_count;
    }
}

/* Tries one neighbour: it becomes the best or is dropped. A setting that does not apply is a step with a reason. */
static carry_status attempt(tuning *t, contender **best, const carry_tune_setting *setting, bool *kept) {
    carry_tune_step step = {.number = ++t->result->steps, .setting = *setting, .seconds = (double)NAN};
    step.best_seconds = step.ratio = step.low = step.high = (double)NAN;
    contender *c;
    carry_status status = tune_enter(t, &c, setting);
    if (status == CARRY_OK) {
        status = tune_duel(t, *best, c, &step);
    }
    if (status == CARRY_EUNSUPPORTED || status == CARRY_ERANGE || status == CARRY_EMEMORY) {
        (void)snprintf(step.reason, sizeof step.reason, "%s", carry_ctx_error(t->ctx));
        status = CARRY_OK;
    }
    *kept = status == CARRY_OK && step.kept;
    if (*kept) {
        tune_leave(t, *best);
        *best = c;
        c = NULL;
        t->result->kept++;
        t->result->gain *= step.ratio;
        t->result->best = *setting;
        t->result->best_seconds = step.seconds;
        note_holdable(t, setting, step.seconds);
    }
    tune_leave(t, c);
    if (status == CARRY_OK && t->options->told != NULL) {
        t->options->told(t->options->user, &step);
    }
    return status;
}

/* True for algorithms that must not be planned, since they are correct for some values only (matmul_log). */
static bool by_value(const tuning *t, const char *algorithm) {
    const carry_scan_algorithm *a;
    for (int i = 0; strcmp(t->family->name, "scan") == 0 && (a = carry_scan_at(t->on_gpu, i)) != NULL; i++) {
        if (strcmp(a->name, algorithm) == 0) {
            return a->by_value;
        }
    }
    return false;
}

static void propose(tuning *t, carry_tune_setting *list, int *count, carry_tune_setting setting) {
    bool known = setting.threads < 1 || setting.threads > t->most_threads || *count == TUNE_TRIED;
    for (int i = 0; !known && i < t->tried_count; i++) {
        known = same(&t->tried[i], &setting);
    }
    for (int i = 0; !known && i < *count; i++) {
        known = same(&list[i], &setting);
    }
    if (!known) {
        list[(*count)++] = setting;
    }
}

static int64_t power_of_two_near(int64_t number) {
    int64_t power = LEAST_CHUNK;
    while (2 * power <= number) {
        power *= 2;
    }
    return power;
}

/* Lists the settings that differ in one parameter: algorithm (with its default chunk), chunk, threads, in this order.
   Settings already tried are left out. */
static int neighbours(tuning *t, const carry_tune_setting *from, carry_tune_setting *list) {
    int count = 0;
    for (int i = 0; t->family->method(i) != NULL; i++) {
        carry_tune_setting other = {.threads = from->threads};
        (void)snprintf(other.algorithm, sizeof other.algorithm, "%s", t->family->method(i));
        if (!by_value(t, other.algorithm) && strcmp(other.algorithm, from->algorithm) != 0) {
            propose(t, list, &count, other);
        }
    }
    carry_tune_setting other = *from;
    if (t->steps > LEAST_CHUNK && strcmp(from->algorithm, "chunkwise") == 0) {
        int64_t own = power_of_two_near(t->steps / from->threads);
        const int64_t chunks[] = {from->chunk > 0 ? 2 * from->chunk : own / 2,
                                  from->chunk > 0 ? from->chunk / 2 : own / 8, 0};
        for (int i = 0; i < 3; i++) {
            other.chunk = chunks[i];
            if (other.chunk == 0 || (other.chunk >= LEAST_CHUNK && other.chunk < t->steps)) {
                propose(t, list, &count, other);
            }
        }
        other.chunk = from->chunk;
    }
    const int threads[] = {2 * from->threads, from->threads / 2, from->threads + 1, from->threads - 1};
    for (int i = 0; !t->on_gpu && i < 4; i++) {
        other.threads = threads[i];
        propose(t, list, &count, other);
    }
    return count;
}

static carry_status climb(tuning *t, contender **best) {
    carry_tune_setting list[TUNE_TRIED];
    for (bool moved = true; moved;) {
        moved = false;
        int count = neighbours(t, &(*best)->setting, list);
        for (int i = 0; !moved && i < count && t->tried_count < TUNE_TRIED; i++) {
            t->tried[t->tried_count++] = list[i];
            CARRY_TRY(attempt(t, best, &list[i], &moved));
        }
    }
    return CARRY_OK;
}

/* Starts with the planner's choice, and times it. */
static carry_status begin(tuning *t, contender **best) {
    carry_problem problem;
    void *planned;
    carry_tune_step step = {.kept = true};
    CARRY_TRY(tune_parse(t, &problem, 0));
    CARRY_TRY(carry_family_find(t->ctx, &t->family, problem.family));
    if (carry_problem_setting(&problem, "algo") != NULL || carry_problem_setting(&problem, "chunk") != NULL) {
        return carry_fail(t->ctx, CARRY_EARGUMENT, "'%s': tune chooses algo and chunk itself, so omit them",
                          t->problem);
    }
    t->steps = strcmp(problem.family, "scan") == 0 ? carry_problem_size(&problem, "t", 1024) : 0;
    CARRY_TRY(tune_parse(t, &problem, 0));
    CARRY_TRY(carry_family_plan(t->family, t->ctx, &planned, &problem, false));
    (void)snprintf(step.setting.algorithm, sizeof step.setting.algorithm, "%s", t->family->chosen(planned));
    t->on_gpu = t->family->device != NULL && t->family->device(planned) != 0;
    carry_family_close(t->family, planned);
    step.setting.threads = carry_ctx_threads(t->ctx);
    CARRY_TRY(tune_enter(t, best, &step.setting));
    CARRY_TRY(tune_check(t, *best, step.reason));
    CARRY_TRY(tune_time(t, *best, &step.seconds));
    step.best_seconds = step.seconds;
    step.ratio = step.low = step.high = 1.0;
    t->result->start = t->result->best = step.setting;
    t->result->start_seconds = t->result->best_seconds = step.seconds;
    t->result->gain = 1.0;
    t->tried[t->tried_count++] = step.setting;
    note_holdable(t, &step.setting, step.seconds);
    if (t->options->told != NULL) {
        t->options->told(t->options->user, &step);
    }
    return CARRY_OK;
}

/* Saves a setting for contexts of `threads` threads; the setting may use fewer. */
static carry_status save_one(tuning *t, const carry_tune_setting *setting, double seconds, int threads) {
    carry_problem problem;
    carry_ctx *ctx;
    void *instance;
    CARRY_TRY(tune_parse(t, &problem, setting->chunk));
    CARRY_TRY(tune_context(t, &ctx, threads));
    carry_status status = carry_family_plan(t->family, ctx, &instance, &problem, false);
    if (status == CARRY_OK) {
        status = t->family->choose(instance, setting->algorithm);
        status = status == CARRY_OK
                     ? t->family->remember(instance, seconds, setting->threads < threads ? setting->threads : 0)
                     : status;
        carry_family_close(t->family, instance);
    }
    if (status != CARRY_OK) {
        (void)carry_fail(t->ctx, status, "%s", carry_ctx_error(ctx));
    }
    carry_ctx_free(ctx);
    return status;
}

/* For each number of threads of a setting that became the best, saves the newest such setting for contexts with that
   number of threads. For the number of threads of the tuned context, saves the best setting of all instead if it uses
   fewer threads. */
static carry_status save_all(tuning *t) {
    carry_tune_result *r = t->result;
    const int own = carry_ctx_threads(t->ctx);
    size_t used = 0;
    for (int i = 0; i < t->holdable_count && used < sizeof r->saved_as; i++) {
        carry_tune_setting setting = t->holdable[i].setting;
        double seconds = t->holdable[i].seconds;
        const int threads = setting.threads;
        char text[96];
        if (threads == own && r->best.threads < own) {
            setting = r->best;
            seconds = r->best_seconds;
        }
        const carry_status status = save_one(t, &setting, seconds, threads);
        if (status == CARRY_EIO) {
            (void)snprintf(r->not_saved, sizeof r->not_saved, "%s", carry_ctx_error(t->ctx));
            return CARRY_OK;
        }
        CARRY_TRY(status);
        used += (size_t)snprintf(r->saved_as + used, sizeof r->saved_as - used, "%s%s", i > 0 ? "; " : "",
                                 carry_tune_text(text, &setting));
        if (setting.threads != threads && used < sizeof r->saved_as) {
            used += (size_t)snprintf(r->saved_as + used, sizeof r->saved_as - used, " of %d", threads);
        }
        r->saved++;
    }
    if (r->best.threads > own) {
        (void)snprintf(r->not_saved, sizeof r->not_saved, "a context of %d threads cannot use %d: write --threads %d",
                       own, r->best.threads, r->best.threads);
    }
    return CARRY_OK;
}

static carry_status save(tuning *t) {
    carry_tune_result *r = t->result;
    if (t->family->remember == NULL) {
        (void)snprintf(r->not_saved, sizeof r->not_saved,
                       "the wisdom holds plans of scans only: write algo=%s and --threads %d for %s", r->best.algorithm,
                       r->best.threads, t->problem);
        return CARRY_OK;
    }
    if (t->on_gpu) {
        (void)snprintf(r->not_saved, sizeof r->not_saved,
                       "what is fastest on a GPU is saved by carry plan --measure; here it is algo=%s",
                       r->best.algorithm);
        return CARRY_OK;
    }
    if (t->ctx->wisdom == NULL) {
        (void)snprintf(r->not_saved, sizeof r->not_saved, "there is no wisdom file: name one with --wisdom");
        return CARRY_OK;
    }
    return save_all(t);
}

static int cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

const char *carry_tune_text(char text[96], const carry_tune_setting *setting) {
    char chunk[40] = "";
    if (setting->chunk > 0) {
        (void)snprintf(chunk, sizeof chunk, ", chunk %lld", (long long)setting->chunk);
    }
    (void)snprintf(text, 96, "%s%s, %d thread%s", setting->algorithm, chunk, setting->threads,
                   setting->threads == 1 ? "" : "s");
    return text;
}

carry_status carry_tune(carry_ctx *ctx, carry_tune_result *result, const char *problem,
                        const carry_tune_options *options) {
    tuning *t = calloc(1, sizeof *t);
    contender *best = NULL;
    *result = (carry_tune_result){.gain = 1.0};
    if (t == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: tuning");
    }
    t->ctx = ctx;
    t->options = options;
    t->result = result;
    t->most_threads = options->most_threads > 0 ? options->most_threads : cores();
    if (t->most_threads < carry_ctx_threads(ctx)) {
        t->most_threads = carry_ctx_threads(ctx);
    }
    carry_status status = CARRY_OK;
    if (snprintf(t->problem, sizeof t->problem, "%s", problem) >= (int)sizeof t->problem) {
        status = carry_fail(ctx, CARRY_EARGUMENT, "the problem is longer than %d characters", CARRY_PROBLEM_TEXT);
    }
    status = status == CARRY_OK ? begin(t, &best) : status;
    status = status == CARRY_OK ? climb(t, &best) : status;
    tune_leave(t, best);
    if (status == CARRY_OK) {
        status = save(t);
    } else if (status == CARRY_EINTERRUPTED && save(t) == CARRY_OK) { /* finished settings are kept */
        status = carry_fail(ctx, CARRY_EINTERRUPTED, "interrupted");
    }
    free(t);
    return status;
}
