/* Products through OpenBLAS, when the build found it. Only cblas_sgemm is required; functions specific to OpenBLAS are
   optional, since the library of this name may be another BLAS. */
#include <stdio.h>
#include <string.h>

#include "ops/kernels/kernels.h"

#if defined(CARRY_HAVE_OPENBLAS)
#include <cblas.h>

#pragma weak openblas_set_num_threads
#pragma weak openblas_get_config
#pragma weak openblas_get_corename

static void product(const carry_product *p) {
    CBLAS_TRANSPOSE a_form = p->a_transposed ? CblasTrans : CblasNoTrans;
    CBLAS_TRANSPOSE b_form = p->b_transposed ? CblasTrans : CblasNoTrans;
    for (int64_t i = 0; i < p->count; i++) {
        float *c = p->c + i * p->c_next;
        const float *base = p->base != NULL ? p->base + i * p->base_next : NULL;
        for (int64_t r = 0; base != NULL && base != c && r < p->m; r++) {
            memcpy(c + r * p->c_row, base + r * p->base_row, (size_t)p->n * sizeof *c);
        }
        cblas_sgemm(CblasRowMajor, a_form, b_form, (blasint)p->m, (blasint)p->n, (blasint)p->k, 1.0f,
                    p->a + i * p->a_next, (blasint)p->a_row, p->b + i * p->b_next, (blasint)p->b_row,
                    base != NULL ? 1.0f : 0.0f, c, (blasint)p->c_row);
    }
}

const carry_product_function carry_blas_product = product;

const char *carry_blas_name(void) {
    if (openblas_set_num_threads != NULL) {
        openblas_set_num_threads(1); /* Carry splits the work itself */
    }
    return openblas_get_config != NULL ? openblas_get_config() : "a BLAS without a name";
}

const char *carry_blas_core(void) {
    return openblas_get_corename != NULL ? openblas_get_corename() : NULL;
}

#else

const carry_product_function carry_blas_product = NULL;

const char *carry_blas_name(void) {
    return NULL;
}

const char *carry_blas_core(void) {
    return NULL;
}

#endif

/* The widest instructions that OpenBLAS's x86 core types use. Other core types give no warning. */
static const struct {
    const char *name, *uses;
} cores[] = {
    {"Katmai", "SSE"},         {"Coppermine", "SSE"},
    {"Northwood", "SSE2"},     {"Prescott", "SSE3"},
    {"Banias", "SSE2"},        {"Core2", "SSE3"},
    {"Penryn", "SSE4"},        {"Dunnington", "SSE4"},
    {"Nehalem", "SSE4"},       {"Atom", "SSE3"},
    {"Athlon", "SSE"},         {"Opteron", "SSE2"},
    {"Opteron_SSE3", "SSE3"},  {"Barcelona", "SSE3"},
    {"Bobcat", "SSE3"},        {"Nano", "SSE3"},
    {"Sandybridge", "AVX"},    {"Bulldozer", "AVX"},
    {"Piledriver", "AVX"},     {"Steamroller", "AVX"},
    {"Excavator", "AVX2"},     {"Haswell", "AVX2"},
    {"Zen", "AVX2"},           {"SkylakeX", "AVX-512"},
    {"Cooperlake", "AVX-512"}, {"SapphireRapids", "AVX-512"},
};

bool carry_blas_misfit(char *line, size_t size, const char *core, const char *kernels) {
    bool avx2 = strcmp(kernels, "avx2") == 0;
    bool avx512 = strcmp(kernels, "avx512") == 0;
    const char *has = avx512 ? "AVX-512" : "AVX2";
    for (size_t i = 0; core != NULL && (avx2 || avx512) && i < sizeof cores / sizeof cores[0]; i++) {
        bool enough = strcmp(cores[i].uses, "AVX-512") == 0 || strcmp(cores[i].uses, has) == 0;
        if (strcmp(cores[i].name, core) == 0 && !enough) {
            (void)snprintf(line, size,
                           "OpenBLAS takes this processor for %s and uses %s where there is %s (OPENBLAS_CORETYPE=%s "
                           "corrects it)",
                           core, cores[i].uses, has, avx512 ? "SkylakeX" : "Haswell");
            return true;
        }
    }
    return false;
}
