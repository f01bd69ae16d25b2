/* Products of many rows with one weight per expert on Hopper GPUs: tiles of 128 x 256, panels of 64 along k.

   Copies from the L2 cache to the multiprocessors limit these products: a tile of 128 x 256 reads a quarter less
   than two of 128 x 128. A block stays on its multiprocessor and takes every gridDim.x-th tile. One thread copies
   panels STAGES ahead, including those of the next tile; two warpgroups multiply, each 64 rows, and store their
   rows. Rows past an expert's last belong to the next expert: their results are not stored, and bands of 64 such
   rows are not copied. */
#ifdef CARRY_INSTANCE_F16
#define GROUPED_WIDE carry_grouped_wide_f16
#else
#define GROUPED_WIDE carry_grouped_wide_bf16
#endif

#include "ops/cuda/grouped_hopper.cuh"

namespace {

constexpr int GROUPS = 2, ROWS = 64 * GROUPS, COLUMNS = 256, STAGES = 4;
constexpr int STAGE = (GROUPS + COLUMNS / 64) * BAND;
constexpr int MULTIPLY = 128 * GROUPS, COUNT = MULTIPLY + 128;
constexpr int CHUNK = 64, OUT_ROW = CHUNK + 8; /* columns stored at once, and their row in shared memory */
constexpr int OUT = 16 * OUT_ROW;              /* elements of a warp */
constexpr int MOST_EXPERTS = 1024;
constexpr int AT_OUT = STAGES * STAGE, AT_BARRIERS = AT_OUT + GROUPS * 4 * OUT * 2;
constexpr int AT_STARTS = AT_BARRIERS + 64, SHARED = AT_STARTS + (MOST_EXPERTS + 1) * 4 + 1024;

struct wide_maps {
    CUtensorMap a, b;
    grouped_job job;
    int column_tiles;
};

struct wide_tile {
    int64_t first; /* row, counted over all experts */
    int expert, rows, column;
};

/* One warp computes the first tile of each expert, and the total number. */
__device__ __forceinline__ void find_starts(const grouped_job &job, int *starts) {
    const int lane = (int)threadIdx.x % 32, experts = (int)job.experts, each = (experts + 31) / 32;
    const int first = min(lane * each, experts), end = min(first + each, experts);
    int own = 0;
    for (int e = first; e < end; e++) {
        own += (int)((job.offsets[e + 1] - job.offsets[e] + ROWS - 1) / ROWS);
    }
    int sum = own;
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= (int)step ? other : 0;
    }
    int at = sum - own;
    for (int e = first; e < end; e++) {
        starts[e] = at;
        at += (int)((job.offsets[e + 1] - job.offsets[e] + ROWS - 1) / ROWS);
    }
    if (lane == 31) {
        starts[experts] = sum;
    }
}

