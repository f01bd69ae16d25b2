/* Products in 8-bit floats with a scale for each row (ops/fp8_rows.h) on NVIDIA GPUs: rounding in one pass over memory,
   and products through cuBLASLt. */
#include <limits.h>

#include "ops/cuda/fp8.cuh"

extern "C" {
#include "ops/cuda/cuda.h"
#include "ops/fp8_rows.h"
#include "ops/fused.h"
}

constexpr int KEPT = 8; /* vectors of a row that a thread keeps in registers */

/* A block has a row. WIDTH: threads. Rows with more than WIDTH * KEPT vectors are read twice. */
template <int WIDTH>
__global__ void __launch_bounds__(WIDTH)
    fp8_rows_kernel(unsigned char *codes, float *scales, const uint16_t *x, int64_t x_row, int vectors) {
    __shared__ unsigned parts[WIDTH / 32];
    const int64_t row = blockIdx.x;
    const uint4 *from = (const uint4 *)(x + row * x_row);
    uint32_t kept[KEPT][4];
    fp8_largest largest = {};
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        const int at = (int)threadIdx.x + i * WIDTH;
        const uint4 four = at < vectors ? __ldcg(from + at) : make_uint4(0, 0, 0, 0);
        kept[i][0] = four.x, kept[i][1] = four.y, kept[i][2] = four.z, kept[i][3] = four.w;
        largest.take(kept[i]);
    }
    for (int at = (int)threadIdx.x + KEPT * WIDTH; at < vectors; at += WIDTH) {
        const uint4 four = __ldcg(from + at);
        const uint32_t word[4] = {four.x, four.y, four.z, four.w};
        largest.take(word);
    }
    const unsigned own = largest.of_warp();
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = own;
    }
    __syncthreads();
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < WIDTH / 32; i++) {
        most = max(most, parts[i]);
    }
    const float magnitude = __uint_as_float(most);
    const bool is_finite = most < 0x7f800000u;
    const float scale = is_finite ? fmaxf(magnitude, CARRY_FP8_ROWS_LEAST) / CARRY_FP8_ROWS_MOST : 1.0f;
    const float inverse = 1.0f / scale;
    if (threadIdx.x == 0) {
        scales[row] = scale;
    }
    uint2 *to = (uint2 *)(codes + row * vectors * ONCE);
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        const int at = (int)threadIdx.x + i * WIDTH;
        if (at < vectors) {
            to[at] = fp8_eight<false>(kept[i], inverse);
        }
    }
    for (int at = (int)threadIdx.x + KEPT * WIDTH; at < vectors; at += WIDTH) {
        const uint4 four = __ldcg(from + at);
        const uint32_t word[4] = {four.x, four.y, four.z, four.w};
        to[at] = fp8_eight<false>(word, inverse);
    }
}

/* For machines without cuBLASLt, and shapes that it does not have. */
__global__ void __launch_bounds__(THREADS) fp8_rows_product_kernel(uint16_t *y, carry_fp8_rows x, carry_fp8_rows W,
                                                                   const uint16_t *b, bool gelu, bool accumulate) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < x.rows * W.rows;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / W.rows, column = i % W.rows;
        float sum = 0.0f;
        for (int64_t l = 0; l < x.columns; l++) {
            sum = fmaf(fp8_value(x.codes[row * x.columns + l], false),
                       fp8_value(W.codes[column * W.columns + l], false), sum);
        }
        sum = x.scale[row] * W.scale[column] * sum + (b != NULL ? type_bf16::widen(b[column]) : 0.0f);
        sum += accumulate ? type_bf16::widen(y[i]) : 0.0f;
        y[i] = type_bf16::narrow(gelu ? activate_one(sum, CARRY_GELU) : sum);
    }
}

extern "C" carry_status carry_cuda_fp8_rows_round(carry_ctx *ctx, carry_fp8_rows to, carry_tensor x) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, x.device));
    const int64_t vectors = x.shape[1] / ONCE;
    if (vectors > INT_MAX || x.shape[0] > INT_MAX || !is_aligned(x.data) || row_step(x) % ONCE != 0) {
        return carry_fail(ctx, CARRY_ESIZE, "a matrix of %lld x %lld with rows %lld apart is not rounded to 8 bits",
                          (long long)x.shape[0], (long long)x.shape[1], (long long)row_step(x));
    }
    if (x.shape[0] == 0) {
        return CARRY_OK;
    }
    const unsigned rows = (unsigned)x.shape[0];
    if (vectors <= 128 * KEPT) {
        fp8_rows_kernel<128>
            <<<rows, 128, 0, at.stream>>>(to.codes, to.scale, (const uint16_t *)x.data, row_step(x), (int)vectors);
    } else {
        fp8_rows_kernel<256>
            <<<rows, 256, 0, at.stream>>>(to.codes, to.scale, (const uint16_t *)x.data, row_step(x), (int)vectors);
    }
    return launched(ctx, at, "fp8_rows_round cannot be launched");
}

extern "C" carry_status carry_cuda_fp8_rows_affine(carry_ctx *ctx, carry_tensor y, carry_fp8_rows x, carry_fp8_rows W,
                                                   carry_tensor b, carry_activation activation, bool accumulate) {
    place at = {};
    carry_device_product p = {};
    const bool gelu = activation == CARRY_GELU;
    bool done = x.rows == 0;
    CARRY_TRY(open_place(ctx, &at, y.device));
    p.m = x.rows;
    p.n = W.rows;
    p.k = p.a_row = p.b_row = x.columns;
    p.count = 1;
    p.a = x.codes;
    p.b = W.codes;
    p.c = y.data;
    p.c_row = p.n;
    p.type = p.c_type = CARRY_BF16;
    p.b_transposed = true;
    p.accumulate = accumulate;
    p.a_scales = x.scale;
    p.b_scales = W.scale;
    p.row_scales = true;
    p.bias = b.data;
    p.gelu = gelu;
    p.ordinal = at.ordinal;
    p.stream = (carry_stream *)at.stream;
    CARRY_TRY(done ? CARRY_OK : carry_cuda_blaslt(ctx, &p, &done));
    if (done) {
        return CARRY_OK;
    }
    p.bias = NULL;
    p.gelu = false;
    CARRY_TRY(carry_cuda_blaslt(ctx, &p, &done));
    if (done) {
        CARRY_TRY(b.data != NULL ? carry_add_bias(ctx, y, b) : CARRY_OK);
        return gelu ? carry_activate(ctx, y, y, CARRY_GELU) : CARRY_OK;
    }
    fp8_rows_product_kernel<<<blocks_for(x.rows * W.rows, THREADS), THREADS, 0, at.stream>>>(
        (uint16_t *)y.data, x, W, (const uint16_t *)b.data, gelu, accumulate);
    return launched(ctx, at, "a product of 8-bit floats cannot be launched");
}
