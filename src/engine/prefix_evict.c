/* Deletes files of cached prefixes when space is needed.

   Files form trees: each builds on the file of an earlier part of its text. Only leaves are deleted, so the files that
   the newest prefix builds on stay as long as its own file, however long ago they were written. */
#include "core/context.h"
#include "engine/prefix_disk_inside.h"
#include "engine/state_image.h"

/* Reads from a file's header which file it builds on. */
static void read_base(carry_prefix *p, carry_disk_entry *e) {
    char path[CARRY_FILE_PATH];
    carry_state_file file;
    carry_state_image image;
    if (e->start != CARRY_DISK_UNREAD || !carry_prefix_disk_path(p, path, e->hash, e->length)) {
        return;
    }
    const carry_status status = carry_state_image_map(p->ctx, &file, &image, path, p->runner);
    if (status != CARRY_OK) {
        e->start = status == CARRY_EMEMORY ? CARRY_DISK_UNREAD : CARRY_DISK_DAMAGED;
        return;
    }
    const bool fits = image.length == e->length && image.hash == e->hash;
    e->start = fits ? image.start : CARRY_DISK_DAMAGED;
    e->start_hash = image.start_hash;
    carry_state_close(&file);
}

/* The file that this one builds on. NULL: none, or it is missing. */
static carry_disk_entry *base_of(carry_prefix *p, carry_disk_entry *e) {
    read_base(p, e);
    return e->start > 0 ? carry_prefix_disk_entry(p->disk, e->start_hash, e->start) : NULL;
}

bool carry_prefix_disk_is_whole(carry_prefix *p, uint64_t hash, int64_t length) {
    carry_disk_entry *e = carry_prefix_disk_entry(p->disk, hash, length);
    while (e != NULL && e->start != 0) { /* a base is shorter than the file that builds on it: the loop ends */
        carry_disk_entry *base = base_of(p, e);
        e = e->start == 0 ? e : base;
    }
    return e != NULL;
}

/* Marks the files that must stay, and returns their total size. */
static size_t mark_needed(carry_prefix *p, const carry_prefix_node *base) {
    carry_prefix_disk *d = p->disk;
    size_t bytes = 0;
    for (size_t i = 0; i < d->count; i++) {
        d->entries[i].is_needed = false;
    }
    carry_disk_entry *e = base != &p->root ? carry_prefix_disk_entry(d, base->hash, base->length) : NULL;
    for (; e != NULL; e = base_of(p, e)) {
        e->is_needed = true;
        bytes += e->bytes;
    }
    return bytes;
}

static void count_users(carry_prefix *p) {
    carry_prefix_disk *d = p->disk;
    for (size_t i = 0; i < d->count; i++) {
        d->entries[i].users = 0;
    }
    for (size_t i = 0; i < d->count; i++) {
        carry_disk_entry *e = &d->entries[i];
        carry_disk_entry *base = base_of(p, e);
        e->is_broken = e->start == CARRY_DISK_DAMAGED || (e->start > 0 && base == NULL);
        if (base != NULL) {
            base->users++;
        }
    }
}

static carry_disk_entry *next_to_delete(const carry_prefix_disk *d) {
    carry_disk_entry *found = NULL;
    for (size_t i = 0; i < d->count; i++) {
        carry_disk_entry *e = &d->entries[i];
        if (!e->is_needed && (e->is_broken || e->users == 0) &&
            (found == NULL || (e->is_broken && !found->is_broken) ||
             (e->is_broken == found->is_broken && e->used < found->used))) {
            found = e;
        }
    }
    return found;
}

/* Deletes a file; those that build on it are then broken. */
static void delete_one(carry_prefix *p, carry_disk_entry *e) {
    carry_disk_entry *base = base_of(p, e);
    if (base != NULL) {
        base->users--;
    }
    for (size_t i = 0; i < p->disk->count && e->users > 0; i++) {
        carry_disk_entry *user = &p->disk->entries[i];
        user->is_broken = user->is_broken || (user->start == e->length && user->start_hash == e->hash);
    }
    carry_prefix_disk_delete(p, e);
}

bool carry_prefix_disk_make_space(carry_prefix *p, size_t bytes, const carry_prefix_node *base) {
    carry_prefix_disk *d = p->disk;
    if (d->bytes + bytes <= p->options.folder_bytes) {
        return true;
    }
    if (mark_needed(p, base) + bytes > p->options.folder_bytes) {
        return false;
    }
    count_users(p);
    while (d->bytes + bytes > p->options.folder_bytes) {
        carry_disk_entry *e = next_to_delete(d);
        if (e == NULL) {
            return false;
        }
        delete_one(p, e);
    }
    return true;
}
