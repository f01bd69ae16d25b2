/* The forward pass: its launches. */
#include "delta/cuda/chunk/host.cuh"
#include "delta/cuda/chunk/preparer.cuh"

namespace DELTA_CHUNK {

static bool aligned(const carry_delta_array *view) {
    return (uintptr_t)view->data % 16 == 0 && view->batch % 8 == 0 && view->token % 8 == 0 && view->head % 8 == 0;
}

static cuuint64_t stride_of(int64_t elements, int64_t count) {
    /* The stride of a dimension of size 1 is unused but must be valid. */
    return count > 1 ? (cuuint64_t)elements * 2 : 256;
}

/* Makes a tensor map of shape [batch, heads, bands of 64, tokens, 64]. A tile is 64 tokens of one head and `bands`
   bands. Bands beyond the size of the head are read as zeros and are not stored. */
static carry_status make_map(carry_ctx *ctx, carry_map_encoder encode, CUtensorMap *map, const char *name,
                             const carry_delta_array *of, const carry_delta_job *job, int64_t heads, int64_t size,
                             int bands, int ordinal) {
    const cuuint64_t sizes[] = {64, (cuuint64_t)(job->tokens > 0 ? job->tokens : 1), (cuuint64_t)(size / 64),
                                (cuuint64_t)heads, (cuuint64_t)job->batch};
    const cuuint64_t strides[] = {stride_of(of->token, job->tokens), 128, stride_of(of->head, heads),
                                  stride_of(of->batch, job->batch)};
    const cuuint32_t tile[] = {64, C, (cuuint32_t)bands, 1, 1};
    const cuuint32_t every[] = {1, 1, 1, 1, 1};
    CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, (void *)of->data, sizes, strides, tile, every,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        return carry_fail(ctx, CARRY_EDEVICE, "CUDA device %d: no tensor map of %s (the driver's error %d)", ordinal,
                          name, (int)result);
    }
    return CARRY_OK;
}

carry_status check_view(carry_ctx *ctx, const char *name, const carry_delta_array *view, int ordinal) {
    if (!aligned(view)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "CUDA device %d: %s starts at or has strides that are no multiples of 16 bytes", ordinal,
                          name);
    }
    return CARRY_OK;
}

carry_status check_values(carry_ctx *ctx, const char *name, const carry_delta_array *view, const carry_delta_job *job,
                          int ordinal) {
    CARRY_TRY(check_view(ctx, name, view, ordinal));
    if (shift_of(job) > 0 && job->value_heads > 1 && view->head != job->value) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "CUDA device %d: heads of %s are %lld elements apart, where %d are accepted", ordinal, name,
                          (long long)view->head, job->value);
    }
    return CARRY_OK;
}

carry_status map_keys(carry_ctx *ctx, carry_map_encoder encode, CUtensorMap *map, const char *name,
                      const carry_delta_array *of, const carry_delta_job *job, int ordinal) {
    return make_map(ctx, encode, map, name, of, job, job->heads, job->key, 2, ordinal);
}

carry_status map_values(carry_ctx *ctx, carry_map_encoder encode, CUtensorMap *map, const char *name,
                        const carry_delta_array *of, const carry_delta_job *job, int bands, int ordinal) {
    carry_delta_array parts = parts_of(of, job);
    return make_map(ctx, encode, map, name, &parts, job, walked_heads(job), part_size(job), bands, ordinal);
}

shape shape_of(const carry_delta_job *job) {
    return {(int)job->batch,
            (int)job->tokens,
            (int)job->heads,
            (int)walked_heads(job),
            (int)job->state_heads,
            (int)job->sequences,
            shift_of(job),
            (int)part_size(job) / 64,
            job->key / 64,
            job->borders,
            1,
            (int)((job->tokens + C - 1) / C),
            (int)job->first_token};
}

/* The constants are times measured on an H200. A chunk takes 1.2 us in the last walk and 1.3 us in the walks for pairs
   (1.0 us in the backward pass, where two walks run at once). If there are more blocks than multiprocessors, they run
   in turns. The fix-up takes 2.5 us for each segment (12 us in two calls, where all pairs are joined too). Many blocks
   compete for memory bandwidth: walks slow down once blocks occupy 0.8 of the multiprocessors, in the backward pass
   0.64. */
