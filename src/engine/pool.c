/* Two stacks of free numbers, and the number of owners of each page. */
#include "engine/pool.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/memory.h"
#include "engine/runner.h"

/* A stack of the numbers count - 1 to 0, so that 0 is taken first. */
static int32_t *stack_of(int64_t count) {
    int32_t *stack = malloc(((size_t)count + 1) * sizeof *stack);
    for (int64_t i = 0; stack != NULL && i < count; i++) {
        stack[i] = (int32_t)(count - 1 - i);
    }
    return stack;
}

void carry_state_pool_close(carry_state_pool *pool) {
    free(pool->slot_stack);
    free(pool->page_stack);
    free(pool->slot_owners);
    free(pool->page_owners);
    *pool = (carry_state_pool){0};
}

carry_status carry_state_pool_open(carry_ctx *ctx, carry_state_pool *pool, int64_t slots, int64_t pages) {
    *pool = (carry_state_pool){0};
    if (slots < 1 || slots >= INT32_MAX || pages < 0 || pages >= INT32_MAX) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "a pool of %" PRId64 " slots and %" PRId64 " pages: expected 1 or more slots", slots, pages);
    }
    *pool = (carry_state_pool){.slots = slots,
                               .pages = pages,
                               .free_slots = slots,
                               .free_pages = pages,
                               .slot_stack = stack_of(slots),
                               .page_stack = stack_of(pages),
                               .slot_owners = calloc((size_t)slots, sizeof(int32_t)),
                               .page_owners = calloc((size_t)pages + 1, sizeof(int32_t))};
    if (pool->slot_stack == NULL || pool->page_stack == NULL || pool->slot_owners == NULL ||
        pool->page_owners == NULL) {
        carry_state_pool_close(pool);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a pool of %" PRId64 " slots and %" PRId64 " pages", slots,
                          pages);
    }
    return CARRY_OK;
}

int32_t carry_state_pool_take_slot(carry_state_pool *pool) {
    if (pool->free_slots == 0) {
        return CARRY_POOL_NONE;
    }
    const int32_t slot = pool->slot_stack[--pool->free_slots];
    pool->slot_owners[slot] = 1;
    return slot;
}

void carry_state_pool_give_slot(carry_state_pool *pool, int32_t slot) {
    if (slot != CARRY_POOL_NONE && pool->slot_owners[slot] > 0) {
        pool->slot_owners[slot] = 0;
        pool->slot_stack[pool->free_slots++] = slot;
    }
}

int32_t carry_state_pool_take_page(carry_state_pool *pool) {
    if (pool->free_pages == 0) {
        return CARRY_POOL_NONE;
    }
    const int32_t page = pool->page_stack[--pool->free_pages];
    pool->page_owners[page] = 1;
    return page;
}

void carry_state_pool_share_page(carry_state_pool *pool, int32_t page) {
    pool->page_owners[page]++;
}

void carry_state_pool_give_page(carry_state_pool *pool, int32_t page) {
    if (page != CARRY_POOL_NONE && pool->page_owners[page] > 0 && --pool->page_owners[page] == 0) {
        pool->page_stack[pool->free_pages++] = page;
    }
}

bool carry_state_pool_is_shared(const carry_state_pool *pool, int32_t page) {
    return pool->page_owners[page] > 1;
}

carry_status carry_state_pool_fit(carry_ctx *ctx, int64_t *slots, int64_t *pages, size_t memory,
                                  const carry_pool_demand *demand) {
    const int64_t each = (demand->context + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS + 1; /* one more, to copy a
                                                                                               shared page */
    size_t one;
    *slots = *pages = 0;
    if (demand->sequences < 1 || demand->context < 1 || !carry_size_product(&one, &each, 1, demand->page_bytes) ||
        !carry_size_add(&one, one, demand->slot_bytes)) {
        return carry_fail(ctx, CARRY_ESIZE, "%" PRId64 " sequences of %" PRId64 " tokens: too large", demand->sequences,
                          demand->context);
    }
    if (one > memory) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "a state of %" PRId64 " tokens takes %zu bytes and %zu are allowed: allow more memory or set "
                          "a smaller context",
                          demand->context, one, memory);
    }
    const size_t fitting = memory / one; /* number of whole sequences */
    const int64_t sequences = fitting < (size_t)demand->sequences ? (int64_t)fitting : demand->sequences;
    const size_t slot_bytes = demand->slot_bytes > 0 ? demand->slot_bytes : 1;
    *slots = demand->sequences;
    while (*slots > sequences && (size_t)*slots * demand->slot_bytes > memory / 2) {
        (*slots)--; /* short contexts share the memory */
    }
    size_t left = memory - (size_t)*slots * demand->slot_bytes;
    const int64_t wanted = demand->page_bytes == 0 ? 0 : each * (demand->sequences + demand->spare);
    const size_t share = demand->page_bytes == 0 ? 0 : left / demand->page_bytes;
    /* Half of the remaining memory is for snapshots, unless one context needs more. */
    size_t some = share / 2 > (size_t)each ? share / 2 : (size_t)each;
    some = some > share || demand->most_slots <= *slots ? share : some;
    *pages = demand->page_bytes == 0 ? 0 : some < (size_t)wanted ? (int64_t)some : wanted;
    left -= (size_t)*pages * demand->page_bytes;
    const size_t extra = left / slot_bytes;
    const int64_t most = demand->most_slots > *slots ? demand->most_slots - *slots : 0;
    *slots += extra < (size_t)most ? (int64_t)extra : most;
    return CARRY_OK;
}
