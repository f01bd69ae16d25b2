/* Cyclic reduction of dense transitions, several elements at a time.

   Up, level by level: a visit of `radix` adjacent elements is folded from left to right into one transition and one
   value, the element of the next level. Only these are stored; the elements themselves do not change. The few
   elements at the top are solved directly, h[e] = A[e] h[e-1] + b[e], one after the other.

   Down: h before a visit and at its end is known, so the elements between are computed from left to right in the
   same way. Transitions are read twice and almost none is written, whereas a binary tree would write half as many as
   it reads. A fold has as many products as a tree and keeps no intermediate nodes, so shared memory can be a deep
   ring of prefetched transitions. A visit with a step that does not exist is not folded: it is handled on the way
   down. */
#include "scan/cuda/dense_block.cuh"

namespace dense {

/* Returns the transitions of all visits of a block, from left to right. */
template <typename E> struct visit_cursor {
    const level_data &here;
    int64_t task, tasks, visits, left;
    const E *at;
    bool folds;

    __device__ visit_cursor(const level_data &level, int64_t all, int64_t of_item, bool up)
        : here(level), task(blockIdx.x), tasks(all), visits(of_item), left(0), at(nullptr), folds(up) {
        enter();
    }
    __device__ void enter() {
        if (task < tasks) {
            int64_t item = task / visits;
            int64_t visit = task - item * visits;
            left = folds ? here.at.radix : carry_dense_inner(&here.at, visit);
            at = matrix<E>(here.A, item, visit * here.at.radix);
        }
    }
    __device__ const E *next() {
        while (left == 0) {
            if (task >= tasks) {
                return nullptr;
            }
            task += gridDim.x;
            enter();
        }
        const E *now = at;
        at += here.A.step;
        left--;
        return now;
    }
};

template <typename E, int SIZE> struct reduction {
    static constexpr int ELEMENTS = slot<E, SIZE>::ELEMENTS;
    const params &p;
    E *slots;      /* on the way up: one or two products, then the ring */
    float *values; /* values of adjacent elements */
    float *state;  /* the state before them */
    int apart;     /* floats between elements in shared memory */
    int size;      /* n w */

    __device__ reduction(const params &given, void *shared)
        : p(given), slots((E *)shared), values((float *)(slots + given.slots * ELEMENTS)),
          state(values + given.tile * SIZE * given.width), apart(SIZE * given.width), size(given.n * given.width) {
    }

    /* The slot for the product of a visit's elements up to e. Two slots alternate if they fit, so that one is read
       while the other is written. */
    __device__ E *product_to(int e) const {
        return slots + (p.kept == 2 ? e & 1 : 0) * ELEMENTS;
    }

    /* Processes elements done..done+some-1 of a visit, whose values are loaded. */
    template <bool UP, typename Ring> __device__ void walk(Ring &coming, int done, int some) const {
        for (int j = UP && done == 0 ? 1 : 0; j < some; j++) {
            int e = done + j;
            int used = UP && e == 1 ? 2 : 1;
            const E *A = coming.at(used - 1);
            float *y = values + j * apart;
            const float *x = j == 0 ? state : y - apart;
            if (UP) {
                const E *before = e == 1 ? coming.at(0) : product_to(e - 1);
                product<E, SIZE> c;
                c.multiply(p.transposed ? before : A, p.transposed ? A : before);
                apply<E, SIZE>(y, y, A, p.transposed, x, p.n, p.width);
                if (p.kept == 1) {
                    __syncthreads();
                }
                c.write(product_to(e));
            } else {
                apply<E, SIZE>(y, y, A, p.transposed, x, p.n, p.width);
            }
            coming.advance(used);
        }
    }

    /* Stores the result of a visit for the level above. */
    __device__ void store_fold(const level_data &here, int64_t item, int64_t visit, int last) const {
        int64_t end = carry_dense_step(&here.at, (visit + 1) * here.at.radix - 1);
        store<E, SIZE>(matrix<E>(here.made, item, visit), product_to((int)here.at.radix - 1), p.n);
        store_tile(values + last * apart, apart, p.values, item, end, 1, 1, size);
    }

    /* Loads the state before a visit. The level above has computed the state at the end of a full visit, in `values`.
       At level 0, if p.h is another array, also copies that state to p.h. */
    __device__ void enter(const level_data &here, int k, int64_t item, int64_t first, int members) const {
        int64_t before = carry_dense_step(&here.at, first - 1);
        load_state(state, first == 0 ? p.h0 : p.values, item, first == 0 ? 0 : before, size);
        int64_t end = first + members;
        if (k > 0 || p.values.data == p.h.data || members + 1 != here.at.radix || end >= p.steps) {
            return;
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < size; i += THREADS) {
            float value = carry_value::load(p.values.data, F32, item * p.values.item + end * p.values.step + i);
            carry_value::store(p.h.data, p.h.dtype, item * p.h.item + end * p.h.step + i, value);
        }
    }

    __device__ void keep_state(int last) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < apart; i += THREADS) {
            state[i] = values[last * apart + i];
        }
    }

    /* Processes a level, up or down. On the way down, transitions and values may be loaded while the level above is
       still being solved, since that changes only the ends of visits. */
    template <bool UP> __device__ void pass(int k) const {
        using Cursor = visit_cursor<E>;
        const level_data &here = p.level[k];
        int64_t visits = UP ? here.at.complete / here.at.radix : here.at.visits;
        int64_t tasks = p.batch * visits;
        int made = UP ? p.kept : 0;
        ring<E, SIZE, Cursor> coming(slots + made * ELEMENTS, p.slots - made, p.n, Cursor(here, tasks, visits, UP));
        bool waits = !UP && k + 1 < p.levels;
        for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
            int64_t item = task / visits;
            int64_t visit = task - item * visits;
            int64_t first = visit * here.at.radix;
            int members = (int)(UP ? here.at.radix : carry_dense_inner(&here.at, visit));
            for (int done = 0; done == 0 || done < members; done += p.tile) {
                int some = members - done < p.tile ? members - done : p.tile;
                int64_t step = carry_dense_step(&here.at, first + done);
                load_tile(values, apart, k == 0 ? p.b : p.values, item, step, here.at.stride, some, size);
                if (waits) {
                    wait_for_grid();
                    waits = false;
                }
                if (!UP && done == 0) {
                    enter(here, k, item, first, members);
                }
                coming.wait(UP && done < 2 ? 2 : 1);
                walk<UP>(coming, done, some);
                if (done + some < members) {
                    keep_state(some - 1);
                } else if (UP) {
                    store_fold(here, item, visit, some - 1);
                }
                if (!UP) {
                    store_tile(values, apart, k == 0 ? p.h : p.values, item, step, here.at.stride, some, size);
                }
                __syncthreads();
            }
        }
        if (waits) {
            wait_for_grid();
        }
        coming.finish();
    }
};

template <typename E, int SIZE>
__global__ void __launch_bounds__(THREADS, SIZE == 128 ? 1 : 2)
    dense_cyclic(const __grid_constant__ params p, size_t shared_bytes) {
    extern __shared__ uint4 shared[];
    clear_shared<E, SIZE>(shared, shared_bytes, p.n);
    reduction<E, SIZE> r(p, shared);
    for (int k = p.folded; k + 1 < p.levels; k++) {
        r.template pass<true>(k);
        wait_for_grid();
    }
    clear_products<E, SIZE>(r.slots, p.kept, p.n);
    for (int k = p.levels - 1; k >= 0; k--) {
        r.template pass<false>(k);
    }
}

template <typename E> static kernel_of_params of_size(int size) {
    return size == 16   ? dense_cyclic<E, 16>
           : size == 32 ? dense_cyclic<E, 32>
           : size == 64 ? dense_cyclic<E, 64>
                        : dense_cyclic<E, 128>;
}

kernel_of_params cyclic_kernel(int dtype, int size) {
    return dtype == F32 ? of_size<float>(size) : dtype == F16 ? of_size<__half>(size) : of_size<__nv_bfloat16>(size);
}

} // namespace dense
