/* Under the address sanitizer, this file skips the search for leaks in processes that have none. The search at the end
   of every process takes four seconds of processor time on 64-bit ARM, however little was allocated. A process has
   leaked nothing if at its end it holds no more bytes than before main, apart from those of threads that still run. For
   this, threads must not leave memory in glibc's cache (GLIBC_TUNABLES in tests/CMakeLists.txt), and standard output
   has a static buffer. leaks_are_found in tests/CMakeLists.txt tests this file. */
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>

/* From the sanitizer, whose headers some versions of gcc lack. */
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
    struct stat tasks; /* a folder that contains a folder for each thread */
    size_t others = stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink > 3 ? (size_t)tasks.st_nlink - 3 : 0;
    return __sanitizer_get_current_allocated_bytes() <= at_start + others * of_a_thread;
}
