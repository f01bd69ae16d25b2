/* Searches the library. Its pages go into an FTS5 table in memory that is rebuilt for every search (thirty small
   files take milliseconds), so no index can be stale. A second table has the lines of the pages, to show where the
   words are. */
#include <ctype.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/cards/cards.h"
#include "lab/cards/cards_field.h"

/* Words in the title and the id weigh most, then those in `why`, then the rest. */
#define RANK "bm25(pages, 0.0, 10.0, 10.0, 3.0, 1.0)"
#define WORDS 32

static carry_status failed(carry_ctx *ctx, sqlite3 *db, const char *doing) {
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "the library cannot be searched: %s: %s", doing, sqlite3_errmsg(db));
}

static carry_status prepare(carry_ctx *ctx, sqlite3 *db, sqlite3_stmt **statement, const char *sql) {
    return sqlite3_prepare_v2(db, sql, -1, statement, NULL) == SQLITE_OK ? CARRY_OK : failed(ctx, db, "preparing");
}

static void bind_text(sqlite3_stmt *statement, int at, const char *text, size_t length) {
    (void)sqlite3_bind_text64(statement, at, text != NULL ? text : "", text != NULL ? length : 0, SQLITE_TRANSIENT,
                              SQLITE_UTF8);
}

static carry_status step_once(carry_ctx *ctx, sqlite3 *db, sqlite3_stmt *statement) {
    bool done = sqlite3_step(statement) == SQLITE_DONE;
    (void)sqlite3_reset(statement);
    return done ? CARRY_OK : failed(ctx, db, "indexing");
}

static carry_status index_lines(carry_ctx *ctx, sqlite3 *db, sqlite3_stmt *insert, int number, const carry_page *page) {
    int line = 1;
    for (const char *at = page->text; *at != '\0'; line++) {
        size_t length = strcspn(at, "\n");
        (void)sqlite3_bind_int(insert, 1, number);
        (void)sqlite3_bind_int(insert, 2, line);
        bind_text(insert, 3, at, length);
        CARRY_TRY(step_once(ctx, db, insert));
        at += length + (at[length] == '\n' ? 1 : 0);
    }
    return CARRY_OK;
}

static carry_status index_pages(carry_ctx *ctx, sqlite3 *db, sqlite3_stmt *page_insert, sqlite3_stmt *line_insert,
                                const carry_library *library) {
    for (int i = 0; i < library->count; i++) {
        const carry_page *page = &library->page[i];
        (void)sqlite3_bind_int(page_insert, 1, i);
        bind_text(page_insert, 2, page->id, strlen(page->id));
        bind_text(page_insert, 3, page->title, page->title != NULL ? strlen(page->title) : 0);
        bind_text(page_insert, 4, page->why, page->why != NULL ? strlen(page->why) : 0);
        bind_text(page_insert, 5, page->text, strlen(page->text));
        CARRY_TRY(step_once(ctx, db, page_insert));
        CARRY_TRY(index_lines(ctx, db, line_insert, i, page));
    }
    return CARRY_OK;
}

static carry_status build(carry_ctx *ctx, sqlite3 *db, const carry_library *library) {
    static const char schema[] =
        "CREATE VIRTUAL TABLE pages USING fts5(page UNINDEXED, id, title, why, text, tokenize='porter unicode61');"
        "CREATE VIRTUAL TABLE lines USING fts5(page UNINDEXED, number UNINDEXED, text, tokenize='porter unicode61');"
        "BEGIN;";
    if (sqlite3_exec(db, schema, NULL, NULL, NULL) != SQLITE_OK) {
        return failed(ctx, db, "this SQLite may lack FTS5");
    }
    sqlite3_stmt *page_insert = NULL;
    sqlite3_stmt *line_insert = NULL;
    carry_status status = prepare(ctx, db, &page_insert, "INSERT INTO pages VALUES(?,?,?,?,?)");
    if (status == CARRY_OK) {
        status = prepare(ctx, db, &line_insert, "INSERT INTO lines VALUES(?,?,?)");
    }
    if (status == CARRY_OK) {
        status = index_pages(ctx, db, page_insert, line_insert, library);
    }
    (void)sqlite3_finalize(page_insert);
    (void)sqlite3_finalize(line_insert);
    if (status == CARRY_OK && sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK) {
        status = failed(ctx, db, "indexing");
    }
    return status;
}

static bool has_letter(const char *word) {
    for (; *word != '\0'; word++) {
        if (isalnum((unsigned char)*word) || (unsigned char)*word >= 0x80) {
            return true;
        }
    }
    return false;
}

/* Turns each word into a quoted phrase with its own quotes doubled, so that no FTS5 syntax is left. Words without a
   letter or digit are dropped. NULL when out of memory; "" if no word is left. */
