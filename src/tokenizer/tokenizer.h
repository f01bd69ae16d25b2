/* Tokenizers: bytes to token numbers and back.

   A tokenizer has a token for each of the 256 bytes, merges of two tokens into a third (none: it is byte-level; some:
   BPE), and added tokens such as <|endoftext|>, which are found in a text before all else. It is kept as Hugging Face's
   tokenizer.json, and its numbers and texts equal those of their `tokenizers` library:

   - encoding: added tokens are cut out (the leftmost, of those the longest; first the ones that are not "normalized",
     then the others in what is left, which was normalized); what is between them is cut into pieces (pattern.h); in
     each piece, from its bytes or from its characters, the merge that stands first in the list is done first, of equal
     ones the leftmost, until none is left;
   - decoding: the bytes of the tokens one after the other. Their library then makes the bytes a text, with U+FFFD for
     what is not UTF-8: carry_unfold does that, token by token.

   Bytes that are no UTF-8 are encoded too, and decoded to the same bytes. Two differences remain: NFC orders marks that
   are younger than Unicode 11, which their library does not; and of a run of byte tokens <0xE2> that is no UTF-8 their
   library makes every byte U+FFFD, ours only what is no character. */
#ifndef CARRY_TOKENIZER_H
#define CARRY_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"
#include "carry/tokenizer.h"

#define CARRY_TOKENS_MOST ((int64_t)1 << 21)      /* of a tokenizer */
#define CARRY_ADDED_MOST 4096                     /* added tokens */
#define CARRY_ADDED_BYTES 1024                    /* of one */
#define CARRY_TOKENIZER_BYTES ((size_t)256 << 20) /* of a tokenizer.json */
#define CARRY_END_OF_TEXT "<|endoftext|>"

/* The 256 bytes, numbered as they are, and these added tokens after them. */
carry_status carry_tokenizer_bytes(carry_ctx *ctx, carry_tokenizer **tokenizer, const char *const *added, int count);
/* From the text of a tokenizer.json; messages call it name. */
carry_status carry_tokenizer_parse(carry_ctx *ctx, carry_tokenizer **tokenizer, const char *text, size_t length,
                                   const char *name);

/* As tokenizer.json; the caller frees *text. Saving replaces the file as a whole. */
carry_status carry_tokenizer_write(carry_ctx *ctx, const carry_tokenizer *tokenizer, char **text, size_t *length);
carry_status carry_tokenizer_save(carry_ctx *ctx, const carry_tokenizer *tokenizer, const char *path);
/* Writes tokenizer.json, tokenizer_config.json (a copy of the original, or a new one), and chat_template.jinja if it
   had one. */
carry_status carry_tokenizer_save_folder(carry_ctx *ctx, const carry_tokenizer *tokenizer, const char *folder);

int64_t carry_tokenizer_merges(const carry_tokenizer *tokenizer);
/* The token between documents: <|endoftext|>, </s>, <eos> or <|end_of_text|>, the first that exists; or -1. */
int64_t carry_tokenizer_end(const carry_tokenizer *tokenizer);
/* The bytes of a token, not ended by 0; NULL: not a token. */
const char *carry_tokenizer_token(const carry_tokenizer *tokenizer, int64_t id, size_t *length);
/* A checksum that identifies the tokenizer, for checkpoints. */
uint32_t carry_tokenizer_crc(const carry_tokenizer *tokenizer);

/* Numbers that grow at their end; all zero is empty. */
typedef struct carry_ids {
    uint32_t *id;
    size_t count, room;
} carry_ids;
void carry_ids_free(carry_ids *ids);

/* Encodes; one per thread. It remembers how frequent pieces were encoded. */
typedef struct carry_encoder carry_encoder;
carry_status carry_encoder_new(carry_ctx *ctx, carry_encoder **encoder, const carry_tokenizer *tokenizer);
void carry_encoder_free(carry_encoder *encoder);

