/* The tree of cached prefixes: its nodes, and adding and evicting snapshots. prefix_find.c finds and restores them.

   One hash table has all nodes, by the hash of all tokens up to their end; the tokens of a block and its parent are
   compared too, so that a hash collision is never taken for a hit. */
#include "engine/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/hash.h"
#include "engine/prefix_disk.h"

#define BLOCK CARRY_PAGE_TOKENS
#define BUCKETS 1024 /* initial number */

uint64_t carry_prefix_hash(uint64_t hash, const int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t id = ids[i];
        hash = carry_hash_ids(hash, &id, 1);
    }
    return hash;
}

int64_t carry_prefix_page_of(const carry_prefix_node *node) {
    return (node->length - 1) / BLOCK;
}

static bool has_pages(const carry_prefix *p) {
    return p->runner->sizes.page_bytes > 0;
}

static carry_prefix_list *list_of(carry_prefix *p, carry_tier tier) {
    return tier == CARRY_TIER_DEVICE ? &p->device : &p->host;
}

static void unlink_node(carry_prefix *p, carry_prefix_node *n) {
    carry_prefix_list *list = list_of(p, n->tier);
    *(n->newer != NULL ? &n->newer->older : &list->newest) = n->older;
    *(n->older != NULL ? &n->older->newer : &list->oldest) = n->newer;
    n->older = n->newer = NULL;
    list->count--;
}

static void link_node(carry_prefix *p, carry_prefix_node *n, bool as_newest) {
    carry_prefix_list *list = list_of(p, n->tier);
    if (as_newest) {
        n->older = list->newest;
        *(n->older != NULL ? &n->older->newer : &list->oldest) = n;
        list->newest = n;
    } else {
        n->newer = list->oldest;
        *(n->newer != NULL ? &n->newer->older : &list->newest) = n;
        list->oldest = n;
    }
    list->count++;
}

/* Nodes. */

carry_prefix_node *carry_prefix_child(const carry_prefix *p, const carry_prefix_node *parent, uint64_t hash,
                                      const int32_t *ids, int32_t count) {
    for (carry_prefix_node *n = p->buckets[hash % p->bucket_count]; n != NULL; n = n->next) {
        if (n->hash == hash && n->parent == parent && n->count == count &&
            memcmp(n->ids, ids, (size_t)count * sizeof *ids) == 0) {
            return n;
        }
    }
    return NULL;
}

/* Doubles the number of buckets when there are as many nodes; without memory the chains get longer instead. */
static void grow_buckets(carry_prefix *p) {
    const size_t more = 2 * p->bucket_count;
    carry_prefix_node **buckets = p->node_count >= p->bucket_count ? calloc(more, sizeof(carry_prefix_node *)) : NULL;
    if (buckets == NULL) {
        return;
    }
    for (size_t i = 0; i < p->bucket_count; i++) {
        for (carry_prefix_node *n = p->buckets[i], *next; n != NULL; n = next) {
            next = n->next;
            n->next = buckets[n->hash % more];
            buckets[n->hash % more] = n;
        }
    }
    free(p->buckets);
    p->buckets = buckets;
    p->bucket_count = more;
}

static carry_prefix_node *add_child(carry_prefix *p, carry_prefix_node *parent, uint64_t hash, const int32_t *ids,
                                    int32_t count) {
    carry_prefix_node *n = calloc(1, sizeof *n);
    if (n == NULL) {
        return NULL;
    }
    grow_buckets(p);
    *n = (carry_prefix_node){.parent = parent,
                             .hash = hash,
                             .length = parent->length + count,
                             .count = count,
                             .page = CARRY_POOL_NONE,
                             .slot = CARRY_POOL_NONE,
                             .next = p->buckets[hash % p->bucket_count]};
    memcpy(n->ids, ids, (size_t)count * sizeof *ids);
    p->buckets[hash % p->bucket_count] = n;
    p->node_count++;
    parent->children++;
    parent->short_children += count < BLOCK;
    return n;
}

static void free_node(carry_prefix *p, carry_prefix_node *n) {
    carry_prefix_node **at = &p->buckets[n->hash % p->bucket_count];
    while (*at != n) {
        at = &(*at)->next;
    }
    *at = n->next;
    n->parent->children--;
    n->parent->short_children -= n->count < BLOCK;
    p->node_count--;
    free(n);
}

static void free_host_page(carry_prefix *p, carry_prefix_node *n) {
    if (n->host_page != NULL) {
        free(n->host_page);
        n->host_page = NULL;
        p->stats.host_bytes -= p->runner->sizes.page_bytes;
    }
}

