/* Arguments of the kernel `gradients`, and the work item of a block. */
#ifndef CARRY_DELTA_CHUNK_GRADIENT_ARGS_CUH
#define CARRY_DELTA_CHUNK_GRADIENT_ARGS_CUH

#include "delta/cuda/chunk/prepare.cuh"
#include "delta/cuda/chunk/scan_parts.cuh"

namespace DELTA_CHUNK {

struct gradient_args {
    prepare_args in;
    CUtensorMap grad_o, grad_q, grad_k, grad_v;
    carry_delta_array v, dq, dk, dv, dbeta, dg;
    int items; /* chunks x heads of q and k; in a part of a ring: 2 each x lanes x heads */
    ring r;
    const char *states, *values, *dstates;
    float *partial; /* [slots, value heads, 2]: parts of dA_log and ddt_bias */

    /* K = 256 takes two launches of 128 keys each. Both contribute to these sums: over keys for gates and betas [slots,
       value heads, 2, 64], and, if q and k are normalised, the products of q with dq and k with dk [slots, heads, 2,
       64]. */
    int turn, turns, kept_bytes; /* kept_bytes: size of a kept state; each launch reads one half of it */
    float *numbers, *dots;
    __device__ __forceinline__ bool last_turn() const {
        return turn + 1 == turns;
    }
};

/* Defined in gradients.cu. With `last`, the partial sums of dA_log and ddt_bias are added up afterwards. */
carry_status launch_gradients(carry_ctx *ctx, const carry_delta_back_job *b, const gradient_args &a, bool last,
                              int units, int ordinal, cudaStream_t stream);

/* The work item of a block: a chunk and a head of q and k, and the indices at which the walks stored their results for
   it (in units of a value head's tile). */
struct gradient_item {
    int head, slot;
    chunk_place at;
    int64_t kept, back;
};

static __device__ __forceinline__ gradient_item item_of(const gradient_args &a, int index) {
    const shape &s = a.in.s;
    const ring &r = a.r;
    gradient_item item;
    item.head = index % s.heads;
    item.slot = index / s.heads;
    if (r.each == 0 && r.count == 0) {
        item.at = chunk_of(s, item.slot);
        item.kept = item.back = item.slot;
        return item;
    }
    int chunks = r.each == 0 ? s.segment_chunks : 2 * r.each, lane = item.slot / chunks, chunk = item.slot % chunks;
    if (r.each > 0) {
        chunk = chunk < r.each ? r.half - (r.part - 1) * r.each - 1 - chunk : r.half + (r.part - 2) * r.each + chunk;
    }
    sequence_place place = sequence_of(s, r.sequence_of_lane(lane, s.segments));
    item.slot = place.slot + chunk;
    item.at = {place.batch, place.first + chunk * C, chunk < 0 ? 0 : min(C, place.length - chunk * C)};
    item.kept = kept_at(r, false, lane, 0, chunk);
    item.back = kept_at(r, true, lane, 0, chunk);
    return item;
}

} // namespace DELTA_CHUNK

#endif
