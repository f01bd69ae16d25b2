/* The run store: continues a run that has ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/alive.h"
#include "lab/store/store_internal.h"
#include "core/json_write.h"

static carry_status check_commit(carry_store *store, int64_t run, const char *stored) {
    char commit[64];
    int dirty;
    carry_store_ask_git(store->ctx, commit, &dirty);
    if (strcmp(stored, commit) == 0) {
        return CARRY_OK;
    }
    return carry_fail(store->ctx, CARRY_EUNSUPPORTED,
                      "run %lld was measured at commit %.12s and this folder is at %.12s: check that commit out and "
                      "build it, or begin a new run (nothing was changed)",
                      (long long)run, stored[0] != '\0' ? stored : "(none)", commit[0] != '\0' ? commit : "(none)");
}

static carry_status check_run(carry_store *store, int64_t run) {
    sqlite3_stmt *row;
    char commit[64];
    char host[128];
    CARRY_TRY(carry_store_prepare(store, &row, "SELECT commit_hash, state, host FROM runs WHERE id = ?1", "i", run));
    if (sqlite3_step(row) != SQLITE_ROW) {
        (void)sqlite3_finalize(row);
        return carry_fail(store->ctx, CARRY_ENOTFOUND, "there is no run %lld in %s", (long long)run, store->path);
    }
    const char *const texts[] = {(const char *)sqlite3_column_text(row, 0), (const char *)sqlite3_column_text(row, 1),
                                 (const char *)sqlite3_column_text(row, 2)};
    (void)snprintf(commit, sizeof commit, "%s", texts[0] != NULL ? texts[0] : "");
    (void)snprintf(host, sizeof host, "%s", texts[2] != NULL ? texts[2] : "");
    const bool is_running = texts[1] != NULL && strcmp(texts[1], "running") == 0;
    (void)sqlite3_finalize(row);
    if (is_running) { /* if its process were gone, a run of this machine would have been marked as killed */
        return carry_fail(store->ctx, CARRY_EARGUMENT, "run %lld is still running on %s: it cannot be continued yet",
                          (long long)run, host);
    }
    return check_commit(store, run, commit);
}

/* The list of invocations with one more, which the caller frees. */
static char *append_invocation(carry_store *store, const char *before, const char *command, int *invocation) {
    carry_json *list = NULL;
    carry_json_text text = {0};
    if (before != NULL) {
        (void)carry_json_parse(store->ctx, &list, before, strlen(before), "the list of invocations");
    }
    carry_json_begin(&text, NULL, '[');
    const bool is_list = list != NULL && list->kind == CARRY_JSON_ARRAY;
    for (const carry_json *at = is_list ? carry_json_first(list) : NULL; at != NULL; at = at->next) {
        carry_json_add_node(&text, NULL, at);
    }
    *invocation = 1 + (is_list ? (int)carry_json_count(list) : 0);
    carry_json_free(list);
    char *facts = carry_store_machine(store, &(carry_run_used){0});
    carry_json_begin(&text, NULL, '{');
    carry_json_add_text(&text, "command", command);
    carry_json_add_number(&text, "started", carry_store_now());
    if (facts != NULL) {
        carry_json_put_raw(&text, ",\"machine\":%s", facts);
    }
    carry_json_end(&text, '}');
    carry_json_end(&text, ']');
    free(facts);
    return carry_json_text_take(&text);
}

static carry_status take_up(carry_store *store, int64_t run, const char *invocations) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE runs SET state = 'running', decision = '', ended = NULL, pid = ?2, "
                                  "process_start = ?3, boot = ?4, host = ?5 WHERE id = ?1 AND state <> 'running'",
                                  "iiiss", run, (int64_t)getpid(), carry_alive_start((int64_t)getpid()),
                                  carry_alive_boot(), carry_alive_host()));
    CARRY_TRY(carry_store_exec(store, "continuing a run", statement));
    if (sqlite3_changes(store->db) != 1) {
        return carry_fail(store->ctx, CARRY_EARGUMENT, "run %lld is being continued by another process",
                          (long long)run);
    }
    CARRY_TRY(carry_store_prepare(store, &statement, "DELETE FROM criteria WHERE run = ?1", "i", run));
    CARRY_TRY(carry_store_exec(store, "continuing a run", statement));
    return carry_store_artefact(store, run, CARRY_STORE_INVOCATIONS, invocations, strlen(invocations));
}

