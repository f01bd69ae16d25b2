/* Convolutions of pictures against a plain one in float64, over every form, odd sizes, and with every optional argument
   left out. */
#include "support.h"

#include <math.h>
#include <stdbool.h>

#include "core/tensor.h"
#include "ops/conv2d.h"

enum { CTXS = 4 };
static carry_ctx *ctxs[CTXS]; /* 1, 2, 3 threads, and the plain kernels */
static void *kept[64];
static int kept_count;
static uint64_t streams;

static int open_contexts(void **state) {
    (void)state;
    for (int i = 0; i < CTXS; i++) {
        ctxs[i] = support_ctx(i == 3 ? 2 : i + 1, i == 3 ? "plain" : NULL, NULL);
    }
    return 0;
}

static int close_contexts(void **state) {
    (void)state;
    for (int i = 0; i < CTXS; i++) {
        carry_ctx_free(ctxs[i]);
    }
    return 0;
}

static int free_kept(void **state) {
    (void)state;
    while (kept_count > 0) {
        free(kept[--kept_count]);
    }
    return 0;
}

static float *numbers(int64_t count) {
    float *made = malloc((size_t)count * sizeof *made);
    assert_non_null(made);
    assert_in_range(kept_count, 0, 63);
    kept[kept_count++] = made;
    memset(made, 255, (size_t)count * sizeof *made);
    return made;
}

static carry_tensor random_numbers(int64_t count) {
    carry_tensor t = carry_view_1d(numbers(count), CARRY_F32, count);
    assert_ok(ctxs[0], carry_random_uniform(ctxs[0], t, 31, streams++, -1.0f, 1.0f));
    return t;
}

/* Random pixels, or NaN, inside a frame of zeros. */
static carry_tensor picture(int64_t height, int64_t width, int64_t channels, bool poisoned) {
    carry_tensor t = random_numbers((height + 2) * (width + 2) * channels);
    float *data = t.data;
    t = carry_view_3d(data, CARRY_F32, height + 2, width + 2, channels);
    for (int64_t y = 0; y < height + 2; y++) {
        for (int64_t x = 0; x < width + 2; x++) {
            bool frame = y == 0 || x == 0 || y == height + 1 || x == width + 1;
            for (int64_t c = 0; (frame || poisoned) && c < channels; c++) {
                data[(y * (width + 2) + x) * channels + c] = frame ? 0.0f : NAN;
            }
        }
    }
    return t;
}

static SUPPORT_UNWATCHED double at(const carry_tensor *t, int64_t y, int64_t x, int64_t c) {
    return ((const float *)t->data)[(y * t->shape[1] + x) * t->shape[2] + c];
}

/* Pixel (y, x), counted without the frame, of the picture that the 3 x 3 window runs over. */
static SUPPORT_UNWATCHED double seen(const carry_conv2d_args *a, int64_t y, int64_t x, int64_t c) {
    int64_t first = a->x.shape[2];
    int which = c < first ? 0 : a->in == 3 * first && c >= 2 * first ? 2 : 1;
    const carry_tensor *from = which == 0 ? &a->x : which == 1 ? &a->past : &a->older;
    int64_t factor = a->form == CARRY_CONV2D_DOUBLE ? 2 : 1;
    int64_t channel = c - which * first;
    if (from->data == NULL || y < 0 || x < 0 || y >= factor * (a->x.shape[0] - 2) ||
        x >= factor * (a->x.shape[1] - 2)) {
        return 0.0;
    }
    return at(from, y / factor + 1, x / factor + 1, channel);
}

static SUPPORT_UNWATCHED double expected(const carry_conv2d_args *a, const float *w, int64_t y, int64_t x, int64_t c) {
    int64_t side = a->form == CARRY_CONV2D_POINT ? 1 : 3;
    int64_t step = a->form == CARRY_CONV2D_HALF || a->form == CARRY_CONV2D_AHEAD ? 2 : 1;
    int64_t before = a->form == CARRY_CONV2D_AHEAD ? 0 : side / 2; /* pixels of the window before its centre */
    double sum = a->bias.data != NULL ? ((const float *)a->bias.data)[c] : 0.0;
    sum += a->add.data != NULL ? at(&a->add, y + 1, x + 1, c) : 0.0;
    for (int64_t i = 0; i < a->in; i++) {
        for (int64_t k = 0; k < side * side; k++) {
            sum += w[(c * a->in + i) * side * side + k] *
                   seen(a, y * step + k / side - before, x * step + k % side - before, i);
        }
    }
    return a->relu && sum < 0.0 ? 0.0 : sum;
}

