/* Tokenizers: bytes to token numbers and back.

   A tokenizer has a token for each of the 256 bytes, merges of two tokens into a third (BPE; carry_tokenizer_bytes
   makes a tokenizer without merges), and added tokens such as <|endoftext|>, which are found in a text before anything
   else. Its file format is Hugging Face's tokenizer.json, and its numbers and texts equal those of their `tokenizers`
   library:

   - Encoding: the text is split at added tokens: the leftmost is found first, and the longest of several at one
     position. Added tokens that are not "normalized" are searched for first; the rest of the text is then normalized
     and searched for those that are. The text between them is cut into pieces (pattern.h). Each piece starts as its
     bytes or characters; of all possible merges, the one that comes first in the list is done first, the leftmost of
     equal ones, until none is possible. With "ignore_merges", a piece that equals a token becomes that token.
   - Decoding: the bytes of the tokens are joined. The `tokenizers` library then converts the bytes to text, with U+FFFD
     for bytes that are not UTF-8; carry_unfold does that token by token.

   Bytes that are not UTF-8 are encoded too, and decoded to the same bytes. Two differences from `tokenizers` remain.
   NFC here also orders marks that are newer than Unicode 11. And in a run of byte tokens such as <0xE2> that is not
   UTF-8, `tokenizers` turns every byte into U+FFFD, while this code replaces only bytes that are not part of a
   character. */
#ifndef CARRY_TOKENIZER_H
#define CARRY_TOKENIZER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "carry/tokenizer.h"

#define CARRY_TOKENS_MOST ((int64_t)1 << 21)      /* limit of tokens in a tokenizer */
#define CARRY_ADDED_MOST 4096                     /* limit of added tokens */
#define CARRY_ADDED_BYTES 1024                    /* longest added token */
#define CARRY_TOKENIZER_BYTES ((size_t)256 << 20) /* largest tokenizer.json */
#define CARRY_END_OF_TEXT "<|endoftext|>"

/* Makes a tokenizer with the 256 bytes as tokens 0 to 255, followed by these added tokens. */
carry_status carry_tokenizer_bytes(carry_ctx *ctx, carry_tokenizer **tokenizer, const char *const *added, int count);
/* Reads the text of a tokenizer.json; name is used in messages. */
carry_status carry_tokenizer_parse(carry_ctx *ctx, carry_tokenizer **tokenizer, const char *text, size_t length,
                                   const char *name);

/* Writes the format of tokenizer.json. carry_tokenizer_write: the caller frees *text. carry_tokenizer_save replaces the
   file as a whole. */
carry_status carry_tokenizer_write(carry_ctx *ctx, const carry_tokenizer *tokenizer, char **text, size_t *length);
carry_status carry_tokenizer_save(carry_ctx *ctx, const carry_tokenizer *tokenizer, const char *path);
/* Writes tokenizer.json, tokenizer_config.json (a copy of the original, or a new one), and chat_template.jinja if it
   had one. */
carry_status carry_tokenizer_save_folder(carry_ctx *ctx, const carry_tokenizer *tokenizer, const char *folder);

int64_t carry_tokenizer_merges(const carry_tokenizer *tokenizer);
/* Returns the token that separates documents: the first that exists of <|endoftext|>, </s>, <eos> and <|end_of_text|>;
   or -1. */
int64_t carry_tokenizer_end(const carry_tokenizer *tokenizer);
/* Returns the bytes of a token, not NUL-terminated; NULL if id is not a token. */
const char *carry_tokenizer_token(const carry_tokenizer *tokenizer, int64_t id, size_t *length);
/* A checksum that identifies the tokenizer, for checkpoints. */
uint32_t carry_tokenizer_crc(const carry_tokenizer *tokenizer);

/* A growing list of token numbers; all zero is an empty list. */
typedef struct carry_ids {
    uint32_t *id;
    size_t count, room;
} carry_ids;
void carry_ids_free(carry_ids *ids);

/* Encodes texts; use one per thread. It caches the tokens of frequent pieces. */
typedef struct carry_encoder carry_encoder;
carry_status carry_encoder_new(carry_ctx *ctx, carry_encoder **encoder, const carry_tokenizer *tokenizer);
void carry_encoder_free(carry_encoder *encoder);
/* Encoding ends with CARRY_EINTERRUPTED soon after the flag is set, by any thread. NULL: it is never cancelled. */
void carry_encoder_set_cancel(carry_encoder *encoder, const atomic_bool *flag);

