/* The only list of kernel sets, and the choice among them. */
#include <string.h>

#include "carry/ops.h"
#include "core/context.h"
#include "ops/kernels/kernels.h"
#include "ops/product/packed.h"

extern const carry_kernels carry_kernels_plain;
#if defined(__aarch64__)
extern const carry_kernels carry_kernels_neon;
#elif defined(__x86_64__)
extern const carry_kernels carry_kernels_avx2;
extern const carry_kernels carry_kernels_avx512;
#endif

static const carry_kernels *const table[] = {
    &carry_kernels_plain,
#if defined(__aarch64__)
    &carry_kernels_neon,
#elif defined(__x86_64__)
    &carry_kernels_avx2,
    &carry_kernels_avx512,
#endif
};

#define TABLE_COUNT ((int)(sizeof table / sizeof table[0]))

/* If ctx->kernels names a kernel set, *bf16 is NULL: bf16 operands are converted to f32, so that results do not depend
   on other features of the processor. If it names a bf16 product (bf16.h), that product is used, with the best set for
   everything else. If it is NULL, the best set and the best bf16 product are used. */
static carry_status find(carry_ctx *ctx, const carry_kernels **found, const carry_bf16 **bf16) {
    *bf16 = ctx->kernels == NULL ? carry_bf16_best() : carry_bf16_named(ctx->kernels);
    for (int i = TABLE_COUNT - 1; i >= 0; i--) {
        bool any = ctx->kernels == NULL || *bf16 != NULL;
        if (any ? table[i]->usable() : strcmp(ctx->kernels, table[i]->name) == 0) {
            *found = table[i];
            return CARRY_OK;
        }
    }
    return carry_fail(ctx, CARRY_ENOTFOUND,
                      "there are no kernels named '%s' in this build (carry list kernels shows them)", ctx->kernels);
}

const carry_kernels *carry_kernels_at(int index) {
    return index >= 0 && index < TABLE_COUNT ? table[index] : NULL;
}

carry_status carry_kernels_of(carry_ctx *ctx, const carry_kernels **kernels) {
    *kernels = carry_packed_kernels(ctx);
    if (*kernels != NULL) {
        return CARRY_OK;
    }
    const carry_bf16 *bf16;
    CARRY_TRY(find(ctx, kernels, &bf16));
    if (!(*kernels)->usable()) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "this processor cannot run the kernels '%s' (%s)", (*kernels)->name,
                          (*kernels)->about);
    }
    if (bf16 != NULL && bf16->missing() != NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "the kernels '%s' (%s) cannot be used: %s", bf16->name, bf16->about,
                          bf16->missing());
    }
    (void)carry_blas_name(); /* limits OpenBLAS to the calling thread before its first use */
    return carry_packed_prepare(ctx, *kernels, bf16);
}

const char *carry_kernels_name(int index) {
    const carry_kernels *kernels = carry_kernels_at(index);
    return kernels != NULL ? kernels->name : NULL;
}

const char *carry_kernels_about(int index) {
    const carry_kernels *kernels = carry_kernels_at(index);
    return kernels != NULL ? kernels->about : NULL;
}

bool carry_kernels_usable(int index) {
    const carry_kernels *kernels = carry_kernels_at(index);
    return kernels != NULL && kernels->usable();
}

const char *carry_ctx_kernels(carry_ctx *ctx) {
    const carry_kernels *kernels;
    return carry_kernels_of(ctx, &kernels) == CARRY_OK ? kernels->name : "none";
}
