/* Packs weights once. A product of many tokens packs its weight into panels that stay in a cache while it runs; if a
   prompt is read in pieces, every piece packs again. Keeping the panels avoids that. They take as much memory as the
   weights, in addition to the mapped file, which products of up to four tokens still use directly. Keeping panels
   changes results only for 9 to 24 tokens at once, whose last few tokens are otherwise summed in another order
   (ops/product/few.c).

   Packing 1 GB took 1.1 s on one core, mostly because the system clears the memory, and saves 0.1 s for every 512
   tokens: it pays from PAYS_FROM tokens on. With AMX, whose products take a quarter of the time, packing takes an
   eighth of the time of a prompt: it is then done at once, when the model is opened to generate. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/span.h"
#include "model/lm/lm.h"
#include "ops/product/bf16.h"
#include "ops/product/kept.h"

#define PAYS_FROM 8192
#define LARGE_PAGE ((size_t)1 << 21)

/* True if memory has space for the panels in addition to the mapped files, with an eighth left over. */
static bool has_room(const carry_lm *lm, size_t bytes) {
    const double mapped = 2.0 * (double)lm->own.trained;
    const double available = carry_number_in("/proc/meminfo", "MemAvailable:", 1024.0);
    const double total = carry_number_in("/proc/meminfo", "MemTotal:", 1024.0);
    const double limit = carry_number_in("/sys/fs/cgroup/memory.max", "", 1.0);
    const double used = carry_number_in("/sys/fs/cgroup/memory.current", "", 1.0);
    const bool fits = available - mapped - total / 8.0 >= (double)bytes;
    return fits && (limit < 0.0 || limit - used - mapped >= (double)bytes);
}

typedef carry_status (*visit)(carry_lm *lm, carry_tensor W, size_t *at);

static carry_status count_weight(carry_lm *lm, carry_tensor W, size_t *at) {
    *at += carry_kept_bytes(carry_bf16_of(lm->ctx), W);
    return CARRY_OK;
}

static carry_status pack_weight(carry_lm *lm, carry_tensor W, size_t *at) {
    const size_t bytes = carry_kept_bytes(carry_bf16_of(lm->ctx), W);
    if (bytes > 0) {
        CARRY_TRY(carry_kept_add(lm->ctx, carry_bf16_of(lm->ctx), W, (char *)lm->panels + *at));
        *at += bytes;
    }
    return CARRY_OK;
}

static carry_status each_weight_of(carry_lm *lm, const carry_lm_sublayer *own, visit seen, size_t *at) {
    for (int slot = 0; slot < own->part->slots; slot++) {
        const carry_lm_slot *s = &own->slot[slot];
        if (s->parameter >= 0 && lm->own.parameter[s->parameter].rank == 2) {
            const carry_tensor whole = carry_parameters_product(&lm->own, s->parameter);
            CARRY_TRY(seen(lm, s->rows > 0 ? carry_slice(whole, s->first, s->rows) : whole, at));
        }
    }
    return CARRY_OK;
}

/* Visits the weights of all layers and the head in the form in which their products name them. */
static carry_status each_weight(carry_lm *lm, visit seen, size_t *at) {
    CARRY_TRY(lm->head >= 0 ? seen(lm, carry_parameters_product(&lm->own, lm->head), at) : CARRY_OK);
    for (int64_t i = 0; i < lm->config.num_hidden_layers; i++) {
        CARRY_TRY(each_weight_of(lm, &lm->layer[i].mixer, seen, at));
        CARRY_TRY(each_weight_of(lm, &lm->layer[i].feedforward, seen, at));
    }
    return CARRY_OK;
}

static carry_status pack_all(carry_lm *lm) {
    CARRY_SPAN(lm->ctx, "model", "pack");
    size_t bytes = 0;
    size_t at = 0;
    CARRY_TRY(each_weight(lm, count_weight, &bytes));
    bytes = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    if (bytes == 0 || !has_room(lm, bytes)) {
        return CARRY_OK;
    }
    lm->panels = aligned_alloc(LARGE_PAGE, bytes);
    if (lm->panels == NULL) {
        return CARRY_OK; /* out of memory: continue without packing */
    }
    lm->panel_bytes = bytes;
    (void)madvise(lm->panels, bytes, MADV_HUGEPAGE); /* a hint: failure is not an error */
    return each_weight(lm, pack_weight, &at);
}

carry_status carry_lm_pack(carry_lm *lm, carry_dtype dtype, int64_t tokens) {
    if (lm->is_settled || lm->own.device != 0 || dtype != CARRY_BF16 || !lm->own.reads_only) {
        return CARRY_OK;
    }
    const carry_kernels *kernels;
    CARRY_TRY(carry_kernels_of(lm->ctx, &kernels)); /* decides how bf16 is multiplied */
    const carry_bf16 *by = carry_bf16_of(lm->ctx);
    lm->prompted += tokens;
    if (lm->prompted <= (by != NULL && by->whole ? -1 : PAYS_FROM)) {
        return CARRY_OK;
    }
    lm->is_settled = true;
    return pack_all(lm);
}

void carry_lm_unpack(carry_lm *lm) {
    if (lm->panels != NULL) {
        carry_kept_forget(lm->ctx, lm->panels, lm->panel_bytes);
        free(lm->panels);
        lm->panels = NULL;
    }
}
