/* Checks a library and reports every problem with its position. A figure of a finding must appear literally in the
   file or card that it names, so a mistyped figure, or one whose source was measured again, is found. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "lab/cards/cards.h"
#include "lab/cards/cards_field.h"
#include "lab/yaml.h"

#define SOURCE_BYTES ((size_t)16 << 20)

const carry_library_rule carry_library_rules[] = {
    {"unreadable", "a page that is not Markdown with YAML front matter"},
    {"missing-key", "a key that every page of this kind has is missing or empty"},
    {"unknown-key", "a key that pages of this kind do not have"},
    {"wrong-id", "an id that is not the file's name"},
    {"duplicate-id", "an id that another page has"},
    {"bad-level", "a tier or a priority that is not 1, 2 or 3"},
    {"broken-id", "an id that no page has, or a page of the wrong kind"},
    {"topic-mismatch", "a card and a topic of which only one names the other"},
    {"circular-needs", "a card that needs itself, directly or through others"},
    {"no-evidence", "a card without claims, or a claim without evidence"},
    {"no-figures", "a finding without figures, or a figure without a number"},
    {"no-cards", "a finding or a topic without cards"},
    {"no-synthesis", "a topic without text"},
    {"lost-figure", "a figure of a finding or of a card's actionable that does not stand in the source it names"},
    {0},
};

typedef struct check {
    carry_ctx *ctx;
    carry_library *library;
    const carry_page *page;
} check;

#define SAY(c, at, rule, ...) \
    CARRY_TRY(carry_library_problem_add((c)->ctx, (c)->library, (c)->page->path, at, rule, __VA_ARGS__))

static bool is_blank(const char *text) {
    return text == NULL || text[strspn(text, " \t\r\n")] == '\0';
}

static carry_status unknown_keys(check *c, const carry_yaml *mapping) {
    for (const carry_yaml *member = mapping->first; member != NULL; member = member->next) {
        if (!member->seen) {
            SAY(c, member->line, "unknown-key", "a %s has no key '%.40s' here, or has it twice",
                carry_page_kind_name(c->page->kind), member->key != NULL ? member->key : "");
        }
        for (const carry_yaml *entry = member->first; entry != NULL; entry = entry->next) {
            if (member->seen && entry->kind == CARRY_YAML_MAPPING) {
                CARRY_TRY(unknown_keys(c, entry));
            }
        }
    }
    return CARRY_OK;
}

static carry_status missing_keys(check *c) {
    for (const carry_field *field = carry_fields(c->page->kind); field->key != NULL; field++) {
        if (!field->is_list) {
            if (field->needed && is_blank(carry_field_text(c->page, field))) {
                SAY(c, 0, "missing-key", "the key '%s' is missing or empty", field->key);
            }
            continue;
        }
        const carry_page_list *list = carry_field_list(c->page, field);
        if (field->needed && carry_yaml_get(c->page->front, field->key) == NULL) {
            SAY(c, 0, "missing-key", "the key '%s' is missing", field->key);
        }
        for (int i = 0; i < list->count; i++) {
            for (int part = 0; part < field->parts_needed; part++) {
                if (is_blank(list->item[i].part[part])) {
                    SAY(c, list->item[i].line, "missing-key", "an entry of %s lacks '%s'", field->key,
                        field->parts[part]);
                }
            }
        }
    }
    return CARRY_OK;
}

static carry_status names(check *c) {
    const char *name = strchr(c->page->path, '/');
    name = name != NULL ? name + 1 : c->page->path;
    size_t length = strlen(name) - strlen(".md");
    if (strlen(c->page->id) != length || strncmp(c->page->id, name, length) != 0) {
        SAY(c, 0, "wrong-id", "the id is '%.60s' and the file is '%.60s'", c->page->id, name);
    }
    const carry_page *first = carry_library_page(c->library, c->page->id);
    if (first != c->page) {
        SAY(c, 0, "duplicate-id", "the id '%.60s' is also that of %.80s", c->page->id, first->path);
    }
    return CARRY_OK;
}

static carry_status levels(check *c) {
    if (c->page->kind != CARRY_PAGE_CARD) {
        return CARRY_OK;
    }
    if (c->page->tier == 0 && !is_blank(c->page->tier_text)) {
        SAY(c, 0, "bad-level", "tier is '%.20s': it must be 1 (fetched), 2 (converted) or 3 (condensed)",
            c->page->tier_text);
    }
    if (c->page->priority == 0 && !is_blank(c->page->priority_text)) {
        SAY(c, 0, "bad-level", "priority is '%.20s': it must be 1 (read it), 2 (useful) or 3 (background)",
            c->page->priority_text);
    }
    return CARRY_OK;
}

static carry_status ids(check *c, const char *key, const carry_page_list *list, carry_page_kind kind) {
    for (int i = 0; i < list->count; i++) {
        const char *id = list->item[i].part[CARRY_ITEM_ID];
        const carry_page *page = id != NULL ? carry_library_page(c->library, id) : NULL;
        if (id != NULL && (page == NULL || page->kind != kind)) {
            SAY(c, list->item[i].line, "broken-id", "%s names '%.60s', which is not a %s of this library", key, id,
                carry_page_kind_name(kind));
        }
    }
    return CARRY_OK;
}

static bool lists_id(const carry_page_list *list, const char *id) {
    for (int i = 0; i < list->count; i++) {
        if (list->item[i].part[CARRY_ITEM_ID] != NULL && strcmp(list->item[i].part[CARRY_ITEM_ID], id) == 0) {
            return true;
        }
    }
    return false;
}

/* True if the page needs itself through other pages. seen: one flag per page. */
static bool needs_itself(const check *c, const carry_page *from, bool *seen) {
    for (int i = 0; i < from->needs.count; i++) {
        const char *id = from->needs.item[i].part[CARRY_ITEM_ID];
        const carry_page *next = id != NULL ? carry_library_page(c->library, id) : NULL;
        if (next == c->page) {
            return true;
        }
        if (next != NULL && !seen[next - c->library->page]) {
            seen[next - c->library->page] = true;
            if (needs_itself(c, next, seen)) {
                return true;
            }
        }
    }
    return false;
}

