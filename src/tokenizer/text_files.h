/* Finds the files that paths refer to (tokenizer/text.h). */
#ifndef CARRY_TOKENIZER_TEXT_FILES_H
#define CARRY_TOKENIZER_TEXT_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

typedef struct carry_listed_file {
    char *path;
    int64_t bytes;
} carry_listed_file;

typedef struct carry_file_list {
    carry_listed_file *file;
    int64_t count;
    size_t room;
} carry_file_list;

/* After a failure *list holds the files found so far, and must be freed too. */
carry_status carry_file_list_find(carry_ctx *ctx, carry_file_list *list, const char *const *paths, int count);
void carry_file_list_free(carry_file_list *list);

#endif
