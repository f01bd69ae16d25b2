/* Templates of an experiment: substitutes lists of values in problems and criteria. */
#include "lab/experiment/experiment_template.h"

#include <stdio.h>
#include <string.h>

#include "core/context.h"

/* Substitutes the bindings in a text such as "t{t}:n{n}". */
carry_status carry_template_fill(carry_experiment *e, char *to, size_t size, const carry_yaml *node,
                                 const carry_bindings *b) {
    size_t length = 0;
    for (int i = 0; i < b->count; i++) {
        char key[CARRY_EXPERIMENT_WORD];
        int written = snprintf(key, sizeof key, "{%s}", b->of[i].key);
        if (written >= (int)sizeof key || strstr(node->text, key) == NULL) {
            return carry_yaml_fail(e->ctx, node, e->path, "'%s' has a list of values, but '%.120s' does not use it",
                                   key, node->text);
        }
    }
    for (const char *at = node->text; *at != '\0';) {
        const char *piece = at;
        size_t piece_length = 1;
        if (*at == '{') {
            size_t key = strcspn(at + 1, "}");
            piece = NULL;
            for (int i = 0; i < b->count; i++) {
                if (strlen(b->of[i].key) == key && strncmp(b->of[i].key, at + 1, key) == 0) {
                    piece = b->of[i].value;
                }
            }
            if (piece == NULL || at[key + 1] != '}') {
                return carry_yaml_fail(e->ctx, node, e->path, "'{%.*s}' in '%.120s' has no list of values beside it",
                                       (int)(key < 40 ? key : 40), at + 1, node->text);
            }
            piece_length = strlen(piece);
            at += key + 2;
        } else {
            at++;
        }
        if (length + piece_length >= size) {
            return carry_yaml_fail(e->ctx, node, e->path, "'%.60s...' is longer than %zu letters", node->text,
                                   size - 1);
        }
        memcpy(to + length, piece, piece_length);
        length += piece_length;
    }
    to[length] = '\0';
    return CARRY_OK;
}

static bool is_list(const carry_yaml *node, const char *const *skip) {
    for (int i = 0; skip[i] != NULL; i++) {
        if (strcmp(node->key, skip[i]) == 0) {
            return false;
        }
    }
    return true;
}

static carry_status combine(carry_experiment *e, carry_yaml *entry, carry_yaml *from, const char *const *skip,
                            carry_bindings *b, carry_template_call call, void *user) {
    while (from != NULL && !is_list(from, skip)) {
        from = from->next;
    }
    if (from == NULL) {
        return call(e, entry, b, user);
    }
    from->seen = true;
    if (from->kind == CARRY_YAML_SEQUENCE && from->count == 0) {
        return carry_yaml_fail(e->ctx, from, e->path, "'%.40s' is an empty list: the grid would be empty", from->key);
    }
    if (from->kind != CARRY_YAML_SEQUENCE) {
        char known[160] = "";
        for (int i = 0; skip[i] != NULL; i++) {
            size_t length = strlen(known);
            (void)snprintf(known + length, sizeof known - length, "%s%s", i > 0 ? ", " : "", skip[i]);
        }
        return carry_yaml_fail(e->ctx, from, e->path,
                               "'%.40s' is neither a list of values for a template nor known here: %s", from->key,
                               known);
    }
    if (b->count == CARRY_EXPERIMENT_BINDINGS) {
        return carry_yaml_fail(e->ctx, from, e->path, "too many lists");
    }
    b->count++;
    for (carry_yaml *value = from->first; value != NULL; value = value->next) {
        const char *text;
        CARRY_TRY(carry_yaml_text(e->ctx, &text, value, e->path));
        b->of[b->count - 1] = (carry_binding){.key = from->key, .value = text};
        CARRY_TRY(combine(e, entry, from->next, skip, b, call, user));
    }
    b->count--;
    return CARRY_OK;
}

carry_status carry_template_each(carry_experiment *e, carry_yaml *entry, const char *const *known,
                                 carry_template_call call, void *user) {
    carry_bindings b = {0};
    return combine(e, entry, entry->first, known, &b, call, user);
}
