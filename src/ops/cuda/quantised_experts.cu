/* Products of few rows with quantised experts: only the tiles of experts that have rows are read, in their quantised
   form (ops/quantised/tiles.h). Nothing is allocated and nothing is read by the host, so steps can be recorded.

   A chunk is up to CHUNK rows of one expert, whose numbers only the device knows (grouped.cu). A block multiplies a
   chunk with some tiles of its expert's matrix: it holds the rows in shared memory in f32; `together` of its warps
   share the columns of a tile, and each writes its sums of every tile to shared memory, so warps wait for each other
   only once, at the end. A warp loads its next unit while it multiplies one. The order of sums depends only on the
   shape. */
#include "ops/cuda/grouped_modes.cuh"
#include "ops/cuda/quantised_linear.cuh"
#include "ops/cuda/quantised_rows.cuh"

using namespace quantised;

namespace {

constexpr int WARPS = THREADS / 32;
constexpr int CHUNK = 8, TILES_MOST = 8; /* rows of a chunk, tiles of a block */
constexpr int64_t FEW_ROWS = 8;          /* of an expert in the mean: for more, decoding the experts is faster */
constexpr size_t X_BYTES = 96 << 10, MEMORY = 48 << 10;

struct experts_job {
    carry_quant_tiles l; /* of one expert */
    const unsigned char *tiles;
    int64_t next; /* bytes from expert to expert */
    mixed x;
    void *y;
    int64_t x_row, y_row;
    const int64_t *offsets;
    int64_t experts;
    int chunk, each; /* rows of a chunk; tiles of a block */
    int slabs;       /* blocks of a chunk */
    int together;    /* warps of a tile */
    int pitch;       /* floats of a row of x in shared memory */
    bool x_by_16;    /* x is in bf16, and 16 bytes can be loaded at once */
};

/* Loads the chunk's rows in f32; columns past the end are 0. */
__device__ __forceinline__ void load_rows(const experts_job &job, float *to, int64_t first, int count) {
    if (job.x_by_16) {
        const int eighths = job.pitch / 8;
        for (int i = (int)threadIdx.x; i < count * eighths; i += THREADS) {
            const int row = i / eighths, column = i % eighths * 8;
            uint4 in = make_uint4(0, 0, 0, 0);
            if (column < job.l.columns) { /* columns are a multiple of 8 */
                in = *(const uint4 *)((const uint16_t *)job.x.data + (first + row) * job.x_row + column);
            }
            const unsigned words[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                to[row * job.pitch + column + 2 * j] = __uint_as_float(words[j] << 16);
                to[row * job.pitch + column + 2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
            }
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < count * job.pitch; i += THREADS) {
        const int row = i / job.pitch, column = i % job.pitch;
        to[i] = column < job.l.columns ? job.x[(first + row) * job.x_row + column] : 0.0f;
    }
}

/* Writes the sums of this block's tiles, [tile][warp of the tile][row of x][row of the tile]. */
template <class F, int R>
__device__ __forceinline__ void multiply_tiles(const experts_job &job, const unsigned char *matrix, int tiles,
                                               const float *x, float *parts) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int own = warp % job.together, groups = WARPS / job.together, units = (int)job.l.units;
    int tile = warp / job.together, unit = own;
    const auto find = [&](int *next_tile, int *next_unit) { /* the unit after one */
                                                            *next_unit += job.together;
                                                            if (*next_unit >= units) {
                                                                *next_unit = own;
                                                                *next_tile += groups;
                                                            }
    };
    const auto load = [&](lane_unit<F> &u, int of, int number) {
        if (of < tiles) {
            load_unit<F>(u, matrix + (size_t)of * job.l.tile_bytes + (size_t)number * unit_of<F>::BYTES, lane);
        }
    };
    float sum[2][R] = {};
    const auto use = [&](const lane_unit<F> &u) {
        if (tile >= tiles) {
            return;
        }
        add_unit_rows<F, R>(sum, u, x + unit * CARRY_QUANT_UNIT_COLUMNS + 8 * t, job.pitch);
        if (unit + job.together >= units) { /* the last of this warp's units of the tile */
            float *to = parts + (size_t)(tile * job.together + own) * R * ROWS;
#pragma unroll
            for (int r = 0; r < R; r++) {
#pragma unroll
                for (int second = 0; second < 2; second++) {
                    const float all = sum_of_four(sum[second][r]);
                    if (t == 0) {
                        to[r * ROWS + g + 8 * second] = all;
                    }
                    sum[second][r] = 0.0f;
                }
            }
        }
    };
    lane_unit<F> now, next;
    load(now, tile, unit);
    while (tile < tiles) {
        int next_tile = tile, next_unit = unit;
        find(&next_tile, &next_unit);
        load(next, next_tile, next_unit);
        use(now);
        tile = next_tile;
        unit = next_unit;
        find(&next_tile, &next_unit);
        load(now, next_tile, next_unit);
        use(next);
        tile = next_tile;
        unit = next_unit;
    }
}

template <int R>
__device__ __forceinline__ void store_tiles(const experts_job &job, const unsigned char *matrix, int tiles, int64_t row,
                                            int count, int column, const float *parts) {
    for (int i = (int)threadIdx.x; i < tiles * count * ROWS; i += THREADS) {
        const int tile = i / (count * ROWS), r = i / ROWS % count, at = i % ROWS;
        float sum = 0.0f;
        for (int w = 0; w < job.together; w++) {
            sum += parts[((size_t)(tile * job.together + w) * R + r) * ROWS + at];
        }
        sum *= ((const float *)(matrix + (size_t)tile * job.l.tile_bytes + job.l.factors_at))[at];
        const int64_t to = (row + r) * job.y_row + column + tile * ROWS + at;
        if (job.x.type == CARRY_F32) {
            ((float *)job.y)[to] = sum;
        } else {
            ((uint16_t *)job.y)[to] = job.x.type == CARRY_BF16 ? type_bf16::narrow(sum) : type_f16::narrow(sum);
        }
    }
}

template <class F, int R>
__device__ __forceinline__ void run_chunk(const experts_job &job, const unsigned char *matrix, int tiles, int64_t row,
                                          int count, int column, const float *x, float *parts) {
    multiply_tiles<F, R>(job, matrix, tiles, x, parts);
    __syncthreads();
    store_tiles<R>(job, matrix, tiles, row, count, column, parts);
}

template <class F>
__global__ void __launch_bounds__(THREADS, 2) experts_kernel(const __grid_constant__ experts_job job) {
    extern __shared__ uint4 experts_memory[];
    float *x = (float *)experts_memory, *parts = x + (size_t)job.chunk * job.pitch;
    const int slab = (int)(blockIdx.x % job.slabs) * job.each, tiles = min(job.each, (int)job.l.tiles - slab);
    int64_t expert = 0, own = 0;
    if (!find_tile_of(job.chunk, job.offsets, job.experts, blockIdx.x / job.slabs, &expert, &own)) {
        return;
    }
    const int64_t row = job.offsets[expert] + own * job.chunk, rest = job.offsets[expert + 1] - row;
    const int count = (int)(rest < job.chunk ? rest : job.chunk), column = slab * ROWS;
    const unsigned char *matrix = job.tiles + expert * job.next + (size_t)slab * job.l.tile_bytes;
    load_rows(job, x, row, count);
    __syncthreads();
    if (count == 1) {
        run_chunk<F, 1>(job, matrix, tiles, row, count, column, x, parts);
    } else if (count == 2) {
        run_chunk<F, 2>(job, matrix, tiles, row, count, column, x, parts);
    } else if (count <= 4) {
        run_chunk<F, 4>(job, matrix, tiles, row, count, column, x, parts);
    } else {
        run_chunk<F, 8>(job, matrix, tiles, row, count, column, x, parts);
    }
}

/* Sets the sizes of chunks and blocks; returns false if not even one row fits into shared memory. */
bool plan(experts_job *job, int64_t rows, int units, int64_t *chunks) {
    job->pitch = (int)job->l.units * CARRY_QUANT_UNIT_COLUMNS;
    job->chunk = CHUNK;
    while (job->chunk > 1 && (size_t)job->chunk * (size_t)job->pitch * sizeof(float) > X_BYTES) {
        job->chunk /= 2;
    }
    job->together = WARPS;
    while (job->together > 1 && job->together > job->l.units) {
        job->together /= 2;
    }
    *chunks = rows / job->chunk + job->experts;
    *chunks = *chunks < rows ? *chunks : rows;
    const int64_t tiles = job->l.tiles * *chunks / (4 * units) + 1, groups = WARPS / job->together;
    job->each = (int)(tiles < TILES_MOST ? (tiles + groups - 1) / groups * groups : TILES_MOST);
    job->slabs = (int)((job->l.tiles + job->each - 1) / job->each);
    return (size_t)job->pitch * sizeof(float) <= X_BYTES && *chunks < INT32_MAX / job->slabs;
}

} // namespace

carry_status quantised_experts_by_tiles(carry_ctx *ctx, const carry_tensor &y, const carry_tensor &x,
                                        const carry_tensor &W, const carry_tensor &offsets, bool *done) {
    experts_job job = {};
    place at = {};
    int units = 1;
    int64_t chunks = 0;
    CARRY_TRY(open_place(ctx, &at, x.device));
    (void)carry_quant_tiles_of_stack(&job.l, &W); /* checked by the caller */
    job.tiles = (const unsigned char *)W.data;
    job.next = W.stride[0];
    job.x = mixed_of(x);
    job.y = y.data;
    job.x_row = row_step(x);
    job.y_row = row_step(y);
    job.offsets = (const int64_t *)offsets.data;
    job.experts = W.shape[0];
    job.x_by_16 = x.dtype == CARRY_BF16 && job.l.columns % 8 == 0 && job.x_row % 8 == 0 && (uintptr_t)x.data % 16 == 0;
    (void)cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, at.ordinal);
    *done = plan(&job, x.shape[0], units > 0 ? units : 1, &chunks) &&
            (x.shape[0] <= FEW_ROWS * job.experts || is_recorded(at));
    if (!*done) {
        return CARRY_OK;
    }
    const size_t bytes =
        (size_t)job.chunk * ((size_t)job.pitch + (size_t)job.each * job.together * ROWS) * sizeof(float);
    return with_form(job.l.format, [&](auto form) {
        using F = decltype(form);
        const int ordinal = at.ordinal;
        if (bytes > MEMORY) {
            CARRY_CUDA_TRY(
                cudaFuncSetAttribute(experts_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                "shared memory of a product with quantised experts");
        }
        experts_kernel<F><<<(unsigned)(chunks * job.slabs), THREADS, bytes, at.stream>>>(job);
        return launched(ctx, at, "a product with quantised experts cannot be launched");
    });
}
