/* Shared by the files of carry cards: their common state, and printing a page. */
#ifndef CARRY_CLI_CMD_CARDS_H
#define CARRY_CLI_CMD_CARDS_H

#include "cli/cli.h"
#include "lab/cards/cards.h"

typedef struct cli_cards_session {
    carry_ctx *ctx;
    carry_library *library;
    bool json;
    const char *goal;
    int64_t most;
} cli_cards_session;

/* Prints wrapped text. The first line starts at the cursor, in `column`, and the others at `indent`. */
void cli_cards_wrapped(int indent, int column, const char *text);
/* Prints the id, the title and, unless it is a card, the kind. */
void cli_cards_head(const carry_page *page);
/* Prints an error for an id that no page has. */
int cli_cards_unknown(const char *what, const char *id);

/* The verbs show and for. */
int cli_cards_show(cli_cards_session *d, int count, char **words);
int cli_cards_for(cli_cards_session *d, int count, char **words);

#endif
