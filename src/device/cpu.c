/* The CPU as a device: its memory is that of the process, and work is done when a call returns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "device/backend.h"

struct carry_stream {
    char unused;
};

struct carry_event {
    double seconds;
};

static int count(void) {
    return 1;
}

/* Finds the first line of a file that starts with a key, and copies the text after its colon; for /proc/cpuinfo. */
static int line_of(char *value, size_t size, const char *path, const char *key) {
    FILE *file = fopen(path, "re");
    int found = 0;
    char line[256];
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) == 0 && colon != NULL) {
            (void)snprintf(value, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
            value[strcspn(value, "\n")] = '\0';
            found = 1;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return found;
}

/* On ARM, /proc/cpuinfo has a part number where on x86 it has a name. Returns the name of a part, or NULL if it is not
   in this short list. */
static const char *arm_part(const char *part) {
    static const struct {
        const char *part, *name;
    } known[] = {{"0xd0c", "Neoverse-N1"}, {"0xd40", "Neoverse-V1"}, {"0xd49", "Neoverse-N2"},
                 {"0xd4f", "Neoverse-V2"}, {"0xd03", "Cortex-A53"},  {"0xd08", "Cortex-A72"},
                 {"0xd0b", "Cortex-A76"},  {"0xd8e", "Neoverse-N3"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(part, known[i].part) == 0) {
            return known[i].name;
        }
    }
    return NULL;
}

static void processor_name(char name[96]) {
    char part[64];
    if (line_of(name, 96, "/proc/cpuinfo", "model name")) {
        return;
    }
    if (line_of(part, sizeof part, "/proc/cpuinfo", "CPU part")) {
        const char *known = arm_part(part);
        (void)snprintf(name, 96, known != NULL ? "%s" : "ARM part %s", known != NULL ? known : part);
        return;
    }
    (void)snprintf(name, 96, "unknown processor");
}

/* The size in bytes of core 0's cache of a level; 0 if the kernel does not report it. */
static size_t cache_size(int level) {
    size_t bytes = 0;
    for (int index = 0; index < 8; index++) {
        char path[96];
        char text[32] = "";
        int found_level = 0;
        (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", index);
        FILE *file = fopen(path, "re");
        if (file == NULL) {
            break;
        }
        if (fgets(text, sizeof text, file) != NULL) {
            found_level = (int)strtol(text, NULL, 10);
        }
        (void)fclose(file);
        (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        file = fopen(path, "re");
        if (file == NULL) {
            continue;
        }
        if (fgets(text, sizeof text, file) != NULL && found_level == level) {
            char *unit;
            unsigned long value = strtoul(text, &unit, 10);
            bytes = (size_t)value * (*unit == 'M' ? 1024u * 1024u : 1024u);
        }
        (void)fclose(file);
    }
    return bytes;
}

static carry_status describe(carry_ctx *ctx, int ordinal, carry_device_properties *properties) {
    (void)ctx;
    (void)ordinal;
    *properties =
        (carry_device_properties){CARRY_INIT(carry_device_properties), .backend = "cpu", .units = carry_cores()};
    processor_name(properties->name);
#if defined(__aarch64__)
    (void)snprintf(properties->kernels, sizeof properties->kernels, "neon");
#elif defined(__x86_64__)
    (void)snprintf(properties->kernels, sizeof properties->kernels, "%s%s",
                   __builtin_cpu_supports("avx2") ? "avx2" : "sse2",
                   __builtin_cpu_supports("avx512f") ? " avx512" : "");
#endif
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGE_SIZE);
    properties->memory = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    properties->cache_inner = cache_size(2);
    properties->cache = cache_size(3);
    if (properties->cache == 0) {
        properties->cache = properties->cache_inner;
    }
    return CARRY_OK;
}

/* Memory of the page cache counts as available: it holds the files of large models that were just read. */
static carry_status memory(carry_ctx *ctx, int ordinal, size_t *available, size_t *total) {
    (void)ctx;
    (void)ordinal;
    const long page = sysconf(_SC_PAGE_SIZE);
    const long free_pages = sysconf(_SC_AVPHYS_PAGES);
    const long pages = sysconf(_SC_PHYS_PAGES);
    const double bytes = carry_available_bytes();
    *available = page > 0 && free_pages > 0 ? (size_t)page * (size_t)free_pages : 0;
    *available = bytes >= 0.0 ? (size_t)bytes : *available;
    *total = page > 0 && pages > 0 ? (size_t)page * (size_t)pages : 0;
    return CARRY_OK;
}

static carry_status host_alloc(carry_ctx *ctx, void **data, size_t bytes) {
    *data = carry_aligned_new(bytes);
    return *data != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "%zu bytes of memory cannot be allocated", bytes);
}

static void host_free(carry_ctx *ctx, void *data) {
    (void)ctx;
    free(data);
}

static carry_status alloc(carry_ctx *ctx, void **data, int ordinal, size_t bytes) {
    (void)ordinal;
    return host_alloc(ctx, data, bytes);
}

static void free_data(carry_ctx *ctx, int ordinal, void *data) {
    (void)ordinal;
    host_free(ctx, data);
}

static carry_status alloc_on(carry_ctx *ctx, void **data, int ordinal, size_t bytes, carry_stream *stream) {
    (void)stream;
    return alloc(ctx, data, ordinal, bytes);
}

static void free_on(carry_ctx *ctx, int ordinal, void *data, carry_stream *stream) {
    (void)stream;
    free_data(ctx, ordinal, data);
}

static carry_status copy(carry_ctx *ctx, int ordinal, void *to, const void *from, size_t bytes, carry_copy_way way,
                         carry_stream *stream) {
    (void)ctx;
    (void)ordinal;
    (void)way;
    (void)stream;
    if (bytes > 0) {
        memmove(to, from, bytes);
    }
    return CARRY_OK;
}

static carry_status fill(carry_ctx *ctx, int ordinal, void *to, unsigned char byte, size_t bytes,
                         carry_stream *stream) {
    (void)ctx;
    (void)ordinal;
    (void)stream;
    if (bytes > 0) {
        memset(to, byte, bytes);
    }
    return CARRY_OK;
}

static carry_status stream_new(carry_ctx *ctx, carry_stream **stream, int ordinal) {
    (void)ordinal;
    *stream = malloc(sizeof **stream);
    return *stream != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: a stream");
}

static carry_status stream_wait(carry_ctx *ctx, int ordinal, carry_stream *stream) {
    (void)ctx;
    (void)ordinal;
    (void)stream;
    return CARRY_OK;
}

static void stream_free(carry_ctx *ctx, int ordinal, carry_stream *stream) {
    (void)ctx;
    (void)ordinal;
    free(stream);
}

static carry_status event_new(carry_ctx *ctx, carry_event **event, int ordinal) {
    (void)ordinal;
    *event = calloc(1, sizeof **event);
    return *event != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: an event");
}

static carry_status event_record(carry_ctx *ctx, int ordinal, carry_event *event, carry_stream *stream) {
    (void)ctx;
    (void)ordinal;
    (void)stream;
    event->seconds = carry_seconds();
    return CARRY_OK;
}

static carry_status event_wait(carry_ctx *ctx, int ordinal, carry_event *event) {
    (void)ctx;
    (void)ordinal;
    (void)event;
    return CARRY_OK;
}

static carry_status event_elapsed(carry_ctx *ctx, int ordinal, double *seconds, carry_event *from, carry_event *to) {
    (void)ctx;
    (void)ordinal;
    *seconds = to->seconds - from->seconds;
    return CARRY_OK;
}

static void event_free(carry_ctx *ctx, int ordinal, carry_event *event) {
    (void)ctx;
    (void)ordinal;
    free(event);
}

static carry_status stream_after(carry_ctx *ctx, int ordinal, carry_stream *stream, carry_event *event) {
    (void)ctx;
    (void)ordinal;
    (void)stream;
    (void)event;
    return CARRY_OK;
}

static carry_status event_test(carry_ctx *ctx, int ordinal, carry_event *event, int *done) {
    (void)ctx;
    (void)ordinal;
    (void)event;
    *done = 1;
    return CARRY_OK;
}

const carry_backend carry_backend_cpu = {
    .name = "cpu",
    .about = "this machine's cores",
    .count = count,
    .describe = describe,
    .memory = memory,
    .alloc = alloc,
    .free = free_data,
    .alloc_on = alloc_on,
    .free_on = free_on,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .copy = copy,
    .fill = fill,
    .stream_new = stream_new,
    .stream_wait = stream_wait,
    .stream_free = stream_free,
    .event_new = event_new,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_elapsed = event_elapsed,
    .event_free = event_free,
    .stream_after = stream_after,
    .event_test = event_test,
};
