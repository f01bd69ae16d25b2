/* Products of rows with one weight per expert, all experts in one launch.

   Rows are sorted by expert, and only the device knows where an expert's rows begin. The grid has the largest
   possible number of tiles: one for each TILE rows, and one more for each expert, whose last tile may be partial. A
   block finds the expert of its tile by adding up the tiles of the experts before it; blocks without a tile end at
   once. For gradients of weights, a tile is a part of one expert's matrix and the sum runs over its rows, in order.

   Panels of k are loaded STAGES - 1 ahead. Hopper GPUs have their own kernels for 16-bit types (grouped_hopper.cu).
   Quantised experts: quantised_experts.cu, or here after decoding. */
#include "ops/cuda/grouped_modes.cuh"
#include "ops/cuda/panels.cuh"
#include "ops/cuda/quantised_linear.cuh"

namespace {

constexpr int STAGES = 3;
/* Quantised experts are decoded together up to this size: half of a layer of Qwen3.5-35B-A3B's shape. */
constexpr int64_t DECODED_EXPERTS_BYTES = (int64_t)1 << 29;

struct grouped_args {
    /* The product of one expert: pointers are to expert 0 or row 0, and m or k is unknown. */
    carry_device_product p;
    const int64_t *offsets;
    int64_t experts, next; /* elements from matrix to matrix */
    int64_t mean_rows;     /* of an expert */
    int64_t row_tiles, column_tiles;
    bool a_by_16, b_by_16, c_by_pair;
};

/* Finds the product of this block's expert, and its tile's first row and column. Returns false if there is no tile. */
template <typename T, int TILE, int MODE>
__device__ __forceinline__ bool find_product(const grouped_args &g, carry_device_product *p, int64_t *row,
                                             int64_t *column) {
    typedef typename T::stored E;
    int64_t tile = (int64_t)blockIdx.x / g.column_tiles;
    int64_t expert = tile / (g.row_tiles > 0 ? g.row_tiles : 1);
    *column = (int64_t)blockIdx.x % g.column_tiles * TILE;
    if (MODE == WEIGHT_GRADIENT) {
        tile %= g.row_tiles;
    } else if (!find_tile<TILE>(g.offsets, g.experts, tile, &expert, &tile)) {
        return false;
    }
    const int64_t first = g.offsets[expert], count = g.offsets[expert + 1] - first;
    *row = tile * TILE;
    *p = g.p;
    p->a = (const E *)g.p.a + first * g.p.a_row;
    if (MODE == WEIGHT_GRADIENT) {
        p->k = count;
        p->b = (const E *)g.p.b + first * g.p.b_row;
        p->c = (float *)g.p.c + expert * g.next;
        return count > 0;
    }
    p->m = count;
    p->b = (const E *)g.p.b + expert * g.next;
    p->c = (E *)g.p.c + first * g.p.c_row;
    return true;
}

template <typename T, int TILE, int MODE>
__global__ void __launch_bounds__(PANEL_THREADS) grouped_kernel(const __grid_constant__ grouped_args g) {
    typedef typename T::stored E;
    typedef cut<T, TILE> C;
    constexpr bool A_TURNED = MODE == WEIGHT_GRADIENT, B_TURNED = MODE != FORWARD; /* rows run across k */
    constexpr int A_STRIDE = A_TURNED ? C::ACROSS : C::ALONG, B_STRIDE = B_TURNED ? C::ACROSS : C::ALONG;
    extern __shared__ uint4 shared_memory[];
    E *panels = (E *)shared_memory;
    carry_device_product p;
    int64_t row0 = 0, column0 = 0;
    if (!find_product<T, TILE, MODE>(g, &p, &row0, &column0)) {
        return;
    }
    const int thread = (int)threadIdx.x, lane = thread % 32;
    const int warp_row = thread / 32 / C::SIDE * C::WARP, warp_column = thread / 32 % C::SIDE * C::WARP;
    const int64_t steps = (p.k + depth<T>::PANEL - 1) / depth<T>::PANEL;
    float sum[C::WARP / 16][C::WARP / 8][4] = {};
    auto load = [&](int64_t i) {
        if (i < steps) {
            E *a = panels + i % STAGES * 2 * C::SIZE;
            load_operand<T, TILE>(a, p.a, p.a_row, A_TURNED, row0, p.m, i * depth<T>::PANEL, p.k, g.a_by_16, thread);
            load_operand<T, TILE>(a + C::SIZE, p.b, p.b_row, B_TURNED, column0, p.n, i * depth<T>::PANEL, p.k,
                                  g.b_by_16, thread);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int i = 0; i < STAGES - 1; i++) {
        load(i);
    }
    for (int64_t i = 0; i < steps; i++) {
        asm volatile("cp.async.wait_group 1;" ::: "memory"); /* STAGES - 2 */
        __syncthreads();
        load(i + STAGES - 1); /* into the memory of panel i - 1, which all warps have read */
        const E *a = panels + i % STAGES * 2 * C::SIZE, *b = a + C::SIZE;
        const int there = at_most(p.k - i * depth<T>::PANEL, depth<T>::PANEL);
        for (int k = 0; k < there; k += depth<T>::STEP) {
            step(T{}, sum, a + (A_TURNED ? k * A_STRIDE + warp_row : warp_row * A_STRIDE + k), A_STRIDE, A_TURNED,
                 b + (B_TURNED ? k * B_STRIDE + warp_column : warp_column * B_STRIDE + k), B_STRIDE, !B_TURNED, lane);
        }
    }
    store<T>(p, sum, 0, row0 + warp_row, column0 + warp_column, g.c_by_pair, lane);
}

bool multiples_of(const void *data, int64_t row, int64_t next, size_t size, size_t of) {
    return (uintptr_t)data % of == 0 && row * (int64_t)size % (int64_t)of == 0 &&
           next * (int64_t)size % (int64_t)of == 0;
}

template <typename T, int TILE, int MODE> cudaError_t launch(grouped_args g, int64_t rows, cudaStream_t stream) {
    const size_t bytes = STAGES * 2 * sizeof(typename T::stored) * cut<T, TILE>::SIZE;
    g.column_tiles = (g.p.n + TILE - 1) / TILE;
    g.row_tiles = MODE == WEIGHT_GRADIENT ? (g.p.m + TILE - 1) / TILE : 0;
    const int64_t tiles = MODE == WEIGHT_GRADIENT ? g.row_tiles * g.experts : rows / TILE + g.experts;
    cudaError_t error =
        cudaFuncSetAttribute(grouped_kernel<T, TILE, MODE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error == cudaSuccess && tiles * g.column_tiles > 0) {
        grouped_kernel<T, TILE, MODE><<<(unsigned)(tiles * g.column_tiles), PANEL_THREADS, bytes, stream>>>(g);
        error = cudaGetLastError();
    }
    return error;
}

/* Uses tiles of 128 if experts have that many rows and registers suffice. */
template <typename T, int MODE> cudaError_t launch_tiles(const grouped_args &g, int64_t rows, cudaStream_t stream) {
    if constexpr (sizeof(typename T::stored) == 2) {
        const int64_t side = MODE == WEIGHT_GRADIENT ? g.p.m : g.mean_rows;
        if (side >= 96 && g.p.n >= 96) {
            return launch<T, 128, MODE>(g, rows, stream);
        }
    }
    return launch<T, 64, MODE>(g, rows, stream);
}

carry_status expect_one_type(carry_ctx *ctx, const carry_tensor &x, const carry_tensor &W) {
    return W.dtype == x.dtype
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EDTYPE, "experts of type %s and rows of type %s: one type is needed on a GPU",
                            carry_dtype_name(W.dtype), carry_dtype_name(x.dtype));
}

int64_t mean_of(const carry_tensor &x, const carry_tensor &offsets) {
    return offsets.shape[0] > 1 ? x.shape[0] / (offsets.shape[0] - 1) : 0;
}

template <int MODE>
carry_status run(carry_ctx *ctx, const carry_tensor &a, const carry_tensor &b, const carry_tensor &c,
                 const carry_tensor &offsets, int64_t rows, int64_t mean_rows, bool accumulate) {
    place at = {};
    bool done = false;
    CARRY_TRY(open_place(ctx, &at, a.device));
    const carry_tensor &matrices = MODE == WEIGHT_GRADIENT ? c : b;
    const size_t size = carry_dtype_size(a.dtype), c_size = carry_dtype_size(c.dtype);
    grouped_args g = {};
    g.p.a = a.data;
    g.p.b = b.data;
    g.p.c = c.data;
    g.p.a_row = row_step(a);
    g.p.b_row = MODE == WEIGHT_GRADIENT ? row_step(b) : b.shape[2];
    g.p.c_row = MODE == WEIGHT_GRADIENT ? c.shape[2] : row_step(c);
    g.p.m = MODE == WEIGHT_GRADIENT ? a.shape[1] : 0;
    g.p.n = MODE == FORWARD ? b.shape[1] : MODE == INPUT_GRADIENT ? b.shape[2] : b.shape[1];
    g.p.k = MODE == WEIGHT_GRADIENT ? 0 : a.shape[1];
    g.p.c_type = c.dtype;
    g.p.accumulate = accumulate;
    g.offsets = (const int64_t *)offsets.data;
    g.experts = offsets.shape[0] - 1;
    g.next = matrices.stride[0];
    g.mean_rows = mean_rows;
    g.a_by_16 = multiples_of(a.data, g.p.a_row, 0, size, 16);
    g.b_by_16 = multiples_of(b.data, g.p.b_row, MODE == WEIGHT_GRADIENT ? 0 : g.next, size, 16);
    g.c_by_pair =
        !accumulate && multiples_of(c.data, g.p.c_row, MODE == WEIGHT_GRADIENT ? g.next : 0, c_size, 2 * c_size);
    if (a.dtype != CARRY_F32) {
        const grouped_job job = {a.data, b.data, c.data,    g.offsets, g.experts, rows,       g.next,   g.p.m,
                                 g.p.n,  g.p.k,  g.p.a_row, g.p.b_row, g.p.c_row, accumulate, mean_rows};
        CARRY_TRY(a.dtype == CARRY_BF16 ? carry_grouped_hopper_bf16(ctx, job, (grouped_mode)MODE, at, &done)
                                        : carry_grouped_hopper_f16(ctx, job, (grouped_mode)MODE, at, &done));
    }
    if (done) {
        return CARRY_OK;
    }
    const cudaError_t error =
        with_type(a.dtype, [&](auto type) { return launch_tiles<decltype(type), MODE>(g, rows, at.stream); });
    return error == cudaSuccess ? CARRY_OK
                                : carry_cuda_failed(ctx, error, "products of experts cannot be launched", at.ordinal);
}

} // namespace

