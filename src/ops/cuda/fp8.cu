/* Operators in 8-bit floats on NVIDIA GPUs (ops/fp8.h): rounding, scales, and products through cuBLASLt. */
#include "ops/cuda/fp8.cuh"

constexpr int EACH = 2 * ONCE; /* elements of a thread at a time: 32 bytes in, 16 out */

static __device__ __forceinline__ void load_words(uint32_t (&word)[4], const uint16_t *from) {
    const uint4 four = __ldcg((const uint4 *)from);
    word[0] = four.x;
    word[1] = four.y;
    word[2] = four.z;
    word[3] = four.w;
}

/* codes NULL: only records the largest magnitude. */
__global__ void __launch_bounds__(THREADS)
    fp8_round_kernel(unsigned char *codes, float *scale, bool is_wide, const uint16_t *x, int64_t x_row,
                     unsigned vectors, unsigned all) {
    const float inverse = scale[CARRY_FP8_INVERSE];
    fp8_largest largest = {};
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < all; i += gridDim.x * THREADS) {
        const uint16_t *from = x + (int64_t)(i / vectors) * x_row + i % vectors * EACH;
        uint32_t first[4], second[4];
        load_words(first, from);
        load_words(second, from + ONCE);
        largest.take(first);
        largest.take(second);
        if (codes != NULL) {
            const uint2 a = fp8_eight_of(first, inverse, is_wide), b = fp8_eight_of(second, inverse, is_wide);
            __stcg((uint4 *)codes + i, make_uint4(a.x, a.y, b.x, b.y));
        }
    }
    largest.record(scale);
}

constexpr int SQUARE = 64; /* of a tile that is transposed */

/* A thread loads 16 elements of a row of x, and stores 16 of a row of the result. */
__global__ void __launch_bounds__(THREADS)
    fp8_turn_kernel(unsigned char *codes, const float *scale, bool is_wide, const uint16_t *x, int64_t x_row,
                    int64_t rows, int64_t columns) {
    __shared__ unsigned char tile[SQUARE][SQUARE + 4]; /* by columns of x */
    const float inverse = scale[CARRY_FP8_INVERSE];
    const int line = (int)threadIdx.x / 4, at = (int)threadIdx.x % 4 * EACH;
    const int64_t row0 = (int64_t)blockIdx.y * SQUARE, column0 = (int64_t)blockIdx.x * SQUARE;
    if (row0 + line < rows && column0 + at < columns) {
        const uint16_t *from = x + (row0 + line) * x_row + column0 + at;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t word[4];
            load_words(word, from + half * ONCE);
            const uint2 codes_of = fp8_eight_of(word, inverse, is_wide);
#pragma unroll
            for (int j = 0; j < ONCE; j++) {
                tile[at + half * ONCE + j][line] = (unsigned char)((j < 4 ? codes_of.x : codes_of.y) >> (j % 4 * 8));
            }
        }
    }
    __syncthreads();
    if (column0 + line < columns && row0 + at < rows) {
        const unsigned *from = (const unsigned *)&tile[line][at];
        *(uint4 *)(codes + (column0 + line) * rows + row0 + at) = make_uint4(from[0], from[1], from[2], from[3]);
    }
}

__global__ void __launch_bounds__(THREADS) fp8_scales_kernel(float *scales, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) {
        float *scale = scales + i * CARRY_FP8_NUMBERS;
        const float largest = scale[CARRY_FP8_LARGEST];
        if (largest > 0.0f && isfinite(largest)) {
            const float value = fmaxf(largest, 1e-30f) / scale[CARRY_FP8_TOP];
            scale[CARRY_FP8_SCALE] = value;
            scale[CARRY_FP8_INVERSE] = 1.0f / value;
        }
        scale[CARRY_FP8_LARGEST] = 0.0f;
    }
}

