/* Adapters in a pass. The product of A and x is kept for backward for every target, unless backward computes the layers
   again. Slots that are rows of one parameter, such as q, k and v of a merged projection, share this product. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/span.h"
#include "core/tensor.h"
#include "model/lm/adapter.h"
#include "model/lm/lm_pass.h"
#include "ops/dropout.h"

typedef struct pair {
    carry_tensor A, B, dA, dB; /* B and dB: the rows of the slot */
    uint64_t stream;           /* of dropout */
    int64_t index;             /* of the pair of A and B */
} pair;

static carry_tensor rows_of(carry_tensor whole, const carry_lm_slot *slot) {
    return slot->rows > 0 ? carry_slice(whole, slot->first, slot->rows) : whole;
}

/* Finds the adapter of a slot; false if the slot is not a target. */
static bool find(const carry_lm_call *call, int slot, pair *of) {
    const carry_lm_adapter *adapter = call->pass->lm->adapter;
    const carry_lm_slot *at = &call->own->slot[slot];
    const int64_t a = adapter != NULL && at->parameter >= 0 ? adapter->a[at->parameter] : -1;
    if (a < 0) {
        return false;
    }
    carry_parameters *own = &call->pass->lm->adapter->own;
    *of = (pair){.A = carry_parameters_product(own, a),
                 .B = rows_of(carry_parameters_product(own, a + 1), at),
                 .dA = carry_parameters_view(own, own->gradients, a),
                 .dB = rows_of(carry_parameters_view(own, own->gradients, a + 1), at),
                 .stream = adapter->draw << 24 | (uint64_t)a,
                 .index = a / 2};
    return true;
}

static bool drops(const carry_lm_call *call) {
    return call->args->backward && call->pass->lm->adapter->options.dropout > 0.0;
}

/* y = dropout(x). The stream number determines which elements are dropped. */
static carry_status drop(const carry_lm_call *call, const pair *of, carry_tensor y, carry_tensor x) {
    const carry_adapter_options *o = &call->pass->lm->adapter->options;
    return carry_dropout(call->pass->ctx, y, x, o->dropout, o->seed, of->stream);
}

/* A view of the first `rows` rows of `width` elements in memory that has the size of the widest x. */
static carry_tensor wide(carry_tensor memory, int64_t rows, int64_t width) {
    carry_tensor view = memory;
    view.shape[0] = rows;
    view.shape[1] = view.stride[0] = width;
    return view;
}

/* Replaces *x by the input of A (after dropout) and computes *z = scale A x, unless *z was kept from forward or
   computed for the slot before. */
static carry_status reduce(const carry_lm_call *call, const pair *of, bool backward, carry_tensor *x, carry_tensor *z) {
    carry_lm_pass *pass = call->pass;
    const bool keeps = pass->adapter.kept.data != NULL;
    const bool has_z = (keeps && backward) || (pass->adapter.last == of->index && pass->adapter.last_x == x->data);
    pass->adapter.last = of->index;
    pass->adapter.last_x = x->data;
    if (drops(call)) {
        const carry_tensor kept = wide(pass->adapter.x, x->shape[0], x->shape[1]);
        CARRY_TRY(drop(call, of, kept, *x));
        *x = kept;
    }
    *z = keeps ? carry_slice(pass->adapter.kept, of->index * pass->most, x->shape[0])
               : carry_slice(pass->adapter.z, 0, x->shape[0]);
    if (has_z) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_linear(pass->ctx, *z, *x, of->A, false));
    return carry_lm_scale(pass, *z, *z, pass->adapter.scale);
}

carry_status carry_lm_adapt(const carry_lm_call *call, int slot, carry_tensor y, carry_tensor x) {
    pair of;
    carry_tensor z;
    if (x.shape[0] == 0 || !find(call, slot, &of)) {
        return CARRY_OK;
    }
    CARRY_SPAN(call->pass->ctx, "model", "adapter");
    CARRY_TRY(reduce(call, &of, false, &x, &z));
    return carry_linear(call->pass->ctx, y, z, of.B, true);
}

carry_status carry_lm_adapt_backward(const carry_lm_call *call, int slot, carry_tensor dx, carry_tensor dy,
                                     carry_tensor x) {
    carry_lm_pass *pass = call->pass;
    pair of;
    carry_tensor z;
    if (!find(call, slot, &of)) {
        return CARRY_OK;
    }
    CARRY_SPAN(pass->ctx, "model", "adapter backward");
    CARRY_TRY(reduce(call, &of, true, &x, &z));
    const carry_tensor dz = carry_slice(pass->adapter.dz, 0, x.shape[0]);
    CARRY_TRY(carry_linear_backward(pass->ctx, dz, of.dB, dy, z, of.B, false));
    CARRY_TRY(carry_lm_scale(pass, dz, dz, pass->adapter.scale));
    if (!drops(call)) {
        return carry_linear_backward(pass->ctx, dx, of.dA, dz, x, of.A, true);
    }
    const carry_tensor dkept = wide(pass->adapter.dx, x.shape[0], x.shape[1]);
    CARRY_TRY(carry_linear_backward(pass->ctx, dkept, of.dA, dz, x, of.A, false));
    CARRY_TRY(drop(call, &of, dkept, dkept));
    return carry_elementwise(pass->ctx, dx, dx, dkept, CARRY_ADD);
}

static int64_t widest(const carry_lm *lm) {
    int64_t most = 1;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const int64_t width = lm->adapter->a[i] >= 0 ? lm->own.parameter[i].shape[1] : 0;
        most = width > most ? width : most;
    }
    return most;
}

void carry_lm_adapter_take(carry_lm_pass *pass, carry_arena *arena) {
    const carry_lm_adapter *adapter = pass->lm->adapter;
    const carry_dtype dtype = pass->options.dtype;
    const carry_tensor absent = {0};
    if (adapter == NULL) {
        return;
    }
    const bool learns = !pass->options.forward_only;
    const bool drops_some = learns && adapter->options.dropout > 0.0;
    const int64_t kept[] = {adapter->own.parameters / 2 * pass->most, adapter->options.rank};
    pass->adapter.kept =
        learns && !pass->shares ? carry_arena_tensor(arena, pass->lm->own.device, dtype, 2, kept) : absent;
    pass->adapter.z = carry_lm_take(pass, arena, dtype, adapter->options.rank);
    pass->adapter.dz = learns ? carry_lm_take(pass, arena, dtype, adapter->options.rank) : absent;
    pass->adapter.x = drops_some ? carry_lm_take(pass, arena, dtype, widest(pass->lm)) : absent;
    pass->adapter.dx = drops_some ? carry_lm_take(pass, arena, dtype, widest(pass->lm)) : absent;
    pass->adapter.scale =
        carry_arena_tensor(arena, pass->lm->own.device, CARRY_F32, 1, (const int64_t[]){adapter->options.rank});
}

carry_status carry_lm_adapter_begin(carry_lm_pass *pass) {
    pass->adapter.last = -1;
    return pass->lm->adapter != NULL ? carry_fill(pass->ctx, pass->adapter.scale, pass->lm->adapter->scale) : CARRY_OK;
}
