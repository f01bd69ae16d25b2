/* Products of rows with one weight per expert on Hopper GPUs: tiles of 128 x 128, panels of 64 along k.

   One thread copies panels STAGES ahead with the tensor copy engine; two warpgroups multiply, each 64 rows of the
   tile. A tile begins at a row of its expert, so its last rows may belong to the next expert; their results are not
   stored, and a warpgroup without rows of this expert does not multiply. In gradients of weights, which sum over
   rows, rows of the next expert are zeroed in shared memory. Two blocks share a multiprocessor: one stores while the
   other multiplies. */
#ifdef CARRY_INSTANCE_F16
#define GROUPED carry_grouped_hopper_f16
#define GROUPED_WIDE carry_grouped_wide_f16
#else
#define GROUPED carry_grouped_hopper_bf16
#define GROUPED_WIDE carry_grouped_wide_bf16
#endif

#include "ops/cuda/grouped_hopper.cuh"

namespace {

constexpr int TILE = 128, STAGES = 3;
constexpr int STAGE = 4 * BAND; /* a and b */
constexpr int MULTIPLY = 256, COUNT = MULTIPLY + 32;
constexpr int OUT_ROW = TILE + 8; /* elements of a row of results in shared memory */
constexpr int SHARED = STAGES * STAGE + 1024 + 64;

struct grouped_maps {
    CUtensorMap a, b;
    grouped_job job;
    int64_t row_tiles, column_tiles;
};

struct place_of_tile {
    int64_t expert, first, count; /* the expert's rows */
    int64_t row, column;          /* position of the tile in c */
    int panels;
};

template <int MODE>
__device__ __forceinline__ void bring(const grouped_maps &m, const place_of_tile &t, uint32_t stages,
                                      const barriers &bars) {
    for (int i = 0; i < t.panels; i++) {
        const int stage = i % STAGES;
        const uint32_t a = stages + stage * STAGE, b = a + 2 * BAND, full = bars.full(stage);
        const int64_t k = (int64_t)i * PANEL;
        barrier_wait(bars.empty(stage), (i / STAGES + 1) % 2);
        barrier_expect(full, STAGE);
        if (MODE == WEIGHT_GRADIENT) {
            for (int band = 0; band < 2; band++) {
                copy_box(a + band * BAND, &m.a, t.row + 64 * band, t.first + k, 0, full);
                copy_box(b + band * BAND, &m.b, t.column + 64 * band, t.first + k, 0, full);
            }
            continue;
        }
        copy_box(a, &m.a, k, t.first + t.row, 0, full);
        if (MODE == FORWARD) {
            copy_box(b, &m.b, k, t.column, t.expert, full);
        } else {
            copy_box(b, &m.b, t.column, k, t.expert, full);
            copy_box(b + BAND, &m.b, t.column + 64, k, t.expert, full);
        }
    }
}

/* Zeroes the rows of a band of a panel that belong to the next expert. Each warpgroup calls this for its own bands of a
   and of b: zeroing a alone is not enough, since zero times NaN is NaN. */
__device__ __forceinline__ void zero_rest(unsigned char *shared, uint32_t stages, uint32_t band, int rows, int group) {
    unsigned char *at = shared + (band - stages);
    for (int i = rows * 8 + (int)threadIdx.x % 128; i < PANEL * 8; i += 128) {
        ((uint4 *)at)[i] = uint4{0, 0, 0, 0};
    }
    fence_async();
    group_sync(2 + group, 128);
}

template <int MODE>
__device__ __forceinline__ void multiply(float (&sum)[TILE / 2], const place_of_tile &t, uint32_t stages,
                                         unsigned char *shared, const barriers &bars, int group) {
    const bool works = MODE == WEIGHT_GRADIENT || t.row + 64 * group < t.count;
    int last = -1;
    for (int i = 0; i < t.panels; i++) {
        const int stage = i % STAGES;
        const uint32_t a = stages + stage * STAGE + group * BAND, b = stages + stage * STAGE + 2 * BAND;
        barrier_wait(bars.full(stage), i / STAGES % 2);
        if (MODE == WEIGHT_GRADIENT && t.count - (int64_t)i * PANEL < PANEL) {
            const int rows = (int)(t.count - (int64_t)i * PANEL);
            zero_rest(shared, stages, a, rows, group);
            zero_rest(shared, stages, b + group * BAND, rows, group);
            group_sync(1, MULTIPLY);
        }
        if (works) {
            products_begin();
#pragma unroll
            for (int k = 0; k < PANEL / 16; k++) {
                const int add = i > 0 || k > 0;
                if (MODE == FORWARD) {
                    product_both(sum, describe(a + 32 * k, 0), describe(b + 32 * k, 0), add);
                } else if (MODE == INPUT_GRADIENT) {
                    product_across(sum, describe(a + 32 * k, 0), describe(b + 2048 * k, BAND), add);
                } else {
                    product_turned(sum, describe(a + 2048 * k, 0), describe(b + 2048 * k, BAND), add);
                }
            }
            products_commit();
            products_wait<1>();
        }
        if (last >= 0 && threadIdx.x % 128 == 0) {
            barrier_arrive(bars.empty(last));
        }
        last = stage;
    }
    products_wait<0>();
    keep_below(sum);
}

/* Moves the rows of a warp, at most 16, between its part of shared memory and c, in pieces of 16 bytes. */
template <bool INTO_C>
__device__ __forceinline__ void move_rows(uint16_t *out, const grouped_job &job, const place_of_tile &t, int row0,
                                          int group) {
    uint16_t *c = (uint16_t *)job.c + (t.first + t.row + 64 * group) * job.c_row + t.column;
    for (int i = (int)threadIdx.x % 32; i < 16 * (TILE / 8); i += 32) {
        const int row = row0 + i / (TILE / 8), column = i % (TILE / 8) * 8;
        if (t.row + 64 * group + row < t.count && t.column + column < job.n) {
            uint4 *shared = (uint4 *)&out[row * OUT_ROW + column];
            uint4 *global = (uint4 *)&c[row * job.c_row + column];
            *(INTO_C ? global : shared) = *(INTO_C ? shared : global);
        }
    }
    __syncwarp();
}

/* Stores 16-bit results of a warpgroup's rows through shared memory, so that a thread moves 16 bytes. Earlier values
   are added in f32, so that a result is rounded once. */
__device__ __forceinline__ void store_rows(const float (&sum)[TILE / 2], const grouped_job &job, const place_of_tile &t,
                                           uint16_t *out, int group) {
    const int thread = (int)threadIdx.x % 128, lane = thread % 32, row0 = thread / 32 * 16;
    if (job.accumulate) {
        move_rows<false>(out, job, t, row0, group);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            unsigned *to = (unsigned *)&out[(row0 + half * 8 + lane / 4) * OUT_ROW + n * 8 + lane % 4 * 2];
            float low = sum[4 * n + 2 * half], high = sum[4 * n + 2 * half + 1];
            if (job.accumulate) {
                const unsigned before = *to;
                low += element::widen((uint16_t)before);
                high += element::widen((uint16_t)(before >> 16));
            }
            *to = pack(low, high);
        }
    }
    __syncwarp(); /* a warp moves only its own rows */
    move_rows<true>(out, job, t, row0, group);
}

