/* Planning a pass, and running it. */
#include "model/lm/lm_pass.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/host.h"
#include "model/lm/adapter.h"
#include "model/lm/lm_heads.h"
#include "model/lm/places.h"
#include "ops/linear.h"

#define MAX_TOKENS ((int64_t)1 << 32)

static void release(carry_lm_pass *pass) {
    for (int i = 0; i < CARRY_LM_PARTS; i++) {
        if (pass->part[i].part != NULL && pass->part[i].part->close != NULL) {
            pass->part[i].part->close(pass->part[i].opened);
        }
    }
    carry_lm_factors_free(pass);
    carry_lm_nan_free(pass);
    free(pass->fixed);
    free(pass->layer);
    free(pass->structs);
    free(pass->h);
    free(pass);
}

static carry_status check_options(carry_ctx *ctx, const carry_lm_pass_options *o) {
    if (o->batch < 1 || o->tokens < 1 || o->batch > MAX_TOKENS / o->tokens) {
        return carry_fail(ctx, CARRY_ESIZE, "a batch of %" PRId64 " sequences of %" PRId64 " tokens cannot be planned",
                          o->batch, o->tokens);
    }
    if (o->sequences < 0 || (o->sequences > 0 && o->batch != 1)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "packed sequences (%" PRId64 ") need a batch of 1, not %" PRId64,
                          o->sequences, o->batch);
    }
    if (o->pooled < 0 || (o->pooled > 0 && (o->batch != 1 || o->sequences > 0 || !o->forward_only || o->recompute ||
                                            o->context < 1 || o->pooled > o->tokens))) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a pass for %" PRId64 " pooled sequences needs a batch of 1, forward_only, a context, and as "
                          "many tokens",
                          o->pooled);
    }
    if (o->dtype != CARRY_F32 && o->dtype != CARRY_BF16 && o->dtype != CARRY_F16) {
        return carry_fail(ctx, CARRY_EDTYPE, "activations are f32, bf16 or f16, not %s", carry_dtype_name(o->dtype));
    }
    return CARRY_OK;
}

/* Allocates in host memory a struct of activations for each part of each layer (or for each part, if layers share them)
   and one of gradients for each part. */
static carry_status make_structs(carry_lm_pass *pass) {
    const size_t layers = (size_t)pass->lm->config.num_hidden_layers;
    size_t each = 1;
    for (int i = 0; i < CARRY_LM_PARTS; i++) {
        const carry_lm_part *part = pass->part[i].part;
        each = part != NULL && part->rows_size > each ? part->rows_size : each;
        each = part != NULL && part->back_size > each ? part->back_size : each;
    }
    pass->layer = calloc(layers, sizeof *pass->layer);
    pass->h = calloc(layers + 1, sizeof *pass->h);
    pass->structs = calloc(2 * CARRY_LM_PARTS + (pass->shares ? 0 : 2 * layers), each);
    if (pass->layer == NULL || pass->h == NULL || pass->structs == NULL) {
        return carry_fail(pass->ctx, CARRY_EMEMORY, "out of memory: a pass");
    }
    unsigned char *next = pass->structs;
    for (int i = 0; i < CARRY_LM_PARTS; i++, next += 2 * each) {
        pass->part[i].rows = next;
        pass->part[i].back = next + each;
    }
    for (size_t i = 0; !pass->shares && i < layers; i++, next += 2 * each) {
        pass->layer[i].mixer = next;
        pass->layer[i].feedforward = next + each;
    }
    return CARRY_OK;
}

static carry_status open_part(carry_lm_pass *pass, const carry_lm_sublayer *own) {
    carry_lm_opened *at = &pass->part[own->kind];
    if (at->part == NULL) {
        CARRY_TRY(own->part->open != NULL ? own->part->open(pass, &at->opened) : CARRY_OK);
        at->part = own->part;
    }
    return CARRY_OK;
}

static carry_status open_parts(carry_lm_pass *pass) {
    for (int64_t i = 0; i < pass->lm->config.num_hidden_layers; i++) {
        CARRY_TRY(open_part(pass, &pass->lm->layer[i].mixer));
        CARRY_TRY(open_part(pass, &pass->lm->layer[i].feedforward));
    }
    return make_structs(pass);
}

