/* Attention on CUDA devices: the entry in the table of devices. It chooses the kernel of a call in bf16 with D of 64,
   128 or 256:

     - no causal mask, as many key heads as query heads, and D of 64 or 128: the arguments become a job (kernels.cuh),
       which hopper.cu runs on Hopper GPUs and ampere.cu on others;
     - no key runs, and a causal mask, fewer key heads than query heads, or D of 256: grouped.cu, or hopper.cu for the
       calls that attention_causal_takes describes (kernels.cuh).

   A causal call of one query without a window masks nothing and counts as not causal. All other calls go to plain.cu,
   also those with a negative scale or with rows that are not aligned to 16 bytes. The backward pass is in
   backward.cu. */
#include <limits.h>
#include <math.h>

#include "device/cuda.h"

extern "C" {
#include "attention/attention.h"
#include "attention/device.h"
extern const carry_attention_device carry_attention_cuda;
}

#include "attention/backward.cuh"
#include "attention/combine.cuh"
#include "attention/grouped.cuh"
#include "attention/plain.cuh"

namespace {

constexpr float LOG2_E = 1.4426950408889634f;

bool is_typical(const carry_attention_args *args) {
    const int64_t D = args->q.shape[2];
    return args->q.dtype == CARRY_BF16 && (D == 64 || D == 128 || D == 256);
}

/* True for calls that need the kernels for causal masks, grouped heads or D of 256. A causal call of one query without
   a window does not: it masks nothing. */
bool is_grouped(const carry_attention_args *args) {
    const bool masks = args->causal && (args->q.shape[0] > 1 || args->window > 0);
    return masks || args->k.shape[1] != args->q.shape[1] || args->q.shape[2] == 256;
}

/* True if the fast kernels support the call. */
bool is_fast(const carry_attention_args *args) {
    const int64_t tiles = (args->q.shape[0] + CARRY_ATTENTION_ROWS - 1) / CARRY_ATTENTION_ROWS;
    const bool is_small = args->q.shape[0] <= INT_MAX / 2 && args->k.shape[0] <= INT_MAX / 2 &&
                          (tiles == 0 || args->q.shape[1] <= INT_MAX / 4 / tiles);
    return is_typical(args) && args->scale >= 0.0f && is_small && attention_fits(&args->q) &&
           attention_fits(&args->o) &&
           (args->k.shape[0] == 0 || (attention_fits(&args->k) && attention_fits(&args->v)));
}

attention_rows rows_of(const carry_tensor *t) {
    return {(const uint16_t *)t->data, t->stride[0], t->stride[1]};
}

/* Biases are at most 0. With a bias below this limit, the weight of a key is 0 in f32 anyway. */
float clamp(float bias) {
    return fmaxf(bias, -1e30f) * LOG2_E;
}

void make_job(attention_job *job, const carry_attention_args *args) {
    carry_key_run seen[CARRY_MAX_KEY_RUNS];
    *job = {};
    job->q = rows_of(&args->q);
    job->k = rows_of(&args->k);
    job->v = rows_of(&args->v);
    job->o = (uint16_t *)args->o.data;
    job->o_row = args->o.stride[0];
    job->o_head = args->o.stride[1];
    job->lse = (float *)args->lse.data;
    job->queries = (int)args->q.shape[0];
    job->heads = (int)args->q.shape[1];
    job->keys = (int)args->k.shape[0];
    job->scale = carry_attention_scale(args) * LOG2_E;
    int runs = carry_attention_runs(args, seen);
    for (int i = 0; i < runs; i++) {
        if (seen[i].count > 0) {
            job->run[job->runs++] = {(int)seen[i].first, (int)seen[i].count, clamp(seen[i].bias)};
        }
    }
}

int64_t query_tiles(const carry_attention_args *args) {
    return (args->q.shape[0] + CARRY_ATTENTION_ROWS - 1) / CARRY_ATTENTION_ROWS * args->q.shape[1];
}

/* Blocks of a grid: one per multiprocessor. */
int blocks_of(int ordinal) {
    int units = 0;
    bool known = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, ordinal) == cudaSuccess;
    (void)cudaGetLastError();
    return known && units > 0 ? units : 1;
}

