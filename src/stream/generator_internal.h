/* Internals of the generator, shared by its two modes: one chunk at a time (generator.c) and stream batches
   (generator_batch.c). */
#ifndef CARRY_STREAM_GENERATOR_INTERNAL_H
#define CARRY_STREAM_GENERATOR_INTERNAL_H

#include "carry/device.h"
#include "device/upload.h"
#include "stream/generator.h"

#define CARRY_GENERATOR_SLOTS (CARRY_GENERATOR_BATCH + 1) /* plus one slot for the chunk in its clean pass */

/* A chunk in a stream batch. */
typedef struct carry_generator_slot {
    float *x, *x0;
    uint64_t chunk_index, seed;
} carry_generator_slot;

/* A chunk on a device with its own memory (generator_device.c). */
typedef struct carry_generator_device {
    carry_stream *stream;                /* owned by the generator; NULL: the context already had a stream */
    void *memory;                        /* memory of the tensors */
    carry_tensor x, x0, velocity, noise; /* f32 */
    carry_tensor slots, velocities;      /* of a stream batch, f32, one chunk after the other */
    /* Latents as bf16; [steps] f32: nonzero for steps with values that are not finite. */
    carry_tensor bits, bad;
    carry_upload upload;  /* for uploading latents */
    void *host;           /* pinned: the result's latents, then bad */
    carry_event *rebuilt; /* marks the start of the recompute before this chunk */
    carry_event *began, *denoised;
    carry_event *stepped[2];            /* ends of the last two steps, where a prompt may arrive between steps */
    carry_event *ready[2], *cleaned[2]; /* of this chunk and the one before, alternating by `turn` */
    int turn;
    bool has_cleaned; /* true if the previous chunk had a clean pass */
} carry_generator_device;

struct carry_generator {
    carry_dit *dit;
    carry_ctx *ctx;
    carry_dit_cache *cache;
    carry_generator_options options;
    carry_dit_config config;
    float *x, *velocity, *x0, *context, *text; /* f32 */
    int64_t text_rows;                         /* rows of `text`; 0: no text yet */
    uint16_t *out;                             /* bf16 */
    int64_t *digests;                          /* one per rank of the mesh */
    int calls;
    carry_generator_take take; /* NULL: the text is always the envelope's */
    void *take_user;
    bool is_again;
    carry_generator_slot slot[CARRY_GENERATOR_SLOTS]; /* the chunks of a stream batch, newest first */
    int slots;                                        /* number of chunks in it */
    carry_generator_device far;                       /* unused on the CPU */
};

carry_tensor carry_generator_view(const carry_generator *g, void *data, carry_dtype dtype, int64_t frames);
void carry_generator_widen(float *to, const uint16_t *bits, int64_t count);
/* CARRY_ERANGE if any value is not finite. The message names the pass and, if step >= 0, the step. */
carry_status carry_generator_finite(carry_generator *g, const float *values, int64_t count, const char *pass, int step);
/* Rounds x0 to bf16 as it is sent, into g->out, and back into x0. */
void carry_generator_round(carry_generator *g, float *x0, int64_t count);

/* Asks for a late conditioning. *is_new is true if there was one; it is used from here on. */
carry_status carry_generator_late(carry_generator *g, bool *is_new);

/* generator_batch.c */
carry_status carry_generator_batch_new(carry_generator *g, size_t bytes);
void carry_generator_batch_free(carry_generator *g);
carry_status carry_generator_batch(carry_generator *g, const carry_envelope *e);
/* Fails unless the envelope asks for exactly the steps and clean passes of the chunks in the batch. */
carry_status carry_generator_batch_check(carry_generator *g, const carry_envelope *e, int clean);

/* generator_device.c: the counterparts of denoise and clean in generator.c for a device with its own memory. On
   return the result is in g->far.host, the clean pass is still running, and times->clean is that of the previous
   chunk. */
carry_status carry_generator_device_open(carry_generator *g);
/* Call before a recompute: starts the time for times->recompute. */
carry_status carry_generator_device_rebuild(carry_generator *g);
void carry_generator_device_close(carry_generator *g);
carry_status carry_generator_device_run(carry_generator *g, const carry_envelope *e, bool with_clean,
                                        carry_generator_times *times);
/* Parts of carry_generator_device_run: convert latents_in to x; round x0 as it is sent and copy it to g->far.host;
   check that the results of the steps are finite. */
carry_status carry_generator_device_upload(carry_generator *g, const carry_envelope *e, carry_tensor x);
carry_status carry_generator_device_download(carry_generator *g, carry_tensor x0);
carry_status carry_generator_device_finite(carry_generator *g, int steps);

/* generator_batch_device.c: carry_generator_batch for a device with its own memory. The result is in g->far.host. */
carry_status carry_generator_device_batch(carry_generator *g, const carry_envelope *e, carry_generator_times *times);

#endif