__device__ __forceinline__ wide_tile tile_of(const wide_maps &m, const int *starts, int index) {
    const int row_tile = index / m.column_tiles;
    int low = 0, high = (int)m.job.experts; /* starts[low] <= row_tile < starts[high] */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (starts[middle] <= row_tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const int64_t begin = m.job.offsets[low] + (int64_t)(row_tile - starts[low]) * ROWS;
    const int64_t rest = m.job.offsets[low + 1] - begin;
    return {begin, low, (int)(rest < ROWS ? rest : ROWS), index % m.column_tiles * COLUMNS};
}

template <int MODE>
__device__ __forceinline__ void bring(const wide_maps &m, const int *starts, uint32_t stages, const barriers &bars,
                                      int tiles, int panels) {
    int number = 0;
    for (int index = (int)blockIdx.x; index < tiles; index += (int)gridDim.x) {
        const wide_tile t = tile_of(m, starts, index);
        const int bands = (t.rows + 63) / 64;
        for (int i = 0; i < panels; i++, number++) {
            const int stage = number % STAGES;
            const uint32_t a = stages + stage * STAGE, b = a + GROUPS * BAND, full = bars.full(stage);
            const int64_t k = (int64_t)i * PANEL;
            barrier_wait(bars.empty(stage), (number / STAGES + 1) % 2);
            barrier_expect(full, (bands + COLUMNS / 64) * BAND);
            for (int band = 0; band < bands; band++) {
                copy_box(a + band * BAND, &m.a, k, t.first + 64 * band, 0, full);
            }
            if (MODE == FORWARD) {
                copy_box(b, &m.b, k, t.column, t.expert, full);
            } else {
                for (int band = 0; band < COLUMNS / 64; band++) {
                    copy_box(b + band * BAND, &m.b, t.column + 64 * band, k, t.expert, full);
                }
            }
        }
    }
}

/* Moves the rows of a warp, at most 16, and CHUNK columns between its part of shared memory and c, in pieces of 16
   bytes. */
template <bool INTO_C>
__device__ __forceinline__ void move_rows(uint16_t *out, uint16_t *c, int64_t c_row, int rows, int64_t columns) {
    for (int i = (int)threadIdx.x % 32; i < 16 * (CHUNK / 8); i += 32) {
        const int row = i / (CHUNK / 8), column = i % (CHUNK / 8) * 8;
        if (row < rows && column < columns) {
            uint4 *shared = (uint4 *)&out[row * OUT_ROW + column];
            uint4 *global = (uint4 *)&c[row * c_row + column];
            *(INTO_C ? global : shared) = *(INTO_C ? shared : global);
        }
    }
    __syncwarp();
}

/* Stores results through shared memory, so that a thread moves 16 bytes. Earlier values are added in f32, so that a
   result is rounded once. */
__device__ __forceinline__ void store_tile(const float (&sum)[COLUMNS / 2], const grouped_job &job, const wide_tile &t,
                                           uint16_t *out, int group) {
    const int lane = (int)threadIdx.x % 32, row0 = 64 * group + (int)threadIdx.x % 128 / 32 * 16;
    uint16_t *c = (uint16_t *)job.c + (t.first + row0) * job.c_row + t.column;
#pragma unroll
    for (int chunk = 0; chunk < COLUMNS / CHUNK; chunk++) {
        const int64_t columns = job.n - t.column - chunk * CHUNK;
        if (job.accumulate) {
            move_rows<false>(out, c + chunk * CHUNK, job.c_row, t.rows - row0, columns);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int n = 0; n < CHUNK / 8; n++) {
                const int at = 4 * (chunk * (CHUNK / 8) + n) + 2 * half;
                unsigned *to = (unsigned *)&out[(half * 8 + lane / 4) * OUT_ROW + n * 8 + lane % 4 * 2];
                float low = sum[at], high = sum[at + 1];
                if (job.accumulate) {
                    const unsigned before = *to;
                    low += element::widen((uint16_t)before);
                    high += element::widen((uint16_t)(before >> 16));
                }
                *to = pack(low, high);
            }
        }
        __syncwarp();
        move_rows<true>(out, c + chunk * CHUNK, job.c_row, t.rows - row0, columns);
    }
}

template <int MODE>
__device__ __forceinline__ void multiply(const wide_maps &m, const int *starts, uint32_t stages, uint16_t *out,
                                         const barriers &bars, int tiles, int panels) {
    const int group = (int)threadIdx.x / 128;
    const bool leads = threadIdx.x % 128 == 0;
    int number = 0;
    for (int index = (int)blockIdx.x; index < tiles; index += (int)gridDim.x) {
        const wide_tile t = tile_of(m, starts, index);
        const bool works = 64 * group < t.rows;
        float sum[COLUMNS / 2];
        for (int i = 0; i < panels; i++, number++) {
            const int stage = number % STAGES;
            const uint32_t a = stages + stage * STAGE + group * BAND, b = stages + stage * STAGE + GROUPS * BAND;
            barrier_wait(bars.full(stage), number / STAGES % 2);
            if (works) {
                products_begin();
#pragma unroll
                for (int k = 0; k < PANEL / 16; k++) {
                    const int add = i > 0 || k > 0;
                    if (MODE == FORWARD) {
                        product_both(sum, describe(a + 32 * k, 0), describe(b + 32 * k, 0), add);
                    } else {
                        product_across(sum, describe(a + 32 * k, 0), describe(b + 2048 * k, BAND), add);
                    }
                }
                products_commit();
                products_wait<1>();
            }
            if (i > 0 && leads) {
                barrier_arrive(bars.empty((number + STAGES - 1) % STAGES));
            }
        }
        products_wait<0>();
        keep_below(sum);
        if (leads) {
            barrier_arrive(bars.empty((number + STAGES - 1) % STAGES));
        }
        if (works) {
            store_tile(sum, m.job, t, out, group);
        }
    }
}

