/* What store_open.c, store.c (writing), store_read.c and store_list.c share. */
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

/* A statement with its values: i (int64_t), d (double, NaN is NULL), s (text, NULL is ""), b (bool as int). It is the
   caller's to step and to finalize. */
carry_status carry_store_prepare(carry_store *store, sqlite3_stmt **statement, const char *sql, const char *types, ...);
/* A statement that gives no rows, run and finalized. */
carry_status carry_store_exec(carry_store *store, const char *doing, sqlite3_stmt *statement);
/* CARRY_EUNSUPPORTED when the folder .carry of this path, the store in it or the jobs beside that exist and belong to
   another user. For a store that was found by walking upwards: its owner decides what is run from it. */
carry_status carry_store_check_owner(carry_ctx *ctx, const char *path);
/* Statements without values or rows. */
carry_status carry_store_script(carry_store *store, const char *doing, const char *sql);

#endif
