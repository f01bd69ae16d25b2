/* The evaluations of a run. */
#include <math.h>
#include <stdlib.h>

#include "carry/device.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/host.h"
#include "train/training.h"

static carry_status open_exam(carry_training *t) {
    carry_source source;
    bool is_there;
    CARRY_TRY(carry_material_held_out(t->ctx, &t->material, &t->options, &source, &is_there));
    t->cannot_evaluate = !is_there;
    if (!is_there) {
        if (t->loop.speaks && t->material.examples == NULL) {
            carry_sink_note(&t->hooks->sink, t->loop.step,
                            "the text is too large or too short to keep a part of it back: --eval-data FILE names "
                            "another to be evaluated with");
        }
        return CARRY_OK;
    }
    if (t->material.task != NULL) {
        const int64_t sizes[] = {t->rows, t->material.length / t->grid.parts, t->lm->config.vocab_size};
        carry_dtype dtype;
        size_t bytes;
        CARRY_TRY(carry_dtype_parse(&dtype, t->options.dtype));
        const int device = t->lm->own.device;
        void *logits = NULL;
        if (carry_size_product(&bytes, sizes, 3, carry_dtype_size(dtype))) {
            (void)carry_device_alloc(t->ctx, &logits, device, bytes); /* logits is NULL if it fails */
            t->logits = carry_view_on(device, logits, dtype, 3, sizes);
            t->logits_seen = carry_aligned_new(device != 0 ? bytes : 1);
            t->chosen = calloc((size_t)(sizes[0] * sizes[1]), sizeof *t->chosen);
        }
        if (t->logits.data == NULL || t->logits_seen == NULL || t->chosen == NULL) {
            return carry_fail(t->ctx, CARRY_EMEMORY, "out of memory: the predictions of an evaluation");
        }
    }
    return carry_batches_new(t->ctx, &t->evaluation, &source,
                             &(carry_batches_options){.rows = t->options.batch,
                                                      .length = t->material.length,
                                                      .rank = t->grid.rank,
                                                      .ranks = t->grid.ranks,
                                                      .part = t->grid.part,
                                                      .parts = t->grid.parts,
                                                      .once = t->material.task == NULL,
                                                      .seed = (uint64_t)t->options.seed});
}

/* Finds the largest logit of each row. */
static carry_status choose(carry_training *t) {
    carry_tensor seen = t->logits;
    if (seen.device != 0) {
        seen = carry_view(t->logits_seen, seen.dtype, 3, seen.shape);
        CARRY_TRY(carry_read(t->ctx, seen, t->logits));
    }
    const carry_tensor *logits = &seen;
    const int64_t width = logits->shape[2];
    const int64_t rows = logits->shape[0] * logits->shape[1];
    for (int64_t r = 0; r < rows; r++) {
        int64_t best = 0;
        for (int64_t i = 1; i < width; i++) {
            best = carry_tensor_at(logits, r * width + i) > carry_tensor_at(logits, r * width + best) ? i : best;
        }
        t->chosen[r] = best;
    }
    return CARRY_OK;
}

/* Adds the loss, the number of labels, of correct predictions and of questions of a batch to sums[4]. */
static carry_status evaluate_batch(carry_training *t, const carry_batch *batch, double *sums) {
    for (int64_t part = 0; part < t->options.accumulate; part++) {
        double loss = 0.0;
        int64_t counted = 0;
        carry_lm_args args = {.loss = &loss, .counted = &counted, .logits = t->logits};
        CARRY_TRY(carry_training_pass(t, batch, part, &args));
        sums[0] += loss;
        sums[1] += (double)counted;
        if (t->logits.data != NULL) {
            int64_t asked = 0;
            CARRY_TRY(choose(t));
            sums[2] += (double)t->material.task->score(t->chosen, batch->label + part * t->rows * batch->length,
                                                       t->rows * batch->length, &asked);
            sums[3] += (double)asked;
        }
    }
    return CARRY_OK;
}

carry_status carry_training_evaluate(void *training) {
    carry_training *t = training;
    CARRY_SPAN(t->ctx, "train", "evaluate");
    double sums[4] = {0.0};
    if (t->evaluation == NULL && !t->cannot_evaluate) {
        CARRY_TRY(open_exam(t));
    }
    if (t->cannot_evaluate) {
        return CARRY_OK;
    }
    carry_batches_seek(t->evaluation, (carry_position){0});
    for (int64_t i = 0; i < t->options.eval_batches; i++) {
        const carry_batch *batch;
        bool stop;
        CARRY_TRY(carry_steps_stop(&t->loop, &stop));
        if (stop) {
            return CARRY_OK; /* an incomplete evaluation is not reported */
        }
        CARRY_TRY(carry_batches_next(t->ctx, t->evaluation, &batch));
        if (batch->rows == 0) {
            break;
        }
        CARRY_TRY(evaluate_batch(t, batch, sums));
    }
    CARRY_TRY(carry_all_reduce(t->comm, sums, 4, CARRY_F64, CARRY_REDUCE_SUM));
    if (t->loop.speaks) {
        const carry_train_evaluation evaluation = {.step = t->loop.step,
                                                   .labels = (int64_t)sums[1],
                                                   .loss = sums[0] / sums[1],
                                                   .accuracy = sums[3] > 0.0 ? sums[2] / sums[3] : NAN};
        carry_sink_metric(&t->hooks->sink, t->loop.step, "eval_loss", evaluation.loss);
        if (sums[3] > 0.0) {
            carry_sink_metric(&t->hooks->sink, t->loop.step, "accuracy", evaluation.accuracy);
        }
        if (t->hooks->evaluated != NULL) {
            t->hooks->evaluated(t->hooks->user, &evaluation);
        }
    }
    return CARRY_OK;
}