int segments_of(const carry_delta_job *job, int units, bool backward) {
    int64_t chunks = (job->tokens + C - 1) / C, lanes = part_size(job) / 64 * job->sequences * walked_heads(job);
    int64_t walks = backward ? 2 : 1;
    int best = 1, least_segments = job->split > 0 ? 1 : 2;
    double least = job->split > 0 ? 1e30 : 1.2 * (double)chunks, each = job->split > 0 ? 12.0 : 2.5;
    if (job->borders != NULL || job->key > D || (job->split == 0 && lanes * 3 > units)) {
        return 1;
    }
    units = job->split > 1 ? (units + job->split - 1) / job->split : units;
    for (int g = least_segments; g <= 32 && g * 8 <= chunks; g++) {
        double steps = (double)((chunks + g - 1) / g), pair = backward ? 1.0 : 1.3;
        int64_t pairs = lanes * (1 + 2 * (g - 2) + (backward ? g - 1 : 0)), blocks = walks * lanes * g;
        pairs = job->split > 0 ? lanes * g * (backward ? 3 : 2) : pairs;
        double last = (double)((blocks + units - 1) / units);
        double asked = (double)blocks / ((backward ? 0.64 : 0.8) * (double)units);
        last = asked > last ? asked : last;
        double time = steps * (pair * (double)((pairs + units - 1) / units) + 1.2 * last) + each * g + 5.0;
        if (time < least) {
            least = time;
            best = g;
        }
    }
    return best;
}

size_t pair_bytes(const carry_delta_job *job, int64_t segments, bool backward) {
    int64_t floats = job->sequences * walked_heads(job) * segments * (backward ? 3 : 2) * D * D;
    return segments > 1 || job->split > 0 ? (size_t)floats * sizeof(float) : 0;
}

prepare_args prepare_args_of(const carry_delta_job *job, const CUtensorMap *q, const CUtensorMap *k) {
    return {*q,
            *k,
            shape_of(job),
            job->beta,
            job->g,
            job->A_log,
            job->dt_bias,
            job->scale,
            job->beta_factor,
            job->l2norm,
            job->gate_inside,
            job->beta_sigmoid,
            (char *)job->workspace,
            (unsigned)(slots_of(job) * job->heads),
            NULL};
}

/* Blocks of a cluster if the scan runs at the same time. On an H200 this scan takes 606 microseconds beside clusters
   and 825 beside single blocks: supposedly clusters fill whole TPCs, whose two multiprocessors slow each other if they
   run different kernels. */
constexpr unsigned CLUSTER = 4;

template <int HALVES>
static carry_status launch_blocks(carry_ctx *ctx, const prepare_args &a, int units, int ordinal, cudaStream_t stream) {
    using block = prepare_block<HALVES>;
    auto kernel = prepare<HALVES>;
    CARRY_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, block::SHARED),
                   "no shared memory for the delta rule");
    unsigned needed = (a.items + block::GROUPS - 1) / block::GROUPS;
    unsigned blocks = needed < (unsigned)units ? needed : (unsigned)units;
    unsigned cluster = a.ready != NULL && blocks >= CLUSTER ? CLUSTER : 1;
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeClusterDimension;
    together.val.clusterDim.x = cluster;
    together.val.clusterDim.y = together.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks / cluster * cluster);
    config.blockDim = dim3(128 * block::GROUPS);
    config.dynamicSmemBytes = block::SHARED;
    config.stream = stream;
    config.attrs = &together;
    config.numAttrs = cluster > 1 ? 1 : 0;
    CARRY_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, a), "the delta rule could not be launched");
    return CARRY_OK;
}

carry_status launch_prepare(carry_ctx *ctx, const carry_delta_job *job, const prepare_args &a, int units, int ordinal,
                            cudaStream_t stream) {
    return job->key > D ? launch_blocks<2>(ctx, a, units, ordinal, stream)
                        : launch_blocks<1>(ctx, a, units, ordinal, stream);
}

/* The kernels are empty in code for architectures other than sm_90a, and a build may have no code for sm_90a. An empty
   kernel has no barriers and so no static shared memory. */
bool works(int ordinal) {
    int major = 0, minor = 0;
    cudaFuncAttributes attributes;
    bool is = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
              cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess && major == 9 &&
              minor == 0 && cudaFuncGetAttributes(&attributes, prepare<1>) == cudaSuccess &&
              attributes.sharedSizeBytes > 0;
    (void)cudaGetLastError();
    return is;
}

/* The layout of the workspace: tiles, pairs, and for a scan that runs beside prepare a word for every tile. */
static size_t pairs_at(const carry_delta_job *job) {
    return (size_t)(slots_of(job) * job->value_heads) * CHUNK_BYTES;
}
static size_t ready_bytes(const carry_delta_job *job) {
    return (size_t)(slots_of(job) * job->value_heads) * sizeof(uint32_t);
}

/* The number of multiprocessors on which the scan runs while prepare runs on the others; 0 if they run one after the
   other. On one multiprocessor of an H200, prepare takes 2.2 microseconds for a chunk of a value head, and the scan
   takes 1.2. */
