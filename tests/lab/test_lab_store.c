/* The run store: a stored run reads back the same, and files of other programs are not changed. */
#include <fcntl.h>
#include <math.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include "core/file.h"
#include "lab/store/store_schema.h"
#include "store.h"

/* The contents of a file that must stay unchanged. */
typedef struct bytes {
    char *text;
    size_t length;
} bytes;

static bytes bytes_of(const char *name) {
    bytes b = {0};
    assert_ok(ctx, carry_file_read(ctx, &b.text, &b.length, name, (size_t)1 << 30));
    return b;
}

static void assert_unchanged(bytes before, const char *name) {
    bytes now = bytes_of(name);
    assert_int_equal(now.length, before.length);
    assert_memory_equal(now.text, before.text, before.length);
    free(now.text);
    free(before.text);
}

static void sql(const char *name, const char *text, bool keep_wal) {
    sqlite3 *db;
    assert_int_equal(sqlite3_open(name, &db), SQLITE_OK);
    (void)sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep_wal, NULL);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void test_everything_comes_out_as_it_went_in(void **state) {
    (void)state;
    carry_store *store = open_store();
    int64_t run;
    assert_ok(ctx, carry_store_begin(store, &run,
                                     &(carry_run_start){.kind = "experiment",
                                                        .name = "n'a\"me \xc3\xa4",
                                                        .command = "carry run 'a b'",
                                                        .spec = "name: x\n"}));
    double samples[] = {3e-3, 1e-3, 2.000000000000001e-3};
    carry_stored_result r = {.problem = "scan:dense:t8",
                             .method = "cyclic",
                             .device = "cpu",
                             .reason = "",
                             .planned = true,
                             .products = INT64_MAX,
                             .median = 2e-3,
                             .spread = 0.5,
                             .flops = 1e12,
                             .bytes = 3.0,
                             .workspace = 0.0,
                             .tokens = NAN,
                             .share = 0.25,
                             .error = INFINITY,
                             .error_absolute = NAN,
                             .bound = 1e-300,
                             .gemm_gflops = 7.0,
                             .copy_gbytes_s = 8.0};
    assert_ok(ctx, carry_store_result(store, run, &r, samples, 3));
    r = (carry_stored_result){.problem = "p", .method = "m", .device = "cuda", .reason = "there is no GPU here"};
    assert_ok(ctx, carry_store_result(store, run, &r, NULL, 0));
    assert_ok(ctx, carry_store_criterion(
                       store, run,
                       &(carry_stored_criterion){
                           .side = "failure", .text = "a < b", .value = NAN, .bound = 2, .verdict = "not measured"}));
    assert_ok(ctx, carry_store_artefact(store, run, "trace.json.gz", "a\0b", 3));
    assert_ok(ctx, carry_store_artefact(store, run, "empty", NULL, 0));
    assert_ok(ctx, carry_store_artefact(store, run, "trace.json.gz", "a\0bc", 4)); /* replaced */
    assert_ok(ctx, carry_store_metric(store, run, 2, "loss", 0.5));
    assert_ok(ctx, carry_store_metric(store, run, 1, "loss", NAN));
    assert_ok(ctx, carry_store_end(store, run, "done", "stop", "a note"));
    carry_store_close(store);

    store = open_store();
    carry_run *got;
    assert_ok(ctx, carry_store_load(store, &got, run));
    assert_string_equal(got->name, "n'a\"me \xc3\xa4");
    assert_string_equal(got->kind, "experiment");
    assert_string_equal(got->command, "carry run 'a b'");
    assert_string_equal(got->spec, "name: x\n");
    assert_string_equal(got->state, "done");
    assert_string_equal(got->decision, "stop");
    assert_string_equal(got->note, "a note");
    assert_true(got->started > 1.7e9 && got->ended >= got->started && got->ended < got->started + 600);
    assert_int_equal(got->results, 2);
    const carry_run_result *first = &got->result[0];
    assert_int_equal(first->samples, 3);
    assert_memory_equal(first->sample, samples, sizeof samples);
    assert_true(first->is.planned && first->is.products == INT64_MAX && first->is.median == 2e-3);
    assert_true(isinf(first->is.error) && first->is.error > 0.0 && first->is.bound == 1e-300);
    assert_true(isnan(first->is.tokens) && isnan(first->is.error_absolute) && first->is.workspace == 0.0);
    assert_true(first->is.gemm_gflops == 7.0 && first->is.copy_gbytes_s == 8.0 && first->is.share == 0.25);
    assert_string_equal(got->result[1].is.reason, "there is no GPU here");
    assert_int_equal(got->result[1].samples, 0);
    assert_int_equal(got->criteria, 1);
    assert_true(isnan(got->criterion[0].value) && got->criterion[0].bound == 2.0);
    assert_string_equal(got->criterion[0].reason, "");
    assert_int_equal(got->artefacts, 2);
    assert_string_equal(got->artefact[1].name, "trace.json.gz");
    assert_int_equal(got->artefact[1].bytes, 4);
    assert_int_equal(got->metrics, 2);
    assert_true(got->metric[0].step == 1 && isnan(got->metric[0].value) && got->metric[1].value == 0.5);
    bool cpu = false;
    bool compiler = false;
    for (int i = 0; i < got->facts; i++) {
        cpu = cpu || (strcmp(got->fact[i].name, "cpu") == 0 && strlen(got->fact[i].value) > 0);
        compiler = compiler || strcmp(got->fact[i].name, "compiler") == 0;
    }
    assert_true(cpu && compiler);
    carry_run_free(got);
    void *content;
    size_t length;
    assert_ok(ctx, carry_store_artefact_read(store, run, "trace.json.gz", &content, &length));
    assert_int_equal(length, 4);
    assert_memory_equal(content, "a\0bc", 4);
    free(content);
    assert_refused(ctx, CARRY_ENOTFOUND, "has no artefact 'other'",
                   carry_store_artefact_read(store, run, "other", &content, &length));
    assert_refused(ctx, CARRY_ESIZE, "more than the 64 MiB",
                   carry_store_artefact(store, run, "huge", "", ((size_t)64 << 20) + 1));
    carry_store_close(store);
}

