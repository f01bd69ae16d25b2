/* Multi-token heads: loading, and the input of their layer. */
#include "model/lm/lm_heads.h"

#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/families/family.h"
#include "model/lm/lm_pass.h"

static bool has(const carry_weights *weights, const char *name) {
    return carry_weights_find(weights, name) != NULL;
}

static carry_status check_files(const carry_lm *model) {
    carry_weights weights;
    CARRY_TRY(carry_weights_open(model->ctx, &weights, model->folder));
    const bool has_heads = has(&weights, "mtp.fc.weight") || has(&weights, "model.mtp.fc.weight");
    const bool is_other = has(&weights, "mtp.layers.1.input_layernorm.weight") ||
                          has(&weights, "model.mtp.layers.1.input_layernorm.weight") ||
                          has(&weights, "mtp.embed_tokens.weight") || has(&weights, "model.mtp.embed_tokens.weight");
    carry_weights_close(&weights);
    if (!has_heads) {
        return carry_fail(model->ctx, CARRY_EUNSUPPORTED, "%s has no multi-token heads (mtp.fc.weight)", model->folder);
    }
    return !is_other ? CARRY_OK
                     : carry_fail(model->ctx, CARRY_EUNSUPPORTED,
                                  "%s: multi-token heads with several layers or with their own embeddings are not "
                                  "supported",
                                  model->folder);
}

carry_status carry_lm_heads_open(carry_lm *model, carry_lm **heads) {
    *heads = NULL;
    if (model->config.family->set_heads == NULL || model->folder == NULL) {
        return carry_fail(model->ctx, CARRY_EUNSUPPORTED, "%s: multi-token heads are not supported",
                          model->folder == NULL ? "a model without a folder" : model->config.family->name);
    }
    if (model->adapter != NULL) {
        return carry_fail(model->ctx, CARRY_EUNSUPPORTED, "multi-token heads and an adapter cannot be used together");
    }
    CARRY_TRY(check_files(model));
    return carry_lm_new_heads(model, heads);
}

carry_status carry_lm_heads_check(const carry_lm_pass *pass, const carry_lm_args *args) {
    const int64_t shape[] = {pass->options.tokens, pass->lm->config.hidden_size};
    if (carry_lm_is_heads(pass->lm)) {
        CARRY_TRY(carry_tensor_expect(pass->ctx, "before", &args->before, 2, shape));
    }
    return args->normed.data != NULL ? carry_tensor_expect(pass->ctx, "normed", &args->normed, 2, shape) : CARRY_OK;
}

carry_status carry_lm_heads_join(carry_lm_pass *pass, const carry_lm_args *args) {
    carry_ctx *ctx = pass->ctx;
    const carry_lm *lm = pass->lm;
    const int64_t width = lm->config.hidden_size;
    const carry_tensor x = pass->last; /* not used before the head */
    CARRY_TRY(carry_lm_norm(pass, x, pass->h[0], carry_lm_weight(lm, lm->join_embedding)));
    CARRY_TRY(carry_copy_columns(ctx, pass->joined, 0, x, 0, width));
    CARRY_TRY(carry_lm_norm(pass, x, args->before, carry_lm_weight(lm, lm->join_hidden)));
    CARRY_TRY(carry_copy_columns(ctx, pass->joined, width, x, 0, width));
    return carry_linear(ctx, pass->h[0], pass->joined, carry_parameters_product(&lm->own, lm->join), false);
}
