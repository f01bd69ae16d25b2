/* The video transformer of Wan2.1's shape: weights, configurations, and the causal forward over a cache.

   Tokens are patches (1, 2, 2) of latents [16, F, h, w], in the order (frame, row, column). A block:

       x += gate1 SelfAttn(LN(x)(1 + scale1) + shift1)
       x += CrossAttn(LN3(x), text)
       x += gate2 FFN(LN(x)(1 + scale2) + shift2)

   q and k are normalised over the whole width; those of self-attention then get rotary positions of frame, row and
   column. dit_block.h has the equations in full. Model code calls operators on tensors and nothing else, so it does not
   know where they run.

   Over a mesh. A model may be a shard: the outputs of q, k and v (whole heads) and of the first product of the FFN are
   split over ranks, and with them the inputs of o and of the second product. Cross-attention, embeddings, modulation
   and head are whole on every rank. A block then has two large all-reduces, of [tokens, dim] after o and after the FFN,
   and one small, of the sums of squares of q and k together: 120 a forward of 40 blocks, counted in carry_dit_counts as
   they happen. The biases of o and of the second product are added once, after the sum.

   Parameters (model/parameters.h) are on one device, where all the work is done; a shard's list has the shard's
   shapes. */
#ifndef CARRY_MODEL_DIT_H
#define CARRY_MODEL_DIT_H

#include <stdbool.h>

#include "carry/comm.h"
#include "comm/sums.h"
#include "model/parameters.h"

#define CARRY_DIT_POSITIONS 1024 /* maximum number of frames, rows and columns that have a rotary position */
#define CARRY_DIT_TEXT 4096      /* maximum of text_len; Wan has 512 */
#define CARRY_DIT_CHUNKS 64      /* maximum number of chunks of a forward */

typedef struct carry_dit_config {
    int64_t dim, ffn_dim, num_heads, num_layers;
    int64_t in_dim, out_dim;    /* channels of latents: 16 */
    int64_t text_len, text_dim; /* conditioning */
    int64_t freq_dim;           /* of the time's sinusoid */
    int64_t patch[3];           /* 1, 2, 2 */
    double eps;
    bool qk_norm, cross_attn_norm;
    /* For a causal model; its config.json has these in addition to Wan's keys: the frames of a chunk, of the window and
       of the window's sink, and the shift and steps of the sampler. 0 and an empty list if the file does not have them:
       the caller then chooses values such as 3, 21, 0. */
    int64_t chunk_frames, window_frames, sink_frames;
    double shift;
    int64_t step[16];
    int64_t steps;
} carry_dit_config;

/* "1.3B", "14B" or "shapes" (a small model for the demo); CARRY_EARGUMENT lists the names. */
carry_status carry_dit_config_named(carry_ctx *ctx, carry_dit_config *config, const char *name);
const char *carry_dit_config_name(int index, const char **about); /* NULL past the end */
/* Reads Wan's config.json; missing values are taken from the shapes of the weights where possible. */
carry_status carry_dit_config_read(carry_ctx *ctx, carry_dit_config *config, const char *folder);
/* Fails for an invalid configuration, and for a mesh whose size does not divide heads and ffn_dim; the message lists
   the sizes that do. */
carry_status carry_dit_config_check(carry_ctx *ctx, const carry_dit_config *config, int mesh);
/* Checks the size of latents (1/8 of the picture's). Fails if patches do not divide it, naming the nearest size that
   works, or if there are more than CARRY_DIT_POSITIONS rows or columns of patches. */
carry_status carry_dit_check_size(carry_ctx *ctx, const carry_dit_config *config, int64_t height, int64_t width);

/* The parameters of a block: X(name, key after blocks.N.). q, k and v are adjacent, so that they can be one product. */
#define CARRY_DIT_BLOCK_LIST(X)                 \
    X(MODULATION, "modulation")                 \
    X(Q, "self_attn.q.weight")                  \
    X(K, "self_attn.k.weight")                  \
    X(V, "self_attn.v.weight")                  \
    X(Q_BIAS, "self_attn.q.bias")               \
    X(K_BIAS, "self_attn.k.bias")               \
    X(V_BIAS, "self_attn.v.bias")               \
    X(O, "self_attn.o.weight")                  \
    X(O_BIAS, "self_attn.o.bias")               \
    X(NORM_Q, "self_attn.norm_q.weight")        \
    X(NORM_K, "self_attn.norm_k.weight")        \
    X(NORM3, "norm3.weight")                    \
    X(NORM3_BIAS, "norm3.bias")                 \
    X(CROSS_Q, "cross_attn.q.weight")           \
    X(CROSS_Q_BIAS, "cross_attn.q.bias")        \
    X(CROSS_K, "cross_attn.k.weight")           \
    X(CROSS_K_BIAS, "cross_attn.k.bias")        \
    X(CROSS_V, "cross_attn.v.weight")           \
    X(CROSS_V_BIAS, "cross_attn.v.bias")        \
    X(CROSS_O, "cross_attn.o.weight")           \
    X(CROSS_O_BIAS, "cross_attn.o.bias")        \
    X(CROSS_NORM_Q, "cross_attn.norm_q.weight") \
    X(CROSS_NORM_K, "cross_attn.norm_k.weight") \
    X(FFN_UP, "ffn.0.weight")                   \
    X(FFN_UP_BIAS, "ffn.0.bias")                \
    X(FFN_DOWN, "ffn.2.weight")                 \
    X(FFN_DOWN_BIAS, "ffn.2.bias")

