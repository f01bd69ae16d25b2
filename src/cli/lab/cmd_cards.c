/* carry cards find|show|for|order|check|sharpen|list. */
#include <stdlib.h>
#include <string.h>

#include "cli/lab/cmd_cards.h"

typedef struct action {
    const char *name;
    bool takes_many; /* any number of words, else exactly `takes` */
    int takes;
    const char *missing; /* the message to print if no words are given */
    bool takes_broken;   /* works on a library with unreadable pages */
    int (*run)(cli_cards_session *d, int count, char **words);
} action;

static void print_found(const cli_cards_session *d, const carry_found *found) {
    if (d->json) {
        for (int i = 0; i < (found->lines > 0 ? found->lines : 1); i++) {
            cli_json_open();
            cli_json_text("id", found->page->id);
            cli_json_text("kind", carry_page_kind_name(found->page->kind));
            cli_json_text("title", found->page->title != NULL ? found->page->title : "");
            cli_json_number("score", found->score);
            cli_json_text("path", found->page->path);
            cli_json_integer("line", found->lines > 0 ? found->line[i].number : 0);
            cli_json_text("text", found->lines > 0 ? found->line[i].text : "");
            cli_json_close();
        }
        return;
    }
    cli_cards_head(found->page);
    for (int i = 0; i < found->lines; i++) {
        (void)printf("  %s%4d%s  ", cli_dim(), found->line[i].number, cli_plain());
        cli_cards_wrapped(8, 8, found->line[i].text);
    }
}

static int run_find(cli_cards_session *d, int count, char **words) {
    carry_found *found;
    int found_count;
    bool some;
    if (carry_library_find(d->ctx, d->library, (const char *const *)words, count, &found, &found_count, &some) !=
        CARRY_OK) {
        return cli_failed(d->ctx);
    }
    if (some && found_count > 0 && !d->json) {
        (void)printf("%sno page has all of these; some of them are in:%s\n", cli_dim(), cli_plain());
    }
    int64_t shown = found_count < d->most ? found_count : d->most;
    for (int i = 0; i < shown; i++) {
        print_found(d, &found[i]);
    }
    if (shown < found_count && !d->json) {
        (void)printf("%sand %lld more (--most)%s\n", cli_dim(), (long long)(found_count - shown), cli_plain());
    }
    free(found);
    if (found_count == 0 && !d->json) {
        (void)printf("nothing in %d pages\n", d->library->count);
    }
    return found_count > 0 ? CLI_DONE : CLI_WRONG;
}

static int run_order(cli_cards_session *d, int count, char **words) {
    (void)count;
    (void)words;
    if (d->goal == NULL) {
        return cli_refuse("cards order needs --goal TOPIC (carry cards list shows them)");
    }
    const carry_page *topic = carry_library_page(d->library, d->goal);
    if (topic == NULL || topic->kind != CARRY_PAGE_TOPIC) {
        return cli_cards_unknown("topic", d->goal);
    }
    carry_reading *reading;
    int readings;
    if (carry_library_order(d->ctx, d->library, topic, &reading, &readings) != CARRY_OK) {
        return cli_failed(d->ctx);
    }
    if (!d->json) {
        (void)printf("%s%s%s: %d cards, by the topic's priority, each after what it needs\n", cli_bold(), topic->title,
                     cli_plain(), readings);
    }
    for (int i = 0; i < readings; i++) {
        const carry_page *card = reading[i].card;
        if (d->json) {
            cli_json_open();
            cli_json_integer("place", i + 1);
            cli_json_text("id", card->id);
            cli_json_text("title", card->title != NULL ? card->title : "");
            cli_json_integer("priority", reading[i].priority);
            cli_json_text("reason", reading[i].reason);
            cli_json_close();
        } else {
            (void)printf("%3d  %-24s %s  %s%s%s\n", i + 1, card->id, card->title != NULL ? card->title : "", cli_dim(),
                         reading[i].reason, cli_plain());
        }
    }
    free(reading);
    return CLI_DONE;
}

static void print_problem(const cli_cards_session *d, const carry_library_problem *problem) {
    if (d->json) {
        cli_json_open();
        cli_json_text("path", problem->path);
        cli_json_integer("line", problem->line);
        cli_json_text("rule", problem->rule);
        cli_json_text("problem", problem->message);
        cli_json_close();
    } else if (strcmp(problem->rule, "unreadable") == 0) {
        (void)printf("%s%s%s  %s\n", cli_red(), problem->rule, cli_plain(), problem->message);
    } else if (problem->line > 0) {
        (void)printf("%s%s%s  %s:%d: %s\n", cli_red(), problem->rule, cli_plain(), problem->path, problem->line,
                     problem->message);
    } else {
        (void)printf("%s%s%s  %s: %s\n", cli_red(), problem->rule, cli_plain(), problem->path, problem->message);
    }
}

