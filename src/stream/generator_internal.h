/* A generator's insides, for its two ways: chunk after chunk (generator.c) and as a stream batch (generator_batch.c).
 */
#ifndef CARRY_STREAM_GENERATOR_INTERNAL_H
#define CARRY_STREAM_GENERATOR_INTERNAL_H

#include "carry/device.h"
#include "device/upload.h"
#include "stream/generator.h"

#define CARRY_GENERATOR_SLOTS (CARRY_GENERATOR_BATCH + 1) /* and one that gets its clean pass */

/* A chunk in a stream batch. */
typedef struct carry_generator_slot {
    float *x, *x0;
    uint64_t chunk_index, seed;
} carry_generator_slot;

/* A chunk on a device with memory of its own (generator_device.c). */
typedef struct carry_generator_device {
    carry_stream *stream;                /* the generator's own; NULL: the context had one */
    void *memory;                        /* of the tensors */
    carry_tensor x, x0, velocity, noise; /* f32 */
    carry_tensor slots, velocities;      /* of a stream batch, f32, chunk after chunk */
    carry_tensor bits, bad;              /* latents as bf16; [steps] f32: which were not finite */
    carry_upload upload;                 /* of latents */
    void *host;                          /* pinned: the result's latents, then bad */
    carry_event *rebuilt;                /* when the cache began to be rebuilt before this chunk */
    carry_event *began, *denoised;
    carry_event *stepped[2];            /* the last two steps, where a prompt may come between them */
    carry_event *ready[2], *cleaned[2]; /* of this chunk and of the one before, in turn */
    int turn;
    bool has_cleaned; /* the chunk before had a clean pass */
} carry_generator_device;

struct carry_generator {
    carry_dit *dit;
    carry_ctx *ctx;
    carry_dit_cache *cache;
    carry_generator_options options;
    carry_dit_config config;
    float *x, *velocity, *x0, *context, *text; /* f32 */
    int64_t text_rows;                         /* of text; 0: no text yet */
    uint16_t *out;                             /* bf16 */
    int64_t *digests;                          /* of every rank of the mesh */
    int calls;
    carry_generator_take take; /* NULL: text is that of the envelope */
    void *take_user;
    bool is_again;
    carry_generator_slot slot[CARRY_GENERATOR_SLOTS]; /* of a stream batch, the newest first */
    int slots;                                        /* chunks that are in it */
    carry_generator_device far;                       /* closed on the CPU */
};

carry_tensor carry_generator_view(const carry_generator *g, void *data, carry_dtype dtype, int64_t frames);
void carry_generator_widen(float *to, const uint16_t *bits, int64_t count);
/* CARRY_ERANGE with the pass, and its step unless that is below 0, whose values are not finite. */
carry_status carry_generator_finite(carry_generator *g, const float *values, int64_t count, const char *pass, int step);
/* x0 as it is sent: rounded into out, and back. */
void carry_generator_round(carry_generator *g, float *x0, int64_t count);

/* Asks for a late conditioning; *is_new: there was one, and it is used from here on. */
carry_status carry_generator_late(carry_generator *g, bool *is_new);

/* generator_batch.c */
carry_status carry_generator_batch_new(carry_generator *g, size_t bytes);
void carry_generator_batch_free(carry_generator *g);
carry_status carry_generator_batch(carry_generator *g, const carry_envelope *e);
/* The envelope must ask for the steps and clean passes of the chunks that are in the batch. */
carry_status carry_generator_batch_check(carry_generator *g, const carry_envelope *e, int clean);

/* generator_device.c: as denoise and clean in generator.c, for a device with memory of its own. The result is there on
   return, in g->far.host; the clean pass is under way, and times->clean is of the chunk before. */
carry_status carry_generator_device_open(carry_generator *g);
carry_status carry_generator_device_rebuild(carry_generator *g); /* before a recompute: times->recompute is from here */
void carry_generator_device_close(carry_generator *g);
carry_status carry_generator_device_run(carry_generator *g, const carry_envelope *e, bool with_clean,
                                        carry_generator_times *times);
/* Parts of it: latents_in become x; x0 is rounded as it is sent, and copied to g->far.host; and the results of the
   steps, there, are checked to be finite. */
carry_status carry_generator_device_upload(carry_generator *g, const carry_envelope *e, carry_tensor x);
carry_status carry_generator_device_download(carry_generator *g, carry_tensor x0);
carry_status carry_generator_device_finite(carry_generator *g, int steps);

/* generator_batch_device.c: carry_generator_batch for a device with memory of its own; the result is in g->far.host. */
carry_status carry_generator_device_batch(carry_generator *g, const carry_envelope *e, carry_generator_times *times);

#endif