typedef enum carry_specials {
    CARRY_SPECIALS_FOUND, /* special tokens such as <|endoftext|> are found in the text: the default of `tokenizers` */
    CARRY_SPECIALS_AS_TEXT, /* special tokens are ordinary text */
    CARRY_TEXT_GOES_ON      /* flag, combined by |: this is not the start of a text, so no prefix is added */
} carry_specials;

/* Append the token numbers of a text. The first form needs no context, for use in threads; its only errors are
   CARRY_EMEMORY and CARRY_EINTERRUPTED. */
carry_status carry_encode_text(carry_encoder *encoder, carry_ids *ids, const void *text, size_t length,
                               carry_specials specials);
carry_status carry_encode(carry_ctx *ctx, carry_encoder *encoder, carry_ids *ids, const void *text, size_t length,
                          carry_specials specials);
/* Append the tokens that the tokenizer puts before a whole text, or after it (such as Llama's <s>); often there are
   none. */
carry_status carry_encode_start(carry_ctx *ctx, const carry_tokenizer *tokenizer, carry_ids *ids);
carry_status carry_encode_end(carry_ctx *ctx, const carry_tokenizer *tokenizer, carry_ids *ids);
/* Returns the last position at which a text can be cut, or 0 if not found: encoding both parts, the second with
   CARRY_TEXT_GOES_ON, gives the same numbers as encoding the whole. */
size_t carry_tokenizer_last_cut(const carry_tokenizer *tokenizer, const void *text, size_t length);

/* Decodes count token numbers. The caller frees *text, which is NUL-terminated. CARRY_ERANGE names the first number
   that is not a token. without_specials leaves special tokens out. */
carry_status carry_decode(carry_ctx *ctx, const carry_tokenizer *tokenizer, char **text, size_t *length,
                          const uint32_t *ids, size_t count, bool without_specials);

/* Decodes one token into `to`, without a NUL; `to` must have room for its bytes (carry_tokenizer_token). Returns the
   number of bytes. first: the token starts a text, where some tokenizers remove a space. */
size_t carry_decode_token(const carry_tokenizer *tokenizer, int64_t id, bool first, char *to);

/* Decodes tokens one by one into text that is valid UTF-8 at every moment. Bytes of an incomplete character are held
   back; bytes that cannot become a character are written as U+FFFD. All zero is a valid start. */
typedef struct carry_unfold {
    unsigned char held[4];
    int count;
} carry_unfold;
#define CARRY_UNFOLD_GROWTH 3 /* output bytes per input byte, and per held byte */
/* `to` must have room for CARRY_UNFOLD_GROWTH * (length + 4) bytes. Returns the number of bytes written. */
size_t carry_unfold_bytes(carry_unfold *unfold, char *to, const void *bytes, size_t length);
/* Ends the text: writes U+FFFD for bytes that are still held. */
size_t carry_unfold_end(carry_unfold *unfold, char *to);

/* Training, with the algorithm of ByteLevelBPETokenizer in `tokenizers`: the most frequent pair is merged, and among
   equally frequent pairs the one with the smaller numbers, until the vocabulary is full or no pair is frequent enough.
   Texts are fed line by line: a piece never crosses a line end. */
typedef struct carry_trainer carry_trainer;
typedef struct carry_trainer_options {
    int64_t size;             /* size of the vocabulary, including added tokens and bytes */
    int64_t least;            /* a pair must occur at least this often; 0 means 2 */
    const char *const *added; /* special tokens, numbered from 0; the bytes follow, then the merges */
    int added_count;
    bool (*progress)(void *user, int64_t done, int64_t total); /* false: stop with CARRY_EINTERRUPTED; may be NULL */
    void *user;
} carry_trainer_options;
carry_status carry_trainer_new(carry_ctx *ctx, carry_trainer **trainer, const carry_trainer_options *options);
void carry_trainer_free(carry_trainer *trainer);
/* Counts the pieces of a text, which must end at a line end. */
carry_status carry_trainer_feed(carry_ctx *ctx, carry_trainer *trainer, const void *text, size_t length);
carry_status carry_trainer_finish(carry_ctx *ctx, carry_trainer *trainer, carry_tokenizer **tokenizer);

#endif
