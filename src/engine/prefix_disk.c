/* Files of cached prefixes: their list, writing and deleting. prefix_load.c reads them, prefix_evict.c makes space. */
#include "engine/prefix_disk_inside.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/context.h"
#include "core/file.h"
#include "core/hash.h"
#include "engine/state_image.h"

#define BLOCK CARRY_PAGE_TOKENS
#define SUFFIX ".prefix"
#define NAME 80
#define UNFINISHED 3600.0 /* seconds after which an unfinished file is deleted */
#define HEADER 1792       /* bytes: at least the size of a file's header */

/* Files of other types have names of their own, so that engines of different types can share the folder. Those of keys
   and values in bf16 and states in f32 keep the names of older versions. */
static uint64_t with_types(uint64_t model, const carry_runner_sizes *sizes) {
    const char *kv = sizes->kv_type != NULL ? sizes->kv_type : "none";
    const char *state = sizes->state_type != NULL ? sizes->state_type : "none";
    const bool is_usual = strcmp(kv, "bf16") == 0 || strcmp(kv, "none") == 0;
    const bool is_wide = strcmp(state, "f32") == 0 || strcmp(state, "none") == 0;
    model = is_usual ? model : carry_hash(carry_hash(model, "kv ", 3), kv, strlen(kv));
    return is_wide ? model : carry_hash(carry_hash(model, "state ", 6), state, strlen(state));
}

static void name_of(char name[NAME], const carry_prefix_disk *d, uint64_t hash, int64_t length) {
    char model[CARRY_HASH_TEXT];
    char tokens[CARRY_HASH_TEXT];
    (void)snprintf(name, NAME, "%s-%" PRId64 "-%s" SUFFIX, carry_hash_text(model, d->model), length,
                   carry_hash_text(tokens, hash));
}

/* Parses a file name; false if it has another form or belongs to another model. */
static bool parse_name(const carry_prefix_disk *d, const char *name, carry_disk_entry *entry) {
    char again[NAME];
    char hash[CARRY_HASH_TEXT] = {0};
    const char *dash = strlen(name) > 17 ? strchr(name + 17, '-') : NULL;
    if (dash == NULL || strlen(dash) != 17 + strlen(SUFFIX)) {
        return false;
    }
    memcpy(hash, dash + 1, 16);
    entry->length = strtoll(name + 17, NULL, 10);
    if (entry->length < 1 || !carry_hash_parse(&entry->hash, hash)) {
        return false;
    }
    name_of(again, d, entry->hash, entry->length);
    return strcmp(again, name) == 0;
}

