/* Training a language model: the functions that the training loop calls. */
#include "train/loop.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "carry/device.h"
#include "core/error.h"
#include "core/memory.h"
#include "model/lm/adapter.h"
#include "train/training.h"

double carry_train_flops(const carry_lm *lm) {
    const carry_lm_config *c = &lm->config;
    double products = 0.0;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_lm_parameter *p = &lm->own.parameter[i];
        const bool is_table = i == lm->embeddings && lm->head != lm->embeddings; /* rows of it are copied */
        products += p->rank == 2 && !is_table ? (double)p->count : 0.0;
    }
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const carry_lm_part *parts[] = {lm->layer[i].mixer.part, lm->layer[i].feedforward.part};
        for (int j = 0; j < 2; j++) {
            products += parts[j]->multiplications != NULL ? parts[j]->multiplications(c) : 0.0;
        }
    }
    return 3.0 * 2.0 * products;
}

/* Sets the sequences of a part of a batch of packed examples; its rows are then treated as one row. */
static void cut_part(carry_training *t, const int64_t *cuts, int64_t part, carry_lm_args *args) {
    const int64_t sequences = t->pass_options.sequences;
    if (sequences == 0) {
        return;
    }
    for (int64_t i = 0; i <= sequences; i++) {
        t->cuts[i] = cuts[part * sequences + i] - cuts[part * sequences];
    }
    const int64_t tokens = args->ids.shape[0] * args->ids.shape[1];
    args->cu_seqlens = carry_view_1d(t->cuts, CARRY_I64, sequences + 1);
    args->ids = carry_reshape_2d(args->ids, 1, tokens);
    args->labels = carry_reshape_2d(args->labels, 1, tokens);
}

carry_status carry_training_pass(carry_training *t, const carry_batch *batch, int64_t part, carry_lm_args *args) {
    const int64_t from = part * t->rows * batch->length;
    args->ids = carry_view_2d(batch->input + from, CARRY_I64, t->rows, batch->length);
    args->labels = carry_view_2d(batch->label + from, CARRY_I64, t->rows, batch->length);
    cut_part(t, batch->cu_seqlens, part, args);
    return carry_lm_run(t->pass, args, t->memory, t->bytes);
}

static carry_status next(void *training, carry_position *after) {
    carry_training *t = training;
    if (t->feed.device != 0) {
        return carry_feed_take(&t->feed, t->batches, after);
    }
    CARRY_TRY(carry_batches_next(t->ctx, t->batches, &t->batch));
    *after = carry_batches_position(t->batches);
    return CARRY_OK;
}

static void before(void *training, bool is_end) {
    const carry_training *t = training;
    if (t->hooks->step != NULL) {
        t->hooks->step(t->ctx, carry_comm_rank(t->comm), t->lm->own.device, t->loop.step, is_end);
    }
}

static void ahead(void *training) {
    carry_training *t = training;
    if (t->feed.device != 0 && t->loop.step + 1 < t->loop.schedule.steps) {
        (void)carry_feed_prepare(&t->feed, t->batches);
    }
}

/* A recorded graph contains the scale of the loss, so the number of labels is the key. Steps with packed examples or
   dropout are not recorded: the boundaries of examples and the dropped elements would also be part of the graph, and
   they change with every batch. */
static uint64_t key(void *training) {
    const carry_training *t = training;
    if (t->lm->adapter != NULL && t->lm->adapter->options.dropout > 0.0) {
        return 0;
    }
    return t->feed.device != 0 && t->feed.sequences == 0 ? (uint64_t)t->feed.labels_whole + 1 : 0;
}

/* Runs the pass for a part of the batch in the feed. */
static carry_status pass_of_feed(carry_training *t, int64_t part, carry_lm_args *args) {
    const int64_t length = t->feed.count / (t->rows * t->options.accumulate);
    const int64_t count = t->rows * length;
    args->ids = carry_reshape_2d(carry_slice(t->feed.ids, part * count, count), t->rows, length);
    args->labels = carry_reshape_2d(carry_slice(t->feed.labels, part * count, count), t->rows, length);
    cut_part(t, t->feed.cuts, part, args);
    return carry_lm_run(t->pass, args, t->memory, t->bytes);
}

/* After the first step: names the products of --fp8 that were computed in bf16. */
static void note_fp8(carry_training *t) {
    char sites[128];
    char line[400];
    carry_lm_fp8_unused(t->pass, sites, sizeof sites);
    if (sites[0] != '\0') {
        (void)snprintf(line, sizeof line,
                       "--fp8 %s: %s in bf16: 8-bit products need sizes that are multiples of 16, and input maps that "
                       "are one product (docs/training.md)",
                       t->options.fp8, sites);
        carry_sink_note(&t->hooks->sink, t->loop.step + 1, line);
    }
}

