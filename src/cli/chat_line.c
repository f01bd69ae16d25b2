/* The line editor. The terminal sends bytes as they are typed, and each change redraws the line. */
#include "cli/chat_line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define CONTROL(letter) ((letter)&0x1F)
#define ESCAPE '\x1b'
#define DELETED '\x7f'
#define COLUMNS 80

void chat_line_open(chat_line *line) {
    *line = (chat_line){.is_terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0};
}

void chat_line_close(chat_line *line) {
    for (int i = 0; i < line->count; i++) {
        free(line->history[i]);
    }
    free(line->kept);
    free(line->text);
    free(line->plain);
    *line = (chat_line){0};
}

static bool reserve(chat_line *line, size_t more) {
    if (line->length + more + 1 > line->room) {
        const size_t room = 2 * (line->length + more) + 128;
        char *grown = realloc(line->text, room);
        if (grown == NULL) {
            return false;
        }
        line->text = grown;
        line->room = room;
    }
    return true;
}

static void insert(chat_line *line, const char *bytes, size_t length) {
    if (reserve(line, length)) {
        memmove(line->text + line->cursor + length, line->text + line->cursor, line->length - line->cursor);
        memcpy(line->text + line->cursor, bytes, length);
        line->length += length;
        line->cursor += length;
        line->text[line->length] = '\0';
    }
}

static void erase(chat_line *line, size_t from, size_t to) {
    if (from < to && reserve(line, 0)) {
        memmove(line->text + from, line->text + to, line->length - to);
        line->length -= to - from;
        line->text[line->length] = '\0';
        line->cursor = from;
    }
}

static void set(chat_line *line, const char *text) {
    line->length = line->cursor = 0;
    insert(line, text, strlen(text));
}

/* Moves by whole characters: UTF-8 continuation bytes belong to the byte before them. */
static size_t before(const chat_line *line, size_t at) {
    while (at > 0 && ((unsigned char)line->text[--at] & 0xC0) == 0x80) {
    }
    return at;
}

static size_t after(const chat_line *line, size_t at) {
    at += at < line->length;
    while (at < line->length && ((unsigned char)line->text[at] & 0xC0) == 0x80) {
        at++;
    }
    return at;
}

static size_t word_before(const chat_line *line) {
    size_t at = line->cursor;
    while (at > 0 && line->text[at - 1] == ' ') {
        at--;
    }
    while (at > 0 && line->text[at - 1] != ' ') {
        at--;
    }
    return at;
}

static void show_history(chat_line *line, int number) {
    if (number < 0 || number > line->count || number == line->shown) {
        return;
    }
    if (line->shown == line->count) {
        free(line->kept);
        line->kept = strdup(line->length > 0 ? line->text : "");
    }
    line->shown = number;
    set(line, number < line->count ? line->history[number] : line->kept != NULL ? line->kept : "");
}

static void remember(chat_line *line) {
    if (line->length == 0 || (line->count > 0 && strcmp(line->history[line->count - 1], line->text) == 0)) {
        return;
    }
    if (line->count == CHAT_HISTORY) {
        free(line->history[0]);
        memmove(line->history, line->history + 1, (CHAT_HISTORY - 1) * sizeof *line->history);
        line->count--;
    }
    line->history[line->count] = strdup(line->text);
    line->count += line->history[line->count] != NULL;
}

/* Handles arrows, Home, End and Delete: the bytes after ESC [ or ESC O. */
static void take_sequence(chat_line *line, const char *key, size_t length) {
    const char last = key[length - 1];
    const char first = length > 3 ? key[2] : '\0';
    if (last == 'A') {
        show_history(line, line->shown - 1);
    } else if (last == 'B') {
        show_history(line, line->shown + 1);
    } else if (last == 'C') {
        line->cursor = after(line, line->cursor);
    } else if (last == 'D') {
        line->cursor = before(line, line->cursor);
    } else if (last == 'H' || (last == '~' && (first == '1' || first == '7'))) {
        line->cursor = 0;
    } else if (last == 'F' || (last == '~' && (first == '4' || first == '8'))) {
        line->cursor = line->length;
    } else if (last == '~' && first == '3') {
        const size_t at = line->cursor;
        erase(line, at, after(line, at));
    }
}

