/* The guard of calls into MPI, in child processes, without MPI: a process that stays in a call is ended with a message;
   one that was stopped in a call for longer than that, and leaves it when it continues, is not. */
#include "support.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/guard.h"
#include "core/clock.h"

static void stay(void) {
    carry_guard_enter("receive", 7, carry_seconds() + 0.1);
    for (;;) {
        (void)pause();
    }
}

static void be_stopped(void) {
    carry_guard_enter("receive", 7, carry_seconds() + 0.1);
    (void)raise(SIGSTOP);
    carry_guard_leave();
    _exit(0);
}

/* Runs `act` in a child whose standard error goes to `said`; returns the child. */
static pid_t start(void (*act)(void), int *said) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        carry_guard_start();
        act();
    }
    (void)close(ends[1]);
    *said = ends[0];
    return child;
}

static void a_call_that_does_not_return_ends_the_process(void **unused) {
    (void)unused;
    char text[512] = "";
    size_t length = 0;
    ssize_t count;
    int said, code = 0;
    const pid_t child = start(stay, &said);
    while (length < sizeof text - 1 && (count = read(said, text + length, sizeof text - 1 - length)) > 0) {
        length += (size_t)count;
    }
    (void)close(said);
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 2);
    assert_non_null(strstr(text, "carry: receive: rank 7: MPI has not returned"));
}

static void a_process_that_was_stopped_goes_on(void **unused) {
    (void)unused;
    const struct timespec longer = {.tv_sec = 4}; /* than the guard waits */
    int said, code = 0;
    const pid_t child = start(be_stopped, &said);
    assert_int_equal(waitpid(child, &code, WUNTRACED), child);
    assert_true(WIFSTOPPED(code));
    (void)nanosleep(&longer, NULL);
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(waitpid(child, &code, 0), child);
    (void)close(said);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_does_not_return_ends_the_process),
        cmocka_unit_test(a_process_that_was_stopped_goes_on),
    };
    return cmocka_run_group_tests_name("comm/guard", tests, NULL, NULL);
}
