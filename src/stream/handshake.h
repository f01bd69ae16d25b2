/* Compares the settings on which all ranks of a stream must agree, after loading and before the pipeline runs.

   Opening a communicator has already compared library and compiler; the settings here are known only later. The
   records are exchanged with an all-gather, so every rank compares the same records and ends with the same message,
   which lists each difference by rank: "rank 2 has a mesh of 3, rank 0 has 2". */
#ifndef CARRY_STREAM_HANDSHAKE_H
#define CARRY_STREAM_HANDSHAKE_H

#include "carry/comm.h"
#include "model/dit/dit.h"

typedef struct carry_handshake {
    int mesh;          /* number of ranks that share the generator */
    uint64_t model;    /* carry_handshake_model */
    carry_dtype dtype; /* type in which the model computes */
    carry_dit_cache_options cache;
    int depth;         /* maximum envelopes in progress */
    const char *build; /* options that change the format of messages; NULL: none */
    /* On ranks of the mesh: the fingerprint of the weights, of which each rank has a full copy. */
    bool has_weights;
    uint64_t weights;
} carry_handshake;

/* A digest of the whole configuration. */
uint64_t carry_handshake_model(const carry_dit_config *config);

/* A collective of the world. Returns CARRY_EARGUMENT on every rank if any field differs. */
carry_status carry_handshake_run(carry_comm *world, const carry_handshake *mine);

#endif
