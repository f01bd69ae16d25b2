/* Cached prefixes: states after texts that were read before, found by their tokens.

   The cache is a tree of blocks of CARRY_PAGE_TOKENS tokens. A node is a block with the page of its keys and values; it
   may have a snapshot, the recurrent part of the state after its last token. The last block before a snapshot may be
   shorter; such a node has no children. Every leaf has a snapshot. A text is looked up by the blocks that it begins
   with: the deepest snapshot on its path is restored, and reading continues from there.

   When slots, pages or bytes are needed, the least recently used snapshots leave the device: to host memory and then to
   files, if limits for these are set (prefix_disk.h), else they are dropped. Minor snapshots (is_minor of a node) are
   evicted before all others, and are always dropped. A page stays on the device as long as a snapshot below it does. */
#ifndef CARRY_ENGINE_PREFIX_H
#define CARRY_ENGINE_PREFIX_H

#include "engine/pool.h"
#include "engine/runner.h"

typedef struct carry_prefix_options {
    size_t device_bytes; /* bytes of slots and pages; 0: nothing is cached on the device */
    size_t host_bytes;   /* 0: no copies in host memory */
    const char *folder;  /* NULL: no files */
    size_t folder_bytes; /* maximum total size of its files */
} carry_prefix_options;

typedef enum carry_tier { CARRY_TIER_NONE, CARRY_TIER_DEVICE, CARRY_TIER_HOST } carry_tier;

typedef struct carry_prefix_node {
    struct carry_prefix_node *parent, *next; /* next: in the same bucket */
    struct carry_prefix_node *older, *newer; /* neighbours in the list of its tier's snapshots, by last use */
    uint64_t hash;                           /* hash of all tokens up to the end of this block */
    int64_t length;                          /* number of tokens up to its end */
    int32_t ids[CARRY_PAGE_TOKENS];
    int32_t count; /* tokens of this block */
    int32_t children, short_children;
    int32_t device_users, host_users; /* number of snapshots in each tier at this node and below */
    int32_t page, slot;               /* on the device, or CARRY_POOL_NONE */
    void *host_page, *host_slot;
    carry_tier tier; /* of the snapshot */
    int pins;        /* > 0: must not be evicted */
    bool is_minor;   /* a snapshot inside a prompt that was never used: evicted first */
} carry_prefix_node;

typedef struct carry_prefix_list {
    carry_prefix_node *oldest, *newest;
    int64_t count;
} carry_prefix_list;

typedef struct carry_prefix_stats {
    int64_t snapshots, host_snapshots, file_snapshots, pages;
    size_t device_bytes, host_bytes, file_bytes;
    int64_t evicted, dropped; /* since the start: snapshots evicted from the device, and dropped from memory */
} carry_prefix_stats;

typedef struct carry_prefix_disk carry_prefix_disk;

typedef struct carry_prefix {
    carry_ctx *ctx;
    carry_runner *runner;
    carry_state_pool *pool;
    carry_prefix_options options;
    carry_prefix_node root;
    carry_prefix_node **buckets;
    size_t bucket_count, node_count;
    carry_prefix_list device, host;
    carry_prefix_disk *disk; /* NULL: there is no folder */
    carry_prefix_stats stats;
} carry_prefix;

carry_status carry_prefix_open(carry_ctx *ctx, carry_prefix *prefix, carry_runner *runner, carry_state_pool *pool,
                               const carry_prefix_options *options);
/* Writes the snapshots that have no file yet, if there is a folder. */
void carry_prefix_close(carry_prefix *prefix);

typedef struct carry_prefix_hit {
    carry_prefix_node *node; /* NULL: no snapshot; pinned until carry_prefix_unpin */
    int64_t length;          /* number of tokens of the state */
    int64_t shared;          /* tokens in whole blocks of the tree with which the text begins */
} carry_prefix_hit;

/* Finds the deepest snapshot after at most count - 1 of these tokens: at least one token must be read before the next
   one can be sampled. */
carry_prefix_hit carry_prefix_find(carry_prefix *prefix, const int32_t *ids, int64_t count);
void carry_prefix_unpin(carry_prefix_node *node);
/* Restores the state of a hit: copies its recurrent part to a slot, and sets pages[0..] to the pages of its tokens,
   which are shared with the cache or new. On failure the caller owns none of the pages. */
carry_status carry_prefix_restore(carry_prefix *prefix, const carry_prefix_hit *hit, int32_t slot, int32_t *pages);

/* Adds a snapshot of a state. Returns false if it could not be added, for example because there is no slot for it; this
   is not an error. Minor snapshots (carry_prefix_node) only take free slots and those of other minor ones. */
bool carry_prefix_insert(carry_prefix *prefix, const int32_t *ids, int64_t length, int32_t slot, const int32_t *pages,
                         bool is_minor);
/* Drops all snapshots on the path of these tokens, because a sequence failed after them. */
void carry_prefix_distrust(carry_prefix *prefix, const int32_t *ids, int64_t count);

/* Takes a slot or a page, if necessary from the least recently used snapshot; CARRY_POOL_NONE if all are in use. */
int32_t carry_prefix_take_slot(carry_prefix *prefix);
int32_t carry_prefix_take_page(carry_prefix *prefix);

/* For prefix_find.c and prefix_disk.c. */
uint64_t carry_prefix_hash(uint64_t hash, const int32_t *ids, int64_t count);
int64_t carry_prefix_page_of(const carry_prefix_node *node); /* the index of its page in the text */
carry_prefix_node *carry_prefix_child(const carry_prefix *prefix, const carry_prefix_node *parent, uint64_t hash,
                                      const int32_t *ids, int32_t count);
carry_prefix_node *carry_prefix_make_path(carry_prefix *prefix, const int32_t *ids, int64_t length);
void carry_prefix_touch(carry_prefix *prefix, carry_prefix_node *node); /* marks it as just used */
void carry_prefix_drop_snapshot(carry_prefix *prefix, carry_prefix_node *node);
void carry_prefix_drop_leaf(carry_prefix *prefix, carry_prefix_node *node); /* also drops parents that become empty */
void carry_prefix_adopt_host(carry_prefix *prefix,
                             carry_prefix_node *node); /* its host_slot and host pages are filled */

#endif
