/* Reads cached prefixes from files.

   The files of a snapshot form a chain: each has the tokens, keys and values after the file before it. Each also has
   the recurrent part at its end, of which only that of the last file is used. All headers of the chain are read first.
   Then all data is hashed and copied by all threads: a conversation of 30,000 tokens has some 40 files with 1 GB. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/error.h"
#include "core/threads.h"
#include "engine/prefix_disk_inside.h"
#include "engine/state_image.h"

#define BLOCK CARRY_PAGE_TOKENS

typedef struct chain_file {
    uint64_t hash;
    int64_t length;
    carry_state_file file;
    carry_state_image image;
} chain_file;

/* A page or a slot to copy. */
typedef struct chain_copy {
    void *to;
    const void *from;
    size_t bytes;
} chain_copy;

typedef struct chain {
    carry_prefix *prefix;
    carry_prefix_node *node;
    const int32_t *ids;
    const uint64_t *hash; /* [length + 1]: hashes of the first tokens */
    chain_file *files;    /* the last one first */
    int64_t file_count, file_room;
    chain_copy *copies;
    int64_t copy_count;
    bool is_out_of_memory; /* if loading fails, the files are kept */
} chain;

static void close_chain(chain *c) {
    for (int64_t i = 0; i < c->file_count; i++) {
        carry_state_close(&c->files[i].file);
    }
    free(c->files);
    free(c->copies);
}

/* Deletes a file that cannot be used, with a warning that gives the reason. */
static void skip_file(chain *c, uint64_t hash, int64_t length, carry_status status) {
    carry_prefix *p = c->prefix;
    carry_disk_entry *e = carry_prefix_disk_entry(p->disk, hash, length);
    carry_log(p->ctx, CARRY_LOG_WARNING, "a stored prefix is skipped: %s", carry_ctx_error(p->ctx));
    c->is_out_of_memory = status == CARRY_EMEMORY;
    if (e != NULL && !c->is_out_of_memory) {
        carry_prefix_disk_delete(p, e);
    }
}

static chain_file *next_file(chain *c) {
    if (c->file_count == c->file_room) {
        const int64_t room = c->file_room > 0 ? 2 * c->file_room : 16;
        chain_file *grown = realloc(c->files, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            c->is_out_of_memory = true;
            return NULL;
        }
        c->files = grown;
        c->file_room = room;
    }
    return &c->files[c->file_count];
}

