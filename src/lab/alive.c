/* Identifies processes by number, start time and boot, from /proc. */
#include "lab/alive.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char boot_text[64];
static char host_text[128];
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

static void read_texts(void) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL || fgets(boot_text, sizeof boot_text, file) == NULL) {
        (void)snprintf(boot_text, sizeof boot_text, "unknown");
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    boot_text[strcspn(boot_text, "\n")] = '\0';
    if (gethostname(host_text, sizeof host_text - 1) != 0) {
        (void)snprintf(host_text, sizeof host_text, "unknown");
    }
}

int64_t carry_alive_start(int64_t pid) {
    char path[64];
    char text[1024];
    (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return -1;
    }
    size_t length = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[length] = '\0';
    /* The name may contain spaces and brackets; the fields follow the last bracket. */
    const char *at = strrchr(text, ')');
    if (at == NULL || at[1] == '\0' || at[2] == 'Z' || at[2] == 'X') {
        return -1;
    }
    at += 1;
    for (int field = 3; field < 22 && at != NULL; field++) { /* the start time is field 22 */
        at = strchr(at + 1, ' ');
    }
    return at != NULL ? strtoll(at + 1, NULL, 10) : -1;
}

const char *carry_alive_boot(void) {
    (void)pthread_once(&read_once, read_texts);
    return boot_text;
}

const char *carry_alive_host(void) {
    (void)pthread_once(&read_once, read_texts);
    return host_text;
}

bool carry_alive(int64_t pid, int64_t start, const char *boot) {
    int64_t now = carry_alive_start(pid);
    return boot != NULL && strcmp(boot, carry_alive_boot()) == 0 && now >= 0 && now == start;
}
