/* The work of stage 1: an envelope in, latents out, over the cache that it refers to.

   Every rank of the mesh has one, given the same envelopes in the same order; it decides nothing: which passes are run
   is in the envelope, and their number is counted and reported. Noise is a function of seed, chunk and step. */
#ifndef CARRY_STREAM_GENERATOR_H
#define CARRY_STREAM_GENERATOR_H

#include "model/dit/dit.h"
#include "stream/envelope.h"

#define CARRY_GENERATOR_BATCH 15

typedef struct carry_generator_options {
    int64_t height, width; /* of the latents */
    int64_t chunk, window, sink;
    int64_t context; /* the most frames of a recompute, chunks of them; 0: none is asked for */
    int64_t batch;   /* steps of a stream batch, up to CARRY_GENERATOR_BATCH; 0: chunk after chunk */
    double shift;
    carry_dtype dtype; /* of activations, keys and values: f32, or bf16 on a GPU */
    bool no_graphs;    /* on a GPU, for measurements: kernels are launched one by one */
} carry_generator_options;

typedef struct carry_generator_times {
    double denoise, recompute, clean; /* seconds */
} carry_generator_times;

typedef struct carry_generator carry_generator;
carry_status carry_generator_new(carry_dit *dit, carry_generator **made, const carry_generator_options *options);
void carry_generator_free(carry_generator *generator);

/* A prompt that comes while its chunk is denoised. take is called on every rank before each step and after the last:
   *text, where it has data, is the conditioning from there on; after the last step that step is done again with it. Not
   called for stream batches. On a GPU at most two steps are enqueued ahead, so that it is asked in time. */
typedef carry_status (*carry_generator_take)(void *user, carry_tensor *text);
void carry_generator_set_late(carry_generator *generator, carry_generator_take take, void *user);
bool carry_generator_did_again(const carry_generator *generator); /* a step of the last call, for that reason */

/* A collective of the mesh. result->latents_out is the generator's own memory, bf16, until the next call; ids and
   times of the result are filled in but for stage1_ms and mesh_idle_ms. CARRY_EPEER when the envelope's position is not
   the cache's; CARRY_ERANGE when values are not finite, with the pass that made them. */
carry_status carry_generator_run(carry_generator *generator, carry_result *result, carry_generator_times *times,
                                 const carry_envelope *envelope);
/* The digests of all ranks' outputs, compared: CARRY_EPEER with the ranks that differ. A collective of the mesh. */
carry_status carry_generator_agree(carry_generator *generator, const carry_result *result);

/* After the weights have changed (model/dit/dit_lora.h): keys and values of the text are made again. The frames in the
   cache keep theirs until they leave the window. */
carry_status carry_generator_reload(carry_generator *generator);

/* Noise of a chunk's step: the stream of carry_random_normal. Step 0's is what latents_in are. */
static inline uint64_t carry_generator_stream(uint64_t chunk_index, int step) {
    return chunk_index * CARRY_ENVELOPE_STEPS + (uint64_t)step;
}

#endif