/* Runs forward and backward over this rank's rows, in parts. */
static carry_status gradients(void *training, carry_tensor total, carry_status (*ready)(void *, int64_t, int64_t),
                              void *user) {
    carry_training *t = training;
    const bool fed = t->feed.device != 0;
    const int64_t labels = fed ? t->feed.labels_whole : t->batch->labels_whole;
    const double scale = 1.0 / (double)(labels > 0 ? labels : 1);
    for (int64_t part = 0; part < t->options.accumulate; part++) {
        carry_lm_args args = {.backward = true, .scale = (float)scale, .total = total};
        if (t->lm->adapter != NULL) {
            t->lm->adapter->draw =
                (uint64_t)((t->loop.step * t->grid.ranks + t->grid.rank) * t->options.accumulate + part);
        }
        if (part + 1 == t->options.accumulate) {
            args.ready = ready;
            args.user = user;
        }
        CARRY_TRY(fed ? pass_of_feed(t, part, &args) : carry_training_pass(t, t->batch, part, &args));
    }
    if (t->fp8.scales.data != NULL && !t->fp8.is_known) {
        t->fp8.is_known = true;
        note_fp8(t);
    }
    return CARRY_OK;
}

/* Rows are those of the part of the batch on this rank. */
static carry_status explain(void *training, char *text, size_t size) {
    const carry_training *t = training;
    int64_t layer;
    int64_t row;
    CARRY_TRY(carry_lm_router_nan(t->pass, &layer, &row));
    text[0] = '\0';
    if (layer >= 0) {
        (void)snprintf(text, size, "layer %" PRId64 ", token %" PRId64 ": the router's scores are NaN", layer, row);
    }
    return CARRY_OK;
}

/* The memory of this process, or on a GPU, that of this rank on its GPU; if that is unknown, all memory in use on the
   GPU. */
static double held_bytes(const carry_training *t) {
    size_t available;
    size_t total;
    const int device = t->lm->own.device;
    const size_t held = device != 0 ? carry_device_held(t->ctx, device) : 0;
    if (held > 0) {
        return (double)held;
    }
    if (device == 0 || carry_device_memory(t->ctx, &available, &total, device) != CARRY_OK) {
        return carry_resident_bytes();
    }
    return (double)(total - available);
}

static void tell(void *training, const carry_steps_report *r) {
    carry_training *t = training;
    const carry_train_hooks *h = t->hooks;
    const double held = held_bytes(t);
    const double tokens_per_s = (double)(r->since * t->loop.seen_each) / r->seconds;
    t->most = held > t->most ? held : t->most;
    const carry_train_report report = {.step = r->step,
                                       .steps = r->steps,
                                       .seen = r->seen,
                                       .loss = r->loss,
                                       .rate = r->rate,
                                       .norm = r->norm,
                                       .tokens_per_s = tokens_per_s,
                                       .mfu = h->peak > 0.0 ? tokens_per_s * t->flops / h->peak : NAN,
                                       .memory = t->most > 0.0 ? t->most : NAN,
                                       .left = r->left};
    if (isfinite(report.loss)) {
        carry_sink_metric(&h->sink, r->step, "loss", report.loss);
    }
    carry_sink_metric(&h->sink, r->step, "tokens_per_s", report.tokens_per_s);
    if (isfinite(report.mfu)) {
        carry_sink_metric(&h->sink, r->step, "mfu", report.mfu);
    }
    carry_sink_metric(&h->sink, r->step, "memory", report.memory);
    if (h->report != NULL) {
        h->report(h->user, &report);
    }
}

static void saved(void *training, const char *folder) {
    const carry_training *t = training;
    if (t->hooks->saved != NULL) {
        t->hooks->saved(t->hooks->user, t->loop.step, folder);
    }
}

static carry_status save_model(const void *training, const char *folder) {
    const carry_training *t = training;
    const char *base = t->options.model[0] != '\0' ? t->options.model : t->options.architecture;
    return t->lm->adapter != NULL ? carry_lm_adapter_save(t->lm, folder, base)
                                  : carry_lm_save(t->lm, folder, CARRY_F32);
}

static carry_status describe(const void *training, carry_checkpoint *checkpoint) {
    const carry_training *t = training;
    checkpoint->source = t->material.crc;
    checkpoint->save = save_model;
    checkpoint->model = t;
    checkpoint->tokenizer = t->material.tokenizer;
    return CARRY_OK;
}

const carry_trainee carry_training_trainee = {
    .resume = "carry train --resume",
    .next = next,
    .before = before,
    .ahead = ahead,
    .key = key,
    .gradients = gradients,
    .explain = explain,
    .report = tell,
    .evaluate = carry_training_evaluate,
    .saved = saved,
    .describe = describe,
};

carry_status carry_train_run(carry_comm *comm, const carry_train_options *options, const carry_train_hooks *hooks) {
    carry_training *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return carry_fail(carry_comm_ctx(comm), CARRY_EMEMORY, "out of memory: a training run");
    }
    t->ctx = carry_comm_ctx(comm);
    t->comm = comm;
    t->options = *options;
    t->hooks = hooks;
    carry_status status = carry_training_open(t);
    if (status == CARRY_OK && t->loop.step >= t->loop.schedule.steps && t->loop.speaks) {
        char line[160];
        (void)snprintf(line, sizeof line, "all %" PRId64 " steps are done: --steps with a larger number goes on",
                       t->loop.schedule.steps);
        carry_sink_note(&hooks->sink, t->loop.step, line);
    }
    status = status == CARRY_OK ? carry_steps_run(&t->loop) : status;
    carry_training_close(t);
    free(t);
    return status;
}
