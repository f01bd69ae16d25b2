/* The convolution against float64, split anywhere: a sequence in two parts, token by token, or packed with others
   equals the sequence in one part. */
#include "nn_support.h"

#include "carry/nn.h"
#include "carry/ops.h"
#include "ops/pool.h"

typedef struct problem {
    array x, w, before;
    const double *dy;
    const int64_t *borders;
    int64_t sequences;
    int64_t batch, tokens, channels, width;
    carry_activation activation;
    double *y;
} problem;

/* Row s of x as token t sees it: from its own sequence, from the rows before the tokens, or zero. */
static double seen(const problem *p, int64_t b, int64_t begin, bool first, int64_t s, int64_t c) {
    if (s >= begin) {
        return p->x.v[(b * p->tokens + s) * p->channels + c];
    }
    bool is_before = first && p->before.v != NULL;
    return is_before ? p->before.v[(b * (p->width - 1) + s + p->width - 1) * p->channels + c] : 0.0;
}

static double conv_loss(const void *given) {
    const problem *p = given;
    double loss = 0.0;
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t sequence = 0;
        for (int64_t t = 0; t < p->tokens; t++) {
            while (p->borders != NULL && t >= p->borders[sequence + 1]) {
                sequence++;
            }
            int64_t begin = p->borders != NULL ? p->borders[sequence] : 0;
            for (int64_t c = 0; c < p->channels; c++) {
                double sum = 0.0;
                for (int64_t i = 0; i < p->width; i++) {
                    sum += p->w.v[c * p->width + i] * seen(p, b, begin, sequence == 0, t - (p->width - 1) + i, c);
                }
                int64_t at = (b * p->tokens + t) * p->channels + c;
                p->y[at] = activate64(sum, p->activation);
                loss += p->dy[at] * p->y[at];
            }
        }
    }
    return loss;
}

static carry_tensor cuts(const problem *p) {
    return p->borders != NULL ? carry_view_1d((void *)(uintptr_t)p->borders, CARRY_I64, p->sequences + 1) : absent;
}

static problem some_problem(carry_dtype type, int64_t batch, int64_t tokens, int64_t channels, int64_t width,
                            bool with_before) {
    problem p = {.batch = batch, .tokens = tokens, .channels = channels, .width = width};
    p.x = random_array(type, 3, SHAPE(batch, tokens, channels), -1, 1);
    p.w = random_array(type, 2, SHAPE(channels, width), -1, 1);
    if (with_before) {
        p.before = random_array(CARRY_F32, 3, SHAPE(batch, width - 1, channels), -1, 1);
    }
    p.y = keep(calloc((size_t)p.x.count + 1, sizeof *p.y));
    return p;
}

