/* Passes with same_bits: products in blocks of a fixed number of rows. */
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "model/lm/lm_pass.h"
#include "ops/linear.h"

/* Without a pool, results have the bits of a pooled pass in layers whose forward pass can go token by token. */
static carry_status check_fixed(const carry_lm_pass *pass) {
    static const char *const able[] = {"delta", "attention", "none", NULL};
    for (int64_t i = 0; pass->options.pooled == 0 && i < pass->lm->config.num_hidden_layers; i++) {
        const char *name = pass->lm->layer[i].mixer.part->name;
        int at = 0;
        while (able[at] != NULL && strcmp(able[at], name) != 0) {
            at++;
        }
        if (able[at] == NULL) {
            return carry_fail(pass->ctx, CARRY_EUNSUPPORTED,
                              "same_bits without a pool is for layers with the delta rule or attention, not %s", name);
        }
    }
    return pass->options.pooled > 0 || pass->options.forward_only
               ? CARRY_OK
               : carry_fail(pass->ctx, CARRY_EUNSUPPORTED, "same_bits is for passes without gradients");
}

carry_status carry_lm_open_fixed(carry_lm_pass *pass) {
    CARRY_TRY(check_fixed(pass));
    const carry_parameters *own = &pass->lm->own;
    int64_t in = 1;
    int64_t out = pass->lm->config.vocab_size; /* also for multi-token heads, which use another model's head */
    for (int64_t i = 0; i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        out = p->rank == 2 && p->shape[0] > out ? p->shape[0] : out;
        in = p->rank == 2 && p->shape[1] > in ? p->shape[1] : in;
    }
    pass->fixed_bytes = carry_fixed_rows_bytes(in, out);
    pass->fixed = own->device == 0 ? malloc(pass->fixed_bytes) : NULL;
    if (own->device != 0) {
        return carry_fail(pass->ctx, CARRY_EUNSUPPORTED, "same_bits works on the CPU only");
    }
    return pass->fixed != NULL ? CARRY_OK : carry_fail(pass->ctx, CARRY_EMEMORY, "out of memory: a pass");
}
