/* Products of rows with one weight per expert: shared by grouped.cu, grouped_hopper.cu and grouped_hopper_wide.cu.
   The latter two are compiled for each type. */
#ifndef CARRY_OPS_GROUPED_MODES_CUH
#define CARRY_OPS_GROUPED_MODES_CUH

#include "ops/cuda/nn.cuh"

enum grouped_mode { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };

/* FORWARD: c = a b^T; INPUT_GRADIENT: c = a b; WEIGHT_GRADIENT: c += a^T b over the rows of each expert. a (and for
   WEIGHT_GRADIENT b) holds the rows of all experts, sorted; the matrices of experts are `next` elements apart. */
struct grouped_job {
    const void *a, *b;
    void *c;
    const int64_t *offsets;
    int64_t experts, rows, next;
    /* Sizes for one expert. m is unknown, except for WEIGHT_GRADIENT, where k is. */
    int64_t m, n, k;
    int64_t a_row, b_row, c_row;
    bool accumulate;
    /* Rows of an expert in the mean; the rows of experts that this job does not multiply are counted in `rows`. */
    int64_t mean_rows;
};

/* *done is true if the job was launched, false if this GPU, build or shape is not supported. */
carry_status carry_grouped_hopper_bf16(carry_ctx *ctx, const grouped_job &job, grouped_mode mode, const place &at,
                                       bool *done);
carry_status carry_grouped_hopper_f16(carry_ctx *ctx, const grouped_job &job, grouped_mode mode, const place &at,
                                      bool *done);

/* The same for many rows and columns; the caller has checked GPU, build and alignment. Not for WEIGHT_GRADIENT. */
carry_status carry_grouped_wide_bf16(carry_ctx *ctx, const grouped_job &job, grouped_mode mode, const place &at,
                                     bool *done);
carry_status carry_grouped_wide_f16(carry_ctx *ctx, const grouped_job &job, grouped_mode mode, const place &at,
                                    bool *done);

/* Finds the expert of tile `tile`, counted over the rows of all experts, and the tile's number within that expert. A
   tile has `size` rows.
   One warp calls it; each lane has the same number of consecutive experts. Returns false past the last tile. */
static __device__ __forceinline__ bool find_tile_of(int size, const int64_t *offsets, int64_t experts, int64_t tile,
                                                    int64_t *expert, int64_t *own) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t each = (experts + 31) / 32, first = lane * each;
    int64_t count = 0;
#pragma unroll 8
    for (int64_t e = first; e < first + each; e++) {
        count += e < experts ? (offsets[e + 1] - offsets[e] + size - 1) / size : 0;
    }
    int64_t sum = count;
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
        const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= (int)step ? other : 0;
    }
    const unsigned after = __ballot_sync(0xffffffffu, sum > tile);
    if (after == 0) {
        return false;
    }
    int64_t e = first, rest = tile - (sum - count);
    const int found = __ffs((int)after) - 1;
    for (; lane == found && e + 1 < experts; e++) {
        const int64_t tiles = (offsets[e + 1] - offsets[e] + size - 1) / size;
        if (rest < tiles) {
            break;
        }
        rest -= tiles;
    }
    *expert = __shfl_sync(0xffffffffu, e, found);
    *own = __shfl_sync(0xffffffffu, rest, found);
    return true;
}

template <int TILE>
static __device__ __forceinline__ bool find_tile(const int64_t *offsets, int64_t experts, int64_t tile, int64_t *expert,
                                                 int64_t *own) {
    return find_tile_of(TILE, offsets, experts, tile, expert, own);
}

#endif
