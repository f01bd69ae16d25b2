/* Training as a problem of the lab. The methods are ways to compute the layers' recurrence, and a run is a whole
   training. It is in src/cli because the lab and training do not depend on each other.

       train:layers2:hidden64:heads4:state16:t256:b2:steps40:data=docs

   A sample is the median time of a step of one training, so disturbances of single steps do not count. The trainings
   of the methods take turns. All trainings of a method give the same losses and perplexity, bit for bit; those of the
   last one are reported. seedN changes the initial weights, the rows and their order. In trainings of more than two
   steps, the first step is not timed. The last steps (half of them, at most four) measure how busy the device is and,
   in trainings of more than four steps, are not timed, since recording slows them. Checkpoints go to a temporary
   folder. */
#include <dirent.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/busy.h"
#include "cli/family_train.h"
#include "cli/wikitext.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/file.h"
#include "bench/sample.h"
#include "model/lm/recurrence/recurrence.h"
#include "train/loop.h"
#include "train/data/tasks.h"

#define METHODS 8
#define MOST_STEPS 100000
/* The losses of the first two steps (the second has seen gradients) are compared with another method's. f32 sums in
   another order change a loss by some 1e-6, and AdamW's first step divides gradients by their own size, noise
   included. */
#define COMPARED 2
#define BOUND 1e-4

/* The result of one training of a method. */
typedef struct trained {
    int steps; /* done so far */
    double *loss, *seconds;
    double perplexity, busy, cost;
    double tokens, flops, memory;
} trained;

typedef struct instance {
    carry_ctx *ctx;
    carry_train_options options;
    int device;
    char only[CARRY_PROBLEM_WORD], about[160];
    const carry_lm_recurrence *recurrence;
    trained of[METHODS]; /* indexed as by carry_lm_recurrence_at */
} instance;

/* A running training. */
typedef struct session {
    const instance *it;
    trained *to;
    int64_t steps;
    double evaluation; /* the loss; NaN: no evaluation */
    cli_busy busy;
} session;

static const char takes[] =
    "layersN, hiddenN, headsN, stateN (a head's keys), tN (tokens of a row), bN (rows of a "
    "step), stepsN, vocabN, pairsN, seedN; f32, bf16 or f16; delta_net; recompute; data=PATH (or wikitext) or "
    "task=NAME, algo=METHOD, device=cpu or cuda";

static const char *method(int index) {
    const carry_lm_recurrence *recurrence = carry_lm_recurrence_at(index);
    return recurrence != NULL && index < METHODS ? recurrence->name : NULL;
}

static void close_instance(void *given) {
    instance *it = given;
    if (it != NULL) {
        for (int i = 0; i < METHODS; i++) {
            free(it->of[i].loss);
            free(it->of[i].seconds);
        }
        free(it);
    }
}

static carry_status read_problem(instance *it, carry_problem *problem) {
    carry_train_options *o = &it->options;
    *o = carry_train_options_default();
    o->layers = carry_problem_size(problem, "layers", 2);
    o->hidden = carry_problem_size(problem, "hidden", 64);
    o->heads = carry_problem_size(problem, "heads", 4);
    o->head_dim = carry_problem_size(problem, "state", 0);
    o->length = carry_problem_size(problem, "t", 128);
    o->batch = carry_problem_size(problem, "b", 1);
    o->steps = carry_problem_size(problem, "steps", 20);
    o->vocab = carry_problem_size(problem, "vocab", 0);
    o->pairs = carry_problem_size(problem, "pairs", 0);
    o->seed = carry_problem_size(problem, "seed", 0);
    o->recompute = carry_problem_has(problem, "recompute");
    carry_dtype dtype;
    CARRY_TRY(carry_problem_dtype(it->ctx, &dtype, problem, CARRY_F16));
    (void)snprintf(o->dtype, sizeof o->dtype, "%s", carry_dtype_name(dtype));
    if (carry_problem_has(problem, "delta_net")) {
        (void)snprintf(o->type, sizeof o->type, "delta_net");
    }
    const char *data = carry_problem_setting(problem, "data");
    const char *task = carry_problem_setting(problem, "task");
    const char *only = carry_problem_setting(problem, "algo");
    (void)snprintf(o->data, sizeof o->data, "%s", data != NULL ? data : "");
    (void)snprintf(o->task, sizeof o->task, "%s", task != NULL ? task : data != NULL ? "" : "copy");
    (void)snprintf(it->only, sizeof it->only, "%s", only != NULL ? only : "");
    CARRY_TRY(carry_problem_device(it->ctx, &it->device, problem));
    CARRY_TRY(carry_problem_finish(it->ctx, problem, takes));
    if (o->steps > MOST_STEPS) {
        return carry_fail(it->ctx, CARRY_ESIZE, "steps%lld in '%s': at most %d are trained to be measured",
                          (long long)o->steps, problem->text, MOST_STEPS);
    }
    if (o->task[0] != '\0') {
        carry_task_rows rows;
        carry_source source;
        const carry_task_size size = {.length = o->length, .vocabulary = o->vocab, .pairs = o->pairs};
        CARRY_TRY(carry_task_open(it->ctx, &rows, &source, o->task, size, 0));
    }
    struct stat status;
    bool instead;
    if (data != NULL && strcmp(data, "wikitext") == 0) {
        CARRY_TRY(cli_wikitext(it->ctx, o->data, &instead));
    } else if (data != NULL && stat(data, &status) != 0) {
        return carry_fail(it->ctx, CARRY_EUNSUPPORTED, "there is no text '%s' here", data);
    }
    o->eval_every = o->save_every = o->steps;
    o->log_every = 1;
    return CARRY_OK;
}

