/* Factors of norms that add 1 to their weights, for passes that only read a model. */
#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/lm_pass.h"

#define NORMS_OF_LAYER 4 /* before the mixer, before the feed-forward, of queries, of keys */
#define OTHER_NORMS 3    /* the last, and two of multi-token heads */

struct carry_lm_factors {
    int64_t most, count, widest;
    void *memory;
    struct {
        const void *w;
        carry_tensor factor;
    } of[];
};

void carry_lm_factors_free(carry_lm_pass *pass) {
    if (pass->factors != NULL) {
        carry_device_free(pass->ctx, pass->lm->own.device, pass->factors->memory);
        free(pass->factors);
    }
}

carry_status carry_lm_factors_new(carry_lm_pass *pass) {
    const carry_lm_config *c = &pass->lm->config;
    const int64_t most = NORMS_OF_LAYER * c->num_hidden_layers + OTHER_NORMS;
    struct carry_lm_factors *f = calloc(1, sizeof *f + (size_t)most * sizeof f->of[0]);
    if (f == NULL) {
        return carry_fail(pass->ctx, CARRY_EMEMORY, "out of memory: a pass");
    }
    pass->factors = f;
    f->most = most;
    f->widest = c->hidden_size > c->attention.head_dim ? c->hidden_size : c->attention.head_dim;
    const int64_t sizes[] = {most, f->widest};
    size_t bytes;
    if (!carry_size_product(&bytes, sizes, 2, sizeof(float))) {
        return carry_fail(pass->ctx, CARRY_ESIZE, "the norms of the model are larger than memory can be");
    }
    return carry_device_alloc(pass->ctx, &f->memory, pass->lm->own.device, bytes);
}

carry_status carry_lm_factor(carry_lm_pass *pass, carry_tensor w, carry_tensor *factor) {
    struct carry_lm_factors *f = pass->factors;
    for (int64_t i = 0; f != NULL && i < f->count; i++) {
        if (f->of[i].w == w.data) {
            *factor = f->of[i].factor;
            return CARRY_OK;
        }
    }
    const carry_tensor ones = carry_slice(pass->ones, 0, w.shape[0]);
    *factor = carry_slice(pass->factor, 0, w.shape[0]);
    if (f != NULL && f->count < f->most && w.shape[0] <= f->widest) {
        float *data = (float *)f->memory + f->count * f->widest;
        *factor = carry_view_on(pass->lm->own.device, data, CARRY_F32, 1, w.shape);
        f->of[f->count].w = w.data;
        f->of[f->count++].factor = *factor;
    }
    return carry_elementwise(pass->ctx, *factor, ones, w, CARRY_ADD);
}
