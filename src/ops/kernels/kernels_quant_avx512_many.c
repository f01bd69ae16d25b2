/* Products of quantised rows with many tokens by AVX512_VNNI (quant_many.h). Lanes are 16 rows of the weight: a vector
   of weights has four columns of each row, and four integers of a token are broadcast to all lanes. Weights are the
   unsigned operand, as signed integers plus 128; sums start from -128 times the sum of x, so that they are exact.

   Two vectors of rows and six tokens are computed together: 12 sums of integers and 12 in f32 in registers. 32 columns
   of 16 rows and a token are 8 VPDPBUSD, a conversion, a product of two scales and an FMA; minima are another FMA. The
   f32 product needs 32 FMA for the same. */
#include <stdbool.h>
#include <string.h>

#include "ops/kernels/quant_avx512_blocks.h"
#include "ops/kernels/quant_many.h"

#if defined(__AVX512VNNI__)

#define LANES 16
#define VECTORS 2 /* of rows */
#define SIX CARRY_QUANT_MANY_TOKENS
#define PIECES CARRY_QUANT_PIECES
#define PAIRS (PIECES / 2)
#define STEPS (CARRY_QUANT_BLOCK / 4)
/* Lines of a panel for each of its pieces. */
#define AHEAD_LINES ((int)(sizeof(carry_quant_panel) / PIECES + 63) / 64)

_Static_assert(LANES *VECTORS == CARRY_QUANT_MANY_ROWS, "rows of a panel");

extern const carry_quant_kernels carry_quant_kernels_avx512;

/* Factors 0 to 7 of a row are the scales of its pieces and 8 to 15 the minima, or 2 p and 2 p + 1 are the scales of the
   halves of piece p. */
typedef enum factors { SCALES, MINIMA, HALVES } factors;

/* A chunk of 16 rows. */
typedef struct unpacked {
    _Alignas(64) uint8_t q[PIECES][STEPS][LANES * 4];
    _Alignas(64) float factor[LANES][LANES]; /* [factor][row] */
} unpacked;

/* A chunk of 16 rows before it is transposed. */
typedef struct gathered {
    _Alignas(64) uint8_t q[LANES][CARRY_QUANT_CHUNK];
    _Alignas(64) float factor[LANES][LANES]; /* [row][factor] */
} gathered;

/* Stores integers plus 128 and factors of one row's chunk; `at` is where the chunk begins. */
typedef void (*gather_function)(gathered *to, int row, const unsigned char *at, int pieces, const void *user);

/* Transposes 16 x 16 numbers of 32 bits; rows of `from` are from_row bytes apart, and rows of `to` 64 bytes. */
INLINE void transpose(void *to, const void *from, size_t from_row) {
    __m512i a[LANES];
    __m512i b[LANES];
    for (int i = 0; i < LANES; i++) {
        a[i] = _mm512_load_si512((const unsigned char *)from + (size_t)i * from_row);
    }
    for (int i = 0; i < LANES; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    /* Part p of a[4 i + c] is column 4 p + c of rows 4 i to 4 i + 3. */
    for (int c = 0; c < 4; c++) {
        const __m512i low = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x44);
        const __m512i high = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xee);
        const __m512i more_low = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x44);
        const __m512i more_high = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xee);
        unsigned char *column = (unsigned char *)to + 64 * c;
        _mm512_store_si512(column, _mm512_shuffle_i32x4(low, more_low, 0x88));
        _mm512_store_si512(column + 256, _mm512_shuffle_i32x4(low, more_low, 0xdd));
        _mm512_store_si512(column + 512, _mm512_shuffle_i32x4(high, more_high, 0x88));
        _mm512_store_si512(column + 768, _mm512_shuffle_i32x4(high, more_high, 0xdd));
    }
}

/* chunk_bytes: bytes of a chunk in a row, which is prefetched for the next call. Rows past the last one are copies of
   it. */
