/* What launches of the chunk kernels share. Tensor maps tell the copy engine how q, k and v lie. */
#ifndef CARRY_DELTA_CHUNK_HOST_CUH
#define CARRY_DELTA_CHUNK_HOST_CUH

#include "device/cuda.h"

#include "delta/chunk_prepare.cuh"
#include "delta/chunk_scan.cuh"

namespace delta_chunk {

typedef decltype(&cuTensorMapEncodeTiled) encoder;

/* chunk_forward.cu */
carry_status find_encoder(carry_ctx *ctx, encoder *encode, int ordinal);
/* [batch, heads, D / 64, tokens, 64], of which a tile is 64 tokens of one head, `bands` bands. */
carry_status make_map(carry_ctx *ctx, encoder encode, CUtensorMap *map, const char *name, const carry_delta_view *of,
                      const carry_delta_chunk_job *job, int64_t heads, int bands, int ordinal);
carry_status check_view(carry_ctx *ctx, const char *name, const carry_delta_view *view, int ordinal);
shape shape_of(const carry_delta_chunk_job *job); /* in one segment */
/* How many segments a sequence is best walked in on so many multiprocessors. */
int segments_of(const carry_delta_chunk_job *job, int units);
size_t pair_bytes(const carry_delta_chunk_job *job, int units);
prepare_args prepare_args_of(const carry_delta_chunk_job *job, const CUtensorMap *q, const CUtensorMap *k);
carry_status launch_prepare(carry_ctx *ctx, const carry_delta_chunk_job *job, const prepare_args &a, int ordinal,
                            cudaStream_t stream);

template <int GROUPS, int STAGES, scan_kind KIND>
static carry_status launch_scan(carry_ctx *ctx, const scan_args &a, int64_t lanes, int ordinal, cudaStream_t stream) {
    using shape = scan_shape<GROUPS, STAGES, KIND>;
    CARRY_CUDA_TRY(cudaFuncSetAttribute(scan<shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::SHARED),
                   "no shared memory for the delta rule");
    scan<shape><<<(unsigned)(lanes * 2 / GROUPS), shape::THREADS, shape::SHARED, stream>>>(a);
    CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule could not be launched");
    return CARRY_OK;
}

/* Blocks of 64 values where heads and sequences are few for the GPU, else of 128. Few indeed: segments (a.pairs has room
   for them), whose pairs are made first. */
template <scan_kind KIND>
static carry_status run_scan(carry_ctx *ctx, const carry_delta_chunk_job *job, scan_args a, int ordinal,
                             cudaStream_t stream) {
    int units = 0;
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, ordinal), "it cannot be asked");
    int64_t lanes = job->sequences * job->value_heads;
    int segments = segments_of(job, units);
    if (segments > 1) {
        int chunks = (int)((job->tokens + C - 1) / C);
        a.s.segment_chunks = (chunks + segments - 1) / segments;
        a.s.segments = (chunks + a.s.segment_chunks - 1) / a.s.segment_chunks;
        lanes *= a.s.segments;
        constexpr bool BACKWARD = KIND == BACK; /* M is there from KEEP then */
        CARRY_TRY((launch_scan<1, 3, BACKWARD ? BACK_PAIR : PAIR>(ctx, a, BACKWARD ? lanes : 2 * lanes, ordinal,
                                                                  stream)));
        fix_up<BACKWARD><<<dim3(D / 16, (unsigned)(job->sequences * job->value_heads)), 128, 0, stream>>>(
            a.pairs, a.s.segments, (int)job->value_heads);
        CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule could not be launched");
        return launch_scan<1, 3, KIND>(ctx, a, lanes, ordinal, stream);
    }
    return lanes * 2 > units * 3 / 2 ? launch_scan<2, 2, KIND>(ctx, a, lanes, ordinal, stream)
                                     : launch_scan<1, 3, KIND>(ctx, a, lanes, ordinal, stream);
}

} // namespace delta_chunk

#endif
