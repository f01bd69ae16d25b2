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
    const char *codec;                 /* folder; NULL: the model's subfolder `codec` if it exists, else dct */
    const char *text_encoder;          /* folder (model/text/prompts.h); NULL: words are fixed random vectors */
    carry_dit_config config;           /* used when model is NULL */
    carry_lora_file lora[CARRY_LORAS]; /* the controls choose one of them, or none */
    int loras;
    int64_t height, width; /* of the pictures, in pixels */
    int64_t chunk, window, sink;
    double shift;
    int device;     /* the generator's device: a GPU computes in bf16; 0: the CPU, in f32 */
    int depth;      /* maximum number of envelopes in progress: 1 to 8 */
    bool no_graphs; /* carry_generator_options */
    bool fp8;       /* products of blocks in 8-bit floats (model/dit/dit_fp8.h); needs a GPU that has them */
    /* For experiments: multiprocessors of the GPU on which stage 0, a rank of its own, decodes; the generator has the
       others. 0: both use all of them. */
    int multiprocessors;
    carry_recompute recompute;
    int64_t context; /* number of frames of a recompute */
    /* Number of steps of a stream batch, in which that many chunks are denoised at once, each at its own step; 0:
       one chunk at a time. A batch fixes the number of steps and excludes a recompute. */
    int64_t batch;
    bool clean_pass;                 /* a last pass at t = 0 */
    bool with_stage;                 /* with more than one rank: rank 0 is stage 0 only, not part of the mesh */
    int64_t chunks;                  /* 0: until stopped */
    double slow_stage0, slow_stage1; /* seconds of waiting added to each chunk, for experiments */
    int64_t fail_memory;             /* for tests: the chunk in which the mesh runs out of memory; 0: never */
    double strength;                 /* of video input: the share of the noise levels it starts at, above 0 up to 1 */
    double motion;                   /* the share of the strength that fast motion removes, 0 to 1 */
    double fps;                      /* maximum number of frames shown per second; 0: no limit */
    uint64_t first_epoch;            /* the first epoch, after a restart */
    uint64_t restarts;               /* restarts so far, for display */
} carry_pipeline_options;

typedef struct carry_pipeline_hooks {
    carry_controls *controls; /* used on rank 0 */
    carry_sink sink;          /* receives metrics of every chunk */
    bool (*stop)(void);
    /* Hooks of rank 0; each may be NULL. frames: receives decoded frames, [frames, 3, height, width], of the current
       epoch only: frames from before the last cut are not delivered. */
    carry_status (*frames)(void *user, carry_tensor frames, uint64_t chunk_index, uint64_t cache_epoch);
    /* Video input instead of noise. source reads up to frames.shape[0] frames, [frames, 3, height, width] f32; *got
       is smaller where the video ends. is_ready returns true if that many frames can be read without waiting. */
    carry_status (*source)(void *user, carry_ctx *ctx, carry_tensor frames, int64_t *got);
    bool (*is_ready)(void *user, int64_t frames);
    /* is_asked: a user asked for the cut, and frames from before it must not be shown. */
    void (*cut)(void *user, uint64_t cache_epoch, bool is_asked);
    void (*chunk)(void *user, const carry_chunk_times *times);
    void (*figures)(void *user, const carry_stream_figures *figures); /* called after every chunk */
    void *user;
} carry_pipeline_hooks;

/* The ranks as groups. mesh is NULL on rank 0 of a pipeline. */
typedef struct carry_pipeline_groups {
    carry_comm *world, *mesh;
    bool with_stage, is_running;
} carry_pipeline_groups;

/* A collective of the world. */
carry_status carry_pipeline_split(carry_comm *world, carry_pipeline_groups *groups, bool with_stage);
/* From here on, collectives of the world fail at once on every rank, with the collective's name; messages between
   two ranks still work. */
void carry_pipeline_begin(carry_pipeline_groups *groups);
void carry_pipeline_end(carry_pipeline_groups *groups); /* frees the mesh's communicator */
/* Returns the communicator for a collective of the mesh or of the world. CARRY_EARGUMENT if this rank does not
   belong to it, or while the pipeline runs (world). */
carry_status carry_pipeline_mesh(const carry_pipeline_groups *groups, carry_comm **mesh);
carry_status carry_pipeline_world(const carry_pipeline_groups *groups, carry_comm **world);

/* Checks the options before any rank has started. CARRY_EARGUMENT or CARRY_ESHAPE names the wrong value and the
   accepted ones. ranks: size of the world. *config receives the model's configuration. */
carry_status carry_pipeline_check(carry_ctx *ctx, const carry_pipeline_options *options, carry_dit_config *config,
                                  int ranks);

/* A collective of the world; options are the same on every rank. Returns after every rank has processed SHUTDOWN, or
   with the first error. Never returns CARRY_EINTERRUPTED: Ctrl-C is a clean end. */
carry_status carry_pipeline_run(carry_comm *world, const carry_pipeline_options *options,
                                const carry_pipeline_hooks *hooks, carry_stream_figures *figures);

#endif