INLINE void unpack(unpacked *to, const carry_quant_many *m, int first, size_t chunk_bytes, gather_function gather,
                   const void *user) {
    gathered beside;
    for (int r = 0; r < LANES; r++) {
        const int row = first + r < m->rows ? first + r : m->rows - 1;
        const unsigned char *at = m->w + (size_t)row * m->row_bytes + (size_t)m->chunk * chunk_bytes;
        gather(&beside, r, at, m->pieces, user);
        for (size_t i = 0; i < chunk_bytes; i += 64) {
            _mm_prefetch((const char *)at + chunk_bytes + i, _MM_HINT_T1);
        }
    }
    for (int pair = 0; 2 * pair < m->pieces; pair++) {
        transpose(to->q[2 * pair], beside.q[0] + 64 * pair, sizeof beside.q[0]);
    }
    transpose(to->factor, beside.factor, sizeof beside.factor[0]);
}

/* Columns from `step` on, four at a time. */
INLINE void add_steps(__m512i dots[VECTORS][SIX], const unpacked *w, const carry_quant_panel *x, int piece, int step,
                      const int end) {
    for (; step < end; step++) {
        const __m512i first = _mm512_load_si512(w[0].q[piece][step]);
        const __m512i second = _mm512_load_si512(w[1].q[piece][step]);
        UNROLL
        for (int t = 0; t < SIX; t++) {
            int32_t four;
            memcpy(&four, x->q[piece][t] + 4 * step, sizeof four);
            const __m512i all = _mm512_set1_epi32(four);
            dots[0][t] = _mm512_dpbusd_epi32(dots[0][t], first, all);
            dots[1][t] = _mm512_dpbusd_epi32(dots[1][t], second, all);
        }
    }
}

INLINE void start(__m512i dots[VECTORS][SIX], const int32_t from[SIX]) {
    UNROLL
    for (int t = 0; t < SIX; t++) {
        dots[0][t] = dots[1][t] = _mm512_set1_epi32(from[t]);
    }
}

INLINE void add_scaled(__m512 total[VECTORS][SIX], __m512i dots[VECTORS][SIX], const unpacked *w, int factor,
                       const float scale[SIX]) {
    const __m512 first = _mm512_load_ps(w[0].factor[factor]);
    const __m512 second = _mm512_load_ps(w[1].factor[factor]);
    UNROLL
    for (int t = 0; t < SIX; t++) {
        const __m512 by = _mm512_set1_ps(scale[t]);
        total[0][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[0][t]), _mm512_mul_ps(first, by), total[0][t]);
        total[1][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[1][t]), _mm512_mul_ps(second, by), total[1][t]);
    }
}

INLINE void subtract_minima(__m512 total[VECTORS][SIX], const unpacked *w, int piece, const float sum[SIX]) {
    const __m512 first = _mm512_load_ps(w[0].factor[PIECES + piece]);
    const __m512 second = _mm512_load_ps(w[1].factor[PIECES + piece]);
    UNROLL
    for (int t = 0; t < SIX; t++) {
        const __m512 by = _mm512_set1_ps(sum[t]);
        total[0][t] = _mm512_fnmadd_ps(first, by, total[0][t]);
        total[1][t] = _mm512_fnmadd_ps(second, by, total[1][t]);
    }
}

