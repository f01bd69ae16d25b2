/* The reference library has cards (a paper, a library or a method: its claims, their evidence, and how we use it),
   topics (a list of cards in reading order, and a synthesis) and findings (measured results, and the cards that
   support them). Each is one Markdown file with YAML front matter:

       library/cards/ID.md      id title source type tier topics priority why claims{text evidence}
                                actionables{text figure} related needs also
       library/topics/ID.md     id title cards{id priority}; the text below is the synthesis
       library/findings/ID.md   id title measured where figures{value unit what source} cards topics

   tier: 1 fetched (an abstract or an index was read), 2 converted (the full text was available), 3 condensed (its
   argument was followed, and it is used here). priority: 1 read it, 2 useful, 3 background. needs: the cards to read
   before this one. also: other ids of the card. A figure's source is a file of the project
   (docs/results/NAME.md, an exported run) or the id of one of the finding's cards; its text must contain the value
   literally. */
#ifndef CARRY_LAB_CARDS_H
#define CARRY_LAB_CARDS_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/context.h"

struct carry_yaml;

typedef enum carry_page_kind {
    CARRY_PAGE_CARD,
    CARRY_PAGE_TOPIC,
    CARRY_PAGE_FINDING,
    CARRY_PAGE_KINDS
} carry_page_kind;

/* Indices of the parts of an item; parts that are not given are NULL. */
enum {
    CARRY_ITEM_ID = 0, /* in lists of ids, and in a topic's cards */
    CARRY_ITEM_PRIORITY = 1,
    CARRY_ITEM_TEXT = 0, /* claims, actionables */
    CARRY_ITEM_EVIDENCE = 1,
    CARRY_ITEM_FIGURE = 1,
    CARRY_ITEM_VALUE = 0, /* figures */
    CARRY_ITEM_UNIT = 1,
    CARRY_ITEM_WHAT = 2,
    CARRY_ITEM_SOURCE = 3,
    CARRY_ITEM_PARTS = 4
};

typedef struct carry_page_item {
    const char *part[CARRY_ITEM_PARTS];
    int line;
} carry_page_item;

typedef struct carry_page_list {
    int count;
    carry_page_item *item;
} carry_page_list;

/* Texts that are not given are NULL. They are owned by the page. */
typedef struct carry_page {
    carry_page_kind kind;
    char *path; /* in the library: cards/nccl.md */
    char *text; /* the whole file */
    const char *body;
    struct carry_yaml *front;
    const char *id, *title, *source, *type, *why, *measured, *where;
    const char *tier_text, *priority_text;
    int tier, priority; /* 0: not given, or not a number from 1 to 3 */
    carry_page_list topics, claims, actionables, related, needs, also, cards, figures;
} carry_page;

typedef struct carry_library_problem {
    char path[96];
    int line; /* 0: the whole page */
    const char *rule;
    char message[512];
} carry_library_problem;

typedef struct carry_library {
    char *folder;
    int count, problems;
    carry_page *page; /* cards, then topics, then findings; each sorted by name */
    /* First those of pages that cannot be read, then those that carry_library_check found. */
    carry_library_problem *problem;
} carry_library;

/* The name of a kind, "card", "topic" or "finding", and its folder. */
const char *carry_page_kind_name(carry_page_kind kind);
const char *carry_page_folder(carry_page_kind kind);

/* folder NULL: library/ in this folder or the nearest parent that has one, else that of the installation. Pages that
   cannot be read are left out and listed in `problem`. CARRY_ENOTFOUND if there is no library. */
carry_status carry_library_open(carry_ctx *ctx, carry_library **library, const char *folder);
void carry_library_close(carry_library *library);
/* The page with this id, else the card that has it as another name (also), else NULL. */
const carry_page *carry_library_page(const carry_library *library, const char *id);

/* Parses one page from memory; messages call it `path`. CARRY_EFORMAT or a similar error, with line and column, if
   it is not a page. Unknown and missing keys are accepted here: carry_library_check reports them. */
carry_status carry_page_parse(carry_ctx *ctx, carry_page *page, carry_page_kind kind, const char *path,
                              const char *text, size_t length);
void carry_page_clear(carry_page *page);

/* Checks every rule on every page and adds violations to `problem`. The names and meanings of the rules: */
typedef struct carry_library_rule {
    const char *name, *about;
} carry_library_rule;
extern const carry_library_rule carry_library_rules[]; /* name NULL at the end */
carry_status carry_library_check(carry_ctx *ctx, carry_library *library);
carry_status carry_library_problem_add(carry_ctx *ctx, carry_library *library, const char *path, int line,
                                       const char *rule, const char *format, ...) __attribute__((format(printf, 6, 7)));
/* Checks the numbers in the figures of a card's actionables that cite docs/results/NAME.md (cards_cited.c). */
carry_status carry_library_check_cited(carry_ctx *ctx, carry_library *library, const carry_page *card);
/* Warns about pages that cite an exported run of docs/results/runs although a newer run of the same experiment
   exists and is not cited (cards_runs.c). The caller frees *all. */
typedef struct carry_library_warning {
    char path[96], message[480];
} carry_library_warning;
carry_status carry_library_superseded(carry_ctx *ctx, const carry_library *library, carry_library_warning **all,
                                      int *count);
/* True if the text contains this value, but not as a part of a longer number or after a letter; a unit may follow. */
bool carry_figure_stands_in(const char *value, const char *text);

#define CARRY_FOUND_LINES 3

typedef struct carry_found {
    const carry_page *page;
    double score; /* bm25, larger is better */
    int lines;
    struct {
        int number;
        char text[240];
    } line[CARRY_FOUND_LINES];
} carry_found;

/* Finds pages that contain all the words (in any inflection), best first. If no page does, sets *some and finds the
   pages that contain any of the words or a word that begins with one of them. The caller frees *found. */
carry_status carry_library_find(carry_ctx *ctx, const carry_library *library, const char *const *words, int count,
                                carry_found **found, int *found_count, bool *some);

typedef struct carry_reading {
    const carry_page *card;
    int priority;
    char reason[160];
} carry_reading;

/* The cards of a topic in reading order: by the topic's priority, then in the topic's order, each after the cards
   that it needs. The caller frees *readings. */
carry_status carry_library_order(carry_ctx *ctx, const carry_library *library, const carry_page *topic,
                                 carry_reading **readings, int *count);

/* A page as one line of JSON, which the caller frees. NULL when out of memory. */
char *carry_page_json(const carry_page *page);

#endif
