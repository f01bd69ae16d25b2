/* The end of attention in pieces: o = sum of a tile's pieces, each scaled from its own largest score to the largest of
   all, over the sum of their exponentials scaled alike; in the order of the pieces, so that a result is always the
   same. A warp has a query. */
#ifndef CARRY_ATTENTION_COMBINE_CUH
#define CARRY_ATTENTION_COMBINE_CUH

#include "attention/kernels.cuh"

constexpr int COMBINE_WARPS = 8;

template <int D> __global__ void attention_combine(const __grid_constant__ attention_job job) {
    constexpr int EACH = D / 32;
    const attention_cut &c = job.cut;
    int lane = (int)threadIdx.x % 32;
    int index = (int)blockIdx.x * COMBINE_WARPS + (int)threadIdx.x / 32;
    int tile = c.whole + index / c.rows;
    int row = tile % c.row_tiles * c.rows + index % c.rows, head = tile / c.row_tiles;
    if (index >= c.rest * c.rows || row >= job.queries) {
        return;
    }
    int64_t first = (int64_t)(index / c.rows) * c.pieces * c.rows + index % c.rows;
    float largest = -INFINITY, sum = 0.0f, o[EACH] = {};
    for (int i = 0; i < c.pieces; i++) {
        largest = fmaxf(largest, c.weights[2 * (first + i * c.rows)]);
    }
    for (int i = 0; i < c.pieces; i++) {
        int64_t at = first + i * c.rows;
        float factor = exp2_fast(c.weights[2 * at] - largest);
        sum = fmaf(factor, c.weights[2 * at + 1], sum);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            o[j] = fmaf(factor, c.sums[at * D + lane * EACH + j], o[j]);
        }
    }
    uint16_t *to = job.o + row * job.o_row + head * job.o_head + lane * EACH;
#pragma unroll
    for (int j = 0; j < EACH; j += 2) {
        *(uint32_t *)(to + j) = pack_bf16(o[j] / sum, o[j + 1] / sum);
    }
    if (job.lse != NULL && lane == 0) {
        job.lse[(int64_t)head * job.queries + row] = lse_of(job, largest, sum);
    }
}

#endif