typedef struct shape {
    int64_t height, width, x, past, out;
} shape;

static int64_t side_of(carry_conv2d_form form, int64_t side) {
    return form == CARRY_CONV2D_HALF     ? (side + 1) / 2
           : form == CARRY_CONV2D_AHEAD  ? side / 2
           : form == CARRY_CONV2D_DOUBLE ? 2 * side
                                         : side;
}

/* `with` has a bit for each optional argument: past, bias (and older, of three frames), add, relu. */
static void check(carry_conv2d_form form, const shape *s, int with) {
    int64_t side = form == CARRY_CONV2D_POINT ? 1 : 3;
    int64_t in = s->x + s->past;
    int64_t high = side_of(form, s->height);
    int64_t wide = side_of(form, s->width);
    carry_tensor w = random_numbers(s->out * in * side * side);
    carry_tensor file = carry_view_4d(w.data, CARRY_F32, s->out, in, side, side);
    int64_t packed = carry_conv2d_packed(form, s->out, in);
    carry_conv2d_args a = {.x = picture(s->height, s->width, s->x, false), .form = form, .in = in, .relu = with & 8};
    bool three = s->past == 2 * s->x; /* frames */
    if ((with & 1) && s->past > 0) {
        a.past = picture(s->height, s->width, three ? s->x : s->past, false);
        a.older = three && (with & 2) ? picture(s->height, s->width, s->x, false) : (carry_tensor){0};
    }
    a.bias = with & 2 ? random_numbers(s->out) : (carry_tensor){0};
    a.add = with & 4 ? picture(high, wide, s->out, false) : (carry_tensor){0};
    float *first = NULL;
    for (int i = 0; i < CTXS; i++) {
        a.y = picture(high, wide, s->out, true);
        a.w = carry_view_1d(numbers(packed), CARRY_F32, packed);
        assert_ok(ctxs[i], carry_conv2d_pack(ctxs[i], a.w, file, form, s->x));
        assert_ok(ctxs[i], carry_conv2d(ctxs[i], &a));
        size_t bytes = (size_t)((high + 2) * (wide + 2) * s->out) * sizeof(float);
        first = i == 0 ? a.y.data : first;
        if (i == 1 || i == 2) {
            assert_memory_equal(first, a.y.data, bytes);
            continue;
        }
        /* Terms are below 1 (those of a doubled picture below 4, and there are fewer). Sums of n terms are off by at
           most n n/2 2^-24, and in practice by the square root of that count: n 2^-24 is generous, and a wrong pixel is
           off by 0.1. */
        double bound = (double)(in * side * side + 2) * 0x1p-24 * 4.0;
        for (int64_t y = 0; y < high + 2; y++) {
            for (int64_t x = 0; x < wide + 2; x++) {
                bool frame = y == 0 || x == 0 || y == high + 1 || x == wide + 1;
                for (int64_t c = 0; c < s->out; c++) {
                    double want = frame ? 0.0 : expected(&a, w.data, y - 1, x - 1, c);
                    if (!(fabs(carry_tensor_at(&a.y, (y * (wide + 2) + x) * s->out + c) - want) <= bound)) {
                        fail_msg("form %d, %lldx%lld, %lld+%lld to %lld channels, with %d: y[%lld, %lld, %lld] is %.7g "
                                 "and not %.7g",
                                 (int)form, (long long)s->height, (long long)s->width, (long long)s->x,
                                 (long long)s->past, (long long)s->out, with, (long long)y, (long long)x, (long long)c,
                                 at(&a.y, y, x, c), want);
                    }
                }
            }
        }
    }
    (void)free_kept(NULL);
}

static const shape shapes[] = {{1, 1, 1, 0, 1},  {1, 1, 3, 2, 5},    {2, 3, 4, 4, 16},  {5, 7, 3, 0, 17},
                               {6, 8, 16, 0, 3}, {7, 5, 17, 17, 33}, {13, 4, 5, 3, 15}, {3, 31, 8, 8, 24},
                               {2, 2, 1, 2, 3},  {9, 6, 8, 16, 12}};

