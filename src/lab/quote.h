/* Quoting words for a shell, in single quotes. */
#ifndef CARRY_LAB_QUOTE_H
#define CARRY_LAB_QUOTE_H

#include <stddef.h>

/* The most bytes that a word takes, with its quotes and the 0 after it. */
size_t carry_quoted_length(const char *text);
/* Writes it with a 0 after it, and returns where that is. */
char *carry_append_quoted(char *to, const char *text);

#endif
