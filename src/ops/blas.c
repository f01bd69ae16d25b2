/* Products through OpenBLAS, when the build found it. */
#include "ops/kernels/kernels.h"

#if defined(CARRY_HAVE_OPENBLAS)
#include <cblas.h>
#include <string.h>

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
    openblas_set_num_threads(1); /* Carry splits the work itself */
    return openblas_get_config();
}

#else

const carry_product_function carry_blas_product = NULL;

const char *carry_blas_name(void) {
    return NULL;
}

#endif
