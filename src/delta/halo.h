/* Internals of the halo of a causal convolution: halo.c has the CPU version and shared code, halo_device.c the GPU
   version. */
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
    int64_t batch, window, channels, row; /* window: W-1; row: floats of one token (B * channels) */
    int64_t tail;                         /* the number of this rank's last tokens that others may need */
    carry_halo_record *all;
    float *mine, *one; /* [tail, row] */
    float *others;     /* [window, row] */
    carry_request *requests;
    void *block;
} carry_halo;

/* Returns the number of tokens of rank `owner` that rank `wants` needs; they are the owner's last ones. If the result
   is above 0, *between is the number of tokens on the ranks between the two. */
int64_t carry_halo_wanted(const carry_halo *h, int owner, int wants, int64_t *between);
carry_status carry_halo_wait_all(carry_halo *h, carry_status status);

carry_status carry_halo_device_tokens(carry_halo *h);
carry_status carry_halo_device_gradients(carry_halo *h);

/* Tokens of some sequences with contiguous channels. Token t of sequence b is at data + t*token + b*sequence, in
   elements. */
typedef struct carry_halo_rows {
    void *data;
    carry_dtype dtype;
    int64_t token, sequence;
} carry_halo_rows;

/* cuda/halo.cu: to = from, or to += from if `adds`, rounded once. Runs on the context's stream of the device. */
carry_status carry_halo_move(carry_ctx *ctx, int device, carry_halo_rows to, carry_halo_rows from, int64_t tokens,
                             int64_t batch, int64_t channels, int adds);

#endif