static void describe(carry_lm_pass *pass) {
    size_t used = (size_t)snprintf(pass->about, sizeof pass->about, "%.3g MB of activations in %s%s; layers by ",
                                   1e-6 * (double)pass->memory, carry_dtype_name(pass->options.dtype),
                                   pass->options.recompute ? ", layers done again in backward" : "");
    bool first = true;
    for (int i = 0; i < CARRY_LM_PARTS && used < sizeof pass->about; i++) {
        if (pass->part[i].part != NULL && pass->part[i].part->plan != NULL) {
            used += (size_t)snprintf(pass->about + used, sizeof pass->about - used, "%s%s", first ? "" : "; ",
                                     pass->part[i].part->plan(pass->part[i].opened));
            first = false;
        }
    }
}

carry_status carry_lm_pass_new(carry_lm *lm, carry_lm_pass **made, const carry_lm_pass_options *options) {
    carry_ctx *ctx = lm->ctx;
    *made = NULL;
    CARRY_TRY(check_options(ctx, options));
    /* Products in bf16 need both operands in bf16. On the CPU f16 is widened, and f32 weights cost nothing. */
    if (options->dtype == CARRY_BF16 || (lm->own.device != 0 && options->dtype != CARRY_F32)) {
        CARRY_TRY(carry_parameters_want_low(&lm->own, options->dtype));
        CARRY_TRY(lm->adapter != NULL ? carry_parameters_want_low(&lm->adapter->own, options->dtype) : CARRY_OK);
    }
    carry_lm_pass *pass = calloc(1, sizeof *pass);
    if (pass == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a pass");
    }
    pass->ctx = ctx;
    pass->lm = lm;
    pass->options = *options;
    pass->tokens = pass->most = options->batch * options->tokens;
    pass->shares = options->recompute || options->forward_only;
    carry_status status = open_parts(pass);
    status = status == CARRY_OK && options->same_bits ? carry_lm_open_fixed(pass) : status;
    if (status == CARRY_OK && options->pooled > 0 && lm->config.norm_plus_one) {
        status = carry_lm_factors_new(pass);
    }
    if (status == CARRY_OK && pass->part[CARRY_LM_MIXERS + CARRY_LM_FEEDFORWARD_EXPERTS].part != NULL) {
        status = carry_lm_nan_new(pass);
    }
    if (status == CARRY_OK) {
        carry_arena count = carry_arena_over(NULL, 0);
        carry_lm_pass_lay_out(pass, &count);
        if (!carry_arena_total(&count, &pass->memory)) {
            status = carry_fail(ctx, CARRY_ESIZE, "the activations of this batch are larger than memory can be");
        }
    }
    if (status != CARRY_OK) {
        release(pass);
        return status;
    }
    describe(pass);
    *made = pass;
    return CARRY_OK;
}

void carry_lm_pass_free(carry_lm_pass *pass) {
    if (pass != NULL) {
        release(pass);
    }
}

carry_status carry_lm_pass_take(const carry_lm_pass *pass, void **memory) {
    const int device = pass->lm->own.device;
    if (carry_device_alloc(pass->ctx, memory, device, pass->memory) == CARRY_OK) {
        return CARRY_OK;
    }
    size_t available = 0;
    size_t total = 0;
    (void)carry_device_memory(pass->ctx, &available, &total, device);
    return carry_fail(pass->ctx, CARRY_EMEMORY,
                      "out of memory: the activations of %" PRId64 " rows of %" PRId64
                      " tokens need %.2f GB, and %.2f GB are free: about %.0f tokens would fit",
                      pass->options.batch, pass->options.tokens, 1e-9 * (double)pass->memory, 1e-9 * (double)available,
                      (double)available / (double)pass->memory * (double)pass->tokens);
}

void carry_lm_pass_give(const carry_lm_pass *pass, void *memory) {
    carry_device_free(pass->ctx, pass->lm->own.device, memory);
}

size_t carry_lm_pass_memory(const carry_lm_pass *pass) {
    return pass->memory;
}

const char *carry_lm_pass_about(const carry_lm_pass *pass) {
    return pass->about;
}

static carry_status check_i64(carry_ctx *ctx, const char *name, const carry_tensor *tensor, int rank,
                              const int64_t *shape, int device) {
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, rank, shape));
    if (tensor->dtype != CARRY_I64 || !carry_tensor_is_packed(tensor, 0)) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s must be packed i64", name);
    }
    if (tensor->device != 0 && tensor->device != device) {
        return carry_fail(ctx, CARRY_EDEVICE,
                          "%s is on device %d: it is given in host memory, or on the model's device %d", name,
                          tensor->device, device);
    }
    return CARRY_OK;
}