/* Checks that the other ids of a card (also) belong to no other page, so that carry_library_page finds this card by
   them. */
static carry_status other_names(check *c) {
    for (int i = 0; i < c->page->also.count; i++) {
        const char *name = c->page->also.item[i].part[CARRY_ITEM_ID];
        const carry_page *found = name != NULL ? carry_library_page(c->library, name) : c->page;
        if (found != c->page) {
            SAY(c, c->page->also.item[i].line, "duplicate-id", "the other name '%.60s' is also that of %.80s", name,
                found->path);
        }
    }
    return CARRY_OK;
}

static carry_status check_card(check *c) {
    const carry_page *page = c->page;
    CARRY_TRY(other_names(c));
    CARRY_TRY(carry_library_check_cited(c->ctx, c->library, page));
    CARRY_TRY(ids(c, "topics", &page->topics, CARRY_PAGE_TOPIC));
    CARRY_TRY(ids(c, "related", &page->related, CARRY_PAGE_CARD));
    CARRY_TRY(ids(c, "needs", &page->needs, CARRY_PAGE_CARD));
    for (int i = 0; i < page->topics.count; i++) {
        const char *id = page->topics.item[i].part[CARRY_ITEM_ID];
        const carry_page *topic = id != NULL ? carry_library_page(c->library, id) : NULL;
        if (topic != NULL && topic->kind == CARRY_PAGE_TOPIC && !lists_id(&topic->cards, page->id)) {
            SAY(c, page->topics.item[i].line, "topic-mismatch", "the topic '%.60s' does not list this card", id);
        }
    }
    if (page->claims.count == 0) {
        SAY(c, 0, "no-evidence", "the card claims nothing");
    }
    for (int i = 0; i < page->claims.count; i++) {
        if (is_blank(page->claims.item[i].part[CARRY_ITEM_EVIDENCE])) {
            SAY(c, page->claims.item[i].line, "no-evidence", "the claim has no evidence");
        }
    }
    bool *seen = calloc((size_t)c->library->count, sizeof *seen);
    if (seen == NULL) {
        return carry_fail(c->ctx, CARRY_EMEMORY, "out of memory: %d pages", c->library->count);
    }
    bool circular = needs_itself(c, page, seen);
    free(seen);
    if (circular) {
        SAY(c, 0, "circular-needs", "the card needs itself");
    }
    return CARRY_OK;
}

static carry_status check_topic(check *c) {
    const carry_page *page = c->page;
    CARRY_TRY(ids(c, "cards", &page->cards, CARRY_PAGE_CARD));
    for (int i = 0; i < page->cards.count; i++) {
        const char *const *part = page->cards.item[i].part;
        const carry_page *card =
            part[CARRY_ITEM_ID] != NULL ? carry_library_page(c->library, part[CARRY_ITEM_ID]) : NULL;
        if (card != NULL && card->kind == CARRY_PAGE_CARD && !lists_id(&card->topics, page->id)) {
            SAY(c, page->cards.item[i].line, "topic-mismatch", "the card '%.60s' does not name this topic", card->id);
        }
        const char *priority = part[CARRY_ITEM_PRIORITY];
        if (!is_blank(priority) && (strlen(priority) != 1 || strchr("123", priority[0]) == NULL)) {
            SAY(c, page->cards.item[i].line, "bad-level", "priority is '%.20s': it must be 1, 2 or 3", priority);
        }
    }
    if (page->cards.count == 0) {
        SAY(c, 0, "no-cards", "the topic has no cards");
    }
    if (is_blank(page->body)) {
        SAY(c, 0, "no-synthesis", "the topic says nothing below its front matter");
    }
    return CARRY_OK;
}

/* True for a path below the project's folder, which contains the library. */
static bool is_inside(const char *source) {
    return source[0] != '/' && strstr(source, "..") == NULL && strchr(source, '/') != NULL;
}