/* Adds to the f32 gradients of weights. */
__device__ __forceinline__ void add_weights(const float (&sum)[TILE / 2], const grouped_job &job,
                                            const place_of_tile &t, int group) {
    const int thread = (int)threadIdx.x % 128, lane = thread % 32;
    float *c = (float *)job.c + t.expert * job.next;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = t.row + 64 * group + thread / 32 * 16 + half * 8 + lane / 4;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            const int64_t column = t.column + n * 8 + lane % 4 * 2;
            if (row < job.m && column < job.n) {
                float2 *to = (float2 *)&c[row * job.c_row + column];
                const float2 before = *to;
                *to = {before.x + sum[4 * n + 2 * half], before.y + sum[4 * n + 2 * half + 1]};
            }
        }
    }
}

template <int MODE> __global__ void __launch_bounds__(COUNT, 2) grouped_kernel(const __grid_constant__ grouped_maps m) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char shared_memory[];
    __shared__ place_of_tile tile;
    const grouped_job &job = m.job;
    const uint32_t start = shared_address(shared_memory), stages = (start + 1023) & ~1023u;
    unsigned char *shared = shared_memory + (stages - start);
    const barriers bars = {stages + STAGES * STAGE};
    if (threadIdx.x < 32) {
        const int64_t number = (int64_t)blockIdx.x / m.column_tiles;
        int64_t expert = MODE == WEIGHT_GRADIENT ? number / m.row_tiles : 0, own = 0;
        bool works = true;
        if (MODE == WEIGHT_GRADIENT) {
            own = number % m.row_tiles;
        } else {
            works = find_tile<TILE>(job.offsets, job.experts, number, &expert, &own);
        }
        if (threadIdx.x == 0) {
            const int64_t first = works ? job.offsets[expert] : 0;
            const int64_t count = works ? job.offsets[expert + 1] - first : 0;
            const int64_t depth = MODE == WEIGHT_GRADIENT ? count : job.k;
            tile = {expert,
                    first,
                    count,
                    own * TILE,
                    (int64_t)blockIdx.x % m.column_tiles * TILE,
                    works ? (int)((depth + PANEL - 1) / PANEL) : 0};
            for (int i = 0; i < STAGES; i++) {
                barrier_init(bars.full(i), 1);
                barrier_init(bars.empty(i), 2);
            }
            fence_async();
        }
    }
    __syncthreads();
    const place_of_tile t = tile;
    if (t.panels == 0) {
        return;
    }
    if (threadIdx.x >= MULTIPLY) {
        if (threadIdx.x == MULTIPLY) {
            bring<MODE>(m, t, stages, bars);
        }
        return;
    }
    const int group = (int)threadIdx.x / 128;
    float sum[TILE / 2];
    multiply<MODE>(sum, t, stages, shared, bars, group);
    if (MODE == WEIGHT_GRADIENT) {
        add_weights(sum, job, t, group);
        return;
    }
    group_sync(1, MULTIPLY); /* panels have been read: their memory is free */
    store_rows(sum, job, t, (uint16_t *)shared + group * 64 * OUT_ROW, group);
