/* Words that a model was trained on, and those of a prompt that it was not: to it they are noise (model/dit/words.h).

   A model's folder says its words in words.txt, separated by spaces or lines, in lower case; `carry train dit` writes
   it. Models without the file are taken to know every word. */
#ifndef CARRY_STREAM_VOCABULARY_H
#define CARRY_STREAM_VOCABULARY_H

#include <stddef.h>

#include "carry/context.h"

#define CARRY_VOCABULARY 4096

/* Of a model's folder, separated by single spaces; "" where there is no words.txt. CARRY_EFORMAT: longer than fits. */
carry_status carry_vocabulary_read(carry_ctx *ctx, char words[CARRY_VOCABULARY], const char *folder);

/* Appends the words of a prompt that are not among words to unknown, as "'zebra', 'moon'", each once, as far as they
   fit. Numbers are weights, and no words. */
void carry_vocabulary_compare(char *unknown, size_t size, const char *words, const char *prompt, size_t length);

#endif
