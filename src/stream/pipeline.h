/* The pipeline: stage 0 (rank 0: controls, codec, frames), the leader (rank 1) and the mesh (ranks 1..N).

   Topologies: a single rank does everything; "mesh" is N ranks that share the generator, of which rank 0 is also stage
   0; "pipeline" is stage 0 and a mesh of N. The code for envelopes, generator and results is the same in all of them,
   so the pictures are too: even a single rank encodes and decodes its envelopes.

   Rank 0 of a pipeline has no mesh communicator, and collectives of the world are not allowed while the pipeline runs:
   asking for either fails at once with an error message (carry_pipeline_mesh, carry_pipeline_world). Every wait has the
   deadline of its communicator. */
#ifndef CARRY_STREAM_PIPELINE_H
#define CARRY_STREAM_PIPELINE_H

#include "carry/comm.h"
#include "core/sink.h"
#include "stream/controls.h"
#include "model/dit/dit_lora.h"
#include "stream/generator.h"
#include "stream/server/hub.h"

typedef enum carry_recompute { CARRY_RECOMPUTE_OFF, CARRY_RECOMPUTE_ANCHOR, CARRY_RECOMPUTE_LATENT } carry_recompute;
const char *carry_recompute_name(carry_recompute recompute); /* off, anchor, latent */

typedef struct carry_pipeline_options {
    const char *model;                 /* folder; NULL: random weights of config */
    const char *codec;                 /* folder; NULL: model's subfolder codec where there is one, else dct */
    const char *text_encoder;          /* folder (model/text/prompts.h); NULL: words are fixed random vectors */
    carry_dit_config config;           /* used when model is NULL */
    carry_lora_file lora[CARRY_LORAS]; /* the controls choose one of them, or none */
    int loras;
    int64_t height, width; /* of pictures, pixels */
    int64_t chunk, window, sink;
    double shift;
    int device;     /* of the generator, in bf16 where that is a GPU; 0: the CPU, in f32 */
    int depth;      /* envelopes under way: 1 to 8 */
    bool no_graphs; /* carry_generator_options */
    carry_recompute recompute;
    int64_t context; /* frames of a recompute */
    /* Steps of a stream batch: as many chunks at once, each at its own step; 0: chunk after chunk. It fixes the number
       of steps, and goes without a recompute. */
    int64_t batch;
    bool clean_pass;                 /* a last pass at t = 0 */
    bool with_stage;                 /* ranks > 1: rank 0 is a stage of its own */
    int64_t chunks;                  /* 0: until stopped */
    double slow_stage0, slow_stage1; /* seconds of waiting added to each chunk, for experiments */
    int64_t fail_memory;             /* for tests: memory runs out in this chunk of the mesh; 0: it does not */
    double strength;                 /* of video in: the share of the noise levels it starts at, above 0 up to 1 */
    double motion;                   /* of the strength, the share that fast motion takes away, 0 to 1 */
    double fps;                      /* frames shown a second, at most; 0: as they come */
    uint64_t first_epoch;            /* after a restart */
    uint64_t restarts;               /* so far, to be shown */
} carry_pipeline_options;

typedef struct carry_pipeline_hooks {
    carry_controls *controls; /* rank 0 */
    carry_sink sink;          /* metrics of every chunk */
    bool (*stop)(void);
    /* Of rank 0; any may be NULL. Frames that were decoded, [frames, 3, height, width], none older than the last cut.
     */
    carry_status (*frames)(void *user, carry_tensor frames, uint64_t chunk_index, uint64_t cache_epoch);
    /* Video in, instead of noise: up to frames.shape[0] frames, [frames, 3, height, width] f32; fewer, *got, where it
       ends there. is_ready: would it not wait for so many? */
    carry_status (*source)(void *user, carry_ctx *ctx, carry_tensor frames, int64_t *got);
    bool (*is_ready)(void *user, int64_t frames);
    void (*cut)(void *user, uint64_t cache_epoch, bool is_asked); /* is_asked: frames of before are not to be seen */
    void (*chunk)(void *user, const carry_chunk_times *times);
    void (*figures)(void *user, const carry_stream_figures *figures); /* after every chunk */
    void *user;
} carry_pipeline_hooks;

/* The ranks as groups. mesh is NULL on rank 0 of a pipeline. */
typedef struct carry_pipeline_groups {
    carry_comm *world, *mesh;
    bool with_stage, is_running;
} carry_pipeline_groups;

/* A collective of the world. */
carry_status carry_pipeline_split(carry_comm *world, carry_pipeline_groups *groups, bool with_stage);
/* From here on collectives of the world fail at once, on every rank, by name; messages between two ranks go on. */
void carry_pipeline_begin(carry_pipeline_groups *groups);
void carry_pipeline_end(carry_pipeline_groups *groups); /* frees the mesh's communicator */
/* For a collective of the mesh, or of the world: CARRY_EARGUMENT where this rank has no part in it, or no more. */
carry_status carry_pipeline_mesh(const carry_pipeline_groups *groups, carry_comm **mesh);
carry_status carry_pipeline_world(const carry_pipeline_groups *groups, carry_comm **world);

/* CARRY_EARGUMENT or CARRY_ESHAPE with what is wrong and what is accepted; before any rank has started. ranks: of the
   world. *config: the model's. */
carry_status carry_pipeline_check(carry_ctx *ctx, const carry_pipeline_options *options, carry_dit_config *config,
                                  int ranks);

/* A collective of the world; options are the same on every rank. Returns after SHUTDOWN has gone round, or with what
   went wrong. CARRY_EINTERRUPTED never: Ctrl-C is a clean end. */
carry_status carry_pipeline_run(carry_comm *world, const carry_pipeline_options *options,
                                const carry_pipeline_hooks *hooks, carry_stream_figures *figures);

#endif
