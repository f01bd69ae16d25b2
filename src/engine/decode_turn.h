/* The input of one decoding step from the host: slots, lengths, given ids, and new pages. */
#ifndef CARRY_ENGINE_DECODE_TURN_H
#define CARRY_ENGINE_DECODE_TURN_H

#include "engine/decode_ops.h"
#include "engine/runner.h"

#define CARRY_DECODE_TURNS 4 /* maximum number of steps in progress */

/* One input: in pinned memory, and on the device. */
typedef struct carry_decode_buffer {
    carry_decode_turn *pinned, *there;
    carry_event *done; /* recorded when the step has read it */
} carry_decode_buffer;

typedef struct carry_decode_turns {
    carry_ctx *ctx;
    int device;
    int64_t slots, pages_each;
    int32_t *table; /* on the device: [slots, pages_each] */
    int32_t *known; /* a host copy of the table; -1: never set */
    carry_decode_buffer buffer[CARRY_DECODE_TURNS];
    unsigned next;
} carry_decode_turns;

carry_status carry_decode_turns_open(carry_decode_turns *turns, carry_ctx *ctx, int device, int64_t slots);
void carry_decode_turns_close(carry_decode_turns *turns);
/* Enqueues the input of call->sequences runs and completes the fields of the call. */
carry_status carry_decode_turn_put(carry_decode_turns *turns, carry_decode_call *call, const carry_run *runs,
                                   int *new_pages);
/* Call it after the launch. */
carry_status carry_decode_turn_done(carry_decode_turns *turns);

#endif
