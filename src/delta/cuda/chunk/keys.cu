/* Forward with gates by key channel (KDA), K = 128: a separate prepare, then the walks of scan.cuh. keys/ calls it. */
#include "delta/cuda/chunk/host.cuh"
#include "delta/cuda/chunk/keys_prepare.cuh"

namespace DELTA_CHUNK {

static bool in_sixteens(const carry_delta_array *view) {
    const int64_t each = 16 / (int64_t)carry_dtype_size(view->dtype);
    return (uintptr_t)view->data % 16 == 0 && view->batch % each == 0 && view->token % each == 0 &&
           view->head % each == 0;
}

/* True if TMA and 16-byte loads can read all tensors. */
bool keys_apply(const carry_delta_job *job) {
    return in_sixteens(&job->q) && in_sixteens(&job->k) && in_sixteens(&job->v) && in_sixteens(&job->o) &&
           in_sixteens(&job->g) &&
           (shift_of(job) == 0 || job->value_heads == 1 || (job->v.head == job->value && job->o.head == job->value));
}

size_t keys_bytes(const carry_delta_job *job, int units) {
    return (size_t)(slots_of(job) * job->value_heads) * KEYS_BYTES +
           pair_bytes(job, segments_of(job, units, false), false);
}

static carry_status describe_keys(carry_ctx *ctx, const carry_delta_job *job, scan_launch &l, int units, int ordinal) {
    carry_map_encoder encode = NULL;
    scan_args &a = l.first;
    CARRY_TRY(carry_map_find_encoder(ctx, &encode, ordinal));
    CARRY_TRY(map_values(ctx, encode, &a.v, "v", &job->v, job, 1, ordinal));
    CARRY_TRY(map_values(ctx, encode, &a.o, "o", &job->o, job, 1, ordinal));
    a.s = shape_of(job);
    a.out = parts_of(&job->o, job);
    a.tiles = (const char *)job->workspace;
    a.pairs = (float *)((char *)job->workspace + (size_t)(slots_of(job) * job->value_heads) * KEYS_BYTES);
    a.initial_state = job->initial;
    a.final_state = job->final_state;
    a.kept = job->kept;
    a.state_transposed = job->transposed;
    set_segments(job, segments_of(job, units, false), &a.s);
    l.second.s = a.s;
    return CARRY_OK;
}

carry_status run_keys(carry_ctx *ctx, const carry_delta_job *job, int ordinal, cudaStream_t stream) {
    int units = 0;
    scan_launch l = {};
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, ordinal), "it cannot be asked");
    CARRY_TRY(describe_keys(ctx, job, l, units, ordinal));
    keys_args first = {prepare_args_of(job, &l.first.q, &l.first.k), job->q, job->k};
    CARRY_CUDA_TRY(cudaFuncSetAttribute(prepare_keys, cudaFuncAttributeMaxDynamicSharedMemorySize, KEYS_SHARED),
                   "no shared memory for the delta rule");
    prepare_keys<<<(unsigned)(slots_of(job) * job->value_heads), 128, KEYS_SHARED, stream>>>(first);
    CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule could not be launched");
    const shape &s = l.first.s;
    int64_t lanes = job->sequences * walked_heads(job) * s.segments;
    if (s.segments > 1) {
        l.first.parts = l.second.parts = 2;
        CARRY_TRY(launch_scan<scans::keyed_pairs>(ctx, l, 2 * lanes, 0, ordinal, stream));
        CARRY_TRY(enter_segments<false>(ctx, job, l, arrived_states{}, ordinal, stream));
    }
    return s.segments == 1 && s.bands == 2 && lanes * 2 > units * 3 / 2
               ? launch_scan<scans::keyed_wide>(ctx, l, lanes, 0, ordinal, stream)
               : launch_scan<scans::keyed>(ctx, l, lanes, 0, ordinal, stream);
}

} // namespace DELTA_CHUNK