static void test_runs_are_found_listed_and_deleted(void **state) {
    (void)state;
    carry_store *store = open_store();
    int64_t id;
    assert_refused(ctx, CARRY_ENOTFOUND, "there is no run 'last'", carry_store_find(store, &id, "last"));
    int64_t one = begin(store, "026-cyclic");
    int64_t two = begin(store, "other");
    int64_t three = begin(store, "026-cyclic");
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)two);
    assert_ok(ctx, carry_store_find(store, &id, text));
    assert_int_equal(id, two);
    assert_ok(ctx, carry_store_find(store, &id, "last"));
    assert_int_equal(id, three);
    assert_ok(ctx, carry_store_find(store, &id, "026-cyclic"));
    assert_int_equal(id, three);
    assert_refused(ctx, CARRY_ENOTFOUND, "there is no run '99'", carry_store_find(store, &id, "99"));
    assert_refused(ctx, CARRY_ENOTFOUND, "there is no run", carry_store_find(store, &id, "99999999999999999999"));
    assert_refused(ctx, CARRY_ENOTFOUND, "there is no run ''", carry_store_find(store, &id, ""));

    carry_stored_result r = some_result("p");
    assert_ok(ctx, carry_store_result(store, two, &r, (double[]){1.0}, 1));
    assert_ok(ctx, carry_store_metric(store, three, 1, "loss", 1.0));
    carry_run_line *lines;
    int count;
    assert_ok(ctx, carry_store_lines(store, &lines, &count, NULL, NULL, 0));
    assert_int_equal(count, 3);
    assert_true(lines[0].id == three && lines[1].id == two && lines[2].id == one);
    assert_true(lines[1].results == 1 && lines[1].others == 0 && lines[0].others == 1 && lines[2].others == 0);
    assert_string_equal(lines[0].state, "running");
    free(lines);
    int64_t *ids;
    assert_ok(ctx, carry_store_ids(store, &ids, &count, "experiment", 2));
    assert_int_equal(count, 2);
    assert_int_equal(ids[0], three);
    free(ids);
    assert_ok(ctx, carry_store_ids(store, &ids, &count, "train", 0));
    assert_int_equal(count, 0);
    free(ids);

    assert_ok(ctx, carry_store_delete(store, two));
    carry_run *run = (carry_run *)&ctx;
    assert_refused(ctx, CARRY_ENOTFOUND, "there is no run", carry_store_load(store, &run, two));
    assert_null(run);
    assert_refused(ctx, CARRY_ENOTFOUND, "is no longer in", carry_store_end(store, two, "done", NULL, NULL));
    assert_int_not_equal(carry_store_result(store, two, &r, (double[]){1.0}, 1), CARRY_OK); /* no orphans */
    sqlite3_stmt *left;
    assert_int_equal(sqlite3_prepare_v2(carry_store_db(store),
                                        "SELECT (SELECT count(*) FROM results) + (SELECT count(*) "
                                        "FROM samples)",
                                        -1, &left, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(left), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(left, 0), 0);
    (void)sqlite3_finalize(left);
    int64_t four = begin(store, "after");
    assert_true(four > three); /* a number is never used twice */
    carry_store_close(store);
}

