/* The contract between the stages, version 1: envelopes from stage 0 to the mesh, results back.

   On the wire a message is a header of 32 bytes, metadata of a fixed size, and tensors one after the other in the order
   of their specs, each filled up with zeros to a multiple of 8. All numbers are little-endian; envelope_bytes.c lists
   every field with its offset, and tests/golden/envelope/ keeps the bytes: they are the contract.

       header: magic "CRYE" or "CRYR", u32 version, u32 metadata bytes, u32 number of tensor specs, u64 bytes of all
               tensors, u32 CRC32C of all that follows the header, u32 CRC32C of the header's first 28 bytes

   Validate before you commit: an envelope that carry_envelope_encode accepts can be received; it is refused before a
   byte is written. A peer's bytes are hostile: carry_envelope_decode checks every length, the CRCs, the version, dtype,
   rank and shape of every tensor before it gives a view of them. */
#ifndef CARRY_STREAM_ENVELOPE_H
#define CARRY_STREAM_ENVELOPE_H

#include <stdbool.h>

#include "carry/tensor.h"
#include "core/crc32c.h"

#define CARRY_ENVELOPE_VERSION 1
#define CARRY_ENVELOPE_HEADER 32
#define CARRY_ENVELOPE_STEPS 64                  /* the most denoising steps of a chunk */
#define CARRY_ENVELOPE_BYTES ((size_t)256 << 20) /* the most of one message */

typedef enum carry_action { CARRY_NOOP, CARRY_INFER, CARRY_SHUTDOWN } carry_action;

typedef struct carry_envelope {
    uint32_t version;
    carry_action action;
    uint64_t call_id;     /* grows by one with every envelope */
    uint64_t chunk_index; /* grows by one with every INFER */
    uint64_t cache_epoch; /* grows by one at every hard cut */
    /* Of INFER alone; zero else. */
    int32_t height, width; /* of the latents */
    int32_t current_start_frame;
    int32_t num_denoise_steps;
    int32_t
        expected_generator_calls; /* steps + recompute + clean pass: what is above the first two is the clean pass */
    bool do_recompute, init_cache, reset_cache, reset_cross_cache;
    uint64_t seed;
    float kv_bias, noise_scale;
    carry_tensor conditioning;   /* bf16 [L, text_dim]; L is 0 exactly when reset_cross_cache is false */
    carry_tensor latents_in;     /* bf16 [16, F, height, width] */
    carry_tensor steps;          /* i64 [num_denoise_steps], falling, 0 < t <= 1000 */
    carry_tensor context_frames; /* bf16 [16, C, height, width], exactly with do_recompute */
} carry_envelope;

typedef struct carry_result {
    uint32_t version;
    uint64_t call_id, chunk_index, cache_epoch;
    int32_t observed_generator_calls, mesh_start_frame;
    int64_t digest; /* of latents_out's bytes */
    double stage1_ms, mesh_idle_ms;
    carry_tensor latents_out; /* bf16 [16, F, height, width] */
} carry_result;

/* CARRY_EARGUMENT with the field and its value. What an envelope must be by itself; ids and positions are compared with
   the last one's by carry_envelope_follow. */
carry_status carry_envelope_validate(carry_ctx *ctx, const carry_envelope *envelope);
carry_status carry_result_validate(carry_ctx *ctx, const carry_result *result);

/* The envelopes that a receiver has seen so far; all zero at the start. CARRY_EPEER: a gap or a repeat of call_id or
   chunk_index, an epoch that falls or grows by more than one, anything but SHUTDOWN after SHUTDOWN (a second one, with
   the same call_id or the next, is fine). The first envelope may have any numbers. On CARRY_OK it has been noted. */
typedef struct carry_envelope_order {
    bool any, any_chunk, ended;
    uint64_t call_id, chunk_index, cache_epoch;
} carry_envelope_order;
carry_status carry_envelope_follow(carry_ctx *ctx, carry_envelope_order *order, const carry_envelope *envelope);

/* Validates, then writes the whole message: *bytes of it. CARRY_ERANGE when room is too small (room 0 and to NULL: only
 *bytes is wanted). */
carry_status carry_envelope_encode(carry_ctx *ctx, void *to, size_t room, size_t *bytes,
                                   const carry_envelope *envelope);
carry_status carry_result_encode(carry_ctx *ctx, void *to, size_t room, size_t *bytes, const carry_result *result);

/* How many bytes follow this header; CARRY_EFORMAT, with what is wrong, if it is not a header of ours or of another
   version, CARRY_ERANGE if there are more than `most`. */
carry_status carry_envelope_follows(carry_ctx *ctx, size_t *bytes, const void *header, size_t most, bool is_result);
/* Tensors are views into the message, which must be aligned to 8 and stay. CARRY_EFORMAT or CARRY_EARGUMENT. */
carry_status carry_envelope_decode(carry_ctx *ctx, carry_envelope *envelope, const void *message, size_t bytes);
carry_status carry_result_decode(carry_ctx *ctx, carry_result *result, const void *message, size_t bytes);

/* The bytes as two tables in Markdown, cut to room and ended with a 0; returns the length of all of it. */
size_t carry_envelope_layout(char *text, size_t room, bool is_result);

int64_t carry_stream_digest(const void *data, size_t bytes);

#endif
