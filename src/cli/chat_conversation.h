/* The messages of a conversation: rendered by the chat template, saved and loaded with the state of the model. */
#ifndef CARRY_CLI_CHAT_CONVERSATION_H
#define CARRY_CLI_CHAT_CONVERSATION_H

#include "carry/engine.h"
#include "tokenizer/chat.h"

typedef struct chat_message {
    const char *role; /* a constant: system, user, assistant */
    char *content;
} chat_message;

typedef struct chat_conversation {
    chat_message *message;
    size_t count, room;
} chat_conversation;

void chat_conversation_free(chat_conversation *c);
bool chat_conversation_add(chat_conversation *c, const char *role, const char *content); /* false: out of memory */
/* Removes messages from the end up to and including the last of this role; false if no message has this role. */
bool chat_conversation_remove(chat_conversation *c, const char *role);
/* Sets, replaces or ("") removes the system message. */
bool chat_conversation_system(chat_conversation *c, const char *content);

/* Renders the prompt. With is_answered it ends with the last message, without the start of an answer. The caller
   frees *text. */
carry_status chat_conversation_render(carry_ctx *ctx, const chat_conversation *c, const carry_chat *chat,
                                      carry_thinking thinking, bool is_answered, char **text, size_t *length);

/* Writes the messages to the file `path`, as the JSON list that carry generate --messages reads, and the model's state
   after them to `path`.state, and that before the last question to `path`.undo.state. An empty conversation has no
   state. */
carry_status chat_conversation_save(carry_ctx *ctx, const chat_conversation *c, carry_engine *engine,
                                    const carry_chat *chat, const char *path);
/* *has_state is true if the state was found too; the next prompt then continues from it, also after /undo. */
carry_status chat_conversation_load(carry_ctx *ctx, chat_conversation *c, carry_engine *engine, const char *path,
                                    bool *has_state);

#endif
