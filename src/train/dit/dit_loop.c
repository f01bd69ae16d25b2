/* The loop over steps of a video transformer. */
#include "train/dit/dit_loop.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "train/checkpoint.h"
#include "train/dit/shapes_batch.h"

#define EXAM_CHUNKS 4
#define ALONE_SECONDS 600.0 /* that the others wait while rank 0 writes or examines */

typedef struct training {
    carry_ctx *ctx;
    carry_comm *comm;
    carry_dit_train_options options;
    const carry_dit_train_hooks *hooks;
    bool speaks; /* rank 0 */
    carry_dit *dit;
    carry_dit averaged; /* the same model over the average: a view, on rank 0 */
    float *average;     /* [count], on rank 0 */
    carry_dit_pass *pass;
    void *memory;
    carry_shapes_batch *batch;
    carry_optimizer *optimizer;
    float *gathered;
    carry_run_folder folder;
    carry_found found;
    carry_schedule schedule;
    int64_t step, videos; /* done; of this rank in a step */
    double spent;         /* seconds of steps, since the start */
    int64_t done;
} training;

/* What ranks add up once a step. */
typedef struct sums {
    double loss, counted, squares, stop;
} sums;

/* What rank 0 did alone, to all. */
static carry_status share_status(training *t, carry_status own, const char *what) {
    const double deadline = carry_comm_deadline(t->comm);
    int64_t status = own;
    CARRY_TRY(carry_comm_set_deadline(t->comm, deadline > ALONE_SECONDS ? deadline : ALONE_SECONDS));
    CARRY_TRY(carry_broadcast(t->comm, &status, sizeof status, 0));
    CARRY_TRY(carry_comm_set_deadline(t->comm, deadline));
    if (status != CARRY_OK && !t->speaks) {
        return carry_fail(t->ctx, CARRY_EPEER, "rank 0 could not %s after step %" PRId64, what, t->step);
    }
    return (carry_status)status;
}

static carry_status save_model(const void *model, const char *folder) {
    return carry_dit_save(model, folder, CARRY_F32);
}

static carry_status write_checkpoint(training *t, const float *m, const float *v) {
    carry_json_text options = {0};
    carry_keys_write(&options, carry_dit_train_keys, &t->options);
    carry_status status =
        options.failed ? carry_fail(t->ctx, CARRY_EMEMORY, "no memory to write a checkpoint") : CARRY_OK;
    if (status == CARRY_OK) {
        status = carry_checkpoint_save(t->ctx, &t->folder,
                                       &(carry_checkpoint){.step = t->step,
                                                           .seen = t->step * t->options.batch,
                                                           .options = options.bytes,
                                                           .parameters = &t->dit->own,
                                                           .save = save_model,
                                                           .model = &t->averaged,
                                                           .m = m,
                                                           .v = v,
                                                           .weights = t->dit->own.weights,
                                                           .keep = t->options.keep});
    }
    carry_json_text_free(&options);
    return status;
}

/* A collective; nothing is done when this step is saved. */
static carry_status save(training *t) {
    const int64_t n = t->dit->own.count;
    int64_t newest = t->folder.newest;
    CARRY_TRY(carry_broadcast(t->comm, &newest, sizeof newest, 0));
    if (newest == t->step) {
        return CARRY_OK;
    }
    const float *m = t->optimizer->m;
    const float *v = t->optimizer->v;
    if (carry_comm_size(t->comm) > 1) {
        CARRY_TRY(carry_optimizer_gather(t->optimizer, t->gathered, t->speaks ? t->gathered + n : NULL));
        m = t->gathered;
        v = t->speaks ? t->gathered + n : NULL;
    }
    carry_status status = CARRY_OK;
    if (t->speaks) {
        status = write_checkpoint(t, m, v);
    }
    return share_status(t, status, "write the checkpoint");
}

static carry_status examine(training *t) {
    carry_status status = CARRY_OK;
    if (t->speaks) {
        carry_dit_exam exam;
        const carry_dit_exam_options o = {
            .side = t->options.size, .chunks = EXAM_CHUNKS, .speed = t->options.speed, .forms = 1, .seed = 1000};
        status = carry_dit_examine(&t->averaged, &o, &exam, NULL, NULL);
        if (status == CARRY_OK) {
            carry_sink_metric(&t->hooks->sink, t->step, "right", (double)exam.both / (double)exam.prompts);
            if (t->hooks->examined != NULL) {
                t->hooks->examined(t->hooks->user, t->step, &exam);
            }
        }
    }
    return share_status(t, status, "examine the model");
}

