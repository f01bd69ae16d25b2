/* The run store and its writers: whatever happens to a writer, the results that it had stored stay. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "store.h"

/* Runs `work` in a new process, whose exit code is 0 if it returns. *report gets the end of a pipe that `work` writes
   to. */
static pid_t start(void (*work)(int report), int *report) {
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    (void)fflush(NULL);
    pid_t id = fork();
    assert_true(id >= 0);
    if (id == 0) {
        (void)close(ends[0]);
        work(ends[1]);
        _exit(0);
    }
    (void)close(ends[1]);
    *report = ends[0];
    return id;
}

static void expect_end(pid_t id, int report) {
    int ended;
    char complaint[512] = "";
    ssize_t got = read(report, complaint, sizeof complaint - 1);
    (void)got;
    assert_int_equal(waitpid(id, &ended, 0), id);
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0) {
        fail_msg("a process of the test failed: %d, %s", ended, complaint);
    }
    (void)close(report);
}

/* In such a process: ends it with an error message unless the status is CARRY_OK. */
static void must(carry_status status, int report) {
    if (status != CARRY_OK) {
        const char *message = carry_ctx_error(ctx);
        ssize_t told = write(report, message, strlen(message));
        _exit(told > 0 ? 3 : 4);
    }
}

#define WRITERS 4
#define RESULTS 25

static void write_results(int report) {
    carry_store *store;
    int64_t run = 0;
    must(carry_store_open(ctx, &store, path), report);
    must(carry_store_begin(store, &run, &(carry_run_start){.kind = "bench", .name = "at once", .command = "x"}),
         report);
    for (int i = 0; i < RESULTS; i++) {
        carry_stored_result r = some_result("scan:dense:t8");
        r.products = i;
        must(carry_store_result(store, run, &r, (double[]){1.0, 2.0, (double)i}, 3), report);
        must(carry_store_metric(store, run, i, "loss", 1.0), report);
    }
    must(carry_store_end(store, run, "done", "", ""), report);
    carry_store_close(store);
}

static void test_several_processes_make_and_write_one_store_at_once(void **state) {
    (void)state;
    pid_t ids[WRITERS];
    int reports[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        ids[i] = start(write_results, &reports[i]);
    }
    for (int i = 0; i < WRITERS; i++) {
        expect_end(ids[i], reports[i]);
    }
    carry_store *store = open_store();
    int64_t *all;
    int count;
    assert_ok(ctx, carry_store_ids(store, &all, &count, NULL, 0));
    assert_int_equal(count, WRITERS);
    for (int i = 0; i < count; i++) {
        carry_run *run;
        assert_ok(ctx, carry_store_load(store, &run, all[i]));
        assert_string_equal(run->state, "done");
        assert_int_equal(run->results, RESULTS);
        assert_int_equal(run->metrics, RESULTS);
        for (int j = 0; j < RESULTS; j++) {
            assert_int_equal(run->result[j].is.products, j);
            assert_int_equal(run->result[j].samples, 3);
            assert_true(run->result[j].sample[2] == (double)j);
        }
        carry_run_free(run);
    }
    free(all);
    carry_store_close(store);
}

static int gate[2]; /* closed when all may begin */

static void open_at_once(int report) {
    char byte;
    carry_store *store;
    (void)close(gate[1]);
    (void)!read(gate[0], &byte, 1);
    must(carry_store_open(ctx, &store, path), report);
    carry_store_close(store);
}

/* Each process sees no store or a complete one, never one that another process has made in part. */
static void test_a_store_may_be_made_by_several_processes_at_once(void **state) {
    (void)state;
    for (int round = 0; round < support_cases(60, 10); round++) {
        pid_t ids[WRITERS];
        int reports[WRITERS];
        (void)snprintf(path, sizeof path, "%s/store-%d.db", folder, round);
        assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
        for (int i = 0; i < WRITERS; i++) {
            ids[i] = start(open_at_once, &reports[i]);
        }
        (void)close(gate[0]);
        (void)close(gate[1]);
        for (int i = 0; i < WRITERS; i++) {
            expect_end(ids[i], reports[i]);
        }
    }
}

#define MANY_SAMPLES 400

/* Writes a byte to `report` for every result that the store says is stored. */
static void write_for_ever(int report) {
    carry_store *store;
    int64_t run = 0;
    double samples[MANY_SAMPLES];
    for (int i = 0; i < MANY_SAMPLES; i++) {
        samples[i] = 1e-3 * i;
    }
    must(carry_store_open(ctx, &store, path), report);
    must(carry_store_begin(store, &run, &(carry_run_start){.kind = "bench", .name = "for ever", .command = "x"}),
         report);
    for (int64_t i = 0;; i++) {
        carry_stored_result r = some_result("scan:dense:t8");
        r.products = i;
        must(carry_store_result(store, run, &r, samples, MANY_SAMPLES), report);
        if (write(report, ".", 1) != 1) {
            _exit(5);
        }
    }
}

