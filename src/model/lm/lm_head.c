/* The head after the layers: the last norm, logits, the loss and its gradients. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/host.h"
#include "model/lm/places.h"

/* *h becomes the rows whose logits `places` wants, copied to last_h, or all of h if it wants all rows. */
static carry_status take_wanted(carry_lm_pass *pass, const carry_lm_places *places, carry_tensor *h) {
    const int device = pass->lm->own.device;
    if (places->wanted == NULL) {
        return CARRY_OK;
    }
    const carry_tensor to = carry_slice(pass->last_h, 0, places->wanted_count);
    const carry_tensor ids =
        carry_view_on(device, (void *)(uintptr_t)places->there.wanted, CARRY_I64, 1, &places->wanted_count);
    CARRY_TRY(carry_embed(pass->ctx, to, *h, ids));
    *h = to;
    return CARRY_OK;
}

static carry_status write_pooled_logits(carry_lm_pass *pass, const carry_lm_args *args) {
    const carry_lm *lm = pass->lm;
    carry_tensor h = pass->h[lm->config.num_hidden_layers];
    CARRY_TRY(take_wanted(pass, args->places, &h));
    const carry_tensor x = carry_slice(pass->last_x, 0, h.shape[0]);
    CARRY_TRY(carry_lm_norm(pass, x, h, carry_lm_weight(lm, lm->norm)));
    CARRY_TRY(carry_lm_scale(pass, x, x, pass->logits_factor));
    const carry_lm *tables = lm->tables;
    return carry_linear(pass->ctx, args->logits, x, carry_parameters_product(&tables->own, tables->head), false);
}

static carry_status write_logits(carry_lm_pass *pass, const carry_lm_args *args) {
    carry_ctx *ctx = pass->ctx;
    const carry_lm_config *c = &pass->lm->config;
    carry_tensor W = carry_parameters_product(&pass->lm->own, pass->lm->head);
    carry_tensor x = pass->last;
    if (args->last_logits) {
        carry_tensor h = pass->h[c->num_hidden_layers];
        for (int64_t b = 0; b < pass->options.batch; b++) {
            CARRY_TRY(carry_copy(ctx, carry_slice(pass->last_h, b, 1),
                                 carry_slice(h, (b + 1) * pass->options.tokens - 1, 1)));
        }
        CARRY_TRY(carry_lm_norm(pass, pass->last_x, pass->last_h, carry_lm_weight(pass->lm, pass->lm->norm)));
        CARRY_TRY(carry_lm_scale(pass, pass->last_x, pass->last_x, pass->logits_factor));
        x = pass->last_x;
    }
    return carry_linear(ctx, carry_reshape_2d(args->logits, x.shape[0], c->vocab_size), x, W, false);
}

carry_status carry_lm_head(carry_lm_pass *pass, const carry_lm_args *args, int64_t counted) {
    carry_ctx *ctx = pass->ctx;
    carry_lm *lm = pass->lm;
    CARRY_SPAN(ctx, "model", "head");
    carry_tensor h = pass->h[lm->config.num_hidden_layers];
    carry_tensor w = carry_lm_weight(lm, lm->norm);
    carry_tensor absent = {0};
    if (args->labels.data != NULL || (args->logits.data != NULL && !args->last_logits)) {
        CARRY_TRY(carry_lm_norm(pass, pass->last, h, w));
        CARRY_TRY(carry_lm_scale(pass, pass->last, pass->last, pass->logits_factor));
    }
    if (args->normed.data != NULL) {
        CARRY_TRY(carry_lm_norm(pass, args->normed, h, w));
    }
    if (args->logits.data != NULL) {
        CARRY_TRY(args->places != NULL ? write_pooled_logits(pass, args) : write_logits(pass, args));
    }
    if (args->labels.data == NULL) {
        return CARRY_OK;
    }
    const float scale = args->scale != 0.0f ? args->scale : 1.0f / (float)(counted > 0 ? counted : 1);
    const carry_linear_cross_entropy_args loss = {.losses = args->losses.data != NULL ? args->losses : pass->losses,
                                                  .dx = args->backward ? pass->back.dx : absent,
                                                  .dW = args->backward ? carry_lm_gradient(lm, lm->head) : absent,
                                                  .x = pass->last,
                                                  .W = carry_parameters_product(&lm->own, lm->head),
                                                  .targets = pass->labels,
                                                  .scale = scale};
    bool done;
    CARRY_TRY(carry_lm_fp8_head(pass, args, &loss, &done));
    CARRY_TRY(done ? CARRY_OK : carry_linear_cross_entropy(ctx, &loss, pass->scratch, pass->scratch_bytes));
    if (args->losses.data != NULL) {
        return CARRY_OK;
    }
    const bool adds = args->total.data != NULL;
    CARRY_TRY(carry_sum_losses(ctx, adds ? args->total : pass->total, pass->losses, pass->labels, adds));
    if (args->loss != NULL) {
        double total[2];
        CARRY_TRY(carry_read(ctx, carry_view_1d(total, CARRY_F64, 2), pass->total));
        *args->loss = total[0];
    }
    if (args->counted != NULL) {
        *args->counted = counted;
    }
    if (!args->backward) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_lm_scale(pass, pass->back.dx, pass->back.dx, pass->logits_factor));
    return carry_lm_norm_backward(pass, pass->back.dh, carry_lm_gradient(lm, lm->norm), pass->back.dx, h, w, false);
}
