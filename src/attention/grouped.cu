/* Attention of language models on tensor cores (grouped_kernel.cuh): chooses the kernel and the number of pieces, and
   launches it. */
#include <limits.h>
#include <math.h>

#include "device/cuda.h"

#include "attention/grouped.cuh"
#include "attention/grouped_f8.cuh"
#include "attention/grouped_kernel.cuh"

extern "C" {
#include "attention/attention.h"
}

namespace {

attention_rows rows_of(const carry_tensor *t) {
    return {(const uint16_t *)t->data, t->stride[0], t->stride[1]};
}

int64_t tiles_of(const carry_attention_args *args) {
    const int64_t heads = args->k.shape[1] > 0 ? args->k.shape[1] : 1;
    return (args->q.shape[0] * (args->q.shape[1] / heads) + ROWS - 1) / ROWS * heads;
}

int pieces_of(int tiles, int key_tiles, int blocks) {
    const int pieces = tiles < blocks ? ROUNDS * blocks / tiles : 1;
    return min(pieces, min(PIECES, key_tiles));
}

grouped_job job_of(const carry_attention_args *args, int blocks, void *workspace) {
    grouped_job job = {};
    job.q = rows_of(&args->q);
    job.k = rows_of(&args->k);
    job.v = rows_of(&args->v);
    job.o = (uint16_t *)args->o.data;
    job.o_row = args->o.stride[0];
    job.o_head = args->o.stride[1];
    job.lse = (float *)args->lse.data;
    job.tokens = (int)args->q.shape[0];
    job.key_heads = (int)args->k.shape[1];
    job.group = (int)args->q.shape[1] / job.key_heads;
    job.rows = job.tokens * job.group;
    job.keys = (int)args->k.shape[0];
    job.past = job.keys - job.tokens;
    job.causal = args->causal;
    job.window = args->window < job.keys ? (int)args->window : 0;
    job.scale = carry_attention_scale(args) * LOG2_E;
    job.row_tiles = (job.rows + ROWS - 1) / ROWS;
    const int tiles = job.row_tiles * job.key_heads, key_tiles = (job.keys + COLUMNS - 1) / COLUMNS;
    job.pieces = pieces_of(tiles, key_tiles, blocks);
    job.sums = (float *)workspace;
    job.weights = job.sums + (size_t)tiles * (size_t)job.pieces * ROWS * (size_t)args->q.shape[2];
    return job;
}

/* A kernel, and its bytes of shared memory. */
struct chosen_kernel {
    void (*run)(grouped_job job);
    int bytes;
};

template <int D, bool STEP> chosen_kernel kernel_of(const grouped_job &job) {
    if constexpr (STEP) {
        if (job.key_codes != NULL) {
            return {attention_grouped_f8<D>, SHARED_BYTES_F8<D>};
        }
    }
    return {attention_grouped<D, STEP>, SHARED_BYTES<D>};
}

template <int D, bool STEP>
carry_status launch(carry_ctx *ctx, const grouped_job &job, int sequences, int ordinal, cudaStream_t stream) {
    const int tiles = job.row_tiles * job.key_heads;
    const chosen_kernel kernel = kernel_of<D, STEP>(job);
    CARRY_CUDA_TRY(cudaFuncSetAttribute(kernel.run, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.bytes),
                   "no shared memory for attention");
    const dim3 items((unsigned)(tiles * job.pieces), (unsigned)sequences);
    kernel.run<<<items, 32 * WARPS, (size_t)kernel.bytes, stream>>>(job);
    CARRY_CUDA_TRY(cudaGetLastError(), "attention could not be launched");
    if (job.pieces > 1) {
        const dim3 blocks((unsigned)(tiles * ROWS / WARPS), (unsigned)sequences);
        grouped_combine<D, STEP><<<blocks, 32 * WARPS, 0, stream>>>(job);
        CARRY_CUDA_TRY(cudaGetLastError(), "the pieces of attention could not be combined");
    }
    return CARRY_OK;
}

template <bool STEP>
carry_status launch_with(carry_ctx *ctx, const grouped_job &job, int64_t D, int sequences, int ordinal,
                         carry_stream *stream) {
    switch (D) {
    case 256:
        return launch<256, STEP>(ctx, job, sequences, ordinal, (cudaStream_t)stream);
    case 128:
        return launch<128, STEP>(ctx, job, sequences, ordinal, (cudaStream_t)stream);
    default:
        return launch<64, STEP>(ctx, job, sequences, ordinal, (cudaStream_t)stream);
    }
}

bool has_cores(int64_t D, int ordinal) {
    int major = 0, shared = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    (void)cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
    const int needed = D == 256 ? SHARED_BYTES_F8<256> : D == 128 ? SHARED_BYTES_F8<128> : SHARED_BYTES_F8<64>;
    return major >= 8 && shared >= needed;
}

} // namespace