/* Decodes some experts at a time into a buffer, and multiplies with them. */
static carry_status by_decoding(carry_ctx *ctx, const carry_tensor &y, const carry_tensor &x, const carry_tensor &W,
                                const carry_tensor &offsets) {
    const int64_t experts = W.shape[0], size = W.shape[1] * W.shape[2] * (int64_t)carry_dtype_size(x.dtype);
    const int64_t most = DECODED_EXPERTS_BYTES / (size + 1) + 1, each = most < experts ? most : experts;
    place at = {};
    void *decoded = NULL;
    CARRY_TRY(open_place(ctx, &at, x.device));
    CARRY_TRY(carry_cuda_alloc_on(ctx, &decoded, at.ordinal, (size_t)each * (size_t)size, (carry_stream *)at.stream));
    carry_status status = CARRY_OK;
    for (int64_t first = 0, some; status == CARRY_OK && first < experts; first += some) {
        some = experts - first < each ? experts - first : each;
        const int64_t shape[] = {some, W.shape[1], W.shape[2]};
        status = quantised_experts_decoded(ctx, at, decoded, x.dtype, W, first, some);
        status = status == CARRY_OK
                     ? run<FORWARD>(ctx, x, carry_view_on(x.device, decoded, x.dtype, 3, shape), y,
                                    carry_slice(offsets, first, some + 1), x.shape[0], x.shape[0] / experts, false)
                     : status;
    }
    carry_cuda_free_on(ctx, at.ordinal, decoded, (carry_stream *)at.stream);
    return status;
}

