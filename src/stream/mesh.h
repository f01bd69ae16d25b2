/* Stage 1: the leader, who takes envelopes from stage 0, and the ranks that generate with it.

   The leader receives and validates everything before the first broadcast: bytes, order, position, sizes against what
   the handshake agreed on. If it refuses an envelope, it sends SHUTDOWN to the mesh, so that no rank waits, and a
   refusal to stage 0 that says why. Workers get an envelope by two broadcasts, its size (with the number of the LoRA)
   and its bytes, and decide nothing.

   A prompt that arrives while a chunk is denoised is a separate message after the envelope. The leader looks for one
   before every step and after the last, and broadcasts its size (0: no prompt), so that every rank uses it from the
   same step on. A prompt that arrives between two calls is for the next call.

   The choice of a LoRA is also a separate message, sent before the envelope to which it applies. The leader broadcasts
   it with every envelope, and each rank changes its weights before the call.

   NOOP and SHUTDOWN are sent to the whole mesh, with a barrier, and are answered by a pulse, so that a dead rank is
   noticed even while nothing is generated. After SHUTDOWN the leader stays until stage 0 closes the link; a second
   SHUTDOWN is answered again. */
#ifndef CARRY_STREAM_MESH_H
#define CARRY_STREAM_MESH_H

#include "model/dit/dit_lora.h"
#include "stream/generator.h"
#include "stream/link.h"

typedef struct carry_mesh_options {
    int64_t channels, height, width, chunk; /* of latents */
    int64_t context;                        /* the maximum number of frames of a recompute */
    int64_t text_len, text_dim;
    size_t envelope_most; /* bytes */
    double slow;          /* seconds added to each call, to simulate slower work */
    int64_t fail_at;      /* for tests: the chunk in which memory runs out; 0: never */
    /* Called before the leader checks for a prompt, if stage 0 and the leader are one rank. NULL: stage 0 sends
       prompts from its own rank. */
    carry_status (*look)(void *user);
    void *user;
    carry_dit_loras *loras; /* NULL: none; borrowed */
} carry_mesh_options;

typedef struct carry_mesh carry_mesh;
/* comm: the mesh; NULL: a single rank. dit: used for its counters; may be NULL. */
carry_status carry_mesh_new(carry_ctx *ctx, carry_mesh **made, carry_comm *comm, carry_generator *generator,
                            const carry_dit *dit, const carry_mesh_options *options);
void carry_mesh_free(carry_mesh *mesh);

/* For the leader: carry_mesh_turn handles one message and sets *closed when stage 0 has closed the link;
   carry_mesh_lead handles messages until then. */
carry_status carry_mesh_turn(carry_mesh *mesh, carry_link *link, bool *closed);
carry_status carry_mesh_lead(carry_mesh *mesh, carry_link *link);
/* For every other rank: works until SHUTDOWN. */
carry_status carry_mesh_work(carry_mesh *mesh);

#endif