typedef enum carry_specials {
    CARRY_SPECIALS_FOUND,   /* <|endoftext|> in a text is the token: the default of `tokenizers` */
    CARRY_SPECIALS_AS_TEXT, /* it is ordinary text */
    CARRY_TEXT_GOES_ON      /* or-ed: not the start of a text, so that nothing is put before it */
} carry_specials;

/* Appends the numbers of a text. The first form needs no context, for threads: CARRY_EMEMORY is its only error. */
carry_status carry_encode_text(carry_encoder *encoder, carry_ids *ids, const void *text, size_t length,
                               carry_specials specials);
carry_status carry_encode(carry_ctx *ctx, carry_encoder *encoder, carry_ids *ids, const void *text, size_t length,
                          carry_specials specials);
/* The tokens that the tokenizer puts before a text that is whole, and after it (<s> of Llama's); often none. */
carry_status carry_encode_start(carry_ctx *ctx, const carry_tokenizer *tokenizer, carry_ids *ids);
carry_status carry_encode_end(carry_ctx *ctx, const carry_tokenizer *tokenizer, carry_ids *ids);
/* The largest place at which a text can be cut: encoding both parts, the second with CARRY_TEXT_GOES_ON, gives the
   numbers of the whole. 0 when none is found. */
size_t carry_tokenizer_last_cut(const carry_tokenizer *tokenizer, const void *text, size_t length);

/* The bytes of count numbers; the caller frees *text, which has a 0 after its end. CARRY_ERANGE names the first number
   that is no token. Special tokens may be left out. */
carry_status carry_decode(carry_ctx *ctx, const carry_tokenizer *tokenizer, char **text, size_t *length,
                          const uint32_t *ids, size_t count, bool without_specials);

/* One token into `to`, which has room for its bytes (carry_tokenizer_token) and is not ended; how many. first: it
   starts a text, where some tokenizers have a space that texts do not. */
size_t carry_decode_token(const carry_tokenizer *tokenizer, int64_t id, bool first, char *to);

/* Decoding as tokens come: a text that is UTF-8 at every moment. Bytes of a character that is not complete are held
   back; what can no longer become one is U+FFFD. All zero is a good start. */
typedef struct carry_unfold {
    unsigned char held[4];
    int count;
} carry_unfold;
#define CARRY_UNFOLD_GROWTH 3 /* bytes that one byte may become, and for those that were held */
/* to has room for CARRY_UNFOLD_GROWTH (length + 4) bytes; how many were written. */
size_t carry_unfold_bytes(carry_unfold *unfold, char *to, const void *bytes, size_t length);
/* The end of the text: bytes held so far will not be completed. */
size_t carry_unfold_end(carry_unfold *unfold, char *to);

/* Training, as `tokenizers` trains its ByteLevelBPETokenizer: the most frequent pair is merged, of equally frequent
   ones that with the smaller numbers, until the vocabulary is full or no pair is frequent enough. Texts are fed line by
   line: a piece ends with its line. */
typedef struct carry_trainer carry_trainer;
typedef struct carry_trainer_options {
    int64_t size;             /* of the vocabulary, added tokens and bytes included */
    int64_t least;            /* how often a pair must occur; 0: 2 */
    const char *const *added; /* special tokens, numbered from 0; then the bytes, then the merges */
    int added_count;
    bool (*progress)(void *user, int64_t done, int64_t total); /* false stops: CARRY_EINTERRUPTED; may be NULL */
    void *user;
} carry_trainer_options;
carry_status carry_trainer_new(carry_ctx *ctx, carry_trainer **trainer, const carry_trainer_options *options);
void carry_trainer_free(carry_trainer *trainer);
/* Counts the pieces of a text, which ends where a line does. */
carry_status carry_trainer_feed(carry_ctx *ctx, carry_trainer *trainer, const void *text, size_t length);
carry_status carry_trainer_finish(carry_ctx *ctx, carry_trainer *trainer, carry_tokenizer **tokenizer);

#endif
