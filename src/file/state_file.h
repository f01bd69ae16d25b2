/* State files: the state of a model after a text, as named tensors in a safetensors file. Its metadata:

       carry_state     the version of the format, "2"
       model           hash of the model's configuration and weights
       tokens, ids     the number of tokens that were read, and the hash of their ids (carry_hash_ids)
       xxh64.NAME      hash of the bytes of each tensor
       header          hash of all of the above, and of the name, type and shape of each tensor

   The tensors fill the file without gaps up to its end. So a file of any other length, or with any changed bit in the
   header or the data, is refused. Numbers and hashes are accepted only in the form in which they are written. Hashes
   are XXH64 (core/hash.h), in 16 hexadecimal digits. A file is replaced as a whole (core/file.h).

   Version 1 had no hashes of tensors, and identified models by a few of their weights. */
#ifndef CARRY_FILE_STATE_FILE_H
#define CARRY_FILE_STATE_FILE_H

#include "file/safetensors.h"

#define CARRY_STATE_VERSION "2"
#define CARRY_STATE_TOKENS ((int64_t)1 << 48) /* largest number of tokens */

typedef struct carry_state_about {
    uint64_t model;
    int64_t tokens;
    uint64_t ids;
} carry_state_about;

/* Writes tensors as carry_safetensors_write does, without converting their type. */
carry_status carry_state_write(carry_ctx *ctx, const char *path, const carry_state_about *about,
                               const carry_safetensors_item *items, int64_t count);

typedef struct carry_state_file {
    carry_safetensors file;
    carry_state_about about;
    uint64_t header;
} carry_state_file;

/* CARRY_EFORMAT, or CARRY_EUNSUPPORTED for another version, with a message that names the path; *state is then empty.
   On success, all hashes have been verified. */
carry_status carry_state_open(carry_ctx *ctx, carry_state_file *state, const char *path);
void carry_state_close(carry_state_file *state);

/* carry_state_open in two steps, for several files at once: opening each without verifying hashes, and hashing the data
   of all on all threads. */
carry_status carry_state_map(carry_ctx *ctx, carry_state_file *state, const char *path);
typedef struct carry_state_check {
    const carry_state_file *file;
    const char *path;
    const char *unread; /* a tensor whose hash is not verified, and whose data must not be used; NULL: none */
} carry_state_check;
/* CARRY_EFORMAT: *wrong is the index of the first damaged file, which the message names. */
carry_status carry_state_verify_files(carry_ctx *ctx, const carry_state_check *checks, int64_t count, int64_t *wrong);

/* The two steps of opening, for fuzzing: parsing bytes in memory (borrowed, aligned to 8) without verifying hashes, and
   verifying them. */
carry_status carry_state_parse(carry_ctx *ctx, carry_state_file *state, const void *data, size_t bytes,
                               const char *path);
carry_status carry_state_verify(carry_ctx *ctx, const carry_state_file *state, const char *path);

#endif
