/* Attention of the decoding kernels (engine/cuda/chain_attend.cuh) against plain loops in float64, over widths, numbers
   of heads, lengths, and both types of caches. An emulated GPU runs these kernels too. */
/* labels: gpu */
#include "support.h"

#include <math.h>

#include "carry/device.h"
#include "core/rng.h"
#include "engine/chain_ops.h"
#include "engine/runner.h"
#include "ops/f8.h"

extern const carry_chain_device carry_chain_cuda __attribute__((weak)); /* absent without CUDA */

enum { DEVICE = 1, MOST = 48, ROTARY = 64, PAGE = CARRY_PAGE_TOKENS, SLACK = 2 };

typedef struct problem {
    int width, group, key_heads, sequences;
    bool is_f8, has_gate, is_wide; /* is_wide: scales of cached values differ by up to 2^60, queries are large */
    int64_t tokens[MOST];          /* of each sequence, with the new one */
} problem;

typedef struct fixture {
    problem p;
    carry_ctx *ctx;
    const carry_chain_device *device;
    int ordinal, pages, stride;
    uint64_t seed, at;
    int32_t *table; /* the pages of all sequences, in random order */
    int32_t offset[MOST];
    uint16_t *in; /* [sequences, stride], bf16 */
    unsigned char *kv[2];
    uint8_t *scales[2];
    float rates[ROTARY / 2], norm[2][256];
    size_t heads; /* key heads of all rows of the caches */
    uint16_t *y;
} fixture;

static double uniform(fixture *f) {
    const carry_words words = carry_philox(f->seed, 0, f->at++);
    return (double)words.word[0] * 0x1p-31 - 1.0;
}

static size_t head_bytes(const problem *p) {
    return (size_t)p->width * (p->is_f8 ? 1 : 2);
}

/* The head of the caches that has a token. */
static size_t head_of(const fixture *f, int sequence, int64_t token, int head) {
    const size_t row = (size_t)f->table[f->offset[sequence] + token / PAGE] * PAGE + (size_t)(token % PAGE);
    return row * (size_t)f->p.key_heads + (size_t)head;
}

static double cached(const fixture *f, int which, size_t head, int column) {
    const size_t at = head * (size_t)f->p.width + (size_t)column;
    if (f->p.is_f8) {
        return (double)carry_f8_value(f->kv[which][at]) * (double)carry_f8_scale(f->scales[which][head]);
    }
    return (double)carry_f32_from_bf16(((const uint16_t *)f->kv[which])[at]);
}

static void put_cached(fixture *f, int which, size_t head, int column, float x) {
    const size_t at = head * (size_t)f->p.width + (size_t)column;
    if (f->p.is_f8) {
        f->kv[which][at] = carry_f8_round(x);
    } else {
        ((uint16_t *)f->kv[which])[at] = carry_bf16_from_f32(x);
    }
}

/* Caches are NaN but for the tokens before the new ones. */
static void fill_caches(fixture *f) {
    const problem *p = &f->p;
    for (int which = 0; which < 2; which++) {
        for (size_t i = 0; i < f->heads * head_bytes(p) / (p->is_f8 ? 1 : 2); i++) {
            if (p->is_f8) {
                f->kv[which][i] = CARRY_F8_NAN;
            } else {
                ((uint16_t *)f->kv[which])[i] = 0x7fc0;
            }
        }
        memset(f->scales[which], 247, f->heads);
        for (int s = 0; s < p->sequences; s++) {
            for (int64_t t = 0; t + 1 < p->tokens[s]; t++) {
                for (int h = 0; h < p->key_heads; h++) {
                    const size_t head = head_of(f, s, t, h);
                    const double spread = p->is_wide && which == 1 ? 30.0 : 1.0;
                    f->scales[which][head] = (uint8_t)lround(119.0 + spread * uniform(f));
                    for (int c = 0; c < p->width; c++) {
                        put_cached(f, which, head, c, (float)((p->is_f8 ? 200.0 : 1.0) * uniform(f)));
                    }
                }
            }
        }
    }
}

