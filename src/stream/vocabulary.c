/* Compares the words of prompts with those of a model. */
#include "stream/vocabulary.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"

#define WORD 40 /* maximum bytes of a word; longer words are cut and count as unknown */

carry_status carry_vocabulary_read(carry_ctx *ctx, char words[CARRY_VOCABULARY], const char *folder) {
    char path[CARRY_FILE_PATH];
    char *text;
    size_t length;
    words[0] = '\0';
    CARRY_TRY(carry_file_in(ctx, path, folder, "words.txt"));
    const carry_status status = carry_file_read(ctx, &text, &length, path, CARRY_VOCABULARY - 1);
    if (status != CARRY_OK) {
        return status == CARRY_ENOTFOUND ? CARRY_OK : status;
    }
    size_t used = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, " \t\r\n", &rest); word != NULL; word = strtok_r(NULL, " \t\r\n", &rest)) {
        used += (size_t)snprintf(words + used, CARRY_VOCABULARY - used, "%s%s", used > 0 ? " " : "", word);
    }
    free(text);
    return CARRY_OK;
}

static bool has_word(const char *words, const char *word, const char *between) {
    const size_t length = strlen(word);
    for (const char *at = words; (at = strstr(at, word)) != NULL; at++) {
        const bool starts = at == words || strchr(between, at[-1]) != NULL;
        if (starts && (at[length] == '\0' || strchr(between, at[length]) != NULL)) {
            return true;
        }
    }
    return false;
}

void carry_vocabulary_compare(char *unknown, size_t size, const char *words, const char *prompt, size_t length) {
    for (size_t i = 0; i < length;) {
        char word[WORD + 1];
        size_t messages = 0;
        bool is_number = true;
        for (; i < length && isalnum((unsigned char)prompt[i]) && (unsigned char)prompt[i] < 0x80; i++) {
            is_number = is_number && isdigit((unsigned char)prompt[i]);
            if (messages < WORD) {
                word[messages++] = (char)tolower((unsigned char)prompt[i]);
            }
        }
        word[messages] = '\0';
        i += messages == 0;
        const size_t used = strlen(unknown);
        if (messages > 0 && !is_number && !has_word(words, word, " ") && !has_word(unknown, word, "'") &&
            used + messages + 5 <= size) {
            (void)snprintf(unknown + used, size - used, "%s'%s'", used > 0 ? ", " : "", word);
        }
    }
}