static void test_every_form_matches_the_reference_for_every_size(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int form = CARRY_CONV2D_SAME; form <= CARRY_CONV2D_AHEAD; form++) {
            if (form == CARRY_CONV2D_AHEAD && shapes[i].height < 2) {
                continue;
            }
            for (int with = 0; with < 16; with += i < 4 ? support_cases(1, 3) : 5) {
                check((carry_conv2d_form)form, &shapes[i], with);
            }
        }
    }
}

/* Rounds tensor t to numbers of bf16, still in f32, and returns a copy in bf16. */
static carry_tensor halved(carry_tensor t) {
    const int64_t n = t.data != NULL ? carry_tensor_count(&t) : 0;
    carry_tensor to = carry_view((uint16_t *)(void *)numbers(n / 2 + 1), CARRY_BF16, t.rank, t.shape);
    for (int64_t i = 0; i < n; i++) {
        ((uint16_t *)to.data)[i] = carry_bf16_from_f32(((float *)t.data)[i]);
        ((float *)t.data)[i] = carry_f32_from_bf16(((uint16_t *)to.data)[i]);
    }
    return n > 0 ? to : (carry_tensor){0};
}

static void test_bf16_is_what_f32_gives_rounded(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    for (int form = CARRY_CONV2D_SAME; form <= CARRY_CONV2D_AHEAD; form++, (void)free_kept(NULL)) {
        const int64_t side = form == CARRY_CONV2D_POINT ? 1 : 3;
        const int64_t high = side_of((carry_conv2d_form)form, 5), wide = side_of((carry_conv2d_form)form, 6);
        const int64_t packed = carry_conv2d_packed((carry_conv2d_form)form, 7, 12);
        carry_conv2d_args a = {.x = picture(5, 6, 4, false),
                               .past = picture(5, 6, 4, false),
                               .older = picture(5, 6, 4, false),
                               .add = picture(high, wide, 7, false),
                               .bias = random_numbers(7),
                               .y = picture(high, wide, 7, true),
                               .w = random_numbers(packed),
                               .form = (carry_conv2d_form)form,
                               .in = 12,
                               .relu = form == CARRY_CONV2D_HALF};
        carry_conv2d_args b = a;
        carry_tensor file = carry_view_4d(random_numbers(7 * 12 * side * side).data, CARRY_F32, 7, 12, side, side);
        (void)halved(file);
        b.x = halved(a.x);
        b.past = halved(a.past);
        b.older = halved(a.older);
        b.add = halved(a.add);
        b.y = halved(a.y);
        b.w = halved(a.w);
        assert_ok(ctx, carry_conv2d_pack(ctx, a.w, file, a.form, 4));
        assert_ok(ctx, carry_conv2d_pack(ctx, b.w, file, b.form, 4));
        assert_ok(ctx, carry_conv2d(ctx, &a));
        assert_ok(ctx, carry_conv2d(ctx, &b));
        for (int64_t i = 0; i < (high + 2) * (wide + 2) * 7; i++) {
            /* Half a unit of the result; for a doubled picture 48 weights below 4 are rounded too. */
            const double bound = form == CARRY_CONV2D_DOUBLE ? 0.1 : 1e-5;
            const double want = ((const float *)a.y.data)[i];
            const double have = (double)carry_f32_from_bf16(((const uint16_t *)b.y.data)[i]);
            assert_true(fabs(have - want) <= fabs(want) * 0x1p-8 + bound);
        }
    }
}

/* A picture whose rows are a quarter of a strip each: strips end inside the picture. */
static void test_strips_meet(void **state) {
    (void)state;
    check(CARRY_CONV2D_SAME, &(shape){9, 60, 70, 70, 20}, 15);
    check(CARRY_CONV2D_DOUBLE, &(shape){5, 37, 130, 0, 36}, 10);
    check(CARRY_CONV2D_HALF, &(shape){19, 61, 66, 0, 40}, 0);
}

