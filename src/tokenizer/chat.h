/* Chats: turns messages into the prompt of a model with the chat template of its folder (template/template.h), as
   transformers' apply_chat_template does. The template gets these variables:

       messages                 as given, without keys whose value is null. The reasoning of a message (its
                                reasoning_content, else thinking, else reasoning) is given under both thinking and
                                reasoning_content: if missing, thinking is added as the first key of the message, and
                                reasoning_content as the last
       tools, documents         as given, else none
       add_generation_prompt    as given, else true
       bos_token, eos_token...  every "..._token" of tokenizer_config.json
       other variables          as given: enable_thinking and so on */
#ifndef CARRY_CHAT_H
#define CARRY_CHAT_H

#include "core/json.h"
#include "tokenizer/template/template.h"
#include "tokenizer/tokenizer.h"

typedef enum carry_thinking { CARRY_THINKING_AS_IS, CARRY_THINKING_ON, CARRY_THINKING_OFF } carry_thinking;

typedef struct carry_chat {
    carry_template *template;
    carry_json *tokens; /* the special tokens, an object; or NULL */
    int64_t end;        /* the token that ends an answer; -1: unknown */
} carry_chat;

/* CARRY_EUNSUPPORTED: the tokenizer has no chat template, or one with a feature that is not supported. */
carry_status carry_chat_open(carry_ctx *ctx, carry_chat *chat, const carry_tokenizer *tokenizer);
/* Like carry_chat_open, but reads the files of a model's folder without tokenizer.json; end is -1. */
carry_status carry_chat_open_folder(carry_ctx *ctx, carry_chat *chat, const char *folder);
void carry_chat_close(carry_chat *chat);

typedef struct carry_chat_request {
    const carry_json *variables; /* an object with messages, a list of {role, content, ...}, and other variables */
    carry_thinking thinking;     /* sets enable_thinking, else thinking; ON is an error if the template uses neither */
    const struct tm *now;        /* NULL: local time */
} carry_chat_request;

/* The caller frees *text. CARRY_EARGUMENT: messages are not a list of objects, or the template refuses them. */
carry_status carry_chat_render(carry_ctx *ctx, const carry_chat *chat, const carry_chat_request *request, char **text,
                               size_t *length);

#endif