static carry_status check_args(const carry_lm_pass *pass, const carry_lm_args *args) {
    carry_ctx *ctx = pass->ctx;
    const carry_lm_pass_options *o = &pass->options;
    const int64_t rows[] = {o->batch, o->tokens, pass->lm->config.vocab_size};
    const int64_t wanted = args->places != NULL ? carry_lm_places_wanted(args->places) : o->batch;
    const int64_t lasts[] = {wanted, pass->lm->config.vocab_size};
    const int device = pass->lm->own.device;
    CARRY_TRY(check_i64(ctx, "ids", &args->ids, 2, rows, device));
    if (args->labels.data != NULL) {
        CARRY_TRY(check_i64(ctx, "labels", &args->labels, 2, rows, device));
    }
    if (args->labels.device != 0 && (args->scale == 0.0f || args->counted != NULL)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "labels on a device are not counted: scale must be given");
    }
    if (args->total.data != NULL && args->loss != NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "the loss is added to total or read, not both");
    }
    if (args->logits.data != NULL) {
        CARRY_TRY(carry_tensor_expect(ctx, "logits", &args->logits, args->last_logits ? 2 : 3,
                                      args->last_logits ? lasts : rows));
    }
    if ((args->cu_seqlens.data != NULL) != (o->sequences > 0)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "cu_seqlens is %s and the pass has %" PRId64 " packed sequences",
                          args->cu_seqlens.data != NULL ? "given" : "missing", o->sequences);
    }
    const bool learns = pass->lm->own.gradients != NULL || pass->lm->adapter != NULL;
    if (args->backward && (o->forward_only || args->labels.data == NULL || !learns)) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "backward needs labels, a pass that is not forward_only, and carry_lm_want_gradients");
    }
    if (args->state != NULL && (args->backward || o->sequences > 0 || args->state->batch != o->batch)) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a state of %" PRId64 " sequences does not go with backward, with packed sequences or with a "
                          "batch of %" PRId64,
                          args->state->batch, o->batch);
    }
    if (args->places != NULL &&
        (args->state != NULL || args->backward || (args->logits.data != NULL && !args->last_logits))) {
        return carry_fail(ctx, CARRY_EARGUMENT, "places go with last_logits, and not with a state or backward");
    }
    if (args->places != NULL && args->labels.data != NULL && (args->losses.data == NULL || !o->scores)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "places with labels need losses, and a pass with scores");
    }
    if (args->losses.data != NULL) {
        if (args->places == NULL || args->loss != NULL || args->total.data != NULL) {
            return carry_fail(ctx, CARRY_EARGUMENT, "losses of tokens go with places, and not with their sum");
        }
        CARRY_TRY(carry_tensor_expect(ctx, "losses", &args->losses, 1, &o->tokens));
    }
    CARRY_TRY(carry_lm_heads_check(pass, args));
    if (args->last_logits && o->sequences > 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "last_logits is not for packed sequences");
    }
    return CARRY_OK;
}

/* Makes an input of a call, which was checked before, available on the model's device: uploads it unless it is already
   on that device. */
static carry_status bring(const carry_lm_pass *pass, carry_tensor *here, carry_tensor from, int64_t count) {
    const carry_tensor flat = carry_reshape_1d(from, count);
    if (pass->lm->own.device == from.device || from.data == NULL) {
        *here = flat;
        return CARRY_OK;
    }
    return carry_copy(pass->ctx, *here, flat);
}

static carry_status bring_all(carry_lm_pass *pass, const carry_lm_args *args, int64_t *counted) {
    const int64_t vocabulary = pass->lm->config.vocab_size;
    const carry_tensor cuts = args->cuts.data != NULL ? args->cuts : args->cu_seqlens;
    if (args->ids.device == 0) {
        CARRY_TRY(carry_check_ids(pass->ctx, args->ids, vocabulary));
    }
    CARRY_TRY(bring(pass, &pass->ids, args->ids, pass->tokens));
    CARRY_TRY(bring(pass, &pass->cuts, cuts, cuts.shape[0]));
    if (args->labels.data == NULL) {
        return CARRY_OK;
    }
    if (args->labels.device == 0) {
        CARRY_TRY(carry_check_targets(pass->ctx, counted, args->labels, vocabulary));
    }
    return bring(pass, &pass->labels, args->labels, pass->tokens);
}

static carry_status fill_factors(carry_lm_pass *pass) {
    const carry_lm_config *c = &pass->lm->config;
    const carry_tensor factor[] = {pass->embedding_factor, pass->residual_factor, pass->logits_factor};
    const double value[] = {c->embedding_factor, c->residual_factor, 1.0 / c->logits_divisor};
    for (int i = 0; i < 3; i++) {
        if (factor[i].data != NULL) {
            CARRY_TRY(carry_fill(pass->ctx, factor[i], value[i]));
        }
    }
    return CARRY_OK;
}