/* Sums over time: `add` may be the output itself. */
static void test_a_picture_is_added_to(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    carry_tensor x = picture(4, 5, 6, false);
    carry_tensor w = random_numbers(7 * 6);
    carry_tensor packed = random_numbers(7 * 6);
    carry_tensor y = picture(4, 5, 7, true);
    carry_tensor none = {0};
    assert_ok(ctx, carry_conv2d_pack(ctx, packed, carry_view_4d(w.data, CARRY_F32, 7, 6, 1, 1), CARRY_CONV2D_POINT, 6));
    carry_conv2d_args a = {.y = y, .x = x, .w = packed, .form = CARRY_CONV2D_POINT, .in = 6, .add = none};
    assert_ok(ctx, carry_conv2d(ctx, &a));
    a.add = y;
    assert_ok(ctx, carry_conv2d(ctx, &a));
    a.add = none;
    for (int64_t i = 0; i < 4 * 5 * 7; i++) {
        double once = expected(&a, w.data, i / 7 / 5, i / 7 % 5, i % 7);
        assert_true(fabs(at(&y, i / 7 / 5 + 1, i / 7 % 5 + 1, i % 7) - 2.0 * once) < 1e-5);
    }
}

static void test_what_does_not_fit_is_refused_by_name(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    carry_conv2d_args good = {.y = picture(4, 6, 5, true),
                              .x = picture(4, 6, 3, false),
                              .past = picture(4, 6, 2, false),
                              .w = random_numbers(5 * 5 * 9),
                              .bias = random_numbers(5),
                              .add = picture(4, 6, 5, false),
                              .in = 5};
    assert_ok(ctx, carry_conv2d(ctx, &good));
    carry_conv2d_args a = good;
    a.y = picture(4, 5, 5, true);
    assert_refused(ctx, CARRY_ESHAPE, "y", carry_conv2d(ctx, &a));
    a = good;
    a.form = CARRY_CONV2D_HALF;
    assert_refused(ctx, CARRY_ESHAPE, "y", carry_conv2d(ctx, &a));
    a = good;
    a.past = picture(4, 6, 3, false);
    assert_refused(ctx, CARRY_ESHAPE, "past", carry_conv2d(ctx, &a));
    a = good;
    a.past = (carry_tensor){0};
    a.in = 2;
    a.w = random_numbers(5 * 2 * 9);
    assert_refused(ctx, CARRY_ESHAPE, "3 channels", carry_conv2d(ctx, &a));
    a = good;
    a.bias = random_numbers(4);
    assert_refused(ctx, CARRY_ESHAPE, "bias", carry_conv2d(ctx, &a));
    a = good;
    a.add = picture(6, 4, 5, false);
    assert_refused(ctx, CARRY_ESHAPE, "add", carry_conv2d(ctx, &a));
    a = good;
    a.w = random_numbers(5 * 5 * 9 - 1);
    assert_refused(ctx, CARRY_ESHAPE, "w", carry_conv2d(ctx, &a));
    a = good;
    a.x.dtype = CARRY_F16;
    assert_refused(ctx, CARRY_EDTYPE, "x", carry_conv2d(ctx, &a));
    a = good;
    a.y.device = 99;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "conv2d: device 99", carry_conv2d(ctx, &a));
    a = good;
    a.x = carry_view_3d(good.x.data, CARRY_F32, 2, 8, 3);
    assert_refused(ctx, CARRY_ESHAPE, "inside the frame", carry_conv2d(ctx, &a));
    assert_refused(
        ctx, CARRY_ESHAPE, "6 channels",
        carry_conv2d_pack(ctx, good.w, carry_view_4d(good.w.data, CARRY_F32, 5, 5, 3, 3), CARRY_CONV2D_SAME, 6));
    assert_refused(
        ctx, CARRY_ESHAPE, "from",
        carry_conv2d_pack(ctx, good.w, carry_view_4d(good.w.data, CARRY_F32, 5, 5, 3, 3), CARRY_CONV2D_POINT, 5));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_every_form_matches_the_reference_for_every_size, free_kept),
        cmocka_unit_test_teardown(test_bf16_is_what_f32_gives_rounded, free_kept),
        cmocka_unit_test_teardown(test_strips_meet, free_kept),
        cmocka_unit_test_teardown(test_a_picture_is_added_to, free_kept),
        cmocka_unit_test_teardown(test_what_does_not_fit_is_refused_by_name, free_kept),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