size_t attention_grouped_workspace(const carry_attention_args *args, int blocks) {
    const int64_t most = (int64_t)ROUNDS * blocks;
    const int64_t tiles = tiles_of(args);
    return (size_t)(tiles < most / PIECES ? tiles * PIECES : most) * ROWS * (size_t)(args->q.shape[2] + 2) *
           sizeof(float);
}

bool attention_grouped_takes(const carry_attention_args *args, int ordinal) {
    return has_cores(args->q.shape[2], ordinal) && args->runs == 0 && args->scale >= 0.0f && args->k.shape[0] > 0 &&
           args->q.shape[0] * args->q.shape[1] <= INT_MAX / 2 && tiles_of(args) <= INT_MAX / (2 * PIECES);
}

carry_status attention_grouped_forward(carry_ctx *ctx, const carry_attention_args *args, int ordinal, int blocks,
                                       carry_stream *stream, void *workspace) {
    const grouped_job job = job_of(args, blocks, workspace);
    return launch_with<false>(ctx, job, args->q.shape[2], 1, ordinal, stream);
}

/* The number of pieces depends on the capacity of the caches. Pieces beyond a sequence's keys have no work. */
static int step_pieces(const carry_attention_step_args *args, int blocks) {
    const int tiles = (int)(args->q.shape[0] * args->k.shape[1]);
    const int64_t most = args->paged ? args->most : args->keys.shape[1];
    return pieces_of(tiles, (int)((most + COLUMNS - 1) / COLUMNS), blocks);
}

size_t attention_grouped_step_workspace(const carry_attention_step_args *args, int blocks) {
    const size_t rows = (size_t)(args->q.shape[0] * args->k.shape[1]) * (size_t)min(PIECES, ROUNDS * blocks) * ROWS;
    const size_t most = (size_t)(ROUNDS * blocks) * ROWS;
    return (rows < most ? rows : most) * (size_t)(args->q.shape[2] + 2) * sizeof(float);
}

bool attention_grouped_steps(const carry_attention_step_args *args, int ordinal) {
    const int64_t D = args->q.shape[2];
    return args->q.dtype == CARRY_BF16 &&
           (args->keys.dtype == CARRY_BF16 || (args->keys.dtype == CARRY_F8 && args->paged)) &&
           (D == 64 || D == 128 || D == 256) && has_cores(D, ordinal) && args->q.shape[1] <= ROWS * args->k.shape[1] &&
           args->q.shape[0] <= 65535 && (args->paged ? args->most : args->keys.shape[1]) <= INT_MAX / 2;
}

carry_status attention_grouped_step(carry_ctx *ctx, const carry_attention_step_args *args, int ordinal, int blocks,
                                    carry_stream *stream, void *workspace) {
    const int sequences = (int)args->q.shape[0], heads = (int)args->k.shape[1], D = (int)args->q.shape[2];
    const int64_t room = args->paged ? args->most : args->keys.shape[1];
    const int64_t *lengths = (const int64_t *)args->lengths.data;
    const append_job append = {rows_of(&args->k),
                               rows_of(&args->v),
                               (uint16_t *)args->keys.data,
                               (uint16_t *)args->values.data,
                               lengths,
                               room,
                               heads,
                               D};
    if (!args->paged) {
        attention_append<<<(unsigned)sequences, 128, 0, (cudaStream_t)stream>>>(append);
        CARRY_CUDA_TRY(cudaGetLastError(), "keys and values could not be kept");
    }
    grouped_job job = {};
    job.q = {(const uint16_t *)args->q.data, 0, args->q.stride[1]};
    job.k = {(const uint16_t *)args->keys.data, (int64_t)heads * D, D};
    job.v = {(const uint16_t *)args->values.data, (int64_t)heads * D, D};
    job.o = (uint16_t *)args->o.data;
    job.o_head = args->o.stride[1];
    job.q_next = args->q.stride[0];
    job.o_next = args->o.stride[0];
    if (args->keys.dtype == CARRY_F8) {
        job.key_codes = (const uint8_t *)args->keys.data;
        job.value_codes = (const uint8_t *)args->values.data;
        job.key_scales = (const uint8_t *)args->key_scales.data;
        job.value_scales = (const uint8_t *)args->value_scales.data;
    }
    job.k_next = job.v_next = args->paged ? 0 : room * heads * D;
    job.pages = args->paged ? args->pages : NULL;
    job.offsets = args->offsets;
    job.lengths = lengths;
    job.tokens = 1;
    job.key_heads = heads;
    job.group = job.rows = (int)args->q.shape[1] / heads;
    job.keys = (int)room;
    job.causal = true;
    job.window = args->window < room ? (int)args->window : 0;
    job.scale = LOG2_E / sqrtf((float)D);
    job.row_tiles = 1;
    job.pieces = step_pieces(args, blocks);
    job.sums = (float *)workspace;
    job.weights = job.sums + (size_t)sequences * (size_t)heads * (size_t)job.pieces * ROWS * (size_t)D;
    return launch_with<true>(ctx, job, D, sequences, ordinal, stream);
}
