/* Chat templates. Hugging Face keeps them as programs in Jinja; they are not run here. A template is compared with
   those that are known, by the hash of its whole text, and any other is refused. All known ones are ChatML:

       <|im_start|>system\nTEXT<|im_end|>\n<|im_start|>user\nTEXT<|im_end|>\n<|im_start|>assistant\n

   They differ in the system prompt that is used when none is given (Qwen2, Qwen2.5), in how thinking is turned on and
   off and which is the default (Qwen3, Qwen3.5), in whether thoughts of earlier answers are left out, and in whether
   texts are trimmed. */
#ifndef CARRY_CHAT_H
#define CARRY_CHAT_H

#include "tokenizer/tokenizer.h"

typedef enum carry_thinking { CARRY_THINKING_AS_IS, CARRY_THINKING_ON, CARRY_THINKING_OFF } carry_thinking;

typedef struct carry_chat {
    const char *system; /* if no system message is given; NULL: none */
    bool trims, drops_thoughts;
    bool can_think, can_not_think; /* as a prompt can ask for */
    bool opens_thought;            /* an answer with thoughts starts inside <think> */
    bool thinks;                   /* unless told otherwise */
    int64_t end;                   /* the token <|im_end|> */
} carry_chat;

/* CARRY_EUNSUPPORTED: the tokenizer has no chat template, or none that is known. */
carry_status carry_chat_open(carry_ctx *ctx, carry_chat *chat, const carry_tokenizer *tokenizer);

typedef struct carry_message {
    const char *role; /* system (first), user, assistant */
    const char *text;
    size_t length;
} carry_message;

/* The prompt for the next answer; the last message is the user's. The caller frees *text. */
carry_status carry_chat_render(carry_ctx *ctx, const carry_chat *chat, const carry_message *messages, int64_t count,
                               carry_thinking thinking, char **text, size_t *length);

#endif
