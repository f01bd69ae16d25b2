/* Shared by store_open.c, store.c (writing), store_read.c and store_list.c. */
#ifndef CARRY_LAB_STORE_INTERNAL_H
#define CARRY_LAB_STORE_INTERNAL_H

#include <sqlite3.h>

#include "core/context.h"
#include "lab/store/store.h"

struct carry_store {
    carry_ctx *ctx;
    sqlite3 *db;
    char path[4096];
};

/* Prepares a statement with its values: i (int64_t), d (double, NaN is NULL), s (text, NULL is ""), b (bool as int).
   The caller steps and finalizes it. */
carry_status carry_store_prepare(carry_store *store, sqlite3_stmt **statement, const char *sql, const char *types, ...);
/* Runs and finalizes a statement that returns no rows. */
carry_status carry_store_exec(carry_store *store, const char *doing, sqlite3_stmt *statement);
/* CARRY_EUNSUPPORTED if the store `path`, its folder, its -wal file or the folder jobs beside it exists and belongs to
   another user. For a store that was found and not named: its owner decides which commands are run as jobs. */
carry_status carry_store_check_owner(carry_ctx *ctx, const char *path);
/* The commit of the current folder, "" without a repository or git. *dirty is 1, 0 or CARRY_CHANGES_UNKNOWN. */
void carry_store_ask_git(carry_ctx *ctx, char commit[64], int *dirty);
/* The machine's facts as JSON, which the caller frees; NULL when out of memory. */
char *carry_store_machine(carry_store *store, const carry_run_used *used);
/* The row of a machine with these facts, which is created if it does not exist. */
carry_status carry_store_machine_row(carry_store *store, int64_t *id, const char *text);
double carry_store_now(void); /* seconds since 1970 */
/* Commits if status is CARRY_OK, else rolls back. */
carry_status carry_store_finish(carry_store *store, carry_status status, const char *doing);
carry_status carry_store_insert_result(carry_store *store, int64_t run, const carry_stored_result *r,
                                       const double *samples, int count);
carry_status carry_store_samples(carry_store *store, int64_t result, const double *samples, int count);
/* Runs statements without values or rows. */
carry_status carry_store_script(carry_store *store, const char *doing, const char *sql);

#endif