static void open_problem(fixture *f, const problem *p, uint64_t seed) {
    carry_ctx *ctx = f->ctx;
    const carry_chain_device *device = f->device;
    const int ordinal = f->ordinal;
    memset(f, 0, sizeof *f);
    *f = (fixture){.p = *p, .ctx = ctx, .device = device, .ordinal = ordinal, .seed = seed};
    for (int s = 0; s < p->sequences; s++) {
        f->offset[s] = f->pages;
        f->pages += (int)((p->tokens[s] + PAGE - 1) / PAGE);
    }
    f->table = malloc((size_t)f->pages * sizeof *f->table);
    assert_non_null(f->table);
    for (int i = 0; i < f->pages; i++) {
        f->table[i] = i + SLACK;
    }
    for (int i = f->pages - 1; i > 0; i--) {
        const int j = (int)((uniform(f) + 1.0) * 0.5 * (i + 1));
        const int32_t own = f->table[i];
        f->table[i] = f->table[j];
        f->table[j] = own;
    }
    const int heads = p->group * p->key_heads;
    f->stride = (2 * heads + 2 * p->key_heads) * p->width + 8;
    f->in = malloc((size_t)(p->sequences * f->stride) * sizeof *f->in);
    f->y = malloc((size_t)(p->sequences * heads * p->width) * sizeof *f->y);
    f->heads = (size_t)((f->pages + SLACK) * PAGE * p->key_heads);
    assert_true(f->in != NULL && f->y != NULL);
    for (int which = 0; which < 2; which++) {
        f->kv[which] = malloc(f->heads * head_bytes(p));
        f->scales[which] = malloc(f->heads);
        assert_true(f->kv[which] != NULL && f->scales[which] != NULL);
    }
    for (int i = 0; i < p->sequences * f->stride; i++) {
        f->in[i] = carry_bf16_from_f32((float)(2.0 * uniform(f)));
    }
    for (int i = 0; i < ROTARY / 2; i++) {
        f->rates[i] = (float)pow(10000.0, -2.0 * i / ROTARY);
    }
    for (int i = 0; i < 256; i++) {
        f->norm[0][i] = (float)(1.0 + 0.2 * uniform(f));
        f->norm[1][i] = (float)(1.0 + 0.2 * uniform(f));
    }
    if (p->is_wide) { /* norms of q make scores of about 30 */
        for (int i = 0; i < 256; i++) {
            f->norm[0][i] *= 8.0f;
        }
    }
    fill_caches(f);
}

static void close_problem(fixture *f) {
    free(f->table);
    free(f->in);
    free(f->y);
    for (int which = 0; which < 2; which++) {
        free(f->kv[which]);
        free(f->scales[which]);
    }
}

static void *there(fixture *f, const void *from, size_t bytes) {
    void *to;
    assert_int_equal(carry_device_alloc(f->ctx, &to, DEVICE, bytes), CARRY_OK);
    assert_int_equal(carry_device_copy(f->ctx, to, DEVICE, from, 0, bytes, NULL), CARRY_OK);
    assert_int_equal(carry_stream_wait(f->ctx, DEVICE, NULL), CARRY_OK);
    return to;
}

static void back(fixture *f, void *to, void *from, size_t bytes) {
    assert_int_equal(carry_device_copy(f->ctx, to, 0, from, DEVICE, bytes, NULL), CARRY_OK);
    assert_int_equal(carry_stream_wait(f->ctx, DEVICE, NULL), CARRY_OK);
    carry_device_free(f->ctx, DEVICE, from);
}

static const float eps = 1e-6f;