/* The parameters outside of blocks. X(name, key) */
#define CARRY_DIT_OUTER_LIST(X)                  \
    X(PATCH, "patch_embedding.weight")           \
    X(PATCH_BIAS, "patch_embedding.bias")        \
    X(TEXT_0, "text_embedding.0.weight")         \
    X(TEXT_0_BIAS, "text_embedding.0.bias")      \
    X(TEXT_2, "text_embedding.2.weight")         \
    X(TEXT_2_BIAS, "text_embedding.2.bias")      \
    X(TIME_0, "time_embedding.0.weight")         \
    X(TIME_0_BIAS, "time_embedding.0.bias")      \
    X(TIME_2, "time_embedding.2.weight")         \
    X(TIME_2_BIAS, "time_embedding.2.bias")      \
    X(PROJECTION, "time_projection.1.weight")    \
    X(PROJECTION_BIAS, "time_projection.1.bias") \
    X(HEAD_MODULATION, "head.modulation")        \
    X(HEAD, "head.head.weight")                  \
    X(HEAD_BIAS, "head.head.bias")

typedef enum carry_dit_slot {
#define X(name, key) CARRY_DIT_##name,
    CARRY_DIT_BLOCK_LIST(X)
#undef X
        CARRY_DIT_SLOTS
} carry_dit_slot;

typedef enum carry_dit_outer {
#define X(name, key) CARRY_DIT_##name,
    CARRY_DIT_OUTER_LIST(X)
#undef X
        CARRY_DIT_OUTERS
} carry_dit_outer;

typedef struct carry_dit_counts {
    int64_t forwards;
    int64_t large, small; /* all-reduces */
    int64_t large_bytes, small_bytes;
    double reduce_seconds;
} carry_dit_counts;

typedef struct carry_dit_fp8 carry_dit_fp8;

typedef struct carry_dit {
    carry_ctx *ctx;
    carry_comm *mesh; /* NULL: no mesh; must outlive the model */
    carry_comm *far;  /* the mesh's communicator for device memory; NULL on the CPU */
    carry_sums
        *sums; /* runs the all-reduces of the current forward as work on the device; NULL: use far, or the mesh */
    int rank, ranks;
    carry_dit_config config;
    int64_t heads, ffn; /* of this shard */
    carry_parameters own;
    int64_t (*block)[CARRY_DIT_SLOTS]; /* indices of parameters; -1: not in the model */
    int64_t outer[CARRY_DIT_OUTERS];
    carry_dit_fp8 *fp8; /* NULL: no products in 8-bit floats (dit_fp8.h) */
    carry_dit_counts counts;
} carry_dit;

/* Makes a model, or this rank's shard of it, with zero weights, on a device of carry/device.h; 0 is the CPU. Ranks of a
   mesh may share a GPU. Then call load or init. */
carry_status carry_dit_new(carry_ctx *ctx, carry_dit **made, const carry_dit_config *config, carry_comm *mesh,
                           int device);
/* The same for the weights of a folder, which is compared with the configuration before memory is allocated; NULL: no
   folder. dtype is f32, or bf16 or f16 for a model that is only read; its large matrices are then kept in that type
   only. */
carry_status carry_dit_new_for(carry_ctx *ctx, carry_dit **made, const carry_dit_config *config, carry_comm *mesh,
                               int device, const char *folder, carry_dtype dtype);
void carry_dit_free(carry_dit *dit);
/* Sets start values that depend only on the seed, the parameter's name and the element's index in the whole tensor: the
   shards of any mesh are parts of the same model. All values are random (also gates and head), for tests and
   benches. */
carry_status carry_dit_init(carry_dit *dit, uint64_t seed);
/* Sets start values for training: gates and head are zero. */
carry_status carry_dit_init_training(carry_dit *dit, uint64_t seed);
carry_status carry_dit_load(carry_dit *dit, const char *folder);
/* Writes config.json and model.safetensors, with weights of this type. Does not work for a shard. */
carry_status carry_dit_save(const carry_dit *dit, const char *folder, carry_dtype dtype);
/* carry_dit_fingerprint: a hash of this shard's weights. carry_dit_common_fingerprint: a hash of the parameters that
   are not split (only the start of large ones), which is equal on all ranks of a mesh. 0 if the weights could not be
   read from their device. */
