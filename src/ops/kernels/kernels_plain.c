/* The specification of the kernels: portable C, no tricks. */
#include "ops/kernels/kernels.h"
#include "ops/kernels/rows_loops.h"

static bool usable(void) {
    return true;
}

static float element(const float *matrix, ptrdiff_t row, bool transposed, int64_t i, int64_t j) {
    return transposed ? matrix[j * row + i] : matrix[i * row + j];
}

static void product(const carry_product *p) {
    for (int64_t item = 0; item < p->count; item++) {
        const float *a = p->a + item * p->a_next;
        const float *b = p->b + item * p->b_next;
        const float *base = p->base != NULL ? p->base + item * p->base_next : NULL;
        float *c = p->c + item * p->c_next;
        for (int64_t i = 0; i < p->m; i++) {
            for (int64_t j = 0; j < p->n; j++) {
                float first = base != NULL ? base[i * p->base_row + j] : 0.0f;
                first = p->base_by != NULL ? p->base_by[i] * first : first;
                float sum = p->by == NULL ? first : 0.0f;
                for (int64_t l = 0; l < p->k; l++) {
                    sum += element(a, p->a_row, p->a_transposed, i, l) * element(b, p->b_row, p->b_transposed, l, j);
                }
                c[i * p->c_row + j] = p->by == NULL ? sum : p->by[i] * sum + first;
            }
        }
    }
}

static float get(const void *from, carry_dtype type, int64_t index) {
    if (type == CARRY_F32) {
        return ((const float *)from)[index];
    }
    uint16_t bits = ((const uint16_t *)from)[index];
    return type == CARRY_BF16 ? carry_f32_from_bf16(bits) : carry_f32_from_f16(bits);
}

static void put(void *to, carry_dtype type, int64_t index, float value) {
    if (type == CARRY_F32) {
        ((float *)to)[index] = value;
    } else {
        ((uint16_t *)to)[index] = type == CARRY_BF16 ? carry_bf16_from_f32(value) : carry_f16_from_f32(value);
    }
}

static void diagonal_scan(const carry_diagonal_scan *s) {
    for (int64_t t = 0; t < s->steps; t++) {
        for (int64_t r = 0; r < s->rows; r++) {
            for (int64_t j = r * s->width; j < (r + 1) * s->width; j++) {
                s->state[j] = s->a[t * s->a_step + r] * s->state[j] + get(s->b, s->b_type, t * s->b_step + j);
                if (s->h != NULL) {
                    put(s->h, s->h_type, t * s->h_step + j, s->state[j]);
                }
            }
        }
    }
}

static void diagonal_apply(const carry_diagonal_apply *p) {
    for (int64_t item = 0; item < p->count; item++) {
        const float *a = p->a + item * p->a_next;
        const float *x = p->x + item * p->x_next;
        const float *base = p->base + item * p->base_next;
        float *y = p->y + item * p->y_next;
        for (int64_t r = 0; r < p->rows; r++) {
            for (int64_t j = 0; j < p->width; j++) {
                y[r * p->width + j] = base[r * p->width + j] + a[r] * x[r * p->width + j];
            }
        }
    }
}

static void delta_token(const carry_delta_token *t) {
    for (int64_t j = 0; j < t->columns; j++) {
        float seen = 0.0f;
        for (int64_t i = 0; i < t->rows; i++) {
            seen += t->faded_k[i] * t->S[i * t->stride + j];
        }
        float u = t->beta * (t->v[j] - seen);
        float sum = 0.0f;
        for (int64_t i = 0; i < t->rows; i++) {
            float *S = &t->S[i * t->stride + j];
            *S = t->decay[i] * *S + t->k[i] * u;
            sum += t->q[i] * *S;
        }
        t->o[j] = sum;
        if (t->u != NULL) {
            t->u[j] = u;
        }
    }
}

static void exact_dots(const carry_exact_dots *d) {
    for (int64_t i = 0; i < d->m; i++) {
        for (int64_t j = 0; j < d->n; j++) {
            double sum = d->accumulate ? d->c[i * d->c_row + j] : 0.0;
            for (int64_t l = 0; l < d->k; l++) {
                sum += (double)d->a[i * d->a_row + l] * (double)d->b[j * d->b_row + l];
            }
            d->c[i * d->c_row + j] = (float)sum;
        }
    }
}

static void half_dots(const carry_half_dots *d) {
    for (int64_t t = 0; t < d->tokens; t++) {
        for (int64_t r = 0; r < d->rows; r++) {
            float sum = 0.0f;
            for (int64_t l = 0; l < d->k; l++) {
                uint16_t w = d->w[r * d->w_row + l];
                sum +=
                    (d->type == CARRY_BF16 ? carry_f32_from_bf16(w) : carry_f32_from_f16(w)) * d->x[t * d->x_row + l];
            }
            d->y[t * d->y_row + r] = sum;
        }
    }
}

static void f32_from_bf16(float *to, const uint16_t *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = carry_f32_from_bf16(from[i]);
    }
}

static void f32_from_f16(float *to, const uint16_t *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = carry_f32_from_f16(from[i]);
    }
}

static void bf16_from_f32(uint16_t *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = carry_bf16_from_f32(from[i]);
    }
}

static void f16_from_f32(uint16_t *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to[i] = carry_f16_from_f32(from[i]);
    }
}

static void transpose(float *to, ptrdiff_t to_row, const float *from, ptrdiff_t from_row, int64_t rows,
                      int64_t columns) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            to[j * to_row + i] = from[i * from_row + j];
        }
    }
}

const carry_kernels carry_kernels_plain = {
    .name = "plain",
    .about = "portable C, the specification",
    .usable = usable,
    .product = product,
    .columns = 16,
    .diagonal_scan = diagonal_scan,
    .diagonal_apply = diagonal_apply,
    .delta_token = delta_token,
    .half_dots = half_dots,
    .exact_dots = exact_dots,
    .f32_from_bf16 = f32_from_bf16,
    .f32_from_f16 = f32_from_f16,
    .bf16_from_f32 = bf16_from_f32,
    .f16_from_f32 = f16_from_f32,
    .rows = &row_loops,
    .transpose = transpose,
};
