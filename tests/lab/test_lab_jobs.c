/* Jobs: Slurm's answers and input, logs, verdicts, and the queue with this program as its worker. */
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lab/alive.h"
#include "lab/jobs/jobs_internal.h"
#include "lab/process.h"
#include "support.h"

typedef struct fixture {
    char folder[64], path[128];
    carry_ctx *ctx;
    carry_store *store;
} fixture;

static int open_fixture(void **state) {
    static fixture f;
    (void)snprintf(f.folder, sizeof f.folder, "/tmp/carry-jobs.XXXXXX");
    assert_non_null(mkdtemp(f.folder));
    (void)snprintf(f.path, sizeof f.path, "%s/store.db", f.folder);
    assert_int_equal(setenv("XDG_STATE_HOME", f.folder, 1), 0); /* records of jobs */
    f.ctx = support_ctx(1, NULL, NULL);
    assert_ok(f.ctx, carry_store_open(f.ctx, &f.store, f.path));
    *state = &f;
    return 0;
}

static int close_fixture(void **state) {
    fixture *f = *state;
    carry_process_result result;
    carry_store_close(f->store);
    const char *const remove[] = {"rm", "-rf", f->folder, NULL};
    assert_ok(f->ctx, carry_process_run(f->ctx, &result, &(carry_process){.arguments = remove}));
    carry_process_free(&result);
    carry_ctx_free(f->ctx);
    return 0;
}

static void write_text(const char *path, const char *text, size_t length) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, length), (ssize_t)length);
    (void)close(file);
}

static void test_slurm_ids_are_parsed_strictly(void **state) {
    const fixture *f = *state;
    static const char *const good[] = {"1", "1\n", "4294967295\n", "7;alpha\n", "7;a_b.c-9"};
    static const char *const bad[] = {"",      "\n",    "0\n",     "01\n",        "1x",
                                      "x1",    " 1",    "1 ",      "1\n2\n",      "-1\n",
                                      "+1\n",  "1;\n",  "1;a b\n", "1;a;b",       "1;a\nx",
                                      "1.5\n", "1\r\n", "1;\t",    "12345678901", "Submitted batch job 1\n"};
    char id[64];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_ok(f->ctx, carry_slurm_parse_id(f->ctx, id, good[i]));
        assert_int_equal(strlen(id), strcspn(good[i], "\n"));
        assert_memory_equal(id, good[i], strlen(id));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_refused(f->ctx, CARRY_EFORMAT, "not a job number", carry_slurm_parse_id(f->ctx, id, bad[i]));
    }
    char *cluster = malloc(200);
    (void)memset(cluster, 'a', 200);
    memcpy(cluster, "1;", 2);
    cluster[199] = '\0';
    assert_refused(f->ctx, CARRY_EFORMAT, "not a job number", carry_slurm_parse_id(f->ctx, id, cluster));
    free(cluster);
}

/* The shell that runs the script passes every argument on unchanged, byte by byte, and writes the verdict. */
static void test_the_batch_script_keeps_every_argument(void **state) {
    const fixture *f = *state;
    const char *const arguments[] = {"printf",    "[%s]", "a b", "it's", "'", "''", "\"",      "$HOME",    "`id`",
                                     "new\nline", "\\",   "\\'", "*",    "",  "#",  "&& exit", "\xc3\xa9", NULL};
    char end[128];
    (void)snprintf(end, sizeof end, "%s/it's the end", f->folder);
    char *script = carry_slurm_script(12, end, arguments);
    assert_non_null(script);
    carry_process_result result;
    const char *const shell[] = {"sh", "-s", NULL};
    assert_ok(f->ctx, carry_process_run(
                          f->ctx, &result,
                          &(carry_process){
                              .arguments = shell, .input = script, .input_length = strlen(script), .seconds = 120}));
    assert_int_equal(result.code, 0);
    assert_string_equal(result.output,
                        "[a b][it's]['][''][\"][$HOME][`id`][new\nline][\\][\\'][*][][#][&& exit][\xc3\xa9]");
    assert_int_equal(access(end, R_OK), 0);
    carry_process_free(&result);
    free(script);
}

