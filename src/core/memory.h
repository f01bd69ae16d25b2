/* Sizes that cannot overflow, and arenas.

   Sizes come from files and command lines: every product goes through these functions before it is allocated, mapped
   or compared. An arena hands out aligned pieces of a block that the caller owns. An arena over NULL only counts, so
   the same code computes the size of a workspace and divides it. An arena never reads or writes its block, which may
   be GPU memory: an alignment of 64 bytes is enough for the widest access of a GPU. */
#ifndef CARRY_CORE_MEMORY_H
#define CARRY_CORE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_ALIGN 64

/* Return false and leave *result unchanged if the true result does not fit in size_t (product: in ptrdiff_t) or a
   factor is negative. */
bool carry_size_mul(size_t *result, size_t a, size_t b);
bool carry_size_add(size_t *result, size_t a, size_t b);
bool carry_size_product(size_t *result, const int64_t *factors, int count, size_t unit);

typedef struct carry_arena {
    unsigned char *base; /* NULL: count only */
    size_t size;         /* of base */
    size_t used;
    bool overflowed; /* some request did not fit into ptrdiff_t, or into size */
} carry_arena;

/* An arena over a caller's block; the first piece starts at the first aligned address inside it. */
carry_arena carry_arena_over(void *block, size_t size);
/* Returns count items of `item` bytes, aligned to CARRY_ALIGN, or NULL if the arena only counts or has overflowed. */
void *carry_arena_take(carry_arena *arena, size_t count, size_t item);
/* *bytes: the size of a block that holds everything taken so far, whatever its alignment. Returns false on overflow. */
bool carry_arena_total(const carry_arena *arena, size_t *bytes);

/* Bytes of memory that the process holds now; negative if unknown. */
double carry_resident_bytes(void);

/* Returns the number after `key` at the start of a line of a file such as /proc/meminfo, times `unit`; -1 if it is
   missing. */
double carry_number_in(const char *path, const char *key, double unit);
/* Bytes of memory that can be allocated now without swapping, within the limit of the control group; negative if
   unknown. */
double carry_available_bytes(void);

/* Like aligned_alloc(CARRY_ALIGN, ...), any size; free with free. NULL when out of memory. */
void *carry_aligned_new(size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
