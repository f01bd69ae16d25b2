/* Names of tensors in files that differ from the names here: another prefix, other ends, a tensor in pieces. */
#include "model/lm/lm_names.h"

#include <stdio.h>
#include <string.h>

static bool starts_with(const char *name, const char *start) {
    return strncmp(name, start, strlen(start)) == 0;
}

static bool ends_in(const char *name, const char *end) {
    const size_t length = strlen(name);
    return length >= strlen(end) && strcmp(name + length - strlen(end), end) == 0;
}

/* name with its end replaced. */
static bool replace_end(char *to, size_t size, const char *name, const char *end, const char *by) {
    return ends_in(name, end) && snprintf(to, size, "%.*s%s", (int)(strlen(name) - strlen(end)), name, by) < (int)size;
}

/* The end of a name by a list of {from, to}, or the other way round; the `which`-th that fits. */
static bool replace_by(const char *const (*list)[2], int from, const char *name, int which, char *to, size_t size) {
    for (int i = 0; list != NULL && list[i][0] != NULL; i++) {
        if (ends_in(name, list[i][from]) && which-- == 0) {
            return replace_end(to, size, name, list[i][from], list[i][1 - from]);
        }
    }
    return false;
}

bool carry_lm_other_name(const void *names, const char *name, int which, bool pieces, char *to, size_t size) {
    const carry_lm_file_names *n = names;
    if (pieces) {
        return replace_by(n->pieces, 0, name, which, to, size);
    }
    if (which == 0 && starts_with(name, "model.") && !starts_with(name, n->prefix)) {
        return snprintf(to, size, "%s%s", n->prefix, name + strlen("model.")) < (int)size;
    }
    if (which == 0) { /* lm_head.weight */
        return snprintf(to, size, "model.%s", name) < (int)size;
    }
    return replace_by(n->renamed, 0, name, which - 1, to, size);
}

void carry_lm_own_name(const carry_lm_file_names *n, const char *name, char *to, size_t size) {
    char short_name[512];
    const bool nested = starts_with(name, n->prefix);
    (void)snprintf(short_name, sizeof short_name, "%s%s", nested ? "model." : "",
                   nested ? name + strlen(n->prefix) : name);
    if (!replace_by(n->renamed, 1, short_name, 0, to, size) && !replace_by(n->pieces, 1, short_name, 0, to, size)) {
        (void)snprintf(to, size, "%s", strcmp(short_name, "model.lm_head.weight") == 0 ? "lm_head.weight" : short_name);
    }
}

const char *carry_lm_ignored(const carry_lm_file_names *n, const char *name) {
    for (int i = 0; n->ignored != NULL && n->ignored[i][0] != NULL; i++) {
        if (starts_with(name, n->ignored[i][0])) {
            return n->ignored[i][1];
        }
    }
    return NULL;
}
