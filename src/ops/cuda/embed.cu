/* Embedding on NVIDIA GPUs: gathers rows of a table by token id, and adds up their gradients.

   In the backward pass, a block handles 32 vectors of columns of every 256th row: the rows whose ids end in the eight
   bits of blockIdx.x. Neighbouring rows, which may all be frequent tokens, then belong to different blocks. The block
   goes through all ids and lists the tokens of its rows, in order. A warp takes every eighth of those rows, one after
   the other, and adds the listed gradients in that order, with the sum in registers: the sums have the same bits as
   those of embed.c. Gradients of AHEAD tokens are loaded before they are added, so that the loads of a very frequent
   token overlap. When the list is full it is processed, and later sums continue from the values in the table. */
#include <math.h>

#include "ops/cuda/quantised_linear.cuh"
#include "ops/cuda/wide.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int GROUPS = 256;                   /* blocks that share the rows of the table */
constexpr int IDS = 8, CHUNK = THREADS * IDS; /* ids of a thread, and of the block, at a time */
constexpr int LIST = 2 * CHUNK;               /* tokens; processed when another chunk may not fit */
constexpr int AHEAD = 16;                     /* tokens whose gradients are loaded together */

template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    gather_kernel(row_of<T> y, mixed table, const int64_t *ids, int64_t pieces, int64_t n, int64_t vocabulary) {
    const int64_t step = (int64_t)gridDim.x * THREADS, of_row = n / V;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < pieces; i += step) {
        const int64_t t = i / of_row, at = i % of_row * V, id = ids[t];
        several<T, V> to;
        if (id < 0 || id >= vocabulary) {
#pragma unroll
            for (int j = 0; j < V; j++) {
                to.value[j] = T::narrow(NAN);
            }
        } else if (V > 1 && table.type == CARRY_F32) {
            const several<type_f32, V> from = *(const several<type_f32, V> *)((const float *)table.data + id * n + at);
#pragma unroll
            for (int j = 0; j < V; j++) {
                to.value[j] = T::narrow(type_f32::widen(from.value[j]));
            }
        } else if (V > 1) { /* the table has y's type: copy */
            to = *(const several<T, V> *)((const typename T::stored *)table.data + id * n + at);
        } else {
            to.value[0] = T::narrow(table[id * n + at]);
        }
        *(several<T, V> *)(y.data + t * n + at) = to;
    }
}

/* A token whose row belongs to this block. */
struct entry {
    int token, row; /* row: index among the block's rows */
};

/* Appends the tokens of this chunk whose rows belong to this block, in order. */
static __device__ __forceinline__ int list_ids(entry *list, int listed, int *counts, const int64_t *ids, int64_t first,
                                               int64_t tokens, int64_t vocabulary) {
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32;
    int64_t id[IDS];
    int count = 0;
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        const int64_t t = first + thread * IDS + i;
        id[i] = t < tokens ? ids[t] : -1;
    }
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        const bool own = id[i] >= 0 && id[i] < vocabulary && (unsigned)id[i] % GROUPS == blockIdx.x;
        id[i] = own ? (int64_t)((uint64_t)id[i] / GROUPS) : -1;
        count += own;
    }
    int before = count; /* over the lanes up to and including this one */
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, step);
        before += lane >= step ? other : 0;
    }
    __syncthreads(); /* counts may still be read */
    if (lane == 31) {
        counts[warp] = before;
    }
    __syncthreads();
    int at = listed + before - count, all = listed;
    for (int i = 0; i < WARPS; i++) {
        at += i < warp ? counts[i] : 0;
        all += counts[i];
    }
#pragma unroll
    for (int i = 0; i < IDS; i++) {
        if (id[i] >= 0) {
            list[at++] = entry{(int)(first + thread * IDS + i), (int)id[i]};
        }
    }
    return all;
}

/* Adds the gradients of all listed tokens of one row; `begin` is the first entry of the row. Sets a bit in `done`, this
   warp's own bitmap of the list, for each of these entries. The whole warp calls this. */