static int scan_units(const carry_delta_job *job, int units) {
    int64_t lanes = part_size(job) / 64 * job->sequences * walked_heads(job);
    double chunks = (double)((job->tokens + C - 1) / C), tiles = (double)slots_of(job) * (double)job->value_heads;
    if (job->borders != NULL || job->key > D || job->split > 0 || lanes > units * 3 / 4 ||
        segments_of(job, units, false) > 1) {
        return 0;
    }
    double alone = tiles * 2.2 / units + chunks * 1.2, rest = tiles * 2.2 / (units - (int)lanes);
    return (rest > chunks * 1.2 ? rest : chunks * 1.2) + 4.0 < alone ? (int)lanes : 0;
}

size_t forward_bytes(const carry_delta_job *job, int units) {
    return pairs_at(job) + pair_bytes(job, segments_of(job, units, false), false) +
           (scan_units(job, units) > 0 ? ready_bytes(job) : 0);
}

/* Checks the job and fills the launch arguments, including the number of segments of each sequence. */
static carry_status describe_job(carry_ctx *ctx, const carry_delta_job *job, scan_launch &l, int *units, int ordinal) {
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(units, cudaDevAttrMultiProcessorCount, ordinal), "it cannot be asked");
    carry_map_encoder encode = NULL;
    scan_args &a = l.first;
    CARRY_TRY(check_view(ctx, "q", &job->q, ordinal));
    CARRY_TRY(check_view(ctx, "k", &job->k, ordinal));
    CARRY_TRY(check_values(ctx, "v", &job->v, job, ordinal));
    CARRY_TRY(check_values(ctx, "o", &job->o, job, ordinal));
    CARRY_TRY(carry_map_find_encoder(ctx, &encode, ordinal));
    CARRY_TRY(map_keys(ctx, encode, &a.q, "q", &job->q, job, ordinal));
    CARRY_TRY(map_keys(ctx, encode, &a.k, "k", &job->k, job, ordinal));
    CARRY_TRY(map_values(ctx, encode, &a.v, "v", &job->v, job, 1, ordinal));
    CARRY_TRY(map_values(ctx, encode, &a.o, "o", &job->o, job, 1, ordinal));
    a.s = shape_of(job);
    a.out = parts_of(&job->o, job);
    a.tiles = tiles_of(job);
    a.pairs = (float *)((char *)job->workspace + pairs_at(job));
    a.initial_state = job->initial;
    a.final_state = job->final_state;
    a.state_transposed = job->transposed;
    set_segments(job, segments_of(job, *units, false), &a.s);
    l.second.s = a.s;
    return CARRY_OK;
}

carry_status run_forward(carry_ctx *ctx, const carry_delta_job *job, int ordinal, cudaStream_t stream) {
    int units = 0;
    scan_launch l = {};
    CARRY_TRY(describe_job(ctx, job, l, &units, ordinal));
    prepare_args first = prepare_args_of(job, &l.first.q, &l.first.k);
    first.tiles = tiles_of(job);
    int taken = scan_units(job, units);
    if (taken > 0) { /* the scan waits for single tiles, prepare for nothing */
        first.ready = (uint32_t *)l.first.pairs;
        l.first.ready = first.ready;
        CARRY_CUDA_TRY(cudaMemsetAsync(first.ready, 0, ready_bytes(job), stream), "memory cannot be cleared");
    }
    CARRY_TRY(launch_prepare(ctx, job, first, units - taken, ordinal, stream));
    if (l.first.s.segments > 1) {
        CARRY_TRY(make_pairs<false>(ctx, job, l, ordinal, stream));
    }
    return run_scan<FORWARD, FORWARD>(ctx, job, l, units, ordinal, stream);
}

carry_status run_pair(carry_ctx *ctx, const carry_delta_job *job, float *M, float *L, int ordinal,
                      cudaStream_t stream) {
    int units = 0;
    scan_launch l = {};
    CARRY_TRY(describe_job(ctx, job, l, &units, ordinal));
    prepare_args first = prepare_args_of(job, &l.first.q, &l.first.k);
    CARRY_TRY(launch_prepare(ctx, job, first, units, ordinal, stream));
    return join_pairs<false>(ctx, job, l, L, M, ordinal, stream);
}

carry_status run_rest(carry_ctx *ctx, const carry_delta_job *job, const float *arrived, int ordinal,
                      cudaStream_t stream) {
    int units = 0;
    scan_launch l = {};
    CARRY_TRY(describe_job(ctx, job, l, &units, ordinal));
    const shape &s = l.first.s;
    l.first.initial_state = arrived != NULL ? arrived : job->initial;
    if (s.segments > 1) {
        arrived_states late = {arrived, false, s.state_heads, 64 * s.bands};
        CARRY_TRY(enter_segments<false>(ctx, job, l, late, ordinal, stream));
    }
    return run_scan<FORWARD, FORWARD>(ctx, job, l, units, ordinal, stream);
}

} // namespace DELTA_CHUNK