static carry_status check_file_figure(check *c, const carry_page_item *figure) {
    const char *source = figure->part[CARRY_ITEM_SOURCE];
    const char *value = figure->part[CARRY_ITEM_VALUE];
    char path[4096];
    char *text = NULL;
    size_t length = 0;
    int wanted = snprintf(path, sizeof path, "%s/../%s", c->library->folder, source);
    if (wanted < 0 || (size_t)wanted >= sizeof path) {
        SAY(c, figure->line, "lost-figure", "the source's path is too long");
        return CARRY_OK;
    }
    carry_status status = carry_file_read(c->ctx, &text, &length, path, SOURCE_BYTES);
    if (status == CARRY_EMEMORY) {
        return status;
    }
    bool stands = status == CARRY_OK && carry_figure_stands_in(value, text);
    free(text);
    if (status != CARRY_OK) {
        SAY(c, figure->line, "lost-figure", "the source '%.120s' of %.40s cannot be read", source, value);
    } else if (!stands) {
        SAY(c, figure->line, "lost-figure", "%.40s is not in '%.120s'", value, source);
    }
    return CARRY_OK;
}

static carry_status check_figure(check *c, const carry_page_item *figure) {
    const char *source = figure->part[CARRY_ITEM_SOURCE];
    const char *value = figure->part[CARRY_ITEM_VALUE];
    if (is_blank(value) || is_blank(source)) {
        return CARRY_OK; /* missing_keys has reported it */
    }
    if (strpbrk(value, "0123456789") == NULL) {
        SAY(c, figure->line, "no-figures", "the figure '%.40s' has no number", value);
        return CARRY_OK;
    }
    const carry_page *card = carry_library_page(c->library, source);
    if (card != NULL && card->kind == CARRY_PAGE_CARD) {
        if (!lists_id(&c->page->cards, source)) {
            SAY(c, figure->line, "lost-figure", "the source '%.60s' of %.40s is not among the finding's cards", source,
                value);
        } else if (!carry_figure_stands_in(value, card->text)) {
            SAY(c, figure->line, "lost-figure", "%.40s is not in %.80s", value, card->path);
        }
        return CARRY_OK;
    }
    if (!is_inside(source)) {
        SAY(c, figure->line, "lost-figure",
            "the source '%.60s' of %.40s is neither a card nor a file of this project such as docs/results/scan.md",
            source, value);
        return CARRY_OK;
    }
    return check_file_figure(c, figure);
}

static carry_status check_finding(check *c) {
    CARRY_TRY(ids(c, "cards", &c->page->cards, CARRY_PAGE_CARD));
    CARRY_TRY(ids(c, "topics", &c->page->topics, CARRY_PAGE_TOPIC));
    if (c->page->cards.count == 0) {
        SAY(c, 0, "no-cards", "the finding names no card that bears it");
    }
    if (c->page->figures.count == 0) {
        SAY(c, 0, "no-figures", "the finding has no figures");
    }
    for (int i = 0; i < c->page->figures.count; i++) {
        CARRY_TRY(check_figure(c, &c->page->figures.item[i]));
    }
    return CARRY_OK;
}

/* True if the character before `at` makes it the end of something longer: 069 in 3,069, 4096 in t4096, 5 in 1e-5. */
static bool continues_left(const char *text, const char *at) {
    if (at == text) {
        return false;
    }
    unsigned char before = (unsigned char)at[-1];
    if (isalnum(before) || before == '_') {
        return true;
    }
    bool after_digit = at - text >= 2 && isdigit((unsigned char)at[-2]);
    bool after_exponent = at - text >= 3 && (at[-2] == 'e' || at[-2] == 'E') && isdigit((unsigned char)at[-3]);
    return ((before == '.' || before == ',') && after_digit) || ((before == '-' || before == '+') && after_exponent);
}

/* True if the text after `end` continues the number: 6.2 in 6.25, 1 in 1,550, 1.4 in 1.4e-6. A unit may follow
   directly. */
static bool continues_right(const char *end) {
    if (isdigit((unsigned char)end[0])) {
        return true;
    }
    if (end[0] == '.' || end[0] == ',') {
        return isdigit((unsigned char)end[1]) != 0;
    }
    if (end[0] == 'e' || end[0] == 'E') {
        return isdigit((unsigned char)end[1]) || ((end[1] == '-' || end[1] == '+') && isdigit((unsigned char)end[2]));
    }
    return false;
}

bool carry_figure_stands_in(const char *value, const char *text) {
    size_t length = strlen(value);
    if (length == 0) {
        return false;
    }
    for (const char *at = strstr(text, value); at != NULL; at = strstr(at + 1, value)) {
        if (!continues_left(text, at) && !continues_right(at + length)) {
            return true;
        }
    }
    return false;
}

carry_status carry_library_check(carry_ctx *ctx, carry_library *library) {
    static carry_status (*const by_kind[CARRY_PAGE_KINDS])(check *) = {check_card, check_topic, check_finding};
    for (int i = 0; i < library->count; i++) {
        check c = {ctx, library, &library->page[i]};
        CARRY_TRY(missing_keys(&c));
        CARRY_TRY(unknown_keys(&c, c.page->front));
        CARRY_TRY(names(&c));
        CARRY_TRY(levels(&c));
        CARRY_TRY(by_kind[c.page->kind](&c));
    }
    return CARRY_OK;
}
