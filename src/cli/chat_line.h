/* Reads lines that a user types: with a one-line editor and history on a terminal, as plain lines otherwise. */
#ifndef CARRY_CLI_CHAT_LINE_H
#define CARRY_CLI_CHAT_LINE_H

#include <stdbool.h>
#include <stddef.h>

#define CHAT_HISTORY 200 /* lines */

typedef struct chat_line {
    bool is_terminal; /* standard input and output are both a terminal */
    char *text;       /* the line being edited, zero-terminated */
    size_t length, room, cursor;
    char *history[CHAT_HISTORY]; /* oldest first */
    int count;
    int shown;   /* index of the history line being edited; equal to the count: a new line */
    char *kept;  /* the new line, saved while a history line is shown */
    char *plain; /* buffer of getline */
    size_t plain_room;
} chat_line;

typedef enum chat_line_result { CHAT_LINE_READ, CHAT_LINE_CLEARED, CHAT_LINE_ENDED } chat_line_result;

void chat_line_open(chat_line *line);
void chat_line_close(chat_line *line);
/* Prints the prompt and reads a line; *text is valid until the next call. Returns CHAT_LINE_CLEARED after Ctrl-C, and
   CHAT_LINE_ENDED at the end of input or after Ctrl-D on an empty line. Without a terminal the prompt is not
   printed. */
chat_line_result chat_line_read(chat_line *line, const char *prompt, const char **text);
/* Applies one key, given as the bytes of a character, a control character or an escape sequence. Returns true if the
   line is complete. Used by chat_line_read and by tests. */
bool chat_line_key(chat_line *line, const char *key, size_t length);

#endif
