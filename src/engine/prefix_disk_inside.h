/* The folder of cached prefixes, for prefix_disk.c and prefix_load.c. */
#ifndef CARRY_ENGINE_PREFIX_DISK_INSIDE_H
#define CARRY_ENGINE_PREFIX_DISK_INSIDE_H

#include "core/file.h"
#include "engine/prefix_disk.h"

typedef struct carry_disk_entry {
    uint64_t hash;
    int64_t length;
    size_t bytes;
    double used; /* last use: the file's time at first, then a counter that continues from it */
} carry_disk_entry;

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

#endif
