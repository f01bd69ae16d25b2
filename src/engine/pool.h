/* Slots and pages of a runner: which are free, and how many owners a page has.

   A slot has one owner. A page can be shared: by a sequence, states that were forked from it, and cached prefixes. An
   owner writes only to pages that it does not share; it copies a shared one first (engine/sequence.h). */
#ifndef CARRY_ENGINE_POOL_H
#define CARRY_ENGINE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/context.h"

typedef struct carry_state_pool {
    int64_t slots, pages;             /* total numbers */
    int64_t free_slots, free_pages;   /* numbers of free ones */
    int32_t *slot_stack, *page_stack; /* free numbers; the last one is taken first */
    int32_t *slot_owners, *page_owners;
} carry_state_pool;

/* On failure nothing is left allocated. */
carry_status carry_state_pool_open(carry_ctx *ctx, carry_state_pool *pool, int64_t slots, int64_t pages);
void carry_state_pool_close(carry_state_pool *pool);

#define CARRY_POOL_NONE (-1)

/* CARRY_POOL_NONE if all are in use. */
int32_t carry_state_pool_take_slot(carry_state_pool *pool);
void carry_state_pool_give_slot(carry_state_pool *pool, int32_t slot);  /* CARRY_POOL_NONE is ignored */
int32_t carry_state_pool_take_page(carry_state_pool *pool);             /* it has one owner */
void carry_state_pool_share_page(carry_state_pool *pool, int32_t page); /* adds an owner */
void carry_state_pool_give_page(carry_state_pool *pool, int32_t page);  /* removes an owner */
bool carry_state_pool_is_shared(const carry_state_pool *pool, int32_t page);

/* Chooses the numbers of slots and pages that fit into `memory` bytes. Each sequence gets a slot; if these slots would
   take more than half of the memory, fewer, but at least as many as whole contexts fit. Pages get half of the remaining
   memory, or more if one whole context needs it, or all of it if no slots for snapshots are wanted; but at most as many
   as the contexts of all sequences and of `spare` more need. The rest becomes slots for snapshots, up to `most_slots`
   slots in all. CARRY_ESIZE if one sequence with its whole context does not fit; the message states the bytes. */
typedef struct carry_pool_demand {
    size_t slot_bytes, page_bytes; /* page_bytes 0: no pages */
    int64_t sequences, context, most_slots;
    int64_t spare; /* maximum number of contexts whose pages are added for cached prefixes */
} carry_pool_demand;
carry_status carry_state_pool_fit(carry_ctx *ctx, int64_t *slots, int64_t *pages, size_t memory,
                                  const carry_pool_demand *demand);

#endif
