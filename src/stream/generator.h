/* The work of stage 1: takes an envelope, returns latents, and updates the cache.

   Every rank of the mesh has a generator and gets the same envelopes in the same order. The envelope says which
   passes to run; the generator counts and reports them. Noise is a function of seed, chunk and step. */
#ifndef CARRY_STREAM_GENERATOR_H
#define CARRY_STREAM_GENERATOR_H

#include "model/dit/dit.h"
#include "stream/envelope.h"

#define CARRY_GENERATOR_BATCH 15

typedef struct carry_generator_options {
    int64_t height, width; /* of the latents */
    int64_t chunk, window, sink;
    int64_t context; /* the maximum number of frames of a recompute, a multiple of the chunk; 0: no recompute */
    int64_t batch;   /* number of steps of a stream batch, up to CARRY_GENERATOR_BATCH; 0: one chunk at a time */
    double shift;
    carry_dtype dtype;   /* type of activations, keys and values: f32, or bf16 on a GPU */
    bool no_graphs;      /* on a GPU, for measurements: launch kernels one by one */
    int multiprocessors; /* of the GPU, that the generator leaves to decoding (device/share.h); 0: it uses all */
} carry_generator_options;

typedef struct carry_generator_times {
    double denoise, recompute, clean; /* seconds */
} carry_generator_times;

typedef struct carry_generator carry_generator;
carry_status carry_generator_new(carry_dit *dit, carry_generator **made, const carry_generator_options *options);
void carry_generator_free(carry_generator *generator);

/* A prompt that arrives while its chunk is denoised. Every rank calls `take` before each step and after the last
   one. If it sets *text to a tensor with data, that is the conditioning from then on; after the last step, that step
   is repeated with it. `take` is not called for stream batches. On a GPU at most two steps are enqueued ahead, so
   that a prompt is noticed in time. */
typedef carry_status (*carry_generator_take)(void *user, carry_tensor *text);
void carry_generator_set_late(carry_generator *generator, carry_generator_take take, void *user);
/* True if the last call repeated a step for such a prompt. */
bool carry_generator_did_again(const carry_generator *generator);

/* A collective of the mesh. result->latents_out is bf16, owned by the generator and valid until the next call. Fills
   in the times, and the result except stage1_ms and mesh_idle_ms. CARRY_EPEER when the envelope's position
   differs from the cache's; CARRY_ERANGE, with the name of the pass, when values are not finite. */
carry_status carry_generator_run(carry_generator *generator, carry_result *result, carry_generator_times *times,
                                 const carry_envelope *envelope);
/* Compares the digests of all ranks' outputs: CARRY_EPEER with the ranks that differ. A collective of the mesh. */
carry_status carry_generator_agree(carry_generator *generator, const carry_result *result);

/* Call this after the weights have changed (model/dit/dit_lora.h): the keys and values of the text are computed
   again. Frames in the cache keep their keys and values until they leave the window. */
carry_status carry_generator_reload(carry_generator *generator);

/* The stream number for carry_random_normal that gives the noise of a chunk's step. Step 0's noise is latents_in. */
static inline uint64_t carry_generator_stream(uint64_t chunk_index, int step) {
    return chunk_index * CARRY_ENVELOPE_STEPS + (uint64_t)step;
}

#endif
