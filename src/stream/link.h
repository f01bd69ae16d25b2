/* Messages between stage 0 and the leader, who hold one end each.

   A message is a prelude of 16 bytes (magic, kind, length), then the bytes: an envelope or a result in the format of
   envelope.h, or a message of the link itself: a pulse (the answer to a NOOP or SHUTDOWN), the reason for a refusal,
   the timings of a call, a prompt that arrived during a chunk, the choice of a LoRA, a heartbeat, or the close of the
   link. The length is in the prelude, so damage to the bytes is detected by the end that decodes them, which can still
   report the reason.

   Memory is bounded and allocated when the link is opened: one buffer for the arriving message, and slots for
   messages being sent. Sending does not wait while a slot is free.

   An end that waits for a message sends heartbeats. An end that has received nothing for the communicator's deadline
   therefore knows that the other end is gone, and reports that before it processes queued messages: time counts from
   the last message received, regardless of the work since. If stage 0 and the leader are one rank, the two ends are
   a pair in memory. The same bytes are encoded and decoded, and when stage 0 would wait, the leader runs. */
#ifndef CARRY_STREAM_LINK_H
#define CARRY_STREAM_LINK_H

#include <stdbool.h>

#include "carry/comm.h"

typedef enum carry_message_kind {
    CARRY_MESSAGE_ENVELOPE = 1,
    CARRY_MESSAGE_RESULT,
    CARRY_MESSAGE_PULSE,   /* i64: call_id of the finished call */
    CARRY_MESSAGE_REFUSAL, /* an error message */
    CARRY_MESSAGE_ABOUT,   /* carry_about: comes before every result */
    CARRY_MESSAGE_TEXT,    /* carry_text_head, then rows: conditioning for the remaining steps of a call */
    CARRY_MESSAGE_LORA,    /* i64: the LoRA from the next envelope on; 0: none */
    CARRY_MESSAGE_CLOSE,
    CARRY_MESSAGE_HEARTBEAT, /* shows that the sender is alive; it is never delivered */
} carry_message_kind;

typedef struct carry_message {
    carry_message_kind kind;
    const void *bytes; /* aligned to 64 bytes; valid until the next receive */
    size_t size;
} carry_message;

/* Figures of a call that stage 0 shows and that are not in the result. The struct is sent without conversion: the
   handshake has checked that both ends are of one build. */
typedef struct carry_about {
    uint64_t call_id;
    double denoise, recompute, clean; /* seconds */
    int64_t forwards, large, small;   /* totals since the start: forwards and all-reduces of the mesh */
    /* Conditionings used so far, from envelopes and late prompts; the newest is that of the chunk's last step. */
    uint64_t texts;
    bool is_again; /* the last step was repeated with a conditioning that arrived during it */
} carry_about;

/* A prompt that arrived while its chunk was being denoised. Its rows follow: bf16 [rows, text_dim]. */
typedef struct carry_text_head {
    uint32_t crc; /* CRC32C of the rows */
    uint32_t rows;
    uint64_t spare; /* rows are aligned to 16 */
} carry_text_head;

typedef struct carry_link_options {
    int depth;         /* maximum number of messages with tensors in transit */
    size_t out_most;   /* size of the longest message that this end sends, in bytes */
    size_t in_most;    /* size of the longest message that it accepts */
    const char *group; /* the owner of this end: "stage0" or "mesh" */
} carry_link_options;

typedef struct carry_link carry_link;
carry_status carry_link_open(carry_comm *world, carry_link **made, int peer, const carry_link_options *options);
/* Makes the two ends of a link within one rank. */
carry_status carry_link_pair(carry_ctx *ctx, carry_link **stage, carry_link **leader,
                             const carry_link_options *options);
/* Cancels pending messages and does not wait. NULL is fine. */
void carry_link_free(carry_link *link);

/* For a pair: `turn` is called when this end waits and no message is there. */
void carry_link_set_turn(carry_link *link, carry_status (*turn)(void *user), void *user);

/* Waits for a free slot of out_most bytes. The caller writes the next message there and then calls carry_link_send. */
carry_status carry_link_slot(carry_link *link, void **room);
size_t carry_link_capacity(const carry_link *link); /* out_most */
carry_status carry_link_send(carry_link *link, carry_message_kind kind, size_t bytes);
/* carry_link_slot and carry_link_send in one call: copies the bytes, cut to the size of a slot. */
carry_status carry_link_tell(carry_link *link, carry_message_kind kind, const void *bytes, size_t size);
/* Waits until every message sent has arrived. */
carry_status carry_link_flush(carry_link *link);

/* From now on this end sends no heartbeats while it waits; call it before the last message. */
void carry_link_stop_heartbeats(carry_link *link);

/* Makes progress on pending messages. *there is true if a message can be received without waiting. */
carry_status carry_link_poll(carry_link *link, bool *there);
/* As carry_link_poll, but waits up to `seconds` for a message and sends heartbeats meanwhile. */
carry_status carry_link_wait(carry_link *link, double seconds, bool *there);
/* *is_next is true if the next message is there and of that kind. */
carry_status carry_link_next_is(carry_link *link, carry_message_kind kind, bool *is_next);
/* CARRY_ETIMEOUT when the other end has been silent for the deadline, even if its messages are queued here;
   CARRY_EFORMAT if the prelude is invalid, CARRY_ERANGE if the message is too long. */
carry_status carry_link_receive(carry_link *link, carry_message *message);

#endif
