/* Chat templates: the prompt of a conversation, as transformers' apply_chat_template makes it.

   A template is a Jinja program that a model's folder has in chat_template.jinja or tokenizer_config.json. Variables
   are a JSON object, such as

       {"messages": [{"role": "user", "content": "Hi"}], "tools": [...], "enable_thinking": false}

   A template is not trusted: its steps, depth, memory and output are bounded. One with a feature that is not supported
   is refused with the line and the feature (CARRY_EUNSUPPORTED); CARRY_EARGUMENT has the text of the template's own
   raise_exception. */
#ifndef CARRY_PUBLIC_CHAT_H
#define CARRY_PUBLIC_CHAT_H

#include "carry/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Renders the chat template of a folder. The special tokens of tokenizer_config.json are also variables. Unless given,
   tools and documents are null and add_generation_prompt is true. Free *text with carry_render_free. */
CARRY_API carry_status carry_render_chat(carry_ctx *ctx, const char *folder, const char *variables, char **text);
/* Renders any template, with these variables only. */
CARRY_API carry_status carry_render_template(carry_ctx *ctx, const char *source, const char *variables, char **text);
CARRY_API void carry_render_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
