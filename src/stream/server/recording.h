/* A stream into a video file, beside those who watch: a viewer with a thread of its own, so that a slow disk delays
   no other viewer and costs frames of the recording alone.

   A file that reaches its limit is finished and name-2.avi begins. A disk that is full, or a folder that has gone, ends
   the recording with an error message; the stream goes on. */
#ifndef CARRY_STREAM_RECORDING_H
#define CARRY_STREAM_RECORDING_H

#include "core/file.h"
#include "stream/server/hub.h"

typedef struct carry_film_state {
    char path[CARRY_FILE_PATH]; /* the file that is written */
    int files;
    uint64_t frames, bytes, dropped; /* of all its files */
    bool ended;                      /* by itself, with an error message */
    char why[512];
} carry_film_state;

typedef struct carry_film carry_film;

/* path ends in .avi and does not exist yet. limit: bytes of a file; 0: as many as the format can have. ctx is used by
   the caller's thread only, for an error message. */
carry_status carry_film_start(carry_ctx *ctx, carry_film **made, carry_hub *hub, const char *path, uint64_t limit);
void carry_film_look(carry_film *film, carry_film_state *state);
/* Finishes the file. state may be NULL: how it ended. */
void carry_film_stop(carry_film *film, carry_film_state *state);

#endif
