/* Training a video transformer: the functions that the training loop calls. */
#include "train/dit/dit_loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/nn.h"
#include "ops/video.h"
#include "carry/ops.h"
#include "core/error.h"
#include "file/checkpoint_files.h"
#include "core/file.h"
#include "core/memory.h"
#include "train/dit/shapes_batch.h"
#include "train/steps.h"

#define EXAM_CHUNKS 4
#define AVERAGED 16 /* row length for viewing the flat buffers as a matrix; their sizes are multiples of it */

typedef struct training {
    carry_ctx *ctx;
    carry_comm *comm;
    carry_dit_train_options options;
    const carry_dit_train_hooks *hooks;
    carry_steps loop;
    carry_dit *dit;
    carry_dit averaged;     /* rank 0: the same model with the averaged weights; a view */
    float *average;         /* [count], on rank 0, on the model's device */
    float *host;            /* the weights of a model on a GPU, for checkpoints */
    carry_tensor off, keep; /* on a GPU: weights minus average; and a row with the fraction of it that is added to the
                               average */
    carry_dit_pass *pass;
    void *memory;
    carry_shapes_batch *batch;
    carry_dit_pass_args args; /* arguments of the step */
    double counted;           /* the number of elements over which the loss is averaged */
    int64_t videos;           /* videos of this rank in a step */
} training;

/* Saves the model and the words of its captions, so that a stream can tell which words of a prompt it knows. */
static carry_status save_with_words(const carry_dit *model, const char *folder, carry_dtype dtype) {
    char path[CARRY_FILE_PATH];
    char words[CARRY_SHAPE_WORDS];
    CARRY_TRY(carry_dit_save(model, folder, dtype));
    CARRY_TRY(carry_file_in(model->ctx, path, folder, "words.txt"));
    (void)carry_shape_words(words);
    return carry_file_replace(model->ctx, path, words, strlen(words));
}

static carry_status save_model(const void *model, const char *folder) {
    return save_with_words(model, folder, CARRY_F32);
}

static carry_status describe(const void *self, carry_checkpoint *checkpoint) {
    const training *t = self;
    const carry_parameters *own = &t->dit->own;
    checkpoint->save = save_model;
    checkpoint->model = &t->averaged;
    checkpoint->weights = t->host != NULL ? t->host : own->weights;
    return t->host != NULL ? carry_parameters_download(own, t->host, own->weights, 0, own->count) : CARRY_OK;
}

static bool goes_on(void *self, const char *prompt, carry_shape shape, const carry_shapes_verdict *verdict,
                    const carry_shapes_verdict *second, const float *frames, int64_t count) {
    const training *t = self;
    (void)prompt;
    (void)shape;
    (void)verdict;
    (void)second;
    (void)frames;
    (void)count;
    return t->loop.stop == NULL || !t->loop.stop();
}

static carry_status evaluate_alone(void *self) {
    training *t = self;
    carry_dit_evaluation evaluation;
    const carry_dit_evaluation_options o = {
        .side = t->options.size, .chunks = EXAM_CHUNKS, .speed = t->options.speed, .forms = 1, .seed = 1000};
    CARRY_TRY(carry_dit_evaluate(&t->averaged, &o, &evaluation, goes_on, t));
    if (evaluation.prompts > 0 && t->loop.stop != NULL && t->loop.stop()) {
        return carry_fail(t->ctx, CARRY_EINTERRUPTED, "interrupted");
    }
    carry_sink_metric(&t->hooks->sink, t->loop.step, "right", (double)evaluation.both / (double)evaluation.prompts);
    if (t->hooks->evaluated != NULL) {
        t->hooks->evaluated(t->hooks->user, t->loop.step, &evaluation);
    }
    return CARRY_OK;
}

static carry_status evaluate(void *self) {
    training *t = self;
    if (t->hooks->evaluated == NULL && t->hooks->sink.metric == NULL) { /* there is no receiver for the result */
        return CARRY_OK;
    }
    return carry_steps_alone(&t->loop, evaluate_alone, t, "evaluate the model");
}

/* Early in a run the average forgets faster; otherwise it would keep the initial weights too long. */
static carry_status add_to_average(void *self) {
    training *t = self;
    const carry_parameters *own = &t->dit->own;
    const double young = (1.0 + (double)t->loop.step) / (10.0 + (double)t->loop.step);
    const float keep = (float)(t->options.average < young ? t->options.average : young);
    if (own->device != 0) {
        const carry_tensor average = carry_parameters_flat(own, t->average, 0, own->count);
        const carry_tensor weights = carry_parameters_flat(own, own->weights, 0, own->count);
        const int64_t rows = own->count / AVERAGED;
        CARRY_TRY(carry_elementwise(t->ctx, t->off, weights, average, CARRY_SUBTRACT));
        CARRY_TRY(carry_fill(t->ctx, t->keep, 1.0 - (double)keep));
        return carry_gated_add(t->ctx, carry_reshape_2d(average, rows, AVERAGED),
                               carry_reshape_2d(t->off, rows, AVERAGED), t->keep);
    }
    for (int64_t i = 0; t->average != NULL && i < own->count; i++) {
        t->average[i] = keep * t->average[i] + (1.0f - keep) * own->weights[i];
    }
    return CARRY_OK;
}

