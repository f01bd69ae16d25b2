/* Settings on which all ranks of a stream must agree, compared once everything has been loaded and before the pipeline
   runs.

   Opening a communicator has compared library and compiler already; this is what is known later. The record is
   gathered by all from all, so every rank compares the same records and ends alike, with the same message: each
   difference by rank, "rank 2 has a mesh of 3, rank 0 has 2". */
#ifndef CARRY_STREAM_HANDSHAKE_H
#define CARRY_STREAM_HANDSHAKE_H

#include "carry/comm.h"
#include "model/dit/dit.h"

typedef struct carry_handshake {
    int mesh;          /* ranks that share the generator */
    uint64_t model;    /* carry_handshake_model */
    carry_dtype dtype; /* that weights are computed with */
    carry_dit_cache_options cache;
    int depth;         /* envelopes under way */
    const char *build; /* options that change what travels; NULL: none */
    /* Ranks of the mesh: the fingerprint of the weights that every one of them has whole. */
    bool has_weights;
    uint64_t weights;
} carry_handshake;

/* A digest of all of a configuration. */
uint64_t carry_handshake_model(const carry_dit_config *config);

/* A collective of the world. CARRY_EARGUMENT on every rank where they differ. */
carry_status carry_handshake_run(carry_comm *world, const carry_handshake *mine);

#endif
