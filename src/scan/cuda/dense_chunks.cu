/* Chunk by chunk, dense:

       1. all chunks but the last, in parallel: the chunk's transition M and its end state L from zero;
       2. one block for each item: S[c+1] = M[c] S[c] + L[c], the state that enters each chunk;
       3. all chunks in parallel: walk the chunk again from its state and write h.

   With a single chunk only step 3 is done, over blocks of columns. That is the sequential scan, bounded by the rate at
   which transitions arrive. */
#include "scan/cuda/dense_block.cuh"

namespace dense {

/* Ranges of elements. Each item has `per_item` ranges, and one task walks one range for one of `columns` groups of
   columns. */
struct ranges {
    matrices A;
    int64_t batch, columns, per_item, length, total;

    __device__ int64_t tasks() const {
        return batch * columns * per_item;
    }
    __device__ int64_t item(int64_t task) const {
        return task / (columns * per_item);
    }
    __device__ int64_t column(int64_t task) const {
        return task / per_item % columns;
    }
    __device__ int64_t range(int64_t task) const {
        return task % per_item;
    }
    __device__ int64_t end(int64_t task) const {
        int64_t to = (range(task) + 1) * length;
        return to < total ? to : total;
    }
};

template <typename E> struct range_cursor {
    const ranges &r;
    int64_t task, item, at, end;

    __device__ explicit range_cursor(const ranges &given) : r(given), task(blockIdx.x) {
        enter();
    }
    __device__ void enter() {
        item = r.item(task);
        at = r.range(task) * r.length;
        end = r.end(task);
    }
    __device__ const E *next() {
        while (task < r.tasks()) {
            if (at < end) {
                return matrix<E>(r.A, item, at++);
            }
            task += gridDim.x;
            enter();
        }
        return nullptr;
    }
};

/* Loads columns first .. first + w - 1 of some steps. */
__device__ static void load_columns(float *tile, int apart, const array &from, int64_t item, int64_t step, int members,
                                    int n, int w, int width, int64_t first) {
    for (int i = threadIdx.x; i < members * n * w; i += THREADS) {
        int member = i / (n * w);
        int at = i - member * n * w;
        int row = at / w;
        int64_t offset = item * from.item + (step + member) * from.step + row * width + first + at - row * w;
        tile[member * apart + at] = from.data == nullptr ? 0.0f : carry_value::load(from.data, from.dtype, offset);
    }
}

__device__ static void store_columns(const float *tile, int apart, const array &to, int64_t item, int64_t step,
                                     int members, int n, int w, int width, int64_t first) {
    for (int i = threadIdx.x; i < members * n * w; i += THREADS) {
        int member = i / (n * w);
        int at = i - member * n * w;
        int row = at / w;
        int64_t offset = item * to.item + (step + member) * to.step + row * width + first + at - row * w;
        carry_value::store(to.data, to.dtype, offset, tile[member * apart + at]);
    }
}

template <typename E, int SIZE> struct chunks {
    static constexpr int ELEMENTS = slot<E, SIZE>::ELEMENTS;
    const params &p;
    E *slots; /* the product so far, then the ring */
    float *values, *state;
    int apart;

    __device__ chunks(const params &given, void *shared)
        : p(given), slots((E *)shared), values((float *)(slots + given.slots * ELEMENTS)),
          state(values + given.tile * SIZE * given.columns), apart(SIZE * given.columns) {
    }

    /* Copies the last element of a tile to the state that enters the next. Needs a barrier before and after. */
    __device__ void keep_last(int members) const {
        for (int i = threadIdx.x; i < apart; i += THREADS) {
            state[i] = values[(members - 1) * apart + i];
        }
        __syncthreads();
    }

    /* Computes M and L of one chunk of p.chunk steps from `from` on. */
    template <typename Ring> __device__ void summarise(Ring &coming, int64_t item, int64_t from, int64_t c) const {
        int size = p.n * p.width;
        int members = 0;
        for (int64_t t = 0; t < p.chunk; t++) {
            int i = (int)(t % p.tile);
            if (i == 0) {
                if (t > 0) {
                    keep_last(members);
                }
                members = (int)(p.chunk - t < p.tile ? p.chunk - t : p.tile);
                load_tile(values, apart, p.b, item, from + t, 1, members, size);
            }
            if (t > 0) {
                int taken = t == 1 ? 2 : 1;
                coming.wait(taken);
                combine<E, SIZE>(p, slots, coming.at(taken - 1), t == 1 ? coming.at(0) : slots, values + i * apart,
                                 i == 0 ? state : values + (i - 1) * apart);
                coming.release(taken);
            }
        }
        E *M = matrix<E>(p.spare[0], item, c);
        if (p.chunk > 1) {
            store<E, SIZE>(M, slots, p.n);
        } else {
            coming.wait(1);
            store<E, SIZE>(M, coming.at(0), p.n);
            __syncthreads();
            coming.release(1);
        }
        store_tile(values + (members - 1) * apart, apart, p.turns[0], item, c, 1, 1, size);
        __syncthreads();
    }

    __device__ void summaries() const {
        ranges r = {p.A_matrices(), p.batch, 1, p.chunks - 1, p.chunk, p.steps};
        ring<E, SIZE, range_cursor<E>> coming(slots + ELEMENTS, p.ring, p.n, range_cursor<E>(r));
        for (int64_t task = blockIdx.x; task < r.tasks(); task += gridDim.x) {
            summarise(coming, r.item(task), r.range(task) * p.chunk, r.range(task));
        }
        coming.finish();
    }

    /* h = A h + b over ranges. The state that enters range 0 is h0; the state that enters range r > 0 is entry r - 1 of
       `states`. waits: `states` is known only after a grid barrier; transitions are prefetched before it. */
    __device__ void walk(const ranges &r, const array &b, const array &h, const array &states, bool waits) const {
        ring<E, SIZE, range_cursor<E>> coming(slots, p.slots, p.n, range_cursor<E>(r));
        if (waits) {
            wait_for_grid();
        }
        for (int64_t task = blockIdx.x; task < r.tasks(); task += gridDim.x) {
            int64_t item = r.item(task);
            int64_t range = r.range(task);
            int64_t first = r.column(task) * p.columns;
            int w = p.width - first < p.columns ? (int)(p.width - first) : p.columns;
            load_columns(state, apart, range == 0 ? p.h0 : states, item, range == 0 ? 0 : range - 1, 1, p.n, w, p.width,
                         first);
            for (int64_t t = range * r.length; t < r.end(task); t += p.tile) {
                int members = (int)(r.end(task) - t < p.tile ? r.end(task) - t : p.tile);
                load_columns(values, apart, b, item, t, members, p.n, w, p.width, first);
                for (int i = 0; i < members; i++) {
                    float *y = values + i * apart;
                    const float *x = i == 0 ? state : y - apart;
                    coming.wait(1);
                    /* The choice depends on p.columns, not on w: apply_column needs zeros in rows beyond n, and in a
                       last block of a single column these rows hold values of the wider blocks before it. */
                    if (p.columns == 1) {
                        apply_column<E, SIZE>(y, y, coming.at(0), p.transposed, x, p.n);
                    } else {
                        apply_columns<E, SIZE>(y, y, coming.at(0), p.transposed, x, p.n, w);
                    }
                    __syncthreads();
                    coming.release(1);
                }
                store_columns(values, apart, h, item, t, members, p.n, w, p.width, first);
                keep_last(members);
            }
        }
        coming.finish();
    }

    __device__ void run() const {
        if (p.chunks > 1) {
            summaries();
            clear_products<E, SIZE>(slots, 1, p.n);
            wait_for_grid();
            ranges ends = {p.spare[0], p.batch, 1, 1, p.chunks - 1, p.chunks - 1};
            walk(ends, p.turns[0], p.turns[1], p.turns[1], false);
        }
        int64_t columns = (p.width + p.columns - 1) / p.columns;
        ranges all = {p.A_matrices(), p.batch, columns, p.chunks, p.chunk, p.steps};
        walk(all, p.b, p.h, p.turns[1], p.chunks > 1);
    }
};

template <typename E, int SIZE>
__global__ void __launch_bounds__(THREADS) dense_chunks(const __grid_constant__ params p, size_t shared_bytes) {
    extern __shared__ uint4 shared[];
    clear_shared<E, SIZE>(shared, shared_bytes, p.n);
    chunks<E, SIZE>(p, shared).run();
}

template <typename E> static kernel_of_params of_size(int size) {
    return size == 16   ? dense_chunks<E, 16>
           : size == 32 ? dense_chunks<E, 32>
           : size == 64 ? dense_chunks<E, 64>
                        : dense_chunks<E, 128>;
}

kernel_of_params chunks_kernel(int dtype, int size) {
    return dtype == F32 ? of_size<float>(size) : dtype == F16 ? of_size<__half>(size) : of_size<__nv_bfloat16>(size);
}

} // namespace dense
