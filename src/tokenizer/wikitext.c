/* Counts words of WikiText files. */
#include "tokenizer/wikitext.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define HEAD 65536

static carry_status open_file(carry_ctx *ctx, FILE **file, const char *path) {
    *file = fopen(path, "rbe");
    if (*file == NULL) {
        const int error = errno;
        return carry_fail(ctx, error == ENOENT ? CARRY_ENOTFOUND : CARRY_EIO, "%s cannot be read: %s", path,
                          strerror(error));
    }
    return CARRY_OK;
}

static bool has_name(const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    size_t length = strlen(name);
    return length > 12 && strncmp(name, "wiki.", 5) == 0 && strcmp(name + length - 7, ".tokens") == 0;
}

carry_status carry_wikitext_is(carry_ctx *ctx, const char *path, bool *is) {
    FILE *file;
    *is = false;
    CARRY_TRY(open_file(ctx, &file, path));
    char head[HEAD + 1];
    size_t got = fread(head, 1, HEAD, file);
    (void)fclose(file);
    head[got] = '\0'; /* the search ends at a 0 byte in the file */
    *is = has_name(path) || (strstr(head, "\n = ") != NULL && strstr(head, " = \n") != NULL && strstr(head, "<unk>"));
    return CARRY_OK;
}

carry_status carry_wikitext_words(carry_ctx *ctx, const char *path, int64_t *words) {
    FILE *file;
    *words = 0;
    CARRY_TRY(open_file(ctx, &file, path));
    bool inside = false;
    bool ended = true; /* the last line has ended */
    char part[HEAD];
    for (size_t got; (got = fread(part, 1, sizeof part, file)) > 0;) {
        for (size_t i = 0; i < got; i++) {
            bool space = part[i] == ' ' || (part[i] >= '\t' && part[i] <= '\r');
            *words += !space && !inside;
            *words += part[i] == '\n';
            inside = !space;
        }
        ended = part[got - 1] == '\n';
    }
    *words += !ended;
    bool failed = ferror(file) != 0;
    (void)fclose(file);
    return failed ? carry_fail(ctx, CARRY_EIO, "%s cannot be read", path) : CARRY_OK;
}

double carry_wikitext_perplexity(double nll, int64_t words) {
    return words > 0 ? exp(nll / (double)words) : (double)NAN;
}