/* Runs both kernels for `count` sequences from `first` on; f has their results and caches then. */
static void run_problem(fixture *f, int first, int count) {
    const problem *p = &f->p;
    const int heads = p->group * p->key_heads;
    const size_t part = (size_t)(count * heads * CARRY_CHAIN_SPLITS * (p->width + 2)) * sizeof(float);
    const size_t y = (size_t)(count * heads * p->width) * sizeof *f->y;
    const size_t kv = f->heads * head_bytes(p);
    int64_t lengths[MOST];
    for (int s = 0; s < count; s++) {
        lengths[s] = p->tokens[first + s] - 1;
    }
    void *part_there;
    void *y_there;
    assert_int_equal(carry_device_alloc(f->ctx, &part_there, DEVICE, part), CARRY_OK);
    assert_int_equal(carry_device_alloc(f->ctx, &y_there, DEVICE, y), CARRY_OK);
    assert_int_equal(carry_device_fill(f->ctx, part_there, DEVICE, 0xff, part, NULL), CARRY_OK);
    assert_int_equal(carry_device_fill(f->ctx, y_there, DEVICE, 0xff, y, NULL), CARRY_OK);
    const carry_chain_lists lists = {
        .offsets = there(f, f->offset + first, (size_t)count * sizeof *f->offset),
        .pages = there(f, f->table, (size_t)f->pages * sizeof *f->table),
        .lengths = there(f, lengths, (size_t)count * sizeof *lengths),
        .sequences = count,
    };
    carry_chain_op op = {.kind = CARRY_CHAIN_ATTEND};
    carry_chain_attend *a = &op.as.attend;
    *a = (carry_chain_attend){
        .in = there(f, f->in + first * f->stride, (size_t)(count * f->stride) * sizeof *f->in),
        .in_stride = f->stride,
        .q = 0,
        .q_head = 2 * p->width, /* a gate after each head */
        .k = 2 * heads * p->width,
        .v = (2 * heads + p->key_heads) * p->width,
        .gate = p->has_gate ? p->width : -1,
        .heads = heads,
        .key_heads = p->key_heads,
        .width = p->width,
        .rotary = ROTARY,
        .rates = there(f, f->rates, sizeof f->rates),
        .q_norm = there(f, f->norm[0], sizeof f->norm[0]),
        .k_norm = there(f, f->norm[1], sizeof f->norm[1]),
        .eps = eps,
        .scale = 1.0f / sqrtf((float)p->width),
        .keys = there(f, f->kv[0], kv),
        .values = there(f, f->kv[1], kv),
        .key_scales = p->is_f8 ? there(f, f->scales[0], f->heads) : NULL,
        .value_scales = p->is_f8 ? there(f, f->scales[1], f->heads) : NULL,
        .part = part_there,
        .y = y_there,
    };
    assert_int_equal(f->device->launch(f->ctx, f->ordinal, NULL, &op, &lists, false), CARRY_OK);
    op.kind = CARRY_CHAIN_COMBINE;
    assert_int_equal(f->device->launch(f->ctx, f->ordinal, NULL, &op, &lists, true), CARRY_OK);
    back(f, f->y + first * heads * p->width, y_there, y);
    back(f, f->kv[0], a->keys, kv);
    back(f, f->kv[1], a->values, kv);
    if (p->is_f8) {
        back(f, f->scales[0], a->key_scales, f->heads);
        back(f, f->scales[1], a->value_scales, f->heads);
    }
    const void *const rest[] = {part_there, lists.offsets, lists.pages, lists.lengths,
                                a->in,      a->rates,      a->q_norm,   a->k_norm};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        carry_device_free(f->ctx, DEVICE, (void *)(uintptr_t)rest[i]);
    }
}

/* A head after its norm and rotary positions. */
static void turned(const fixture *f, double *to, const uint16_t *from, const float *norm, int64_t position) {
    const int half = ROTARY / 2;
    double squares = 0.0;
    double x[256];
    for (int i = 0; i < f->p.width; i++) {
        x[i] = (double)carry_f32_from_bf16(from[i]);
        squares += x[i] * x[i];
    }
    for (int i = 0; i < f->p.width; i++) {
        x[i] *= (double)norm[i] / sqrt(squares / f->p.width + (double)eps);
    }
    for (int i = 0; i < f->p.width; i++) {
        const double angle = (double)((float)position * f->rates[i % half]);
        const double sine = i < half ? -sin(angle) : sin(angle);
        to[i] = i < ROTARY ? x[i] * cos(angle) + x[i < half ? i + half : i - half] * sine : x[i];
    }
}

/* The largest error of one head: relative RMS. */
static double head_error(const fixture *f, int s, int h) {
    const problem *p = &f->p;
    const int64_t tokens = p->tokens[s];
    const int width = p->width;
    const uint16_t *in = f->in + s * f->stride + 2 * h * width;
    const uint16_t *y = f->y + (s * p->group * p->key_heads + h) * width;
    double q[256];
    double sum[256] = {0};
    double most = -INFINITY;
    double total = 0.0;
    double apart = 0.0;
    double size = 0.0;
    double *score = malloc((size_t)tokens * sizeof *score);
    assert_non_null(score);
    turned(f, q, in, f->norm[0], tokens - 1);
    for (int64_t t = 0; t < tokens; t++) {
        const size_t head = head_of(f, s, t, h / p->group);
        score[t] = 0.0;
        for (int c = 0; c < width; c++) {
            score[t] += q[c] * cached(f, 0, head, c) / sqrt((double)width);
        }
        most = fmax(most, score[t]);
    }
    for (int64_t t = 0; t < tokens; t++) {
        const size_t head = head_of(f, s, t, h / p->group);
        const double weight = exp(score[t] - most);
        total += weight;
        for (int c = 0; c < width; c++) {
            sum[c] += weight * cached(f, 1, head, c);
        }
    }
    for (int c = 0; c < width; c++) {
        const double gate = p->has_gate ? 1.0 / (1.0 + exp(-(double)carry_f32_from_bf16(in[width + c]))) : 1.0;
        const double expected = sum[c] / total * gate;
        const double got = (double)carry_f32_from_bf16(y[c]);
        apart += (got - expected) * (got - expected);
        size += expected * expected;
    }
    free(score);
    return sqrt(apart / size);
}

