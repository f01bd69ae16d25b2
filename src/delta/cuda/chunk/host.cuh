/* Host functions around the kernels of chunk/. Tensor maps describe the layout of tensors to TMA. */
#ifndef CARRY_DELTA_CHUNK_HOST_CUH
#define CARRY_DELTA_CHUNK_HOST_CUH

#include "device/tensor_map.cuh"

#include "delta/cuda/chunk/prepare.cuh"
#include "delta/cuda/chunk/scan.cuh"

namespace DELTA_CHUNK {

/* Defined in forward.cu. Make tensor maps: map_keys for q, k and their gradients (tiles of two bands), map_values for
   v, o and their gradients. */
carry_status map_keys(carry_ctx *ctx, carry_map_encoder encode, CUtensorMap *map, const char *name,
                      const carry_delta_array *of, const carry_delta_job *job, int ordinal);
carry_status map_values(carry_ctx *ctx, carry_map_encoder encode, CUtensorMap *map, const char *name,
                        const carry_delta_array *of, const carry_delta_job *job, int bands, int ordinal);
carry_status check_view(carry_ctx *ctx, const char *name, const carry_delta_array *view, int ordinal);
carry_status check_values(carry_ctx *ctx, const char *name, const carry_delta_array *view, const carry_delta_job *job,
                          int ordinal);

/* A value head of more than D values is walked as 1 << shift heads. The same holds for v, o and their gradients. */
static inline int shift_of(const carry_delta_job *job) {
    return job->value > 2 * D ? 2 : job->value > D ? 1 : 0;
}
static inline int64_t walked_heads(const carry_delta_job *job) {
    return job->value_heads << shift_of(job);
}
static inline int64_t part_size(const carry_delta_job *job) {
    return job->value >> shift_of(job);
}
static inline carry_delta_array parts_of(const carry_delta_array *of, const carry_delta_job *job) {
    carry_delta_array view = *of;
    view.head = shift_of(job) > 0 ? D : view.head;
    return view;
}
/* The prepared tiles: at the start of the workspace, or in the kept memory. A pass in two calls keeps none. */
static inline char *tiles_of(const carry_delta_job *job) {
    return (char *)(job->kept != NULL && job->split == 0 ? (void *)job->kept : job->workspace);
}
shape shape_of(const carry_delta_job *job); /* in one segment */
/* Returns the number of segments of a sequence that is fastest on `units` multiprocessors. In the backward pass, two
   walks run at once. */
int segments_of(const carry_delta_job *job, int units, bool backward);
size_t pair_bytes(const carry_delta_job *job, int64_t segments, bool backward);
prepare_args prepare_args_of(const carry_delta_job *job, const CUtensorMap *q, const CUtensorMap *k);
/* Entries of DELTA_CHUNK_KERNELS. */
bool works(int ordinal);
size_t forward_bytes(const carry_delta_job *job, int units);
carry_status run_forward(carry_ctx *ctx, const carry_delta_job *job, int ordinal, cudaStream_t stream);
carry_status run_pair(carry_ctx *ctx, const carry_delta_job *job, float *M, float *L, int ordinal, cudaStream_t stream);
carry_status run_rest(carry_ctx *ctx, const carry_delta_job *job, const float *arrived, int ordinal,
                      cudaStream_t stream);
/* keys.cu. */
bool keys_apply(const carry_delta_job *job);
size_t keys_bytes(const carry_delta_job *job, int units);
carry_status run_keys(carry_ctx *ctx, const carry_delta_job *job, int ordinal, cudaStream_t stream);
/* prepare on `units` multiprocessors. */
carry_status launch_prepare(carry_ctx *ctx, const carry_delta_job *job, const prepare_args &a, int units, int ordinal,
                            cudaStream_t stream);

/* Defined in scan.cu for each of the kernels in scan_parts.cuh. `lanes` and `second_lanes`: the number of sequences (or
   segments) times value heads that the first and the second kind of the kernel walk. */
template <typename Kernel>
carry_status launch_scan(carry_ctx *ctx, scan_launch &l, int64_t lanes, int64_t second_lanes, int ordinal,
                         cudaStream_t stream);

/* Divides sequences into segments with equal numbers of chunks. */
static inline void set_segments(const carry_delta_job *job, int segments, shape *s) {
    int chunks = job->tokens > 0 ? (int)((job->tokens + C - 1) / C) : 1;
    s->segment_chunks = (chunks + segments - 1) / segments;
    s->segments = (chunks + s->segment_chunks - 1) / s->segment_chunks;
}

/* Computes the pairs (M, L) of all segments. */
template <bool BOTH>
static carry_status walk_pairs(carry_ctx *ctx, const carry_delta_job *job, scan_launch &l, int ordinal,
                               cudaStream_t stream) {
    int64_t lanes = job->sequences * walked_heads(job) * l.first.s.segments;
    l.first.parts = l.second.parts = BOTH ? 3 : 2;
    return BOTH ? launch_scan<scans::backward_pairs>(ctx, l, 2 * lanes, lanes, ordinal, stream)
                : launch_scan<scans::forward_pairs>(ctx, l, 2 * lanes, 0, ordinal, stream);
}

/* Computes the state that enters each segment from the pairs. */
template <bool BOTH>
static carry_status enter_segments(carry_ctx *ctx, const carry_delta_job *job, scan_launch &l,
                                   const arrived_states &arrived, int ordinal, cudaStream_t stream) {
    const shape &s = l.first.s;
    l.first.parts = l.second.parts = BOTH ? 3 : 2;
    dim3 blocks((unsigned)s.bands * (64 / FIX_ROWS), (unsigned)(job->sequences * s.value_heads), BOTH ? 2 : 1);
    fix_up<<<blocks, FIX_THREADS, 0, stream>>>(l.first.pairs, l.first.parts, s.segments, s.value_heads,
                                               64 * s.key_bands, arrived);
    CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule could not be launched");
    return CARRY_OK;
}

/* Computes the states that enter segments, so that all segments can be walked at once. */
template <bool BOTH>
static carry_status make_pairs(carry_ctx *ctx, const carry_delta_job *job, scan_launch &l, int ordinal,
                               cudaStream_t stream) {
    CARRY_TRY(walk_pairs<BOTH>(ctx, job, l, ordinal, stream));
    return enter_segments<BOTH>(ctx, job, l, arrived_states{}, ordinal, stream);
}

/* Computes the pair of each whole sequence. If M is NULL, only L is stored. */
template <bool BOTH>
static carry_status join_pairs(carry_ctx *ctx, const carry_delta_job *job, scan_launch &l, float *L, float *M,
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

/* Runs the scan with blocks of 128 values if K is at most 128, V is at least 128, sequences are not divided into
   segments, and there are enough heads and sequences to fill the GPU; else with blocks of 64. */
template <scan_kind KIND, scan_kind SECOND>
static carry_status run_scan(carry_ctx *ctx, const carry_delta_job *job, scan_launch &l, int units, int ordinal,
                             cudaStream_t stream) {
    int64_t segments = l.first.r.count > 0 ? l.first.r.count : l.first.s.segments;
    int64_t lanes = job->sequences * walked_heads(job) * segments, second = KIND != SECOND ? lanes : 0;
    if (job->key > D) {
        return launch_scan<scan_kernel<block_of_256_keys, KIND, SECOND>>(ctx, l, lanes, second, ordinal, stream);
    }
    return l.first.s.segments == 1 && l.first.s.bands == 2 && lanes * 2 > units * 3 / 2
               ? launch_scan<scan_kernel<block_of_128, KIND, SECOND>>(ctx, l, lanes, second, ordinal, stream)
               : launch_scan<scan_kernel<block_of_64, KIND, SECOND>>(ctx, l, lanes, second, ordinal, stream);
}

} // namespace DELTA_CHUNK

#endif
