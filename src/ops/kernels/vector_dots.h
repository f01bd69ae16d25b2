/* Matrix times vector: every element of a is used once, so this should run at the speed of reading it. Dot products
   of several rows at a time hide the latency of the sums. Their vectors of partial sums are then added across lanes
   together, since one vector alone would take LANES additions that wait for each other: 622 us for a pass of 1024
   steps at n = 32 with AVX-512, where this takes 277. If DOT_AHEAD is not 0, a is prefetched that many floats before
   it is read, since the hardware prefetchers of x86 processors stop at page borders (317 us without); those of ARM do
   not, and software prefetching slows them down (docs/attempts/x86.md). Part of kernels_vector.h. */
#ifndef CARRY_OPS_VECTOR_DOTS_H
#define CARRY_OPS_VECTOR_DOTS_H

/* Lane i of fold(x, y) at distance d is x[i] + x[i^d], or y[i] + y[i^d] if i has the bit d. Folding LANES vectors in
   pairs at distances LANES/2, ..., 2, 1 leaves the sum of vector i in lane i, each added up in the same order. */
#define KEPT(i, d) ((i) & (d) ? LANES + (i) : (i))
#define CROSSED(i, d) ((i) & (d) ? LANES + ((i) ^ (d)) : (i) ^ (d))
#define FOUR(f, i, d) f((i), d), f((i) + 1, d), f((i) + 2, d), f((i) + 3, d)
#if LANES == 16
#define EACH_LANE(f, d) FOUR(f, 0, d), FOUR(f, 4, d), FOUR(f, 8, d), FOUR(f, 12, d)
#elif LANES == 8
#define EACH_LANE(f, d) FOUR(f, 0, d), FOUR(f, 4, d)
#else
#define EACH_LANE(f, d) FOUR(f, 0, d)
#endif
#define FOLD(x, y, d) \
    (__builtin_shufflevector(x, y, EACH_LANE(KEPT, d)) + __builtin_shufflevector(x, y, EACH_LANE(CROSSED, d)))

INLINE vec fold(const int distance, vec x, vec y) {
#if LANES > 8
    if (distance == 8) {
        return FOLD(x, y, 8);
    }
#endif
#if LANES > 4
    if (distance == 4) {
        return FOLD(x, y, 4);
    }
#endif
    return distance == 2 ? FOLD(x, y, 2) : FOLD(x, y, 1);
}

/* Rows that are summed at a time: their sums, a vector of b and their pointers stay in registers. */
#define DOT_PAIRS (LANES / 2 < 4 ? LANES / 2 : 4)

typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* Keeps the last `count` lanes of a vector and zeroes the others, so that infinities which were already counted do
   not count again. */
INLINE vec last_lanes(vec x, int64_t count) {
    static const int32_t window[2 * LANES] = {[LANES... 2 * LANES - 1] = -1};
    return (vec)((ivec)x & *(const ivec *)(window + count));
}

/* Multiplies one vector of b by `rows` rows of a and adds each product to its sum. The last vector of k overlaps the
   one before it. */
INLINE void add_products(const int rows, const bool is_last, int64_t l, int64_t k, const float *a, ptrdiff_t a_row,
                         const float *b, vec *sum) {
    int64_t at = is_last ? k - LANES : l;
    vec x = is_last ? last_lanes(load(b + at), k - l) : load(b + at);
    UNROLL
    for (int r = 0; r < rows; r++) {
        vec y = load(a + r * a_row + at);
        sum[r] += (is_last ? last_lanes(y, k - l) : y) * x;
#if DOT_AHEAD > 0
        __builtin_prefetch(a + r * a_row + at + DOT_AHEAD);
#endif
    }
}

/* Partial sums of two rows times b in the halves of each vector: half[r] has rows r and r + LANES/2, or row r twice
   if there is only one row. */
INLINE void half_dots(const int pairs, const bool alone, int64_t k, const float *a, ptrdiff_t a_row, const float *b,
                      vec *half) {
    const float *other = a + LANES / 2 * a_row;
    vec sum[2 * DOT_PAIRS];
    UNROLL
    for (int r = 0; r < 2 * pairs; r++) {
        sum[r] = (vec){0};
    }
    int64_t l = 0;
    for (; l + LANES <= k; l += LANES) {
        add_products(pairs, false, l, k, a, a_row, b, sum);
        if (!alone) {
            add_products(pairs, false, l, k, other, a_row, b, sum + pairs);
        }
    }
    if (l < k) {
        add_products(pairs, true, l, k, a, a_row, b, sum);
        if (!alone) {
            add_products(pairs, true, l, k, other, a_row, b, sum + pairs);
        }
    }
    UNROLL
    for (int r = 0; r < pairs; r++) {
        half[r] = fold(LANES / 2, sum[r], sum[alone ? r : pairs + r]);
    }
}

