/* Text from files and folders of any size, read in blocks.

   A folder stands for the files in it and below it, in the order of their names (bytes compared); hidden ones, and
   those that are no regular files, are skipped. A block is about block_bytes of one file, and ends where a text can
   be cut without changing its tokens (carry_tokenizer_last_cut); only in a stretch of 64 KiB that has no such place is
   it cut between two characters. Where blocks begin and end depends on the file alone.

   Files are read by pread rather than mapped: a mapped file that shrinks under its reader kills the process with a
   signal, a read one is refused with an error message. What grows behind the size that a file had at first is not seen.
 */
#ifndef CARRY_TOKENIZER_TEXT_H
#define CARRY_TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "tokenizer/tokenizer.h"

typedef struct carry_text_options {
    const carry_tokenizer *tokenizer; /* blocks do not end inside its added tokens; may be NULL */
    int64_t block_bytes;              /* 0: 1 MiB; at least 4096 */
    bool take_binary; /* else a file with a 0 byte, or with too much that is no UTF-8, is refused when it is read; the
                         start of each is read when the text is opened */
} carry_text_options;

typedef struct carry_text carry_text;

/* Empty files are refused when they are named, and skipped inside folders. */
carry_status carry_text_open(carry_ctx *ctx, carry_text **text, const char *const *paths, int count,
                             const carry_text_options *options);
void carry_text_free(carry_text *text);

int64_t carry_text_files(const carry_text *text);
int64_t carry_text_bytes(const carry_text *text);
int64_t carry_text_blocks(const carry_text *text);
const char *carry_text_path(const carry_text *text, int64_t file);
int64_t carry_text_file_bytes(const carry_text *text, int64_t file);
int64_t carry_text_block_bytes(const carry_text *text, int64_t block); /* about */
/* Tells texts apart: names without folders, sizes, and the size of blocks. */
uint32_t carry_text_crc(const carry_text *text);

/* A block's bytes, appended to *bytes (which grows, from NULL and 0 room); how many are in it then. ends_file: it is
   the last one of its file. */
typedef struct carry_bytes {
    char *at;
    size_t count, room;
} carry_bytes;
carry_status carry_text_read(carry_ctx *ctx, const carry_text *text, int64_t block, carry_bytes *bytes,
                             bool *ends_file);

/* Is it the first one of its file? */
bool carry_text_begins_file(const carry_text *text, int64_t block);

/* Why these bytes do not look like text, as "has a 0 byte at place 12"; false when they do. */
bool carry_text_is_binary(const void *bytes, size_t length, char *why, size_t size);

#endif