static bool add_entry(carry_prefix_disk *d, const carry_disk_entry *entry) {
    if (d->count == d->room) {
        const size_t room = d->room > 0 ? 2 * d->room : 64;
        carry_disk_entry *grown = realloc(d->entries, room * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        d->entries = grown;
        d->room = room;
    }
    d->entries[d->count++] = *entry;
    d->bytes += entry->bytes;
    d->newest = entry->used > d->newest ? entry->used : d->newest;
    return true;
}

/* True for the name of a file of this model that is being written, or was when its process was killed: NAME.XXXXXX
   (core/file.h). */
static bool is_unfinished(const carry_prefix_disk *d, const char *name) {
    carry_disk_entry entry;
    char whole[NAME];
    const size_t length = strlen(name);
    if (length < 7 || length - 7 >= sizeof whole || name[length - 7] != '.') {
        return false;
    }
    memcpy(whole, name, length - 7);
    whole[length - 7] = '\0';
    return parse_name(d, whole, &entry);
}

static void list_files(carry_ctx *ctx, carry_prefix_disk *d, DIR *folder) {
    for (const struct dirent *e = readdir(folder); e != NULL; e = readdir(folder)) {
        char path[CARRY_FILE_PATH];
        carry_disk_entry entry = {0};
        struct stat about;
        if (is_unfinished(d, e->d_name) && carry_file_in(ctx, path, d->folder, e->d_name) == CARRY_OK &&
            stat(path, &about) == 0 && S_ISREG(about.st_mode) && difftime(time(NULL), about.st_mtime) > UNFINISHED) {
            (void)unlink(path);
        }
        if (parse_name(d, e->d_name, &entry) && carry_file_in(ctx, path, d->folder, e->d_name) == CARRY_OK &&
            stat(path, &about) == 0 && S_ISREG(about.st_mode)) {
            entry.bytes = (size_t)about.st_size;
            entry.used = (double)about.st_mtim.tv_sec + 1e-9 * (double)about.st_mtim.tv_nsec;
            entry.start = CARRY_DISK_UNREAD;
            (void)add_entry(d, &entry);
        }
    }
}

void carry_prefix_disk_open(carry_prefix *p) {
    carry_prefix_disk *d = calloc(1, sizeof *d);
    DIR *folder = NULL;
    if (d == NULL || snprintf(d->folder, sizeof d->folder, "%s", p->options.folder) >= (int)sizeof d->folder ||
        p->runner->ops->hash(p->runner, &d->model) != CARRY_OK) {
        carry_log(p->ctx, CARRY_LOG_WARNING, "prefixes are not stored in %.200s", p->options.folder);
        free(d);
        return;
    }
    d->model = with_types(d->model, &p->runner->sizes);
    (void)mkdir(d->folder, 0777);
    folder = opendir(d->folder);
    if (folder == NULL) {
        carry_log(p->ctx, CARRY_LOG_WARNING, "prefixes are not stored in %s: it is not a folder that can be read",
                  d->folder);
        free(d);
        return;
    }
    list_files(p->ctx, d, folder);
    (void)closedir(folder);
    p->disk = d;
    p->stats.file_snapshots = (int64_t)d->count;
    p->stats.file_bytes = d->bytes;
}

void carry_prefix_disk_close(carry_prefix *p) {
    if (p->disk != NULL) {
        free(p->disk->entries);
        free(p->disk);
        p->disk = NULL;
    }
}

carry_disk_entry *carry_prefix_disk_entry(const carry_prefix_disk *d, uint64_t hash, int64_t length) {
    for (size_t i = 0; i < d->count; i++) {
        if (d->entries[i].hash == hash && d->entries[i].length == length) {
            return &d->entries[i];
        }
    }
    return NULL;
}

bool carry_prefix_disk_path(carry_prefix *p, char path[CARRY_FILE_PATH], uint64_t hash, int64_t length) {
    char name[NAME];
    name_of(name, p->disk, hash, length);
    return carry_file_in(p->ctx, path, p->disk->folder, name) == CARRY_OK;
}

void carry_prefix_disk_delete(carry_prefix *p, carry_disk_entry *e) {
    char path[CARRY_FILE_PATH];
    carry_prefix_disk *d = p->disk;
    if (carry_prefix_disk_path(p, path, e->hash, e->length) && !d->is_read_only) {
        (void)unlink(path);
    }
    d->bytes -= e->bytes;
    *e = d->entries[--d->count];
    p->stats.file_snapshots = (int64_t)d->count;
    p->stats.file_bytes = d->bytes;
}

void carry_prefix_disk_forget(carry_prefix *p, const carry_prefix_node *node) {
    carry_disk_entry *e = p->disk != NULL ? carry_prefix_disk_entry(p->disk, node->hash, node->length) : NULL;
    if (e != NULL) {
        carry_prefix_disk_delete(p, e);
    }
}

void carry_prefix_disk_distrust(carry_prefix *p, const int32_t *ids, int64_t count) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < count && p->disk != NULL && p->disk->count > 0; i++) {
        hash = carry_prefix_hash(hash, ids + i, 1);
        carry_disk_entry *e = carry_prefix_disk_entry(p->disk, hash, i + 1);
        if (e != NULL) {
            carry_prefix_disk_delete(p, e);
        }
    }
}

void carry_prefix_disk_touch(carry_prefix *p, carry_disk_entry *e) {
    char path[CARRY_FILE_PATH];
    e->used = p->disk->newest += 1.0;
    if (carry_prefix_disk_path(p, path, e->hash, e->length)) {
        (void)utimensat(AT_FDCWD, path, NULL, 0);
    }
}

/* The nearest ancestor with a file that can be read, or the root. */
static const carry_prefix_node *filed_ancestor(carry_prefix *p, const carry_prefix_node *node) {
    const carry_prefix_node *n = node->parent;
    while (n != &p->root && !carry_prefix_disk_is_whole(p, n->hash, n->length)) {
        n = n->parent;
    }
    return n;
}

static bool gather(carry_prefix *p, const carry_prefix_node *node, int64_t start, int64_t *ids, unsigned char *pages,
                   unsigned char *slot) {
    carry_runner *r = p->runner;
    const size_t page_bytes = r->sizes.page_bytes;
    for (const carry_prefix_node *n = node; n->length > start; n = n->parent) {
        for (int32_t i = 0; i < n->count; i++) {
            ids[n->length - n->count - start + i] = n->ids[i];
        }
        unsigned char *to = pages + (size_t)(carry_prefix_page_of(n) - start / BLOCK) * page_bytes;
        if (page_bytes > 0 && n->page != CARRY_POOL_NONE) {
            if (r->ops->read_page(r, to, n->page) != CARRY_OK) {
                return false;
            }
        } else if (page_bytes > 0 && n->host_page != NULL) {
            memcpy(to, n->host_page, page_bytes);
        } else if (page_bytes > 0) {
            return false;
        }
    }
    if (node->host_slot != NULL) {
        memcpy(slot, node->host_slot, r->sizes.slot_bytes);
        return true;
    }
    return node->slot != CARRY_POOL_NONE && r->ops->read_slot(r, slot, node->slot) == CARRY_OK;
}

