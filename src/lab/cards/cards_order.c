/* The order in which to read a topic's cards, and why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/cards/cards.h"

typedef struct walk {
    const carry_library *library;
    const carry_page *topic;
    carry_reading *reading;
    int count;
    bool *seen; /* one flag per page: placed or being placed, which also ends cycles of needs */
} walk;

static const carry_page_item *entry_of(const carry_page *topic, const carry_page *card) {
    for (int i = 0; i < topic->cards.count; i++) {
        const char *id = topic->cards.item[i].part[CARRY_ITEM_ID];
        if (id != NULL && strcmp(id, card->id) == 0) {
            return &topic->cards.item[i];
        }
    }
    return NULL;
}

static int priority_of(const carry_page_item *entry, const carry_page *card) {
    const char *text = entry != NULL ? entry->part[CARRY_ITEM_PRIORITY] : NULL;
    if (text != NULL && text[0] >= '1' && text[0] <= '3') {
        return text[0] - '0';
    }
    return card->priority != 0 ? card->priority : 3;
}

static void place(walk *w, const carry_page *card, const carry_page *needed_by) {
    if (w->seen[card - w->library->page]) {
        return;
    }
    w->seen[card - w->library->page] = true;
    for (int i = 0; i < card->needs.count; i++) {
        const char *id = card->needs.item[i].part[CARRY_ITEM_ID];
        const carry_page *first = id != NULL ? carry_library_page(w->library, id) : NULL;
        if (first != NULL && first->kind == CARRY_PAGE_CARD) {
            place(w, first, card);
        }
    }
    const carry_page_item *entry = entry_of(w->topic, card);
    carry_reading *reading = &w->reading[w->count++];
    *reading = (carry_reading){.card = card, .priority = priority_of(entry, card)};
    int length = 0;
    if (entry != NULL) {
        length = snprintf(reading->reason, sizeof reading->reason, "priority %d of the topic", reading->priority);
    } else {
        length = snprintf(reading->reason, sizeof reading->reason, "outside the topic");
    }
    if (needed_by != NULL && length > 0 && (size_t)length < sizeof reading->reason) {
        (void)snprintf(reading->reason + length, sizeof reading->reason - (size_t)length, "; %.60s needs it",
                       needed_by->id);
    }
}

carry_status carry_library_order(carry_ctx *ctx, const carry_library *library, const carry_page *topic,
                                 carry_reading **readings, int *count) {
    walk w = {.library = library, .topic = topic};
    *readings = NULL;
    *count = 0;
    w.reading = calloc((size_t)library->count + 1, sizeof *w.reading);
    w.seen = calloc((size_t)library->count + 1, sizeof *w.seen);
    if (w.reading == NULL || w.seen == NULL) {
        free(w.reading);
        free(w.seen);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: an order of %d pages", library->count);
    }
    for (int priority = 1; priority <= 3; priority++) {
        for (int i = 0; i < topic->cards.count; i++) {
            const char *id = topic->cards.item[i].part[CARRY_ITEM_ID];
            const carry_page *card = id != NULL ? carry_library_page(library, id) : NULL;
            if (card != NULL && card->kind == CARRY_PAGE_CARD && priority_of(&topic->cards.item[i], card) == priority) {
                place(&w, card, NULL);
            }
        }
    }
    free(w.seen);
    *readings = w.reading;
    *count = w.count;
    return CARRY_OK;
}