uint64_t carry_dit_fingerprint(const carry_dit *dit);
uint64_t carry_dit_common_fingerprint(const carry_dit *dit);

/* The state that is carried from chunk to chunk: for each block the keys (after rotary) and values of a window of
   frames, and of the text. The first `sink` frames after a cut stay; the others are in a ring that evicts the oldest
   frame. The ring has space for (chunks - 1) * chunk frames more than the window needs: a stream batch computes its
   chunks again, one chunk further each time, and must find all frames that its first chunk attends to. The cache owns
   all memory of a forward, on the model's device. */
typedef struct carry_dit_cache_options {
    int64_t height, width; /* of the latents */
    int64_t chunk;         /* maximum number of frames of a chunk */
    int64_t chunks;        /* a forward has up to chunk * chunks frames, split into chunks in any way; 0 means 1 */
    int64_t window, sink;  /* frames that a chunk attends to, including its own; window >= sink + chunk */
    carry_dtype dtype;     /* type of activations, keys and values: f32, or bf16 or f16, which needs copies of the
                              weights in that type */
    bool no_graphs;        /* on a GPU: launch forwards kernel by kernel, and let a mesh add through host memory */
} carry_dit_cache_options;

typedef struct carry_dit_cache carry_dit_cache;
/* It is a collective of the mesh if its ranks have GPUs. */
carry_status carry_dit_cache_new(carry_dit *dit, carry_dit_cache **made, const carry_dit_cache_options *options);
void carry_dit_cache_free(carry_dit_cache *cache);
size_t carry_dit_cache_bytes(const carry_dit_cache *cache);
/* A hard cut: drops all frames; the next one is frame 0. The text stays. */
void carry_dit_cache_reset(carry_dit_cache *cache);
int64_t carry_dit_cache_next(const carry_dit_cache *cache); /* the number of the next frame to be written */
int64_t carry_dit_cache_held(const carry_dit_cache *cache); /* number of frames whose keys are in the cache */
/* CARRY_ETIMEOUT if a rank of the mesh did not take part in a forward that has ended on the device. */
carry_status carry_dit_cache_check(const carry_dit_cache *cache);

/* conditioning: [L, text_dim], L up to text_len (padded with zeros before the MLP). Computes the keys and values of
   every block's cross-attention once. */
carry_status carry_dit_cache_text(carry_dit_cache *cache, carry_tensor conditioning);

/* The tensors of a forward are either all in host memory (on a GPU, latents are uploaded, and the call waits for the
   velocity) or all on the model's device: then the call does not wait, and a repeated call is replayed as one graph. A
   chunk has F frames from `start`. For the first chunk of a call, `start` is the next frame of the stream, or one of
   the newest frames written (a further denoising step overwrites its own keys); for later chunks it is the frame after
   the previous chunk. Frames after the last chunk of a call are dropped. */
typedef struct carry_dit_chunk {
    carry_tensor velocity; /* output, [16, F, h, w] f32; absent: compute only the keys (the clean pass) */
    carry_tensor latents;  /* [16, F, h, w] f32 */
    double t;              /* 0 to 1000 */
    int64_t start;
} carry_dit_chunk;

/* A forward of one chunk, or of several consecutive chunks, each with its own t (a stream batch). A chunk attends to
   its own frames and to those of the window before it, never to later ones. bias: ln of the KV bias, added to the
   scores of cached frames except the first frame of the window and the chunk's own; 0: none. It is a collective of the
   mesh. Fails for a `start` that does not fit and for frames past CARRY_DIT_POSITIONS. Allocates nothing,
   except that on a GPU the second of equal calls makes a graph. */
carry_status carry_dit_forward(carry_dit *dit, carry_dit_cache *cache, const carry_dit_chunk *chunk, int chunks,
                               float bias);

/* Few-step flow sampling, with a shift s. Step i has the time t[i]; v is the model's velocity at time 1000 sigma[i]:

       sigma[i] = s u / (1 + (s - 1) u), where u = t[i] / 1000
       x0 = x - sigma[i] v;  next x = (1 - sigma[i + 1]) x0 + sigma[i + 1] scale noise

   carry_flow_sigma computes sigma from t; a shift of 0 means no shift, like 1. carry_flow_clean computes x0 and
   carry_flow_noise the next x. Tensors are f32, packed, on the CPU and of equal shape. Noise comes from
   carry_random_normal, so element i of (seed, stream) is the same on every rank. In carry_flow_clean, x0 may be x or
   velocity; in carry_flow_noise, x must not be x0. */
double carry_flow_sigma(double t, double shift);
carry_status carry_flow_clean(carry_ctx *ctx, carry_tensor x0, carry_tensor x, carry_tensor velocity, double sigma);
carry_status carry_flow_noise(carry_ctx *ctx, carry_tensor x, carry_tensor x0, double sigma, double scale,
                              uint64_t seed, uint64_t stream);

#endif
