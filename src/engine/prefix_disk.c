/* Files of cached prefixes: their list, writing and deleting. prefix_load.c reads them. */
#include "engine/prefix_disk_inside.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/context.h"
#include "core/file.h"
#include "core/hash.h"
#include "engine/state_image.h"

#define BLOCK CARRY_PAGE_TOKENS
#define SUFFIX ".prefix"
#define NAME 80

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

static void list_files(carry_ctx *ctx, carry_prefix_disk *d, DIR *folder) {
    for (const struct dirent *e = readdir(folder); e != NULL; e = readdir(folder)) {
        char path[CARRY_FILE_PATH];
        carry_disk_entry entry = {0};
        struct stat about;
        if (parse_name(d, e->d_name, &entry) && carry_file_in(ctx, path, d->folder, e->d_name) == CARRY_OK &&
            stat(path, &about) == 0 && S_ISREG(about.st_mode)) {
            entry.bytes = (size_t)about.st_size;
            entry.used = (double)about.st_mtime;
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

/* Deletes the least recently used files until `bytes` more fit. */
static bool make_space(carry_prefix *p, size_t bytes) {
    carry_prefix_disk *d = p->disk;
    while (d->bytes + bytes > p->options.folder_bytes && d->count > 0) {
        size_t oldest = 0;
        for (size_t i = 1; i < d->count; i++) {
            oldest = d->entries[i].used < d->entries[oldest].used ? i : oldest;
        }
        carry_prefix_disk_delete(p, &d->entries[oldest]);
    }
    return d->bytes + bytes <= p->options.folder_bytes;
}

/* The nearest ancestor with a file, or the root. */
static const carry_prefix_node *filed_ancestor(const carry_prefix *p, const carry_prefix_node *node) {
    const carry_prefix_node *n = node->parent;
    while (n != &p->root && carry_prefix_disk_entry(p->disk, n->hash, n->length) == NULL) {
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

static void write_image(carry_prefix *p, carry_prefix_node *node, const carry_state_image *image, size_t bytes) {
    char path[CARRY_FILE_PATH];
    struct stat about;
    carry_prefix_disk *d = p->disk;
    if (!carry_prefix_disk_path(p, path, node->hash, node->length) || !make_space(p, bytes)) {
        return;
    }
    if (carry_state_image_write(p->ctx, path, p->runner, image) != CARRY_OK || stat(path, &about) != 0) {
        d->is_read_only = true;
        carry_log(p->ctx, CARRY_LOG_WARNING, "prefixes are no longer stored in %s: %s", d->folder,
                  carry_ctx_error(p->ctx));
        return;
    }
    d->newest += 1.0;
    if (!add_entry(
            d, &(carry_disk_entry){
                   .hash = node->hash, .length = node->length, .bytes = (size_t)about.st_size, .used = d->newest})) {
        (void)unlink(path);
    }
    p->stats.file_snapshots = (int64_t)d->count;
    p->stats.file_bytes = d->bytes;
}

static void write_node(carry_prefix *p, carry_prefix_node *node) {
    const carry_prefix_node *from = filed_ancestor(p, node);
    const carry_runner_sizes *z = &p->runner->sizes;
    const int64_t pages = z->page_bytes > 0 ? carry_prefix_page_of(node) + 1 - from->length / BLOCK : 0;
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
                                         .page_count = pages},
                    (size_t)pages * z->page_bytes + z->slot_bytes);
    }
    free(ids);
    free(page);
    free(slot);
}

/* The first snapshot on the path to a node, including it, that has no file but should have one. */
static carry_prefix_node *first_without_file(const carry_prefix *p, carry_prefix_node *node) {
    carry_prefix_node *first = node;
    for (carry_prefix_node *n = node->parent; n != &p->root; n = n->parent) {
        if (n->tier != CARRY_TIER_NONE && !n->is_minor &&
            carry_prefix_disk_entry(p->disk, n->hash, n->length) == NULL) {
            first = n;
        }
    }
    return first;
}

/* Writes ancestors first: each file then has only the tokens after the one before it. */
void carry_prefix_disk_write(carry_prefix *p, carry_prefix_node *node) {
    carry_prefix_disk *d = p->disk;
    while (d != NULL && !d->is_read_only && carry_prefix_disk_entry(d, node->hash, node->length) == NULL) {
        carry_prefix_node *next = first_without_file(p, node);
        write_node(p, next);
        if (carry_prefix_disk_entry(d, next->hash, next->length) == NULL) {
            if (next == node) {
                return; /* it does not fit */
            }
            write_node(p, node); /* the ancestor could not be written: write the node alone */
            return;
        }
    }
}