static char *query_of(const char *const *words, int count, const char *joint, const char *tail) {
    size_t size = 1;
    for (int i = 0; i < count; i++) {
        size += 2 * strlen(words[i]) + 2 + strlen(joint) + strlen(tail);
    }
    char *query = malloc(size);
    char *to = query;
    for (int i = 0; query != NULL && i < count; i++) {
        if (!has_letter(words[i])) {
            continue;
        }
        if (to != query) {
            to = stpcpy(to, joint);
        }
        *to++ = '"';
        for (const char *from = words[i]; *from != '\0'; from++) {
            if (*from == '"') {
                *to++ = '"';
            }
            *to++ = *from;
        }
        *to++ = '"';
        to = stpcpy(to, tail);
    }
    if (query != NULL) {
        *to = '\0';
    }
    return query;
}

static carry_status read_pages(carry_ctx *ctx, sqlite3 *db, const carry_library *library, const char *query,
                               carry_found *found, int *count) {
    sqlite3_stmt *select = NULL;
    CARRY_TRY(
        prepare(ctx, db, &select, "SELECT page, -" RANK " FROM pages WHERE pages MATCH ? ORDER BY " RANK ", page"));
    bind_text(select, 1, query, strlen(query));
    int code;
    *count = 0;
    while ((code = sqlite3_step(select)) == SQLITE_ROW && *count < library->count) {
        int page = sqlite3_column_int(select, 0);
        found[(*count)++] = (carry_found){.page = &library->page[page], .score = sqlite3_column_double(select, 1)};
    }
    (void)sqlite3_finalize(select);
    return code == SQLITE_DONE ? CARRY_OK : failed(ctx, db, "searching");
}

/* Cuts a text at a whole character. */
static void copy_cut(char *to, size_t size, const char *from) {
    size_t length = strlen(from);
    if (length >= size) {
        length = size - 1;
        while (length > 0 && ((unsigned char)from[length] & 0xc0) == 0x80) {
            length--;
        }
    }
    memcpy(to, from, length);
    to[length] = '\0';
}

/* Finds the lines with the most of the words, and shows them in the order of the page. */
static carry_status read_lines(carry_ctx *ctx, sqlite3 *db, const carry_library *library, const char *query,
                               carry_found *found) {
    sqlite3_stmt *select = NULL;
    CARRY_TRY(prepare(ctx, db, &select,
                      "SELECT number, text FROM (SELECT number, text FROM lines WHERE lines MATCH ?1 AND page = ?2 "
                      "ORDER BY bm25(lines), number LIMIT ?3) ORDER BY number"));
    bind_text(select, 1, query, strlen(query));
    (void)sqlite3_bind_int(select, 2, (int)(found->page - library->page));
    (void)sqlite3_bind_int(select, 3, CARRY_FOUND_LINES);
    int code;
    while ((code = sqlite3_step(select)) == SQLITE_ROW && found->lines < CARRY_FOUND_LINES) {
        const char *text = (const char *)sqlite3_column_text(select, 1);
        text = text != NULL ? text + strspn(text, " -#\t") : "";
        found->line[found->lines].number = sqlite3_column_int(select, 0);
        copy_cut(found->line[found->lines].text, sizeof found->line[0].text, text);
        found->lines++;
    }
    (void)sqlite3_finalize(select);
    return code == SQLITE_DONE ? CARRY_OK : failed(ctx, db, "searching");
}

static carry_status search(carry_ctx *ctx, sqlite3 *db, const carry_library *library, const char *all, const char *any,
                           carry_found *found, int *count, bool *some) {
    CARRY_TRY(build(ctx, db, library));
    CARRY_TRY(read_pages(ctx, db, library, all, found, count));
    *some = *count == 0;
    if (*some) {
        CARRY_TRY(read_pages(ctx, db, library, any, found, count));
    }
    for (int i = 0; i < *count; i++) {
        CARRY_TRY(read_lines(ctx, db, library, any, &found[i]));
    }
    return CARRY_OK;
}

carry_status carry_library_find(carry_ctx *ctx, const carry_library *library, const char *const *words, int count,
                                carry_found **found, int *found_count, bool *some) {
    *found = NULL;
    *found_count = 0;
    *some = false;
    if (count > WORDS) {
        return carry_fail(ctx, CARRY_ESIZE, "%d words are more than the %d that are searched for", count, WORDS);
    }
    char *all = query_of(words, count, " ", "");
    char *any = query_of(words, count, " OR ", "*"); /* matches words by their beginning */
    carry_found *list = calloc((size_t)library->count + 1, sizeof *list);
    sqlite3 *db = NULL;
    carry_status status = CARRY_OK;
    if (all == NULL || any == NULL || list == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: a search of %d pages", library->count);
    } else if (all[0] == '\0') {
        status = carry_fail(ctx, CARRY_EARGUMENT, "a word to search for needs a letter or a digit");
    } else if (sqlite3_open(":memory:", &db) != SQLITE_OK) {
        status = carry_fail(ctx, CARRY_EMEMORY, "SQLite cannot be opened in memory");
    } else {
        status = search(ctx, db, library, all, any, list, found_count, some);
    }
    (void)sqlite3_close(db);
    free(all);
    free(any);
    if (status != CARRY_OK) {
        free(list);
        *found_count = 0;
        return status;
    }
    *found = list;
    return CARRY_OK;
}
