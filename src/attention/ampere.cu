/* Attention on GPUs since Ampere: one block of eight warps on each multiprocessor, with 16 queries in the registers of
   each warp. Keys and values of the next tile are copied asynchronously to shared memory while the current one is
   computed.

   Rows in shared memory are contiguous, D elements each, and 16-byte piece c of row r is at c ^ (r % 8). So the eight
   rows that the tensor cores' loads read at once are in different banks. */
#include "device/cuda.h"

#include "attention/rows.cuh"
#include "attention/tensor_cores.cuh"

namespace {

constexpr int WARPS = CARRY_ATTENTION_ROWS / 16;
constexpr int COLUMNS = 64;

template <int D> constexpr int TILE_BYTES = COLUMNS *D * 2;
template <int D> constexpr int SHARED_BYTES = 4 * TILE_BYTES<D>; /* keys and values of this tile and the next */

template <int D> __device__ __forceinline__ uint32_t place(uint32_t tile, int row, int piece) {
    return tile + (uint32_t)(row * D * 2 + (piece ^ (row % 8)) * 16);
}

/* Copies the rows of a tile. Rows past the end of the run are zeros. */
template <int D>
__device__ __forceinline__ void copy_rows(uint32_t to, const attention_rows &from, const attention_cursor &at,
                                          int head) {
    constexpr int PIECES = D / 8;
#pragma unroll
    for (int i = (int)threadIdx.x; i < COLUMNS * PIECES; i += 32 * WARPS) {
        int row = i / PIECES, piece = i % PIECES;
        int bytes = row < at.left ? 16 : 0;
        const uint16_t *source = from.data + (at.row + (bytes > 0 ? row : 0)) * from.row + head * from.head + 8 * piece;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place<D>(to, row, piece)), "l"(source),
                     "r"(bytes));
    }
}

template <int D>
__device__ __forceinline__ void load_queries(uint32_t (&q)[D / 4], const attention_job &job,
                                             const attention_item &item) {
    int lane = (int)threadIdx.x % 32;
    int first = item.row + (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    /* For each 16 columns: rows g and g + 8 of the lower 8 columns, then of the upper 8. */
    for (int i = 0; i < D / 4; i++) {
        int row = first + i % 2 * 8;
        int column = i / 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2;
        const uint16_t *from = job.q.data + row * job.q.row + item.head * job.q.head + column;
        q[i] = row < job.queries ? *(const uint32_t *)from : 0u;
    }
}

template <int D>
__device__ __forceinline__ void scores(float (&s)[COLUMNS / 2], const uint32_t (&q)[D / 4], uint32_t keys) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
        s[4 * n] = s[4 * n + 1] = s[4 * n + 2] = s[4 * n + 3] = 0.0f;
#pragma unroll
        for (int k = 0; k < D / 32; k++) {
            uint32_t b[4];
            load_matrices<false>(b, place<D>(keys, 8 * n + lane % 8, 4 * k + lane / 8));
            multiply(s + 4 * n, q + 8 * k, b[0], b[1]);
            multiply(s + 4 * n, q + 8 * k + 4, b[2], b[3]);
        }
    }
}

template <int D>
__device__ __forceinline__ void weighted(float (&o)[D / 2], const uint32_t (&w)[COLUMNS / 4], uint32_t values) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; k++) {
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_matrices<true>(b, place<D>(values, 16 * k + lane % 16, 2 * n + lane / 16));
            multiply(o + 8 * n, w + 4 * k, b[0], b[1]);
            multiply(o + 8 * n + 4, w + 4 * k, b[2], b[3]);
        }
    }
}

template <int D>
__device__ __forceinline__ void compute_item(const attention_job &job, const attention_item &item, uint32_t shared,
                                             float (&o)[D / 2], softmax_state &state) {
    uint32_t q[D / 4], w[COLUMNS / 4];
    float s[COLUMNS / 2], factor[2];
    attention_cursor at = cursor_at(job, item.from), ahead = at;
    auto copy = [&](int tile) {
        uint32_t to = shared + (uint32_t)((tile - item.from) % 2 * 2 * TILE_BYTES<D>);
        copy_rows<D>(to, job.k, ahead, item.head);
        copy_rows<D>(to + TILE_BYTES<D>, job.v, ahead, item.head);
        next_tile(job, &ahead, COLUMNS);
    };
    copy(item.from);
    asm volatile("cp.async.commit_group;");
    load_queries<D>(q, job, item);
    for (int tile = item.from; tile < item.to; tile++) {
        uint32_t keys = shared + (uint32_t)((tile - item.from) % 2 * 2 * TILE_BYTES<D>);
        if (tile + 1 < item.to) {
            copy(tile + 1);
        }
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        scores<D>(s, q, keys);
        if (at.left < COLUMNS) {
            mask(s, at.left);
        }
        if (exponentials(s, state, factor, job.scale, job.run[at.run].bias)) {
            scale_rows(o, factor);
        }
        pack<COLUMNS / 2>(w, s);
        weighted<D>(o, w, keys + TILE_BYTES<D>);
        next_tile(job, &at, COLUMNS);
        __syncthreads(); /* before the next copy overwrites this tile */
    }
    add_columns(state);
}

template <int D>
__global__ void __launch_bounds__(32 * WARPS, 1) attention_ampere(const __grid_constant__ attention_job job) {
    extern __shared__ uint4 memory[];
    uint32_t shared = (uint32_t)__cvta_generic_to_shared(memory);
    int items = job.cut.whole + job.cut.rest * job.cut.pieces;
    for (int index = (int)blockIdx.x; index < items; index += (int)gridDim.x) {
        attention_item item = item_of(job.cut, index);
        float o[D / 2] = {};
        softmax_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
        if (item.from < item.to) {
            compute_item<D>(job, item, shared, o, state);
        }
        store<D>(job, item, (int)threadIdx.x / 32, o, state);
    }
}

bool works(int ordinal) {
    int major = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    return major >= 8;
}

int columns(const attention_job *, int) {
    return COLUMNS;
}

template <int D>
carry_status launch_with(carry_ctx *ctx, const attention_job *job, int blocks, int ordinal, cudaStream_t stream) {
    CARRY_CUDA_TRY(
        cudaFuncSetAttribute(attention_ampere<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES<D>),
        "no shared memory for attention");
    attention_ampere<D><<<(unsigned)blocks, 32 * WARPS, SHARED_BYTES<D>, stream>>>(*job);
    CARRY_CUDA_TRY(cudaGetLastError(), "attention could not be launched");
    return CARRY_OK;
}

carry_status launch(carry_ctx *ctx, const attention_job *job, int D, int blocks, int ordinal, cudaStream_t stream) {
    return D == 128 ? launch_with<128>(ctx, job, blocks, ordinal, stream)
                    : launch_with<64>(ctx, job, blocks, ordinal, stream);
}

} // namespace

const attention_way carry_attention_ampere = {"ampere", works, columns, launch};
