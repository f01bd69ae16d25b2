/* Checks the numbers that a card quotes from docs/results. The `figure` text of an actionable has parts separated by
   semicolons. If a part names a file such as docs/results/NAME.md, that file must contain each number that comes
   before the name in the part. Digits that follow a letter (H200, t4096) belong to a name and are not checked. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "lab/cards/cards.h"

#define FOLDER "docs/results/"
#define SOURCE_BYTES ((size_t)16 << 20)
#define NUMBER_BYTES 40

/* The length of the number at `at`: digits, groups and decimals, an exponent. */
static size_t number_length(const char *at) {
    size_t length = 0;
    while (isdigit((unsigned char)at[length]) ||
           ((at[length] == '.' || at[length] == ',') && isdigit((unsigned char)at[length + 1]))) {
        length++;
    }
    if (at[length] == 'e' &&
        (isdigit((unsigned char)at[length + 1]) || (at[length + 1] == '-' && isdigit((unsigned char)at[length + 2])))) {
        length += 2;
        length += strspn(at + length, "0123456789");
    }
    return length;
}

static bool starts_number(const char *text, const char *at) {
    unsigned char before = at > text ? (unsigned char)at[-1] : ' ';
    return isdigit((unsigned char)*at) && !isalnum(before) && before != '_';
}

/* Reports every number in text[0..length) that does not appear in `source`. */
static carry_status compare_part(carry_ctx *ctx, carry_library *library, const carry_page *page, int line,
                                 const char *text, size_t length, const char *name, const char *source) {
    for (const char *at = text; at < text + length; at++) {
        if (!starts_number(text, at)) {
            continue;
        }
        char number[NUMBER_BYTES];
        size_t digits = number_length(at);
        (void)snprintf(number, sizeof number, "%.*s", (int)(digits < sizeof number ? digits : sizeof number - 1), at);
        if (!carry_figure_stands_in(number, source)) {
            CARRY_TRY(carry_library_problem_add(ctx, library, page->path, line, "lost-figure",
                                                "%s is not in '%.120s', which the actionable cites", number, name));
        }
        at += digits - 1;
    }
    return CARRY_OK;
}

static carry_status check_part(carry_ctx *ctx, carry_library *library, const carry_page *page, int line,
                               const char *part, size_t length) {
    const char *cited = strstr(part, FOLDER);
    if (cited == NULL || cited >= part + length) {
        return CARRY_OK;
    }
    size_t name_length = strlen(FOLDER) + strcspn(cited + strlen(FOLDER), " ,;)\n");
    while (name_length > 0 && cited[name_length - 1] == '.') {
        name_length--;
    }
    char name[160], path[4096];
    (void)snprintf(name, sizeof name, "%.*s", (int)(name_length < sizeof name ? name_length : sizeof name - 1), cited);
    int wanted = snprintf(path, sizeof path, "%s/../%s", library->folder, name);
    if (strstr(name, "..") != NULL || wanted < 0 || (size_t)wanted >= sizeof path) {
        return carry_library_problem_add(ctx, library, page->path, line, "lost-figure",
                                         "'%.120s' is not a file of this project", name);
    }
    char *source = NULL;
    size_t bytes = 0;
    carry_status status = carry_file_read(ctx, &source, &bytes, path, SOURCE_BYTES);
    if (status == CARRY_EMEMORY) {
        return status;
    }
    if (status != CARRY_OK) {
        status = carry_library_problem_add(ctx, library, page->path, line, "lost-figure",
                                           "the source '%.120s', which the actionable cites, cannot be read", name);
    } else {
        status = compare_part(ctx, library, page, line, part, (size_t)(cited - part), name, source);
    }
    free(source);
    return status;
}

carry_status carry_library_check_cited(carry_ctx *ctx, carry_library *library, const carry_page *card) {
    for (int i = 0; i < card->actionables.count; i++) {
        const carry_page_item *item = &card->actionables.item[i];
        const char *part = item->part[CARRY_ITEM_FIGURE];
        while (part != NULL && *part != '\0') {
            size_t length = strcspn(part, ";");
            CARRY_TRY(check_part(ctx, library, card, item->line, part, length));
            part += length + (part[length] == ';');
        }
    }
    return CARRY_OK;
}
