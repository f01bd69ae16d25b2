/* The backward pass of attention on CUDA devices: chooses the kernels for a call and divides it into launches. Causal
   calls in bf16 or f16 with D of 64, 128 or 256 use tensor cores if they have no key runs, no window that hides keys,
   at least as many keys as queries, and rows aligned to 16 bytes: backward_hopper.cuh if the GPU and D allow it,
   otherwise backward_ampere.cuh. Everything else goes to plain.cu. */
#include <limits.h>

#include "device/cuda.h"

extern "C" {
#include "attention/device.h"
#include "core/context.h"
}

#include "attention/backward.cuh"
#include "attention/backward_job.cuh"
#include "attention/plain.cuh"

namespace {

constexpr size_t PIECE = 256; /* alignment of the parts of a workspace */
constexpr int64_t ROWS_LIMIT = INT_MAX / 4;

bool is_typical(const carry_attention_args *f) {
    return f->causal && f->runs == 0 && (f->q.dtype == CARRY_BF16 || f->q.dtype == CARRY_F16) &&
           (f->window == 0 || f->window >= f->k.shape[0]) && f->k.shape[0] >= f->q.shape[0] && f->q.shape[0] > 0 &&
           f->k.shape[1] > 0 && f->k.shape[0] <= ROWS_LIMIT && f->q.shape[1] <= ROWS_LIMIT / f->k.shape[0];
}

/* The kernels for a type and D on a device, or NULL. */
const backward_way *way_of(const carry_attention_args *f) {
    int ordinal;
    if (!is_typical(f) || carry_backend_of(f->q.device, &ordinal) == NULL) {
        return NULL;
    }
    const bool is_bf16 = f->q.dtype == CARRY_BF16;
    const int D = (int)f->q.shape[2];
    const backward_way *ways[] = {attention_backward_wgmma(is_bf16, D), attention_backward_mma(is_bf16, D)};
    for (const backward_way *way : ways) {
        if (way != NULL && way->works(D, ordinal)) {
            return way;
        }
    }
    return NULL;
}

/* Rows are read and written 16 bytes at a time. */
bool is_aligned(const carry_attention_backward_args *args) {
    const carry_attention_args *f = &args->forward;
    const carry_tensor *tensors[] = {&f->q, &f->k, &f->v, &f->o, &args->d_o, &args->dq, &args->dk, &args->dv};
    for (const carry_tensor *t : tensors) {
        if (!attention_fits(t)) {
            return false;
        }
    }
    return true;
}

size_t round_up(size_t bytes) {
    return (bytes + PIECE - 1) / PIECE * PIECE;
}

/* Returns the bytes of a workspace for `tiles` tiles of queries of all heads. If job is not NULL, sets its pointers to
   parts of `memory`. */
size_t lay_out(backward_job *job, const backward_way *way, int64_t heads, int64_t D, int64_t tiles, void *memory) {
    size_t used = 0;
    auto take = [&](size_t each) {
        char *at = (char *)memory + used;
        used += round_up((size_t)heads * (size_t)tiles * each);
        return at;
    };
    const size_t rows = (size_t)way->rows * sizeof(float);
    char *lse = take(rows), *mean = take(rows), *done = take(sizeof(int));
    char *sums = take(way->keeps_sums ? rows * (size_t)D : 0);
    char *ticket = (char *)memory + used;
    if (job != NULL) {
        job->lse = (float *)lse;
        job->mean = (float *)mean;
        job->done = (int *)done;
        job->sums = (float *)sums;
        job->ticket = (int *)ticket;
    }
    return used + PIECE;
}

int64_t tiles_of(const backward_way *way, int64_t rows) {
    return (rows + way->rows - 1) / way->rows;
}

/* The number of tiles for which a workspace of this size is enough. */
int64_t capacity(const backward_way *way, int64_t heads, int64_t D, size_t bytes) {
    const size_t rows = (size_t)way->rows * sizeof(float);
    const size_t each = (size_t)heads * (2 * rows + sizeof(int) + (way->keeps_sums ? rows * (size_t)D : 0));
    return bytes > 8 * PIECE ? (int64_t)((bytes - 8 * PIECE) / each) : 0;
}

void fill_job(backward_job *job, const carry_attention_backward_args *args, bool adds) {
    const carry_attention_args *f = &args->forward;
    auto rows = [](const carry_tensor &t) { return backward_rows{(uint16_t *)t.data, t.stride[0], t.stride[1]}; };
    job->q_rows = rows(f->q);
    job->k_rows = rows(f->k);
    job->v_rows = rows(f->v);
    job->d_o_rows = rows(args->d_o);
    job->o = rows(f->o);
    job->dq = rows(args->dq);
    job->dk = rows(args->dk);
    job->dv = rows(args->dv);
    job->lse_in = (const float *)f->lse.data;
    job->queries = (int)f->q.shape[0];
    job->keys = (int)f->k.shape[0];
    job->heads = (int)f->q.shape[1];
    job->key_heads = (int)f->k.shape[1];
    job->group = job->heads / job->key_heads;
    job->scale = carry_attention_scale(f);
    job->scale_log2 = job->scale * 1.4426950408889634f;
    job->adds = adds;
}

void add_document(backward_job *job, const backward_way *way, int64_t q_row, int64_t k_row, int64_t queries,
                  int64_t keys) {
    const int tiles = (int)tiles_of(way, queries);
    job->document[job->documents++] = {(int)q_row,  (int)k_row, (int)queries, (int)keys,
                                       job->padded, job->tiles, job->items};
    job->padded += tiles * way->rows;
    job->tiles += tiles;
    job->items += (int)((keys + way->keys - 1) / way->keys) * job->key_heads;
}

/* Each launch has all documents that fit into the workspace and the kernel's arguments. */
carry_status launch_documents(carry_ctx *ctx, backward_job *job, const backward_way *way, int D, int ordinal,
                              const carry_attention_documents *documents, void *workspace, size_t bytes,
                              cudaStream_t stream) {
    const int64_t most = capacity(way, job->heads, D, bytes);
    const int64_t *starts = documents->starts;
    for (int64_t i = 0; i < documents->count;) {
        job->documents = job->padded = job->tiles = job->items = 0;
        for (; i < documents->count && job->documents < BACKWARD_DOCUMENTS; i++) {
            const int64_t rows = starts[i + 1] - starts[i];
            if (job->documents > 0 && job->tiles + tiles_of(way, rows) > most) {
                break;
            }
            if (rows > 0) {
                add_document(job, way, starts[i], starts[i], rows, rows);
            }
        }
        if (job->documents > 0) {
            (void)lay_out(job, way, job->heads, D, job->tiles, workspace);
            CARRY_TRY(way->launch(ctx, job, D, ordinal, stream));
        }
    }
    return CARRY_OK;
}

} // namespace

