/* Lines that a person types: an editor of one line with history on a terminal, plain lines otherwise. */
#ifndef CARRY_CLI_CHAT_LINE_H
#define CARRY_CLI_CHAT_LINE_H

#include <stdbool.h>
#include <stddef.h>

#define CHAT_HISTORY 200 /* lines */

typedef struct chat_line {
    bool is_terminal; /* standard input and standard output are */
    char *text;       /* the line under way, ended by 0 */
    size_t length, room, cursor;
    char *history[CHAT_HISTORY]; /* oldest first */
    int count;
    int shown;   /* the line of the history that is being edited; count: a new one */
    char *kept;  /* the new line, while an older one is shown */
    char *plain; /* of getline */
    size_t plain_room;
} chat_line;

typedef enum chat_line_result { CHAT_LINE_READ, CHAT_LINE_CLEARED, CHAT_LINE_ENDED } chat_line_result;

void chat_line_open(chat_line *line);
void chat_line_close(chat_line *line);
/* Reads a line after the prompt; *text is valid until the next call. Cleared: Ctrl-C. Ended: Ctrl-D, or the end of the
   input. Without a terminal the prompt is not printed. */
chat_line_result chat_line_read(chat_line *line, const char *prompt, const char **text);
/* Edits by one key, for tests and for chat_line_read: the bytes of a character or of an escape sequence. Returns true
   if the line is complete. */
bool chat_line_key(chat_line *line, const char *key, size_t length);

#endif
