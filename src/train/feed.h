/* Batches for a GPU: the next batch is prepared on the host and uploaded while the current step runs.

   A batch goes through one of two slots, each with pinned memory and GPU memory. The feed uploads it on its own
   stream during the step, and the context's stream then copies it to the buffer that steps read, which is always the
   same. The host waits for an upload before it enqueues that copy. Before it overwrites a slot, it waits for the
   slot's last copy, that of the step two steps ago. So the host is at most two steps ahead, and no kernel waits for an
   upload. */
#ifndef CARRY_TRAIN_FEED_H
#define CARRY_TRAIN_FEED_H

#include "carry/device.h"
#include "carry/tensor.h"
#include "train/data/batches.h"

#define CARRY_FEED_SLOTS 2

typedef struct carry_feed_slot {
    int64_t *pinned; /* [2, count]: ids, then labels */
    void *there;     /* the same on the GPU */
    int64_t *cuts;   /* cu_seqlens of the batch, in host memory; NULL: not packed */
    carry_event *used;
    bool was_used; /* the event was recorded */
} carry_feed_slot;

typedef struct carry_feed {
    carry_ctx *ctx;
    int device;               /* 0: closed */
    int64_t count;            /* number of ids of a batch */
    int64_t vocabulary;       /* ids and labels are below it */
    carry_tensor ids, labels; /* [count], where steps read them */
    int64_t labels_whole;     /* number of labels in the current batch, over all ranks */
    int64_t sequences;        /* sequences of a batch of packed examples; 0: each row is a sequence */
    const int64_t *cuts;  /* cu_seqlens of the current batch, [sequences + 1]; valid until the batch after the next */
    carry_stream *stream; /* stream for uploads */
    carry_feed_slot slot[CARRY_FEED_SLOTS];
    int next;                   /* the slot of the next batch */
    bool is_ready;              /* a batch is prepared: */
    int64_t ready_labels;       /* its labels_whole */
    carry_position ready_after; /* the position after that batch */
} carry_feed;

/* sequences: of a batch of packed examples; 0: each row is a sequence. */
carry_status carry_feed_open(carry_ctx *ctx, carry_feed *feed, int device, int64_t count, int64_t vocabulary,
                             int64_t sequences);
void carry_feed_close(carry_feed *feed);
size_t carry_feed_bytes(int64_t count); /* bytes on the GPU */

/* Makes the next batch and uploads it, unless one is ready. After a failure the position of the batches is
   unchanged. */
carry_status carry_feed_prepare(carry_feed *feed, carry_batches *batches);
/* Copies that batch to ids and labels in the order of the context's stream; prepares it first if necessary. */
carry_status carry_feed_take(carry_feed *feed, carry_batches *batches, carry_position *after);

#endif
