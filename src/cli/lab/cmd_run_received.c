/* Bytes received per rank, by the number of ranks. */
#include <ctype.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/lab/cmd_run.h"

#define COLUMNS 8

/* The problem without its :pN. */
static void without_ranks(char text[CARRY_PROBLEM_TEXT], const char *problem) {
    const char *piece = problem;
    text[0] = '\0';
    for (size_t used = 0; *piece != '\0';) {
        const size_t length = strcspn(piece, ":");
        const bool is_ranks = piece[0] == 'p' && length > 1 && isdigit((unsigned char)piece[1]);
        if (!is_ranks) {
            used += (size_t)snprintf(text + used, CARRY_PROBLEM_TEXT - used, "%s%.*s", used > 0 ? ":" : "", (int)length,
                                     piece);
        }
        piece += length + (piece[length] == ':' ? 1 : 0);
    }
}

static bool is_measured(const carry_outcome *o) {
    return o->ranks > 0 && o->reason[0] == '\0';
}

/* True if a and b belong to the same row: they differ only in the number of ranks. */
static bool is_of_row(const carry_outcome *a, const carry_outcome *b) {
    char of_a[CARRY_PROBLEM_TEXT], of_b[CARRY_PROBLEM_TEXT];
    without_ranks(of_a, a->problem);
    without_ranks(of_b, b->problem);
    return is_measured(b) && strcmp(of_a, of_b) == 0 && strcmp(a->method, b->method) == 0 &&
           strcmp(a->stage, b->stage) == 0;
}

/* Collects the numbers of ranks in increasing order. */
static int columns_of(const carry_experiment *e, int columns[COLUMNS]) {
    int count = 0;
    for (int i = 0; i < e->outcomes; i++) {
        const carry_outcome *o = &e->outcome[i];
        int at = 0;
        while (at < count && columns[at] < o->ranks) {
            at++;
        }
        if (!is_measured(o) || count == COLUMNS || (at < count && columns[at] == o->ranks)) {
            continue;
        }
        memmove(&columns[at + 1], &columns[at], (size_t)(count - at) * sizeof *columns);
        columns[at] = o->ranks;
        count++;
    }
    return count;
}

static void print_row(const carry_experiment *e, const carry_outcome *row, const int *columns, int count) {
    char problem[CARRY_PROBLEM_TEXT];
    without_ranks(problem, row->problem);
    (void)printf("  %-40s %-10s", problem, row->method);
    for (int c = 0; c < count; c++) {
        const carry_outcome *found = NULL;
        for (int i = 0; i < e->outcomes; i++) {
            const carry_outcome *o = &e->outcome[i];
            found = o->ranks == columns[c] && is_of_row(row, o) ? o : found;
        }
        if (found != NULL) {
            (void)printf(" %11.0f", found->received);
        } else {
            (void)printf(" %11s", "-");
        }
    }
    (void)printf("\n");
}

void cli_print_received(const carry_experiment *e) {
    int columns[COLUMNS];
    const int count = columns_of(e, columns);
    if (count == 0) {
        return;
    }
    (void)printf("\n%sbytes received, by the rank that received most%s\n  %-51s", cli_bold(), cli_plain(), "");
    for (int c = 0; c < count; c++) {
        char head[16];
        (void)snprintf(head, sizeof head, "p%d", columns[c]);
        (void)printf(" %11s", head);
    }
    (void)printf("\n");
    for (int i = 0; i < e->outcomes; i++) {
        bool is_new = is_measured(&e->outcome[i]);
        for (int j = 0; j < i && is_new; j++) {
            is_new = !is_of_row(&e->outcome[i], &e->outcome[j]);
        }
        if (is_new) {
            print_row(e, &e->outcome[i], columns, count);
        }
    }
}
