/* What launches of the chunk kernels share. Tensor maps tell the copy engine how q, k and v lie. */
#ifndef CARRY_DELTA_CHUNK_HOST_CUH
#define CARRY_DELTA_CHUNK_HOST_CUH

#include "device/tensor_map.cuh"

#include "delta/cuda/chunk/chunk_prepare.cuh"
#include "delta/cuda/chunk/chunk_scan.cuh"

namespace DELTA_CHUNK {

/* chunk_forward.cu. Tensor maps of q, k and their gradients (tiles of two bands), of v, o and theirs. */
carry_status map_keys(carry_ctx *ctx, carry_map_encoder encode, CUtensorMap *map, const char *name,
                      const carry_delta_view *of, const carry_delta_chunk_job *job, int ordinal);
carry_status map_values(carry_ctx *ctx, carry_map_encoder encode, CUtensorMap *map, const char *name,
                        const carry_delta_view *of, const carry_delta_chunk_job *job, int bands, int ordinal);
carry_status check_view(carry_ctx *ctx, const char *name, const carry_delta_view *view, int ordinal);
carry_status check_values(carry_ctx *ctx, const char *name, const carry_delta_view *view,
                          const carry_delta_chunk_job *job, int ordinal);

/* A value head of more than D values is walked as 1 << shift heads; v, o and their gradients are looked at that way. */
static inline int shift_of(const carry_delta_chunk_job *job) {
    return job->value > D ? 1 : 0;
}
static inline int64_t walked_heads(const carry_delta_chunk_job *job) {
    return job->value_heads << shift_of(job);
}
static inline int64_t part_size(const carry_delta_chunk_job *job) {
    return job->value >> shift_of(job);
}
static inline carry_delta_view parts_of(const carry_delta_view *of, const carry_delta_chunk_job *job) {
    carry_delta_view view = *of;
    view.head = shift_of(job) > 0 ? D : view.head;
    return view;
}
shape shape_of(const carry_delta_chunk_job *job); /* in one segment */
/* How many segments a sequence is best walked in on so many multiprocessors; backward two walks go on at once. */
int segments_of(const carry_delta_chunk_job *job, int units, bool backward);
size_t pair_bytes(const carry_delta_chunk_job *job, int64_t segments, bool backward);
prepare_args prepare_args_of(const carry_delta_chunk_job *job, const CUtensorMap *q, const CUtensorMap *k);
carry_status launch_prepare(carry_ctx *ctx, const carry_delta_chunk_job *job, const prepare_args &a, int ordinal,
                            cudaStream_t stream);

/* Blocks of both kinds; `lanes`, `second_lanes`: sequences (or segments) and value heads of each. */
template <int GROUPS, int STAGES, scan_kind KIND, scan_kind SECOND, int HALVES>
carry_status launch_scan(carry_ctx *ctx, scan_launch &l, int64_t lanes, int64_t second_lanes, int ordinal,
                                cudaStream_t stream) {
    using first = scan_shape<GROUPS, STAGES, KIND, HALVES>;
    using second = scan_shape<GROUPS, STAGES, SECOND, HALVES>;
    auto kernel = scan<first, second>;
    constexpr int SHARED = first::SHARED > second::SHARED ? first::SHARED : second::SHARED;
    static_assert(SHARED <= 232448 - 256, "what a block can have");
    CARRY_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED),
                   "no shared memory for the delta rule");
    l.blocks = (unsigned)lanes * blocks_of<GROUPS, KIND>(l.first.s);
    unsigned others = (unsigned)second_lanes * blocks_of<GROUPS, SECOND>(l.first.s);
    kernel<<<l.blocks + others, first::THREADS, SHARED, stream>>>(l);
    CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule could not be launched");
    return CARRY_OK;
}

/* Each in a file of its own, chunk_scan_*.cu: ptxas needs seconds for one. */
#define SCANS(DECLARE, ...)                                                                               \
    DECLARE template carry_status launch_scan<__VA_ARGS__>(carry_ctx * ctx, scan_launch & l, int64_t lanes, \
                                                           int64_t second_lanes, int ordinal, cudaStream_t stream);
SCANS(extern, 2, 2, FORWARD, FORWARD, 1)
SCANS(extern, 1, 3, FORWARD, FORWARD, 1)
SCANS(extern, 1, 2, FORWARD, FORWARD, 2)
SCANS(extern, 1, 3, PAIR, PAIR, 1)
SCANS(extern, 2, 2, KEEP, BACK, 1)
SCANS(extern, 1, 3, KEEP, BACK, 1)
SCANS(extern, 1, 2, KEEP, BACK, 2)
SCANS(extern, 1, 3, PAIR, BACK_PAIR, 1)