static carry_status choose(void *given, const char *wanted) {
    instance *it = given;
    const carry_lm_recurrence *recurrence =
        carry_lm_recurrence_named(wanted != NULL ? wanted : carry_lm_recurrence_chunk.name);
    if (recurrence == NULL) {
        return carry_fail(it->ctx, CARRY_ENOTFOUND, "there is no method '%.40s' of training", wanted);
    }
    it->recurrence = recurrence;
    (void)snprintf(it->options.method, sizeof it->options.method, "%s", recurrence->name);
    (void)snprintf(it->about, sizeof it->about, "%s: %s; %lld steps", recurrence->name, recurrence->about,
                   (long long)it->options.steps);
    return CARRY_OK;
}

static carry_status open_instance(carry_ctx *ctx, void **opened, carry_problem *problem, uint64_t seed, int copies) {
    (void)copies; /* a training reads far more data than any cache holds */
    *opened = NULL;
    instance *it = calloc(1, sizeof *it);
    if (it == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a training");
    }
    it->ctx = ctx;
    carry_status status = read_problem(it, problem);
    it->options.seed = (int64_t)((seed + (uint64_t)it->options.seed) & INT32_MAX);
    if (status == CARRY_OK) {
        (void)snprintf(it->options.out, sizeof it->options.out, "-"); /* a placeholder until the folder is made */
        status = carry_train_options_check(ctx, &it->options, 1);
    }
    if (status == CARRY_OK) {
        status = choose(it, it->only[0] != '\0' ? it->only : NULL);
    }
    if (status != CARRY_OK) {
        close_instance(it);
        return status;
    }
    *opened = it;
    return CARRY_OK;
}

static carry_status plan_instance(carry_ctx *ctx, void **opened, carry_problem *problem, bool measure) {
    (void)measure; /* chunk is always chosen; the others are only compared with it */
    return open_instance(ctx, opened, problem, 1, 0);
}

static double bytes(const void *given) {
    (void)given;
    return INFINITY; /* never more than one set */
}

static const char *chosen(const void *given) {
    return ((const instance *)given)->recurrence->name;
}

static const char *about_plan(const void *given) {
    return ((const instance *)given)->about;
}