static void test_compacting_gives_room_back(void **state) {
    (void)state;
    carry_store *store = open_store();
    int64_t run = begin(store, "large");
    size_t length = (size_t)8 << 20;
    char *content = calloc(1, length);
    assert_non_null(content);
    assert_ok(ctx, carry_store_artefact(store, run, "large", content, length));
    carry_store_close(store);
    struct stat before;
    struct stat after;
    assert_int_equal(stat(path, &before), 0);
    assert_true(before.st_size > (off_t)length);
    store = open_store();
    assert_ok(ctx, carry_store_delete(store, run));
    assert_ok(ctx, carry_store_compact(store));
    carry_store_close(store);
    assert_int_equal(stat(path, &after), 0);
    assert_true(after.st_size < (off_t)1 << 20);
    free(content);
}

static void test_a_newer_store_is_refused_and_left_byte_for_byte(void **state) {
    (void)state;
    carry_store *store = open_store();
    (void)begin(store, "kept");
    carry_store_close(store);
    sql(path, "PRAGMA user_version=99", false);
    bytes before = bytes_of(path);
    assert_refused(ctx, CARRY_EUNSUPPORTED, "newer carry (store version 99, this one knows",
                   carry_store_open(ctx, &store, path));
    assert_null(store);
    assert_unchanged(before, path);
    /* With changes that its own program has not yet moved from the log into the file. */
    sql(path, "CREATE TABLE unknown(x); INSERT INTO unknown VALUES(1)", true);
    char log[160];
    (void)snprintf(log, sizeof log, "%s-wal", path);
    bytes file = bytes_of(path);
    bytes wal = bytes_of(log);
    assert_true(wal.length > 0);
    assert_refused(ctx, CARRY_EUNSUPPORTED, "nothing was changed", carry_store_open(ctx, &store, path));
    assert_unchanged(file, path);
    assert_unchanged(wal, log);
}

/* A trigger could change stored values, for example the command of the next job. */
static void test_a_store_with_triggers_or_views_is_refused(void **state) {
    (void)state;
    static const char *const programs[] = {
        "CREATE TRIGGER t AFTER INSERT ON jobs BEGIN UPDATE jobs SET arguments = '[\"evil\"]'; END",
        "DROP TRIGGER t; CREATE VIEW v AS SELECT 1"};
    carry_store *store = open_store();
    carry_store_close(store);
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        sql(path, programs[i], false);
        assert_refused(ctx, CARRY_EFORMAT, "holds 1 triggers or views", carry_store_open(ctx, &store, path));
    }
    sql(path, "DROP VIEW v", false);
    assert_ok(ctx, carry_store_open(ctx, &store, path));
    carry_store_close(store);
}