static void check_killed(int told) {
    carry_store *store = open_store();
    int64_t id;
    carry_run *run;
    assert_ok(ctx, carry_store_find(store, &id, "last"));
    assert_ok(ctx, carry_store_load(store, &run, id));
    assert_string_equal(run->state, "killed");
    assert_true(run->results >= told && run->results <= told + 1); /* one may be stored and not yet reported */
    for (int i = 0; i < run->results; i++) {
        assert_int_equal(run->result[i].is.products, i);
        assert_int_equal(run->result[i].samples, MANY_SAMPLES); /* whole, or not at all */
    }
    carry_run_free(run);
    carry_store_close(store);
}

static void test_a_killed_writer_loses_nothing_that_was_stored(void **state) {
    (void)state;
    for (int moment = 0; moment < 10; moment++) {
        int report;
        pid_t id = start(write_for_ever, &report);
        char told[1];
        int count = 0;
        while (count < 1 + moment / 2 && read(report, told, 1) == 1) {
            count++;
        }
        (void)usleep((useconds_t)(moment * 313)); /* in the middle of the next write */
        assert_int_equal(kill(id, SIGKILL), 0);
        assert_int_equal(waitpid(id, NULL, 0), id);
        while (read(report, told, 1) == 1) {
            count++;
        }
        (void)close(report);
        check_killed(count);
    }
}

static void begin_and_die(int report) {
    carry_store *store;
    int64_t run;
    must(carry_store_open(ctx, &store, path), report);
    for (int i = 0; i < 150; i++) {
        must(carry_store_begin(store, &run, &(carry_run_start){.kind = "bench", .name = "many", .command = "x"}),
             report);
    }
    _exit(0);
}

static void test_only_runs_whose_process_is_gone_are_marked_killed(void **state) {
    (void)state;
    assert_int_equal(chdir("/"), 0); /* not a repository: git answers at once */
    int report;
    pid_t id = start(begin_and_die, &report);
    expect_end(id, report);
    carry_store *store = open_store();
    int64_t mine = begin(store, "mine");
    carry_store *second = open_store(); /* while this process lives, its run has the state running */
    carry_run_line *lines;
    int count;
    assert_ok(ctx, carry_store_lines(second, &lines, &count, NULL, NULL, 0));
    assert_int_equal(count, 151);
    assert_int_equal(lines[0].id, mine);
    assert_string_equal(lines[0].state, "running");
    for (int i = 1; i < count; i++) {
        assert_string_equal(lines[i].state, "killed");
    }
    free(lines);
    carry_store_close(second);
    carry_store_close(store);
}

/* A full disk, imitated by a limit on the size of files: the call that fails says so, and all earlier results stay. */
static void fill_the_disk(int report) {
    (void)signal(SIGXFSZ, SIG_IGN);
    carry_store *store;
    int64_t run = 0;
    double samples[MANY_SAMPLES] = {0};
    must(carry_store_open(ctx, &store, path), report);
    must(carry_store_begin(store, &run, &(carry_run_start){.kind = "bench", .name = "full", .command = "x"}), report);
    const struct rlimit little = {.rlim_cur = 300000, .rlim_max = RLIM_INFINITY};
    (void)setrlimit(RLIMIT_FSIZE, &little);
    int stored = 0;
    carry_status status = CARRY_OK;
    while (stored < 10000 && status == CARRY_OK) {
        carry_stored_result r = some_result("scan:dense:t8");
        status = carry_store_result(store, run, &r, samples, MANY_SAMPLES);
        stored += status == CARRY_OK;
    }
    const char *message = carry_ctx_error(ctx);
    if (stored == 0 || stored == 10000 || strstr(message, path) == NULL || strstr(message, "is intact") == NULL) {
        must(CARRY_EIO, report);
    }
    if (write(report, &stored, sizeof stored) != (ssize_t)sizeof stored) {
        _exit(5);
    }
    _exit(0); /* without closing the store */
}

static void test_a_full_disk_is_said_and_loses_nothing(void **state) {
    (void)state;
    int report;
    pid_t id = start(fill_the_disk, &report);
    int stored = 0;
    assert_int_equal(read(report, &stored, sizeof stored), sizeof stored);
    expect_end(id, report);
    carry_store *store = open_store();
    int64_t run;
    carry_run *loaded;
    assert_ok(ctx, carry_store_find(store, &run, "full"));
    assert_ok(ctx, carry_store_load(store, &loaded, run));
    assert_string_equal(loaded->state, "killed");
    assert_int_equal(loaded->results, stored);
    for (int i = 0; i < stored; i++) {
        assert_int_equal(loaded->result[i].samples, MANY_SAMPLES);
    }
    carry_run_free(loaded);
    int64_t again = begin(store, "after"); /* once there is room */
    assert_ok(ctx, carry_store_end(store, again, "done", "", ""));
    carry_store_close(store);
}

