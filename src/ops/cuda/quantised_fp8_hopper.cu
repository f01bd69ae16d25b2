/* Products of many rows of activations with 8-bit floats (fp8_block), both factors in 8 bits.

   Activations are rounded to e4m3 with a scale for each row and 128 columns; a tile's codes are copied into rows, which
   the tensor cores read. Sums of 128 products are scaled and added in f32. Rounding an activation has a relative
   error of up to 1/16, with a root mean square of 2.6 %; activations below 2^-15 of the largest of their 128 columns
   have larger relative errors. */
#include "ops/cuda/quantised.cuh"
#include "ops/cuda/quantised_linear.cuh"

constexpr int64_t FP8_ROWS = 256; /* from this number on, 8-bit products are faster than reading tiles in pieces */
constexpr int FP8_GROUP = 128;
constexpr float FP8_MOST = 448.0f;

/* Rows of e4m3 codes, [rows, columns], and their scales, [columns / 128, rows], or one for 128 rows of a weight,
   [(rows + 127) / 128, columns / 128 rounded up to 4]. */
struct fp8_rows {
    unsigned char *codes;
    float *scales;
};

/* Two numbers rounded to e4m3; a is in the low byte. */
static __device__ __forceinline__ unsigned e4m3_pair(float a, float b) {
    unsigned short pair = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 /* the others do not use it */
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
#endif
    return pair;
}

/* A warp rounds 128 columns of a row, four in each lane. */
static __global__ __launch_bounds__(THREADS) void fp8_round(fp8_rows to, const uint16_t *x, int64_t x_row, int rows,
                                                            int columns) {
    const int lane = (int)threadIdx.x % 32, groups = columns / FP8_GROUP;
    const int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32; i < (int64_t)rows * groups; i += step) {
        const int row = (int)(i / groups), group = (int)(i % groups);
        const uint2 in = *(const uint2 *)(x + row * x_row + group * FP8_GROUP + lane * 4);
        const float v[4] = {__uint_as_float(in.x << 16), __uint_as_float(in.x & 0xffff0000u),
                            __uint_as_float(in.y << 16), __uint_as_float(in.y & 0xffff0000u)};
        float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
        for (int apart = 16; apart > 0; apart >>= 1) {
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
        }
        /* A scale below the smallest normal number would have an infinite inverse. */
        const float scale = fmaxf(largest, 1e-30f) / FP8_MOST, by = 1.0f / scale;
        *(unsigned *)(to.codes + (size_t)row * columns + group * FP8_GROUP + lane * 4) =
            e4m3_pair(v[0] * by, v[1] * by) | e4m3_pair(v[2] * by, v[3] * by) << 16;
        if (lane == 0) {
            to.scales[(size_t)group * rows + row] = scale;
        }
    }
}

/* Copies tiles into rows from row `first` of `rows` on. A thread has 16 bytes: eight columns of two rows. */
static __global__ __launch_bounds__(THREADS) void fp8_untile(fp8_rows to, carry_quant_tiles l,
                                                             const unsigned char *tiles, int first, int rows,
                                                             bool is_square) {
    const int columns = (int)l.columns;
    const int64_t each = l.units * 128, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < l.tiles * each; i += step) {
        const int tile = (int)(i / each), unit = (int)(i % each) / 128, piece = (int)(i % 128) / 32;
        const int lane = (int)(i % 32), row = first + tile * CARRY_QUANT_TILE_ROWS + lane / 4;
        const unsigned char *from = tiles + (size_t)tile * l.tile_bytes + (size_t)unit * l.unit_bytes;
        const uint4 w = *(const uint4 *)(from + piece * 512 + lane * 16);
        unsigned char *at = to.codes + (size_t)row * columns + unit * FP8_GROUP + piece * 32 + lane % 4 * 8;
        *(uint2 *)at = make_uint2(w.x, w.z);
        *(uint2 *)(at + (size_t)8 * columns) = make_uint2(w.y, w.w);
        if (piece == 0 && lane % 4 == 0) {
            const float2 scale = *(const float2 *)(from + l.code_bytes + lane / 4 * 8);
            if (!is_square) {
                to.scales[(size_t)unit * rows + row] = scale.x;
                to.scales[(size_t)unit * rows + row + 8] = scale.y;
            } else if (row % CARRY_QUANT_SQUARE_ROWS == 0) {
                to.scales[row / CARRY_QUANT_SQUARE_ROWS * ((l.units + 3) / 4 * 4) + unit] = scale.x;
            }
        }
    }
}

/* Memory of rows in 8 bits, with the scales of both kinds. */
static size_t fp8_bytes(int64_t rows, int64_t columns) {
    const size_t codes = ((size_t)(rows * columns) + 255) / 256 * 256;
    return codes + ((size_t)((rows + 4) * (columns / FP8_GROUP + 4)) * sizeof(float) + 255) / 256 * 256;
}

static fp8_rows fp8_at(void *data, int64_t rows, int64_t columns) {
    return fp8_rows{(unsigned char *)data,
                    (float *)((unsigned char *)data + ((size_t)(rows * columns) + 255) / 256 * 256)};
}

/* True if the product can be made of 8-bit factors. */
static bool is_fp8(const carry_quant_tiles &l, const matrix &c, int64_t m, const matrix &a) {
    return l.format == CARRY_QUANT_IS_fp8_block && m >= FP8_ROWS && l.rows >= CARRY_QUANT_SQUARE_ROWS &&
           l.rows % CARRY_QUANT_TILE_ROWS == 0 && l.columns > 0 && l.columns % FP8_GROUP == 0 &&
           l.rows * l.columns <= (int64_t)DECODED_BYTES && a.type == CARRY_BF16 && a.row % 4 == 0 &&
           (uintptr_t)a.data % 8 == 0 && c.type != CARRY_F16;
}

