/* The keys of a page, by kind: one table for reading, checking and JSON output. */
#ifndef CARRY_LAB_CARDS_FIELD_H
#define CARRY_LAB_CARDS_FIELD_H

#include "lab/cards/cards.h"

typedef struct carry_field {
    const char *key;
    size_t offset; /* in carry_page, of a const char * or a carry_page_list */
    bool is_list, needed;
    const char *parts[CARRY_ITEM_PARTS + 1]; /* keys of an entry; empty: an entry is a single word */
    /* This many of the first parts are required; `check` reports missing ones. */
    int parts_needed;
} carry_field;

/* The fields of a kind; the last has key NULL. */
const carry_field *carry_fields(carry_page_kind kind);

static inline const char *carry_field_text(const carry_page *page, const carry_field *field) {
    return *(const char *const *)(const void *)((const char *)page + field->offset);
}

static inline const carry_page_list *carry_field_list(const carry_page *page, const carry_field *field) {
    return (const carry_page_list *)(const void *)((const char *)page + field->offset);
}

#endif
