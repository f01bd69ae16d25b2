/* One example for fine-tuning: converts a line of a JSON lines file to token ids, and marks those that are learned.

       {"prompt": "2 + 2 =", "completion": " 4"}                      the completion and the end-of-text token
       {"messages": [{"role": "user", "content": "..."}, ...]}        every assistant turn, up to the token that ends it

   Messages are rendered by the checkpoint's chat template; "tools", "documents" and "enable_thinking" of the line are
   passed to it, other keys are ignored. A turn begins where the generation prompt ends, as in generation. */
#ifndef CARRY_TRAIN_EXAMPLE_TEXT_H
#define CARRY_TRAIN_EXAMPLE_TEXT_H

#include "core/json.h"
#include "tokenizer/chat.h"

/* Token ids, each with a mark. A struct of zeros is empty. */
typedef struct carry_example_ids {
    carry_ids ids;
    unsigned char *learned; /* [room]: 1 if the token is learned */
    size_t room;
} carry_example_ids;
void carry_example_ids_free(carry_example_ids *to);

typedef struct carry_example_reader {
    carry_ctx *ctx;
    const carry_tokenizer *tokenizer;
    carry_encoder *encoder;
    carry_chat chat;
    bool has_chat;    /* chat is open */
    int64_t end;      /* the token added after a completion; -1: none */
    const char *stop; /* the text of the token that ends a turn; NULL: unknown */
    size_t stop_length;
} carry_example_reader;

carry_status carry_example_reader_open(carry_ctx *ctx, carry_example_reader *reader, const carry_tokenizer *tokenizer);
void carry_example_reader_close(carry_example_reader *reader);

/* Appends the ids of one line; `name` is used in messages. CARRY_EFORMAT: it is not an example. */
carry_status carry_example_read(carry_example_reader *reader, carry_example_ids *to, const char *line, size_t length,
                                const char *name);

#endif
