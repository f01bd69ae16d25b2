/* Operations of one block on matrices in shared memory: fetch, multiply, apply, store, and a ring of prefetched
   matrices. */
#ifndef CARRY_SCAN_DENSE_BLOCK_CUH
#define CARRY_SCAN_DENSE_BLOCK_CUH

#include "scan/cuda/dense.cuh"
#include "scan/cuda/dense_device.cuh"
#include "scan/cuda/dense_tiles.cuh"
#include "scan/cuda/value.cuh"

namespace dense {

/* Independent matrices that are applied between two barriers of the block. */
constexpr int TOGETHER = 4;

__device__ inline float to_float(float x) {
    return x;
}
__device__ inline float to_float(__half x) {
    return __half2float(x);
}
__device__ inline float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

/* Waits until at most `pending` groups of copies are in flight. The instruction needs a constant count. From four on,
   it may leave fewer in flight than asked for, since three branches cost less than a jump table. */
__device__ inline void copy_wait(int pending) {
    if (pending >= 4) {
        if (pending >= 8) {
            copy_wait_for<8>();
        } else if (pending >= 6) {
            copy_wait_for<6>();
        } else {
            copy_wait_for<4>();
        }
    } else if (pending >= 2) {
        if (pending == 3) {
            copy_wait_for<3>();
        } else {
            copy_wait_for<2>();
        }
    } else if (pending == 1) {
        copy_wait_for<1>();
    } else {
        copy_wait_for<0>();
    }
}

/* The position of a thread in rows of `size` elements, when the block goes through them THREADS elements at a time. */
struct place_of_thread {
    int member, at, size, more_members, more;