/* Compared with the plain definition, over sizes around the block of 65536 bytes. */
static void test_the_tail_of_a_log_is_its_last_lines(void **state) {
    const fixture *f = *state;
    static const size_t sizes[] = {0, 1, 2, 3, 100, 65535, 65536, 65537, 131072, 131073, 200000};
    char path[128];
    (void)snprintf(path, sizeof path, "%s/log", f->folder);
    char *text = malloc(200000);
    uint32_t random = 1;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int every = 1; every <= 100000; every *= 10) {
            for (size_t i = 0; i < sizes[s]; i++) {
                random = random * 1664525u + 1013904223u;
                text[i] = (char)((random >> 8) % (uint32_t)every == 0 ? '\n' : 'x');
            }
            write_text(path, text, sizes[s]);
            int file = open(path, O_RDONLY);
            static const int64_t lines[] = {-1, 1, 2, 7, 1000, INT64_MAX};
            for (size_t l = 0; l < sizeof lines / sizeof lines[0]; l++) {
                int64_t expected = 0;
                int64_t seen = 0;
                for (size_t i = sizes[s]; lines[l] > 0 && i-- > 0;) {
                    if (text[i] == '\n' && i + 1 < sizes[s] && ++seen == lines[l]) {
                        expected = (int64_t)i + 1;
                        break;
                    }
                }
                assert_int_equal(carry_job_log_tail(file, lines[l]), expected);
            }
            (void)close(file);
        }
    }
    free(text);
    assert_int_equal(carry_job_log_tail(-1, 3), -1);
}

static void execute(const fixture *f, const char *sql) {
    if (sqlite3_exec(carry_store_db(f->store), sql, NULL, NULL, NULL) != SQLITE_OK) {
        fail_msg("%s: %s", sql, sqlite3_errmsg(carry_store_db(f->store)));
    }
}

/* A row of a process that was killed, with its record, from another host and boot. */
static int64_t row_in_state(const fixture *f, const char *state, const char *arguments) {
    char sql[2048];
    char log[CARRY_JOB_PATH];
    (void)snprintf(sql, sizeof sql,
                   "INSERT INTO jobs(system, name, arguments, folder, state, submitted, started, pid, process_start, "
                   "boot, host) VALUES('local', 'x', '%s', '/', '%s', 1, 2, 1, 1, 'never', 'nowhere')",
                   arguments, state);
    execute(f, sql);
    int64_t id = sqlite3_last_insert_rowid(carry_store_db(f->store));
    assert_ok(f->ctx, carry_job_file(f->store, log, id, "log"));
    (void)snprintf(sql, sizeof sql, "UPDATE jobs SET log = '%s' WHERE id = %lld", log, (long long)id);
    execute(f, sql);
    assert_ok(f->ctx, carry_job_record(f->store, id));
    return id;
}

/* A queued row, submitted from this host since its boot, for the store at its present path. */
static int64_t row_in_queue(const fixture *f, const char *arguments) {
    char sql[2048];
    int64_t id = row_in_state(f, "queued", arguments);
    (void)snprintf(sql, sizeof sql, "UPDATE jobs SET boot = '%s', host = '%s' WHERE id = %lld", carry_alive_boot(),
                   carry_alive_host(), (long long)id);
    execute(f, sql);
    assert_ok(f->ctx, carry_job_record(f->store, id));
    return id;
}

static void make_job_folder(const fixture *f) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/jobs", f->folder);
    (void)mkdir(path, 0777);
}

static void test_a_verdict_is_believed_only_when_whole(void **state) {
    const fixture *f = *state;
    static const struct {
        const char *text, *state;
        int code;
    } cases[] = {{"0\n", "done", 0},
                 {"3\n", "failed", 3},
                 {"255\n", "failed", 255},
                 {"0 1700000000\n", "done", 0},
                 {"0", "lost", -1},
                 {"", "lost", -1},
                 {"256\n", "lost", -1},
                 {"-1\n", "lost", -1},
                 {"3 x\n", "lost", -1},
                 {"3\n3\n", "lost", -1},
                 {" 3\n", "lost", -1},
                 {"3\nx", "lost", -1},
                 {"99999999999999999999\n", "lost", -1}};
    make_job_folder(f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        carry_job job;
        char path[CARRY_JOB_PATH];
        int64_t id = row_in_state(f, "running", "[\"true\"]");
        assert_ok(f->ctx, carry_job_file(f->store, path, id, "end"));
        write_text(path, cases[i].text, strlen(cases[i].text));
        assert_ok(f->ctx, carry_job_refresh(f->store, &job, id));
        assert_string_equal(job.state, cases[i].state);
        assert_int_equal(job.code, cases[i].code);
        assert_int_not_equal(access(path, F_OK), 0);
        assert_true(job.ended >= job.started);
    }
}