/* As a user without write permission. Root may write anywhere, so root switches to another user. */
static void open_in_a_wall(int report) {
    if (geteuid() == 0 && setuid(65534) != 0) {
        _exit(77);
    }
    carry_store *store;
    if (carry_store_open(ctx, &store, path) == CARRY_OK) {
        _exit(7);
    }
    if (strstr(carry_ctx_error(ctx), path) == NULL) {
        must(CARRY_EIO, report);
    }
}

static void test_a_folder_that_may_not_be_written(void **state) {
    (void)state;
    assert_int_equal(chmod(folder, 0555), 0);
    int report;
    pid_t id = start(open_in_a_wall, &report);
    expect_end(id, report);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* A store whose folder and file this process may not write can be read; storing a run is refused. */
static void read_in_a_wall(int report) {
    if (geteuid() == 0 && setuid(65534) != 0) {
        _exit(77);
    }
    carry_store *store;
    carry_run *run;
    int64_t id;
    must(carry_store_open(ctx, &store, path), report);
    must(carry_store_find(store, &id, "theirs"), report);
    must(carry_store_load(store, &run, id), report);
    bool whole = run->results == 1 && strcmp(run->state, "done") == 0;
    carry_run_free(run);
    bool stored =
        carry_store_begin(store, &id, &(carry_run_start){"experiment", "mine", "carry run x", NULL}) == CARRY_OK;
    whole = whole && strstr(carry_ctx_error(ctx), "readonly") != NULL;
    carry_store_close(store);
    _exit(whole && !stored ? 0 : 8);
}

static void test_a_store_that_may_only_be_read(void **state) {
    (void)state;
    (void)snprintf(path, sizeof path, "%s/100%% #1?.db", folder);
    carry_store *store = open_store();
    int64_t run = begin(store, "theirs");
    const carry_stored_result result = some_result("scan:dense:t8");
    assert_ok(ctx, carry_store_result(store, run, &result, NULL, 0));
    assert_ok(ctx, carry_store_end(store, run, "done", "", ""));
    carry_store_close(store);
    assert_int_equal(chmod(path, 0444), 0);
    assert_int_equal(chmod(folder, 0555), 0);
    int report;
    pid_t id = start(read_in_a_wall, &report);
    expect_end(id, report);
    assert_int_equal(chmod(folder, 0755), 0);
}

static void open_by_default(int report) {
    char place[160];
    char inside[160];
    (void)snprintf(place, sizeof place, "%s/project/deep/er", folder);
    (void)snprintf(inside, sizeof inside, "%s/project/.carry/store.db", folder);
    const char *const make[] = {"mkdir", "-p", place, NULL};
    carry_process_result r;
    must(carry_process_run(ctx, &r, &(carry_process){.arguments = make}), report);
    carry_process_free(&r);
    (void)snprintf(place, sizeof place, "%s/project/.git", folder);
    bool made = mkdir(place, 0755) == 0;
    (void)snprintf(place, sizeof place, "%s/project/deep/er", folder);
    made = made && chdir(place) == 0;
    carry_store *store;
    (void)unsetenv("CARRY_STORE");
    must(carry_store_open(ctx, &store, NULL), report);
    made = made && strcmp(carry_store_path(store), inside) == 0 && access(inside, F_OK) == 0;
    carry_store_close(store);
    (void)setenv("CARRY_STORE", path, 1);
    must(carry_store_open(ctx, &store, NULL), report);
    made = made && strcmp(carry_store_path(store), path) == 0;
    carry_store_close(store);
    _exit(made ? 0 : 6);
}

static void test_the_store_of_the_project_is_found(void **state) {
    (void)state;
    int report;
    pid_t id = start(open_by_default, &report);
    expect_end(id, report);
    carry_store *store;
    char *endless = malloc(10000);
    assert_non_null(endless);
    memset(endless, 'a', 9999);
    endless[9999] = '\0';
    assert_refused(ctx, CARRY_EARGUMENT, "longer than a path can be", carry_store_open(ctx, &store, endless));
    free(endless);
}

int main(void) {
#define in_a_folder(test) cmocka_unit_test_setup_teardown(test, open_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        in_a_folder(test_several_processes_make_and_write_one_store_at_once),
        in_a_folder(test_a_store_may_be_made_by_several_processes_at_once),
        in_a_folder(test_a_killed_writer_loses_nothing_that_was_stored),
        in_a_folder(test_only_runs_whose_process_is_gone_are_marked_killed),
        in_a_folder(test_a_full_disk_is_said_and_loses_nothing),
        in_a_folder(test_a_folder_that_may_not_be_written),
        in_a_folder(test_a_store_that_may_only_be_read),
        in_a_folder(test_the_store_of_the_project_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