/* The parts of a sequence, where it is walked in segments: so many chunks each. */
static inline void set_segments(const carry_delta_chunk_job *job, int segments, shape *s) {
    int chunks = job->tokens > 0 ? (int)((job->tokens + C - 1) / C) : 1;
    s->segment_chunks = (chunks + segments - 1) / segments;
    s->segments = (chunks + s->segment_chunks - 1) / s->segment_chunks;
}

/* The pairs of segments. `pairs` has room for them. */
template <bool BOTH>
static carry_status walk_pairs(carry_ctx *ctx, const carry_delta_chunk_job *job, scan_launch &l, int ordinal,
                               cudaStream_t stream) {
    int64_t lanes = job->sequences * walked_heads(job) * l.first.s.segments;
    l.first.parts = l.second.parts = BOTH ? 3 : 2;
    return launch_scan<1, 3, PAIR, BOTH ? BACK_PAIR : PAIR, 1>(ctx, l, 2 * lanes, BOTH ? lanes : 0, ordinal, stream);
}

/* Of segments with pairs, what enters each. */
template <bool BOTH>
static carry_status enter_segments(carry_ctx *ctx, const carry_delta_chunk_job *job, scan_launch &l,
                                   const arrived_states &arrived, int ordinal, cudaStream_t stream) {
    const shape &s = l.first.s;
    l.first.parts = l.second.parts = BOTH ? 3 : 2;
    fix_up<<<dim3((unsigned)s.bands * 4, (unsigned)(job->sequences * s.value_heads), BOTH ? 2 : 1), 128, 0, stream>>>(
        l.first.pairs, l.first.parts, s.segments, s.value_heads, 64 * s.key_bands, arrived);
    CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule could not be launched");
    return CARRY_OK;
}

/* Of segments, what has to be known before all are walked at once. */
template <bool BOTH>
static carry_status make_pairs(carry_ctx *ctx, const carry_delta_chunk_job *job, scan_launch &l, int ordinal,
                               cudaStream_t stream) {
    CARRY_TRY(walk_pairs<BOTH>(ctx, job, l, ordinal, stream));
    return enter_segments<BOTH>(ctx, job, l, arrived_states{}, ordinal, stream);
}

/* The pair of each sequence as a whole. M NULL: not wanted. */
template <bool BOTH>
static carry_status join_pairs(carry_ctx *ctx, const carry_delta_chunk_job *job, scan_launch &l, float *L, float *M,
                               int ordinal, cudaStream_t stream) {
    l.first.whole = l.second.whole = true;
    CARRY_TRY(walk_pairs<BOTH>(ctx, job, l, ordinal, stream));
    const shape &s = l.first.s;
    int bands = s.key_bands > s.bands ? s.key_bands : s.bands;
    join<<<dim3((unsigned)bands * 4, (unsigned)(job->sequences * s.value_heads), M != NULL ? 2 : 1), 128, 0, stream>>>(
        l.first.pairs, l.first.parts, s.segments, s.value_heads, 64 * s.key_bands, 64 * s.bands, L, M, BOTH);
    CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule could not be launched");
    return CARRY_OK;
}

/* Blocks of 64 values where heads and sequences are few for the GPU or keys are 256, else of 128. */
template <scan_kind KIND, scan_kind SECOND>
static carry_status run_scan(carry_ctx *ctx, const carry_delta_chunk_job *job, scan_launch &l, int units, int ordinal,
                             cudaStream_t stream) {
    int64_t segments = l.first.r.count > 0 ? l.first.r.count : l.first.s.segments;
    int64_t lanes = job->sequences * walked_heads(job) * segments, second = KIND != SECOND ? lanes : 0;
    if (job->key > D) {
        return launch_scan<1, 2, KIND, SECOND, 2>(ctx, l, lanes, second, ordinal, stream);
    }
    return l.first.s.segments == 1 && l.first.s.bands == 2 && lanes * 2 > units * 3 / 2
               ? launch_scan<2, 2, KIND, SECOND, 1>(ctx, l, lanes, second, ordinal, stream)
               : launch_scan<1, 3, KIND, SECOND, 1>(ctx, l, lanes, second, ordinal, stream);
}

} // namespace DELTA_CHUNK

#endif
