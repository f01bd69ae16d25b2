/* The keys of cards, topics and findings. */
#include "lab/cards/cards_field.h"

#include <stddef.h>

#define TEXT(key, member) \
    { key, offsetof(carry_page, member), false, true, {NULL}, 0 }
#define LIST(key, member, needed, parts_needed, ...) \
    { key, offsetof(carry_page, member), true, needed, {__VA_ARGS__, NULL}, parts_needed }

/* A claim's evidence and an actionable's figure may be missing here: `check` and `sharpen` report that with messages
   of their own. */
static const carry_field card[] = {
    TEXT("id", id),
    TEXT("title", title),
    TEXT("source", source),
    TEXT("type", type),
    TEXT("tier", tier_text),
    LIST("topics", topics, true, 0, NULL),
    TEXT("priority", priority_text),
    TEXT("why", why),
    LIST("claims", claims, false, 1, "text", "evidence"),
    LIST("actionables", actionables, false, 1, "text", "figure"),
    LIST("related", related, false, 0, NULL),
    LIST("needs", needs, false, 0, NULL),
    LIST("also", also, false, 0, NULL),
    {0},
};

static const carry_field topic[] = {
    TEXT("id", id),
    TEXT("title", title),
    LIST("cards", cards, true, 2, "id", "priority"),
    {0},
};

static const carry_field finding[] = {
    TEXT("id", id),
    TEXT("title", title),
    TEXT("measured", measured),
    TEXT("where", where),
    LIST("figures", figures, false, 4, "value", "unit", "what", "source"),
    LIST("cards", cards, true, 0, NULL),
    LIST("topics", topics, false, 0, NULL),
    {0},
};

const carry_field *carry_fields(carry_page_kind kind) {
    static const carry_field *const fields[CARRY_PAGE_KINDS] = {card, topic, finding};
    return fields[kind];
}
