/* The panels that a context keeps: a list sorted by the addresses of the weights. */
#include "ops/product/kept.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/threads.h"
#include "ops/product/packed.h"

typedef struct entry {
    const void *weight;
    int64_t rows, k;
    const carry_bf16 *by;
    const uint16_t *panels;
} entry;

struct carry_kept {
    int64_t count, room;
    entry *of;
};

static int64_t pieces(int64_t whole, int64_t piece) {
    return (whole + piece - 1) / piece;
}

static int64_t padded(int64_t k, const carry_bf16 *by) {
    return pieces(k, by->unit) * by->unit;
}

void carry_kept_free(carry_kept *kept) {
    if (kept != NULL) {
        free(kept->of);
        free(kept);
    }
}

size_t carry_kept_bytes(const carry_bf16 *by, carry_tensor W) {
    if (by == NULL || W.device != 0 || W.dtype != CARRY_BF16 || W.rank != 2 || W.shape[0] < 4 || W.shape[1] < 16) {
        return 0;
    }
    const int64_t sizes[] = {pieces(W.shape[0], by->columns) * by->columns, padded(W.shape[1], by)};
    size_t bytes;
    return carry_size_product(&bytes, sizes, 2, sizeof(uint16_t)) ? (bytes + 63) / 64 * 64 : 0;
}

/* The index of the first entry that does not have a smaller address, or the same address and fewer rows. */
static int64_t place_of(const carry_kept *kept, const void *weight, int64_t rows) {
    int64_t low = 0;
    int64_t high = kept != NULL ? kept->count : 0;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const entry *e = &kept->of[middle];
        const bool before = (uintptr_t)e->weight < (uintptr_t)weight || (e->weight == weight && e->rows < rows);
        low = before ? middle + 1 : low;
        high = before ? high : middle;
    }
    return low;
}

typedef struct job {
    carry_tensor W;
    const carry_bf16 *by;
    uint16_t *panels;
} job;

static void pack_panels(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const int64_t k = j->W.shape[1];
    for (int64_t panel = begin; panel < end; panel++) {
        const int64_t first = panel * j->by->columns;
        const int64_t lines = j->W.shape[0] - first < j->by->columns ? j->W.shape[0] - first : j->by->columns;
        j->by->pack_b(j->panels + first * padded(k, j->by), (const uint16_t *)j->W.data + first * k, k, false, lines,
                      k);
    }
}

static carry_status make_room(carry_ctx *ctx, carry_kept **list) {
    *list = *list != NULL ? *list : calloc(1, sizeof **list);
    carry_kept *kept = *list;
    if (kept == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a list of packed weights");
    }
    if (kept->count < kept->room) {
        return CARRY_OK;
    }
    const int64_t room = kept->room * 2 + 64;
    entry *more = realloc(kept->of, (size_t)room * sizeof *more);
    if (more == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a list of %lld packed weights", (long long)room);
    }
    kept->of = more;
    kept->room = room;
    return CARRY_OK;
}

carry_status carry_kept_add(carry_ctx *ctx, const carry_bf16 *by, carry_tensor W, void *panels) {
    carry_kept **list = carry_packed_kept(ctx);
    if (carry_kept_bytes(by, W) == 0 || list == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a weight of rank %d and type %s has no panels here", W.rank,
                          carry_dtype_name(W.dtype));
    }
    CARRY_TRY(make_room(ctx, list));
    carry_kept *kept = *list;
    job j = {.W = W, .by = by, .panels = panels};
    carry_parallel(ctx, pieces(W.shape[0], by->columns), 1, pack_panels, &j);
    const int64_t at = place_of(kept, W.data, W.shape[0]);
    memmove(kept->of + at + 1, kept->of + at, (size_t)(kept->count - at) * sizeof *kept->of);
    kept->of[at] = (entry){.weight = W.data, .rows = W.shape[0], .k = W.shape[1], .by = by, .panels = panels};
    kept->count++;
    return CARRY_OK;
}

void carry_kept_forget(carry_ctx *ctx, const void *panels, size_t bytes) {
    carry_kept **list = carry_packed_kept(ctx);
    carry_kept *kept = list != NULL ? *list : NULL;
    int64_t left = 0;
    for (int64_t i = 0; kept != NULL && i < kept->count; i++) {
        const uintptr_t at = (uintptr_t)kept->of[i].panels;
        if (at < (uintptr_t)panels || at >= (uintptr_t)panels + bytes) {
            kept->of[left++] = kept->of[i];
        }
    }
    if (kept != NULL) {
        kept->count = left;
    }
}

const uint16_t *carry_kept_find(carry_ctx *ctx, const carry_bf16 *by, const carry_mixed_product *p) {
    carry_kept **list = carry_packed_kept(ctx);
    const carry_kept *kept = list != NULL ? *list : NULL;
    if (kept == NULL || kept->count == 0 || !p->b.transposed || p->b.row != p->k) {
        return NULL;
    }
    const int64_t at = place_of(kept, p->b.data, p->n);
    const entry *e = at < kept->count ? &kept->of[at] : NULL;
    const bool is_it = e != NULL && e->weight == p->b.data && e->rows == p->n && e->k == p->k && e->by == by;
    return is_it ? e->panels : NULL;
}