/* Returns the number of warnings, or -1 after printing a message. */
static int print_warnings(const cli_cards_session *d) {
    carry_library_warning *all;
    int count;
    if (carry_library_superseded(d->ctx, d->library, &all, &count) != CARRY_OK) {
        (void)cli_failed(d->ctx);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        if (d->json) {
            cli_json_open();
            cli_json_text("path", all[i].path);
            cli_json_text("rule", "superseded-run");
            cli_json_text("warning", all[i].message);
            cli_json_close();
        } else {
            (void)printf("warning  %s: %s\n", all[i].path, all[i].message);
        }
    }
    free(all);
    return count;
}

static int run_check(cli_cards_session *d, int count, char **words) {
    (void)count;
    (void)words;
    if (carry_library_check(d->ctx, d->library) != CARRY_OK) {
        return cli_failed(d->ctx);
    }
    int pages[CARRY_PAGE_KINDS] = {0};
    int figures = 0;
    for (int i = 0; i < d->library->count; i++) {
        pages[d->library->page[i].kind]++;
        figures += d->library->page[i].figures.count;
    }
    for (int i = 0; i < d->library->problems; i++) {
        print_problem(d, &d->library->problem[i]);
    }
    bool ok = d->library->problems == 0;
    const int warnings = print_warnings(d);
    if (warnings < 0) {
        return CLI_IMPOSSIBLE;
    }
    if (d->json) {
        cli_json_open();
        cli_json_integer("cards", pages[CARRY_PAGE_CARD]);
        cli_json_integer("topics", pages[CARRY_PAGE_TOPIC]);
        cli_json_integer("findings", pages[CARRY_PAGE_FINDING]);
        cli_json_integer("figures", figures);
        cli_json_integer("problems", d->library->problems);
        cli_json_integer("warnings", warnings);
        cli_json_bool("ok", ok);
        cli_json_close();
    } else {
        char warned[32] = "";
        if (warnings > 0) {
            (void)snprintf(warned, sizeof warned, ", %d warning%s", warnings, warnings == 1 ? "" : "s");
        }
        (void)printf("%d cards, %d topics, %d findings with %d figures: %s%d problems%s%s\n", pages[CARRY_PAGE_CARD],
                     pages[CARRY_PAGE_TOPIC], pages[CARRY_PAGE_FINDING], figures, ok ? cli_green() : cli_red(),
                     d->library->problems, cli_plain(), warned);
    }
    return ok ? CLI_DONE : CLI_WRONG;
}

static void print_blunt(const cli_cards_session *d, const carry_page *card, const char *text, int line) {
    if (d->json) {
        cli_json_open();
        cli_json_text("id", card->id);
        cli_json_integer("priority", card->priority);
        cli_json_text("path", card->path);
        cli_json_integer("line", line);
        cli_json_text("actionable", text);
        cli_json_close();
        return;
    }
    (void)printf("%s%s%s (priority %d, %s:%d)\n  ", cli_bold(), card->id, cli_plain(), card->priority, card->path,
                 line);
    cli_cards_wrapped(2, 2, text);
}

static int sharpen_card(const cli_cards_session *d, const carry_page *card) {
    int blunt = 0;
    for (int i = 0; i < card->actionables.count; i++) {
        const carry_page_item *item = &card->actionables.item[i];
        const char *figure = item->part[CARRY_ITEM_FIGURE];
        if (figure == NULL || strpbrk(figure, "0123456789") == NULL) {
            print_blunt(d, card, item->part[CARRY_ITEM_TEXT] != NULL ? item->part[CARRY_ITEM_TEXT] : "", item->line);
            blunt++;
        }
    }
    if (card->actionables.count == 0) {
        print_blunt(d, card, "nothing is to be done with this card yet", 1);
        blunt++;
    }
    return blunt;
}

static int run_sharpen(cli_cards_session *d, int count, char **words) {
    (void)count;
    (void)words;
    int blunt = 0;
    int cards = 0;
    for (int priority = 1; priority <= 4; priority++) { /* 4: no priority given */
        for (int i = 0; i < d->library->count; i++) {
            const carry_page *page = &d->library->page[i];
            if (page->kind == CARRY_PAGE_CARD && (page->priority != 0 ? page->priority : 4) == priority) {
                int more = sharpen_card(d, page);
                blunt += more;
                cards += more > 0;
            }
        }
    }
    if (!d->json) {
        (void)printf("%d actionables on %d cards lack a figure\n", blunt, cards);
    }
    return CLI_DONE;
}

