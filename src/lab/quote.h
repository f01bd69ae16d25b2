/* Quotes words for a shell, in single quotes. */
#ifndef CARRY_LAB_QUOTE_H
#define CARRY_LAB_QUOTE_H

#include <stddef.h>

/* The maximum number of bytes of the quoted word, including its quotes and the terminating 0. */
size_t carry_quoted_length(const char *text);
/* Writes the quoted word with a terminating 0, and returns a pointer to that 0. */
char *carry_append_quoted(char *to, const char *text);

#endif
