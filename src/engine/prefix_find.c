/* Finding and restoring cached prefixes; opening and closing the tree. */
#include <inttypes.h>
#include <stdlib.h>

#include "core/context.h"
#include "engine/prefix.h"
#include "engine/prefix_disk.h"

#define BLOCK CARRY_PAGE_TOKENS
#define BUCKETS 1024 /* initial number */

carry_status carry_prefix_open(carry_ctx *ctx, carry_prefix *p, carry_runner *runner, carry_state_pool *pool,
                               const carry_prefix_options *options) {
    *p = (carry_prefix){.ctx = ctx,
                        .runner = runner,
                        .pool = pool,
                        .options = *options,
                        .bucket_count = BUCKETS,
                        .buckets = calloc(BUCKETS, sizeof(carry_prefix_node *)),
                        .root = {.page = CARRY_POOL_NONE, .slot = CARRY_POOL_NONE}};
    if (p->buckets == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a cache of prefixes");
    }
    if (options->folder != NULL) {
        carry_prefix_disk_open(p);
    }
    return CARRY_OK;
}

/* Writes the newest snapshots of a list to files, except minor ones, as many as fit by the sizes of their slots. The
   newest is written last, so that its file is deleted last. */
static void store(carry_prefix *p, const carry_prefix_list *list) {
    size_t room = p->options.folder_bytes;
    carry_prefix_node *first = NULL;
    for (carry_prefix_node *n = list->newest; n != NULL && room >= p->runner->sizes.slot_bytes; n = n->older) {
        room -= n->is_minor ? 0 : p->runner->sizes.slot_bytes;
        first = n;
    }
    for (carry_prefix_node *n = first; n != NULL; n = n->newer) {
        if (!n->is_minor) {
            carry_prefix_disk_write(p, n);
        }
    }
}

void carry_prefix_close(carry_prefix *p) {
    if (p->disk != NULL) {
        store(p, &p->host);
        store(p, &p->device);
    }
    while (p->device.oldest != NULL) {
        carry_prefix_drop_snapshot(p, p->device.oldest);
    }
    while (p->host.oldest != NULL) {
        carry_prefix_drop_snapshot(p, p->host.oldest);
    }
    carry_prefix_disk_close(p);
    free(p->buckets);
    *p = (carry_prefix){0};
}

/* The longest short block below `parent` that has a snapshot and with which the text continues. */
static carry_prefix_node *find_short(const carry_prefix *p, const carry_prefix_node *parent, const int32_t *ids,
                                     int64_t limit) {
    const int64_t most = limit - parent->length < BLOCK - 1 ? limit - parent->length : BLOCK - 1;
    carry_prefix_node *found = NULL;
    uint64_t hash = parent->hash;
    for (int32_t i = 0; i < most && parent->short_children > 0; i++) {
        hash = carry_prefix_hash(hash, ids + parent->length + i, 1);
        carry_prefix_node *n = carry_prefix_child(p, parent, hash, ids + parent->length, i + 1);
        found = n != NULL && n->tier != CARRY_TIER_NONE ? n : found;
    }
    return found;
}

/* The deepest node of whole blocks on the path of a text of at most `limit` tokens. */
static carry_prefix_node *follow(carry_prefix *p, const int32_t *ids, int64_t limit) {
    carry_prefix_node *n = &p->root;
    while (n->length + BLOCK <= limit) {
        const uint64_t hash = carry_prefix_hash(n->hash, ids + n->length, BLOCK);
        carry_prefix_node *child = carry_prefix_child(p, n, hash, ids + n->length, BLOCK);
        if (child == NULL) {
            break;
        }
        n = child;
    }
    return n;
}

static carry_prefix_node *deepest_snapshot(const carry_prefix *p, carry_prefix_node *way, const int32_t *ids,
                                           int64_t limit) {
    for (carry_prefix_node *n = way;; n = n->parent) {
        carry_prefix_node *found = find_short(p, n, ids, limit);
        if (found != NULL || n->tier != CARRY_TIER_NONE) {
            return found != NULL ? found : n;
        }
        if (n == &p->root) {
            return NULL;
        }
    }
}

carry_prefix_hit carry_prefix_find(carry_prefix *p, const int32_t *ids, int64_t count) {
    carry_prefix_node *way = follow(p, ids, count - 1);
    carry_prefix_node *found = deepest_snapshot(p, way, ids, count - 1);
    if (p->disk != NULL && carry_prefix_disk_load(p, ids, count - 1, found != NULL ? found->length : 0)) {
        way = follow(p, ids, count - 1);
        found = deepest_snapshot(p, way, ids, count - 1);
    }
    if (found != NULL) {
        found->pins++;
        carry_prefix_touch(p, found);
    }
    return (carry_prefix_hit){.node = found, .length = found != NULL ? found->length : 0, .shared = way->length};
}

void carry_prefix_unpin(carry_prefix_node *node) {
    if (node != NULL) {
        node->pins--;
    }
}

static carry_status restore_page(carry_prefix *p, const carry_prefix_node *n, int32_t *page) {
    *page = CARRY_POOL_NONE;
    if (n->page != CARRY_POOL_NONE) {
        carry_state_pool_share_page(p->pool, n->page);
        *page = n->page;
        return CARRY_OK;
    }
    const int32_t made = n->host_page != NULL ? carry_prefix_take_page(p) : CARRY_POOL_NONE;
    if (made == CARRY_POOL_NONE) {
        return carry_fail(p->ctx, CARRY_EMEMORY, "no page for a cached prefix of %" PRId64 " tokens", n->length);
    }
    const carry_status status = p->runner->ops->write_page(p->runner, made, n->host_page);
    if (status != CARRY_OK) {
        carry_state_pool_give_page(p->pool, made);
        return status;
    }
    *page = made;
    return CARRY_OK;
}

carry_status carry_prefix_restore(carry_prefix *p, const carry_prefix_hit *hit, int32_t slot, int32_t *pages) {
    const carry_prefix_node *node = hit->node;
    const bool has_pages = p->runner->sizes.page_bytes > 0;
    carry_status status = node->slot != CARRY_POOL_NONE ? p->runner->ops->copy_slot(p->runner, slot, node->slot)
                                                        : p->runner->ops->write_slot(p->runner, slot, node->host_slot);
    const carry_prefix_node *n = node;
    for (; status == CARRY_OK && has_pages && n != &p->root; n = n->parent) {
        status = restore_page(p, n, &pages[carry_prefix_page_of(n)]);
        if (status != CARRY_OK) {
            break;
        }
    }
    for (const carry_prefix_node *done = node; status != CARRY_OK && done != n; done = done->parent) {
        carry_state_pool_give_page(p->pool, pages[carry_prefix_page_of(done)]);
    }
    return status;
}

void carry_prefix_distrust(carry_prefix *p, const int32_t *ids, int64_t count) {
    for (;;) {
        carry_prefix_node *found = deepest_snapshot(p, follow(p, ids, count), ids, count);
        if (found == NULL) {
            break;
        }
        carry_prefix_drop_snapshot(p, found);
    }
    carry_prefix_disk_distrust(p, ids, count);
}