static int run_list(cli_cards_session *d, int count, char **words) {
    (void)count;
    (void)words;
    for (int i = 0; i < d->library->count; i++) {
        const carry_page *page = &d->library->page[i];
        if (d->json) {
            cli_json_open();
            cli_json_text("id", page->id);
            cli_json_text("kind", carry_page_kind_name(page->kind));
            cli_json_text("title", page->title != NULL ? page->title : "");
            cli_json_close();
        } else {
            (void)printf("%-8s %-26s %s\n", carry_page_kind_name(page->kind), page->id,
                         page->title != NULL ? page->title : "");
        }
    }
    return CLI_DONE;
}

static const action actions[] = {
    {"find", true, 1, "cards find needs words to look for, for example carry cards find look-back", false, run_find},
    {"show", false, 1, "cards show needs one id (carry cards list shows them)", false, cli_cards_show},
    {"for", false, 1, "cards for needs the id of one finding (carry cards list shows them)", false, cli_cards_for},
    {"order", false, 0, "cards order takes no words but --goal TOPIC", false, run_order},
    {"check", false, 0, "cards check takes no words: it looks at the whole library", true, run_check},
    {"sharpen", false, 0, "cards sharpen takes no words: it looks at every card", false, run_sharpen},
    {"list", false, 0, "cards list takes no words", false, run_list},
};

static const action *find_action(const char *name) {
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        if (strcmp(actions[i].name, name) == 0) {
            return &actions[i];
        }
    }
    return NULL;
}

static int run_action(cli_cards_session *d, const action *what, const char *folder, int count, char **words) {
    if (carry_library_open(d->ctx, &d->library, folder) != CARRY_OK) {
        return cli_failed(d->ctx);
    }
    int code;
    if (!what->takes_broken && d->library->problems > 0) {
        code = cli_refuse("%s", d->library->problem[0].message);
    } else {
        code = what->run(d, count, words);
    }
    carry_library_close(d->library);
    return code;
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    cli_cards_session d = {.most = 10};
    const char *folder = NULL;
    const cli_option own[] = {
        {"library", 0, CLI_TEXT, &folder, "DIR", "the library (library/ here or in the nearest parent folder)"},
        {"goal", 0, CLI_TEXT, &d.goal, "TOPIC", "order: the topic to learn"},
        {"most", 0, CLI_NUMBER, &d.most, "N", "find: pages to show (10)"},
        {0},
    };
    int words = cli_parse(&cli_cards, count, arguments, own, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    char shown[64];
    const action *what = words > 0 ? find_action(arguments[0]) : NULL;
    if (what == NULL) {
        return words > 0 ? cli_refuse("cards has no '%s': expected find, show, for, order, check, sharpen or list",
                                      cli_shown(shown, arguments[0]))
                         : cli_refuse("cards needs one of find, show, for, order, check, sharpen or list");
    }
    if (words - 1 < what->takes || (words - 1 > what->takes && !what->takes_many)) {
        return cli_refuse("%s", what->missing);
    }
    if (d.goal != NULL && what->run != run_order) {
        return cli_refuse("--goal is for cards order, not for cards %s", what->name);
    }
    d.ctx = cli_open(&common);
    if (d.ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    d.json = common.json;
    int code = run_action(&d, what, folder, words - 1, arguments + 1);
    carry_ctx_free(d.ctx);
    return code;
}

const cli_verb cli_cards = {
    .name = "cards",
    .arguments = "WHAT ...",
    .summary = "search and check the reference library: sources, evidence, findings",
    .details =
        "  find WORDS         search all pages, best first, with the matching lines; exits with 1 if nothing is found\n"
        "  show ID            print one card, topic or finding\n"
        "  for FINDING        print what a finding measured, and the cards it is based on\n"
        "  order --goal TOPIC print the order in which to read the cards of a topic, and why\n"
        "  check              report broken ids, claims without evidence, and figures that are not in their sources;\n"
        "                     exits with 1 if there is a problem; warns of pages that cite an exported run of which a\n"
        "                     newer one is in docs/results/runs\n"
        "  sharpen            list actionables that lack a figure, the most important first\n"
        "  list               list all pages\n"
        "\n"
        "Words match in any inflected form. Pages are Markdown files with YAML front matter in library/cards,\n"
        "library/topics and library/findings; library/README.md describes their keys.",
    .example = "carry cards find decoupled look-back",
    .run = run,
};
