/* Attention, inside: checks, the runs of a call, the float64 reference, and code shared by forward and backward. */
#ifndef CARRY_ATTENTION_ATTENTION_H
#define CARRY_ATTENTION_ATTENTION_H

#include "carry/attention.h"
#include "core/memory.h"
#include "ops/kernels/kernels.h"

#define CARRY_ATTENTION_DIM 640 /* the largest D: latents of 512 with keys of 64 beside them */

/* Every refusal, before anything is written. */
carry_status carry_attention_check(carry_ctx *ctx, const carry_attention_args *args);
carry_status carry_attention_check_backward(carry_ctx *ctx, const carry_attention_backward_args *args);
carry_status carry_attention_check_workspace(carry_ctx *ctx, const void *workspace, size_t bytes, size_t needed);
/* A workspace is aligned to 16 and used from the first multiple of CARRY_ALIGN on: bytes to ask for, and that place. */
size_t carry_attention_with_spare(size_t bytes);
void carry_attention_align(void **workspace, size_t *bytes);

/* The runs that are seen: those with keys and a bias above -infinity; all rows where a call names none. Biases are less
   the largest of them, which softmax does not notice: scores are then not rounded to the spacing of a large bias
   that all have, and neither is lse. */
int carry_attention_runs(const carry_attention_args *args, carry_key_run seen[CARRY_MAX_KEY_RUNS]);
/* The rows from *first on and before *end that query t may see, whatever the runs say. */
void carry_attention_span(const carry_attention_args *args, int64_t t, int64_t *first, int64_t *end);
/* The head of k and v that a head of q reads. */
int64_t carry_attention_key_head(const carry_attention_args *args, int64_t head);
float carry_attention_scale(const carry_attention_args *args);

/* Documents of packed rows: document i has rows starts[i] to starts[i + 1] of q, k, v and the others. */
typedef struct carry_attention_documents {
    const int64_t *starts; /* [count + 1], on the CPU, from 0 to T */
    int64_t count;
} carry_attention_documents;
/* carry_attention_backward for each document, causal and without runs: all documents together on a GPU that has a
   kernel for it. lse is [H, rows of the document] of each document, one after the other. dk and dv are overwritten.
   longest: rows of a document, at most. */
size_t carry_attention_backward_documents_workspace(const carry_attention_backward_args *args, int64_t longest);
carry_status carry_attention_backward_documents(carry_ctx *ctx, const carry_attention_backward_args *args,
                                                const carry_attention_documents *documents, void *workspace,
                                                size_t bytes);
/* The name of the method of a backward pass: "blocks" on the CPU; "wgmma", "mma" or "plain" on a GPU. */
const char *carry_attention_backward_method(const carry_attention_backward_args *args);

/* One token of each of B sequences on a device, which nothing of the host's state is in, so that it can be recorded: k
   and v [B, HK, D] are put behind the lengths[b] rows that sequence b has in the caches, and q sees all of those, of
   the last `window` where that is not 0.

   q, o: [B, H, D]; keys, values: [B, room, HK, D], packed; lengths: [B], i64, on the device, each below room. Scale
   D^-1/2.

   paged: keys and values are a pool (ops/pool.h), [pages, CARRY_POOL_PAGE, HK, D], which has those of this token
   already; k has a shape and no data. The pages of sequence b begin at pages[offsets[b]], both on the device; no
   sequence has more than `most` tokens. */
typedef struct carry_attention_step_args {
    carry_tensor o, q, k, v;
    carry_tensor keys, values, lengths;
    int64_t window;
    bool paged;
    const int32_t *pages, *offsets;
    int64_t most;
} carry_attention_step_args;
/* Whether the device has a kernel for it: data need not be there yet. */
bool carry_attention_steps(const carry_attention_step_args *args);
size_t carry_attention_step_workspace(const carry_attention_step_args *args); /* does not depend on the capacity */
carry_status carry_attention_step(carry_ctx *ctx, const carry_attention_step_args *args, void *workspace, size_t bytes);

/* carry_attention, causal and without runs, for one sequence whose keys and values are in the pages of a pool
   (ops/pool.h). args->k and args->v are the first S rows of the pool; token t is where `pages`, on the tensors' device,
   says. On a device they are copied into the workspace first. */
size_t carry_attention_paged_workspace(const carry_attention_args *args);
carry_status carry_attention_paged(carry_ctx *ctx, const carry_attention_args *args, const int32_t *pages,
                                   void *workspace, size_t bytes);

/* The specification, in float64 and without blocks: o [T, H, D], lse [H, T] (or NULL), packed. */
carry_status carry_attention_reference(carry_ctx *ctx, double *o, double *lse, const carry_attention_args *args);
/* dq [T, H, D]; dk and dv [S, HK, D]: what backward adds, zero in rows that are not seen. Of args->forward it reads
   inputs alone. */
carry_status carry_attention_reference_backward(carry_ctx *ctx, double *dq, double *dk, double *dv,
                                                const carry_attention_backward_args *args);

/* Scratch memory is by place, of which there are at most this many, so that a workspace depends on the call and not on
   the threads of a context; where there are more threads, the others have nothing to do. */
#define CARRY_ATTENTION_PLACES 64

/* Units of work 0..units-1, taken in order by as many places as there are threads. */
typedef struct carry_attention_job {
    void (*unit)(const void *call, void *scratch, int64_t unit);
    const void *call;
    unsigned char *scratch; /* of place i: scratch + i * scratch_bytes; NULL: units need none */
    size_t scratch_bytes;
    int64_t units;
} carry_attention_job;
void carry_attention_parallel(carry_ctx *ctx, const carry_attention_job *job);
int64_t carry_attention_places(int64_t units);

/* Row `row` of a head of a tensor [rows, H, D]. */
void *carry_attention_at(const carry_tensor *tensor, int64_t head, int64_t row);

/* Rows first..first+count-1 of a head, packed and in f32: where they lie when they lie so, otherwise copied to `into`.
   Rows of a wider tensor are copied too: with 40 heads of 128 they are 20 KB apart, which is 4 sets of a cache. */
const float *carry_attention_load(const carry_kernels *kernels, const carry_tensor *tensor, int64_t head, int64_t first,
                                  int64_t count, float *into);
/* Likewise, always in `into` and times `factor`. */
void carry_attention_load_scaled(const carry_kernels *kernels, const carry_tensor *tensor, int64_t head, int64_t first,
                                 int64_t count, float factor, float *into);

#endif