/* Lane i is the sum of row i of a times b. There are LANES rows, or one, whose sum is then in all lanes. */
INLINE vec dot_sums(const int rows, int64_t k, const float *a, ptrdiff_t a_row, const float *b) {
    vec half[LANES / 2];
    if (rows == 1) {
        half_dots(1, true, k, a, a_row, b, half);
    }
    UNROLL
    for (int r = 0; r < LANES / 2 && rows == LANES; r += DOT_PAIRS) {
        half_dots(DOT_PAIRS, false, k, a + r * a_row, a_row, b, half + r);
    }
    UNROLL
    for (int distance = LANES / 4; distance > 0; distance /= 2) {
        UNROLL
        for (int r = 0; r < distance && r < rows; r++) {
            half[r] = fold(distance, half[r], half[rows == 1 ? 0 : r + distance]);
        }
    }
    return half[0];
}

/* c[rows] = a[rows x k] b[k] + base[rows], with b packed. With `packed`, base and c are packed too. */
INLINE void dots(const int rows, const bool packed, int64_t k, const float *a, ptrdiff_t a_row, const float *b,
                 const float *base, ptrdiff_t base_row, float *c, ptrdiff_t c_row) {
    vec sum = dot_sums(rows, k, a, a_row, b);
    /* One store: the next operation may read c as a vector, and would wait for many small stores. */
    if (packed) {
        keep(c, base != NULL ? load(base) + sum : sum);
        return;
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        c[r * c_row] = base != NULL ? base[r * base_row] + sum[r] : sum[r];
    }
}

INLINE void dots_at(const int rows, const bool packed, const carry_product *p, int64_t i, const float *a,
                    const float *b, const float *base, float *c) {
    dots(rows, packed, p->k, a + i * p->a_row, p->a_row, b, base != NULL ? base + i * p->base_row : NULL, p->base_row,
         c + i * p->c_row, p->c_row);
}

/* Rows shorter than a vector. */
static void times_short_vector(const carry_product *p, const float *a, const float *b, const float *base, float *c) {
    for (int64_t i = 0; i < p->m; i++) {
        float sum = base != NULL ? base[i * p->base_row] : 0.0f;
        for (int64_t l = 0; l < p->k; l++) {
            sum += a[i * p->a_row + l] * b[l];
        }
        c[i * p->c_row] = sum;
    }
}

/* Without software prefetching, a matrix of at least this many elements is multiplied in groups of rows that are far
   apart. The next group has the rows that follow them in memory, so the hardware prefetcher does not restart at every
   row (65536 x 1024 on ARM: 33 GB/s, against 19 with neighbouring rows). */
#define FAR_ELEMENTS ((int64_t)1 << 18)

static void times_vector_from_afar(const carry_product *p, const float *a, const float *b, const float *base,
                                   float *c) {
    const int64_t apart = p->m / LANES;
    for (int64_t i = 0; i < apart; i++) {
        dots(LANES, false, p->k, a + i * p->a_row, apart * p->a_row, b, base != NULL ? base + i * p->base_row : NULL,
             apart * p->base_row, c + i * p->c_row, apart * p->c_row);
    }
    for (int64_t i = apart * LANES; i < p->m; i++) {
        dots_at(1, false, p, i, a, b, base, c);
    }
}

/* The bits of a row do not depend on its group. */
static void times_vector(const carry_product *p, const float *a, const float *b, const float *base, float *c) {
    bool packed = p->c_row == 1 && (base == NULL || p->base_row == 1);
    int64_t i = 0;
    if (p->k < LANES) {
        times_short_vector(p, a, b, base, c);
        return;
    }
    if (DOT_AHEAD == 0 && p->m * p->k >= FAR_ELEMENTS) {
        times_vector_from_afar(p, a, b, base, c);
        return;
    }
    for (; packed && i + LANES <= p->m; i += LANES) {
        dots_at(LANES, true, p, i, a, b, base, c);
    }
    for (; i + LANES <= p->m; i += LANES) {
        dots_at(LANES, false, p, i, a, b, base, c);
    }
    for (; i < p->m; i++) {
        dots_at(1, false, p, i, a, b, base, c);
    }
}

#endif
