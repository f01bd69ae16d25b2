/* carry cards show, carry cards for: prints pages for reading. */
#include <stdlib.h>
#include <string.h>

#include "cli/lab/cmd_cards.h"

#define WIDTH 100

static void print_labelled(const char *label, const char *text) {
    if (text != NULL && *text != '\0') {
        (void)printf("  %s%-9s%s", cli_dim(), label, cli_plain());
        cli_cards_wrapped(11, 11, text);
    }
}

static int print_json_page(const carry_page *page) {
    char *line = carry_page_json(page);
    if (line == NULL) {
        return cli_refuse("out of memory: %s as JSON", page->path);
    }
    (void)puts(line);
    free(line);
    return CLI_DONE;
}

static void show_items(const char *label, const carry_page_list *list, int second, const char *without) {
    for (int i = 0; i < list->count; i++) {
        const char *const *part = list->item[i].part;
        print_labelled(label, part[0]);
        if (part[second] != NULL && part[second][0] != '\0') {
            (void)printf("           %s-> ", cli_dim());
            cli_cards_wrapped(14, 14, part[second]);
            (void)fputs(cli_plain(), stdout);
        } else if (without != NULL) {
            (void)printf("           %s-> %s%s\n", cli_red(), without, cli_plain());
        }
    }
}

static void show_figures(const carry_page *finding) {
    for (int i = 0; i < finding->figures.count; i++) {
        const char *part[CARRY_ITEM_PARTS];
        for (int j = 0; j < CARRY_ITEM_PARTS; j++) {
            part[j] = finding->figures.item[i].part[j] != NULL ? finding->figures.item[i].part[j] : "";
        }
        (void)printf("  %10s %s: %s  %s%s%s\n", part[CARRY_ITEM_VALUE], part[CARRY_ITEM_UNIT], part[CARRY_ITEM_WHAT],
                     cli_dim(), part[CARRY_ITEM_SOURCE], cli_plain());
    }
}

static void show_ids(const char *label, const carry_page_list *list) {
    if (list->count == 0) {
        return;
    }
    (void)printf("  %s%-9s%s", cli_dim(), label, cli_plain());
    for (int i = 0; i < list->count; i++) {
        (void)printf("%s%s", i > 0 ? ", " : "", list->item[i].part[0] != NULL ? list->item[i].part[0] : "");
    }
    (void)putchar('\n');
}

void cli_cards_wrapped(int indent, int column, const char *text) {
    bool first = true;
    while (*text != '\0') {
        text += strspn(text, " \t\n");
        int bytes = (int)strcspn(text, " \t\n");
        int wide = 0;
        for (int i = 0; i < bytes; i++) {
            wide += ((unsigned char)text[i] & 0xc0) != 0x80;
        }
        if (bytes == 0) {
            break;
        }
        if (!first && column + 1 + wide > WIDTH) {
            (void)printf("\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            (void)putchar(' ');
            column++;
        }
        (void)printf("%.*s", bytes, text);
        column += wide;
        text += bytes;
        first = false;
    }
    (void)putchar('\n');
}

void cli_cards_head(const carry_page *page) {
    (void)printf("%s%s%s  %s%s%s\n", cli_bold(), page->id, cli_plain(), page->title != NULL ? page->title : "",
                 page->kind == CARRY_PAGE_CARD ? "" : "  ",
                 page->kind == CARRY_PAGE_CARD ? "" : carry_page_kind_name(page->kind));
}

int cli_cards_unknown(const char *what, const char *id) {
    char shown[64];
    return cli_refuse("there is no %s '%s' (carry cards list shows them)", what, cli_shown(shown, id));
}

int cli_cards_show(cli_cards_session *d, int count, char **words) {
    (void)count;
    const carry_page *page = carry_library_page(d->library, words[0]);
    if (page == NULL) {
        return cli_cards_unknown("page", words[0]);
    }
    if (d->json) {
        return print_json_page(page);
    }
    cli_cards_head(page);
    print_labelled("source", page->source);
    if (page->kind == CARRY_PAGE_CARD) {
        (void)printf("  %s%-9s%s%s, tier %d, priority %d\n", cli_dim(), "type", cli_plain(),
                     page->type != NULL ? page->type : "", page->tier, page->priority);
    }
    print_labelled("why", page->why);
    print_labelled("measured", page->measured);
    print_labelled("where", page->where);
    show_items("claim", &page->claims, CARRY_ITEM_EVIDENCE, "without evidence");
    show_items("do", &page->actionables, CARRY_ITEM_FIGURE, "without a figure");
    show_figures(page);
    show_ids("topics", &page->topics);
    show_ids("cards", &page->cards);
    show_ids("needs", &page->needs);
    show_ids("related", &page->related);
    show_ids("also", &page->also);
    if (page->body[strspn(page->body, " \t\n")] != '\0') {
        (void)printf("\n%s", page->body + strspn(page->body, "\n"));
    }
    return CLI_DONE;
}

int cli_cards_for(cli_cards_session *d, int count, char **words) {
    (void)count;
    const carry_page *finding = carry_library_page(d->library, words[0]);
    if (finding == NULL || finding->kind != CARRY_PAGE_FINDING) {
        return cli_cards_unknown("finding", words[0]);
    }
    if (!d->json) {
        cli_cards_head(finding);
        print_labelled("measured", finding->measured);
        print_labelled("where", finding->where);
        show_figures(finding);
    }
    for (int i = 0; i < finding->cards.count; i++) {
        const char *id = finding->cards.item[i].part[CARRY_ITEM_ID];
        const carry_page *card = id != NULL ? carry_library_page(d->library, id) : NULL;
        if (card == NULL) {
            continue; /* `cards check` reports it */
        }
        if (d->json) {
            if (print_json_page(card) != CLI_DONE) {
                return CLI_IMPOSSIBLE;
            }
            continue;
        }
        (void)putchar('\n');
        cli_cards_head(card);
        print_labelled("why", card->why);
        show_items("claim", &card->claims, CARRY_ITEM_EVIDENCE, "without evidence");
    }
    return CLI_DONE;
}