template <typename T, int V>
static __device__ __forceinline__ void add_row(const entry *list, unsigned *done, int begin, int listed, int row,
                                               float *to, bool there, const typename T::stored *dy, int64_t n) {
    const int lane = (int)threadIdx.x % 32;
    float sum[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        sum[v] = there ? to[v] : 0.0f;
    }
    for (int base = begin / 32 * 32; base < listed; base += 32) {
        const entry e = base + lane < listed ? list[base + lane] : entry{0, -1};
        unsigned left = __ballot_sync(0xffffffffu, e.row == row);
        if (lane == 0) {
            done[base / 32] |= left;
        }
        while (left != 0) {
            several<T, V> d[AHEAD];
            const int count = __popc(left) < AHEAD ? __popc(left) : AHEAD;
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const int from = left != 0 ? __ffs((int)left) - 1 : 0;
                const int token = __shfl_sync(0xffffffffu, e.token, from);
                left &= left - 1; /* 0 stays 0 */
                if (k < count && there) {
                    d[k] = *(const several<T, V> *)(dy + token * n);
                }
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                if (k < count) {
#pragma unroll
                    for (int v = 0; v < V; v++) {
                        sum[v] += T::widen(d[k].value[v]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (there) {
            to[v] = sum[v];
        }
    }
}

/* Processes the list: this warp's rows, each at its first token. */
template <typename T, int V>
static __device__ __forceinline__ void add_listed(const entry *list, unsigned *done, int listed, float *table,
                                                  const typename T::stored *dy, int64_t n) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int i = lane; i * 32 < listed; i += 32) {
        done[i] = 0;
    }
    __syncwarp();
    const int64_t column = ((int64_t)blockIdx.y * 32 + lane) * V;
    const bool there = column < n;
    for (int base = 0; base < listed; base += 32) {
        while (true) {
            const int row = base + lane < listed ? list[base + lane].row : -1;
            const unsigned mine = __ballot_sync(0xffffffffu, row >= 0 && row % WARPS == warp) & ~done[base / 32];
            if (mine == 0) {
                break;
            }
            const int from = __ffs((int)mine) - 1;
            const int own = __shfl_sync(0xffffffffu, row, from);
            float *to = table + ((int64_t)own * GROUPS + blockIdx.x) * n + column;
            add_row<T, V>(list, done, base + from, listed, own, to, there, dy + column, n);
            __syncwarp();
        }
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    scatter_kernel(float *table, row_of<T> dy, const int64_t *ids, int64_t tokens, int64_t n, int64_t vocabulary) {
    __shared__ entry list[LIST];
    __shared__ int counts[WARPS];
    __shared__ unsigned done[WARPS][LIST / 32];
    int listed = 0;
    for (int64_t first = 0; first < tokens; first += CHUNK) {
        listed = list_ids(list, listed, counts, ids, first, tokens, vocabulary);
        if (listed > LIST - CHUNK || first + CHUNK >= tokens) {
            __syncthreads();
            add_listed<T, V>(list, done[threadIdx.x / 32], listed, table, dy.data, n);
            __syncthreads();
            listed = 0;
        }
    }
}

template <typename T, int V>
static void launch_gather(const place &at, const carry_tensor &y, const carry_tensor &table, const carry_tensor &ids) {
    const int64_t pieces = y.shape[0] * (y.shape[1] / V);
    gather_kernel<T, V><<<blocks_for(pieces, THREADS), THREADS, 0, at.stream>>>(
        row<T>(y), mixed_of(table), (const int64_t *)ids.data, pieces, y.shape[1], table.shape[0]);
}

extern "C" carry_status carry_cuda_embed(carry_ctx *ctx, carry_tensor y, carry_tensor table, carry_tensor ids) {
    if (table.dtype == CARRY_QUANTISED) {
        return quantised_embed(ctx, y, table, (const int64_t *)ids.data);
    }
    place at = {};
    CARRY_TRY(open_place(ctx, &at, y.device));
    if (carry_tensor_count(&y) == 0) {
        return CARRY_OK;
    }
    const bool wide = y.shape[1] % ONCE == 0 && is_aligned(y.data) && is_aligned(table.data);
    with_type(y.dtype, [&](auto type) {
        using T = decltype(type);
        if (wide) {
            launch_gather<T, ONCE>(at, y, table, ids);
        } else {
            launch_gather<T, 1>(at, y, table, ids);
        }
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
    const bool wide = n % ONCE == 0 && is_aligned(dy.data);
    const int64_t columns = 32 * (wide ? ONCE : 1), parts = (n + columns - 1) / columns;
    if (parts > 65535 || tokens >= INT32_MAX - CHUNK || vocabulary / GROUPS >= INT32_MAX) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "embed_backward of %lld tokens in rows of %lld elements on a GPU: 2^31 and %d at most",
                          (long long)tokens, (long long)n, 65535 * 32);
    }
    const dim3 grid((unsigned)(vocabulary < GROUPS ? vocabulary : GROUPS), (unsigned)parts);
    with_type(dy.dtype, [&](auto type) {
        using T = decltype(type);
        if (wide) {
            scatter_kernel<T, ONCE><<<grid, THREADS, 0, at.stream>>>((float *)dtable.data, row<T>(dy),
                                                                     (const int64_t *)ids.data, tokens, n, vocabulary);
        } else {
            scatter_kernel<T, 1><<<grid, THREADS, 0, at.stream>>>((float *)dtable.data, row<T>(dy),
                                                                  (const int64_t *)ids.data, tokens, n, vocabulary);
        }
    });
    return launched(ctx, at, "embed_backward cannot be launched");
}
