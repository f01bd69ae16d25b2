/* Linear layers on NVIDIA GPUs: through cuBLASLt or the tensor cores (matmul.cu) if activations and weights have one
   type. f32 weights with 16-bit activations use a plain kernel that widens both, which is correct but slow; callers
   should keep a copy of the weights in the activations' type. Quantised weights: quantised.cu. */
#include "ops/cuda/linear.cuh"
#include "ops/cuda/quantised_linear.cuh"

constexpr int TILE = 32, LINES = 8; /* tile of c; a thread computes TILE / LINES elements of a column */

static __device__ __forceinline__ float element(const mixed &from, bool turned, int64_t row, int64_t i, int64_t l) {
    return from[turned ? l * row + i : i * row + l];
}

template <typename C>
__global__ void __launch_bounds__(TILE *LINES)
    mixed_kernel(row_of<C> c, mixed a, mixed b, int64_t m, int64_t n, int64_t k, int64_t a_row, int64_t b_row,
                 bool a_turned, bool b_turned, int64_t c_row, bool accumulate) {
    __shared__ float of_a[TILE][TILE + 1], of_b[TILE][TILE + 1];
    const int64_t row0 = (int64_t)blockIdx.y * TILE, column0 = (int64_t)blockIdx.x * TILE;
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    float sum[TILE / LINES] = {};
    for (int64_t k0 = 0; k0 < k; k0 += TILE) {
#pragma unroll
        for (int i = y; i < TILE; i += LINES) { /* neighbouring threads read neighbouring elements, along k or across */
            const int64_t ai = row0 + (a_turned ? x : i), al = k0 + (a_turned ? i : x);
            const int64_t bl = k0 + (b_turned ? x : i), bj = column0 + (b_turned ? i : x);
            const float from_a = ai < m && al < k ? element(a, a_turned, a_row, ai, al) : 0.0f;
            const float from_b = bl < k && bj < n ? element(b, b_turned, b_row, bl, bj) : 0.0f;
            of_a[a_turned ? x : i][a_turned ? i : x] = from_a;
            of_b[b_turned ? x : i][b_turned ? i : x] = from_b;
        }
        __syncthreads();
#pragma unroll 8
        for (int l = 0; l < TILE; l++) {
#pragma unroll
            for (int i = 0; i < TILE / LINES; i++) {
                sum[i] = fmaf(of_a[y + i * LINES][l], of_b[l][x], sum[i]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TILE / LINES; i++) {
        const int64_t r = row0 + y + i * LINES;
        if (r < m && column0 + x < n) {
            const int64_t at = r * c_row + column0 + x;
            c.put(at, accumulate ? c.get(at) + sum[i] : sum[i]);
        }
    }
}

carry_status multiply(carry_ctx *ctx, int device, void *c, carry_dtype c_type, int64_t m, int64_t n, int64_t k,
                      matrix a, matrix b, bool accumulate) {
    return multiply_into(ctx, device, matrix{c, c_type, n, false}, m, n, k, a, b, accumulate ? c : NULL);
}

static carry_status copy_base(carry_ctx *ctx, const place &at, const matrix &c, const void *from, int64_t m) {
    const int ordinal = at.ordinal;
    if (from != NULL && from != c.data) {
        CARRY_CUDA_TRY(cudaMemcpyAsync((void *)c.data, from, (size_t)(m * c.row) * carry_dtype_size(c.type),
                                       cudaMemcpyDeviceToDevice, at.stream),
                       "what a product is added to cannot be copied");
    }
    return CARRY_OK;
}

carry_status multiply_into(carry_ctx *ctx, int device, matrix c, int64_t m, int64_t n, int64_t k, matrix a, matrix b,
                           const void *base) {
    const carry_dtype c_type = c.type;
    place at = {};
    CARRY_TRY(open_place(ctx, &at, device));
    if (m < 1 || n < 1) {
        return CARRY_OK;
    }
    if (a.type == b.type && (c_type == CARRY_F32 || c_type == a.type)) {
        carry_device_product p = {};
        p.m = m;
        p.n = n;
        p.k = k;
        p.count = 1;
        p.a = a.data;
        p.b = b.data;
        p.c = (void *)c.data;
        p.base = base;
        p.a_row = a.row;
        p.b_row = b.row;
        p.c_row = c.row;
        p.type = a.type;
        p.c_type = c_type;
        p.a_transposed = a.transposed;
        p.b_transposed = b.transposed;
        p.accumulate = base != NULL;
        p.ordinal = at.ordinal;
        p.stream = (carry_stream *)at.stream;
        return carry_cuda_product(ctx, &p, NULL);
    }
    const int64_t rows = (m + TILE - 1) / TILE, columns = (n + TILE - 1) / TILE;
    if (rows > 65535 || columns > INT32_MAX) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "a product of %s with %s of %lld x %lld on a GPU: at most %d rows, or both of one type",
                          carry_dtype_name(a.type), carry_dtype_name(b.type), (long long)m, (long long)n, 65535 * TILE);
    }
    CARRY_TRY(copy_base(ctx, at, c, base, m));
    with_type(c_type, [&](auto type) {
        using C = decltype(type);
        mixed_kernel<C><<<dim3((unsigned)columns, (unsigned)rows), dim3(TILE, LINES), 0, at.stream>>>(
            row_of<C>{(typename C::stored *)c.data}, mixed{a.data, (int)a.type}, mixed{b.data, (int)b.type}, m, n, k,
            a.row, b.row, a.transposed, b.transposed, c.row, base != NULL);
    });
    return launched(ctx, at, "a product of two types cannot be launched");
}

/* The row stride may be larger than the row. */
static matrix matrix_of(const carry_tensor &tensor, bool transposed) {
    return matrix{tensor.data, tensor.dtype, tensor.shape[0] > 1 ? tensor.stride[0] : tensor.shape[1], transposed};
}

extern "C" carry_status carry_cuda_linear(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W,
                                          bool accumulate) {
    if (W.dtype == CARRY_QUANTISED) {
        return quantised_linear(ctx, x.device, matrix_of(y, false), x.shape[0], matrix_of(x, false), W,
                                accumulate ? y.data : NULL);
    }
    return multiply(ctx, x.device, y.data, y.dtype, x.shape[0], y.shape[1], x.shape[1], matrix_of(x, false),
                    matrix_of(W, true), accumulate);
}

extern "C" carry_status carry_cuda_linear_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dW, carry_tensor dy,
                                                   carry_tensor x, carry_tensor W, bool accumulate) {
    if (dx.data != NULL) {
        CARRY_TRY(multiply(ctx, dy.device, dx.data, dx.dtype, x.shape[0], x.shape[1], dy.shape[1], matrix_of(dy, false),
                           matrix_of(W, false), accumulate));
    }
    if (dW.data != NULL) {
        CARRY_TRY(multiply(ctx, dy.device, dW.data, CARRY_F32, W.shape[0], W.shape[1], x.shape[0], matrix_of(dy, true),
                           matrix_of(x, false), true));
    }
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_linear_add(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W,
                                              carry_tensor base) {
    if (W.dtype == CARRY_QUANTISED) {
        return quantised_linear(ctx, x.device, matrix_of(y, false), x.shape[0], matrix_of(x, false), W, base.data);
    }
    return multiply_into(ctx, x.device, matrix_of(y, false), x.shape[0], y.shape[1], x.shape[1], matrix_of(x, false),
                         matrix_of(W, true), base.data);
}

static bool follows(const carry_tensor &a, int64_t elements, const carry_tensor &b) {
    return (const char *)a.data + elements * (int64_t)carry_dtype_size(a.dtype) == b.data && a.dtype == b.dtype;
}

/* The number of maps from `first` on that are adjacent: in columns of y (or dy), rows of W, and of dW if wanted. */
static int side_by_side(const carry_tensor *y, const carry_tensor *W, const carry_tensor *dW, int first, int maps) {
    int i = first + 1;
    for (; i < maps; i++) {
        const carry_tensor &before = y[i - 1];
        if (before.stride[0] != y[i].stride[0] || !follows(before, before.shape[1], y[i]) ||
            !follows(W[i - 1], W[i - 1].shape[0] * W[i - 1].shape[1], W[i]) ||
            (dW != NULL && !follows(dW[i - 1], dW[i - 1].shape[0] * dW[i - 1].shape[1], dW[i]))) {
            break;
        }
    }
    return i - first;
}

static carry_tensor joined(const carry_tensor *parts, int count, int along) {
    carry_tensor all = parts[0];
    for (int i = 1; i < count; i++) {
        all.shape[along] += parts[i].shape[along];
    }
    return all;
}

/* Maps from `first` on whose weights are quantised, if they are faster together; *count: their number. */
static carry_status quantised_together(carry_ctx *ctx, const carry_merged_linear_args *args, int first, int *count) {
    matrix y[CARRY_MAX_MERGED_MAPS];
    int maps = 0;
    for (int i = first; i < args->maps && args->W[i].dtype == CARRY_QUANTISED; i++) {
        y[maps++] = matrix_of(args->y[i], false);
    }
    return quantised_linears(ctx, args->x.device, y, args->x.shape[0], matrix_of(args->x, false), args->W + first, maps,
                             count);
}

extern "C" carry_status carry_cuda_merged_linear(carry_ctx *ctx, const carry_merged_linear_args *args) {
    for (int first = 0, count; first < args->maps; first += count) {
        if (args->W[first].dtype == CARRY_QUANTISED) {
            CARRY_TRY(quantised_together(ctx, args, first, &count));
            if (count > 0) {
                continue;
            }
            count = 1;
            CARRY_TRY(quantised_linear(ctx, args->x.device, matrix_of(args->y[first], false), args->x.shape[0],
                                       matrix_of(args->x, false), args->W[first], NULL));
            continue;
        }
        count = side_by_side(args->y, args->W, NULL, first, args->maps);
        const carry_tensor y = joined(args->y + first, count, 1), W = joined(args->W + first, count, 0);
        CARRY_TRY(multiply_into(ctx, args->x.device, matrix_of(y, false), y.shape[0], y.shape[1], args->x.shape[1],
                                matrix_of(args->x, false), matrix_of(W, true), NULL));
    }
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_merged_linear_backward(carry_ctx *ctx,
                                                          const carry_merged_linear_backward_args *args) {
    const bool weights = args->maps > 0 && args->dW[0].data != NULL;
    bool accumulate = args->accumulate;
    for (int first = 0, count; first < args->maps; first += count) {
        count = side_by_side(args->dy, args->W, weights ? args->dW : NULL, first, args->maps);
        const carry_tensor dy = joined(args->dy + first, count, 1), W = joined(args->W + first, count, 0);
        const carry_tensor dW = joined(args->dW + first, count, 0);
        CARRY_TRY(carry_cuda_linear_backward(ctx, args->dx, dW, dy, args->x, W, accumulate));
        accumulate = true;
    }
    return CARRY_OK;
}