/* Opens the file that ends at `length` and compares its tokens; its hashes are not verified yet. */
static bool open_file(chain *c, int64_t length) {
    char path[CARRY_FILE_PATH];
    carry_prefix *p = c->prefix;
    carry_disk_entry *e = carry_prefix_disk_entry(p->disk, c->hash[length], length);
    chain_file *f = e != NULL ? next_file(c) : NULL;
    if (f == NULL) {
        return false;
    }
    *f = (chain_file){.hash = e->hash, .length = length};
    const carry_status status = carry_prefix_disk_path(p, path, e->hash, length)
                                    ? carry_state_image_map(p->ctx, &f->file, &f->image, path, p->runner)
                                    : CARRY_ERANGE;
    if (status != CARRY_OK) {
        skip_file(c, e->hash, length, status);
        return false;
    }
    c->file_count++;
    carry_prefix_disk_touch(p, e);
    const carry_state_image *image = &f->image;
    bool fits = image->length == length && image->hash == f->hash && image->start_hash == c->hash[image->start] &&
                image->id_count == image->length - image->start;
    for (int64_t i = image->start; i < image->length && fits; i++) {
        fits = image->ids[i - image->start] == c->ids[i];
    }
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

static bool open_files(chain *c) {
    int64_t at = c->node->length;
    do {
        if (!open_file(c, at)) {
            return false;
        }
        at = c->files[c->file_count - 1].image.start;
    } while (at > 0 && !has_pages_to(c->prefix, c->node, at));
    return true;
}

static bool verify_files(chain *c) {
    carry_prefix *p = c->prefix;
    int64_t wrong = 0;
    carry_state_check *checks = calloc((size_t)c->file_count, sizeof *checks);
    char(*paths)[CARRY_FILE_PATH] = calloc((size_t)c->file_count, sizeof *paths);
    bool is_right = checks != NULL && paths != NULL;
    for (int64_t i = 0; i < c->file_count && is_right; i++) {
        is_right = carry_prefix_disk_path(p, paths[i], c->files[i].hash, c->files[i].length);
        /* The recurrent parts of earlier files are not needed. */
        checks[i] = (carry_state_check){.file = &c->files[i].file, .path = paths[i], .unread = i > 0 ? "slot" : NULL};
    }
    c->is_out_of_memory = checks == NULL || paths == NULL;
    const carry_status status = is_right ? carry_state_verify_files(p->ctx, checks, c->file_count, &wrong) : CARRY_OK;
    if (status != CARRY_OK) {
        skip_file(c, c->files[wrong].hash, c->files[wrong].length, status);
        is_right = false;
    }
    free(checks);
    free(paths);
    return is_right;
}

static bool add_copy(chain *c, void **to, const void *from, size_t bytes) {
    *to = malloc(bytes + 1);
    if (*to == NULL) {
        c->is_out_of_memory = true;
        return false;
    }
    c->copies[c->copy_count++] = (chain_copy){.to = *to, .from = from, .bytes = bytes};
    return true;
}

/* Allocates the slot, and the pages of all nodes on the snapshot's path that have none. */
static bool list_copies(chain *c) {
    carry_prefix *p = c->prefix;
    const size_t bytes = p->runner->sizes.page_bytes;
    int64_t nodes = 1;
    for (const carry_prefix_node *n = c->node; n != &p->root; n = n->parent) {
        nodes++;
    }
    c->copies = malloc((size_t)nodes * sizeof *c->copies);
    c->is_out_of_memory = c->copies == NULL;
    if (c->copies == NULL || !add_copy(c, &c->node->host_slot, c->files[0].image.slot, p->runner->sizes.slot_bytes)) {
        return false;
    }
    int64_t at = 0; /* the file of the node's page */
    for (carry_prefix_node *n = c->node; bytes > 0 && n != &p->root; n = n->parent) {
        const int64_t page = carry_prefix_page_of(n);
        while (at < c->file_count && page < c->files[at].image.start / BLOCK) {
            at++;
        }
        if (at == c->file_count || n->page != CARRY_POOL_NONE || n->host_page != NULL) {
            continue;
        }
        const carry_state_image *image = &c->files[at].image;
        if (!add_copy(c, &n->host_page,
                      (const unsigned char *)image->pages + (size_t)(page - image->start / BLOCK) * bytes, bytes)) {
            return false;
        }
        p->stats.host_bytes += bytes;
    }
    return true;
}

static void copy(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const chain *c = argument;
    for (int64_t i = begin; i < end; i++) {
        memcpy(c->copies[i].to, c->copies[i].from, c->copies[i].bytes);
    }
}

static void drop_loaded(carry_prefix *p, carry_prefix_node *node, bool is_out_of_memory) {
    free(node->host_slot);
    node->host_slot = NULL;
    for (carry_prefix_node *n = node; n != &p->root; n = n->parent) {
        if (n->host_page != NULL && n->host_users == 0) {
            free(n->host_page);
            n->host_page = NULL;
            p->stats.host_bytes -= p->runner->sizes.page_bytes;
        }
    }
    if (!is_out_of_memory) {
        carry_prefix_disk_forget(p, node);
    }
    carry_prefix_drop_leaf(p, node);
}

/* On failure the last file is deleted, unless memory was missing: then *may_retry is false. */
static bool load_chain(carry_prefix *p, carry_prefix_node *node, const int32_t *ids, const uint64_t *hash,
                       bool *may_retry) {
    chain c = {.prefix = p, .node = node, .ids = ids, .hash = hash};
    const bool is_loaded = open_files(&c) && verify_files(&c) && list_copies(&c);
    if (is_loaded) {
        carry_parallel(p->ctx, c.copy_count, 1, copy, &c);
    }
    close_chain(&c);
    if (!is_loaded) {
        *may_retry = !c.is_out_of_memory;
        drop_loaded(p, node, c.is_out_of_memory);
        return false;
    }
    node->pins++;
    carry_prefix_adopt_host(p, node);
    node->pins--;
    return true;
}

/* The length of the longest prefix that has a file, or `least`. */
static int64_t longest(const carry_prefix_disk *d, const uint64_t *hash, int64_t limit, int64_t least) {
    int64_t best = least;
    for (size_t i = 0; i < d->count; i++) {
        const carry_disk_entry *e = &d->entries[i];
        best = e->length > best && e->length <= limit && hash[e->length] == e->hash ? e->length : best;
    }
    return best;
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
    bool is_loaded = false;
    bool may_retry = true;
    while (!is_loaded && may_retry) {
        const int64_t best = longest(d, hash, limit, least);
        carry_prefix_node *node = best > least ? carry_prefix_make_path(p, ids, best) : NULL;
        if (node == NULL) {
            break;
        }
        is_loaded = load_chain(p, node, ids, hash, &may_retry);
    }
    free(hash);
    return is_loaded;
}
