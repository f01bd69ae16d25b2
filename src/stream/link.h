/* Messages between stage 0 and the leader, one end each.

   A message is a prelude of 16 bytes (what it is, how long it is), then the bytes: an envelope or a result exactly as
   envelope.h has them, or one of the link's own, which only say that the other end is alive (a pulse, after a NOOP or
   SHUTDOWN), why a message was refused, where a call's time went, and that the link is being closed. Sizes always
   agree, so that damaged bytes are found by the end that decodes them, which can still tell why.

   Memory is bounded and allocated when the link is opened: a box for what arrives, and slots for what is on its way.
   Sending does not wait while a slot is free.

   An end that waits for a message sends heartbeats. So an end that has received nothing for the
   communicator's deadline knows that the other is gone, and does not first process queued messages: time counts from
   the last message that was received, regardless of the work since. If stage 0 and the leader are one rank, the two
   ends are a pair in memory: the same bytes, encoded and decoded; when stage 0 would wait, the leader runs. */
#ifndef CARRY_STREAM_LINK_H
#define CARRY_STREAM_LINK_H

#include <stdbool.h>

#include "carry/comm.h"

typedef enum carry_message_kind {
    CARRY_MESSAGE_ENVELOPE = 1,
    CARRY_MESSAGE_RESULT,
    CARRY_MESSAGE_PULSE,   /* i64: the call_id that was done */
    CARRY_MESSAGE_REFUSAL, /* an error message */
    CARRY_MESSAGE_ABOUT,   /* carry_about: comes before every result */
    CARRY_MESSAGE_TEXT,    /* carry_text_head, then rows: conditioning for the steps that are left of a call */
    CARRY_MESSAGE_LORA,    /* i64: the LoRA of the next envelope and those after it; 0: none */
    CARRY_MESSAGE_CLOSE,
    CARRY_MESSAGE_HEARTBEAT, /* sign of life: it is never delivered */
} carry_message_kind;

typedef struct carry_message {
    carry_message_kind kind;
    const void *bytes; /* aligned to 64, until the next is received */
    size_t size;
} carry_message;

/* Figures of a call that stage 0 shows and that are not in the result. Both ends are of one build, which the handshake
   compares: the struct is sent as it is. */
typedef struct carry_about {
    uint64_t call_id;
    double denoise, recompute, clean; /* seconds */
    int64_t forwards, large, small;   /* since the start: forwards and all-reduces of the mesh */
    uint64_t texts; /* conditionings so far, of envelopes and of texts; the last is that of the chunk's last step */
    bool is_again;  /* the last step was done again, with a conditioning that came during it */
} carry_about;

/* A prompt that came while its chunk was under way: bf16 rows [rows, text_dim] follow. */
typedef struct carry_text_head {
    uint32_t crc; /* CRC32C of the rows */
    uint32_t rows;
    uint64_t spare; /* rows are aligned to 16 */
} carry_text_head;

typedef struct carry_link_options {
    int depth;         /* messages with tensors that may be on their way */
    size_t out_most;   /* bytes of the longest message that is sent */
    size_t in_most;    /* and that is taken */
    const char *group; /* who holds this end: "stage0" or "mesh" */
} carry_link_options;

typedef struct carry_link carry_link;
carry_status carry_link_open(carry_comm *world, carry_link **made, int peer, const carry_link_options *options);
/* Two ends of one rank. */
carry_status carry_link_pair(carry_ctx *ctx, carry_link **stage, carry_link **leader,
                             const carry_link_options *options);
/* Cancels pending messages and does not wait. NULL is fine. */
void carry_link_free(carry_link *link);

/* Of a pair: called when this end waits and no message is there. */
void carry_link_set_turn(carry_link *link, carry_status (*turn)(void *user), void *user);

/* A slot to write the next message into, out_most bytes; waits until there is one. Then: send it. */
carry_status carry_link_slot(carry_link *link, void **room);
size_t carry_link_capacity(const carry_link *link); /* out_most */
carry_status carry_link_send(carry_link *link, carry_message_kind kind, size_t bytes);
/* Both in one, with bytes from elsewhere; those that do not fit a slot are left out. */
carry_status carry_link_tell(carry_link *link, carry_message_kind kind, const void *bytes, size_t size);
/* Waits until everything that was sent has arrived. */
carry_status carry_link_flush(carry_link *link);

/* From now on this end sends no heartbeats while it waits: the next message is the last. */
void carry_link_stop_heartbeats(carry_link *link);

/* Makes progress on pending messages; *there: a message can be received without waiting. */
carry_status carry_link_poll(carry_link *link, bool *there);
/* The same, but waits for it up to `seconds`, with heartbeats. */
carry_status carry_link_wait(carry_link *link, double seconds, bool *there);
/* Is there a message, and is it of that kind? */
carry_status carry_link_next_is(carry_link *link, carry_message_kind kind, bool *is_next);
/* CARRY_ETIMEOUT when the other end has been silent for the deadline, even where messages of it wait to be received;
   CARRY_EFORMAT if the prelude is invalid, CARRY_ERANGE if the message is too long. */
carry_status carry_link_receive(carry_link *link, carry_message *message);

#endif