extern "C" carry_status carry_cuda_grouped_linear(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor W,
                                                  carry_tensor offsets) {
    if (W.dtype == CARRY_QUANTISED) {
        bool done = x.shape[0] < 1 || W.shape[0] < 1 || W.shape[1] < 1;
        CARRY_TRY(done ? CARRY_OK : quantised_experts_by_tiles(ctx, y, x, W, offsets, &done));
        return done ? CARRY_OK : by_decoding(ctx, y, x, W, offsets);
    }
    CARRY_TRY(expect_one_type(ctx, x, W));
    return run<FORWARD>(ctx, x, W, y, offsets, x.shape[0], mean_of(x, offsets), false);
}

extern "C" carry_status carry_cuda_grouped_linear_backward(carry_ctx *ctx, carry_tensor dx, carry_tensor dW,
                                                           carry_tensor dy, carry_tensor x, carry_tensor W,
                                                           carry_tensor offsets, bool accumulate) {
    CARRY_TRY(expect_one_type(ctx, x, W));
    const int64_t mean_rows = mean_of(x, offsets);
    if (dx.data != NULL) {
        CARRY_TRY(run<INPUT_GRADIENT>(ctx, dy, W, dx, offsets, x.shape[0], mean_rows, accumulate));
    }
    return dW.data != NULL ? run<WEIGHT_GRADIENT>(ctx, dy, x, dW, offsets, x.shape[0], mean_rows, true) : CARRY_OK;
}