/* Sums of at most 16 terms below 1, an exponential, and for dw as many terms as there are tokens. */
static void check_conv(problem *p) {
    array dy = random_array(p->x.t.dtype, 3, p->x.t.shape, -1, 1);
    array dw0 = random_array(CARRY_F32, 2, p->w.t.shape, -1, 1);
    const int64_t rows[3] = {p->batch, p->width - 1, p->channels};
    const bool kept_rows = p->width > 1;
    size_t bytes = carry_conv_backward_workspace(p->batch, p->tokens, p->channels, p->width);
    void *workspace = keep(malloc(bytes + 4));
    array first[4];
    p->dy = dy.v;
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array got[4] = {poisoned(dy.t.dtype, 3, dy.t.shape), poisoned(dy.t.dtype, 3, dy.t.shape), copy_of(&dw0),
                        poisoned(CARRY_F32, 3, rows)};
        assert_ok(ctxs[c], carry_conv(ctxs[c], &(carry_conv_args){.y = got[0].t,
                                                                  .x = p->x.t,
                                                                  .w = p->w.t,
                                                                  .before = p->before.t,
                                                                  .cu_seqlens = cuts(p),
                                                                  .activation = p->activation}));
        assert_ok(ctxs[c], carry_conv_backward(ctxs[c],
                                               &(carry_conv_backward_args){.dx = got[1].t,
                                                                           .dw = got[2].t,
                                                                           .dbefore = kept_rows ? got[3].t : absent,
                                                                           .dy = dy.t,
                                                                           .x = p->x.t,
                                                                           .w = p->w.t,
                                                                           .before = p->before.t,
                                                                           .cu_seqlens = cuts(p),
                                                                           .activation = p->activation},
                                               workspace, bytes));
        for (int i = 0; i < 4; i++) {
            first[i] = c == 0 ? got[i] : first[i];
            assert_same("conv", &got[i], &first[i]);
        }
    }
    const double bound = 0x1p-19;
    (void)conv_loss(p);
    assert_near("y", &first[0], p->y, bound);
    for (int64_t i = 0; i < dw0.count; i++) {
        ((float *)first[2].t.data)[i] -= ((float *)dw0.t.data)[i];
    }
    assert_gradient("dx", &first[1], &p->x, p->x.count / 80 + 1, conv_loss, p, bound);
    assert_gradient("dw", &first[2], &p->w, p->w.count / 40 + 1, conv_loss, p,
                    bound + 4.0 * 0x1p-24 * (double)(p->batch * p->tokens));
    if (kept_rows && p->before.v != NULL) {
        assert_gradient("dbefore", &first[3], &p->before, p->before.count / 40 + 1, conv_loss, p, bound);
    }
}

static void test_conv_matches_float64_and_differences(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 1, 1},  {1, 1, 3, 4},   {2, 2, 5, 4},   {1, 7, 257, 4},
                                        {3, 65, 5, 4}, {1, 130, 7, 3}, {2, 40, 3, 16}, {1, 64, 255, 2}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int i = 0; i < 3; i++) {
            for (int form = 0; form < 2; form++) {
                problem p = some_problem(types[i], shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], form == 1);
                p.activation = (carry_activation)(form == 1 ? CARRY_SILU : (int)s % 5);
                p.activation = p.activation == CARRY_RELU ? CARRY_SIGMOID : p.activation; /* a kink has no difference */
                check_conv(&p);
                (void)free_kept(NULL);
            }
        }
    }
}

static void test_conv_sees_nothing_across_cuts(void **state) {
    (void)state;
    static const int64_t borders[][6] = {
        {0, 1, 2, 3, 4, 70}, {0, 0, 0, 5, 5, 70}, {0, 63, 64, 65, 70, 70}, {0, 2, 67, 68, 69, 70}};
    for (size_t s = 0; s < sizeof borders / sizeof *borders; s++) {
        for (int i = 0; i < 3; i++) {
            problem p = some_problem(types[i], 1, 70, 9, 4, i != 1);
            p.borders = borders[s];
            p.sequences = 5;
            p.activation = CARRY_SILU;
            check_conv(&p);
            (void)free_kept(NULL);
        }
    }
}

static void run_part(carry_ctx *ctx, const problem *p, array *y, float *state, int64_t first, int64_t count) {
    size_t size = carry_dtype_size(p->x.t.dtype);
    size_t offset = (size_t)(first * p->channels) * size;
    carry_tensor rows = carry_view_3d(state, CARRY_F32, 1, p->width - 1, p->channels);
    carry_dtype type = p->x.t.dtype;
    assert_ok(ctx, carry_conv(ctx, &(carry_conv_args){
                                       .y = carry_view_3d((char *)y->t.data + offset, type, 1, count, p->channels),
                                       .x = carry_view_3d((char *)p->x.t.data + offset, type, 1, count, p->channels),
                                       .w = p->w.t,
                                       .before = rows,
                                       .after = rows,
                                       .activation = CARRY_SILU}));
}

/* The same sums in the same order give the same bits wherever the sequence is cut, and leave the same rows for the next
   part. */