/* Returns a size that is enough for any number of pieces and any runs, so that one workspace can be used while the
   number of keys grows. */
size_t workspace(const carry_attention_args *args) {
    int ordinal;
    if (!is_typical(args) || carry_backend_of(args->q.device, &ordinal) == NULL || args->q.shape[0] > INT_MAX / 2 ||
        args->q.shape[1] > INT_MAX / 2) {
        return 0;
    }
    int blocks = blocks_of(ordinal);
    if (is_grouped(args)) {
        return attention_grouped_workspace(args, blocks);
    }
    int64_t pieces = query_tiles(args) % blocks * CARRY_ATTENTION_PIECES;
    int64_t most = (int64_t)CARRY_ATTENTION_ROUNDS * blocks;
    return (size_t)(pieces < most ? pieces : most) * CARRY_ATTENTION_ROWS * (size_t)(args->q.shape[2] + 2) *
           sizeof(float);
}

carry_status combine(carry_ctx *ctx, const attention_job *job, int D, int ordinal, cudaStream_t stream) {
    unsigned blocks = (unsigned)(job->cut.rest * job->cut.rows / COMBINE_WARPS);
    if (D == 128) {
        attention_combine<128><<<blocks, 32 * COMBINE_WARPS, 0, stream>>>(*job);
    } else {
        attention_combine<64><<<blocks, 32 * COMBINE_WARPS, 0, stream>>>(*job);
    }
    CARRY_CUDA_TRY(cudaGetLastError(), "the pieces of attention could not be combined");
    return CARRY_OK;
}

carry_status forward(carry_ctx *ctx, const carry_attention_args *args, int ordinal, carry_stream *stream, void *memory,
                     size_t bytes) {
    (void)bytes;
    attention_job job;
    attention_cut *cut = &job.cut;
    int D = (int)args->q.shape[2];
    int64_t tiles = query_tiles(args);
    if (tiles == 0) {
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    const attention_way *way =
        carry_attention_hopper.works(ordinal) ? &carry_attention_hopper : &carry_attention_ampere;
    const bool grouped = is_grouped(args);
    if (!is_fast(args) || !(grouped ? attention_grouped_takes(args, ordinal) : way->works(ordinal))) {
        return attention_plain_forward(ctx, args);
    }
    int blocks = blocks_of(ordinal);
    if (grouped && attention_causal_takes(args, ordinal, blocks)) {
        make_job(&job, args);
        return attention_causal_forward(ctx, &job, (int)args->k.shape[1], ordinal, blocks, (cudaStream_t)stream);
    }
    if (grouped) {
        return attention_grouped_forward(ctx, args, ordinal, blocks, stream, memory);
    }
    make_job(&job, args);
    cut->rows = CARRY_ATTENTION_ROWS;
    cut->columns = way->columns(&job, D);
    cut->row_tiles = (job.queries + cut->rows - 1) / cut->rows;
    cut->key_tiles = key_tiles(&job, cut->columns);
    cut_queries(cut, tiles, blocks);
    cut->sums = (float *)memory;
    cut->weights = cut->sums + (size_t)cut->rest * (size_t)cut->pieces * (size_t)cut->rows * (size_t)D;
    int items = cut->whole + cut->rest * cut->pieces;
    CARRY_TRY(way->launch(ctx, &job, D, items < blocks ? items : blocks, ordinal, (cudaStream_t)stream));
    return cut->rest > 0 ? combine(ctx, &job, D, ordinal, (cudaStream_t)stream) : CARRY_OK;
}

size_t step_workspace(const carry_attention_step_args *args, int ordinal) {
    return attention_grouped_step_workspace(args, blocks_of(ordinal));
}

carry_status step(carry_ctx *ctx, const carry_attention_step_args *args, int ordinal, carry_stream *stream,
                  void *memory) {
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    return attention_grouped_step(ctx, args, ordinal, blocks_of(ordinal), stream, memory);
}

} // namespace

const carry_attention_device carry_attention_cuda = {"cuda",
                                                     workspace,
                                                     forward,
                                                     attention_backward_workspace,
                                                     attention_backward,
                                                     attention_backward_method,
                                                     attention_grouped_steps,
                                                     step_workspace,
                                                     step};