static void test_rows_left_by_the_killed_are_lost(void **state) {
    const fixture *f = *state;
    carry_job job;
    assert_ok(f->ctx, carry_job_refresh(f->store, &job, row_in_state(f, "running", "[\"true\"]")));
    assert_string_equal(job.state, "lost");
    assert_ok(f->ctx, carry_job_refresh(f->store, &job, row_in_state(f, "submitting", "[\"true\"]")));
    assert_string_equal(job.state, "lost");
    assert_ok(f->ctx, carry_job_refresh(f->store, &job, row_in_state(f, "cancelling", "[\"true\"]")));
    assert_string_equal(job.state, "cancelled");
    assert_ok(f->ctx, carry_job_cancel(f->store, job.id));
    int64_t lost = row_in_state(f, "lost", "[\"true\"]");
    assert_refused(f->ctx, CARRY_EARGUMENT, "has ended already: lost", carry_job_cancel(f->store, lost));
    assert_refused(f->ctx, CARRY_ENOTFOUND, "no job 99", carry_job_refresh(f->store, &job, 99));
}

/* A damaged row and one without its environment: each fails by itself, and the queue goes on. */
static void test_a_job_that_cannot_start_does_not_stop_the_queue(void **state) {
    const fixture *f = *state;
    static const char *const damaged[] = {"[]", "nonsense", "[1]", "{}", "[\"true\"]"};
    carry_job job;
    make_job_folder(f);
    int64_t first = 0;
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        int64_t id = row_in_queue(f, damaged[i]);
        first = first > 0 ? first : id;
    }
    const char *const command[] = {"sh", "-c", "exit 5", NULL};
    int64_t id;
    assert_ok(f->ctx, carry_job_submit(f->store, &id, &(carry_job_request){.arguments = command}));
    assert_ok(f->ctx, carry_job_wait(f->store, &job, id, 600.0, NULL));
    assert_string_equal(job.state, "failed");
    assert_int_equal(job.code, 5);
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        assert_ok(f->ctx, carry_job_refresh(f->store, &job, first + (int64_t)i));
        assert_string_equal(job.state, "failed");
        assert_int_equal(job.code, 127);
    }
    carry_job *jobs;
    int count;
    assert_ok(f->ctx, carry_job_list(f->store, &jobs, &count));
    assert_int_equal(count, 6);
    assert_int_equal(jobs[0].id, id);
    free(jobs);
}

/* A job is held if any one of host, boot and folder differs, or if it differs from its record; only release starts
   it. */
static void test_jobs_submitted_elsewhere_are_held(void **state) {
    const fixture *f = *state;
    static const struct {
        const char *change, *held;
    } cases[] = {{"host = 'nowhere'", "on another host"},
                 {"boot = 'never'", "before this machine was started"},
                 {"log = '/elsewhere/jobs/1.log'", "in another folder"},
                 {"arguments = '[\"false\"]'", "by another user or machine"},
                 {"folder = '/tmp'", "by another user or machine"}};
    make_job_folder(f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        carry_job job;
        char sql[256];
        int64_t waiting;
        int64_t id = row_in_queue(f, "[\"true\"]");
        assert_ok(f->ctx, carry_job_local_waiting(f->store, &waiting));
        assert_int_equal(waiting, id);
        (void)snprintf(sql, sizeof sql, "UPDATE jobs SET %s WHERE id = %lld", cases[i].change, (long long)id);
        execute(f, sql);
        assert_ok(f->ctx, carry_job_local_waiting(f->store, &waiting));
        assert_int_equal(waiting, 0);
        assert_ok(f->ctx, carry_job_refresh(f->store, &job, id));
        assert_string_equal(job.state, "held");
        assert_string_equal(job.held, cases[i].held);
        assert_refused(f->ctx, CARRY_EUNSUPPORTED, cases[i].held, carry_job_wait(f->store, &job, id, 600.0, NULL));
        assert_ok(f->ctx, carry_job_release(f->store, id)); /* without its environment it fails, but it was started */
        assert_ok(f->ctx, carry_job_wait(f->store, &job, id, 600.0, NULL));
        assert_string_equal(job.state, "failed");
        support_wait_for(!carry_job_lock_held(f->store, CARRY_JOB_LOCK_WORKER)); /* it would start the next one */
        id = row_in_queue(f, "[\"true\"]");
        (void)snprintf(sql, sizeof sql, "UPDATE jobs SET %s WHERE id = %lld", cases[i].change, (long long)id);
        execute(f, sql);
        assert_ok(f->ctx, carry_job_cancel(f->store, id));
        assert_ok(f->ctx, carry_job_refresh(f->store, &job, id));
        assert_string_equal(job.state, "cancelled");
    }
}

