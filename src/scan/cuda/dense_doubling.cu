/* Doubling (Hillis-Steele), dense: in round o = 1, 2, 4, ... every element s >= o absorbs element s - o.

   Elements that are o apart form a separate sequence, in which rounds o, 2o, 4o are rounds 1, 2, 4. So a pass of q
   rounds reads a tile of that sequence and the 2^q - 1 elements before it, does its rounds in shared memory from the
   last element to the first, in place, and writes the tile. This takes log2 T / q passes over memory with a grid
   barrier between them, and each tile reads 2^q - 1 more elements. */
#include "scan/cuda/dense_block.cuh"

namespace dense {

/* One pass: rounds 2^from .. 2^(from + rounds - 1). */
struct pass {
    matrices A, to; /* to.data is NULL if the transitions are not read again */
    array b, h;
    int from, rounds;
};

template <typename E, int SIZE> struct doubling {
    static constexpr int ELEMENTS = slot<E, SIZE>::ELEMENTS;
    const params &p;
    E *slots;
    float *values, *state;
    int apart, size;

    __device__ doubling(const params &given, void *shared)
        : p(given), slots((E *)shared), values((float *)(slots + given.slots * ELEMENTS)),
          state(values + given.slots * SIZE * given.width), apart(SIZE * given.width), size(given.n * given.width) {
    }

    /* Runs the rounds over elements low .. high - 1. Only those from `first` on need the final result. */
    __device__ void rounds(int count, int64_t low, int64_t first, int64_t high) const {
        int64_t halo = ((int64_t)1 << count) - 1;
        for (int j = 0; j < count; j++) {
            int64_t reach = (int64_t)1 << j;
            int64_t least = first - (halo - (2 * reach - 1));
            least = least > reach ? least : reach;
            int64_t i = high - 1;
            if constexpr (sizeof(E) == sizeof(float) && SIZE == pair_of_elements::SIZE) {
                pair_of_elements two;
                for (; pair_of_elements::fits(p) && i >= least; i -= 2) {
                    two.combine(p, (float *)slots, values, i - low, reach, i > least);
                }
            }
            for (; i >= least; i--) {
                E *here = slots + (i - low) * ELEMENTS;
                combine<E, SIZE>(p, here, here, here - reach * ELEMENTS, values + (i - low) * apart,
                                 values + (i - reach - low) * apart);
            }
        }
    }

    /* Applies the initial state to element 0 before the first round. */
    __device__ void begin(int64_t item) const {
        load_state(state, p.h0, item, 0, size);
        __syncthreads();
        apply<E, SIZE>(values, values, slots, p.transposed, state, p.n, p.width);
        __syncthreads();
    }

    /* Processes elements first .. first + wanted - 1 of the sequence that begins at step `r`, whose elements are 2^from
       steps apart. */
    __device__ void do_tile(const pass &now, int64_t item, int64_t r, int64_t first, int64_t wanted) const {
        int64_t next = (int64_t)1 << now.from;
        int64_t length = (p.steps - r + next - 1) / next;
        int64_t halo = ((int64_t)1 << now.rounds) - 1;
        if (first >= length) {
            return;
        }
        int64_t low = first > halo ? first - halo : 0;
        int64_t high = first + wanted < length ? first + wanted : length;
        clear_products<E, SIZE>(slots, (int)(high - low), p.n);
        for (int64_t i = low; i < high; i++) {
            fetch<E, SIZE>(slots + (i - low) * ELEMENTS, matrix<E>(now.A, item, i * next + r), p.n);
        }
        load_tile(values, apart, now.b, item, low * next + r, next, (int)(high - low), size);
        copy_wait(0);
        __syncthreads();
        if (now.from == 0 && low == 0 && p.h0.data != nullptr) {
            begin(item);
        }
        rounds(now.rounds, low, first, high);
        for (int64_t i = first; i < high && now.to.data != nullptr; i++) {
            store<E, SIZE>(matrix<E>(now.to, item, i * next + r), slots + (i - low) * ELEMENTS, p.n);
        }
        store_tile(values + (first - low) * apart, apart, now.h, item, first * next + r, next, (int)(high - first),
                   size);
        __syncthreads();
    }

    __device__ void do_pass(const pass &now) const {
        int64_t next = (int64_t)1 << now.from;
        int64_t sequences = next < p.steps ? next : p.steps;
        int64_t wanted = p.slots - (((int64_t)1 << now.rounds) - 1);
        int64_t tiles = ((p.steps + next - 1) / next + wanted - 1) / wanted;
        for (int64_t task = blockIdx.x; task < p.batch * sequences * tiles; task += gridDim.x) {
            int64_t tile = task / sequences % tiles;
            do_tile(now, task / (sequences * tiles), task % sequences, tile * wanted, wanted);
        }
    }

    __device__ void run() const {
        int all = 0;
        while (((int64_t)1 << all) < p.steps) {
            all++;
        }
        int turn = 0;
        for (int done = 0; done == 0 || done < all; done += p.rounds, turn ^= 1) {
            int left = all - done;
            bool is_last = left <= p.rounds;
            pass now = {done == 0 ? p.A_matrices() : p.spare[turn ^ 1],
                        p.spare[turn],
                        done == 0 ? p.b : p.turns[turn ^ 1],
                        is_last ? p.h : p.turns[turn],
                        done,
                        is_last ? left : p.rounds};
            if (is_last) {
                now.to.data = nullptr;
            }
            do_pass(now);
            if (!is_last) {
                wait_for_grid();
            }
        }
    }
};

template <typename E, int SIZE>
__global__ void __launch_bounds__(THREADS, SIZE == 128 ? 1 : 2)
    dense_doubling(const __grid_constant__ params p, size_t shared_bytes) {
    extern __shared__ uint4 shared[];
    clear_shared<E, SIZE>(shared, shared_bytes, p.n);
    doubling<E, SIZE>(p, shared).run();
}

template <typename E> static kernel_of_params of_size(int size) {
    return size == 16   ? dense_doubling<E, 16>
           : size == 32 ? dense_doubling<E, 32>
           : size == 64 ? dense_doubling<E, 64>
                        : dense_doubling<E, 128>;
}

kernel_of_params doubling_kernel(int dtype, int size) {
    return dtype == F32 ? of_size<float>(size) : dtype == F16 ? of_size<__half>(size) : of_size<__nv_bfloat16>(size);
}

} // namespace dense