template <int MODE> __global__ void __launch_bounds__(COUNT, 1) wide_kernel(const __grid_constant__ wide_maps m) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char shared_memory[];
    const uint32_t start = shared_address(shared_memory), stages = (start + 1023) & ~1023u;
    unsigned char *shared = shared_memory + (stages - start);
    const barriers bars = {stages + AT_BARRIERS};
    int *starts = (int *)(shared + AT_STARTS);
    if (threadIdx.x < 32) {
        find_starts(m.job, starts);
    } else if (threadIdx.x == 32) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(bars.full(i), 1);
            barrier_init(bars.empty(i), GROUPS);
        }
        fence_async();
    }
    __syncthreads();
    const int tiles = starts[m.job.experts] * m.column_tiles, panels = (int)((m.job.k + PANEL - 1) / PANEL);
    if (threadIdx.x >= MULTIPLY) {
        registers_give<40>();
        if (threadIdx.x == MULTIPLY) {
            bring<MODE>(m, starts, stages, bars, tiles, panels);
        }
    } else {
        registers_take<232>();
        multiply<MODE>(m, starts, stages, (uint16_t *)(shared + AT_OUT) + (int)threadIdx.x / 32 * OUT, bars, tiles,
                       panels);
    }
#endif
}

template <int MODE> carry_status launch(carry_ctx *ctx, const grouped_job &job, const place &at) {
    const int ordinal = at.ordinal;
    const int64_t columns = MODE == FORWARD ? job.k : job.n, rows = MODE == FORWARD ? job.n : job.k;
    wide_maps m = {};
    int units = 0;
    m.job = job;
    m.column_tiles = (int)((job.n + COLUMNS - 1) / COLUMNS);
    CARRY_TRY(encode(ctx, &m.a, job.a, job.k, job.rows, 1, job.a_row, job.rows * job.a_row, 64, ordinal));
    CARRY_TRY(encode(ctx, &m.b, job.b, columns, rows, job.experts, job.b_row, job.next,
                     MODE == FORWARD ? COLUMNS : PANEL, ordinal));
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, ordinal), "it cannot be asked");
    CARRY_CUDA_TRY(cudaFuncSetAttribute(wide_kernel<MODE>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED),
                   "no shared memory for products of experts");
    wide_kernel<MODE><<<(unsigned)units, COUNT, SHARED, at.stream>>>(m);
    return launched(ctx, at, "products of experts cannot be launched");
}

} // namespace

/* Only for experts with many rows: few would leave most of a tile empty. */
carry_status GROUPED_WIDE(carry_ctx *ctx, const grouped_job &job, grouped_mode mode, const place &at, bool *done) {
    *done = job.mean_rows >= 96 && job.n >= COLUMNS && job.experts <= MOST_EXPERTS &&
            job.rows / ROWS + job.experts < INT32_MAX / ((job.n + COLUMNS - 1) / COLUMNS);
    if (!*done) {
        return CARRY_OK;
    }
    return mode == FORWARD ? launch<FORWARD>(ctx, job, at) : launch<INPUT_GRADIENT>(ctx, job, at);
}
