/* Finds the words of a prompt on which a model was not trained. To the model they are noise (model/dit/words.h).

   A model's folder lists its words in words.txt, separated by spaces or lines, in lower case; `carry train dit`
   writes it. Models without the file are assumed to know every word. */
#ifndef CARRY_STREAM_VOCABULARY_H
#define CARRY_STREAM_VOCABULARY_H

#include <stddef.h>

#include "carry/context.h"

#define CARRY_VOCABULARY 4096

/* Reads the words of a model's folder, separated by single spaces; "" without a words.txt. CARRY_ESIZE: the words do
   not fit into CARRY_VOCABULARY bytes. */
carry_status carry_vocabulary_read(carry_ctx *ctx, char words[CARRY_VOCABULARY], const char *folder);

/* Appends the words of the prompt that are not in `words` to `unknown`, as "'zebra', 'moon'", each once, as far as
   they fit. Numbers are weights and not counted as words. */
void carry_vocabulary_compare(char *unknown, size_t size, const char *words, const char *prompt, size_t length);

#endif