static void take_control(chat_line *line, char key) {
    const size_t at = line->cursor;
    switch (key) {
    case CONTROL('A'):
        line->cursor = 0;
        break;
    case CONTROL('E'):
        line->cursor = line->length;
        break;
    case CONTROL('B'):
        line->cursor = before(line, at);
        break;
    case CONTROL('F'):
        line->cursor = after(line, at);
        break;
    case CONTROL('P'):
        show_history(line, line->shown - 1);
        break;
    case CONTROL('N'):
        show_history(line, line->shown + 1);
        break;
    case CONTROL('D'):
        erase(line, at, after(line, at));
        break;
    case CONTROL('H'):
    case DELETED:
        erase(line, before(line, at), at);
        break;
    case CONTROL('K'):
        erase(line, at, line->length);
        break;
    case CONTROL('U'):
        erase(line, 0, at);
        break;
    case CONTROL('W'):
        erase(line, word_before(line), at);
        break;
    default:
        break;
    }
}

bool chat_line_key(chat_line *line, const char *key, size_t length) {
    if (key[0] == '\r' || key[0] == '\n') {
        remember(line);
        return true;
    }
    if (key[0] == ESCAPE) {
        if (length >= 3 && (key[1] == '[' || key[1] == 'O')) {
            take_sequence(line, key, length);
        }
    } else if ((unsigned char)key[0] < 0x20 || key[0] == DELETED) {
        take_control(line, key[0]);
    } else {
        insert(line, key, length);
    }
    return false;
}

/* Drawing shows the part of the line around the cursor that fits, with one column per character. */

static size_t characters(const char *text, size_t length) {
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return count;
}

static void draw(const chat_line *line, const char *prompt) {
    struct winsize size;
    const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20;
    const size_t columns = is_known ? size.ws_col : COLUMNS;
    const size_t room = columns > strlen(prompt) + 2 ? columns - strlen(prompt) - 2 : 1;
    size_t from = 0;
    while (characters(line->text + from, line->cursor - from) > room) {
        from = after(line, from);
    }
    size_t to = line->length;
    while (characters(line->text + from, to - from) > room) {
        to = before(line, to);
    }
    (void)printf("\r%s%.*s\x1b[K", prompt, (int)(to - from), line->text + from);
    (void)printf("\r\x1b[%zuC", strlen(prompt) + characters(line->text + from, line->cursor - from));
    (void)fflush(stdout);
}

/* Reads one key: a byte, a UTF-8 character or an escape sequence. Returns its length in bytes, or 0 at the end of
   input. */
static size_t read_key(char key[16]) {
    size_t length = 0;
    while (length < 15) {
        const ssize_t got = read(STDIN_FILENO, key + length, 1);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return 0;
        }
        length++;
        const unsigned char first = (unsigned char)key[0];
        if (first == ESCAPE) {
            const char last = key[length - 1];
            if ((length == 2 && last != '[' && last != 'O') || (length > 2 && last >= '@' && last <= '~')) {
                return length;
            }
        } else if (length >= (first < 0xC0 ? 1u : first < 0xE0 ? 2u : first < 0xF0 ? 3u : 4u)) {
            return length;
        }
    }
    return length;
}

static chat_line_result edit(chat_line *line, const char *prompt) {
    char key[16];
    draw(line, prompt);
    for (;;) {
        const size_t length = read_key(key);
        if (length == 0 || (key[0] == CONTROL('D') && line->length == 0)) {
            return CHAT_LINE_ENDED;
        }
        if (key[0] == CONTROL('C')) {
            return CHAT_LINE_CLEARED;
        }
        if (key[0] == CONTROL('L')) {
            (void)fputs("\x1b[H\x1b[2J", stdout);
        }
        if (chat_line_key(line, key, length)) {
            return CHAT_LINE_READ;
        }
        draw(line, prompt);
    }
}

static chat_line_result read_terminal(chat_line *line, const char *prompt, const char **text) {
    struct termios before_edit;
    struct termios raw;
    if (!reserve(line, 0) || tcgetattr(STDIN_FILENO, &before_edit) != 0) {
        return CHAT_LINE_ENDED;
    }
    line->length = line->cursor = 0;
    line->text[0] = '\0';
    line->shown = line->count;
    raw = before_edit;
    raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_iflag &= (tcflag_t) ~(IXON | ICRNL | INLCR);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    const chat_line_result result = edit(line, prompt);
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &before_edit);
    (void)putchar('\n');
    *text = line->text;
    return result;
}

chat_line_result chat_line_read(chat_line *line, const char *prompt, const char **text) {
    *text = "";
    if (line->is_terminal) {
        return read_terminal(line, prompt, text);
    }
    errno = 0;
    ssize_t length = getline(&line->plain, &line->plain_room, stdin);
    if (length < 0) {
        const bool is_interrupted = errno == EINTR;
        clearerr(stdin);
        return is_interrupted ? CHAT_LINE_CLEARED : CHAT_LINE_ENDED;
    }
    while (length > 0 && (line->plain[length - 1] == '\n' || line->plain[length - 1] == '\r')) {
        line->plain[--length] = '\0';
    }
    *text = line->plain;
    return CHAT_LINE_READ;
}
