/* Tokenizers: text to token ids and back.

       carry_tokenizer_open(ctx, &tokenizer, "Qwen3.5-0.8B");
       carry_tokenizer_encode(ctx, tokenizer, ids, capacity, &count, text, strlen(text), NULL);
       carry_tokenizer_decode(ctx, tokenizer, buffer, sizeof buffer, &length, ids, count, false);

   The format is tokenizer.json of Hugging Face, with BPE over bytes (GPT-2, Llama 3, Qwen, OLMo) or over characters
   with byte fallback (Llama 2, Mistral). SentencePiece's tokenizer.model is refused; most models have a tokenizer.json
   beside it. Ids and texts equal those of the package `tokenizers`. Parts that are not supported are refused by name
   when the file is opened. Patterns need a build with PCRE2, and Qwen's tokenizers one with utf8proc; otherwise
   CARRY_EUNSUPPORTED.

   A tokenizer does not change after it was opened: threads may share it, each with a context of its own. It may outlive
   the context that it was opened with. Bytes that are not UTF-8 are encoded too. */
#ifndef CARRY_TOKENIZER_PUBLIC_H
#define CARRY_TOKENIZER_PUBLIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_tokenizer carry_tokenizer;

/* path: a tokenizer.json, or a folder that contains one. tokenizer_config.json beside it is read too. */
CARRY_API carry_status carry_tokenizer_open(carry_ctx *ctx, carry_tokenizer **tokenizer, const char *path);
CARRY_API void carry_tokenizer_close(carry_tokenizer *tokenizer); /* NULL is allowed */

CARRY_API int64_t carry_tokenizer_size(const carry_tokenizer *tokenizer); /* ids are 0..size-1 */
/* Returns the id of an added token by its text, such as "<|im_end|>"; -1 if the tokenizer does not have it. */
CARRY_API int64_t carry_tokenizer_find(const carry_tokenizer *tokenizer, const char *content);
/* Special tokens are left out of decoded text unless requested. */
CARRY_API bool carry_tokenizer_is_special(const carry_tokenizer *tokenizer, int64_t id);
/* Returns the id of eos_token in tokenizer_config.json, which ends the answers of chat models; -1 if the file does not
   name one. */
CARRY_API int64_t carry_tokenizer_eos(const carry_tokenizer *tokenizer);

typedef struct carry_encode_options {
    size_t size;           /* CARRY_INIT */
    bool is_bare;          /* omit the tokens that the tokenizer puts before and after a whole text, such as <s> */
    bool is_continuation;  /* other text comes before this one: no token and no space is added before it */
    bool is_unfinished;    /* other text comes after this one, as after a prompt: nothing is added after it */
    bool specials_as_text; /* "<|endoftext|>" in the text stays text, for untrusted text; else it is that token */
} carry_encode_options;

/* Writes the first `capacity` ids of a text to ids, which may be NULL if capacity is 0; *count receives the number of
   all its ids. options may be NULL. */
CARRY_API carry_status carry_tokenizer_encode(carry_ctx *ctx, const carry_tokenizer *tokenizer, int64_t *ids,
                                              int64_t capacity, int64_t *count, const char *text, size_t length,
                                              const carry_encode_options *options);

/* Writes the text of `count` ids as UTF-8 with a terminating NUL, truncated to `capacity` bytes; *length receives the
   length of the whole text without the NUL. Bytes that are not UTF-8 become U+FFFD. CARRY_ERANGE names the first id
   that is not a token. */
CARRY_API carry_status carry_tokenizer_decode(carry_ctx *ctx, const carry_tokenizer *tokenizer, char *text,
                                              size_t capacity, size_t *length, const int64_t *ids, int64_t count,
                                              bool with_specials);

/* Decodes token by token, as they are generated. Bytes of an incomplete character are held back until the tokens that
   complete it, so every piece is UTF-8, and the pieces together are the text of carry_tokenizer_decode. The tokenizer
   outlives the decoder; the context is used for error messages. */
typedef struct carry_decoder carry_decoder;
CARRY_API carry_status carry_decoder_new(carry_ctx *ctx, carry_decoder **decoder, const carry_tokenizer *tokenizer,
                                         bool with_specials);
CARRY_API void carry_decoder_free(carry_decoder *decoder);
/* *text receives the text that this token completes, often "", with a terminating NUL. It belongs to the decoder and is
   valid until the next call. *length, unless length is NULL, receives its length. */
CARRY_API carry_status carry_decoder_put(carry_decoder *decoder, int64_t id, const char **text, size_t *length);
/* Ends the text: *text is U+FFFD if a character is incomplete, else "". The next token starts another text. */
CARRY_API carry_status carry_decoder_end(carry_decoder *decoder, const char **text, size_t *length);

#ifdef __cplusplus
}
#endif
#endif
