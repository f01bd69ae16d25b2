/* Attention, inside: checks, the runs of a call, the float64 reference, and code shared by forward and backward. */
#ifndef CARRY_ATTENTION_ATTENTION_H
#define CARRY_ATTENTION_ATTENTION_H

#include "carry/attention.h"
#include "core/memory.h"
#include "ops/kernels/kernels.h"

#define CARRY_ATTENTION_DIM 640 /* the largest D: latents of 512 with keys of 64 beside them */

/* All argument checks, done before anything is written. */
carry_status carry_attention_check(carry_ctx *ctx, const carry_attention_args *args);
carry_status carry_attention_check_backward(carry_ctx *ctx, const carry_attention_backward_args *args);
carry_status carry_attention_check_workspace(carry_ctx *ctx, const void *workspace, size_t bytes, size_t needed);
/* A workspace is aligned to 16 bytes and used from the first multiple of CARRY_ALIGN on. with_spare returns the bytes
   to ask for; align moves to that multiple. */
size_t carry_attention_with_spare(size_t bytes);
void carry_attention_align(void **workspace, size_t *bytes);

/* Fills `seen` with the runs that have keys and a bias above -infinity, or with one run of all rows if the call has no
   runs. Returns their number. The largest bias is subtracted from all biases, which does not change softmax. So a large
   bias that all runs share does not cost scores and lse their precision. */
int carry_attention_runs(const carry_attention_args *args, carry_key_run seen[CARRY_MAX_KEY_RUNS]);
/* The rows from *first to *end - 1 that query t may see, whatever the runs are. */
void carry_attention_span(const carry_attention_args *args, int64_t t, int64_t *first, int64_t *end);
/* The head of k and v that a head of q reads. */
int64_t carry_attention_key_head(const carry_attention_args *args, int64_t head);
float carry_attention_scale(const carry_attention_args *args);

/* Documents in packed rows: document i has rows starts[i] to starts[i + 1] - 1 of q, k, v and the other tensors. */
typedef struct carry_attention_documents {
    const int64_t *starts; /* [count + 1], on the CPU, from 0 to T */
    int64_t count;
} carry_attention_documents;
/* carry_attention_backward for each document, causal and without runs. On a GPU, one launch of the fast kernels
   processes many documents. lse holds [H, rows of the document] for each document, one after the other. dk and dv are
   overwritten. longest: the largest number of rows of a document. */
size_t carry_attention_backward_documents_workspace(const carry_attention_backward_args *args, int64_t longest);
carry_status carry_attention_backward_documents(carry_ctx *ctx, const carry_attention_backward_args *args,
                                                const carry_attention_documents *documents, void *workspace,
                                                size_t bytes);
/* The name of the method of a backward pass: "blocks" on the CPU; "wgmma", "mma" or "plain" on a GPU. */
const char *carry_attention_backward_method(const carry_attention_backward_args *args);

/* A step of generation: one token for each of B sequences on a GPU. Its kernels read the lengths from GPU memory, so it
   can be recorded in a graph. k and v [B, HK, D] are appended to the lengths[b] rows that sequence b has in the caches,
   and q sees all rows including the new one, or the last `window` of them if that is not 0.

   q, o: [B, H, D]; keys, values: [B, room, HK, D], packed; lengths: [B], i64, on the device, each below room. The scale
   is D^-1/2.

   paged: keys and values are a pool (ops/pool.h), [pages, CARRY_POOL_PAGE, HK, D], which already contains this token; k
   has a shape and no data. The pages of sequence b begin at pages[offsets[b]], both on the device; no sequence has more
   than `most` tokens. A pool in 8 bits has scales (ops/f8.h), [pages, CARRY_POOL_PAGE, HK]. */
typedef struct carry_attention_step_args {
    carry_tensor o, q, k, v;
    carry_tensor keys, values, lengths;
    carry_tensor key_scales, value_scales;
    int64_t window;
    bool paged;
    const int32_t *pages, *offsets;
    int64_t most;
} carry_attention_step_args;
/* True if the device has a kernel for it. The tensors need no data yet. */
bool carry_attention_steps(const carry_attention_step_args *args);
size_t carry_attention_step_workspace(const carry_attention_step_args *args); /* does not depend on the capacity */
carry_status carry_attention_step(carry_ctx *ctx, const carry_attention_step_args *args, void *workspace, size_t bytes);

/* carry_attention, causal and without runs, for one sequence whose keys and values are in the pages of a pool
   (ops/pool.h). args->k and args->v begin at the pool's first row and have S rows, S being the number of tokens. Token
   t is in page list[t / CARRY_POOL_PAGE]; the list is on the tensors' device. Keys and values may be 8-bit floats with
   scales (ops/f8.h), [rows, HK], and on the CPU any type. On a GPU, keys and values are first copied into the
   workspace, in the type of q. */
typedef struct carry_attention_pages {
    const int32_t *list;
    carry_tensor key_scales, value_scales; /* of 8-bit floats */
} carry_attention_pages;
size_t carry_attention_paged_workspace(const carry_attention_args *args);
carry_status carry_attention_paged(carry_ctx *ctx, const carry_attention_args *args, const carry_attention_pages *pages,
                                   void *workspace, size_t bytes);

/* The specification, in float64 and without blocks. Writes o [T, H, D] and lse [H, T] (or NULL), packed. */
carry_status carry_attention_reference(carry_ctx *ctx, double *o, double *lse, const carry_attention_args *args);
/* Writes dq [T, H, D], and dk and dv [S, HK, D] as the amounts that backward adds: zero in rows that are not seen. Of
   args->forward it reads only the inputs. */
carry_status carry_attention_reference_backward(carry_ctx *ctx, double *dq, double *dk, double *dv,
                                                const carry_attention_backward_args *args);

/* Scratch memory is divided into at most this many places, so that the size of a workspace depends on the call and not
   on the threads of a context. At most this many threads work; further ones are idle. */
#define CARRY_ATTENTION_PLACES 64

/* Units of work 0..units-1. Places, one for each thread, take them in order. */
typedef struct carry_attention_job {
    void (*unit)(const void *call, void *scratch, int64_t unit);
    const void *call;
    unsigned char *scratch; /* place i has scratch + i * scratch_bytes; NULL: units need none */
    size_t scratch_bytes;
    int64_t units;
} carry_attention_job;
void carry_attention_parallel(carry_ctx *ctx, const carry_attention_job *job);
int64_t carry_attention_places(int64_t units);

/* The address of row `row` of a head in a tensor [rows, H, D]. */
void *carry_attention_at(const carry_tensor *tensor, int64_t head, int64_t row);

/* Returns rows first..first+count-1 of a head as packed f32: in place if they are stored so, otherwise copied to
   `into`. Rows of a wider tensor are copied too: with 40 heads of 128 they are 20 KB apart, which maps to 4 sets of a
   cache. */
const float *carry_attention_load(const carry_kernels *kernels, const carry_tensor *tensor, int64_t head, int64_t first,
                                  int64_t count, float *into);
/* The same, but always copied to `into` and multiplied by `factor`. */
void carry_attention_load_scaled(const carry_kernels *kernels, const carry_tensor *tensor, int64_t head, int64_t first,
                                 int64_t count, float factor, float *into);

#endif
