/* One training step of carry/model.h: loss and gradients of a batch, then AdamW. For several steps in one process;
   train/ has runs with data, checkpoints and ranks. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "carry/device.h"
#include "carry/nn.h"
#include "carry/ops.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sized.h"
#include "core/tensor.h"
#include "model/host.h"
#include "engine/llm.h"

void carry_llm_training_free(carry_llm *model) {
    carry_llm_training *t = &model->training;
    if (t->pass != NULL) {
        carry_lm_pass_give(t->pass, t->memory);
        carry_lm_pass_free(t->pass);
    }
    carry_device_free(model->ctx, model->lm->own.device, t->room);
    *t = (carry_llm_training){0};
}

/* Places the moments and the arrays for clipping. */
static void place(const carry_llm *model, carry_llm_training *t, carry_arena *arena) {
    const int device = model->lm->own.device;
    const int64_t one = 1;
    t->m = carry_arena_tensor(arena, device, CARRY_F32, 1, &model->lm->own.count);
    t->v = carry_arena_tensor(arena, device, CARRY_F32, 1, &model->lm->own.count);
    t->squares = carry_arena_tensor(arena, device, CARRY_F64, 1, &one);
    t->clip = carry_arena_tensor(arena, device, CARRY_F32, 1, &one);
    t->workspace_bytes = carry_sum_squares_workspace(model->lm->own.count);
    t->workspace = carry_arena_take(arena, t->workspace_bytes, 1);
    const int64_t numbers = carry_parameters_spared(&model->lm->own, 0, model->lm->own.count);
    if (numbers > 0) {
        t->spared = carry_arena_tensor(arena, device, CARRY_I64, 1, &numbers);
    }
}

static carry_status make_moments(carry_llm *model) {
    carry_llm_training *t = &model->training;
    const int device = model->lm->own.device;
    size_t bytes;
    carry_arena arena = carry_arena_over(NULL, 0);
    place(model, t, &arena);
    if (!carry_arena_total(&arena, &bytes) || carry_device_alloc(model->ctx, &t->room, device, bytes) != CARRY_OK) {
        return carry_fail(model->ctx, CARRY_EMEMORY, "out of memory: the moments of %" PRId64 " parameters",
                          model->lm->own.trained);
    }
    arena = carry_arena_over(t->room, bytes);
    place(model, t, &arena);
    CARRY_TRY(carry_device_fill(model->ctx, t->room, device, 0, bytes, carry_ctx_stream(model->ctx, device)));
    return carry_parameters_put_spared(&model->lm->own, t->spared, 0, model->lm->own.count);
}

static carry_status plan_batch(carry_llm *model, const carry_llm_batch *b) {
    carry_llm_training *t = &model->training;
    if (t->pass != NULL && t->batch == b->batch && t->tokens == b->tokens) {
        return CARRY_OK;
    }
    if (t->pass != NULL) {
        carry_lm_pass_give(t->pass, t->memory);
        carry_lm_pass_free(t->pass);
        t->pass = NULL;
        t->memory = NULL;
    }
    const carry_lm_pass_options options = {.batch = b->batch, .tokens = b->tokens, .dtype = model->dtype};
    CARRY_TRY(carry_lm_pass_new(model->lm, &t->pass, &options));
    t->batch = b->batch;
    t->tokens = b->tokens;
    return carry_lm_pass_take(t->pass, &t->memory);
}

static carry_status check(const carry_llm *model, const carry_llm_batch *b) {
    if (model->lm->own.gradients == NULL) {
        return carry_fail(model->ctx, CARRY_EARGUMENT, "the model was opened to be read: training needs `trains`");
    }
    if (b->ids == NULL || b->labels == NULL) {
        return carry_fail(model->ctx, CARRY_EARGUMENT, "a training step needs ids and labels");
    }
    if (!isfinite(b->rate) || !(b->b1 >= 0.0 && b->b1 < 1.0) || !(b->b2 >= 0.0 && b->b2 < 1.0) ||
        !(b->eps >= 0.0 && b->decay >= 0.0 && b->clip >= 0.0)) {
        return carry_fail(model->ctx, CARRY_EARGUMENT,
                          "rate %g, b1 %g, b2 %g, eps %g, decay %g, clip %g: rate is a number, b1 and b2 are from 0 to "
                          "below 1, the others not negative",
                          b->rate, b->b1, b->b2, b->eps, b->decay, b->clip);
    }
    return CARRY_OK;
}

