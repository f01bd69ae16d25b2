/* The contract between the stages, version 1: envelopes from stage 0 to the mesh, results back.

   A message is a header of 32 bytes, metadata of a fixed size, a spec for each tensor, and the tensors in the order of
   their specs, each padded with zeros to a multiple of 8. All numbers are little-endian. envelope_bytes.c lists every
   field with its offset, and tests/golden/envelope/ keeps the bytes, which are the contract.

       header: magic "CRYE" or "CRYR", u32 version, u32 metadata bytes, u32 number of tensor specs, u64 bytes of all
               tensors, u32 CRC32C of all that follows the header, u32 CRC32C of the header's first 28 bytes

   carry_envelope_encode validates before it writes a byte: an envelope that it accepts can be received. A peer's
   bytes are untrusted: carry_envelope_decode checks every length, the CRCs, the version, and the dtype, rank and
   shape of every tensor before it returns views of them. */
#ifndef CARRY_STREAM_ENVELOPE_H
#define CARRY_STREAM_ENVELOPE_H

#include <stdbool.h>

#include "carry/tensor.h"
#include "core/crc32c.h"

#define CARRY_ENVELOPE_VERSION 1
#define CARRY_ENVELOPE_HEADER 32
#define CARRY_ENVELOPE_STEPS 64                  /* maximum number of denoising steps of a chunk */
#define CARRY_ENVELOPE_BYTES ((size_t)256 << 20) /* maximum bytes of one message */

typedef enum carry_action { CARRY_NOOP, CARRY_INFER, CARRY_SHUTDOWN } carry_action;

typedef struct carry_envelope {
    uint32_t version;
    carry_action action;
    uint64_t call_id;     /* grows by one with every envelope */
    uint64_t chunk_index; /* grows by one with every INFER */
    uint64_t cache_epoch; /* grows by one at every hard cut */
    /* For INFER only; zero otherwise. */
    int32_t height, width; /* of the latents */
    int32_t current_start_frame;
    int32_t num_denoise_steps;
    int32_t
        expected_generator_calls; /* steps + recompute + clean pass: the rest after the first two is the clean pass */
    bool do_recompute, init_cache, reset_cache, reset_cross_cache;
    uint64_t seed;
    float kv_bias, noise_scale;
    carry_tensor conditioning;   /* bf16 [L, text_dim]; L is 0 exactly when reset_cross_cache is false */
    carry_tensor latents_in;     /* bf16 [16, F, height, width] */
    carry_tensor steps;          /* i64 [num_denoise_steps], falling, 0 < t <= 1000 */
    carry_tensor context_frames; /* bf16 [16, C, height, width]; present exactly when do_recompute is true */
} carry_envelope;

typedef struct carry_result {
    uint32_t version;
    uint64_t call_id, chunk_index, cache_epoch;
    int32_t observed_generator_calls, mesh_start_frame;
    int64_t digest; /* of latents_out's bytes */
    double stage1_ms, mesh_idle_ms;
    carry_tensor latents_out; /* bf16 [16, F, height, width] */
} carry_result;

/* Checks an envelope or result by itself; carry_envelope_follow compares ids and positions with the last one.
   Returns CARRY_EARGUMENT with the field and its value. */
carry_status carry_envelope_validate(carry_ctx *ctx, const carry_envelope *envelope);
carry_status carry_result_validate(carry_ctx *ctx, const carry_result *result);

/* The order of the envelopes that a receiver has seen so far; all zero at the start. carry_envelope_follow returns
   CARRY_EPEER for a gap or a repeat of call_id or chunk_index, for an epoch that falls or grows by more than one,
   and for anything but SHUTDOWN after SHUTDOWN (a second SHUTDOWN, with the same call_id or the next, is accepted).
   The first envelope may have any numbers. On CARRY_OK the envelope is recorded in `order`. */
typedef struct carry_envelope_order {
    bool any, any_chunk, ended;
    uint64_t call_id, chunk_index, cache_epoch;
} carry_envelope_order;
carry_status carry_envelope_follow(carry_ctx *ctx, carry_envelope_order *order, const carry_envelope *envelope);

/* Validates the object, then writes the whole message and stores its size in *bytes. CARRY_ERANGE when `room` is too
   small. With room 0 and to NULL only *bytes is computed. */
carry_status carry_envelope_encode(carry_ctx *ctx, void *to, size_t room, size_t *bytes,
                                   const carry_envelope *envelope);
carry_status carry_result_encode(carry_ctx *ctx, void *to, size_t room, size_t *bytes, const carry_result *result);

/* Stores the number of bytes that follow this header. CARRY_EFORMAT if it is not a valid header of this version,
   CARRY_ERANGE if more than `most` bytes would follow. */
carry_status carry_envelope_follows(carry_ctx *ctx, size_t *bytes, const void *header, size_t most, bool is_result);
/* The decoded tensors are views into the message, which must be aligned to 8 bytes and outlive them. Returns
   CARRY_EFORMAT or CARRY_EARGUMENT. */
carry_status carry_envelope_decode(carry_ctx *ctx, carry_envelope *envelope, const void *message, size_t bytes);
carry_status carry_result_decode(carry_ctx *ctx, carry_result *result, const void *message, size_t bytes);

/* Writes the message layout as two Markdown tables, cut to `room` bytes and zero-terminated. Returns the length of
   the full text. */
size_t carry_envelope_layout(char *text, size_t room, bool is_result);

int64_t carry_stream_digest(const void *data, size_t bytes);

#endif
