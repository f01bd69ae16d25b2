/* The only list of bf16 products, and the choice among them. */
#include <stdio.h>
#include <string.h>

#include "ops/kernels/bf16.h"

extern const carry_bf16 carry_bf16_emulated_avx512;
extern const carry_bf16 carry_bf16_emulated_amx;
#if defined(__aarch64__)
extern const carry_bf16 carry_bf16_bfmmla;
#elif defined(__x86_64__)
extern const carry_bf16 carry_bf16_avx512;
extern const carry_bf16 carry_bf16_amx;
#endif

static const carry_bf16 *const table[] = {
    &carry_bf16_emulated_avx512,
    &carry_bf16_emulated_amx,
#if defined(__aarch64__)
    &carry_bf16_bfmmla,
#elif defined(__x86_64__)
    &carry_bf16_avx512,
    &carry_bf16_amx,
#endif
};

#define TABLE_COUNT ((int)(sizeof table / sizeof table[0]))

const carry_bf16 *carry_bf16_at(int index) {
    return index >= 0 && index < TABLE_COUNT ? table[index] : NULL;
}

const carry_bf16 *carry_bf16_named(const char *name) {
    for (int i = 0; i < TABLE_COUNT; i++) {
        if (strcmp(table[i]->name, name) == 0) {
            return table[i];
        }
    }
    return NULL;
}

const carry_bf16 *carry_bf16_best(void) {
    for (int i = TABLE_COUNT - 1; i >= 0; i--) {
        if (!table[i]->emulated && table[i]->missing() == NULL) {
            return table[i];
        }
    }
    return NULL;
}

const char *carry_bf16_passed_over(char *line, size_t size, const carry_bf16 *used) {
    line[0] = '\0';
    for (int i = TABLE_COUNT - 1; i >= 0 && table[i] != used && !table[i]->emulated; i--) {
        if (table[i]->missing() != NULL) {
            (void)snprintf(line, size, "%s: %s", table[i]->name, table[i]->missing());
            break;
        }
    }
    return line;
}
