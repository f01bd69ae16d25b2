/* MatMulScan of dense transitions: computes prefix products inside groups of r elements, then does the same over the
   groups' ends.

   Up: P[0] = A[0], P[j] = A[j] P[j-1] and b[j] += A[j] b[j-1] in shared memory; every P but the first is stored in
   the workspace. The last P of a full group is an element of the next level. Down: h[j] = b[j] + P[j] H, where H is
   the state before the group. Values are updated in place. */
#include "scan/cuda/dense_block.cuh"

namespace dense {

/* Returns all transitions of a block's groups in order, or on the way down the products in their place. The transition
   of a group's only element is not needed on the way up. */
template <typename E, bool DOWN> struct group_cursor {
    const params &p;
    const level_data &here;
    bool is_top;
    int64_t task, item, visit;
    int i, members;

    __device__ group_cursor(const params &given, int k)
        : p(given), here(given.level[k]), is_top(k == given.levels - 1), task(blockIdx.x) {
        enter();
    }
    __device__ void enter() {
        item = task / here.at.visits;
        visit = task - item * here.at.visits;
        members = (int)carry_dense_members(&here.at, here.at.complete, visit);
        if (DOWN && members == here.at.radix && !is_top) {
            members--;
        } else if (!DOWN && members == 1) {
            members = 0;
        }
        i = 0;
    }
    __device__ const E *next() {
        while (task < p.batch * here.at.visits) {
            if (i < members) {
                int64_t element = visit * here.at.radix + i++;
                return DOWN && i > 1 ? matrix<E>(here.made, item, element) : matrix<E>(here.A, item, element);
            }
            task += gridDim.x;
            enter();
        }
        return nullptr;
    }
};

template <typename E, int SIZE> struct groups {
    static constexpr int ELEMENTS = slot<E, SIZE>::ELEMENTS;
    const params &p;
    E *slots; /* the product so far, then the ring */
    float *values, *state;
    int apart, size;

    __device__ groups(const params &given, void *shared)
        : p(given), slots((E *)shared), values((float *)(slots + given.slots * ELEMENTS)),
          state(values + given.tile * SIZE * given.width), apart(SIZE * given.width), size(given.n * given.width) {
    }

    __device__ void up(int k) const {
        using Cursor = group_cursor<E, false>;
        const level_data &here = p.level[k];
        ring<E, SIZE, Cursor> coming(slots + ELEMENTS, p.ring, p.n, Cursor(p, k));
        for (int64_t task = blockIdx.x; task < p.batch * here.at.visits; task += gridDim.x) {
            int64_t item = task / here.at.visits;
            int64_t first = (task - item * here.at.visits) * here.at.radix;
            int members = (int)carry_dense_members(&here.at, here.at.complete, first / here.at.radix);
            int64_t step = carry_dense_step(&here.at, first);
            load_tile(values, apart, k == 0 ? p.b : p.values, item, step, here.at.stride, members, size);
            for (int j = 1; j < members; j++) {
                int taken = j == 1 ? 2 : 1;
                coming.wait(taken);
                combine<E, SIZE>(p, slots, coming.at(taken - 1), j == 1 ? coming.at(0) : slots, values + j * apart,
                                 values + (j - 1) * apart);
                coming.release(taken);
                store<E, SIZE>(matrix<E>(here.made, item, first + j), slots, p.n);
            }
            store_tile(values, apart, p.values, item, step, here.at.stride, members, size);
        }
        coming.finish();
    }

    __device__ void down(int k) const {
        using Cursor = group_cursor<E, true>;
        const level_data &here = p.level[k];
        bool is_top = k == p.levels - 1;
        ring<E, SIZE, Cursor> coming(slots, p.slots, p.n, Cursor(p, k));
        /* This block computed the products of its groups, so they may be loaded while the level above is still being
           solved. */
        if (!is_top) {
            wait_for_grid();
        }
        for (int64_t task = blockIdx.x; task < p.batch * here.at.visits; task += gridDim.x) {
            int64_t item = task / here.at.visits;
            int64_t first = (task - item * here.at.visits) * here.at.radix;
            int members = (int)carry_dense_members(&here.at, here.at.complete, first / here.at.radix);
            int changed = members == here.at.radix && !is_top ? members - 1 : members;
            int64_t step = carry_dense_step(&here.at, first);
            load_tile(values, apart, p.values, item, step, here.at.stride, members, size);
            load_state(state, first == 0 ? p.h0 : p.values, item, first == 0 ? 0 : step - here.at.stride, size);
            for (int i = 0, some; i < changed; i += some) {
                some = coming.some(changed - i);
                coming.wait(some);
                for (int j = 0; j < some; j++) {
                    float *y = values + (i + j) * apart;
                    apply<E, SIZE>(y, y, coming.at(j), p.transposed, state, p.n, p.width);
                }
                __syncthreads();
                coming.release(some);
            }
            bool in_place = k > 0 || p.values.data == p.h.data;
            store_tile(values, apart, k == 0 ? p.h : p.values, item, step, here.at.stride, in_place ? changed : members,
                       size);
        }
        coming.finish();
    }
};

template <typename E, int SIZE>
__global__ void __launch_bounds__(THREADS) dense_groups(const __grid_constant__ params p, size_t shared_bytes) {
    extern __shared__ uint4 shared[];
    clear_shared<E, SIZE>(shared, shared_bytes, p.n);
    groups<E, SIZE> g(p, shared);
    for (int k = 0; k < p.levels; k++) {
        g.up(k);
        if (k + 1 < p.levels) {
            wait_for_grid();
        }
    }
    clear_products<E, SIZE>(g.slots, 1, p.n);
    for (int k = p.levels - 1; k >= 0; k--) {
        g.down(k);
    }
}

template <typename E> static kernel_of_params of_size(int size) {
    return size == 16   ? dense_groups<E, 16>
           : size == 32 ? dense_groups<E, 32>
           : size == 64 ? dense_groups<E, 64>
                        : dense_groups<E, 128>;
}

kernel_of_params groups_kernel(int dtype, int size) {
    return dtype == F32 ? of_size<float>(size) : dtype == F16 ? of_size<__half>(size) : of_size<__nv_bfloat16>(size);
}

} // namespace dense
