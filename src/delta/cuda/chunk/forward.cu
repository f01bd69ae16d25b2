/* The forward pass: its launches, and the kernel prepare. */
#include "delta/cuda/chunk/host.cuh"

namespace DELTA_CHUNK {

/* Computes q k^T and k k^T over 128 keys of a chunk. add = 0 overwrites the sums, add = 1 adds to them. */
static __device__ __forceinline__ void multiply(float (&kk)[32], float (&qk)[32], uint32_t q, uint32_t k, int add) {
    using namespace hopper;
    products_begin();
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t along = i / 4 * BAND + i % 4 * 32;
        product_both(kk, describe(k + along, 0), describe(k + along, 0), add || i > 0);
        product_both(qk, describe(q + along, 0), describe(k + along, 0), add || i > 0);
    }
    products_commit();
    products_wait<0>();
    keep_below(kk);
    keep_below(qk);
}

/* Computes the tiles of 1 or 2 value heads (`heads`) in shared memory at `data`. Their numbers must be in `n`. The
   scores use the same memory first. */
static __device__ __forceinline__ void make_tiles(const prepare_args &a, prepare_numbers &n, const float (&kk)[32],
                                                  const float (&qk)[32], uint32_t start, char *data, int heads,
                                                  int thread) {
    float *triangles = (float *)(data + 2 * CHUNK_BYTES);
    int warp = thread / 32, lane = thread % 32;
    for (int e = 0; e < heads; e++) {
        weigh(a, n, e, kk, qk, triangles + e * TRIANGLE, scores_of(data + e * CHUNK_BYTES, warp, lane), warp, lane);
    }
    __syncthreads();
    invert(triangles, warp, lane);
    __syncthreads();
    for (int e = 0; e < heads; e++) {
        uint32_t T = start + e * CHUNK_BYTES, P[32];
        float W[32];
        load_scores(P, scores_of(data + e * CHUNK_BYTES, warp, lane), warp);
        __syncthreads(); /* all threads have read P */
        finish(a, n, e, triangles + e * TRIANGLE, T, start + REST_AT, data + e * CHUNK_BYTES, thread);
        hopper::fence_async();
        __syncthreads();
        apply_inverse(W, P, T, start + REST_AT);
        store_weights(T + KEPT, W, warp, lane);
    }
    hopper::fence_async();
    __syncthreads();
}

__global__ void __launch_bounds__(128, 3) prepare(const __grid_constant__ prepare_args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    extern __shared__ char memory[];
    __shared__ prepare_numbers n;
    int head = (int)(blockIdx.x % (unsigned)a.s.heads), slot = (int)(blockIdx.x / (unsigned)a.s.heads);
    chunk_place at = chunk_of(a.s, slot);
    if (at.length <= 0) {
        return;
    }
    int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32;
    uint32_t start = (shared_address(memory) + 1023u) & ~1023u;
    char *data = memory + (start - shared_address(memory));
    int halves = halves_of(a.s);
    uint32_t full = shared_address(&n.full), q = start, k = start + halves * TILE;
    if (thread == 0) {
        barrier_init(full, 1);
        fence_async();
        barrier_expect(full, halves * 2 * TILE);
        for (int i = 0; i < halves; i++) {
            copy_tile(q + i * TILE, &a.q, at.first, 2 * i, head, at.batch, full);
            copy_tile(k + i * TILE, &a.k, at.first, 2 * i, head, at.batch, full);
        }
    }
    int group = (a.s.value_heads >> a.s.shift) / a.s.heads, value_head = head * group;
    __syncthreads();
    if (warp < 2) { /* the first pair's numbers come while the tiles do */
        load_numbers(a, at, value_head + min(warp, group - 1), n, warp, lane);
    }
    barrier_wait(full, 0);
    if (at.length < C) {
        clear_rows(q, 2 * halves, at.length, thread);
        clear_rows(k, 2 * halves, at.length, thread);
        fence_async();
        __syncthreads();
    }
    n.inverse_norm[thread / C][thread % C] = a.l2norm ? inverse_norm(thread < C ? k : q, halves, thread % C) : 1.0f;
    float kk[32], qk[32];
    multiply(kk, qk, q, k, 0);
    if (halves > 1) {
        multiply(kk, qk, q + TILE, k + TILE, 1);
    }
    __syncthreads();
    for (int pair = 0; pair < group; pair += 2) {
        int heads = min(2, group - pair);
        if (pair > 0) {
            if (thread == 0) {
                stores_wait_read();
            }
            if (warp < heads) {
                load_numbers(a, at, value_head + pair + warp, n, warp, lane);
            }
            __syncthreads();
        }
        make_tiles(a, n, kk, qk, start, data, heads, thread);
        if (thread == 0) {
            for (int e = 0; e < heads; e++) {
                /* In parts of powers of two: initcheck of CUDA 13.0 does not see all of another store. */
                int64_t tile = (int64_t)slot * (a.s.value_heads >> a.s.shift) + value_head + pair + e;
                char *to = a.tiles + tile * CHUNK_BYTES;
                store_bytes(to, start + e * CHUNK_BYTES, 8192);
                store_bytes(to + 8192, start + e * CHUNK_BYTES + 8192, NUMBERS_AT - 8192);
                store_bytes(to + NUMBERS_AT, start + e * CHUNK_BYTES + NUMBERS_AT, NUMBERS_BYTES);
            }
            stores_commit();
        }
    }
    if (thread == 0) {
        stores_wait_read();
    }
#endif
}

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
                          "CUDA device %d: heads of %s are %lld elements apart, where 256 are accepted", ordinal, name,
                          (long long)view->head);
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
            (char *)job->workspace};
}

carry_status launch_prepare(carry_ctx *ctx, const carry_delta_job *job, const prepare_args &a, int ordinal,
                            cudaStream_t stream) {
    CARRY_CUDA_TRY(cudaFuncSetAttribute(prepare, cudaFuncAttributeMaxDynamicSharedMemorySize, PREPARE_SHARED),
                   "no shared memory for the delta rule");
    prepare<<<(unsigned)(slots_of(job) * job->heads), 128, PREPARE_SHARED, stream>>>(a);
    CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule could not be launched");
    return CARRY_OK;
}

/* The kernels are empty in code for architectures other than sm_90a, and a build may have no code for sm_90a. An empty
   kernel is recognised by its missing barriers. */
bool works(int ordinal) {
    int major = 0, minor = 0;
    cudaFuncAttributes attributes;
    bool is = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
              cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess && major == 9 &&
              minor == 0 && cudaFuncGetAttributes(&attributes, prepare) == cudaSuccess &&
              attributes.sharedSizeBytes > 0;
    (void)cudaGetLastError();
    return is;
}

size_t forward_bytes(const carry_delta_job *job, int units) {
    return (size_t)(slots_of(job) * job->value_heads) * CHUNK_BYTES +
           pair_bytes(job, segments_of(job, units, false), false);
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
    a.tiles = (const char *)job->workspace;
    a.pairs = (float *)((char *)job->workspace + (size_t)(slots_of(job) * job->value_heads) * CHUNK_BYTES);
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
    CARRY_TRY(launch_prepare(ctx, job, first, ordinal, stream));
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
    CARRY_TRY(launch_prepare(ctx, job, first, ordinal, stream));
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