static void write_image(carry_prefix *p, const carry_prefix_node *node, const carry_state_image *image) {
    char path[CARRY_FILE_PATH];
    struct stat about;
    carry_prefix_disk *d = p->disk;
    if (!carry_prefix_disk_path(p, path, node->hash, node->length)) {
        return;
    }
    if (carry_state_image_write(p->ctx, path, p->runner, image) != CARRY_OK || stat(path, &about) != 0) {
        d->is_read_only = true;
        carry_log(p->ctx, CARRY_LOG_WARNING, "prefixes are no longer stored in %s: %s", d->folder,
                  carry_ctx_error(p->ctx));
        return;
    }
    d->newest += 1.0;
    if (!add_entry(d, &(carry_disk_entry){.hash = node->hash,
                                          .length = node->length,
                                          .bytes = (size_t)about.st_size,
                                          .used = d->newest,
                                          .start = image->start,
                                          .start_hash = image->start_hash})) {
        (void)unlink(path);
    }
    p->stats.file_snapshots = (int64_t)d->count;
    p->stats.file_bytes = d->bytes;
}

/* The size of a file with the tokens after `from`, with its header. */
static size_t bytes_of(const carry_prefix *p, const carry_prefix_node *node, const carry_prefix_node *from,
                       int64_t *pages) {
    const carry_runner_sizes *z = &p->runner->sizes;
    *pages = z->page_bytes > 0 ? carry_prefix_page_of(node) + 1 - from->length / BLOCK : 0;
    return HEADER + (size_t)(node->length - from->length) * sizeof(int64_t) + (size_t)*pages * z->page_bytes +
           z->slot_bytes;
}

static void write_from(carry_prefix *p, const carry_prefix_node *node, const carry_prefix_node *from, int64_t pages) {
    const carry_runner_sizes *z = &p->runner->sizes;
    int64_t *ids = malloc((size_t)(node->length - from->length) * sizeof *ids);
    unsigned char *page = malloc((size_t)pages * z->page_bytes + 1);
    unsigned char *slot = malloc(z->slot_bytes + 1);
    if (ids != NULL && page != NULL && slot != NULL && gather(p, node, from->length, ids, page, slot)) {
        write_image(p, node,
                    &(carry_state_image){.start = from->length,
                                         .length = node->length,
                                         .start_hash = from->hash,
                                         .hash = node->hash,
                                         .ids = ids,
                                         .id_count = node->length - from->length,
                                         .slot = slot,
                                         .pages = page,
                                         .page_count = pages});
    }
    free(ids);
    free(page);
    free(slot);
}

/* Writes the part after the nearest ancestor's file. If that does not fit beside the ancestor's chain, which has a
   recurrent part in each file, the whole text can replace the chain: is_last allows that. */
static void write_node(carry_prefix *p, const carry_prefix_node *node, bool is_last) {
    const carry_prefix_node *from = filed_ancestor(p, node);
    int64_t pages;
    const size_t bytes = bytes_of(p, node, from, &pages);
    if (carry_prefix_disk_make_space(p, bytes, from)) {
        write_from(p, node, from, pages);
    } else if (is_last && from != &p->root) {
        const size_t whole = bytes_of(p, node, &p->root, &pages);
        if (carry_prefix_disk_make_space(p, whole, &p->root)) {
            write_from(p, node, &p->root, pages);
        }
    }
}

/* The first snapshot after the nearest ancestor with a file, up to and including the node, that should have a file. */
static const carry_prefix_node *first_without_file(carry_prefix *p, const carry_prefix_node *node) {
    const carry_prefix_node *from = filed_ancestor(p, node);
    const carry_prefix_node *first = node;
    for (const carry_prefix_node *n = node->parent; n != from; n = n->parent) {
        if (n->tier != CARRY_TIER_NONE && !n->is_minor) {
            first = n;
        }
    }
    return first;
}

/* Deletes the file of a prefix if it cannot be read since a file that it builds on is missing. */
static void delete_broken(carry_prefix *p, const carry_prefix_node *node) {
    carry_disk_entry *e = carry_prefix_disk_entry(p->disk, node->hash, node->length);
    if (e != NULL && !carry_prefix_disk_is_whole(p, node->hash, node->length)) {
        carry_prefix_disk_delete(p, e);
    }
}

/* Writes ancestors first: each file then has only the tokens after the one before it. */
void carry_prefix_disk_write(carry_prefix *p, carry_prefix_node *node) {
    carry_prefix_disk *d = p->disk;
    if (d == NULL || d->is_read_only) {
        return;
    }
    if (carry_prefix_disk_is_whole(p, node->hash, node->length)) {
        carry_prefix_disk_touch(p, carry_prefix_disk_entry(d, node->hash, node->length));
        return;
    }
    const carry_prefix_node *next = NULL;
    while (next != node && !d->is_read_only) {
        next = first_without_file(p, node);
        delete_broken(p, next);
        write_node(p, next, next == node);
        if (next != node && carry_prefix_disk_entry(d, next->hash, next->length) == NULL) {
            next = node; /* the ancestor could not be written: write the node alone */
            delete_broken(p, node);
            write_node(p, node, true);
        }
    }
}
