/* Attention on Hopper GPUs: chooses the kernel and launches it. Tensor maps describe the layout of q, k and v to the
   copy engine. */
#include "attention/hopper_causal.cuh"
#include "attention/hopper_map.cuh"

namespace {

/* Kernels differ in the number of keys of a tile. A run's last tile may extend past the end of the run, which is wasted
   work, so the best kernel depends on the lengths of the runs. For example, 144 divides the 720 tokens of a frame of
   video. */
struct kernel {
    int D, columns, shared;
    int percent; /* time for a column, as a percentage of that of the fastest kernel */
    void (*run)(hopper_job);
};

template <int D, int N> constexpr kernel kernel_of(int percent) {
    using shape = hopper_shape<D, N, 2, true>;
    return {D, N, shape::SHARED, percent, attention_hopper<shape>};
}

/* The percentages were measured for single calls and for calls during the generation of video, where 4320 keys took 300
   us in tiles of 144 and 324 us in tiles of 160. */
const kernel kernels[] = {kernel_of<128, 176>(103), kernel_of<128, 160>(102), kernel_of<128, 144>(100),
                          kernel_of<128, 128>(102), kernel_of<64, 176>(100),  kernel_of<64, 128>(100)};

/* Returns the cheapest kernel. A tile costs its columns and about one more. */
const kernel *choose(const attention_job *job, int D) {
    const kernel *best = NULL;
    int64_t least = INT64_MAX;
    for (const kernel &k : kernels) {
        int64_t cost = (int64_t)key_tiles(job, k.columns) * (k.columns + 1) * k.percent;
        if (k.D == D && cost < least) {
            least = cost;
            best = &k;
        }
    }
    return best;
}

int columns(const attention_job *job, int D) {
    return choose(job, D)->columns;
}

/* The kernels are empty except in code for sm_90a, which a build may not have. An empty kernel has no barriers and so
   no static shared memory. */
bool works(int ordinal) {
    int major = 0, minor = 0;
    cudaFuncAttributes attributes;
    bool is = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
              cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess && major == 9 &&
              minor == 0 && cudaFuncGetAttributes(&attributes, kernels[0].run) == cudaSuccess &&
              attributes.sharedSizeBytes > 0;
    (void)cudaGetLastError();
    return is;
}

carry_status make_map(carry_ctx *ctx, carry_map_encoder encode, CUtensorMap *map, const char *name,
                      const attention_rows *of, int rows, int heads, int D, int box, int ordinal) {
    return attention_make_map(ctx, encode, map, name, of->data, of->row, of->head, rows, heads, D, box, ordinal);
}

carry_status launch(carry_ctx *ctx, const attention_job *job, int D, int blocks, int ordinal, cudaStream_t stream) {
    hopper_job h = {};
    carry_map_encoder encode = NULL;
    const kernel *k = choose(job, D);
    CARRY_TRY(carry_map_find_encoder(ctx, &encode, ordinal));
    h.job = *job;
    CARRY_TRY(make_map(ctx, encode, &h.q, "q", &job->q, job->queries, job->heads, D, CARRY_ATTENTION_ROWS, ordinal));
    if (job->runs > 0) {
        CARRY_TRY(make_map(ctx, encode, &h.k, "k", &job->k, job->keys, job->heads, D, k->columns, ordinal));
        CARRY_TRY(make_map(ctx, encode, &h.v, "v", &job->v, job->keys, job->heads, D, k->columns, ordinal));
    }
    CARRY_CUDA_TRY(cudaFuncSetAttribute(k->run, cudaFuncAttributeMaxDynamicSharedMemorySize, k->shared),
                   "no shared memory for attention");
    k->run<<<(unsigned)blocks, 384, (size_t)k->shared, stream>>>(h);
    CARRY_CUDA_TRY(cudaGetLastError(), "attention could not be launched");
    return CARRY_OK;
}

} // namespace

/* Tiles of keys fill the shared memory that the queries leave. */
using causal_shape = hopper_shape<256, 80, 2, true>;

bool attention_causal_takes(const carry_attention_args *args, int ordinal, int blocks) {
    const int64_t tiles = (args->q.shape[0] + causal_shape::ROWS - 1) / causal_shape::ROWS * args->q.shape[1];
    return args->causal && args->runs == 0 && args->q.shape[2] == causal_shape::D && args->scale >= 0.0f &&
           (args->window == 0 || args->window >= args->k.shape[0]) && tiles >= blocks &&
           args->k.shape[0] >= args->q.shape[0] && works(ordinal);
}

carry_status attention_causal_forward(carry_ctx *ctx, const attention_job *job, int key_heads, int ordinal, int blocks,
                                      cudaStream_t stream) {
    causal_job c = {};
    carry_map_encoder encode = NULL;
    auto *kernel = attention_causal<causal_shape>;
    constexpr int D = causal_shape::D;
    CARRY_TRY(carry_map_find_encoder(ctx, &encode, ordinal));
    c.job = *job;
    c.group = job->heads / key_heads;
    c.past = job->keys - job->queries;
    c.row_tiles = (job->queries + causal_shape::ROWS - 1) / causal_shape::ROWS;
    c.items = c.row_tiles * job->heads;
    CARRY_TRY(make_map(ctx, encode, &c.q, "q", &job->q, job->queries, job->heads, D, causal_shape::ROWS, ordinal));
    CARRY_TRY(make_map(ctx, encode, &c.k, "k", &job->k, job->keys, key_heads, D, causal_shape::N, ordinal));
    CARRY_TRY(make_map(ctx, encode, &c.v, "v", &job->v, job->keys, key_heads, D, causal_shape::N, ordinal));
    CARRY_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, causal_shape::SHARED),
                   "no shared memory for attention");
    kernel<<<(unsigned)min(c.items, blocks), causal_shape::THREADS, causal_shape::SHARED, stream>>>(c);
    CARRY_CUDA_TRY(cudaGetLastError(), "attention could not be launched");
    return CARRY_OK;
}

const attention_way carry_attention_hopper = {"hopper", works, columns, launch};