static void test_conv_in_parts_is_the_whole(void **state) {
    (void)state;
    enum { TOKENS = 9, CHANNELS = 21, WIDTH = 4 };
    for (int i = 0; i < 3; i++) {
        problem p = some_problem(types[i], 1, TOKENS, CHANNELS, WIDTH, true);
        array whole = poisoned(types[i], 3, p.x.t.shape), parts = poisoned(types[i], 3, p.x.t.shape);
        array last = copy_of(&p.before);
        run_part(ctxs[0], &p, &whole, last.t.data, 0, TOKENS);
        for (int64_t cut = 0; cut <= TOKENS; cut++) {
            array rows = copy_of(&p.before);
            run_part(ctxs[0], &p, &parts, rows.t.data, 0, cut);
            run_part(ctxs[0], &p, &parts, rows.t.data, cut, TOKENS - cut);
            assert_same("two parts", &parts, &whole);
            assert_same("after", &rows, &last);
        }
        array rows = copy_of(&p.before);
        for (int64_t t = 0; t < TOKENS; t++) {
            run_part(ctxs[0], &p, &parts, rows.t.data, t, 1);
        }
        assert_same("token by token", &parts, &whole);
        assert_same("after", &rows, &last);
    }
}

/* One token of each of many sequences: the bits of each sequence alone, also where the tail of one of them has numbers
   that are not bf16. */
static void test_steps_are_those_of_each_sequence_alone(void **state) {
    (void)state;
    enum { MOST = 19, CHANNELS = 300, WIDTH = 4, SLOTS = 2 * MOST };
    for (int64_t batch = 1; batch <= MOST; batch += batch < 9 ? 4 : 5) {
        for (int i = 0; i < 3; i++) {
            problem p = some_problem(types[i], batch, 1, CHANNELS, WIDTH, false);
            const array tails = random_array(types[i], 3, SHAPE(SLOTS, WIDTH - 1, CHANNELS), -1, 1);
            array before = poisoned(CARRY_F32, 3, tails.t.shape);
            array y = poisoned(types[i], 2, SHAPE(batch, CHANNELS)), alone = copy_of(&y);
            int32_t slots[MOST], from[MOST];
            assert_ok(ctxs[0], carry_convert(ctxs[0], before.t, tails.t));
            ((float *)before.t.data)[2 * (WIDTH - 1) * CHANNELS + 7] = 0.1f; /* slot 2; not bf16 */
            for (int32_t b = 0; b < batch; b++) {
                from[b] = 2 * b;
                slots[b] = 2 * b + 1;
            }
            array after = copy_of(&before), expected = copy_of(&before);
            const carry_conv_step_map map = {.y = y.t,
                                             .x = carry_view_2d(p.x.t.data, types[i], batch, CHANNELS),
                                             .w = p.w.t,
                                             .tails = after.t,
                                             .activation = CARRY_SILU};
            assert_ok(ctxs[1], carry_conv_step(ctxs[1], &(carry_conv_step_args){
                                                            .map = {map}, .maps = 1, .slots = slots, .from = from}));
            for (int64_t b = 0; b < batch; b++) {
                float *row = (float *)expected.t.data + slots[b] * (WIDTH - 1) * CHANNELS;
                memcpy(row, (const float *)before.t.data + from[b] * (WIDTH - 1) * CHANNELS,
                       (WIDTH - 1) * CHANNELS * sizeof *row);
                run_part(ctxs[0], &p, &alone, row, b, 1);
            }
            assert_same("y", &y, &alone);
            assert_same("tails", &after, &expected);
        }
    }
}