/* In every own_past-th step, replaces the past of the batch by output of the model, so that the model learns to correct
   its own errors. Not in the first tenth of a run, when the output is still too poor for this. */
static carry_status make_past(training *t) {
    const int64_t every = t->options.own_past;
    if (every == 0 || t->loop.step % every != 0 || t->loop.step < t->loop.schedule.steps / 10) {
        return CARRY_OK;
    }
    carry_dit_pass_args args = {.backward = false};
    CARRY_TRY(carry_shapes_batch_own(t->batch, &args));
    CARRY_TRY(carry_dit_pass_run(t->pass, &args, t->memory, carry_dit_pass_memory(t->pass)));
    carry_shapes_batch_past(t->batch);
    return CARRY_OK;
}

static carry_status next(void *self, carry_position *after) {
    training *t = self;
    const int64_t latent = t->options.size / 8 * (t->options.size / 8) * t->dit->config.in_dim;
    const int64_t numbers = t->options.batch * t->options.chunks * t->dit->config.chunk_frames * latent;
    const int64_t first = t->loop.step * t->options.batch + carry_comm_rank(t->comm) * t->videos;
    *after = (carry_position){0}; /* videos depend only on the step */
    t->args = (carry_dit_pass_args){.backward = true, .scale = 1.0 / (double)numbers};
    CARRY_TRY(carry_shapes_batch_make(t->batch, first, &t->args, &t->counted));
    return make_past(t);
}

static carry_status gradients(void *self, carry_tensor total, carry_status (*ready)(void *, int64_t, int64_t),
                              void *user) {
    training *t = self;
    t->args.total = carry_slice(total, 0, 1);
    t->args.ready = ready;
    t->args.user = user;
    CARRY_TRY(carry_fill(t->ctx, carry_slice(total, 1, 1), t->counted));
    return carry_dit_pass_run(t->pass, &t->args, t->memory, carry_dit_pass_memory(t->pass));
}

/* Reports the mean loss since the last report, because the loss of a single step depends on its random times. */
static void tell(void *self, const carry_steps_report *r) {
    training *t = self;
    const carry_dit_train_hooks *h = t->hooks;
    const double flops = carry_dit_pass_flops(t->pass) * (double)carry_comm_size(t->comm);
    const carry_dit_train_report report = {.step = r->step,
                                           .steps = r->steps,
                                           .loss = r->mean,
                                           .rate = r->rate,
                                           .norm = r->norm,
                                           .videos_per_s = (double)(r->since * t->options.batch) / r->seconds,
                                           .gflops = 1e-9 * flops * (double)r->since / r->seconds,
                                           .memory = carry_resident_bytes(),
                                           .left = r->left};
    carry_sink_metric(&h->sink, r->step, "loss", report.loss);
    carry_sink_metric(&h->sink, r->step, "videos_per_s", report.videos_per_s);
    if (h->report != NULL) {
        h->report(h->user, &report);
    }
}

static const carry_trainee trainee = {
    .resume = "carry train dit --resume",
    .evaluates_at_end = true,
    .next = next,
    .gradients = gradients,
    .stepped = add_to_average,
    .report = tell,
    .evaluate = evaluate,
    .describe = describe,
};

static carry_status take_memory(training *t, void *pointer, int device, size_t bytes, const char *what) {
    return carry_device_alloc(t->ctx, pointer, device, bytes + 1) == CARRY_OK
               ? CARRY_OK
               : carry_fail(t->ctx, CARRY_EMEMORY, "out of memory: %s, %zu bytes: a smaller --batch may help", what,
                            bytes);
}

/* Rank 0 keeps the average in addition to the weights; on a GPU it also needs memory to update it there and to save
   it. */
