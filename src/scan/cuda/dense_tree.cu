/* The tree scan of dense transitions (blelloch), which stores the state that enters every element.

   Up, level by level: a block takes a visit's transitions in order, pairs them and carries like a binary counter. An
   even node is kept in shared memory, or in the workspace if it is high, until the odd node after it is combined
   with it. Even nodes are also stored in the workspace, since the way down applies them.

   Down: the state that enters a node's right half is its left half applied to the state that enters the node; at the
   leaves h = A S + b. On the way down each transition is used once, so all of shared memory is a ring for them. */
#include "scan/cuda/dense_block.cuh"

namespace dense {

/* Returns the transitions of all visits of a block on the way up, and the high even nodes that they are combined
   with. */
template <typename E> struct up_cursor {
    const params &p;
    const level_data &here;
    int64_t task, item, visit, pair, pairs;
    int stage;

    __device__ up_cursor(const params &given, const level_data &at) : p(given), here(at), task(blockIdx.x) {
        enter();
    }
    __device__ void enter() {
        item = task / here.at.visits;
        visit = task - item * here.at.visits;
        pairs = carry_dense_members(&here.at, here.at.complete, visit) / 2;
        pair = 0;
        stage = 0;
    }
    __device__ const E *next() {
        while (task < p.batch * here.at.visits) {
            if (pair >= pairs) {
                task += gridDim.x;
                enter();
                continue;
            }
            int64_t first = visit * here.at.radix;
            if (stage < 2) {
                return matrix<E>(here.A, item, first + 2 * pair + stage++);
            }
            int height = p.kept + stage - 1;
            if (height <= carry_dense_carries(pair)) {
                stage++;
                int64_t end = first + ((pair >> (height - 1)) << height) - 1;
                return matrix<E>(here.made, item, (end - 1) / 2);
            }
            pair++;
            stage = 0;
        }
        return nullptr;
    }
};

/* Returns the even nodes of all visits of a block from the highest to the lowest, then the leaves. */
template <typename E> struct down_cursor {
    const params &p;
    const level_data &here;
    bool is_bottom;
    int64_t task, item, visit, limit, i, leaves;
    int height;

    __device__ down_cursor(const params &given, int k)
        : p(given), here(given.level[k]), is_bottom(k == 0), task(blockIdx.x) {
        enter();
    }
    __device__ void enter() {
        item = task / here.at.visits;
        visit = task - item * here.at.visits;
        leaves = carry_dense_members(&here.at, here.at.complete, visit);
        limit = carry_dense_members(&here.at, here.at.count, visit) - 1;
        height = here.at.height - 1;
        i = 0;
    }
    __device__ const E *next() {
        while (task < p.batch * here.at.visits) {
            int64_t first = visit * here.at.radix;
            if (height >= 0 && i < carry_dense_even_nodes(limit, height)) {
                int64_t end = first + carry_dense_even_end(i++, height);
                return height == 0 ? matrix<E>(here.A, item, end) : matrix<E>(here.made, item, (end - 1) / 2);
            }
            if (height >= 0) {
                height--;
                i = 0;
            } else if (is_bottom && i < leaves) {
                return matrix<E>(here.A, item, first + i++);
            } else {
                task += gridDim.x;
                enter();
            }
        }
        return nullptr;
    }
};

template <typename E, int SIZE> struct tree {
    static constexpr int ELEMENTS = slot<E, SIZE>::ELEMENTS;
    const params &p;
    E *slots;      /* the kept nodes, the newest one, the ring */
    float *values; /* of a visit's elements */
    float *states; /* states that enter elements */
    int apart;     /* floats between elements in shared memory */
    int size;      /* n w */

    __device__ tree(const params &given, void *shared)
        : p(given), slots((E *)shared), values((float *)(slots + given.slots * ELEMENTS)),
          states(values + given.tile * SIZE * given.width), apart(SIZE * given.width), size(given.n * given.width) {
    }

    /* The slot for a new node. A node that waits for its odd neighbour is kept in the slot of its height; others use
       the slot of the newest node. */
    __device__ E *place(int height, bool waits) const {
        return slots + (waits && height <= p.kept ? height - 1 : p.kept) * ELEMENTS;
    }

    /* Combines one pair, and the nodes that it completes. */
    template <typename Ring> __device__ E *climb(Ring &coming, int64_t pair) const {
        int carries = carry_dense_carries(pair);
        coming.wait(2);
        E *made = place(1, carries == 0);
        combine<E, SIZE>(p, made, coming.at(1), coming.at(0), values + (2 * pair + 1) * apart,
                         values + 2 * pair * apart);
        coming.release(2);
        for (int height = 1; height <= carries; height++) {
            int64_t odd = pair >> (height - 1);
            bool comes = height > p.kept;
            if (comes) {
                coming.wait(1);
            }
            const E *earlier = comes ? coming.at(0) : slots + (height - 1) * ELEMENTS;
            E *to = place(height + 1, height == carries);
            combine<E, SIZE>(p, to, made, earlier, values + (((odd + 1) << height) - 1) * apart,
                             values + ((odd << height) - 1) * apart);
            if (comes) {
                coming.release(1);
            }
            made = to;
        }
        return made;
    }

    __device__ void up(int k) const {
        const level_data &here = p.level[k];
        ring<E, SIZE, up_cursor<E>> coming(slots + (p.kept + 1) * ELEMENTS, p.ring, p.n, up_cursor<E>(p, here));
        for (int64_t task = blockIdx.x; task < p.batch * here.at.visits; task += gridDim.x) {
            int64_t item = task / here.at.visits;
            int64_t first = (task - item * here.at.visits) * here.at.radix;
            int members = (int)carry_dense_members(&here.at, here.at.complete, first / here.at.radix);
            int64_t step = carry_dense_step(&here.at, first);
            load_tile(values, apart, k == 0 ? p.b : p.values, item, step, here.at.stride, members, size);
            for (int64_t pair = 0; pair < members / 2; pair++) {
                const E *made = climb(coming, pair);
                store<E, SIZE>(matrix<E>(here.made, item, first / 2 + pair), made, p.n);
            }
            store_tile(values, apart, p.values, item, step, here.at.stride, members, size);
        }
        coming.finish();
    }

    /* The block that needs the transitions of the way down computed them all on the way up, so they may be loaded while
       the level above is still being solved. At the top level, the one visit of an item goes up and down in the same
       block. */
    __device__ void wait_for_level_above(int k) const {
        if (k + 1 < p.levels) {
            wait_for_grid();
        }
    }

    /* Computes the states that enter the right half of every node of a visit, from the highest nodes to the lowest. */
    template <typename Ring> __device__ void spread(Ring &coming, const level_data &here, int entered) const {
        for (int height = here.at.height - 1; height >= 0; height--) {
            int nodes = (int)carry_dense_even_nodes(entered - 1, height);
            for (int i = 0, some; i < nodes; i += some) {
                some = coming.some(nodes - i);
                coming.wait(some);
                for (int j = 0; j < some; j++) {
                    int64_t end = carry_dense_even_end(i + j, height);
                    apply<E, SIZE>(states + (end + 1) * apart, values + end * apart, coming.at(j), p.transposed,
                                   states + (end + 1 - ((int64_t)1 << height)) * apart, p.n, p.width);
                }
                __syncthreads();
                coming.release(some);
            }
        }
    }

    __device__ void down(int k) const {
        using Cursor = down_cursor<E>;
        const level_data &here = p.level[k];
        ring<E, SIZE, Cursor> coming(slots, p.slots, p.n, Cursor(p, k));
        wait_for_level_above(k);
        for (int64_t task = blockIdx.x; task < p.batch * here.at.visits; task += gridDim.x) {
            int64_t item = task / here.at.visits;
            int64_t visit = task - item * here.at.visits;
            int64_t first = visit * here.at.radix;
            int members = (int)carry_dense_members(&here.at, here.at.complete, visit);
            int entered = (int)carry_dense_members(&here.at, here.at.count, visit);
            int64_t step = carry_dense_step(&here.at, first);
            load_tile(values, apart, p.values, item, step, here.at.stride, members, size);
            array above = {p.level[k + 1 < p.levels ? k + 1 : k].states, F32, here.at.visits * size, size};
            load_state(states, k + 1 < p.levels ? above : p.h0, item, visit, size);
            spread(coming, here, entered);
            if (k > 0) {
                __syncthreads(); /* needed because a visit of one element has no barrier */
                array to = {here.states, F32, here.at.count * size, size};
                store_tile(states, apart, to, item, first, 1, entered, size);
                __syncthreads();
                continue;
            }
            load_tile(values, apart, p.b, item, step, 1, members, size);
            for (int i = 0, some; i < members; i += some) {
                some = coming.some(members - i);
                coming.wait(some);
                for (int j = 0; j < some; j++) {
                    float *y = values + (i + j) * apart;
                    apply<E, SIZE>(y, y, coming.at(j), p.transposed, states + (i + j) * apart, p.n, p.width);
                }
                __syncthreads();
                coming.release(some);
            }
            store_tile(values, apart, p.h, item, step, 1, members, size);
        }
        coming.finish();
    }
};

template <typename E, int SIZE>
__global__ void __launch_bounds__(THREADS) dense_tree(const __grid_constant__ params p, size_t shared_bytes) {
    extern __shared__ uint4 shared[];
    clear_shared<E, SIZE>(shared, shared_bytes, p.n);
    tree<E, SIZE> t(p, shared);
    for (int k = 0; k < p.levels; k++) {
        t.up(k);
        if (k + 1 < p.levels) {
            wait_for_grid();
        }
    }
    clear_products<E, SIZE>(t.slots, p.kept + 1, p.n);
    for (int k = p.levels - 1; k >= 0; k--) {
        t.down(k);
    }
}

template <typename E> static kernel_of_params of_size(int size) {
    return size == 16   ? dense_tree<E, 16>
           : size == 32 ? dense_tree<E, 32>
           : size == 64 ? dense_tree<E, 64>
                        : dense_tree<E, 128>;
}

kernel_of_params tree_kernel(int dtype, int size) {
    return dtype == F32 ? of_size<float>(size) : dtype == F16 ? of_size<__half>(size) : of_size<__nv_bfloat16>(size);
}

} // namespace dense
