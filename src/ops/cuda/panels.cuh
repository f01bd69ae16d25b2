/* Tiles of products on tensor cores by mma.sync, for matmul.cu and grouped.cu.

   A tile of c is computed by one warp (16 x 16) or by four, a quarter each. It walks over k in panels: the panels of
   both operands are copied into shared memory in their stored order, 16 bytes at a time and bypassing registers if
   they are aligned, and read from there in the order that the tensor cores need; so a transposed operand costs
   nothing.

   16-bit types use m16n8k16 with f32 sums. f32 uses m16n8k8 of tf32 three times: x = high + low, both rounded to the 11
   bits of tf32, and high*low + low*high + high*high omits only low*low, at most 2^-22 of the product. Sums over k are
   rounded to f32. */
#ifndef CARRY_OPS_PANELS_CUH
#define CARRY_OPS_PANELS_CUH

#include "ops/cuda/types.cuh"

static const int PANEL_THREADS = 128;

/* Constants that differ between types: elements of a panel along k (PANEL), k of one instruction (STEP), and the
   padding of rows along and across k. The padding avoids bank conflicts among the eight rows, or the four by eight
   elements, that are read together. */
template <typename T> struct depth { static const int PANEL = 64, STEP = 16, PAD_ALONG = 8, PAD_ACROSS = 8; };
template <> struct depth<type_f32> { static const int PANEL = 32, STEP = 8, PAD_ALONG = 4, PAD_ACROSS = 8; };

template <typename T, int TILE> struct cut {
    static const int WARP = TILE == 16 ? 16 : TILE / 2;             /* side of a warp's part */
    static const int SIDE = TILE / WARP;                            /* warps along a side */
    static const int GROUP = 32 * SIDE * SIDE;                      /* threads of one tile */
    static const int TILES = PANEL_THREADS / GROUP;                 /* of a block */
    static const int ALONG = depth<T>::PANEL + depth<T>::PAD_ALONG; /* row length of a panel whose rows run along k */
    static const int ACROSS = TILE + depth<T>::PAD_ACROSS;          /* of one whose rows run across k */
    static const int ONE = TILE * ALONG, OTHER = depth<T>::PANEL * ACROSS;
    static const int SIZE = ONE > OTHER ? ONE : OTHER;
};

/* The rows and columns of a panel that exist; the rest is zero. Rows are `row` elements apart in memory. */
template <typename E> struct region {
    const E *from;
    int64_t row;
    int rows, columns;
};

static __device__ __forceinline__ unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

template <typename E, int GROUP>
static __device__ __forceinline__ void load_panel(E *panel, int stride, region<E> r, int rows, int columns, bool by_16,
                                                  int thread) {
    const int per_16 = 16 / (int)sizeof(E);
    if (by_16) {
        int pieces = columns / per_16;
        for (int i = thread; i < rows * pieces; i += GROUP) {
            int at_row = i / pieces;
            int at_column = i % pieces * per_16;
            int left = at_row < r.rows ? r.columns - at_column : 0;
            int bytes = left <= 0 ? 0 : left >= per_16 ? 16 : left * (int)sizeof(E);
            const E *from = bytes > 0 ? r.from + at_row * r.row + at_column : r.from;
            if (bytes > 0 && bytes < 16) { /* the end of a row: memory after it may not have been written yet */
                for (int e = 0; e < per_16; e++) {
                    panel[at_row * stride + at_column + e] = e < left ? from[e] : E{};
                }
                continue;
            }
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                             shared_address(panel + at_row * stride + at_column)),
                         "l"(from), "r"(bytes));
        }
        return;
    }
    for (int i = thread; i < rows * columns; i += GROUP) {
        int at_row = i / columns;
        int at_column = i % columns;
        bool there = at_row < r.rows && at_column < r.columns;
        panel[at_row * stride + at_column] = there ? r.from[at_row * r.row + at_column] : E{};
    }
}

static __device__ __forceinline__ void load_fragments(unsigned f[4], const uint16_t *at, bool transposed) {
    if (transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                     : "r"(shared_address(at)));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                     : "r"(shared_address(at)));
    }
}