/* The weights are still those of the last good step. */
static carry_status refuse_step(training *t, double loss, double norm) {
    int64_t bad;
    CARRY_TRY(carry_optimizer_bad(t->optimizer, &bad));
    CARRY_TRY(save(t));
    return carry_fail(t->ctx, CARRY_ERANGE,
                      "step %" PRId64 " has a loss of %g and gradients of norm %g%s%s. The state before it is in "
                      "%s/step-%" PRId64 "; a lower --rate or --clip may help",
                      t->step + 1, loss, norm, bad >= 0 ? ": the first that is not finite is that of " : "",
                      bad >= 0 ? t->dit->own.parameter[bad].name : "", t->options.out, t->step);
}

/* A young average forgets faster, or it would remember the start. */
static void add_to_average(training *t) {
    const double young = (1.0 + (double)t->step) / (10.0 + (double)t->step);
    const float keep = (float)(t->options.average < young ? t->options.average : young);
    for (int64_t i = 0; t->average != NULL && i < t->dit->own.count; i++) {
        t->average[i] = keep * t->average[i] + (1.0f - keep) * t->dit->own.weights[i];
    }
}

/* A past that the model made. The first tenth of a run has better to do than to learn from its faults. */
static carry_status make_past(training *t) {
    const int64_t every = t->options.own_past;
    if (every == 0 || t->step % every != 0 || t->step < t->schedule.steps / 10) {
        return CARRY_OK;
    }
    carry_dit_pass_args args = {.backward = false};
    CARRY_TRY(carry_shapes_batch_own(t->batch, &args));
    CARRY_TRY(carry_dit_pass_run(t->pass, &args, t->memory, carry_dit_pass_memory(t->pass)));
    carry_shapes_batch_past(t->batch);
    return CARRY_OK;
}

static carry_status do_step(training *t, carry_dit_train_report *report, bool *stop) {
    CARRY_SPAN(t->ctx, "train", "step");
    sums all = {.stop = t->hooks->stop != NULL && t->hooks->stop() ? 1.0 : 0.0};
    const int64_t latent = t->options.size / 8 * (t->options.size / 8) * t->dit->config.in_dim;
    const int64_t numbers = t->options.batch * t->options.chunks * t->dit->config.chunk_frames * latent;
    carry_dit_pass_args args = {.backward = true, .scale = 1.0 / (double)numbers, .loss = &all.loss};
    const int64_t first = t->step * t->options.batch + carry_comm_rank(t->comm) * t->videos;
    CARRY_TRY(carry_shapes_batch_make(t->batch, first, &args, &all.counted));
    CARRY_TRY(make_past(t));
    CARRY_TRY(carry_parameters_zero_gradients(&t->dit->own));
    if (carry_comm_size(t->comm) > 1) {
        args.ready = carry_optimizer_ready;
        args.user = t->optimizer;
    }
    CARRY_TRY(carry_dit_pass_run(t->pass, &args, t->memory, carry_dit_pass_memory(t->pass)));
    CARRY_TRY(carry_optimizer_collect(t->optimizer, carry_view_1d(&all.squares, CARRY_F64, 1)));
    CARRY_TRY(carry_all_reduce(t->comm, &all, sizeof all / sizeof(double), CARRY_REDUCE_F64, CARRY_REDUCE_SUM));
    report->loss = all.loss / (all.counted > 0.0 ? all.counted : 1.0);
    report->norm = sqrt(all.squares);
    report->rate = carry_schedule_rate(&t->schedule, t->step + 1);
    *stop = all.stop > 0.0;
    if (!isfinite(report->loss) || !isfinite(report->norm)) {
        return refuse_step(t, report->loss, report->norm);
    }
    CARRY_TRY(carry_optimizer_step(t->optimizer, t->step + 1, report->rate, carry_view_1d(&all.squares, CARRY_F64, 1)));
    t->step++;
    add_to_average(t);
    return CARRY_OK;
}

