/* Chat templates. Hugging Face keeps them as programs in Jinja; they are not run here. ChatML as Qwen has it is known:

       <|im_start|>system\nTEXT<|im_end|>\n<|im_start|>user\nTEXT<|im_end|>\n<|im_start|>assistant\n

   and what its editions differ in is read off the template's text: a system prompt that stands there when none is given
   (Qwen 2 and 2.5), how thinking is turned on and off and which of the two holds (Qwen 3 and 3.5), whether thoughts of
   earlier answers are left out, whether texts are trimmed. Any other template is refused. */
#ifndef CARRY_CHAT_H
#define CARRY_CHAT_H

#include "tokenizer/tokenizer.h"

typedef enum carry_thinking { CARRY_THINKING_AS_IS, CARRY_THINKING_ON, CARRY_THINKING_OFF } carry_thinking;

#define CARRY_CHAT_SYSTEM 1024
typedef struct carry_chat {
    char system[CARRY_CHAT_SYSTEM]; /* where no system message is given; "": none */
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