#endif
}

template <int MODE> carry_status launch(carry_ctx *ctx, const grouped_job &job, const place &at) {
    const int ordinal = at.ordinal;
    const int64_t row_next = job.rows * job.a_row;
    grouped_maps m = {};
    m.job = job;
    m.column_tiles = (job.n + TILE - 1) / TILE;
    m.row_tiles = MODE == WEIGHT_GRADIENT ? (job.m + TILE - 1) / TILE : 0;
    const int64_t tiles = MODE == WEIGHT_GRADIENT ? m.row_tiles * job.experts : job.rows / TILE + job.experts;
    if (MODE == WEIGHT_GRADIENT) {
        CARRY_TRY(encode(ctx, &m.a, job.a, job.m, job.rows, 1, job.a_row, row_next, PANEL, ordinal));
        CARRY_TRY(encode(ctx, &m.b, job.b, job.n, job.rows, 1, job.b_row, job.rows * job.b_row, PANEL, ordinal));
    } else {
        const int64_t columns = MODE == FORWARD ? job.k : job.n, rows = MODE == FORWARD ? job.n : job.k;
        CARRY_TRY(encode(ctx, &m.a, job.a, job.k, job.rows, 1, job.a_row, row_next, TILE, ordinal));
        CARRY_TRY(encode(ctx, &m.b, job.b, columns, rows, job.experts, job.b_row, job.next,
                         MODE == FORWARD ? TILE : PANEL, ordinal));
    }
    CARRY_CUDA_TRY(cudaFuncSetAttribute(grouped_kernel<MODE>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED),
                   "no shared memory for products of experts");
    grouped_kernel<MODE><<<(unsigned)(tiles * m.column_tiles), COUNT, SHARED, at.stream>>>(m);
    return launched(ctx, at, "products of experts cannot be launched");
}

bool has_kernels(int ordinal) {
    int major = 0, minor = 0;
    cudaFuncAttributes attributes = {};
    bool is = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
              cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess && major == 9 &&
              minor == 0;
    /* In code for other architectures than sm_90a the kernels are empty and need few registers. */
    is = is && cudaFuncGetAttributes(&attributes, grouped_kernel<FORWARD>) == cudaSuccess && attributes.numRegs > 64;
    (void)cudaGetLastError();
    return is;
}

} // namespace

carry_status GROUPED(carry_ctx *ctx, const grouped_job &job, grouped_mode mode, const place &at, bool *done) {
    static const bool works = has_kernels(at.ordinal); /* assumes that all GPUs of a process are alike */
    const int64_t all =
        job.a_row | job.b_row | job.c_row | job.next | job.n | (mode == WEIGHT_GRADIENT ? job.m : job.k);
    *done = works && all % 8 == 0 && ((uintptr_t)job.a | (uintptr_t)job.b | (uintptr_t)job.c) % 16 == 0 && job.rows > 0;
    if (!*done) {
        return CARRY_OK;
    }
    bool is_wide = false;
    CARRY_TRY(mode != WEIGHT_GRADIENT ? GROUPED_WIDE(ctx, job, mode, at, &is_wide) : CARRY_OK);
    if (is_wide) {
        return CARRY_OK;
    }
    return mode == FORWARD          ? launch<FORWARD>(ctx, job, at)
           : mode == INPUT_GRADIENT ? launch<INPUT_GRADIENT>(ctx, job, at)
                                    : launch<WEIGHT_GRADIENT>(ctx, job, at);
}