/* loss: the mean since the last report. One step's depends on the times that it drew. */
static void tell(training *t, carry_dit_train_report *report, double loss, double seconds, int64_t steps) {
    const carry_dit_train_hooks *h = t->hooks;
    if (!t->speaks) {
        return;
    }
    report->step = t->step;
    report->steps = t->schedule.steps;
    report->loss = loss / (double)steps;
    report->videos_per_s = (double)(steps * t->options.batch) / seconds;
    report->gflops = 1e-9 * carry_dit_pass_flops(t->pass) * (double)(carry_comm_size(t->comm) * steps) / seconds;
    report->memory = carry_resident_bytes();
    report->left = t->spent / (double)t->done * (double)(t->schedule.steps - t->step);
    carry_sink_metric(&h->sink, t->step, "loss", report->loss);
    carry_sink_metric(&h->sink, t->step, "rate", report->rate);
    carry_sink_metric(&h->sink, t->step, "norm", report->norm);
    carry_sink_metric(&h->sink, t->step, "videos_per_s", report->videos_per_s);
    if (h->report != NULL) {
        h->report(h->user, report);
    }
}

/* What ships: the average, in the folder of the run itself. */
static carry_status save_end(training *t) {
    carry_dtype dtype;
    carry_status status = CARRY_OK;
    CARRY_TRY(carry_dtype_parse(&dtype, t->options.dtype));
    if (t->speaks) {
        status = carry_dit_save(&t->averaged, t->options.out, dtype);
    }
    return share_status(t, status, "write the model");
}

static carry_status run_steps(training *t) {
    const carry_dit_train_options *o = &t->options;
    double seconds = 0.0;
    double loss = 0.0;
    int64_t untold = 0;
    bool stop = false;
    while (t->step < t->schedule.steps && !stop) {
        carry_dit_train_report report = {0};
        const double start = carry_seconds();
        CARRY_TRY(do_step(t, &report, &stop));
        const double spent = carry_seconds() - start;
        const bool is_last = t->step == t->schedule.steps || stop;
        seconds += spent;
        loss += report.loss;
        t->spent += spent;
        t->done++;
        untold++;
        if (t->done == 1 || t->step % o->log_every == 0 || is_last) {
            tell(t, &report, loss, seconds, untold);
            seconds = loss = 0.0;
            untold = 0;
        }
        if (!stop && (is_last || (o->eval_every > 0 && t->step % o->eval_every == 0))) {
            CARRY_TRY(examine(t));
        }
        if (t->step % o->save_every == 0 || is_last) {
            CARRY_TRY(save(t));
        }
    }
    CARRY_TRY(save_end(t));
    if (stop && t->step < t->schedule.steps) {
        return carry_fail(t->ctx, CARRY_EINTERRUPTED,
                          "interrupted: step %" PRId64 " of %" PRId64
                          " is done and saved; to go on: carry train dit --resume %s",
                          t->step, t->schedule.steps, t->options.out);
    }
    return CARRY_OK;
}

/* Rank 0 looks for the newest whole checkpoint, all go on from the same. */
static carry_status find_checkpoint(training *t) {
    struct {
        char path[CARRY_FILE_PATH];
        int64_t step;
    } at = {.step = -1};
    t->found.step = -1;
    if (!t->hooks->resume) {
        return CARRY_OK;
    }
    if (t->speaks) {
        CARRY_TRY(carry_checkpoint_find(t->ctx, &t->found, t->options.out, &t->hooks->sink));
        (void)snprintf(at.path, sizeof at.path, "%s", t->found.path);
        at.step = t->found.step;
    }
    CARRY_TRY(carry_broadcast(t->comm, &at, sizeof at, 0));
    (void)snprintf(t->found.path, sizeof t->found.path, "%s", at.path);
    t->found.step = t->step = at.step;
    return CARRY_OK;
}

static carry_status take_memory(training *t, void *pointer, size_t bytes, const char *what) {
    *(void **)pointer = carry_aligned_new(bytes + 1);
    return *(void **)pointer != NULL
               ? CARRY_OK
               : carry_fail(t->ctx, CARRY_EMEMORY, "no memory for %s, %zu bytes: a smaller --batch may help", what,
                            bytes);
}

