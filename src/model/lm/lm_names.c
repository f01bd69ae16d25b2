/* Tensors whose names in files differ from the names in the model: by a prefix, by their ends, or because a tensor is
   stored in pieces. */
#include "model/lm/lm_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool starts_with(const char *name, const char *start) {
    return strncmp(name, start, strlen(start)) == 0;
}

static bool ends_in(const char *name, const char *end) {
    const size_t length = strlen(name);
    return length >= strlen(end) && strcmp(name + length - strlen(end), end) == 0;
}

/* Copies a name with its end replaced. */
static bool replace_end(char *to, size_t size, const char *name, const char *end, const char *by) {
    return ends_in(name, end) && snprintf(to, size, "%.*s%s", (int)(strlen(name) - strlen(end)), name, by) < (int)size;
}

/* Replaces the end of a name, by a list of {from, to} (from = 0) or in the other direction (from = 1). `which` selects
   among the entries that match. */
static bool replace_by(const char *const (*list)[2], int from, const char *name, int which, char *to, size_t size) {
    for (int i = 0; list != NULL && list[i][0] != NULL; i++) {
        if (ends_in(name, list[i][from]) && which-- == 0) {
            return replace_end(to, size, name, list[i][from], list[i][1 - from]);
        }
    }
    return false;
}

/* If the name ends in `end`, returns the start of that end within the name, else NULL. A '#' in `end` matches a number,
   which is stored in *number (-1 without '#'). */
static const char *find_end(const char *name, const char *end, int64_t *number) {
    const char *sign = strchr(end, '#');
    const size_t length = strlen(name);
    const size_t tail = strlen(sign != NULL ? sign + 1 : end);
    *number = -1;
    if (length < tail || strcmp(name + length - tail, sign != NULL ? sign + 1 : end) != 0) {
        return NULL;
    }
    const char *at = name + length - tail;
    if (sign == NULL) {
        return at;
    }
    const char *last = at;
    while (at > name && at[-1] >= '0' && at[-1] <= '9') {
        at--;
    }
    if (at == last || last - at > 9 || (at[0] == '0' && last - at > 1) || at - name < sign - end ||
        strncmp(at - (sign - end), end, (size_t)(sign - end)) != 0) {
        return NULL;
    }
    *number = strtoll(at, NULL, 10);
    return at - (sign - end);
}

/* Writes the name of piece `which` of a tensor. If the list has several ends for the name, they are used in order; with
   '#' they repeat for every number. */
static bool piece_name(const char *const (*list)[2], const char *name, int which, char *to, size_t size) {
    const char *end[8];
    int ends = 0;
    const char *own = NULL;
    for (int i = 0; list != NULL && list[i][0] != NULL && ends < 8; i++) {
        if (ends_in(name, list[i][0])) {
            own = list[i][0];
            end[ends++] = list[i][1];
        }
    }
    const char *by = ends > 0 ? end[which % ends] : "";
    const char *sign = strchr(by, '#');
    if (ends == 0 || (sign == NULL && which >= ends)) {
        return false;
    }
    const int start = (int)(strlen(name) - strlen(own));
    return (sign == NULL ? snprintf(to, size, "%.*s%s", start, name, by)
                         : snprintf(to, size, "%.*s%.*s%d%s", start, name, (int)(sign - by), by, which / ends,
                                    sign + 1)) < (int)size;
}

bool carry_lm_other_name(const void *names, const char *name, int which, bool pieces, char *to, size_t size) {
    const carry_lm_file_names *n = names;
    if (pieces) {
        return piece_name(n->pieces, name, which, to, size);
    }
    if (which == 0 && starts_with(name, "model.") && !starts_with(name, n->prefix)) {
        return snprintf(to, size, "%s%s", n->prefix, name + strlen("model.")) < (int)size;
    }
    if (which == 0) { /* lm_head.weight */
        return snprintf(to, size, "model.%s", name) < (int)size;
    }
    return replace_by(n->renamed, 0, name, which - 1, to, size);
}

int64_t carry_lm_own_name(const carry_lm_file_names *n, const char *name, char *to, size_t size) {
    char short_name[512];
    int64_t number = -1;
    const bool nested = starts_with(name, n->prefix);
    (void)snprintf(short_name, sizeof short_name, "%s%s", nested ? "model." : "",
                   nested ? name + strlen(n->prefix) : name);
    if (replace_by(n->renamed, 1, short_name, 0, to, size)) {
        return -1;
    }
    for (int i = 0; n->pieces != NULL && n->pieces[i][0] != NULL; i++) {
        const char *end = find_end(short_name, n->pieces[i][1], &number);
        if (end != NULL) {
            (void)snprintf(to, size, "%.*s%s", (int)(end - short_name), short_name, n->pieces[i][0]);
            return number;
        }
    }
    (void)snprintf(to, size, "%s", strcmp(short_name, "model.lm_head.weight") == 0 ? "lm_head.weight" : short_name);
    return -1;
}

const char *carry_lm_ignored(const carry_lm_file_names *n, const char *name) {
    for (int i = 0; n->ignored != NULL && n->ignored[i][0] != NULL; i++) {
        if (starts_with(name, n->ignored[i][0])) {
            return n->ignored[i][1];
        }
    }
    return NULL;
}