const char *attention_backward_method(const carry_attention_backward_args *args) {
    const backward_way *way = way_of(&args->forward);
    return way != NULL && is_aligned(args) ? way->name : "plain";
}

/* Also enough for fewer queries, and for the plain kernels, which need only mean. */
size_t attention_backward_workspace(const carry_attention_backward_args *args) {
    const carry_attention_args *f = &args->forward;
    const backward_way *way = way_of(f);
    return way != NULL
               ? lay_out(NULL, way, f->q.shape[1], f->q.shape[2], tiles_of(way, f->q.shape[0]), NULL) + 8 * PIECE
               : attention_plain_backward_workspace(args);
}

carry_status attention_backward(carry_ctx *ctx, const carry_attention_backward_args *args,
                                const carry_attention_documents *documents, void *workspace, size_t bytes) {
    const carry_attention_args *f = &args->forward;
    const backward_way *way = is_aligned(args) ? way_of(f) : NULL;
    int ordinal;
    if (way == NULL) {
        return attention_plain_backward(ctx, args, workspace);
    }
    (void)carry_backend_of(f->q.device, &ordinal);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    backward_job job = {};
    cudaStream_t stream = (cudaStream_t)carry_ctx_stream(ctx, f->q.device);
    const int D = (int)f->q.shape[2];
    fill_job(&job, args, documents == NULL);
    if (documents != NULL) {
        return launch_documents(ctx, &job, way, D, ordinal, documents, workspace, bytes, stream);
    }
    add_document(&job, way, 0, 0, f->q.shape[0], f->k.shape[0]);
    (void)lay_out(&job, way, job.heads, D, job.tiles, workspace);
    return way->launch(ctx, &job, D, ordinal, stream);
}