static carry_status make_average(training *t) {
    const carry_parameters *own = &t->dit->own;
    const size_t bytes = (size_t)own->count * sizeof(float);
    const int64_t row = AVERAGED;
    void *off = NULL;
    void *keep = NULL;
    CARRY_TRY(take_memory(t, &t->average, own->device, bytes, "the average of weights"));
    CARRY_TRY(carry_copy(t->ctx, carry_parameters_flat(own, t->average, 0, own->count),
                         carry_parameters_flat(own, own->weights, 0, own->count)));
    t->averaged = *t->dit;
    t->averaged.own.weights = t->average;
    if (own->device == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(take_memory(t, &t->host, 0, bytes, "a copy of the weights"));
    CARRY_TRY(take_memory(t, &off, own->device, bytes, "the average of weights"));
    t->off = carry_view_on(own->device, off, CARRY_F32, 1, &own->count);
    CARRY_TRY(take_memory(t, &keep, own->device, AVERAGED * sizeof(float), "the average of weights"));
    t->keep = carry_view_on(own->device, keep, CARRY_F32, 1, &row);
    return CARRY_OK;
}

/* Writes the model of the run, the averaged weights, into the run's folder. */
static carry_status write_model(void *self) {
    const training *t = self;
    carry_dtype dtype;
    CARRY_TRY(carry_dtype_parse(&dtype, t->options.dtype));
    carry_checkpoint_remove_sums(t->options.out);
    CARRY_TRY(save_with_words(&t->averaged, t->options.out, dtype));
    return carry_checkpoint_write_sums(t->ctx, t->options.out);
}

static carry_status save_end(training *t) {
    return carry_steps_alone(&t->loop, write_model, t, "write the model");
}

static carry_status make_model(training *t) {
    carry_dit_config config;
    const bool resumes = t->loop.found.step >= 0;
    if (resumes) {
        CARRY_TRY(carry_dit_config_read(t->ctx, &config, t->loop.found.path));
    } else {
        CARRY_TRY(carry_dit_train_config(t->ctx, &config, &t->options));
    }
    CARRY_TRY(carry_dit_new(t->ctx, &t->dit, &config, NULL, t->hooks->device));
    CARRY_TRY(carry_parameters_want_gradients(&t->dit->own));
    if (resumes || t->options.model[0] != '\0') {
        CARRY_TRY(carry_dit_load(t->dit, resumes ? t->loop.found.path : t->options.model));
    } else {
        CARRY_TRY(carry_dit_init_training(t->dit, (uint64_t)t->options.seed));
    }
    if (t->loop.speaks) {
        CARRY_TRY(make_average(t));
    }
    return resumes ? carry_checkpoint_load_weights(t->ctx, t->loop.found.path, &t->dit->own) : CARRY_OK;
}

static carry_status open_all(training *t) {
    const carry_dit_train_options *o = &t->options;
    CARRY_TRY(carry_steps_find(&t->loop, t->hooks->resume));
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
    CARRY_TRY(take_memory(t, &t->memory, t->hooks->device, carry_dit_pass_memory(t->pass), "activations"));
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
    carry_steps *loop = &t->loop;
    loop->trainee = &trainee;
    loop->self = t;
    loop->log_every = o->log_every;
    loop->eval_every = o->eval_every;
    loop->save_every = o->save_every;
    loop->keep = o->keep;
    loop->keys = carry_dit_train_keys;
    loop->options = o;
    loop->stop = t->hooks->stop;
    loop->seen_each = o->batch;
    loop->schedule = (carry_schedule){
        .kind = CARRY_SCHEDULE_COSINE, .rate = o->rate, .final = o->final_rate, .warmup = o->warmup, .steps = o->steps};
    return carry_steps_open(loop, &t->dit->own, &adam);
}

static void close_all(training *t) {
    carry_steps_close(&t->loop);
    carry_shapes_batch_free(t->batch);
    carry_dit_pass_free(t->pass);
    carry_dit_free(t->dit);
    carry_device_free(t->ctx, t->hooks->device, t->average);
    carry_device_free(t->ctx, t->hooks->device, t->off.data);
    carry_device_free(t->ctx, t->hooks->device, t->keep.data);
    carry_device_free(t->ctx, t->hooks->device, t->memory);
    carry_device_free(t->ctx, 0, t->host);
    free(t);
}

carry_status carry_dit_train_run(carry_comm *comm, const carry_dit_train_options *options,
                                 const carry_dit_train_hooks *hooks) {
    training *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return carry_fail(carry_comm_ctx(comm), CARRY_EMEMORY, "out of memory: a training run");
    }
    t->ctx = carry_comm_ctx(comm);
    t->comm = comm;
    t->options = *options;
    t->hooks = hooks;
    carry_steps_init(&t->loop, comm, t->options.out, &hooks->sink);
    carry_status status = open_all(t);
    if (status == CARRY_OK && t->loop.speaks && hooks->started != NULL) {
        hooks->started(hooks->user,
                       &(carry_dit_train_start){.dit = t->dit,
                                                .options = &t->options,
                                                .resumed = t->loop.found.step >= 0 ? t->loop.found.path : NULL,
                                                .step = t->loop.step,
                                                .ranks = carry_comm_size(comm),
                                                .memory = carry_dit_pass_memory(t->pass),
                                                .flops = carry_dit_pass_flops(t->pass) * carry_comm_size(comm)});
    }
    status = status == CARRY_OK ? carry_steps_run(&t->loop) : status;
    if (status == CARRY_OK || status == CARRY_EINTERRUPTED) {
        char why[512];
        (void)snprintf(why, sizeof why, "%s", carry_ctx_error(t->ctx));
        const carry_status written = save_end(t);
        status = written != CARRY_OK            ? written
                 : status == CARRY_EINTERRUPTED ? carry_fail(t->ctx, status, "%s", why)
                                                : status;
    }
    close_all(t);
    return status;
}