static const char *only(const void *given) {
    const instance *it = given;
    return it->only[0] != '\0' ? it->only : NULL;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

static void hear_start(void *user, const carry_train_start *start) {
    session *s = user;
    s->to->tokens = (double)start->tokens;
    s->to->flops = start->flops * (double)start->tokens;
    /* Activations including the recurrence's workspace, plus weights, gradients and AdamW's two moments, f32 each. */
    s->to->memory = (double)start->memory + 16.0 * (double)start->lm->own.count;
}

static void hear_step(void *user, const carry_train_report *report) {
    session *s = user;
    if (s->to->steps < s->steps) {
        s->to->loss[s->to->steps] = report->loss;
        s->to->seconds[s->to->steps] = s->to->tokens / report->tokens_per_s;
        s->to->steps++;
    }
}

static void hear_exam(void *user, const carry_train_evaluation *evaluation) {
    ((session *)user)->evaluation = evaluation->loss;
}

/* The perplexity of the held-out rows or, without such rows, of the last tenth of the steps. */
static double perplexity_of(const session *s) {
    double loss = s->evaluation;
    if (isnan(loss)) {
        int last = s->to->steps / 10 > 0 ? s->to->steps / 10 : 1;
        loss = 0.0;
        for (int i = s->to->steps - last; i < s->to->steps; i++) {
            loss += s->to->loss[i] / last;
        }
    }
    return exp(loss);
}

static carry_status train_into(session *s, const char *folder) {
    const instance *it = s->it;
    carry_comm *comm;
    carry_train_options options = it->options;
    (void)snprintf(options.out, sizeof options.out, "%s", folder);
    options.steps = s->steps;
    options.eval_every = s->steps == it->options.steps ? s->steps : 0;
    const carry_train_hooks hooks = {.stop = cli_interrupted,
                                     .started = hear_start,
                                     .report = hear_step,
                                     .evaluated = hear_exam,
                                     .step = s->busy.steps > 0 ? cli_busy_step : NULL,
                                     .user = s,
                                     .device = it->device};
    CARRY_TRY(carry_comm_open(it->ctx, &comm, "self", NULL));
    carry_status status = carry_train_run(comm, &options, &hooks);
    carry_comm_close(comm);
    return status;
}

/* Number of recorded steps at the end of a training: enough to measure a share, few compared with the timed ones. */
static int64_t recorded_steps(int64_t steps) {
    return steps >= 8 ? 4 : steps / 2;
}

/* Trains from the start by the chosen method. The arrays of `to` have the capacity for `steps`. */
static carry_status train(const instance *it, trained *to, int64_t steps) {
    char folder[CARRY_FILE_PATH];
    session s = {.it = it, .to = to, .steps = steps, .evaluation = NAN};
    s.busy.steps = steps == it->options.steps ? recorded_steps(steps) : 0;
    s.busy.from = steps - s.busy.steps + 1;
    to->steps = 0;
    const double began = carry_seconds();
    CARRY_TRY(carry_file_temporary_folder(it->ctx, folder, "carry-train"));
    cli_busy_watch(&s.busy);
    carry_status status = train_into(&s, folder);
    cli_busy_unwatch(it->ctx);
    to->cost = carry_seconds() - began;
    to->busy = s.busy.share;
    (void)nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    if (status == CARRY_OK && to->steps < steps) {
        status = carry_fail(it->ctx, CARRY_EINTERRUPTED, "the training ended after %d of %lld steps", to->steps,
                            (long long)steps);
    }
    if (status == CARRY_OK) {
        to->perplexity = perplexity_of(&s);
    }
    return status;
}

static trained *record_of(const instance *it) {
    int at = 0;
    while (carry_lm_recurrence_at(at) != it->recurrence) {
        at++;
    }
    return (trained *)(uintptr_t)&it->of[at];
}

static carry_status make_room(const instance *it, trained *to) {
    if (to->loss == NULL) {
        to->loss = calloc((size_t)it->options.steps, sizeof *to->loss);
    }
    if (to->seconds == NULL) {
        to->seconds = calloc((size_t)it->options.steps, sizeof *to->seconds);
    }
    return to->loss != NULL && to->seconds != NULL
               ? CARRY_OK
               : carry_fail(it->ctx, CARRY_EMEMORY, "out of memory: the losses of %lld steps",
                            (long long)it->options.steps);
}

/* The warm-up, which is not timed: one step. */
static carry_status run(void *given) {
    double loss, seconds;
    trained one = {.loss = &loss, .seconds = &seconds};
    return train(given, &one, 1);
}

static carry_status time_run(void *given, double *seconds) {
    instance *it = given;
    trained *to = record_of(it);
    CARRY_TRY(make_room(it, to));
    CARRY_TRY(train(it, to, it->options.steps));
    const int first = to->steps > 2 ? 1 : 0; /* skips the first step, which touches its memory for the first time */
    const int count = to->steps - first - (int)(to->steps > 4 ? recorded_steps(to->steps) : 0);
    *seconds = carry_summarise(to->seconds + first, count).median;
    return CARRY_OK;
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    const trained *to = record_of(it);
    return (carry_counts){.flops = to->flops,
                          .tokens = to->tokens,
                          .workspace = to->memory,
                          .perplexity = to->perplexity,
                          .busy = to->busy,
                          .cost = to->cost};
}

static const double *curve(const void *given, int *count) {
    const trained *to = record_of(given);
    *count = to->steps;
    return to->steps > 0 ? to->loss : NULL;
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    const carry_lm_recurrence *own = it->recurrence;
    const char *other = own == &carry_lm_recurrence_chunk ? "sequential" : carry_lm_recurrence_chunk.name;
    int64_t steps = it->options.steps < COMPARED ? it->options.steps : COMPARED;
    double loss[2][COMPARED], seconds[COMPARED];
    carry_status status = CARRY_OK;
    for (int i = 0; i < 2 && status == CARRY_OK; i++) {
        trained one = {.loss = loss[i], .seconds = seconds};
        status = choose(it, i == 0 ? own->name : other);
        status = status == CARRY_OK ? train(it, &one, steps) : status;
    }
    (void)choose(it, own->name);
    CARRY_TRY(status);
    deviations[0] = (carry_deviation){.tensor = "loss", .bound = BOUND};
    for (int64_t i = 0; i < steps; i++) {
        double apart = fabs(loss[0][i] - loss[1][i]);
        deviations[0].absolute = isnan(apart) ? NAN : fmax(deviations[0].absolute, apart);
        deviations[0].error = isnan(apart) ? NAN : fmax(deviations[0].error, apart / fabs(loss[1][i]));
    }
    *count = 1;
    return CARRY_OK;
}

static int device_of(const void *given) {
    return ((const instance *)given)->device;
}

const carry_family carry_family_train = {
    .name = "train",
    .about = "training of a language model, by each method for the recurrence; a sample is the median time of a step",
    .takes = takes,
    .example = "train:layers2:hidden32:heads2:t64:steps5:task=copy",
    .support = {.cpu = "f32 bf16 f16",
                .cuda = "f32 bf16 f16",
                .cpu_backward = "f32 bf16 f16",
                .cuda_backward = "f32 bf16 f16"},
    .open = open_instance,
    .plan = plan_instance,
    .close = close_instance,
    .bytes = bytes,
    .method = method,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = only,
    .run = run,
    .time = time_run,
    .counts = counts,
    .curve = curve,
    .compare = compare,
    .device = device_of,
};
