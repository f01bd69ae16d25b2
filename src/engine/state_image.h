/* The state of a text as a file (file/state_file.h): the tokens, the recurrent part, the keys and values.

       tokens   i64 [length - start]: ids of the tokens from `start` on
       start    i64 [2]: start, and the hash of the tokens before it (carry_hash_ids)
       types    i64 [2]: types of keys and values and of states (carry_runner_sizes), the letters of a name from the
                lowest byte on. Older files have no types
       slot     the recurrent part, in the runner's format
       pages    keys and values from page start / CARRY_PAGE_TOKENS on, in the runner's format

   A state that starts at 0 is complete; cached prefixes are stored as differences to another one. */
#ifndef CARRY_ENGINE_STATE_IMAGE_H
#define CARRY_ENGINE_STATE_IMAGE_H

#include "engine/runner.h"
#include "file/state_file.h"

typedef struct carry_state_image {
    int64_t start, length;     /* start: a multiple of CARRY_PAGE_TOKENS */
    uint64_t start_hash, hash; /* hashes of the tokens before start, and before length */
    const int64_t *ids;        /* [length - start], possibly followed by tokens that were not read: */
    int64_t id_count;
    const void *slot, *pages;
    int64_t page_count;
} carry_state_image;

/* The image must have the runner's sizes and hash. */
carry_status carry_state_image_write(carry_ctx *ctx, const char *path, carry_runner *runner,
                                     const carry_state_image *image);

/* Opens and checks a file; pointers of the image point into it until carry_state_close. CARRY_EFORMAT: the file is
   damaged or not a state. CARRY_EARGUMENT: it belongs to another model, or to the same one with other types; the
   message names the path. */
carry_status carry_state_image_open(carry_ctx *ctx, carry_state_file *file, carry_state_image *image, const char *path,
                                    carry_runner *runner);
/* The same without verifying hashes (carry_state_verify_files). */
carry_status carry_state_image_map(carry_ctx *ctx, carry_state_file *file, carry_state_image *image, const char *path,
                                   carry_runner *runner);

#endif