static bool is_square(const carry_tensor &W) {
    return W.stride[2] == CARRY_QUANT_SQUARE;
}

/* Returns how many matrices from W[0] on can be combined in one product: their results must be adjacent columns, and no
   block of 128 rows with one scale may contain rows of two matrices. */
static int fp8_joined(const matrix *c, const carry_tensor *W, int count) {
    int64_t rows = W[0].shape[0];
    int i = 1;
    for (;
         i < count && is_square(W[i]) == is_square(W[0]) && (!is_square(W[0]) || rows % CARRY_QUANT_SQUARE_ROWS == 0) &&
         c[i].row == c[0].row && c[i].type == c[0].type &&
         (const char *)c[0].data + (size_t)rows * carry_dtype_size(c[0].type) == c[i].data &&
         (rows + W[i].shape[0]) * W[i].shape[1] <= (int64_t)DECODED_BYTES;
         i++) {
        rows += W[i].shape[0];
    }
    return i;
}

/* One product of `count` matrices, whose results are side by side from c on. */
static carry_status fp8_product(carry_ctx *ctx, const place &at, const fp8_rows &x, void *memory, const matrix &c,
                                int64_t m, const carry_tensor *W, int count, const void *base, bool *done) {
    const int64_t columns = W[0].shape[1];
    carry_device_product p = {};
    for (int i = 0; i < count; i++) {
        p.n += W[i].shape[0];
    }
    const fp8_rows w = fp8_at(memory, p.n, columns);
    for (int64_t i = 0, row = 0; i < count; row += W[i++].shape[0]) {
        carry_quant_tiles l;
        (void)carry_quant_tiles_of_tensor(&l, &W[i]);
        fp8_untile<<<blocks_for(l.tiles * l.units * 128, THREADS), THREADS, 0, at.stream>>>(
            w, l, (const unsigned char *)W[i].data, (int)row, (int)p.n, is_square(W[0]));
    }
    p.m = m;
    p.k = p.a_row = p.b_row = columns;
    p.count = 1;
    p.a = x.codes;
    p.a_scales = x.scales;
    p.b = w.codes;
    p.b_scales = w.scales;
    p.b_is_square = is_square(W[0]);
    p.c = (void *)c.data;
    p.base = base;
    p.c_row = c.row;
    p.type = CARRY_BF16;
    p.c_type = c.type;
    p.b_transposed = true;
    p.accumulate = base != NULL;
    p.ordinal = at.ordinal;
    p.stream = (carry_stream *)at.stream;
    CARRY_TRY(launched(ctx, at, "tiles cannot be copied into rows"));
    return carry_cuda_blaslt(ctx, &p, done);
}

/* Multiplies m rows, a multiple of 16, in 8 bits with several matrices. *done: how many were multiplied, less than
   `count` if cuBLASLt does not support the product with the next one. */
static carry_status by_fp8(carry_ctx *ctx, const place &at, const matrix *c, int64_t m, const matrix &a,
                           const carry_tensor *W, int count, const void *base, int *done) {
    const int64_t columns = W[0].shape[1];
    size_t most = 0;
    for (int i = 0, some; i < count; i += some) {
        int64_t rows = 0;
        some = fp8_joined(c + i, W + i, count - i);
        for (int j = i; j < i + some; j++) {
            rows += W[j].shape[0];
        }
        most = fp8_bytes(rows, columns) > most ? fp8_bytes(rows, columns) : most;
    }
    void *memory = NULL;
    CARRY_TRY(carry_cuda_alloc_on(ctx, &memory, at.ordinal, fp8_bytes(m, columns) + most, (carry_stream *)at.stream));
    const fp8_rows x = fp8_at(memory, m, columns);
    fp8_round<<<blocks_for(m * (columns / FP8_GROUP), THREADS / 32), THREADS, 0, at.stream>>>(
        x, (const uint16_t *)a.data, a.row, (int)m, (int)columns);
    carry_status status = launched(ctx, at, "activations cannot be rounded to 8 bits");
    bool fine = true;
    *done = 0;
    while (status == CARRY_OK && fine && *done < count) {
        const int some = fp8_joined(c + *done, W + *done, count - *done);
        status = fp8_product(ctx, at, x, (unsigned char *)memory + fp8_bytes(m, columns), c[*done], m, W + *done, some,
                             base, &fine);
        *done += status == CARRY_OK && fine ? some : 0;
    }
    carry_cuda_free_on(ctx, at.ordinal, memory, (carry_stream *)at.stream);
    return status;
}

/* Multiplies the first matrices that 8-bit factors are possible for; *done: their number. */
carry_status quantised_fp8(carry_ctx *ctx, const place &at, const matrix *c, int64_t m, const matrix &a,
                           const carry_tensor *W, int count, const void *base, int *done) {
    const int64_t most = m / 16 * 16; /* the other rows are few */
    int some = 0;
    carry_quant_tiles l;
    *done = 0;
    while (some < count && W[some].shape[1] == W[0].shape[1] && carry_quant_tiles_of_tensor(&l, &W[some]) &&
           is_fp8(l, c[some], m, a)) {
        some++;
    }
    if (some == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(by_fp8(ctx, at, c, most, a, W, some, base, done));
    for (int i = 0; m > most && i < *done; i++) {
        matrix rest = a, to = c[i];
        rest.data = (const char *)a.data + (size_t)(most * a.row) * carry_dtype_size(a.type);
        to.data = (const char *)to.data + (size_t)(most * to.row) * carry_dtype_size(to.type);
        CARRY_TRY(quantised_by_tiles(ctx, at, to, m - most, rest, W[i], base != NULL ? to.data : NULL));
    }
    return CARRY_OK;
}
