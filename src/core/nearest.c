/* Edit distance (Damerau-Levenshtein with swaps of adjacent letters) and the table of other projects' names. */
#include "core/nearest.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* A name is suggested only where the caller offers it, so one table serves verbs, options, problems and types. */
static const char *const synonyms[][2] = {
    {"fp16", "f16"},
    {"float16", "f16"},
    {"half", "f16"},
    {"fp32", "f32"},
    {"float32", "f32"},
    {"float", "f32"},
    {"single", "f32"},
    {"bfloat16", "bf16"},
    {"brain16", "bf16"},
    {"lr", "rate"},
    {"learning-rate", "rate"},
    {"learning_rate", "rate"},
    {"batch-size", "batch"},
    {"bs", "batch"},
    {"iterations", "steps"},
    {"iters", "steps"},
    {"max-steps", "steps"},
    {"text", "data"},
    {"dataset", "data"},
    {"corpus", "data"},
    {"num-threads", "threads"},
    {"jobs", "threads"},
    {"max-new-tokens", "tokens"},
    {"temp", "temperature"},
    {"gpu", "device"},
    {"model-path", "model"},
    {"out", "output"},
    {"benchmark", "bench"},
    {"time", "bench"},
    {"verify", "check"},
    {"test", "check"},
    {"explain", "plan"},
    {"sample", "generate"},
    {"gen", "generate"},
    {"evaluate", "eval"},
    {"ls", "list"},
    {"serve", "stream"},
    {"diag", "diagonal"},
    {"full", "dense"},
    {"bwd", "backward"},
    {"grad", "backward"},
    {"reverse", "reversed"},
    {"h0", "initial"},
    {"algorithm", "algo"},
    {"gemm", "matmul"},
    {"mm", "matmul"},
    {"attn", "attention"},
    {"gdn", "delta"},
    {"cumsum", "scan"},
};

static int least(int a, int b) {
    return a < b ? a : b;
}

int carry_edit_distance(const char *a, const char *b) {
    const size_t m = strlen(a);
    const size_t n = strlen(b);
    int rows[3][CARRY_NEAREST_WORD]; /* the last three rows of the distance table */
    if (m >= CARRY_NEAREST_WORD || n >= CARRY_NEAREST_WORD) {
        return INT_MAX;
    }
    for (size_t i = 0; i <= m; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i + 2) % 3];
        const int *before = rows[(i + 1) % 3];
        for (size_t j = 0; j <= n; j++) {
            if (i == 0 || j == 0) {
                row[j] = (int)(i + j);
                continue;
            }
            row[j] = least(least(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = least(row[j], before[j - 2] + 1);
            }
        }
    }
    return rows[m % 3][n];
}

carry_nearest carry_nearest_to(const char *word) {
    return (carry_nearest){.word = word, .distance = INT_MAX};
}

/* Allows one mistake per three letters, and none in words of one or two letters, which would be near to everything. */
static int allowed(const char *word) {
    return (int)(strlen(word) / 3);
}

void carry_nearest_offer(carry_nearest *nearest, const char *name) {
    const size_t length = strlen(name);
    int distance = length > 2 && length < sizeof nearest->best ? carry_edit_distance(nearest->word, name) : INT_MAX;
    for (size_t i = 0; i < sizeof synonyms / sizeof synonyms[0]; i++) {
        if (strcmp(nearest->word, synonyms[i][0]) == 0 && strcmp(name, synonyms[i][1]) == 0) {
            distance = -1;
        }
    }
    if (distance < nearest->distance && distance <= allowed(nearest->word)) {
        nearest->distance = distance;
        (void)snprintf(nearest->best, sizeof nearest->best, "%s", name);
    }
}

void carry_nearest_offer_part(carry_nearest *nearest, const char *name, size_t length) {
    char copy[CARRY_NEAREST_WORD];
    if (length < sizeof copy) {
        memcpy(copy, name, length);
        copy[length] = '\0';
        carry_nearest_offer(nearest, copy);
    }
}

const char *carry_nearest_hint(char hint[CARRY_NEAREST_HINT], const carry_nearest *nearest, const char *prefix) {
    hint[0] = '\0';
    if (nearest->best[0] != '\0') {
        (void)snprintf(hint, CARRY_NEAREST_HINT, "; did you mean '%s%s'?", prefix, nearest->best);
    }
    return hint;
}

const char *carry_nearest_among(char hint[CARRY_NEAREST_HINT], const char *word, const char *const *names) {
    carry_nearest nearest = carry_nearest_to(word);
    for (int i = 0; names[i] != NULL; i++) {
        carry_nearest_offer(&nearest, names[i]);
    }
    return carry_nearest_hint(hint, &nearest, "");
}