carry_status carry_store_resume(carry_store *store, int64_t run, const char *command, int *invocation) {
    void *before = NULL;
    size_t length = 0;
    CARRY_TRY(check_run(store, run));
    const carry_status read = carry_store_artefact_read(store, run, CARRY_STORE_INVOCATIONS, &before, &length);
    if (read != CARRY_OK && read != CARRY_ENOTFOUND) {
        return read;
    }
    char *text = append_invocation(store, before, command, invocation);
    free(before);
    if (text == NULL) {
        return carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: invocations of run %lld", (long long)run);
    }
    carry_status status = carry_store_script(store, "continuing a run", "BEGIN IMMEDIATE");
    if (status == CARRY_OK) {
        status = carry_store_finish(store, take_up(store, run, text), "continuing a run");
    }
    free(text);
    return status;
}

/* The id of the result with this index; 0: none. */
static carry_status result_at(carry_store *store, int64_t run, int64_t place, int64_t *id) {
    sqlite3_stmt *row;
    CARRY_TRY(carry_store_prepare(store, &row, "SELECT id FROM results WHERE run = ?1 ORDER BY id LIMIT 1 OFFSET ?2",
                                  "ii", run, place));
    const int code = sqlite3_step(row);
    *id = code == SQLITE_ROW ? sqlite3_column_int64(row, 0) : 0;
    (void)sqlite3_finalize(row);
    return code == SQLITE_ROW || code == SQLITE_DONE ? CARRY_OK : carry_store_fail(store, "looking for a result");
}

static carry_status replace(carry_store *store, int64_t run, int64_t place, int64_t id, const carry_stored_result *r) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement, "DELETE FROM samples WHERE result = ?1", "i", id));
    CARRY_TRY(carry_store_exec(store, "replacing a result", statement));
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "DELETE FROM metrics WHERE run = ?1 AND step = ?2 AND instr(name, ':') = 0", "ii",
                                  run, place));
    CARRY_TRY(carry_store_exec(store, "replacing a result", statement));
    CARRY_TRY(carry_store_prepare(
        store, &statement,
        "UPDATE results SET problem = ?2, method = ?3, device = ?4, reason = ?5, planned = ?6, products = ?7, median = "
        "?8, spread = ?9, flops = ?10, bytes = ?11, workspace = ?12, tokens = ?13, share = ?14, error = ?15, "
        "error_absolute = ?16, bound = ?17, gemm_gflops = ?18, copy_gbytes_s = ?19 WHERE id = ?1",
        "issssbidddddddddddd", id, r->problem, r->method, r->device, r->reason, (int)r->planned, r->products, r->median,
        r->spread, r->flops, r->bytes, r->workspace, r->tokens, r->share, r->error, r->error_absolute, r->bound,
        r->gemm_gflops, r->copy_gbytes_s));
    return carry_store_exec(store, "replacing a result", statement);
}

static carry_status put(carry_store *store, int64_t run, int64_t place, const carry_stored_result *r,
                        const double *samples, int count) {
    int64_t id = 0;
    CARRY_TRY(result_at(store, run, place, &id));
    if (id == 0) {
        return carry_store_insert_result(store, run, r, samples, count);
    }
    CARRY_TRY(replace(store, run, place, id, r));
    return carry_store_samples(store, id, samples, count);
}

carry_status carry_store_result_at(carry_store *store, int64_t run, int64_t place, const carry_stored_result *result,
                                   const double *samples, int count) {
    CARRY_TRY(carry_store_script(store, "storing a result", "BEGIN IMMEDIATE"));
    return carry_store_finish(store, put(store, run, place, result, samples, count), "storing a result");
}

carry_status carry_store_forget_metric(carry_store *store, int64_t run, const char *name) {
    sqlite3_stmt *statement;
    CARRY_TRY(
        carry_store_prepare(store, &statement, "DELETE FROM metrics WHERE run = ?1 AND name = ?2", "is", run, name));
    return carry_store_exec(store, "forgetting a metric", statement);
}
