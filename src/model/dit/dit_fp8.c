/* The products of a video transformer's blocks in 8-bit floats. */
#include "model/dit/dit_fp8.h"

#include <stdlib.h>

#include "carry/device.h"
#include "core/error.h"
#include "core/tensor.h"

static const carry_dit_slot products[] = {CARRY_DIT_Q,       CARRY_DIT_K,       CARRY_DIT_V,      CARRY_DIT_O,
                                          CARRY_DIT_CROSS_Q, CARRY_DIT_CROSS_O, CARRY_DIT_FFN_UP, CARRY_DIT_FFN_DOWN};
#define PRODUCTS ((int64_t)(sizeof products / sizeof *products))

/* Codes of Q, K and V follow each other, and so do their scales. */
struct carry_dit_fp8 {
    unsigned char *codes; /* [blocks][products], on the model's device */
    float *scales;
    carry_fp8_rows weight[]; /* [blocks][PRODUCTS] */
};

static carry_tensor weight_of(const carry_dit *dit, int64_t block, int64_t product) {
    return carry_dit_product(dit, dit->block[block][products[product]], CARRY_BF16);
}

static int64_t place_of(carry_dit_slot slot) {
    for (int64_t i = 0; i < PRODUCTS; i++) {
        if (products[i] == slot) {
            return i;
        }
    }
    return -1;
}

static carry_status check(carry_dit *dit) {
    for (int64_t i = 0; i < PRODUCTS; i++) {
        const carry_tensor W = weight_of(dit, 0, i);
        if (W.dtype != CARRY_BF16 || W.shape[0] % 16 != 0 || W.shape[1] % 16 != 0) {
            return carry_fail(dit->ctx, CARRY_ESHAPE,
                              "8-bit products need widths that are multiples of 16: this model has a product of "
                              "%lld x %lld",
                              (long long)W.shape[0], (long long)W.shape[1]);
        }
    }
    return CARRY_OK;
}

carry_status carry_dit_fp8_refresh(carry_dit *dit) {
    for (int64_t i = 0; dit->fp8 != NULL && i < dit->config.num_layers * PRODUCTS; i++) {
        CARRY_TRY(carry_fp8_rows_round(dit->ctx, dit->fp8->weight[i], weight_of(dit, i / PRODUCTS, i % PRODUCTS)));
    }
    return CARRY_OK;
}

carry_status carry_dit_fp8_open(carry_dit *dit) {
    const int64_t all = dit->config.num_layers * PRODUCTS;
    int64_t codes = 0;
    int64_t rows = 0;
    void *memory;
    CARRY_TRY(carry_parameters_want_low(&dit->own, CARRY_BF16));
    CARRY_TRY(check(dit));
    for (int64_t i = 0; i < PRODUCTS; i++) {
        const carry_tensor W = weight_of(dit, 0, i);
        codes += W.shape[0] * W.shape[1] * dit->config.num_layers;
        rows += W.shape[0] * dit->config.num_layers;
    }
    carry_dit_fp8 *fp8 = calloc(1, sizeof *fp8 + (size_t)all * sizeof fp8->weight[0]);
    if (fp8 == NULL || carry_device_alloc(dit->ctx, &memory, dit->own.device,
                                          (size_t)codes + (size_t)rows * sizeof(float)) != CARRY_OK) {
        free(fp8);
        return carry_fail(dit->ctx, CARRY_EMEMORY, "out of memory: %.1f GB for weights in 8-bit floats",
                          (double)codes * 1e-9);
    }
    fp8->codes = memory;
    fp8->scales = (float *)(void *)(fp8->codes + codes);
    codes = rows = 0;
    for (int64_t i = 0; i < all; i++) {
        const carry_tensor W = weight_of(dit, i / PRODUCTS, i % PRODUCTS);
        fp8->weight[i] = (carry_fp8_rows){.codes = fp8->codes + codes,
                                          .scale = fp8->scales + rows,
                                          .rows = W.shape[0],
                                          .columns = W.shape[1],
                                          .device = dit->own.device};
        codes += W.shape[0] * W.shape[1];
        rows += W.shape[0];
    }
    carry_dit_fp8_close(dit);
    dit->fp8 = fp8;
    return carry_dit_fp8_refresh(dit);
}

void carry_dit_fp8_close(carry_dit *dit) {
    if (dit->fp8 != NULL) {
        carry_device_free(dit->ctx, dit->own.device, dit->fp8->codes);
        free(dit->fp8);
        dit->fp8 = NULL;
    }
}

carry_fp8_rows carry_dit_fp8_take(const carry_dit *dit, carry_arena *arena, int64_t most) {
    carry_fp8_rows room = {.device = dit->own.device};
    if (dit->fp8 != NULL) {
        for (int64_t i = 0; i < PRODUCTS; i++) {
            const int64_t columns = dit->fp8->weight[i].columns;
            room.columns = columns > room.columns ? columns : room.columns;
        }
        room.rows = most;
        room.codes = carry_arena_take(arena, (size_t)(most * room.columns), 1);
        room.scale = carry_arena_take(arena, (size_t)most, sizeof(float));
    }
    return room;
}

carry_status carry_dit_fp8_affine(const carry_dit_call *call, int64_t block, carry_dit_slot slot, int slots,
                                  carry_tensor y, carry_tensor x, carry_tensor b, carry_activation activation,
                                  bool accumulate, bool *done) {
    const carry_dit *dit = call->dit;
    const int64_t place = place_of(slot);
    *done = dit->fp8 != NULL && call->codes.codes != NULL && x.dtype == CARRY_BF16 && place >= 0;
    if (!*done) {
        return CARRY_OK;
    }
    carry_fp8_rows W = dit->fp8->weight[block * PRODUCTS + place];
    carry_fp8_rows codes = call->codes;
    W.rows *= slots;
    codes.rows = x.shape[0];
    codes.columns = x.shape[1];
    CARRY_TRY(carry_fp8_rows_round(dit->ctx, codes, x));
    return carry_fp8_rows_affine(dit->ctx, y, codes, W, b, activation, accumulate);
}
