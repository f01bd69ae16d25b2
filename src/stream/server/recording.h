/* Records a stream to a video file. The recorder is a viewer with its own thread, so a slow disk delays no other
   viewer and only the recording loses frames.

   A file that reaches its limit is finished, and name-2.avi is started. If the disk is full or the folder is gone,
   the recording ends with an error message, and the stream continues. */
#ifndef CARRY_STREAM_RECORDING_H
#define CARRY_STREAM_RECORDING_H

#include "core/file.h"
#include "stream/server/hub.h"

typedef struct carry_film_state {
    char path[CARRY_FILE_PATH]; /* the file being written */
    int files;
    uint64_t frames, bytes, dropped; /* totals over all its files */
    bool ended;                      /* the recording ended by itself, with an error message */
    char why[512];
} carry_film_state;

typedef struct carry_film carry_film;

/* path ends in .avi and must not exist yet. limit: maximum bytes per file; 0: the maximum of the format. ctx is used
   only by the calling thread, for error messages. */
carry_status carry_film_start(carry_ctx *ctx, carry_film **made, carry_hub *hub, const char *path, uint64_t limit);
void carry_film_look(carry_film *film, carry_film_state *state);
/* Finishes the file. *state receives the final state; state may be NULL. */
void carry_film_stop(carry_film *film, carry_film_state *state);

#endif
