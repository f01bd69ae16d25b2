/* Overflow-checked sizes; arenas over borrowed blocks. */
#include "core/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Blocks of LARGE_BLOCK bytes and more are aligned to 2 MiB and ask Linux for pages of that size. With small pages,
   rows that are a page or more apart, such as the tokens of one head, need a TLB entry each. */
#define LARGE_PAGE ((size_t)1 << 21)
#define LARGE_BLOCK ((size_t)1 << 23)

static size_t padding_for(size_t address) {
    return (CARRY_ALIGN - address % CARRY_ALIGN) % CARRY_ALIGN;
}

bool carry_size_mul(size_t *result, size_t a, size_t b) {
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *result = product;
    return true;
}

bool carry_size_add(size_t *result, size_t a, size_t b) {
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *result = sum;
    return true;
}

bool carry_size_product(size_t *result, const int64_t *factors, int count, size_t unit) {
    size_t product = unit;
    for (int i = 0; i < count; i++) {
        if (factors[i] < 0 || !carry_size_mul(&product, product, (size_t)factors[i])) {
            return false;
        }
    }
    /* Pointer differences are signed: nothing larger can be indexed. */
    if (product > (size_t)PTRDIFF_MAX) {
        return false;
    }
    *result = product;
    return true;
}

carry_arena carry_arena_over(void *block, size_t size) {
    if (block == NULL) {
        return (carry_arena){.base = NULL};
    }
    size_t skip = padding_for((size_t)(uintptr_t)block);
    return (carry_arena){
        .base = (unsigned char *)block + skip,
        .size = size > skip ? size - skip : 0,
    };
}

void *carry_arena_take(carry_arena *arena, size_t count, size_t item) {
    size_t bytes;
    size_t end;
    if (arena->overflowed || !carry_size_mul(&bytes, count, item) || !carry_size_add(&end, arena->used, bytes) ||
        !carry_size_add(&end, end, padding_for(end)) || end > (size_t)PTRDIFF_MAX) {
        arena->overflowed = true;
        return NULL;
    }
    size_t start = arena->used;
    arena->used = end;
    if (arena->base == NULL) {
        return NULL;
    }
    if (start + bytes > arena->size) {
        arena->overflowed = true;
        return NULL;
    }
    return arena->base + start;
}

bool carry_arena_total(const carry_arena *arena, size_t *bytes) {
    if (arena->overflowed) {
        return false;
    }
    *bytes = 0;
    return arena->used == 0 || carry_size_add(bytes, arena->used, CARRY_ALIGN - 1);
}

void *carry_aligned_new(size_t bytes) {
    size_t padded;
    if (!carry_size_add(&padded, bytes > 0 ? bytes : 1, CARRY_ALIGN - 1) || padded > (size_t)PTRDIFF_MAX) {
        return NULL;
    }
    padded = padded / CARRY_ALIGN * CARRY_ALIGN;
    if (padded < LARGE_BLOCK) {
        return aligned_alloc(CARRY_ALIGN, padded);
    }
    void *block;
    if (posix_memalign(&block, LARGE_PAGE, padded) != 0) { /* aligned_alloc may refuse sizes that are not whole pages */
        return NULL;
    }
#if defined(MADV_HUGEPAGE)
    (void)madvise(block, padded / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE); /* a hint: failure is harmless */
#endif
    return block;
}

double carry_resident_bytes(void) {
    char text[128];
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return -1.0;
    }
    ssize_t length = read(file, text, sizeof text - 1);
    (void)close(file);
    text[length > 0 ? length : 0] = '\0';
    char *end;
    (void)strtoll(text, &end, 10); /* the whole address space */
    long long pages = strtoll(end, NULL, 10);
    return pages > 0 ? (double)pages * (double)sysconf(_SC_PAGESIZE) : -1.0;
}

double carry_number_in(const char *path, const char *key, double unit) {
    char line[256];
    double found = -1.0;
    FILE *file = fopen(path, "r");
    while (file != NULL && found < 0.0 && fgets(line, sizeof line, file) != NULL) {
        const size_t length = strlen(key);
        char *end;
        if (strncmp(line, key, length) == 0) {
            const double value = strtod(line + length, &end);
            found = end != line + length ? value * unit : -1.0;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return found;
}

double carry_available_bytes(void) {
    const double available = carry_number_in("/proc/meminfo", "MemAvailable:", 1024.0);
    const double limit = carry_number_in("/sys/fs/cgroup/memory.max", "", 1.0);
    const double used = carry_number_in("/sys/fs/cgroup/memory.current", "", 1.0);
    if (limit < 0.0 || used < 0.0) {
        return available;
    }
    const double left = limit > used ? limit - used : 0.0;
    return available < 0.0 || left < available ? left : available;
}