static carry_status update(carry_llm *model, const carry_llm_batch *b) {
    const carry_parameters *own = &model->lm->own;
    carry_llm_training *t = &model->training;
    const carry_adamw options = {CARRY_INIT(carry_adamw),
                                 .rate = b->rate,
                                 .b1 = b->b1 > 0.0 ? b->b1 : 0.9,
                                 .b2 = b->b2 > 0.0 ? b->b2 : 0.95,
                                 .eps = b->eps > 0.0 ? b->eps : 1e-8,
                                 .decay = b->decay,
                                 .factor = 1.0,
                                 .step = t->steps,
                                 .clip = t->clip,
                                 .spared = t->spared};
    return carry_adamw_step(model->ctx, carry_parameters_flat(own, own->weights, 0, own->count), t->m, t->v,
                            carry_parameters_low(own, 0, own->count),
                            carry_parameters_flat(own, own->gradients, 0, own->count), &options);
}

carry_status carry_llm_train_step(carry_llm *model, const carry_llm_batch *batch, double *loss) {
    carry_ctx *ctx = model->ctx;
    carry_llm_batch given;
    const carry_llm_batch *b = &given;
    carry_llm_training *t = &model->training;
    carry_parameters *own = &model->lm->own;
    double sum = 0.0;
    double squares;
    int64_t counted = 0;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_llm_batch, &given, batch));
    CARRY_TRY(check(model, b));
    CARRY_TRY(plan_batch(model, b));
    CARRY_TRY(t->room == NULL ? make_moments(model) : CARRY_OK);
    CARRY_TRY(carry_parameters_zero_gradients(own));
    const carry_lm_args args = {.ids = carry_view_2d((void *)(uintptr_t)b->ids, CARRY_I64, b->batch, b->tokens),
                                .labels = carry_view_2d((void *)(uintptr_t)b->labels, CARRY_I64, b->batch, b->tokens),
                                .backward = true,
                                .loss = &sum,
                                .counted = &counted};
    CARRY_TRY(carry_lm_run(t->pass, &args, t->memory, carry_lm_pass_memory(t->pass)));
    CARRY_TRY(carry_sum_squares(ctx, t->squares, carry_parameters_flat(own, own->gradients, 0, own->count), false,
                                t->workspace, t->workspace_bytes));
    CARRY_TRY(carry_read(ctx, carry_view_1d(&squares, CARRY_F64, 1), t->squares));
    const double mean = sum / (double)(counted > 0 ? counted : 1);
    if (!isfinite(squares) || !isfinite(mean)) {
        int64_t layer;
        int64_t token;
        CARRY_TRY(carry_lm_router_nan(t->pass, &layer, &token));
        if (layer >= 0) {
            return carry_fail(ctx, CARRY_ERANGE,
                              "the gradients of step %" PRId64 " are not finite: layer %" PRId64 ", token %" PRId64
                              ": the router's scores are NaN; nothing was changed",
                              t->steps + 1, layer, token);
        }
        return carry_fail(ctx, CARRY_ERANGE,
                          "the gradients of step %" PRId64 " are not finite (loss %g): nothing was changed",
                          t->steps + 1, mean);
    }
    CARRY_TRY(carry_clip_factor(ctx, t->clip, t->squares, b->clip));
    t->steps++;
    CARRY_TRY(update(model, b));
    if (loss != NULL) {
        *loss = mean;
    }
    return CARRY_OK;
}
