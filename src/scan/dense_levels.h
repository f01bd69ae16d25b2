/* The levels of the dense scans on GPUs: which elements are combined with which. Plain arithmetic, the same on host and
   device.

   A level has elements of `stride` steps each. A block visits `radix` adjacent elements at a time (a power of two) and
   combines them as a binary tree; the visits are the elements of the next level. Node i of height j of a visit ends at
   its element (i+1) 2^j - 1. Nodes with a step that does not exist are not computed: the last element is handled on the
   way down. */
#ifndef CARRY_SCAN_DENSE_LEVELS_H
#define CARRY_SCAN_DENSE_LEVELS_H

#include <stdint.h>

#ifdef __CUDACC__
#define CARRY_BOTH __host__ __device__
#else
#define CARRY_BOTH
#endif

#define CARRY_DENSE_MAX_LEVELS 42

typedef struct carry_dense_level {
    int64_t count;    /* elements, including an incomplete last one */
    int64_t complete; /* elements whose steps all exist */
    int64_t stride;   /* steps of an element */
    int64_t visits;   /* count of the next level */
    int height;       /* log2 of the elements in a visit */
    int64_t radix;    /* elements in a visit */
} carry_dense_level;

/* The level with elements of `stride` steps and visits of `radix` elements. */
static inline CARRY_BOTH carry_dense_level carry_dense_level_of(int64_t steps, int64_t stride, int height,
                                                                int64_t radix) {
    carry_dense_level level;
    level.count = (steps + stride - 1) / stride;
    level.complete = steps / stride;
    level.stride = stride;
    level.visits = (level.count + radix - 1) / radix;
    level.height = height;
    level.radix = radix;
    return level;
}

/* The number of elements in a visit, among the first `elements` (all, or the complete ones). */
static inline CARRY_BOTH int64_t carry_dense_members(const carry_dense_level *level, int64_t elements, int64_t visit) {
    int64_t left = elements - visit * level->radix;
    return left < 0 ? 0 : left < level->radix ? left : level->radix;
}

/* The number of elements of a visit that are computed from their left neighbours. The last element of a full visit is
   not: the level above computes it. */
static inline CARRY_BOTH int64_t carry_dense_inner(const carry_dense_level *level, int64_t visit) {
    int64_t members = carry_dense_members(level, level->complete, visit);
    return members == level->radix ? members - 1 : members;
}

/* The last step of element i of a level. */
static inline CARRY_BOTH int64_t carry_dense_step(const carry_dense_level *level, int64_t element) {
    return (element + 1) * level->stride - 1;
}

/* The number of even nodes of a height that end at or before element limit - 1. */
static inline CARRY_BOTH int64_t carry_dense_even_nodes(int64_t limit, int height) {
    return (limit + ((int64_t)1 << height)) >> (height + 1);
}

/* The last element of the i-th even node of a height. */
static inline CARRY_BOTH int64_t carry_dense_even_end(int64_t i, int height) {
    return ((2 * i + 1) << height) - 1;
}

/* After pair p of a visit: the number of further nodes, one at each height, that are complete. */
static inline CARRY_BOTH int carry_dense_carries(int64_t pair) {
    int carries = 0;
    for (; (pair & 1) != 0; pair >>= 1) {
        carries++;
    }
    return carries;
}

#endif
