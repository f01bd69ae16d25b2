/* The only list of kernels for quantised rows. */
#include <string.h>

#include "ops/kernels/quant.h"

#if defined(__aarch64__)
extern const carry_quant_kernels carry_quant_kernels_neon;
#elif defined(__x86_64__)
extern const carry_quant_kernels carry_quant_kernels_avx2;
extern const carry_quant_kernels carry_quant_kernels_avx512;
#endif

static const carry_quant_kernels *const table[] = {
    &carry_quant_kernels_plain,
#if defined(__aarch64__)
    &carry_quant_kernels_neon,
#elif defined(__x86_64__)
    &carry_quant_kernels_avx2,
    &carry_quant_kernels_avx512,
#endif
};

#define TABLE_COUNT ((int)(sizeof table / sizeof table[0]))

carry_quant_dots_function carry_quant_dots_by(const carry_quant_kernels *by, const carry_quant_format *format) {
    const carry_quant_entry *entry = by->entries;
    while (entry->format != NULL && entry->format != format) {
        entry++;
    }
    return entry->dots != NULL || by == &carry_quant_kernels_plain
               ? entry->dots
               : carry_quant_dots_by(&carry_quant_kernels_plain, format);
}

const carry_quant_kernels *carry_quant_kernels_at(int index) {
    return index >= 0 && index < TABLE_COUNT ? table[index] : NULL;
}

const carry_quant_kernels *carry_quant_kernels_for(const char *kernels) {
    const carry_quant_kernels *last = table[0]; /* plain ones run everywhere */
    for (int i = 0; i < TABLE_COUNT; i++) {
        if (table[i]->usable()) {
            last = table[i];
            if (kernels != NULL && strcmp(kernels, table[i]->name) == 0) {
                break;
            }
        }
    }
    return last;
}
