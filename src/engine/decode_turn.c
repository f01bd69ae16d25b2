/* Inputs of the decoding kernel's steps. */
#include "engine/decode_turn.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/error.h"
#include "core/memory.h"

#define FIRST_PAGES 64 /* initial number of pages per sequence */

static void free_tables(carry_decode_turns *t) {
    for (int i = 0; i < CARRY_DECODE_TURNS; i++) {
        carry_host_free(t->ctx, t->buffer[i].pinned);
        carry_device_free(t->ctx, t->device, t->buffer[i].there);
        t->buffer[i].pinned = t->buffer[i].there = NULL;
    }
    carry_device_free(t->ctx, t->device, t->table);
    free(t->known);
    t->table = t->known = NULL;
    t->pages_each = 0;
}

/* Makes empty tables with capacity for `pages` pages of each sequence. No step may be running. */
static carry_status make_tables(carry_decode_turns *t, int64_t pages) {
    void *made;
    free_tables(t);
    const int64_t entries[] = {t->slots, pages};
    size_t bytes;
    if (!carry_size_product(&bytes, entries, 2, sizeof(int32_t)) || bytes > INT32_MAX) {
        return carry_fail(t->ctx, CARRY_ESIZE, "a table of %lld pages for %lld sequences is too large",
                          (long long)pages, (long long)t->slots);
    }
    t->known = malloc(bytes);
    if (t->known == NULL) {
        return carry_fail(t->ctx, CARRY_EMEMORY, "out of memory: the table of pages");
    }
    memset(t->known, 0xff, bytes);
    CARRY_TRY(carry_device_alloc(t->ctx, &made, t->device, bytes));
    t->table = made;
    const size_t turn =
        sizeof(carry_decode_turn) + (size_t)(CARRY_DECODE_SEQUENCES * pages) * sizeof(carry_decode_page);
    for (int i = 0; i < CARRY_DECODE_TURNS; i++) {
        CARRY_TRY(carry_host_alloc(t->ctx, &made, turn));
        t->buffer[i].pinned = made;
        CARRY_TRY(carry_device_alloc(t->ctx, &made, t->device, turn));
        t->buffer[i].there = made;
    }
    t->pages_each = pages;
    return CARRY_OK;
}

carry_status carry_decode_turns_open(carry_decode_turns *t, carry_ctx *ctx, int device, int64_t slots) {
    *t = (carry_decode_turns){.ctx = ctx, .device = device, .slots = slots};
    for (int i = 0; i < CARRY_DECODE_TURNS; i++) {
        CARRY_TRY(carry_event_new(ctx, &t->buffer[i].done, device));
    }
    return make_tables(t, FIRST_PAGES);
}

void carry_decode_turns_close(carry_decode_turns *t) {
    if (t->ctx != NULL) {
        (void)carry_stream_wait(t->ctx, t->device, carry_ctx_stream(t->ctx, t->device));
        free_tables(t);
        for (int i = 0; i < CARRY_DECODE_TURNS; i++) {
            carry_event_free(t->ctx, t->device, t->buffer[i].done);
        }
    }
}

static int64_t pages_of(const carry_run *run) {
    return run->pages != NULL ? (run->length + CARRY_PAGE_TOKENS) / CARRY_PAGE_TOKENS : 0;
}

static carry_status reserve(carry_decode_turns *t, const carry_run *runs, int count) {
    int64_t most = 0;
    for (int i = 0; i < count; i++) {
        most = pages_of(&runs[i]) > most ? pages_of(&runs[i]) : most;
    }
    if (most <= t->pages_each) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_stream_wait(t->ctx, t->device, carry_ctx_stream(t->ctx, t->device)));
    return make_tables(t, most > 2 * t->pages_each ? most : 2 * t->pages_each);
}

/* Adds the pages of a run that the table does not have. */
static void put_pages(carry_decode_turns *t, carry_decode_turn *turn, const carry_run *run) {
    int32_t *known = t->known + (int64_t)run->slot * t->pages_each;
    for (int64_t i = 0; i < pages_of(run); i++) {
        if (known[i] != run->pages[i]) {
            known[i] = run->pages[i];
            turn->page[turn->page_count++] = (carry_decode_page){run->slot, (int32_t)i, run->pages[i]};
        }
    }
}

carry_status carry_decode_turn_put(carry_decode_turns *t, carry_decode_call *call, const carry_run *runs,
                                   int *new_pages) {
    CARRY_TRY(reserve(t, runs, call->sequences));
    carry_decode_buffer *buffer = &t->buffer[t->next % CARRY_DECODE_TURNS];
    CARRY_TRY(carry_event_wait(t->ctx, t->device, buffer->done));
    carry_decode_turn *turn = buffer->pinned;
    turn->page_count = 0;
    for (int i = 0; i < call->sequences; i++) {
        const carry_run *run = &runs[i];
        if (run->slot < 0 || run->slot >= t->slots || run->count != 1 || (run->ids == NULL && call->last == NULL)) {
            return carry_fail(t->ctx, CARRY_EARGUMENT, "run %d is not a step of one token in a slot", i);
        }
        turn->slot[i] = run->slot;
        turn->id[i] = run->ids != NULL ? run->ids[0] : -1;
        turn->length[i] = run->length;
        put_pages(t, turn, run);
    }
    const size_t bytes = sizeof *turn + (size_t)turn->page_count * sizeof *turn->page;
    call->turn = buffer->there;
    call->table = t->table;
    call->pages_each = (int)t->pages_each;
    *new_pages = turn->page_count;
    return carry_device_copy(t->ctx, buffer->there, t->device, turn, 0, bytes, carry_ctx_stream(t->ctx, t->device));
}

carry_status carry_decode_turn_done(carry_decode_turns *t) {
    carry_decode_buffer *buffer = &t->buffer[t->next++ % CARRY_DECODE_TURNS];
    return carry_event_record(t->ctx, t->device, buffer->done, carry_ctx_stream(t->ctx, t->device));
}
