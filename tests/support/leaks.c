/* Under the address sanitizer: leaks are only looked for where memory is left. Its walk at the end of every process
   takes four seconds of processor time on 64-bit ARM, however little was allocated; but a process that holds no more
   bytes at its end than before main, and those of the threads that still run, has leaked none. Threads must not leave
   theirs in glibc's cache for that (GLIBC_TUNABLES in tests/CMakeLists.txt), and what is printed has a buffer that is
   not allocated. leaks_are_found in tests/CMakeLists.txt is this file's test. */
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>

/* The sanitizer's, whose headers not every gcc has. */
size_t __sanitizer_get_current_allocated_bytes(void);

static size_t at_start;
static size_t of_a_thread;
static pthread_mutex_t measured = PTHREAD_MUTEX_INITIALIZER;

static void *wait_until_measured(void *unused) {
    (void)pthread_mutex_lock(&measured);
    (void)pthread_mutex_unlock(&measured);
    return unused;
}

__attribute__((constructor)) static void remember(void) {
    static char buffer[BUFSIZ];
    (void)setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    size_t before = __sanitizer_get_current_allocated_bytes();
    pthread_t thread;
    (void)pthread_mutex_lock(&measured);
    if (pthread_create(&thread, NULL, wait_until_measured, NULL) == 0) {
        of_a_thread = __sanitizer_get_current_allocated_bytes() - before;
        (void)pthread_mutex_unlock(&measured);
        (void)pthread_join(thread, NULL);
    }
    at_start = __sanitizer_get_current_allocated_bytes();
}

/* Asked by the sanitizer. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
    struct stat tasks; /* a folder with a folder for each thread */
    size_t others = stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink > 3 ? (size_t)tasks.st_nlink - 3 : 0;
    return __sanitizer_get_current_allocated_bytes() <= at_start + others * of_a_thread;
}
