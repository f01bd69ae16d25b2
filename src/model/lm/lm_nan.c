/* The first NaN in the scores of a router. The operator stores its place in a number in the pass's memory, on its
   device, so that a pass need not wait for it; it is read after logits or a loss were not finite. */
#include <inttypes.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/host.h"
#include "model/lm/lm_pass.h"

#define ROW_BITS 40 /* rows of a pass are fewer than 2^32, and layers at most 4096 */

static carry_tensor record_of(const carry_lm_pass *pass) {
    return carry_view_on(pass->lm->own.device, pass->first_nan, CARRY_I64, 1, (const int64_t[]){1});
}

static carry_status clear(const carry_lm_pass *pass) {
    static const int64_t none = CARRY_ROUTER_NO_NAN;
    return carry_copy(pass->ctx, record_of(pass), carry_view_1d((void *)(uintptr_t)&none, CARRY_I64, 1));
}

carry_status carry_lm_nan_new(carry_lm_pass *pass) {
    void *memory = NULL;
    CARRY_TRY(carry_device_alloc(pass->ctx, &memory, pass->lm->own.device, sizeof *pass->first_nan));
    pass->first_nan = memory;
    CARRY_TRY(clear(pass));
    return carry_stream_wait(pass->ctx, pass->lm->own.device, carry_ctx_stream(pass->ctx, pass->lm->own.device));
}

void carry_lm_nan_free(carry_lm_pass *pass) {
    if (pass->first_nan != NULL) {
        carry_device_free(pass->ctx, pass->lm->own.device, pass->first_nan);
    }
}

carry_router carry_lm_nan_router(const carry_lm_call *call) {
    carry_router router = call->pass->lm->config.experts.router;
    router.first_nan = call->pass->first_nan;
    router.mark = (call->layer << ROW_BITS) + call->first;
    return router;
}

carry_status carry_lm_router_nan(const carry_lm_pass *pass, int64_t *layer, int64_t *row) {
    int64_t found = CARRY_ROUTER_NO_NAN;
    *layer = *row = -1;
    if (pass->first_nan == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_read(pass->ctx, carry_view_1d(&found, CARRY_I64, 1), record_of(pass)));
    if (found == CARRY_ROUTER_NO_NAN) {
        return CARRY_OK;
    }
    *layer = found >> ROW_BITS;
    *row = found & (((int64_t)1 << ROW_BITS) - 1);
    return clear(pass);
}

carry_status carry_lm_router_check(const carry_lm_pass *pass) {
    int64_t layer;
    int64_t token;
    CARRY_TRY(carry_lm_router_nan(pass, &layer, &token));
    return layer < 0 ? CARRY_OK
                     : carry_fail(pass->ctx, CARRY_ERANGE,
                                  "layer %" PRId64 ", token %" PRId64 ": the router's scores are NaN", layer, token);
}
