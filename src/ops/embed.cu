/* Rows of a table by number on NVIDIA GPUs, and back.

   Backward, a block has 64 rows of the table and 128 columns. It looks through all ids, 1024 at a time, and lists those
   of its rows in the order of tokens; a warp takes every eighth row and adds the listed gradients in that order, the
   sum in registers, so that the sums are those of embed.c. Gradients of eight tokens are loaded before they are added:
   a token that is everywhere is one long sum, and waits for memory once for eight of them. */
#include <math.h>

#include "ops/nn.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int ROWS = 64, COLUMNS = 128;  /* of a block */
constexpr int EACH = COLUMNS / 32;       /* columns of a lane */
constexpr int IDS = 4, CHUNK = THREADS * IDS; /* ids of a thread, and of the block, at a time */
constexpr int AHEAD = 8;                 /* tokens whose gradients are loaded together */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    gather_kernel(row_of<T> y, mixed table, const int64_t *ids, int64_t tokens, int64_t n, int64_t vocabulary) {
    for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
        const int64_t id = ids[t];
        const bool known = id >= 0 && id < vocabulary;
        for (int64_t i = threadIdx.x; i < n; i += THREADS) {
            y.put(t * n + i, known ? table[id * n + i] : NAN);
        }
    }
}

/* Ids of this chunk that are in row0..end-1, in order: (token - first) * ROWS + id - row0. */
static __device__ __forceinline__ int list_ids(int *list, int *counts, const int64_t *ids, int64_t first, int64_t tokens,
                                               int64_t row0, int64_t end) {
    int found[IDS], count = 0;
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        const int64_t t = first + thread * IDS + i;
        const int64_t id = t < tokens ? ids[t] : -1;
        found[i] = id >= row0 && id < end ? (thread * IDS + i) * ROWS + (int)(id - row0) : -1;
        count += found[i] >= 0;
    }
    int before = count; /* over the lanes up to this one */
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, step);
        before += lane >= step ? other : 0;
    }
    __syncthreads(); /* the list and counts may still be read */
    if (lane == 31) {
        counts[warp] = before;
    }
    __syncthreads();
    int at = before - count, all = 0;
    for (int i = 0; i < WARPS; i++) {
        at += i < warp ? counts[i] : 0;
        all += counts[i];
    }
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        if (found[i] >= 0) {
            list[at++] = found[i];
        }
    }
    __syncthreads();
    return all;
}

/* The sum of the row at hand. */
struct open_row {
    int64_t row; /* -1: none */
    float sum[EACH];
};

static __device__ __forceinline__ void change_row(open_row &r, float *table, int64_t row, int64_t column, int64_t n) {
    if (r.row == row) {
        return;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int64_t at = column + j * 32;
        if (r.row >= 0 && at < n) {
            table[r.row * n + at] = r.sum[j];
        }
        r.sum[j] = row >= 0 && at < n ? table[row * n + at] : 0.0f;
    }
    r.row = row;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    scatter_kernel(float *table, row_of<T> dy, const int64_t *ids, int64_t tokens, int64_t n,
                   int64_t vocabulary) {
    __shared__ int list[CHUNK], counts[WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t row0 = (int64_t)blockIdx.x * ROWS, column = (int64_t)blockIdx.y * COLUMNS + lane;
    const int64_t end = row0 + ROWS < vocabulary ? row0 + ROWS : vocabulary;
    open_row r = {-1, {}};
    for (int64_t first = 0; first < tokens; first += CHUNK) {
        const int count = list_ids(list, counts, ids, first, tokens, row0, end);
        for (int base = 0; base < count; base += 32) {
            const int entry = base + lane < count ? list[base + lane] : 0;
            unsigned left = __ballot_sync(0xffffffffu, base + lane < count && entry % WARPS == warp);
            while (left != 0) {
                int mine[AHEAD];
                float d[AHEAD][EACH];
#pragma unroll
                for (int k = 0; k < AHEAD; k++) {
                    mine[k] = left != 0 ? __shfl_sync(0xffffffffu, entry, __ffs((int)left) - 1) : -1;
                    left &= left - 1; /* nothing is left of nothing */
#pragma unroll
                    for (int j = 0; j < EACH; j++) {
                        const int64_t at = (first + mine[k] / ROWS) * n + column + j * 32;
                        d[k][j] = mine[k] >= 0 && column + j * 32 < n ? dy.get(at) : 0.0f;
                    }
                }
#pragma unroll
                for (int k = 0; k < AHEAD; k++) {
                    if (mine[k] >= 0) {
                        change_row(r, table, row0 + mine[k] % ROWS, column, n);
#pragma unroll
                        for (int j = 0; j < EACH; j++) {
                            r.sum[j] += d[k][j];
                        }
                    }
                }
            }
        }
    }
    change_row(r, table, -1, column, n);
}

extern "C" carry_status carry_cuda_embed(carry_ctx *ctx, carry_tensor y, carry_tensor table, carry_tensor ids) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, y.device));
    if (carry_tensor_count(&y) == 0) {
        return CARRY_OK;
    }
    with_type(y.dtype, [&](auto type) {
        using T = decltype(type);
        gather_kernel<T><<<blocks_for(y.shape[0], 1), THREADS, 0, at.stream>>>(
            row<T>(y), mixed_of(table), (const int64_t *)ids.data, y.shape[0], y.shape[1], table.shape[0]);
    });
    return launched(ctx, at, "embed cannot be launched");
}

extern "C" carry_status carry_cuda_embed_backward(carry_ctx *ctx, carry_tensor dtable, carry_tensor dy,
                                                  carry_tensor ids) {
    place at = {};
    CARRY_TRY(open_place(ctx, &at, dy.device));
    const int64_t tokens = dy.shape[0], n = dy.shape[1], vocabulary = dtable.shape[0];
    if (tokens == 0 || n == 0 || vocabulary == 0) {
        return CARRY_OK;
    }
    const int64_t columns = (n + COLUMNS - 1) / COLUMNS;
    if (columns > 65535) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "embed_backward: rows of %lld elements on a GPU: %d at most",
                          (long long)n, 65535 * COLUMNS);
    }
    const dim3 grid((unsigned)((vocabulary + ROWS - 1) / ROWS), (unsigned)columns);
    with_type(dy.dtype, [&](auto type) {
        using T = decltype(type);
        scatter_kernel<T><<<grid, THREADS, 0, at.stream>>>((float *)dtable.data, row<T>(dy), (const int64_t *)ids.data,
                                                           tokens, n, vocabulary);
    });
    return launched(ctx, at, "embed_backward cannot be launched");
}