/* For shapes that cuBLASLt does not have, and machines without it. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    fp8_product_kernel(row_of<T> c, int64_t c_row, carry_fp8 a, carry_fp8 b, row_of<T> base) {
    const float scale = a.scale[CARRY_FP8_SCALE] * b.scale[CARRY_FP8_SCALE];
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * b.rows;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / b.rows, column = i % b.rows;
        float sum = 0.0f;
        for (int64_t l = 0; l < a.columns; l++) {
            sum = fmaf(fp8_value(a.codes[row * a.columns + l], a.kind == CARRY_E5M2),
                       fp8_value(b.codes[column * b.columns + l], b.kind == CARRY_E5M2), sum);
        }
        c.put(row * c_row + column, scale * sum + (base.here() ? base.get(i) : 0.0f));
    }
}

static carry_status measure(carry_ctx *ctx, unsigned char *codes, float *scale, carry_fp8_kind kind,
                            const carry_tensor &x) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    const int64_t all = x.shape[0] * (x.shape[1] / EACH);
    if (all >= (int64_t)1 << 31 || !is_aligned(x.data) || row_step(x) % ONCE != 0) {
        return carry_fail(ctx, CARRY_ESIZE, "a matrix of %lld x %lld with rows %lld apart is not rounded to 8 bits",
                          (long long)x.shape[0], (long long)x.shape[1], (long long)row_step(x));
    }
    fp8_round_kernel<<<blocks_for(all, 2 * THREADS), THREADS, 0, at.stream>>>(
        codes, scale, kind == CARRY_E5M2, (const uint16_t *)x.data, row_step(x), (unsigned)(x.shape[1] / EACH),
        (unsigned)all);
    return launched(ctx, at, "fp8_round cannot be launched");
}

extern "C" carry_status carry_cuda_fp8_round(carry_ctx *ctx, carry_fp8 to, carry_tensor x, bool transposed) {
    if (!transposed) {
        return measure(ctx, to.codes, to.scale, to.kind, x);
    }
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    const int64_t rows = x.shape[0], columns = x.shape[1];
    const dim3 blocks((unsigned)((columns + SQUARE - 1) / SQUARE), (unsigned)((rows + SQUARE - 1) / SQUARE));
    if (blocks.y > 65535 || !is_aligned(x.data) || row_step(x) % ONCE != 0) {
        return carry_fail(ctx, CARRY_ESIZE, "a matrix of %lld x %lld with rows %lld apart is not transposed in 8 bits",
                          (long long)rows, (long long)columns, (long long)row_step(x));
    }
    fp8_turn_kernel<<<blocks, THREADS, 0, at.stream>>>(to.codes, to.scale, to.kind == CARRY_E5M2,
                                                       (const uint16_t *)x.data, row_step(x), rows, columns);
    return launched(ctx, at, "fp8_round cannot be launched");
}

extern "C" carry_status carry_cuda_fp8_measure(carry_ctx *ctx, carry_tensor scale, carry_tensor x) {
    return measure(ctx, NULL, (float *)scale.data, CARRY_E4M3, x);
}

extern "C" carry_status carry_cuda_fp8_scales(carry_ctx *ctx, carry_tensor scales) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, scales.device));
    fp8_scales_kernel<<<blocks_for(scales.shape[0], THREADS), THREADS, 0, at.stream>>>((float *)scales.data,
                                                                                       scales.shape[0]);
    return launched(ctx, at, "fp8_scales cannot be launched");
}

extern "C" carry_status carry_cuda_fp8_product(carry_ctx *ctx, carry_tensor c, carry_fp8 a, carry_fp8 b,
                                               carry_tensor base) {
    place at = {};
    carry_device_product p = {};
    bool done = false;
    CARRY_TRY(open_place(ctx, &at, c.device));
    p.m = a.rows;
    p.n = b.rows;
    p.k = p.a_row = p.b_row = a.columns;
    p.count = 1;
    p.a = a.codes;
    p.b = b.codes;
    p.c = c.data;
    p.base = base.data;
    p.c_row = row_step(c);
    p.type = CARRY_BF16;
    p.c_type = c.dtype;
    p.b_transposed = true;
    p.accumulate = base.data != NULL;
    p.a_scales = a.scale + CARRY_FP8_SCALE;
    p.b_scales = b.scale + CARRY_FP8_SCALE;
    p.one_scale = true;
    p.a_is_e5m2 = a.kind == CARRY_E5M2;
    p.b_is_e5m2 = b.kind == CARRY_E5M2;
    p.ordinal = at.ordinal;
    p.stream = (carry_stream *)at.stream;
    CARRY_TRY(carry_cuda_blaslt(ctx, &p, &done));
    if (done) {
        return CARRY_OK;
    }
    with_type(c.dtype, [&](auto type) {
        using T = decltype(type);
        fp8_product_kernel<T><<<blocks_for(a.rows * b.rows, THREADS), THREADS, 0, at.stream>>>(row<T>(c), row_step(c),
                                                                                               a, b, row<T>(base));
    });
    return launched(ctx, at, "a product of 8-bit floats cannot be launched");
}

extern "C" const char *carry_cuda_fp8_absence(carry_ctx *ctx, int ordinal, bool by_rows) {
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) != cudaSuccess ||
        major * 10 + minor < 89) {
        return "its compute capability is below 8.9";
    }
    if (by_rows && major != 9) {
        return "cuBLASLt takes a scale for each row only on GPUs of compute capability 9.0";
    }
    return carry_cuda_has_blaslt(ctx) ? NULL : "cuBLASLt was not found";
}
