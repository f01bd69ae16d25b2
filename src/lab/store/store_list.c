/* The run store: short lists of many runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/store/store_internal.h"

#define MOST_RUNS 1000000

/* Reads one line of a list. Texts are cut to their fields. */
static void read_line(carry_run_line *line, sqlite3_stmt *row) {
    const struct {
        char *to;
        size_t size;
    } texts[] = {{line->kind, sizeof line->kind},
                 {line->name, sizeof line->name},
                 {line->state, sizeof line->state},
                 {line->decision, sizeof line->decision},
                 {line->commit, sizeof line->commit}};
    *line =
        (carry_run_line){.id = sqlite3_column_int64(row, 0),
                         .dirty = sqlite3_column_bytes(row, 5) > 0 ? sqlite3_column_int(row, 6) : CARRY_CHANGES_UNKNOWN,
                         .started = sqlite3_column_double(row, 7),
                         .ended = sqlite3_column_double(row, 8),
                         .results = sqlite3_column_int64(row, 9),
                         .others = sqlite3_column_int64(row, 10)};
    for (int i = 0; i < 5; i++) {
        const char *text = (const char *)sqlite3_column_text(row, i + 1);
        (void)snprintf(texts[i].to, texts[i].size, "%s", text != NULL ? text : "");
    }
}

static carry_status read_lines(carry_store *store, carry_run_line **lines, int *count, sqlite3_stmt *row) {
    int room = 0;
    int code;
    while ((code = sqlite3_step(row)) == SQLITE_ROW) {
        if (*count == room) {
            room = room == 0 ? 64 : 2 * room;
            carry_run_line *larger = realloc(*lines, (size_t)room * sizeof **lines);
            if (larger == NULL) {
                return carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: %d runs", room);
            }
            *lines = larger;
        }
        read_line(&(*lines)[(*count)++], row);
    }
    return code == SQLITE_DONE ? CARRY_OK : carry_store_fail(store, "listing runs");
}

carry_status carry_store_lines(carry_store *store, carry_run_line **lines, int *count, const char *kind,
                               const char *prefix, int limit) {
    sqlite3_stmt *statement;
    *lines = NULL;
    *count = 0;
    CARRY_TRY(carry_store_prepare(
        store, &statement,
        "SELECT id, kind, name, state, decision, commit_hash, dirty, started, ended, (SELECT count(*) FROM results "
        "WHERE run = runs.id), EXISTS(SELECT 1 FROM metrics WHERE run = runs.id) + EXISTS(SELECT 1 FROM artefacts "
        "WHERE run = runs.id) FROM runs WHERE (?1 = '' OR kind = ?1) AND (?3 = '' OR substr(name, 1, length(?3)) = ?3) "
        "ORDER "
        "BY id DESC LIMIT ?2",
        "sis", kind, (int64_t)(limit > 0 ? limit : MOST_RUNS), prefix));
    carry_status status = read_lines(store, lines, count, statement);
    (void)sqlite3_finalize(statement);
    if (status != CARRY_OK) {
        free(*lines);
        *lines = NULL;
        *count = 0;
    }
    return status;
}

carry_status carry_store_ids(carry_store *store, int64_t **ids, int *count, const char *kind, int limit) {
    carry_run_line *lines;
    *ids = NULL;
    CARRY_TRY(carry_store_lines(store, &lines, count, kind, NULL, limit));
    int64_t *all = malloc((size_t)(*count > 0 ? *count : 1) * sizeof *all);
    for (int i = 0; all != NULL && i < *count; i++) {
        all[i] = lines[i].id;
    }
    free(lines);
    *ids = all;
    return all != NULL ? CARRY_OK : carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: %d runs", *count);
}