/* The new tokens' keys and values are in the caches, and no other row has changed. */
static void caches_are_right(const fixture *f, const fixture *before) {
    const problem *p = &f->p;
    for (int which = 0; which < 2; which++) {
        for (int s = 0; s < p->sequences; s++) {
            for (int h = 0; h < p->key_heads; h++) {
                const int column = (2 * p->group * p->key_heads + which * p->key_heads + h) * p->width;
                const uint16_t *from = f->in + s * f->stride + column;
                const size_t head = head_of(f, s, p->tokens[s] - 1, h);
                double x[256];
                turned(f, x, from, f->norm[1], p->tokens[s] - 1);
                for (int c = 0; c < p->width; c++) {
                    const double expected = which == 0 ? x[c] : (double)carry_f32_from_bf16(from[c]);
                    const double step = p->is_f8 ? 0.0625 : 0.00390625;
                    assert_true(fabs(cached(f, which, head, c) - expected) <= step * fabs(expected) + 4e-3);
                }
                memcpy(before->kv[which] + head * head_bytes(p), f->kv[which] + head * head_bytes(p), head_bytes(p));
                before->scales[which][head] = f->scales[which][head];
            }
        }
        assert_memory_equal(before->kv[which], f->kv[which], f->heads * head_bytes(p));
        assert_memory_equal(before->scales[which], f->scales[which], f->heads);
    }
}

static double compare(fixture *f, const problem *p, uint64_t seed) {
    static fixture before;
    double most = 0.0;
    before.ctx = f->ctx;
    open_problem(f, p, seed);
    open_problem(&before, p, seed);
    run_problem(f, 0, p->sequences);
    caches_are_right(f, &before);
    for (int s = 0; s < p->sequences; s++) {
        for (int h = 0; h < p->group * p->key_heads; h++) {
            const double far = head_error(f, s, h);
            if (!(far <= 1e-2)) {
                print_message("width %d, group %d, %s, %lld tokens, head %d: %.3g apart\n", p->width, p->group,
                              p->is_f8 ? "fp8" : "bf16", (long long)p->tokens[s], h, far);
            }
            most = far > most || isnan(far) ? far : most;
        }
    }
    close_problem(&before);
    return most;
}

static const problem usual = {.key_heads = 2, .sequences = 11, .tokens = {1, 7, 15, 16, 17, 63, 64, 65, 66, 129, 300}};

/* Queries and weights are rounded to bf16 (f16 with 8-bit caches), results to bf16: with scores of about 1, each of the
   three is an error of about 2^-9. */
static void results_equal_plain_loops(void **state) {
    fixture *f = *state;
    static const int groups[] = {1, 3, 4, 8};
    for (int i = 0; i < 16; i++) {
        problem p = usual;
        p.width = i % 2 == 0 ? 128 : 256;
        p.is_f8 = i / 2 % 2 == 1;
        p.group = groups[i / 4];
        p.has_gate = i % 3 == 0;
        const double most = compare(f, &p, 1 + (uint64_t)i);
        print_message("width %d, group %d, %s: %.2g\n", p.width, p.group, p.is_f8 ? "fp8" : "bf16", most);
        assert_true(most <= 1e-2);
        close_problem(f);
    }
}

/* Many tiles a warp, and more splits than the first part of the sum of splits takes. */
static void long_texts_equal_plain_loops(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 4; i++) {
        const problem p = {.width = i % 2 == 0 ? 128 : 256,
                           .is_f8 = i / 2 == 1,
                           .group = 4,
                           .key_heads = 1,
                           .sequences = 4,
                           .tokens = {1000, 4097, 5, 17001}};
        const double most = compare(f, &p, 100 + (uint64_t)i);
        print_message("width %d, %s: %.2g\n", p.width, p.is_f8 ? "fp8" : "bf16", most);
        assert_true(most <= 1e-2);
        close_problem(f);
    }
}

