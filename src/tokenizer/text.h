/* Text from files and folders of any size, read in blocks.

   A folder stands for the regular files in it and below it, in the order of their names (compared as bytes); hidden
   files and folders, empty files and links to folders are skipped. A block is about block_bytes of one file, and ends
   where the text can be cut without changing its tokens (carry_tokenizer_last_cut). If 64 KiB contain no such place,
   the text is cut between two characters. The boundaries of blocks depend only on the file and these options.

   Files are read with pread and not mapped: if a mapped file shrinks, its reader is killed by a signal, while pread
   allows an error message. Bytes appended to a file after it was opened are ignored. */
#ifndef CARRY_TOKENIZER_TEXT_H
#define CARRY_TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "tokenizer/tokenizer.h"

typedef struct carry_text_options {
    const carry_tokenizer *tokenizer; /* blocks do not end inside an added token of this tokenizer; may be NULL */
    int64_t block_bytes;              /* 0 means 1 MiB; at least 4096 */
    bool take_binary; /* accept binary files. If false, a file with a 0 byte, or with too many bytes that are not UTF-8,
                         is refused when it is read; opening a text reads the start of each file */
} carry_text_options;

typedef struct carry_text carry_text;

/* A path that names an empty file is an error; empty files inside folders are skipped. */
carry_status carry_text_open(carry_ctx *ctx, carry_text **text, const char *const *paths, int count,
                             const carry_text_options *options);
void carry_text_free(carry_text *text);

int64_t carry_text_files(const carry_text *text);
int64_t carry_text_bytes(const carry_text *text);
int64_t carry_text_blocks(const carry_text *text);
const char *carry_text_path(const carry_text *text, int64_t file);
int64_t carry_text_file_bytes(const carry_text *text, int64_t file);
int64_t carry_text_block_bytes(const carry_text *text, int64_t block); /* about */
/* A checksum that identifies a text, over file names without folders, sizes, and the block size. */
uint32_t carry_text_crc(const carry_text *text);

/* carry_text_read appends a block to *bytes, which grows (start with all zero). ends_file: the block is the last one of
   its file. */
typedef struct carry_bytes {
    char *at;
    size_t count, room;
} carry_bytes;
carry_status carry_text_read(carry_ctx *ctx, const carry_text *text, int64_t block, carry_bytes *bytes,
                             bool *ends_file);

/* True if the block is the first one of its file. */
bool carry_text_begins_file(const carry_text *text, int64_t block);

/* True if these bytes do not look like text; why: the reason, such as "has a 0 byte at place 12". */
bool carry_text_is_binary(const void *bytes, size_t length, char *why, size_t size);

#endif