/* A row without its record is held in every state, known or not. */
static void test_rows_without_a_record_are_held(void **state) {
    const fixture *f = *state;
    static const char *const states[] = {"queued", "running", "cancelling", "held", "Running", "unheard-of", ""};
    static const char *const systems[] = {"local", "slurm", "ssh:nowhere.invalid"};
    make_job_folder(f);
    for (size_t i = 0; i < 3 * sizeof states / sizeof states[0]; i++) {
        carry_job job;
        char sql[256];
        int64_t id = row_in_queue(f, "[\"true\"]");
        (void)snprintf(sql, sizeof sql, "UPDATE jobs SET system = '%s', state = '%s', external = '7' WHERE id = %lld",
                       systems[i % 3], states[i / 3], (long long)id);
        execute(f, sql);
        assert_ok(f->ctx, carry_job_refresh(f->store, &job, id));
        if (i % 3 == 0 && i / 3 < 3) {
            continue; /* its record says the same */
        }
        assert_string_equal(job.state, "held");
        assert_refused(f->ctx, CARRY_EUNSUPPORTED, "was submitted", carry_job_cancel(f->store, id));
        if (i / 3 > 2) {
            assert_refused(f->ctx, CARRY_EUNSUPPORTED, "does not know", carry_job_release(f->store, id));
        }
    }
}

static bool always(void) {
    return true;
}

static void test_requests_that_cannot_be(void **state) {
    const fixture *f = *state;
    int64_t id;
    carry_job job;
    char *large = malloc((size_t)200 << 10);
    (void)memset(large, 'x', (size_t)200 << 10);
    large[((size_t)200 << 10) - 1] = '\0';
    const char *const none[] = {NULL};
    const char *const broken[] = {"echo", "\xff\xfe", NULL};
    const char *const huge[] = {"echo", large, NULL};
    const char *const sleeping[] = {"sleep", "1000", NULL};
    assert_refused(f->ctx, CARRY_EARGUMENT, "needs a command",
                   carry_job_submit(f->store, &id, &(carry_job_request){.arguments = none}));
    assert_refused(f->ctx, CARRY_EARGUMENT, "word 2 of the command is not UTF-8",
                   carry_job_submit(f->store, &id, &(carry_job_request){.arguments = broken}));
    assert_refused(f->ctx, CARRY_ESIZE, "longer than",
                   carry_job_submit(f->store, &id, &(carry_job_request){.arguments = huge}));
    assert_refused(f->ctx, CARRY_EARGUMENT, "cannot be used",
                   carry_job_submit(f->store, &id, &(carry_job_request){.arguments = sleeping, .folder = "/nowhere"}));
    assert_refused(f->ctx, CARRY_EARGUMENT, "no job system 'x'",
                   carry_job_submit(f->store, &id, &(carry_job_request){.arguments = sleeping, .on = "x"}));
    free(large);
    assert_ok(f->ctx, carry_job_submit(f->store, &id, &(carry_job_request){.arguments = sleeping}));
    assert_refused(f->ctx, CARRY_ETIMEOUT, "has not ended", carry_job_wait(f->store, &job, id, 0.05, NULL));
    assert_refused(f->ctx, CARRY_EINTERRUPTED, "goes on", carry_job_wait(f->store, &job, id, 60.0, always));
    assert_ok(f->ctx, carry_job_cancel(f->store, id));
    assert_ok(f->ctx, carry_job_wait(f->store, &job, id, 600.0, NULL));
    assert_string_equal(job.state, "cancelled");
}

/* carry_job_submit starts this program as the worker. */
static int work(const char *path) {
    if (access(path, F_OK) != 0) {
        return 2; /* a second worker that starts after the test has ended must not create a new store */
    }
    carry_ctx *ctx;
    carry_store *store = NULL;
    carry_status status =
        carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1, .log = support_silent});
    status = status == CARRY_OK ? carry_store_open(ctx, &store, path) : status;
    status = status == CARRY_OK ? carry_job_work(store, NULL) : status;
    carry_store_close(store);
    carry_ctx_free(ctx);
    return status == CARRY_OK ? 0 : 2;
}

int main(int count, char **arguments) {
    if (count == 5 && strcmp(arguments[1], "job") == 0 && strcmp(arguments[2], "work") == 0) {
        return work(arguments[4]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_slurm_ids_are_parsed_strictly, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_the_batch_script_keeps_every_argument, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_the_tail_of_a_log_is_its_last_lines, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_a_verdict_is_believed_only_when_whole, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_rows_left_by_the_killed_are_lost, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_a_job_that_cannot_start_does_not_stop_the_queue, open_fixture,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(test_jobs_submitted_elsewhere_are_held, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_rows_without_a_record_are_held, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_requests_that_cannot_be, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
