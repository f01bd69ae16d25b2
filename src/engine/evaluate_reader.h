/* Gives the tokens of one file after the other, for evaluation. A reader takes a file, returns its tokens in pieces of
   the length that the caller asks for, and holds about one block of the text at a time. */
#ifndef CARRY_ENGINE_EVALUATE_READER_H
#define CARRY_ENGINE_EVALUATE_READER_H

#include "engine/model_folder.h"
#include "tokenizer/text.h"

/* The files of a text. Each reader takes the next one. */
typedef struct carry_evaluate_files {
    carry_ctx *ctx;
    const carry_model *model;
    const carry_text *text;
    bool from_start;
    int64_t next_block, next_file;
} carry_evaluate_files;

typedef struct carry_evaluate_reader {
    carry_encoder *encoder;
    carry_bytes bytes;
    carry_ids ids;       /* the tokens that were encoded */
    size_t at;           /* index of the next input in `ids`; the token after it is its target */
    bool has_file;       /* false: carry_evaluate_reader_next takes one */
    int64_t file, block; /* block: the next one */
    bool is_read;        /* all blocks of the file were read */
    int64_t given;       /* number of tokens of the file that were predicted */
    int64_t given_bytes; /* the sum of their bytes; normalizers may change it */
    int64_t file_bytes;  /* bytes of the file that were read */
    int64_t first_bytes; /* of its first token */
    bool has_start;      /* a start token is before it, so the first token is predicted */
} carry_evaluate_reader;

/* A piece: inputs id[0..count-1], whose targets are id[1..count]. Valid until the next call. */
typedef struct carry_evaluate_piece {
    const uint32_t *id;
    int64_t count;
    int64_t first; /* the index of the first target among the predicted tokens of the file */
    int64_t bytes; /* of the targets */
    bool
        ends_file; /* last piece of its file; its `bytes` makes the sum over the pieces equal to the size of the file */
} carry_evaluate_piece;

carry_status carry_evaluate_reader_open(const carry_evaluate_files *files, carry_evaluate_reader *r);
void carry_evaluate_reader_close(carry_evaluate_reader *r);

/* Gets up to `most` tokens of the reader's file; without a file, it takes the next one. Files without a token to
   predict are skipped and added to *skipped. If piece->count is 0, no file is left. */
carry_status carry_evaluate_reader_next(carry_evaluate_files *files, carry_evaluate_reader *r, int64_t most,
                                        carry_evaluate_piece *piece, int64_t *skipped);

/* The largest number of predicted tokens of a file. It encodes all files. */
carry_status carry_evaluate_longest(const carry_evaluate_files *from, int64_t *longest);

#endif
