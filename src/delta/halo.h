/* The halo of a causal convolution on the inside: halo.c for the CPU and what both share, halo_device.c for GPUs. */
#ifndef CARRY_DELTA_HALO_H
#define CARRY_DELTA_HALO_H

#include "carry/delta_ranks.h"
#include "comm/rates.h"
#include "ops/kernels/kernels.h"

#define CARRY_HALO_TAG (CARRY_MAX_COMM_TAGS - 1)

/* The record that every rank sends to the others. */
typedef struct carry_halo_record {
    int64_t tokens, batch, window, channels;
    int64_t status;
} carry_halo_record;

typedef struct carry_halo {
    carry_comm *comm;
    carry_ctx *ctx;
    const carry_kernels *kernels;
    const carry_tensor *own, *before; /* x and before, or their gradients */
    int rank, size, device;
    int64_t batch, window, channels, row; /* window: W-1; row: floats of a token, B channels */
    int64_t tail;                         /* of this rank's tokens: those that others may want, its last ones */
    carry_halo_record *all;
    float *mine, *one; /* [tail, row] */
    float *others;     /* [window, row] */
    carry_request *requests;
    void *block;
} carry_halo;

/* Tokens of rank `owner` that rank `wants` wants: its last ones, and how many others lie between. */
int64_t carry_halo_wanted(const carry_halo *h, int owner, int wants, int64_t *between);
carry_status carry_halo_wait_all(carry_halo *h, carry_status status);

carry_status carry_halo_device_tokens(carry_halo *h);
carry_status carry_halo_device_gradients(carry_halo *h);

/* Tokens of some sequences, channels packed: token t of sequence b is at data + t*token + b*sequence, in elements. */
typedef struct carry_halo_rows {
    void *data;
    carry_dtype dtype;
    int64_t token, sequence;
} carry_halo_rows;

/* cuda/halo.cu: to = from, or to + from, rounded once; on the context's stream of the device. */
carry_status carry_halo_move(carry_ctx *ctx, int device, carry_halo_rows to, carry_halo_rows from, int64_t tokens,
                             int64_t batch, int64_t channels, int adds);

#endif