INLINE void multiply(const carry_quant_many *m, const unpacked *w, const factors kind) {
    for (int64_t panel = 0; panel < m->panels; panel++) {
        const carry_quant_panel *x = m->x + panel;
        float *sums = m->sums + panel * SIX * m->sums_row;
        __m512 total[VECTORS][SIX];
        UNROLL
        for (int t = 0; t < SIX; t++) {
            total[0][t] = _mm512_loadu_ps(sums + t * m->sums_row);
            total[1][t] = _mm512_loadu_ps(sums + t * m->sums_row + LANES);
        }
        for (int p = 0; p < m->pieces; p++) {
            __m512i dots[VECTORS][SIX];
            UNROLL
            for (int i = 0; i < AHEAD_LINES; i++) { /* the next panel, from the second-level cache: 3 to 5 % */
                _mm_prefetch((const char *)(x + 1) + 64 * (AHEAD_LINES * p + i), _MM_HINT_T0);
            }
            if (kind == HALVES) {
                start(dots, x->start[p][0]);
                add_steps(dots, w, x, p, 0, STEPS / 2);
                add_scaled(total, dots, w, 2 * p, x->scale[p]);
                start(dots, x->start[p][1]);
                add_steps(dots, w, x, p, STEPS / 2, STEPS);
                add_scaled(total, dots, w, 2 * p + 1, x->scale[p]);
                continue;
            }
            start(dots, x->start[p][2]);
            add_steps(dots, w, x, p, 0, STEPS);
            add_scaled(total, dots, w, p, x->scale[p]);
            if (kind == MINIMA) {
                subtract_minima(total, w, p, x->sum[p]);
            }
        }
        UNROLL
        for (int t = 0; t < SIX; t++) {
            _mm512_storeu_ps(sums + t * m->sums_row, total[0][t]);
            _mm512_storeu_ps(sums + t * m->sums_row + LANES, total[1][t]);
        }
    }
}

INLINE void run(const carry_quant_many *m, size_t chunk_bytes, gather_function gather, const void *user,
                const factors kind) {
    unpacked w[VECTORS];
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        unpack(&w[i], m, LANES * i, chunk_bytes, gather, user);
    }
    multiply(m, w, kind);
}

/* user: the layout, which the compiler knows where this is inlined. */
INLINE void gather_simple(gathered *to, int row, const unsigned char *at, int pieces, const void *user) {
    const layout l = *(const layout *)user;
    const int size = l.has_nibbles ? 16 : 32;
    const __m512i more = _mm512_set1_epi8((char)(128 - offset_of(l)));
    for (int p = 0; p < pieces; p += 2) {
        const bool has_second = p + 1 < pieces;
        const unsigned char *first = at + p / l.pieces * l.bytes;
        const unsigned char *second = l.pieces == 1 && has_second ? first + l.bytes : first;
        const unsigned char *from = first + l.integers + p % l.pieces * size;
        __m512i q = integers_at(l, from, l.pieces > 1 ? from + size : second + l.integers);
        if (l.zero < 0) {
            q = _mm512_add_epi8(q, zeros_at(l, first, second));
        }
        _mm512_store_si512(to->q[row] + CARRY_QUANT_BLOCK * p, _mm512_add_epi8(q, more));
        to->factor[row][p] = l.has_half_scale ? carry_block_f16(first) : carry_block_f32(first);
        to->factor[row][p + 1] = l.has_half_scale ? carry_block_f16(second) : carry_block_f32(second);
    }
}

INLINE void many_simple(const carry_quant_many *m, const layout *l) {
    run(m, (size_t)(PIECES / l->pieces * l->bytes), gather_simple, l, SCALES);
}

static void many_q8_0(const carry_quant_many *m) {
    many_simple(m, &layout_q8_0);
}

static void many_q4_0(const carry_quant_many *m) {
    many_simple(m, &layout_q4_0);
}

static void many_int8(const carry_quant_many *m) {
    many_simple(m, &layout_int8);
}

static void many_int4_g32(const carry_quant_many *m) {
    many_simple(m, &layout_int4_g32);
}

static void many_int4_g64(const carry_quant_many *m) {
    many_simple(m, &layout_int4_g64);
}

static void many_int4_g128(const carry_quant_many *m) {
    many_simple(m, &layout_int4_g128);
}

INLINE void gather_k(gathered *to, int row, const unsigned char *at, const bool has_fifth_bit) {
    UNROLL
    for (int j = 0; j < QUARTERS; j++) {
        const __m512i q = pair_of_k(at, j, has_fifth_bit);
        _mm512_store_si512(to->q[row] + 64 * j, _mm512_xor_si512(q, _mm512_set1_epi8((char)128)));
    }
    _mm512_store_ps(to->factor[row], factors_of(at));
}

