/* Collects facts about the machine, the build and the libraries. */
#include "lab/machine.h"

#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <yaml.h>
#include <zlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/threads.h"
#include "ops/kernels/kernels.h"

#ifndef CARRY_BUILD_FLAGS
#define CARRY_BUILD_FLAGS ""
#endif
#ifndef CARRY_BUILD_TYPE
#define CARRY_BUILD_TYPE ""
#endif

typedef struct list {
    carry_ctx *ctx;
    carry_fact *facts;
    int count;
} list;

__attribute__((format(printf, 3, 4))) static void say(list *l, const char *name, const char *format, ...) {
    if (l->count == CARRY_FACTS) {
        return;
    }
    carry_fact *fact = &l->facts[l->count];
    (void)snprintf(fact->name, sizeof fact->name, "%s", name);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(fact->value, sizeof fact->value, format, arguments);
    va_end(arguments);
    l->count += fact->value[0] != '\0' ? 1 : 0;
}

/* The first line of a small file under /sys or /proc; "" if it cannot be read. */
static void first_line(char *line, size_t size, const char *path) {
    FILE *file = fopen(path, "re");
    line[0] = '\0';
    if (file != NULL) {
        if (fgets(line, (int)size, file) == NULL) {
            line[0] = '\0';
        }
        (void)fclose(file);
    }
    line[strcspn(line, "\n")] = '\0';
}

static void say_caches(list *l) {
    char all[256] = "";
    for (int i = 0; i < 6; i++) {
        char path[96];
        char level[16];
        char type[32];
        char size[32];
        char one[96];
        (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        first_line(level, sizeof level, path);
        (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
        first_line(type, sizeof type, path);
        (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        first_line(size, sizeof size, path);
        if (level[0] != '\0' && strcmp(type, "Instruction") != 0) {
            (void)snprintf(one, sizeof one, "%sL%s %s", all[0] != '\0' ? ", " : "", level, size);
            (void)strncat(all, one, sizeof all - strlen(all) - 1);
        }
    }
    say(l, "caches", "%s", all);
}

static void say_devices(list *l) {
    carry_device_properties device = {CARRY_INIT(carry_device_properties)};
    for (int i = 0; i < carry_device_count(); i++) {
        if (carry_device_properties_of(l->ctx, &device, i) != CARRY_OK) {
            continue;
        }
        if (i == 0) {
            say(l, "cpu", "%s", device.name);
            say(l, "instructions", "%s", device.kernels);
        } else {
            say(l, "gpu", "%s, %s, %d multiprocessors, %.0f GiB", device.name, device.kernels, device.units,
                (double)device.memory / (double)(1 << 30));
        }
    }
    char driver[256];
    first_line(driver, sizeof driver, "/proc/driver/nvidia/version");
    say(l, "gpu_driver", "%s", driver);
}

static void say_system(list *l) {
    struct utsname system;
    char host[64] = "";
    say(l, "cores", "%d usable of %ld", carry_cores(), sysconf(_SC_NPROCESSORS_CONF));
    say_caches(l);
    say(l, "memory", "%.1f GiB", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (double)(1 << 30));
    if (uname(&system) == 0) {
        say(l, "system", "%s %s %s", system.sysname, system.release, system.machine);
    }
    if (gethostname(host, sizeof host - 1) == 0) {
        say(l, "host", "%s", host);
    }
}

static void say_build(list *l) {
    say(l, "carry", "%s", carry_version());
#if defined(__clang__)
    say(l, "compiler", "clang %s", __clang_version__);
#elif defined(__GNUC__)
    say(l, "compiler", "gcc %s", __VERSION__);
#endif
    say(l, "build", "%s", CARRY_BUILD_TYPE);
    say(l, "flags", "%s", CARRY_BUILD_FLAGS);
    say(l, "blas", "%s", carry_blas_name());
    say(l, "sqlite", "%s", sqlite3_libversion());
    say(l, "libyaml", "%s", yaml_get_version_string());
    say(l, "zlib", "%s", zlibVersion());
}

int carry_machine_facts(carry_ctx *ctx, carry_fact facts[CARRY_FACTS]) {
    list l = {.ctx = ctx, .facts = facts};
    say_devices(&l);
    say_system(&l);
    say_build(&l);
    say(&l, "threads", "%d", carry_ctx_threads(ctx));
    say(&l, "kernels", "%s", carry_ctx_kernels(ctx));
    return l.count;
}