static carry_status tell_ready(const carry_lm_pass *pass, const carry_lm_args *args, int64_t layer) {
    if (args->ready == NULL) {
        return CARRY_OK;
    }
    int64_t first = 0;
    int64_t count = 0;
    (pass->lm->adapter != NULL ? carry_lm_adapter_range : carry_lm_range)(pass->lm, layer, &first, &count);
    return count > 0 ? args->ready(args->user, first, count) : CARRY_OK;
}

carry_status carry_lm_begin(carry_lm_pass *pass, const carry_lm_args *args) {
    if (args->state != NULL) {
        CARRY_TRY(carry_lm_state_reserve(args->state, pass->options.tokens, pass->options.dtype));
    }
    for (int i = 0; i < CARRY_LM_PARTS; i++) {
        if (pass->part[i].part != NULL && pass->part[i].part->begin != NULL) {
            CARRY_TRY(pass->part[i].part->begin(pass, pass->part[i].opened, args));
        }
    }
    return CARRY_OK;
}

static carry_status run(carry_lm_pass *pass, const carry_lm_args *args, void *memory, size_t bytes) {
    carry_ctx *ctx = pass->ctx;
    carry_lm *lm = pass->lm;
    int64_t layers = lm->config.num_hidden_layers;
    CARRY_SPAN(ctx, "model", "run");
    if (pass->options.pooled > 0) {
        CARRY_TRY(carry_lm_places_check(pass, args->places));
        pass->options.tokens = pass->tokens = args->places->starts[args->places->sequences];
    }
    CARRY_TRY(check_args(pass, args));
    if (memory == NULL || bytes < pass->memory) {
        return carry_fail(ctx, CARRY_EWORKSPACE, "this pass needs %zu bytes and was given %zu", pass->memory,
                          memory != NULL ? bytes : 0);
    }
    carry_arena arena = carry_arena_over(memory, bytes);
    carry_lm_pass_lay_out(pass, &arena);
    int64_t counted = 0;
    CARRY_TRY(bring_all(pass, args, &counted));
    CARRY_TRY(args->begun ? CARRY_OK : carry_lm_begin(pass, args));
    if (pass->ones.data != NULL) {
        CARRY_TRY(carry_fill(ctx, pass->ones, 1.0));
    }
    CARRY_TRY(fill_factors(pass));
    CARRY_TRY(carry_lm_adapter_begin(pass));
    CARRY_TRY(carry_lm_fp8_begin(pass, args));
    CARRY_TRY(carry_embed(ctx, pass->h[0], carry_lm_weight(lm->tables, lm->tables->embeddings), pass->ids));
    CARRY_TRY(carry_lm_scale(pass, pass->h[0], pass->h[0], pass->embedding_factor));
    CARRY_TRY(carry_lm_is_heads(lm) ? carry_lm_heads_join(pass, args) : CARRY_OK);
    for (int64_t layer = 0; layer < layers; layer++) {
        CARRY_TRY(carry_lm_layer_forward(pass, args, layer, false));
    }
    if (args->state != NULL) {
        carry_lm_state_advance(args->state, pass->options.tokens);
        if (args->ids.device == 0) {
            carry_lm_state_tell(args->state, args->ids.data, pass->options.tokens);
        }
    }
    CARRY_TRY(carry_lm_head(pass, args, counted));
    if (!args->backward) {
        return CARRY_OK;
    }
    CARRY_TRY(tell_ready(pass, args, layers));
    for (int64_t layer = layers - 1; layer >= 0; layer--) {
        CARRY_TRY(carry_lm_layer_backward(pass, args, layer));
        CARRY_TRY(tell_ready(pass, args, layer));
    }
    CARRY_TRY(carry_lm_scale(pass, pass->back.dh, pass->back.dh, pass->embedding_factor));
    if (lm->own.gradients != NULL) {
        CARRY_TRY(carry_embed_backward(ctx, carry_lm_gradient(lm, lm->embeddings), pass->back.dh, pass->ids));
    }
    return tell_ready(pass, args, -1);
}

carry_status carry_lm_run(carry_lm_pass *pass, const carry_lm_args *args, void *memory, size_t bytes) {
    if (!pass->options.same_bits) {
        return run(pass, args, memory, bytes);
    }
    carry_fixed_rows_set(pass->ctx, pass->fixed, pass->fixed_bytes);
    const carry_status status = run(pass, args, memory, bytes);
    carry_fixed_rows_set(pass->ctx, NULL, 0);
    return status;
}