static void give_page(carry_prefix *p, carry_prefix_node *n) {
    if (n->page != CARRY_POOL_NONE) {
        carry_state_pool_give_page(p->pool, n->page);
        n->page = CARRY_POOL_NONE;
        p->stats.device_bytes -= p->runner->sizes.page_bytes;
        p->stats.pages--;
    }
}

void carry_prefix_drop_leaf(carry_prefix *p, carry_prefix_node *n) {
    while (n != &p->root && n->children == 0 && n->tier == CARRY_TIER_NONE && n->pins == 0) {
        carry_prefix_node *parent = n->parent;
        give_page(p, n);
        free_host_page(p, n);
        free_node(p, n);
        n = parent;
    }
}

carry_prefix_node *carry_prefix_make_path(carry_prefix *p, const int32_t *ids, int64_t length) {
    carry_prefix_node *n = &p->root;
    for (int64_t at = 0; at < length;) {
        const int32_t count = (int32_t)(length - at < BLOCK ? length - at : BLOCK);
        const uint64_t hash = carry_prefix_hash(n->hash, ids + at, count);
        carry_prefix_node *child = carry_prefix_child(p, n, hash, ids + at, count);
        child = child != NULL ? child : add_child(p, n, hash, ids + at, count);
        if (child == NULL) {
            carry_prefix_drop_leaf(p, n);
            return NULL;
        }
        n = child;
        at += count;
    }
    return n;
}

static void drop_host_snapshot(carry_prefix *p, carry_prefix_node *node) {
    unlink_node(p, node);
    node->tier = CARRY_TIER_NONE;
    free(node->host_slot);
    node->host_slot = NULL;
    p->stats.host_bytes -= p->runner->sizes.slot_bytes;
    p->stats.dropped++;
    for (carry_prefix_node *n = node; n != &p->root; n = n->parent) {
        if (--n->host_users == 0) {
            free_host_page(p, n);
        }
    }
    carry_prefix_drop_leaf(p, node);
}

static void trim_host(carry_prefix *p) {
    carry_prefix_node *n = p->host.oldest;
    while (n != NULL && p->stats.host_bytes > p->options.host_bytes) {
        carry_prefix_node *newer = n->newer;
        if (n->pins == 0) {
            carry_prefix_disk_write(p, n);
            drop_host_snapshot(p, n);
        }
        n = newer;
    }
}

/* Copies the page of a node that leaves the device to host memory, unless it is already there. */
static bool page_to_host(carry_prefix *p, carry_prefix_node *n) {
    if (n->page == CARRY_POOL_NONE || n->host_page != NULL) {
        return true;
    }
    n->host_page = malloc(p->runner->sizes.page_bytes);
    if (n->host_page == NULL || p->runner->ops->read_page(p->runner, n->host_page, n->page) != CARRY_OK) {
        free(n->host_page);
        n->host_page = NULL;
        return false;
    }
    p->stats.host_bytes += p->runner->sizes.page_bytes;
    return true;
}

/* Copies the snapshot to host memory. Pages follow when they leave the device. */
static bool slot_to_host(carry_prefix *p, carry_prefix_node *node) {
    node->host_slot = malloc(p->runner->sizes.slot_bytes + 1);
    if (node->host_slot == NULL || p->runner->ops->read_slot(p->runner, node->host_slot, node->slot) != CARRY_OK) {
        free(node->host_slot);
        node->host_slot = NULL;
        return false;
    }
    return true;
}

/* Removes a snapshot from the device. to_host: moves it to host memory, else drops it. */
static void leave_device(carry_prefix *p, carry_prefix_node *node, bool to_host) {
    const bool moves = to_host && slot_to_host(p, node);
    bool is_whole = moves;
    unlink_node(p, node);
    node->tier = CARRY_TIER_NONE;
    carry_state_pool_give_slot(p->pool, node->slot);
    node->slot = CARRY_POOL_NONE;
    p->stats.device_bytes -= p->runner->sizes.slot_bytes;
    p->stats.evicted++;
    for (carry_prefix_node *n = node; n != &p->root; n = n->parent) {
        n->host_users += moves;
        if (--n->device_users == 0) {
            is_whole = (n->host_users == 0 || page_to_host(p, n)) && is_whole;
            give_page(p, n);
        }
    }
    if (!moves) {
        p->stats.dropped++;
        carry_prefix_drop_leaf(p, node);
        return;
    }
    node->tier = CARRY_TIER_HOST;
    p->stats.host_bytes += p->runner->sizes.slot_bytes;
    link_node(p, node, true);
    if (is_whole) {
        trim_host(p);
    } else {
        drop_host_snapshot(p, node);
    }
}