INLINE void gather_q4_k(gathered *to, int row, const unsigned char *at, int pieces, const void *user) {
    (void)pieces;
    (void)user;
    gather_k(to, row, at, false);
}

INLINE void gather_q5_k(gathered *to, int row, const unsigned char *at, int pieces, const void *user) {
    (void)pieces;
    (void)user;
    gather_k(to, row, at, true);
}

INLINE void gather_q6_k(gathered *to, int row, const unsigned char *at, int pieces, const void *user) {
    const __m128i scales = _mm_loadu_si128((const __m128i *)(const void *)(at + 192));
    (void)pieces;
    (void)user;
    UNROLL
    for (int j = 0; j < QUARTERS; j++) {
        _mm512_store_si512(to->q[row] + 64 * j, _mm512_add_epi8(quarter_of_q6_k(at, j), _mm512_set1_epi8(96)));
    }
    _mm512_store_ps(to->factor[row],
                    _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)), half_at(at + 208)));
}

static void many_q4_k(const carry_quant_many *m) {
    run(m, 144, gather_q4_k, NULL, MINIMA);
}

static void many_q5_k(const carry_quant_many *m) {
    run(m, 176, gather_q5_k, NULL, MINIMA);
}

static void many_q6_k(const carry_quant_many *m) {
    run(m, 210, gather_q6_k, NULL, HALVES);
}

carry_quant_many_function carry_quant_avx512_many(const carry_quant_format *format) {
    static const struct {
        const carry_quant_format *format;
        carry_quant_many_function function;
    } entries[] = {{&carry_quant_int8, many_int8},         {&carry_quant_q8_0, many_q8_0},
                   {&carry_quant_q4_0, many_q4_0},         {&carry_quant_int4_g32, many_int4_g32},
                   {&carry_quant_int4_g64, many_int4_g64}, {&carry_quant_int4_g128, many_int4_g128},
                   {&carry_quant_q4_k, many_q4_k},         {&carry_quant_q5_k, many_q5_k},
                   {&carry_quant_q6_k, many_q6_k}};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (entries[i].format == format) {
            return entries[i].function;
        }
    }
    return NULL;
}

/* -128 times the sums of 16 integers each, of 64 integers. */
INLINE void starts_of(int32_t to[4], const int8_t *q) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i sums = _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(1), bytes_at(q));
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
    const __m512i starts = _mm512_sub_epi32(zero, _mm512_slli_epi32(sums, 7));
    const __m512i every_fourth = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_castsi512_si128(_mm512_permutexvar_epi32(every_fourth, starts)));
}

void carry_quant_avx512_pack(carry_quant_panel *to, int token, const float *x, int64_t count) {
    int8_t q[CARRY_QUANT_CHUNK];
    float scale[PIECES];
    float sum[PIECES];
    const carry_quant_x rounded = {.columns = CARRY_QUANT_CHUNK, .q = q, .scale = scale, .sum = sum};
    carry_quant_kernels_avx512.round(&rounded, 0, x, count);
    for (int p = 0; p < PIECES; p += 2) {
        int32_t starts[4];
        starts_of(starts, q + CARRY_QUANT_BLOCK * p);
        for (int i = 0; i < 2; i++) {
            memcpy(to->q[p + i][token], q + CARRY_QUANT_BLOCK * (p + i), CARRY_QUANT_BLOCK);
            to->start[p + i][0][token] = starts[2 * i];
            to->start[p + i][1][token] = starts[2 * i + 1];
            to->start[p + i][2][token] = starts[2 * i] + starts[2 * i + 1];
            to->scale[p + i][token] = scale[p + i];
            to->sum[p + i][token] = sum[p + i];
        }
    }
}

#endif