static __device__ __forceinline__ void multiply_add(type_f16, float c[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void multiply_add(type_bf16, float c[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* d = a b + c in tf32; 8 products a sum. */
static __device__ __forceinline__ void multiply_tf32(float d[4], const unsigned a[4], const unsigned b[2],
                                                     const float c[4]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                   "f"(c[3]));
}

static __device__ __forceinline__ unsigned tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

static __device__ __forceinline__ void split(unsigned *high, unsigned *low, uint32_t bits) {
    float value = __uint_as_float(bits);
    *high = tf32(value);
    *low = tf32(value - __uint_as_float(*high));
}

/* One step over k for a warp's part: M by N blocks of 16 x 8. a and b point to the warp's first row or column at k's
   first element. Lane l holds row l/4 and columns 2(l%4).. of each block of 8 x 8. Four such blocks are loaded
   together: lanes 8i to 8i+7 supply the addresses of the rows of block i. */
template <typename T, int M, int N>
static __device__ __forceinline__ void step(T type, float (&sum)[M][N][4], const uint16_t *a, int a_stride,
                                            bool a_transposed, const uint16_t *b, int b_stride, bool b_transposed,
                                            int lane) {
    unsigned x[M][4];
    int low = lane % 8;
    int middle = lane / 8 % 2 * 8;
    int high = lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < M; i++) {
        const uint16_t *at = a_transposed ? a + (low + high) * a_stride + i * 16 + middle
                                          : a + (i * 16 + low + middle) * a_stride + high;
        load_fragments(x[i], at, a_transposed);
    }
#pragma unroll
    for (int j = 0; j < N; j += 2) {
        unsigned y[4];
        const uint16_t *at =
            b_transposed ? b + (j * 8 + low + high) * b_stride + middle : b + (low + middle) * b_stride + j * 8 + high;
        load_fragments(y, at, !b_transposed);
#pragma unroll
        for (int i = 0; i < M; i++) {
            multiply_add(type, sum[i][j], x[i], y);
            multiply_add(type, sum[i][j + 1], x[i], y + 2);
        }
    }
}

template <int M, int N>
static __device__ __forceinline__ void step(type_f32, float (&sum)[M][N][4], const uint32_t *a, int a_stride,
                                            bool a_transposed, const uint32_t *b, int b_stride, bool b_transposed,
                                            int lane) {
    unsigned high[M][4], low[M][4];
    int row = lane / 4;
    int along = lane % 4;
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int q = 0; q < 4; q++) {
            int at_row = i * 16 + row + q % 2 * 8;
            int at_k = along + q / 2 * 4;
            split(&high[i][q], &low[i][q], a_transposed ? a[at_k * a_stride + at_row] : a[at_row * a_stride + at_k]);
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        unsigned b_high[2], b_low[2];
#pragma unroll
        for (int q = 0; q < 2; q++) {
            int at_column = j * 8 + row;
            int at_k = along + q * 4;
            split(&b_high[q], &b_low[q],
                  b_transposed ? b[at_column * b_stride + at_k] : b[at_k * b_stride + at_column]);
        }
#pragma unroll
        for (int i = 0; i < M; i++) {
            const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            float small[4], large[4];
            multiply_tf32(small, low[i], b_high, zero);
            multiply_tf32(small, high[i], b_low, small);
            multiply_tf32(large, high[i], b_high, zero);
#pragma unroll
            for (int q = 0; q < 4; q++) { /* tensor cores truncate sums, so long ones are added here */
                sum[i][j][q] += small[q] + large[q];
            }
        }
    }
}

template <typename T>
static __device__ __forceinline__ void put(const carry_device_product &p, int64_t at, float value) {
    if (p.c_type == CARRY_F32) {
        float *c = (float *)p.c + at;
        *c = p.accumulate ? *c + value : value;
    } else {
        typename T::stored *c = (typename T::stored *)p.c + at;
        *c = T::narrow(p.accumulate ? T::widen(*c) + value : value);
    }
}

/* Writes two neighbouring elements at once; `at` is even in an array that is aligned to pairs. */
template <typename T>
static __device__ __forceinline__ void put_pair(const carry_device_product &p, int64_t at, float first, float second) {
    if (p.c_type == CARRY_F32) {
        *(float2 *)((float *)p.c + at) = make_float2(first, second);
    } else {
        *(uint32_t *)((uint16_t *)p.c + at) = (uint32_t)T::narrow(first) | (uint32_t)T::narrow(second) << 16;
    }
}

template <typename T, int M, int N>
static __device__ __forceinline__ void store(const carry_device_product &p, const float (&sum)[M][N][4], int64_t start,
                                             int64_t row0, int64_t column0, bool by_pair, int lane) {
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int j = 0; j < N; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int64_t row = row0 + i * 16 + half * 8 + lane / 4;
                int64_t column = column0 + j * 8 + lane % 4 * 2;
                int64_t at = start + row * p.c_row + column;
                if (row < p.m && column + 1 < p.n && by_pair) {
                    put_pair<T>(p, at, sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
                    continue;
                }
                if (row < p.m && column < p.n) {
                    put<T>(p, at, sum[i][j][half * 2]);
                }
                if (row < p.m && column + 1 < p.n) {
                    put<T>(p, at + 1, sum[i][j][half * 2 + 1]);
                }
            }
        }
    }
}

static __device__ __forceinline__ int at_most(int64_t left, int limit) {
    return left <= 0 ? 0 : left < limit ? (int)left : limit;
}

/* Loads the panel of an operand that starts at element (across, along). Its rows run along k, or across k if
   `turned`. */
template <typename T, int TILE>
static __device__ __forceinline__ void load_operand(typename T::stored *panel, const void *data, int64_t row,
                                                    bool turned, int64_t across, int64_t sides, int64_t along,
                                                    int64_t sums, bool by_16, int thread) {
    typedef typename T::stored E;
    typedef cut<T, TILE> C;
    int there_across = at_most(sides - across, TILE);
    int there_along = at_most(sums - along, depth<T>::PANEL);
    int needed = (there_along + depth<T>::STEP - 1) / depth<T>::STEP * depth<T>::STEP;
    const E *from = (const E *)data + (turned ? along * row + across : across * row + along);
    if (turned) {
        load_panel<E, C::GROUP>(panel, C::ACROSS, {from, row, there_along, there_across}, needed, TILE, by_16, thread);
    } else {
        load_panel<E, C::GROUP>(panel, C::ALONG, {from, row, there_across, there_along}, TILE, needed, by_16, thread);
    }
}

#endif