void carry_prefix_drop_snapshot(carry_prefix *p, carry_prefix_node *node) {
    if (node->tier == CARRY_TIER_DEVICE) {
        leave_device(p, node, false);
    } else if (node->tier == CARRY_TIER_HOST) {
        drop_host_snapshot(p, node);
    }
}

void carry_prefix_touch(carry_prefix *p, carry_prefix_node *node) {
    unlink_node(p, node);
    node->is_minor = false;
    link_node(p, node, true);
}

/* Evicts the next snapshot from the device; false if no snapshot can be evicted. */
static bool evict(carry_prefix *p, bool only_minor) {
    carry_prefix_node *n = p->device.oldest;
    while (n != NULL && (n->pins > 0 || (only_minor && !n->is_minor))) {
        n = n->newer;
    }
    if (n == NULL) {
        return false;
    }
    leave_device(p, n, (p->options.host_bytes > 0 || p->disk != NULL) && !n->is_minor);
    return true;
}

int32_t carry_prefix_take_slot(carry_prefix *p) {
    while (p->pool->free_slots == 0 && evict(p, false)) {
    }
    return carry_state_pool_take_slot(p->pool);
}

int32_t carry_prefix_take_page(carry_prefix *p) {
    while (p->pool->free_pages == 0 && evict(p, false)) {
    }
    return carry_state_pool_take_page(p->pool);
}

/* Adding. */

/* Gives the pages of a state to the nodes on its path that have none on the device. */
static void hold_pages(carry_prefix *p, carry_prefix_node *node, const int32_t *pages) {
    for (carry_prefix_node *n = node; n != &p->root; n = n->parent) {
        n->device_users++;
        if (has_pages(p) && n->page == CARRY_POOL_NONE) {
            n->page = pages[carry_prefix_page_of(n)];
            carry_state_pool_share_page(p->pool, n->page);
            free_host_page(p, n);
            p->stats.device_bytes += p->runner->sizes.page_bytes;
            p->stats.pages++;
        }
    }
}

static int32_t slot_for_snapshot(carry_prefix *p, bool is_minor) {
    while (p->stats.device_bytes + p->runner->sizes.slot_bytes > p->options.device_bytes || p->pool->free_slots == 0) {
        if (!evict(p, is_minor)) {
            return CARRY_POOL_NONE;
        }
    }
    return carry_state_pool_take_slot(p->pool);
}

bool carry_prefix_insert(carry_prefix *p, const int32_t *ids, int64_t length, int32_t slot, const int32_t *pages,
                         bool is_minor) {
    carry_prefix_node *node = p->options.device_bytes > 0 && length > 0 ? carry_prefix_make_path(p, ids, length) : NULL;
    if (node == NULL) {
        return false;
    }
    if (node->tier == CARRY_TIER_DEVICE) {
        if (!is_minor) {
            carry_prefix_touch(p, node);
        }
        return true;
    }
    node->pins++;
    if (node->tier == CARRY_TIER_HOST) {
        drop_host_snapshot(p, node); /* the node stays, since it is pinned */
    }
    const int32_t to = slot_for_snapshot(p, is_minor);
    const bool is_copied = to != CARRY_POOL_NONE && p->runner->ops->copy_slot(p->runner, to, slot) == CARRY_OK;
    node->pins--;
    if (!is_copied) {
        carry_state_pool_give_slot(p->pool, to);
        carry_prefix_drop_leaf(p, node);
        return false;
    }
    node->slot = to;
    node->tier = CARRY_TIER_DEVICE;
    node->is_minor = is_minor;
    p->stats.device_bytes += p->runner->sizes.slot_bytes;
    hold_pages(p, node, pages);
    link_node(p, node, !is_minor);
    while (p->stats.device_bytes > p->options.device_bytes && p->device.oldest != node && evict(p, false)) {
    }
    return true;
}

void carry_prefix_adopt_host(carry_prefix *p, carry_prefix_node *node) {
    node->tier = CARRY_TIER_HOST;
    p->stats.host_bytes += p->runner->sizes.slot_bytes;
    for (carry_prefix_node *n = node; n != &p->root; n = n->parent) {
        n->host_users++;
    }
    link_node(p, node, true);
    trim_host(p);
}