static void test_what_is_no_store_is_refused_and_left_byte_for_byte(void **state) {
    (void)state;
    carry_store *store;
    sql(path, "CREATE TABLE cookies(name); INSERT INTO cookies VALUES('a')", false);
    bytes before = bytes_of(path);
    assert_refused(ctx, CARRY_EFORMAT, "is a database, but not a run store", carry_store_open(ctx, &store, path));
    assert_unchanged(before, path);
    sql(path, "PRAGMA user_version=1; PRAGMA application_id=77", false);
    before = bytes_of(path);
    assert_refused(ctx, CARRY_EFORMAT, "is a database, but not a run store", carry_store_open(ctx, &store, path));
    assert_unchanged(before, path);
    assert_int_equal(unlink(path), 0);

    assert_ok(ctx, carry_file_replace(ctx, path, "a letter to somebody, long enough to be a header of a file\n", 59));
    before = bytes_of(path);
    assert_refused(ctx, CARRY_EFORMAT, "not a database", carry_store_open(ctx, &store, path));
    assert_unchanged(before, path);
    assert_refused(ctx, CARRY_EIO, folder, carry_store_open(ctx, &store, folder));
    assert_int_equal(unlink(path), 0);

    /* A store by its application id, but without the store's tables. */
    char text[128];
    (void)snprintf(text, sizeof text, "PRAGMA application_id=%d; PRAGMA user_version=%d; CREATE TABLE x(y)",
                   CARRY_STORE_APPLICATION, CARRY_STORE_VERSION);
    sql(path, text, false);
    carry_status status = carry_store_open(ctx, &store, path);
    if (status == CARRY_OK) {
        int64_t id;
        status = carry_store_find(store, &id, "last");
        carry_store_close(store);
    }
    assert_int_equal(status, CARRY_EIO);
    assert_non_null(strstr(carry_ctx_error(ctx), "no such table"));
}

/* A store truncated anywhere is read as far as SQLite can, or refused: never a crash, and never a new empty one. */
static void test_a_truncated_store_is_refused(void **state) {
    (void)state;
    carry_store *store = open_store();
    int64_t run = begin(store, "whole");
    double samples[500];
    for (int i = 0; i < 500; i++) {
        samples[i] = 1e-3;
    }
    for (int i = 0; i < 20; i++) {
        carry_stored_result r = some_result("scan:dense:t8");
        assert_ok(ctx, carry_store_result(store, run, &r, samples, 500));
    }
    carry_store_close(store);
    bytes whole = bytes_of(path);
    int refused = 0;
    for (size_t length = whole.length - 1; length > 1000; length -= length > 20000 ? 9973 : 611) {
        assert_ok(ctx, carry_file_replace(ctx, path, whole.text, length));
        carry_status status = carry_store_open(ctx, &store, path);
        carry_run *loaded = NULL;
        if (status == CARRY_OK) {
            status = carry_store_load(store, &loaded, run);
            carry_run_free(loaded);
            carry_store_close(store);
        }
        refused += status != CARRY_OK;
        if (status != CARRY_OK) {
            assert_true(strlen(carry_ctx_error(ctx)) > 0);
        }
    }
    assert_true(refused > 10);
    free(whole.text);
}

int main(void) {
#define in_a_folder(test) cmocka_unit_test_setup_teardown(test, open_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        in_a_folder(test_everything_comes_out_as_it_went_in),
        in_a_folder(test_runs_are_found_listed_and_deleted),
        in_a_folder(test_compacting_gives_room_back),
        in_a_folder(test_a_newer_store_is_refused_and_left_byte_for_byte),
        in_a_folder(test_a_store_with_triggers_or_views_is_refused),
        in_a_folder(test_what_is_no_store_is_refused_and_left_byte_for_byte),
        in_a_folder(test_a_truncated_store_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