static carry_status make_model(training *t) {
    carry_dit_config config;
    const bool resumes = t->found.step >= 0;
    if (resumes) {
        CARRY_TRY(carry_dit_config_read(t->ctx, &config, t->found.path));
    } else {
        CARRY_TRY(carry_dit_train_config(t->ctx, &config, &t->options));
    }
    CARRY_TRY(carry_dit_new(t->ctx, &t->dit, &config, NULL));
    const size_t bytes = (size_t)t->dit->own.count * sizeof(float);
    CARRY_TRY(carry_parameters_want_gradients(&t->dit->own));
    if (resumes || t->options.model[0] != '\0') {
        CARRY_TRY(resumes ? CARRY_OK : carry_checkpoint_verify_model(t->ctx, t->options.model));
        CARRY_TRY(carry_dit_load(t->dit, resumes ? t->found.path : t->options.model));
    } else {
        CARRY_TRY(carry_dit_init_training(t->dit, (uint64_t)t->options.seed));
    }
    if (t->speaks) {
        CARRY_TRY(take_memory(t, &t->average, bytes, "the average of weights"));
        memcpy(t->average, t->dit->own.weights, bytes);
        t->averaged = *t->dit;
        t->averaged.own.weights = t->average;
        CARRY_TRY(take_memory(t, &t->gathered, carry_comm_size(t->comm) > 1 ? 2 * bytes : 0, "the optimizer's state"));
    }
    return resumes ? carry_checkpoint_load_weights(t->ctx, t->found.path, &t->dit->own) : CARRY_OK;
}

static carry_status open_all(training *t) {
    const carry_dit_train_options *o = &t->options;
    CARRY_TRY(find_checkpoint(t));
    CARRY_TRY(make_model(t));
    const carry_dit_config *c = &t->dit->config;
    t->videos = o->batch / carry_comm_size(t->comm);
    const carry_dit_pass_options pass = {.videos = t->videos,
                                         .chunks = o->chunks,
                                         .frames = c->chunk_frames,
                                         .height = o->size / 8,
                                         .width = o->size / 8,
                                         .window = c->window_frames,
                                         .texts = 2};
    CARRY_TRY(carry_dit_pass_new(t->dit, &t->pass, &pass));
    CARRY_TRY(take_memory(t, &t->memory, carry_dit_pass_memory(t->pass), "activations"));
    const carry_shapes_batch_options batch = {.videos = t->videos,
                                              .chunks = o->chunks,
                                              .chunk = c->chunk_frames,
                                              .side = o->size,
                                              .speed = o->speed,
                                              .past_noise = o->past_noise,
                                              .changes = o->changes,
                                              .unnamed = o->unnamed,
                                              .seed = (uint64_t)o->seed};
    CARRY_TRY(carry_shapes_batch_new(t->ctx, &t->batch, c, &batch));
    const carry_optimizer_options adam = {
        .b1 = o->beta1, .b2 = o->beta2, .eps = 1e-8, .decay = o->decay, .clip = o->clip};
    CARRY_TRY(carry_optimizer_new(t->ctx, &t->optimizer, &t->dit->own, t->comm, &adam));
    if (t->found.step >= 0) {
        CARRY_TRY(carry_checkpoint_load_state(t->found.path, t->optimizer));
    }
    t->schedule = (carry_schedule){
        .kind = CARRY_SCHEDULE_COSINE, .rate = o->rate, .final = o->final_rate, .warmup = o->warmup, .steps = o->steps};
    if (!t->speaks) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_run_folder_open(t->ctx, &t->folder, o->out));
    t->folder.newest = t->found.step;
    return CARRY_OK;
}

static void close_all(training *t) {
    carry_optimizer_free(t->optimizer);
    carry_shapes_batch_free(t->batch);
    carry_dit_pass_free(t->pass);
    carry_dit_free(t->dit);
    free(t->average);
    free(t->gathered);
    free(t->memory);
    carry_found_free(&t->found);
    carry_run_folder_close(&t->folder);
    free(t);
}

carry_status carry_dit_train_run(carry_comm *comm, const carry_dit_train_options *options,
                                 const carry_dit_train_hooks *hooks) {
    training *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return carry_fail(carry_comm_ctx(comm), CARRY_EMEMORY, "no memory for a training run");
    }
    t->ctx = carry_comm_ctx(comm);
    t->comm = comm;
    t->options = *options;
    t->hooks = hooks;
    t->speaks = carry_comm_rank(comm) == 0;
    t->folder = (carry_run_folder){.lock = -1, .newest = -1};
    carry_status status = open_all(t);
    if (status == CARRY_OK && t->speaks && hooks->started != NULL) {
        hooks->started(hooks->user,
                       &(carry_dit_train_start){.dit = t->dit,
                                                .options = &t->options,
                                                .resumed = t->found.step >= 0 ? t->found.path : NULL,
                                                .step = t->step,
                                                .ranks = carry_comm_size(comm),
                                                .memory = carry_dit_pass_memory(t->pass),
                                                .flops = carry_dit_pass_flops(t->pass) * carry_comm_size(comm)});
    }
    status = status == CARRY_OK ? run_steps(t) : status;
    close_all(t);
    return status;
}