static void test_after_is_of_the_last_sequence_alone(void **state) {
    (void)state;
    static const int64_t borders[] = {0, 5, 7};
    problem p = some_problem(CARRY_F32, 1, 7, 2, 4, true);
    array y = poisoned(CARRY_F32, 3, p.x.t.shape), after = poisoned(CARRY_F32, 3, SHAPE(1, 3, 2));
    assert_ok(ctxs[0], carry_conv(ctxs[0], &(carry_conv_args){
                                               .y = y.t,
                                               .x = p.x.t,
                                               .w = p.w.t,
                                               .before = p.before.t,
                                               .after = after.t,
                                               .cu_seqlens = carry_view_1d((void *)(uintptr_t)borders, CARRY_I64, 3)}));
    const double want[] = {0, 0, p.x.v[10], p.x.v[11], p.x.v[12], p.x.v[13]};
    assert_near("after", &after, want, 0.0);
}

static void test_conv_passes_nan_to_the_tokens_that_see_it(void **state) {
    (void)state;
    problem p = some_problem(CARRY_F32, 1, 12, 1, 4, false);
    array y = poisoned(CARRY_F32, 3, p.x.t.shape);
    ((float *)p.x.t.data)[5] = NAN;
    assert_ok(ctxs[0],
              carry_conv(ctxs[0], &(carry_conv_args){.y = y.t, .x = p.x.t, .w = p.w.t, .activation = CARRY_RELU}));
    for (int t = 0; t < 12; t++) {
        assert_int_equal(isnan(((float *)y.t.data)[t]) != 0, t >= 5 && t <= 8);
    }
}

static void test_conv_names_what_does_not_fit(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    problem p = some_problem(CARRY_F32, 1, 4, 3, 4, true);
    array y = poisoned(CARRY_F32, 3, p.x.t.shape), was = copy_of(&y), wide = poisoned(CARRY_F32, 2, SHAPE(3, 17));
    array three = copy_of(&p.w), two_batches = poisoned(CARRY_F32, 3, SHAPE(2, 2, 3));
    int64_t borders[] = {0, 3, 2, 4};
    carry_conv_args good = {.y = y.t, .x = p.x.t, .w = p.w.t, .before = p.before.t};
    carry_conv_args a = good;
    a.w = wide.t;
    assert_refused(ctx, CARRY_ESHAPE, "17 taps", carry_conv(ctx, &a));
    a = good;
    a.before = y.t;
    assert_refused(ctx, CARRY_ESHAPE, "before has shape", carry_conv(ctx, &a));
    a.before = absent;
    a.after = y.t;
    assert_refused(ctx, CARRY_ESHAPE, "after has shape", carry_conv(ctx, &a));
    a = good;
    a.cu_seqlens = carry_view_1d(borders, CARRY_I64, 4);
    assert_refused(ctx, CARRY_EARGUMENT, "cu_seqlens must start at 0", carry_conv(ctx, &a));
    a.cu_seqlens = carry_view_1d(borders, CARRY_I64, 2);
    assert_refused(ctx, CARRY_EARGUMENT, "cu_seqlens ends at 3", carry_conv(ctx, &a));
    a.x = a.y = two_batches.t;
    a.before = absent;
    assert_refused(ctx, CARRY_ESHAPE, "cu_seqlens has 2 entries and x a batch of 2", carry_conv(ctx, &a));
    assert_refused(ctx, CARRY_EWORKSPACE, "conv_backward needs a workspace of 48 bytes",
                   carry_conv_backward(
                       ctx, &(carry_conv_backward_args){.dw = three.t, .dy = y.t, .x = p.x.t, .w = p.w.t}, NULL, 0));
    assert_same("y", &y, &was);
    three.t = carry_view_3d(three.t.data, CARRY_F32, 3, 1, 4); /* the same weight */
    a = good;
    a.w = three.t;
    assert_ok(ctx, carry_conv(ctx, &a));
}

#define TEST(name) cmocka_unit_test_teardown(name, free_kept)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_conv_matches_float64_and_differences), TEST(test_conv_sees_nothing_across_cuts),
        TEST(test_conv_in_parts_is_the_whole),           TEST(test_steps_are_those_of_each_sequence_alone),
        TEST(test_after_is_of_the_last_sequence_alone),  TEST(test_conv_passes_nan_to_the_tokens_that_see_it),
        TEST(test_conv_names_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