    __device__ explicit place_of_thread(int given)
        : member((int)threadIdx.x / given), at((int)threadIdx.x % given), size(given), more_members(THREADS / given),
          more(THREADS % given) {
    }
    /* Moves THREADS elements further, without a division. */
    __device__ void advance() {
        member += more_members;
        at += more;
        if (at >= size) {
            at -= size;
            member++;
        }
    }
};

template <typename E> __device__ inline bool in_sixteens(const E *matrix, int n) {
    return ((uintptr_t)matrix & 15) == 0 && n * (int)sizeof(E) % 16 == 0;
}

/* Starts to copy an n x n matrix into a slot, or nothing if it is NULL. It is one group of copies in both cases. */
template <typename E, int SIZE> __device__ void fetch(E *to, const E *matrix, int n) {
    constexpr int ROW = slot<E, SIZE>::ROW;
    constexpr int PIECE = 16 / (int)sizeof(E);
    constexpr int PIECES = SIZE / PIECE;
    if (matrix != nullptr && n == SIZE && in_sixteens(matrix, SIZE)) {
        /* The pieces of a thread are at constant distances, so addresses need only constant offsets. */
        constexpr int STEP = THREADS / PIECES;
        int row = (int)threadIdx.x / PIECES;
        int column = (int)threadIdx.x % PIECES * PIECE;
        E *first = to + row * ROW + column;
        const E *from = matrix + row * SIZE + column;
#pragma unroll
        for (int i = 0; i < SIZE; i += STEP) {
            if (i + STEP <= SIZE || row + i < SIZE) {
                copy_async(first + i * ROW, from + i * SIZE);
            }
        }
    } else if (matrix != nullptr && in_sixteens(matrix, n)) {
#pragma unroll 1
        for (place_of_thread place(n / PIECE); place.member < n; place.advance()) {
            int column = place.at * PIECE;
            copy_async(to + place.member * ROW + column, matrix + place.member * n + column);
        }
    } else if (matrix != nullptr) {
#pragma unroll 1
        for (place_of_thread place(n); place.member < n; place.advance()) {
            to[place.member * ROW + place.at] = matrix[place.member * n + place.at];
        }
    }
    copy_commit();
}

template <typename E, int SIZE> __device__ void store(E *matrix, const E *from, int n) {
    constexpr int ROW = slot<E, SIZE>::ROW;
    constexpr int PIECE = 16 / (int)sizeof(E);
    if (in_sixteens(matrix, n)) {
        int pieces = n / PIECE;
#pragma unroll 1
        for (place_of_thread place(pieces); place.member < n; place.advance()) {
            int column = place.at * PIECE;
            *(uint4 *)(matrix + place.member * n + column) = *(const uint4 *)(from + place.member * ROW + column);
        }
        return;
    }
#pragma unroll 1
    for (place_of_thread place(n); place.member < n; place.advance()) {
        matrix[place.member * n + place.at] = from[place.member * ROW + place.at];
    }
}

/* The product of two slots, in the registers of the block's threads. 16-bit types use tensor cores. There are DOWN x
   ACROSS warps, each with a tile of 16 * HIGH rows by 8 * WIDE columns. */
template <typename E, int SIZE> struct product {
    static constexpr int ROW = slot<E, SIZE>::ROW;
    static constexpr int HIGH = SIZE == 128 ? 2 : 1;
    static constexpr int WIDE = SIZE == 128 ? 8 : SIZE == 64 ? 4 : 2;
    static constexpr int DOWN = SIZE / (16 * HIGH);
    static constexpr int ACROSS = SIZE / (8 * WIDE);
    static_assert(DOWN * ACROSS * 32 <= THREADS && WIDE % 2 == 0, "");
    float c[HIGH][WIDE][4] = {};

    __device__ static bool takes_part() {
        return threadIdx.x < DOWN * ACROSS * 32;
    }
    __device__ static int first_row() {
        return (int)threadIdx.x / 32 / ACROSS * 16 * HIGH;
    }
    __device__ static int first_column() {
        return (int)threadIdx.x / 32 % ACROSS * 8 * WIDE;
    }

    __device__ void multiply(const E *left, const E *right) {
        if (!takes_part()) {
            return;
        }
        int lane = (int)threadIdx.x % 32;
        const E *a_row = left + (first_row() + lane % 16) * ROW + lane / 16 * 8;
        const E *b_row = right + lane % 16 * ROW + first_column() + lane / 16 * 8;
#pragma unroll
        for (int k = 0; k < SIZE; k += 16) {
            uint32_t a[HIGH][4];
#pragma unroll
            for (int i = 0; i < HIGH; i++) {
                load_blocks(a[i], a_row + i * 16 * ROW + k);
            }
#pragma unroll
            for (int j = 0; j < WIDE; j += 2) {
                uint32_t b[4];
                load_blocks_transposed(b, b_row + k * ROW + j * 8);
#pragma unroll
                for (int i = 0; i < HIGH; i++) {
                    multiply_add<E>(c[i][j], a[i], b[0], b[1]);
                    multiply_add<E>(c[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
    }

    __device__ static void put(__half *to, float x, float y) {
        *(__half2 *)to = __floats2half2_rn(x, y);
    }
    __device__ static void put(__nv_bfloat16 *to, float x, float y) {
        *(__nv_bfloat162 *)to = __floats2bfloat162_rn(x, y);
    }

    __device__ void write(E *to) const {
        if (!takes_part()) {
            return;
        }
        int lane = (int)threadIdx.x % 32;
        E *corner = to + (first_row() + lane / 4) * ROW + first_column() + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                put(corner + i * 16 * ROW + j * 8, c[i][j][0], c[i][j][1]);
                put(corner + (i * 16 + 8) * ROW + j * 8, c[i][j][2], c[i][j][3]);
            }
        }
    }
};

/* Loads eight adjacent elements of a row. */
__device__ inline void load_eight(float (&to)[8], const float *from) {
    float4 low = *(const float4 *)from;
    float4 high = *(const float4 *)(from + 4);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}
__device__ inline void load_eight(float (&to)[8], const __half *from) {
    uint4 bits = *(const uint4 *)from;
    const __half2 *pairs = (const __half2 *)&bits;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 two = __half22float2(pairs[i]);
        to[2 * i] = two.x, to[2 * i + 1] = two.y;
    }
}
__device__ inline void load_eight(float (&to)[8], const __nv_bfloat16 *from) {
    uint4 bits = *(const uint4 *)from;
    const __nv_bfloat162 *pairs = (const __nv_bfloat162 *)&bits;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 two = __bfloat1622float2(pairs[i]);
        to[2 * i] = two.x, to[2 * i + 1] = two.y;
    }
}

/* y = base + A x for a single column. Several adjacent lanes share a row. Rows of x from n on are zero. */
template <typename E, int SIZE>
__device__ void apply_column(float *y, const float *base, const E *A, bool transposed, const float *x, int n) {
    constexpr int ROW = slot<E, SIZE>::ROW;
    constexpr int LANES = THREADS / SIZE;
    int row = (int)threadIdx.x / LANES;
    int lane = (int)threadIdx.x % LANES;
    float sum = 0.0f;
    if (transposed) {
#pragma unroll 8
        for (int k = lane; k < SIZE; k += LANES) {
            sum = fmaf(to_float(A[k * ROW + row]), x[k], sum);
        }
    } else {
#pragma unroll 4
        for (int k = 8 * lane; k < SIZE; k += 8 * LANES) {
            float a[8];
            float v[8];
            load_eight(a, A + row * ROW + k);
            load_eight(v, x + k);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum = fmaf(a[i], v[i], sum);
            }
        }
    }
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if (lane == 0 && row < n) {
        y[row] = base[row] + sum;
    }
}

/* The same for any width. A thread has four rows of a column. */
template <typename E, int SIZE>
__device__ void apply_columns(float *y, const float *base, const E *A, bool transposed, const float *x, int n, int w) {
    constexpr int ROW = slot<E, SIZE>::ROW;
    int fours = (n + 3) / 4;
    int row_next = transposed ? 1 : ROW;
    int k_next = transposed ? ROW : 1;
    for (int i = threadIdx.x; i < fours * w; i += THREADS) {
        int row = i / w * 4;
        int column = i - i / w * w;
        const E *a = A + row * row_next;
        float sum[4] = {};
#pragma unroll 4
        for (int k = 0; k < n; k++) {
            float v = x[k * w + column];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                sum[r] = fmaf(to_float(a[k * k_next + r * row_next]), v, sum[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            if (row + r < n) {
                y[(row + r) * w + column] = base[(row + r) * w + column] + sum[r];
            }
        }
    }
}

/* y = base + A x, all in shared memory. base may be y, x may not. The caller provides the barriers. */
template <typename E, int SIZE>
__device__ void apply(float *y, const float *base, const E *A, bool transposed, const float *x, int n, int w) {
    if (w == 1) {
        apply_column<E, SIZE>(y, base, A, transposed, x, n);
    } else if (sizeof(E) == sizeof(float) && n % 4 == 0 && w % 4 == 0) {
        apply_tiles<SIZE>(y, base, (const float *)A, transposed, x, n, w);
    } else {
        apply_columns<E, SIZE>(y, base, A, transposed, x, n, w);
    }
}

/* to = later * earlier, and y += later * x. `to` may be `later` or `earlier`. All operands must be visible to the block
   before the call, and all results are visible after it. */
template <typename E, int SIZE>
__device__ void combine(const params &p, E *to, const E *later, const E *earlier, float *y, const float *x) {
    product<E, SIZE> c;
    c.multiply(p.transposed ? earlier : later, p.transposed ? later : earlier);
    apply<E, SIZE>(y, y, later, p.transposed, x, p.n, p.width);
    __syncthreads();
    c.write(to);
    __syncthreads();
}

/* A ring of slots, filled in the order in which a cursor returns matrices. There is one group of copies for each slot,
   so to wait for the first k slots is to wait until size - k groups are in flight. */
template <typename E, int SIZE, typename Cursor> struct ring {
    E *slots;
    int size, head, n;
    Cursor cursor;

    __device__ ring(E *given, int count, int rows, const Cursor &from)
        : slots(given), size(count), head(0), n(rows), cursor(from) {
#pragma unroll 1
        for (int i = 0; i < size; i++) {
            fetch<E, SIZE>(slots + i * slot<E, SIZE>::ELEMENTS, cursor.next(), n);
        }
    }
    __device__ E *at(int i) const {
        int k = head + i;
        return slots + (k < size ? k : k - size) * slot<E, SIZE>::ELEMENTS;
    }
    /* The number of matrices to use between two barriers of the block, if `left` remain. */
    __device__ int some(int left) const {
        int most = size < TOGETHER ? size : TOGETHER;
        return left < most ? left : most;
    }
    /* Waits until the first k matrices have arrived for all threads. */
    __device__ void wait(int k) const {
        copy_wait(size - k);
        __syncthreads();
    }
    /* Refills the first k slots. A barrier of the block must separate this from the last read of them. */
    __device__ void release(int k) {
#pragma unroll 1
        for (int i = 0; i < k; i++) {
            fetch<E, SIZE>(at(0), cursor.next(), n);
            head = head + 1 < size ? head + 1 : 0;
        }
    }
    /* Waits for the matrix after the first `used`, and then refills those. */
    __device__ void advance(int used) {
        if (size > used) {
            copy_wait(size - used - 1);
        }
        __syncthreads();
        release(used);
        if (size <= used) {
            wait(1);
        }
    }
    /* Waits for all copies. The slots may then be used for something else. */
    __device__ void finish() const {
        copy_wait(0);
        __syncthreads();
    }
};

/* load_tile, store_tile: copy the values of `members` elements between an array, where they are at steps first, first +
   next, ..., and shared memory, where they are `apart` floats from each other. A thread always handles the same
   numbers, so a tile may be stored and loaded again without a barrier. */
__device__ inline void load_tile(float *tile, int64_t apart, const array &from, int64_t item, int64_t first,
                                 int64_t next, int members, int size) {
    constexpr int AT_ONCE = 8; /* loads that wait for memory together */
    int64_t begin = item * from.item + first * from.step;
    int64_t step = next * from.step;
    bool is_wide = from.dtype == F32;
    place_of_thread ahead(size);
    place_of_thread place = ahead;
#pragma unroll 1
    while (place.member < members) {
        uint32_t bits[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int64_t offset = begin + ahead.member * step + ahead.at;
            if (ahead.member < members) {
                bits[j] = is_wide ? ((const uint32_t *)from.data)[offset] : ((const uint16_t *)from.data)[offset];
            }
            ahead.advance();
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (place.member < members) {
                tile[place.member * apart + place.at] = carry_value::of_bits(bits[j], from.dtype);
            }
            place.advance();
        }
    }
}

__device__ inline void store_tile(const float *tile, int64_t apart, const array &to, int64_t item, int64_t first,
                                  int64_t next, int members, int size) {
    int64_t begin = item * to.item + first * to.step;
    int64_t step = next * to.step;
#pragma unroll 1
    for (place_of_thread place(size); place.member < members; place.advance()) {
        carry_value::store(to.data, to.dtype, begin + place.member * step + place.at,
                           tile[place.member * apart + place.at]);
    }
}

/* Loads one state, or zeros if there is no initial state. */
__device__ inline void load_state(float *state, const array &from, int64_t item, int64_t step, int size) {
#pragma unroll 1
    for (int i = threadIdx.x; i < size; i += THREADS) {
        state[i] = from.data == nullptr
                       ? 0.0f
                       : carry_value::load(from.data, from.dtype, item * from.item + step * from.step + i);
    }
}

/* Clears shared memory if n < SIZE, so that rows and columns beyond n are zeros. Fetches never write to them, but
   products do: they multiply these zeros by the other factor, and with NaN or infinity the result is not zero
   (clear_products). */
template <typename E, int SIZE> __device__ void clear_shared(void *shared, size_t bytes, int n) {
    if (n == SIZE) {
        return;
    }
    for (size_t i = threadIdx.x; i < bytes / 16; i += THREADS) {
        ((uint4 *)shared)[i] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
}

/* Clears `count` slots that held products before matrices are fetched into them. Otherwise a NaN beyond n would spread
   to all later products. */
template <typename E, int SIZE> __device__ void clear_products(E *slots, int count, int n) {
    clear_shared<E, SIZE>(slots, (size_t)count * slot<E, SIZE>::ELEMENTS * sizeof(E), n);
}

template <typename E> __device__ inline E *matrix(const matrices &from, int64_t item, int64_t element) {
    return (E *)from.data + item * from.item + element * from.step;
}

} // namespace dense

#endif
