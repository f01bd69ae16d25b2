/* Input that a verb reads as a whole. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define INPUT_MOST ((size_t)1 << 32)

char *cli_read_all(FILE *from, const char *name, size_t *length) {
    size_t room = 1 << 16;
    char *text = malloc(room);
    *length = 0;
    while (text != NULL) {
        *length += fread(text + *length, 1, room - *length - 1, from);
        if (*length < room - 1) {
            break;
        }
        char *grown = room < INPUT_MOST ? realloc(text, 2 * room) : NULL;
        if (grown == NULL) {
            free(text);
        }
        text = grown;
        room *= 2;
    }
    if (text == NULL) {
        (void)cli_refuse("out of memory: %s", name);
    } else if (ferror(from)) {
        (void)cli_refuse("%s cannot be read: %s", name, strerror(errno));
        free(text);
        return NULL;
    } else {
        text[*length] = '\0';
    }
    return text;
}
