/* Communicators for device memory that are opened over another communicator and use its messages of host memory:
   "peer" sends addresses and events, "ipc" names of memory that processes can open, "staged" the bytes themselves
   through pinned memory, and "mpi-gpu" passes GPU addresses to an MPI that accepts them.

   A request is an item of a list, in the order of posting, and stays there until the host messages behind it are
   done. A rank that waits advances all items, so that two ranks that wait for each other's acknowledgement both make
   progress. Items between the same ranks with the same tag and direction advance in order. Device work goes into the
   stream that the context had when the request was posted. */
#ifndef CARRY_COMM_RELAY_H
#define CARRY_COMM_RELAY_H

#include "carry/device.h"
#include "comm/backend.h"
#include "device/exchange.h"

/* The message of "peer": the address of the bytes, and the events that mark when they are ready and when they have
   been read. */
typedef struct carry_relay_words {
    const void *from;
    carry_event *ready, *taken; /* the sender's events; it records `ready`, the receiver records `taken` */
    uint64_t bytes;
} carry_relay_words;

/* The message of "ipc". */
typedef struct carry_relay_piece {
    carry_exchange_name name;
    uint64_t offset, bytes;
    const void *local; /* its address in the sender's process */
} carry_relay_piece;

typedef struct carry_relay_item {
    struct carry_relay_item *next;
    carry_request *request; /* NULL: the request is over, and only the item's own work is left */
    /* from or to is set, as in the request; both are NULL if there are no bytes */
    const void *from;
    void *to;
    size_t bytes;
    int peer, tag;
    bool sends;
    carry_stream *stream;
    int stage;                  /* progress, from 0, as an enum in the way's file (ipc.c, ...); below 0: over */
    carry_request forth, back;  /* on the communicators `forth` and `back` */
    carry_relay_words words;    /* sent or received */
    carry_relay_piece piece;    /* sent or received */
    uint64_t answer;            /* bytes that the receiver expects */
    carry_event *ready, *taken; /* its own */
    void *pinned;
    size_t pinned_bytes;
    carry_exchange *exchange;
} carry_relay_item;

typedef struct carry_relay {
    carry_ctx *ctx;
    const struct carry_relay_way *way;
    carry_comm *forth, *back; /* split from the communicator that this one was opened over */
    int device, rank;
    int *devices;           /* device of every rank */
    struct region *regions; /* of other processes: ipc.c's */
    carry_relay_item *first, *spare;
} carry_relay;

/* One way to move device memory, such as "peer". post starts an item. advance does the next part of its work: *moved
   is set to true if the item made progress, and stays false if it must wait. advance is then called again until *moved
   stays false or the item is over (stage below 0). Both set the request's state with carry_relay_settle; if either
   returns an error, the request fails. */
typedef struct carry_relay_way {
    carry_status (*post)(carry_relay *relay, carry_relay_item *item);
    carry_status (*advance)(carry_relay *relay, carry_relay_item *item, bool *moved);
    void (*close)(carry_relay *relay); /* NULL: the way has nothing to close */
} carry_relay_way;

carry_status carry_relay_open(carry_ctx *ctx, carry_wire *wire, const carry_comm_options *options,
                              const carry_relay_way *way);
void carry_relay_post(carry_wire *wire, carry_request *request);
void carry_relay_progress(carry_wire *wire, carry_request *request, double until);
void carry_relay_cancel(carry_wire *wire, carry_request *request);
void carry_relay_abort(carry_wire *wire, const char *reason);
void carry_relay_close(carry_wire *wire);

/* Sets the state of the item's request. The item itself may still have work left. */
void carry_relay_settle(carry_relay_item *item, carry_request_state state, size_t other_bytes);

#endif
