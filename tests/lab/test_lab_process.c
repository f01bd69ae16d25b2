/* Running other programs: their output and exit codes, and a limit on every wait. */
#include "lab/process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "core/clock.h"
#include "lab/alive.h"
#include "support.h"

static carry_ctx *ctx;

static int open_context(void **state) {
    (void)state;
    ctx = support_ctx(1, "plain", NULL);
    return 0;
}

static int close_context(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

#define SHELL(script)            \
    (const char *const[]) {      \
        "sh", "-c", script, NULL \
    }

static carry_process_result run(const carry_process *process) {
    carry_process_result result;
    assert_ok(ctx, carry_process_run(ctx, &result, process));
    assert_non_null(result.output);
    assert_non_null(result.errors);
    return result;
}

/* The process is gone, or a zombie that init has not collected yet. */
static void assert_gone(int64_t pid) {
    support_wait_for(carry_alive_start(pid) < 0);
}

static void test_output_errors_and_codes(void **state) {
    (void)state;
    carry_process_result r = run(&(carry_process){.arguments = SHELL("echo out; echo err >&2; exit 3")});
    assert_int_equal(r.code, 3);
    assert_string_equal(r.output, "out\n");
    assert_string_equal(r.errors, "err\n");
    assert_int_equal(r.output_length, 4);
    assert_false(r.timed_out || r.stopped);
    carry_process_free(&r);
    r = run(&(carry_process){.arguments = SHELL("echo out; echo err >&2"), .merge = true});
    assert_int_equal(r.code, 0);
    assert_string_equal(r.output, "out\nerr\n");
    assert_string_equal(r.errors, "");
    carry_process_free(&r);
    r = run(&(carry_process){.arguments = SHELL("kill -9 $$")});
    assert_int_equal(r.code, 128 + SIGKILL);
    carry_process_free(&r);
    r = run(&(carry_process){.arguments = SHELL("kill -TERM $$")});
    assert_int_equal(r.code, 128 + SIGTERM);
    carry_process_free(&r);
    r = run(&(carry_process){.arguments = SHELL("pwd"), .folder = "/"});
    assert_string_equal(r.output, "/\n");
    carry_process_free(&r);
}

static void test_a_short_program_is_not_waited_for_longer_than_it_runs(void **state) {
    (void)state;
    double spent;
    const double end = carry_seconds() + SUPPORT_PATIENCE;
    do { /* waits for a running program are a tenth of a second: if there were one, no run would be shorter */
        const double started = carry_seconds();
        carry_process_result r = run(&(carry_process){.arguments = (const char *const[]){"true", NULL}});
        spent = carry_seconds() - started;
        assert_int_equal(r.code, 0);
        carry_process_free(&r);
    } while (spent >= 0.09 && carry_seconds() < end);
    assert_true(spent < 0.09);
}

static void test_input_reaches_it_whole_and_none_is_an_end(void **state) {
    (void)state;
    size_t length = 3000000; /* far more than a pipe holds: both directions must move at once */
    char *input = malloc(length);
    assert_non_null(input);
    for (size_t i = 0; i < length; i++) {
        input[i] = (char)('a' + i % 17);
    }
    carry_process_result r = run(&(carry_process){
        .arguments = (const char *const[]){"cat", NULL}, .input = input, .input_length = length, .limit = length});
    assert_int_equal(r.output_length, length);
    assert_memory_equal(r.output, input, length);
    carry_process_free(&r);
    r = run(&(carry_process){.arguments = (const char *const[]){"cat", NULL}, .seconds = 120});
    assert_int_equal(r.output_length, 0);
    assert_false(r.timed_out);
    carry_process_free(&r);
    /* A program that reads no input, or ends in the middle, ends neither this process nor the exchange. */
    r = run(&(carry_process){.arguments = SHELL("exit 4"), .input = input, .input_length = length});
    assert_int_equal(r.code, 4);
    carry_process_free(&r);
    r = run(&(carry_process){
        .arguments = SHELL("exec 0<&-; sleep 0.2; echo late"), .input = input, .input_length = length});
    assert_string_equal(r.output, "late\n");
    carry_process_free(&r);
    sigset_t pending;
    assert_int_equal(sigpending(&pending), 0);
    assert_int_equal(sigismember(&pending, SIGPIPE), 0);
    free(input);
}

static void test_large_output_is_bounded_and_the_program_still_ends(void **state) {
    (void)state;
    carry_process_result r =
        run(&(carry_process){.arguments = SHELL("head -c 5000000 /dev/zero | tr '\\0' x; exit 5"), .limit = 1000});
    assert_int_equal(r.code, 5);
    assert_int_equal(r.output_length, 1000);
    assert_int_equal(strlen(r.output), 1000);
    carry_process_free(&r);
    r = run(&(carry_process){.arguments = SHELL("head -c 5000000 /dev/zero | tr '\\0' x >&2"), .limit = 1000});
    assert_int_equal(strlen(r.errors), 1000);
    carry_process_free(&r);
}

static void test_a_program_or_a_folder_that_is_not_there(void **state) {
    (void)state;
    carry_process_result r;
    const char *const missing[] = {"no-such-program-anywhere", NULL};
    assert_refused(ctx, CARRY_ENOTFOUND, "no-such-program-anywhere cannot be started: No such file",
                   carry_process_run(ctx, &r, &(carry_process){.arguments = missing}));
    assert_int_equal(r.code, 127);
    assert_null(r.output);
    carry_process_free(&r);
    assert_refused(
        ctx, CARRY_ENOTFOUND, "sh cannot be started in /no/such/folder: No such file",
        carry_process_run(ctx, &r, &(carry_process){.arguments = SHELL("true"), .folder = "/no/such/folder"}));
    const char *const unfit[] = {"/dev/null", NULL};
    assert_refused(ctx, CARRY_EIO, "/dev/null cannot be started: Permission denied",
                   carry_process_run(ctx, &r, &(carry_process){.arguments = unfit}));
}

/* The program ends at the first signal, its own child ignores it: both must be gone. */
static void test_running_out_of_time_ends_the_whole_group(void **state) {
    (void)state;
    carry_process_result r = run(&(carry_process){
        .arguments = SHELL("sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done' & echo $$; wait"),
        .seconds = 5.0});
    assert_true(r.timed_out);
    assert_int_equal(r.code, 128 + SIGTERM);
    char *rest;
    long first = strtol(r.output, &rest, 10);
    long second = strtol(rest, NULL, 10);
    assert_true(first > 1 && second > 1 && first != second);
    assert_gone(first);
    assert_gone(second);
    carry_process_free(&r);
    /* A program that ignores the first signal gets SIGKILL. */
    r = run(&(carry_process){.arguments = SHELL("trap '' TERM; while :; do sleep 0.1; done"), .seconds = 3.0});
    assert_true(r.timed_out);
    assert_int_equal(r.code, 128 + SIGKILL);
    carry_process_free(&r);
}

static bool always(void) {
    return true;
}

static void test_a_stop_ends_it(void **state) {
    (void)state;
    double started = carry_seconds();
    carry_process_result r =
        run(&(carry_process){.arguments = (const char *const[]){"sleep", "600", NULL}, .stop = always});
    assert_true(r.stopped && !r.timed_out);
    assert_int_equal(r.code, 128 + SIGTERM);
    assert_true(carry_seconds() - started < 300.0);
    carry_process_free(&r);
}

static void test_a_grandchild_that_holds_the_pipe_is_not_waited_for(void **state) {
    (void)state;
    double started = carry_seconds();
    carry_process_result r = run(&(carry_process){.arguments = SHELL("sleep 600 & echo $!")});
    assert_int_equal(r.code, 0);
    assert_true(carry_seconds() - started < 300.0);
    long left = strtol(r.output, NULL, 10);
    assert_true(left > 1);
    assert_true(carry_alive_start(left) >= 0); /* a detached program is not ended */
    (void)kill((pid_t)left, SIGKILL);
    carry_process_free(&r);
}

/* A daemon has descriptors 0 to 2 closed: the pipes must not take these numbers. */
static void test_with_the_standard_files_closed(void **state) {
    (void)state;
    int kept[3];
    for (int i = 0; i < 3; i++) {
        kept[i] = fcntl(i, F_DUPFD_CLOEXEC, 10);
        (void)close(i);
    }
    carry_process_result r = {0};
    carry_process_result s = {0};
    carry_status first = carry_process_run(
        ctx, &r, &(carry_process){.arguments = SHELL("cat; echo err >&2"), .input = "given", .input_length = 5});
    carry_status second = carry_process_run(ctx, &s, &(carry_process){.arguments = SHELL("cat; echo out")});
    for (int i = 0; i < 3; i++) {
        if (kept[i] >= 0) {
            (void)dup2(kept[i], i);
            (void)close(kept[i]);
        }
    }
    assert_int_equal(first, CARRY_OK);
    assert_int_equal(second, CARRY_OK);
    assert_string_equal(r.output, "given");
    assert_string_equal(r.errors, "err\n");
    assert_string_equal(s.output, "out\n");
    carry_process_free(&r);
    carry_process_free(&s);
}

static void test_a_process_is_itself_and_nobody_else(void **state) {
    (void)state;
    int64_t start = carry_alive_start((int64_t)getpid());
    assert_true(start > 0);
    assert_true(carry_alive((int64_t)getpid(), start, carry_alive_boot()));
    assert_false(carry_alive((int64_t)getpid(), start - 1, carry_alive_boot()));
    assert_false(carry_alive((int64_t)getpid(), start, "another boot"));
    assert_false(carry_alive((int64_t)getpid(), start, NULL));
    assert_int_equal(carry_alive_start(0), -1);
    assert_int_equal(carry_alive_start(INT64_MAX), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_output_errors_and_codes),
        cmocka_unit_test(test_a_short_program_is_not_waited_for_longer_than_it_runs),
        cmocka_unit_test(test_input_reaches_it_whole_and_none_is_an_end),
        cmocka_unit_test(test_large_output_is_bounded_and_the_program_still_ends),
        cmocka_unit_test(test_a_program_or_a_folder_that_is_not_there),
        cmocka_unit_test(test_running_out_of_time_ends_the_whole_group),
        cmocka_unit_test(test_a_stop_ends_it),
        cmocka_unit_test(test_a_grandchild_that_holds_the_pipe_is_not_waited_for),
        cmocka_unit_test(test_with_the_standard_files_closed),
        cmocka_unit_test(test_a_process_is_itself_and_nobody_else),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
