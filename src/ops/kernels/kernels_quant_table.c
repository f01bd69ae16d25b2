/* The only list of kernels for quantised rows. */
#include <string.h>

#include "ops/kernels/quant.h"

extern const carry_quant_kernels carry_quant_kernels_plain;
#if defined(__aarch64__)
extern const carry_quant_kernels carry_quant_kernels_neon;
#elif defined(__x86_64__)
extern const carry_quant_kernels carry_quant_kernels_avx2;
#endif

static const carry_quant_kernels *const table[] = {
    &carry_quant_kernels_plain,
#if defined(__aarch64__)
    &carry_quant_kernels_neon,
#elif defined(__x86_64__)
    &carry_quant_kernels_avx2,
#endif
};

#define TABLE_COUNT ((int)(sizeof table / sizeof table[0]))

const carry_quant_kernels *carry_quant_kernels_at(int index) {
    return index >= 0 && index < TABLE_COUNT ? table[index] : NULL;
}

const carry_quant_kernels *carry_quant_kernels_for(const char *kernels) {
    const bool is_plain = kernels != NULL && strcmp(kernels, "plain") == 0;
    for (int i = TABLE_COUNT - 1; i > 0 && !is_plain; i--) {
        if (table[i]->usable()) {
            return table[i];
        }
    }
    return table[0]; /* plain ones run everywhere */
}
