/* Files of cached prefixes. */
#include "engine/prefix_disk.h"

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

typedef struct disk_entry {
    uint64_t hash;
    int64_t length;
    size_t bytes;
    double used; /* last use: the file's time at first, then a counter that continues from it */
} disk_entry;

struct carry_prefix_disk {
    char folder[CARRY_FILE_PATH];
    uint64_t model;
    disk_entry *entries;
    size_t count, room, bytes;
    double newest;
    bool is_read_only; /* set after the first failed write */
};

static void name_of(char name[NAME], const carry_prefix_disk *d, uint64_t hash, int64_t length) {
    char model[CARRY_HASH_TEXT];
    char tokens[CARRY_HASH_TEXT];
    (void)snprintf(name, NAME, "%s-%" PRId64 "-%s" SUFFIX, carry_hash_text(model, d->model), length,
                   carry_hash_text(tokens, hash));
}

/* Parses a file name; false if it has another form or belongs to another model. */
static bool parse_name(const carry_prefix_disk *d, const char *name, disk_entry *entry) {
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

static bool add_entry(carry_prefix_disk *d, const disk_entry *entry) {
    if (d->count == d->room) {
        const size_t room = d->room > 0 ? 2 * d->room : 64;
        disk_entry *grown = realloc(d->entries, room * sizeof *grown);
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
        disk_entry entry = {0};
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

static disk_entry *entry_of(const carry_prefix_disk *d, uint64_t hash, int64_t length) {
    for (size_t i = 0; i < d->count; i++) {
        if (d->entries[i].hash == hash && d->entries[i].length == length) {
            return &d->entries[i];
        }
    }
    return NULL;
}

static bool path_of(carry_prefix *p, char path[CARRY_FILE_PATH], uint64_t hash, int64_t length) {
    char name[NAME];
    name_of(name, p->disk, hash, length);
    return carry_file_in(p->ctx, path, p->disk->folder, name) == CARRY_OK;
}

static void delete_entry(carry_prefix *p, disk_entry *e) {
    char path[CARRY_FILE_PATH];
    carry_prefix_disk *d = p->disk;
    if (path_of(p, path, e->hash, e->length) && !d->is_read_only) {
        (void)unlink(path);
    }
    d->bytes -= e->bytes;
    *e = d->entries[--d->count];
    p->stats.file_snapshots = (int64_t)d->count;
    p->stats.file_bytes = d->bytes;
}

void carry_prefix_disk_forget(carry_prefix *p, const carry_prefix_node *node) {
    disk_entry *e = p->disk != NULL ? entry_of(p->disk, node->hash, node->length) : NULL;
    if (e != NULL) {
        delete_entry(p, e);
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
        delete_entry(p, &d->entries[oldest]);
    }
    return d->bytes + bytes <= p->options.folder_bytes;
}

/* The nearest ancestor with a file, or the root. */
static const carry_prefix_node *filed_ancestor(const carry_prefix *p, const carry_prefix_node *node) {
    const carry_prefix_node *n = node->parent;
    while (n != &p->root && entry_of(p->disk, n->hash, n->length) == NULL) {
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
    if (!path_of(p, path, node->hash, node->length) || !make_space(p, bytes)) {
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
            d, &(disk_entry){
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
        if (n->tier != CARRY_TIER_NONE && !n->is_minor && entry_of(p->disk, n->hash, n->length) == NULL) {
            first = n;
        }
    }
    return first;
}

/* Writes ancestors first: each file then has only the tokens after the one before it. */
void carry_prefix_disk_write(carry_prefix *p, carry_prefix_node *node) {
    carry_prefix_disk *d = p->disk;
    while (d != NULL && !d->is_read_only && entry_of(d, node->hash, node->length) == NULL) {
        carry_prefix_node *next = first_without_file(p, node);
        write_node(p, next);
        if (entry_of(d, next->hash, next->length) == NULL) {
            if (next == node) {
                return; /* it does not fit */
            }
            write_node(p, node); /* the ancestor could not be written: write the node alone */
            return;
        }
    }
}

/* Loading. */

/* Copies the pages of a file to the nodes on the snapshot's path that have none. */
static bool take_pages(carry_prefix *p, carry_prefix_node *node, const carry_state_image *image) {
    const size_t bytes = p->runner->sizes.page_bytes;
    for (carry_prefix_node *n = node; bytes > 0 && n != &p->root; n = n->parent) {
        const int64_t page = carry_prefix_page_of(n) - image->start / BLOCK;
        if (page < 0 || page >= image->page_count || n->length > image->length || n->page != CARRY_POOL_NONE ||
            n->host_page != NULL) {
            continue;
        }
        n->host_page = malloc(bytes);
        if (n->host_page == NULL) {
            return false;
        }
        memcpy(n->host_page, (const unsigned char *)image->pages + (size_t)page * bytes, bytes);
        p->stats.host_bytes += bytes;
    }
    return true;
}

/* Loads one file of a chain: checks it against the tokens and takes its pages. *start: the token at which the file
   begins, where the file before it ends. */
static bool take_file(carry_prefix *p, carry_prefix_node *node, disk_entry *e, const int32_t *ids, const uint64_t *hash,
                      int64_t *start) {
    char path[CARRY_FILE_PATH];
    carry_state_file file;
    carry_state_image image;
    const bool has_slot = e->length == node->length; /* of earlier files only the pages are needed */
    if (!path_of(p, path, e->hash, e->length) ||
        carry_state_image_open(p->ctx, &file, &image, path, p->runner, has_slot) != CARRY_OK) {
        carry_log(p->ctx, CARRY_LOG_WARNING, "a stored prefix is skipped: %s", carry_ctx_error(p->ctx));
        delete_entry(p, e);
        return false;
    }
    bool fits = image.length == e->length && image.hash == e->hash && image.start_hash == hash[image.start] &&
                image.id_count == image.length - image.start;
    for (int64_t i = image.start; i < image.length && fits; i++) {
        fits = image.ids[i - image.start] == ids[i];
    }
    if (fits && has_slot) {
        node->host_slot = malloc(p->runner->sizes.slot_bytes + 1);
        fits = node->host_slot != NULL;
    }
    if (fits && has_slot) {
        memcpy(node->host_slot, image.slot, p->runner->sizes.slot_bytes);
    }
    fits = fits && take_pages(p, node, &image);
    *start = image.start;
    e->used = p->disk->newest += 1.0;
    carry_state_close(&file);
    return fits;
}

/* True if the pages of the first `length` tokens are on the device or in host memory. */
static bool has_pages_to(const carry_prefix *p, const carry_prefix_node *node, int64_t length) {
    bool has_all = true;
    for (const carry_prefix_node *n = node; p->runner->sizes.page_bytes > 0 && n != &p->root; n = n->parent) {
        has_all = has_all && (n->length > length || n->page != CARRY_POOL_NONE || n->host_page != NULL);
    }
    return has_all;
}

static void drop_loaded(carry_prefix *p, carry_prefix_node *node) {
    free(node->host_slot);
    node->host_slot = NULL;
    for (carry_prefix_node *n = node; n != &p->root; n = n->parent) {
        if (n->host_page != NULL && n->host_users == 0) {
            free(n->host_page);
            n->host_page = NULL;
            p->stats.host_bytes -= p->runner->sizes.page_bytes;
        }
    }
    carry_prefix_disk_forget(p, node);
    carry_prefix_drop_leaf(p, node);
}

static bool load_chain(carry_prefix *p, carry_prefix_node *node, const int32_t *ids, const uint64_t *hash) {
    int64_t at = node->length;
    bool fits = true;
    do {
        disk_entry *e = entry_of(p->disk, hash[at], at);
        fits = e != NULL && take_file(p, node, e, ids, hash, &at);
    } while (fits && at > 0 && !has_pages_to(p, node, at));
    if (!fits) {
        drop_loaded(p, node);
        return false;
    }
    node->pins++;
    carry_prefix_adopt_host(p, node);
    node->pins--;
    return true;
}

bool carry_prefix_disk_load(carry_prefix *p, const int32_t *ids, int64_t limit, int64_t least) {
    carry_prefix_disk *d = p->disk;
    uint64_t *hash = d->count > 0 && limit > least ? malloc(((size_t)limit + 1) * sizeof *hash) : NULL;
    if (hash == NULL) {
        return false;
    }
    hash[0] = 0;
    for (int64_t i = 0; i < limit; i++) {
        hash[i + 1] = carry_prefix_hash(hash[i], ids + i, 1);
    }
    int64_t best = least;
    for (size_t i = 0; i < d->count; i++) {
        const disk_entry *e = &d->entries[i];
        best = e->length > best && e->length <= limit && hash[e->length] == e->hash ? e->length : best;
    }
    carry_prefix_node *node = best > least ? carry_prefix_make_path(p, ids, best) : NULL;
    const bool is_loaded = node != NULL && load_chain(p, node, ids, hash);
    free(hash);
    return is_loaded;
}
