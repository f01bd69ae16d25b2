/* The folder of cached prefixes, for prefix_disk.c, prefix_evict.c and prefix_load.c.

   A file builds on the file of its first `start` tokens, its base, and is useless without it. A whole chain of bases
   ends with a file that starts at token 0. */
#ifndef CARRY_ENGINE_PREFIX_DISK_INSIDE_H
#define CARRY_ENGINE_PREFIX_DISK_INSIDE_H

#include "core/file.h"
#include "engine/prefix_disk.h"

typedef struct carry_disk_entry {
    uint64_t hash;
    int64_t length;
    size_t bytes;
    double used;   /* last use: the file's time at first, then a counter that continues from it */
    int64_t start; /* tokens of its base; CARRY_DISK_UNREAD: read it by carry_prefix_disk_read_base */
    uint64_t start_hash;
    /* While space is made: the file must stay, it cannot be read, and the number of files that build on it. */
    bool is_needed, is_broken;
    int64_t users;
} carry_disk_entry;

#define CARRY_DISK_UNREAD (-1)
#define CARRY_DISK_DAMAGED (-2)

struct carry_prefix_disk {
    char folder[CARRY_FILE_PATH];
    uint64_t model;
    carry_disk_entry *entries;
    size_t count, room, bytes;
    double newest;
    bool is_read_only; /* set after the first failed write */
};

/* NULL: there is no file of this prefix. Valid until the next file is added or deleted. */
carry_disk_entry *carry_prefix_disk_entry(const carry_prefix_disk *disk, uint64_t hash, int64_t length);
bool carry_prefix_disk_path(carry_prefix *prefix, char path[CARRY_FILE_PATH], uint64_t hash, int64_t length);
void carry_prefix_disk_delete(carry_prefix *prefix, carry_disk_entry *entry);
/* Marks a file as just used, also for the next start. */
void carry_prefix_disk_touch(carry_prefix *prefix, carry_disk_entry *entry);

/* prefix_evict.c */
/* True if there is a file of this prefix and a whole chain of bases. */
bool carry_prefix_disk_is_whole(carry_prefix *prefix, uint64_t hash, int64_t length);
/* Deletes files until `bytes` more fit: first those without a whole chain, then the least recently used ones on which
   no other file builds. The file of `base` and its chain stay (the root: none). Returns false, without deleting any,
   if the bytes would not fit beside these. */
bool carry_prefix_disk_make_space(carry_prefix *prefix, size_t bytes, const carry_prefix_node *base);

#endif