/* More sequences than a warp has lanes. */
static void many_sequences_equal_plain_loops(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        problem p = {.width = 128, .is_f8 = i == 1, .group = 2, .key_heads = 2, .sequences = 45};
        for (int s = 0; s < p.sequences; s++) {
            p.tokens[s] = 1 + s * 37 % 150;
        }
        const double most = compare(f, &p, 150 + (uint64_t)i);
        print_message("%s: %.2g\n", p.is_f8 ? "fp8" : "bf16", most);
        assert_true(most <= 1e-2);
        close_problem(f);
    }
}

/* Scales of values between 2^-38 and 2^22: tokens with a tiny weight may have most of a sum. */
static void scales_may_differ(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        problem p = usual;
        p.width = i == 0 ? 128 : 256;
        p.is_f8 = p.is_wide = true;
        p.group = 4;
        const double most = compare(f, &p, 200 + (uint64_t)i);
        print_message("width %d: %.2g\n", p.width, most);
        assert_true(most <= 2e-2);
        close_problem(f);
    }
}

static void same_bits_alone_and_again(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 4; i++) {
        problem p = usual;
        p.width = i % 2 == 0 ? 128 : 256;
        p.is_f8 = i / 2 == 1;
        p.group = 4;
        open_problem(f, &p, 300 + (uint64_t)i);
        run_problem(f, 0, p.sequences);
        const size_t each = (size_t)(p.group * p.key_heads * p.width);
        uint16_t *first = malloc((size_t)p.sequences * each * sizeof *first);
        assert_non_null(first);
        memcpy(first, f->y, (size_t)p.sequences * each * sizeof *first);
        for (int s = 0; s < p.sequences; s++) {
            run_problem(f, s, 1);
            assert_memory_equal(first + (size_t)s * each, f->y + (size_t)s * each, each * sizeof *first);
        }
        free(first);
        close_problem(f);
    }
}

/* A NaN in a key reaches the query heads of its key head, a NaN in a value one column of these; nothing else. */
static void nan_stays_where_it_is(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 16; i++) {
        problem p = usual;
        p.width = i % 2 == 0 ? 128 : 256;
        p.is_f8 = i / 2 % 2 == 1;
        p.group = 3;
        const int which = i / 4 % 2;
        const bool infinite = i / 8 == 1 && !p.is_f8; /* 8-bit floats have no infinity */
        const int sequence = 9;
        const int column = 37;
        open_problem(f, &p, 400 + (uint64_t)i);
        put_cached(f, which, head_of(f, sequence, 77, 1), column, infinite ? INFINITY : NAN);
        run_problem(f, 0, p.sequences);
        for (int s = 0; s < p.sequences; s++) {
            for (int h = 0; h < p.group * p.key_heads; h++) {
                for (int c = 0; c < p.width; c++) {
                    const float y = carry_f32_from_bf16(f->y[(s * p.group * p.key_heads + h) * p.width + c]);
                    const bool is_hit = s == sequence && h / p.group == 1 && (which == 0 || c == column);
                    /* a score of minus infinity is a weight of zero */
                    assert_true(infinite && which == 0 && is_hit ? true : isfinite(y) != is_hit);
                }
            }
        }
        close_problem(f);
    }
}

static int open_fixture(void **state) {
    static fixture f;
    carry_device_properties about = {CARRY_INIT(carry_device_properties)};
    f.ctx = support_ctx(1, NULL, NULL);
    if (carry_device_count() > DEVICE) {
        f.device = carry_chain_device_of(DEVICE, &f.ordinal);
        assert_int_equal(carry_device_properties_of(f.ctx, &about, DEVICE), CARRY_OK);
        if (f.device == NULL && strstr(about.name, "emulated") != NULL) {
            f.device = &carry_chain_cuda;
        }
    }
    *state = &f;
    return 0;
}

static int close_fixture(void **state) {
    carry_ctx_free(((fixture *)*state)->ctx);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_equal_plain_loops),        cmocka_unit_test(long_texts_equal_plain_loops),
        cmocka_unit_test(many_sequences_equal_plain_loops), cmocka_unit_test(scales_may_differ),
        cmocka_unit_test(same_bits_alone_and_again),        cmocka_unit_test(nan_stays_where_it_is),
    };
    fixture f = {0};
    void *state = &f;
    (void)open_fixture(&state);
    const bool is_there = ((fixture *)state)->device != NULL;
    (void)close_fixture(&state);
    if (!is_there) {
        (void)printf("skipped: no GPU with the decoding kernels\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
