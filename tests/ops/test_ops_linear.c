/* Linear layers and cross entropy against float64 loops, over odd sizes, all types and 1, 2, 3 threads. */
#include "nn_support.h"

#include "carry/nn.h"

/* c[i, j] = sum_l a(i, l) b(l, j) with a stored [m, k] or [k, m], b [k, n] or [n, k]. */
static SUPPORT_UNWATCHED void product64(double *c, const double *a, bool a_turned, const double *b, bool b_turned,
                                        int64_t m, int64_t n, int64_t k, const double *base) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = base != NULL ? base[i * n + j] : 0.0;
            for (int64_t l = 0; l < k; l++) {
                sum += (a_turned ? a[l * m + i] : a[i * k + l]) * (b_turned ? b[j * k + l] : b[l * n + j]);
            }
            c[i * n + j] = sum;
        }
    }
}

/* Terms are below 1, so sums of k random ones are about sqrt(k)/3, and k roundings of such a sum with random signs add
   up to about k 2^-24 / 3: 4 k 2^-24 is twelve times that. */
static double sum_bound(int64_t k) {
    return 4.0 * (double)(k + 1) * 0x1p-24;
}

static void check_layer(carry_dtype type, carry_dtype weights, int64_t tokens, int64_t in, int64_t out,
                        bool accumulate) {
    array x = random_array(type, 2, SHAPE(tokens, in), -1, 1);
    array W = random_array(weights, 2, SHAPE(out, in), -1, 1);
    array dy = random_array(type, 2, SHAPE(tokens, out), -1, 1);
    array y0 = random_array(type, 2, SHAPE(tokens, out), -1, 1);
    array dx0 = random_array(type, 2, SHAPE(tokens, in), -1, 1);
    array dW0 = random_array(CARRY_F32, 2, SHAPE(out, in), -1, 1);
    array first[3];
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array y = accumulate ? copy_of(&y0) : poisoned(type, 2, y0.t.shape);
        array dx = accumulate ? copy_of(&dx0) : poisoned(type, 2, dx0.t.shape);
        array dW = copy_of(&dW0);
        assert_ok(ctxs[c], carry_linear(ctxs[c], y.t, x.t, W.t, accumulate));
        assert_ok(ctxs[c], carry_linear_backward(ctxs[c], dx.t, absent, dy.t, x.t, W.t, accumulate));
        assert_ok(ctxs[c], carry_linear_backward(ctxs[c], absent, dW.t, dy.t, x.t, W.t, accumulate));
        if (c == 0) {
            first[0] = y;
            first[1] = dx;
            first[2] = dW;
        }
        assert_same("y", &y, &first[0]);
        assert_same("dx", &dx, &first[1]);
        assert_same("dW", &dW, &first[2]);
    }
    product64(y0.v, x.v, false, W.v, true, tokens, out, in, accumulate ? y0.v : NULL);
    product64(dx0.v, dy.v, false, W.v, false, tokens, in, out, accumulate ? dx0.v : NULL);
    product64(dW0.v, dy.v, true, x.v, false, out, in, tokens, dW0.v);
    assert_near("y", &first[0], y0.v, sum_bound(in));
    assert_near("dx", &first[1], dx0.v, sum_bound(out));
    assert_near("dW", &first[2], dW0.v, sum_bound(tokens));
}

static void test_linear_matches_float64_for_every_shape_and_type(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},     {1, 37, 129},  {3, 5, 7},      {2, 300, 65},
                                        {65, 129, 64}, {129, 257, 3}, {257, 64, 513}, {300, 1, 257}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int i = 0; i < 3; i++) {
            if (!support_takes((int)s * 3 + i, s < 4 ? 1 : 2)) {
                continue;
            }
            for (int accumulate = support_cases(0, ((int)s / 2 + i) % 2); accumulate < 2;
                 accumulate += support_cases(1, 2)) {
                check_layer(types[i], CARRY_F32, shapes[s][0], shapes[s][1], shapes[s][2], accumulate);
            }
            check_layer(types[i], types[i], shapes[s][0], shapes[s][1], shapes[s][2], true);
            (void)free_kept(NULL);
        }
    }
}

static void test_no_tokens_change_nothing(void **state) {
    (void)state;
    array x = poisoned(CARRY_F32, 2, SHAPE(0, 3)), y = poisoned(CARRY_F32, 2, SHAPE(0, 2));
    array W = random_array(CARRY_F32, 2, SHAPE(2, 3), -1, 1), dW = copy_of(&W);
    assert_ok(ctxs[1], carry_linear(ctxs[1], y.t, x.t, W.t, false));
    assert_ok(ctxs[1], carry_linear_backward(ctxs[1], x.t, dW.t, y.t, x.t, W.t, false));
    assert_same("dW", &dW, &W);
}

static void test_linear_names_what_does_not_fit(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    array x = random_array(CARRY_BF16, 2, SHAPE(3, 4), -1, 1), W = random_array(CARRY_F32, 2, SHAPE(5, 4), -1, 1);
    array y = poisoned(CARRY_BF16, 2, SHAPE(3, 5)), wide = poisoned(CARRY_F32, 2, SHAPE(3, 5));
    array flat = poisoned(CARRY_BF16, 1, SHAPE(12));
    array short_y = poisoned(CARRY_BF16, 2, SHAPE(2, 5)), dW = poisoned(CARRY_BF16, 2, SHAPE(5, 4));
    array before = copy_of(&y);
    assert_refused(ctx, CARRY_ESHAPE, "W has shape", carry_linear(ctx, y.t, x.t, y.t, false));
    assert_refused(ctx, CARRY_ESHAPE, "x has rank 1", carry_linear(ctx, y.t, flat.t, W.t, false));
    assert_refused(ctx, CARRY_ESHAPE, "y has shape [2, 5]", carry_linear(ctx, short_y.t, x.t, W.t, false));
    assert_refused(ctx, CARRY_EDTYPE, "y is f32", carry_linear(ctx, wide.t, x.t, W.t, false));
    carry_tensor whole = W.t;
    whole.dtype = CARRY_I64;
    assert_refused(ctx, CARRY_EDTYPE, "W is i64", carry_linear(ctx, y.t, x.t, whole, false));
    assert_refused(ctx, CARRY_EDTYPE, "dW is bf16", carry_linear_backward(ctx, absent, dW.t, y.t, x.t, W.t, false));
    carry_tensor elsewhere = W.t;
    elsewhere.device = 1;
    assert_refused(ctx, CARRY_EDEVICE, "W is on device 1", carry_linear(ctx, y.t, x.t, elsewhere, false));
    elsewhere = x.t;
    elsewhere.device = 99;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "linear", carry_linear(ctx, y.t, elsewhere, W.t, false));
    carry_tensor turned = W.t;
    turned.stride[1] = 5;
    assert_refused(ctx, CARRY_ESTRIDE, "W is not packed", carry_linear(ctx, y.t, x.t, turned, false));
    assert_same("y", &y, &before);
}

/* The loss of one row, and its gradient times scale; d may be x. */
static SUPPORT_UNWATCHED double cross_entropy64(double *d, const double *x, int64_t vocabulary, int64_t target,
                                                double scale) {
    double largest = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < vocabulary; i++) {
        largest = fmax(largest, x[i]);
    }
    for (int64_t i = 0; i < vocabulary; i++) {
        sum += exp(x[i] - largest);
    }
    double loss = log(sum) + largest - x[target];
    for (int64_t i = 0; i < vocabulary; i++) {
        d[i] = scale * (exp(x[i] - largest) / sum - (i == target));
    }
    return loss;
}

static array some_targets(int64_t tokens, int64_t vocabulary) {
    array targets = {.t = carry_view_1d(keep(malloc((size_t)(tokens + 1) * 8)), CARRY_I64, tokens)};
    for (int64_t t = 0; t < tokens; t++) {
        ((int64_t *)targets.t.data)[t] = t % 5 == 3 ? -100 : t * 7919 % vocabulary;
    }
    return targets;
}

/* Each e^x is within 2^-22 of itself (test_ops_nn.c), and so are their sum, its logarithm and their quotients; logits
   of 16 bits are exact on both sides. */
static void check_cross_entropy(carry_dtype type, int64_t tokens, int64_t vocabulary, float range, bool in_place) {
    array logits = random_array(type, 2, SHAPE(tokens, vocabulary), -range, range);
    array targets = some_targets(tokens, vocabulary);
    const int64_t *target = targets.t.data;
    double *want = keep(calloc((size_t)(tokens * vocabulary), sizeof *want));
    double loss_wanted = 0.0;
    int64_t counted_wanted = 0;
    for (int64_t t = 0; t < tokens; t++) {
        if (target[t] != -100) {
            loss_wanted +=
                cross_entropy64(want + t * vocabulary, logits.v + t * vocabulary, vocabulary, target[t], 0.5);
            counted_wanted++;
        }
    }
    array first = {0}, first_losses = {0};
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array from = copy_of(&logits);
        array d = in_place ? from : poisoned(type, 2, logits.t.shape);
        array losses = poisoned(CARRY_F32, 1, &tokens), only = poisoned(CARRY_F32, 1, &tokens);
        double total[2] = {NAN, NAN};
        carry_tensor sums = carry_view_1d(total, CARRY_F64, 2);
        assert_ok(ctxs[c], carry_cross_entropy(ctxs[c], losses.t, d.t, from.t, targets.t, 0.5f));
        assert_ok(ctxs[c], carry_sum_losses(ctxs[c], sums, losses.t, targets.t, false));
        assert_true(total[1] == (double)counted_wanted);
        assert_true(fabs(total[0] - loss_wanted) <= 0x1p-20 * (fabs(loss_wanted) + (double)tokens));
        assert_ok(ctxs[c], carry_sum_losses(ctxs[c], sums, losses.t, targets.t, true));
        assert_true(total[1] == 2.0 * (double)counted_wanted);
        first = c == 0 ? d : first;
        first_losses = c == 0 ? losses : first_losses;
        assert_same("dlogits", &d, &first);
        assert_same("losses", &losses, &first_losses);
        assert_ok(ctxs[c], carry_cross_entropy(ctxs[c], only.t, absent, logits.t, targets.t, 0.5f));
        assert_same("losses without a gradient", &only, &first_losses);
    }
    assert_near("dlogits", &first, want, 0x1p-21);
}

static void test_cross_entropy_matches_float64(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {4, 1}, {3, 2}, {7, 1023}, {5, 1025}, {2, 3001}, {1030, 17}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int i = 0; i < 3; i++) {
            check_cross_entropy(types[i], shapes[s][0], shapes[s][1], 5.0f, false);
            check_cross_entropy(types[i], shapes[s][0], shapes[s][1], 1e4f, true);
            (void)free_kept(NULL);
        }
    }
}

static void test_cross_entropy_passes_nan_on_and_refuses_targets(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[1];
    array logits = random_array(CARRY_F32, 2, SHAPE(2, 2000), -1, 1), targets = some_targets(2, 2000);
    float loss[2] = {7.0f, 7.0f};
    carry_tensor losses = carry_view_1d(loss, CARRY_F32, 2);
    ((int64_t *)targets.t.data)[1] = 2000;
    assert_refused(ctx, CARRY_ERANGE, "targets[1] is 2000",
                   carry_cross_entropy(ctx, losses, absent, logits.t, targets.t, 1.0f));
    ((int64_t *)targets.t.data)[1] = -1;
    assert_refused(ctx, CARRY_ERANGE, "targets[1] is -1",
                   carry_cross_entropy(ctx, losses, absent, logits.t, targets.t, 1.0f));
    assert_true(loss[0] == 7.0f && loss[1] == 7.0f);
    ((int64_t *)targets.t.data)[1] = 1;
    ((float *)logits.t.data)[3999] = NAN;
    assert_ok(ctx, carry_cross_entropy(ctx, losses, absent, logits.t, targets.t, 1.0f));
    assert_true(!isnan(loss[0]) && isnan(loss[1]));
}

static void check_linear_cross_entropy(carry_dtype type, int64_t tokens, int64_t n, int64_t vocabulary) {
    array x = random_array(type, 2, SHAPE(tokens, n), -1, 1),
          W = random_array(CARRY_F32, 2, SHAPE(vocabulary, n), -1, 1);
    array targets = some_targets(tokens, vocabulary);
    array dW0 = random_array(CARRY_F32, 2, W.t.shape, -1, 1);
    const int64_t *target = targets.t.data;
    double *logits = keep(calloc((size_t)(tokens * vocabulary), sizeof *logits));
    double *want_dx = keep(calloc((size_t)(tokens * n), sizeof *want_dx));
    product64(logits, x.v, false, W.v, true, tokens, vocabulary, n, NULL);
    double loss_wanted = 0.0;
    for (int64_t t = 0; t < tokens; t++) {
        double *row = logits + t * vocabulary;
        if (target[t] == -100) {
            memset(row, 0, (size_t)vocabulary * sizeof *row);
        } else {
            loss_wanted += cross_entropy64(row, row, vocabulary, target[t], 0.25);
        }
    }
    product64(want_dx, logits, false, W.v, false, tokens, n, vocabulary, NULL);
    size_t bytes = carry_linear_cross_entropy_workspace(tokens, n, vocabulary);
    void *workspace = keep(malloc(bytes));
    array first[2];
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array dx = poisoned(type, 2, x.t.shape), dW = copy_of(&dW0);
        array losses = poisoned(CARRY_F32, 1, &tokens), only = poisoned(CARRY_F32, 1, &tokens);
        double total[2];
        assert_ok(ctxs[c], carry_linear_cross_entropy(ctxs[c],
                                                      &(carry_linear_cross_entropy_args){.losses = losses.t,
                                                                                         .dx = dx.t,
                                                                                         .dW = dW.t,
                                                                                         .x = x.t,
                                                                                         .W = W.t,
                                                                                         .targets = targets.t,
                                                                                         .scale = 0.25f},
                                                      workspace, bytes));
        assert_ok(ctxs[c], carry_linear_cross_entropy(
                               ctxs[c],
                               &(carry_linear_cross_entropy_args){
                                   .losses = only.t, .x = x.t, .W = W.t, .targets = targets.t, .scale = 0.25f},
                               workspace, bytes));
        assert_same("losses", &losses, &only);
        assert_ok(ctxs[c], carry_sum_losses(ctxs[c], carry_view_1d(total, CARRY_F64, 2), losses.t, targets.t, false));
        double loss = total[0];
        /* A logit is off by sum_bound(n), and so is the loss of its token. */
        assert_true(fabs(loss - loss_wanted) <= (double)tokens * (sum_bound(n) + 0x1p-20 * 10.0));
        if (c == 0) {
            first[0] = dx;
            first[1] = dW;
        }
        assert_same("dx", &dx, &first[0]);
        assert_same("dW", &dW, &first[1]);
    }
    product64(dW0.v, logits, true, x.v, false, vocabulary, n, tokens, dW0.v);
    assert_near("dx", &first[0], want_dx, sum_bound(n) + sum_bound(64));
    assert_near("dW", &first[1], dW0.v, sum_bound(n) + sum_bound(tokens));
}

static void test_linear_cross_entropy_matches_float64_in_blocks_and_whole(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        check_linear_cross_entropy(types[i], 1, 5, 1);
        check_linear_cross_entropy(types[i], 33, 17, 259);
        if (i < support_cases(3, 1)) {
            check_linear_cross_entropy(types[i], 19, 3, 300001); /* blocks of 16 tokens, then the remaining 3 */
        }
        (void)free_kept(NULL);
    }
}

static void test_linear_cross_entropy_says_what_it_needs(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    array x = random_array(CARRY_F32, 2, SHAPE(4, 3), -1, 1), W = random_array(CARRY_F32, 2, SHAPE(9, 3), -1, 1);
    array targets = some_targets(4, 9);
    float workspace[36];
    float loss[4];
    assert_int_equal(carry_linear_cross_entropy_workspace(4, 3, 9), sizeof workspace);
    assert_refused(
        ctx, CARRY_EWORKSPACE, "144 bytes",
        carry_linear_cross_entropy(
            ctx,
            &(carry_linear_cross_entropy_args){
                .losses = carry_view_1d(loss, CARRY_F32, 4), .x = x.t, .W = W.t, .targets = targets.t, .scale = 1.0f},
            workspace, sizeof workspace - 1));
}

/* Several maps of one input equal the same maps one after the other, bit by bit; so does a map that is added to a
   residual. */
static void test_merged_maps_are_the_maps_one_by_one(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[1];
    const int64_t out[] = {40, 6, 72}, tokens = 37, in = 24;
    for (int i = 0; i < 3; i++, (void)free_kept(NULL)) {
        array x = random_array(types[i], 2, SHAPE(tokens, in), -1, 1);
        array dx = random_array(types[i], 2, SHAPE(tokens, in), -1, 1), dx1 = copy_of(&dx);
        array y[3], y1[3], W[3], dW[3], dW1[3];
        carry_merged_linear_args args = {.x = x.t, .maps = 3};
        carry_merged_linear_backward_args back = {.dx = dx.t, .x = x.t, .maps = 3};
        for (int m = 0; m < 3; m++) {
            y[m] = poisoned(types[i], 2, SHAPE(tokens, out[m]));
            y1[m] = poisoned(types[i], 2, SHAPE(tokens, out[m]));
            W[m] = random_array(types[i], 2, SHAPE(out[m], in), -1, 1);
            dW[m] = random_array(CARRY_F32, 2, SHAPE(out[m], in), -1, 1);
            dW1[m] = copy_of(&dW[m]);
            args.y[m] = back.dy[m] = y[m].t;
            args.W[m] = back.W[m] = W[m].t;
            back.dW[m] = dW[m].t;
            assert_ok(ctx, carry_linear(ctx, y1[m].t, x.t, W[m].t, false));
            assert_ok(ctx, carry_linear_backward(ctx, dx1.t, dW1[m].t, y1[m].t, x.t, W[m].t, m > 0));
        }
        assert_ok(ctx, carry_merged_linear(ctx, &args));
        assert_ok(ctx, carry_merged_linear_backward(ctx, &back));
        for (int m = 0; m < 3; m++) {
            assert_same("y", &y[m], &y1[m]);
            assert_same("dW", &dW[m], &dW1[m]);
        }
        assert_same("dx", &dx, &dx1);
        array sum = copy_of(&y[0]), to = poisoned(types[i], 2, SHAPE(tokens, out[0]));
        assert_ok(ctx, carry_linear(ctx, sum.t, x.t, W[0].t, true));
        assert_ok(ctx, carry_linear_add(ctx, to.t, x.t, W[0].t, y[0].t));
        assert_same("base + W x", &to, &sum);
    }
}

static void test_merged_maps_name_what_does_not_fit(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    array x = random_array(CARRY_F32, 2, SHAPE(4, 3), -1, 1), W = random_array(CARRY_F32, 2, SHAPE(5, 3), -1, 1);
    array y = poisoned(CARRY_F32, 2, SHAPE(4, 6)), dW = random_array(CARRY_F32, 2, SHAPE(5, 3), -1, 1);
    carry_merged_linear_args args = {.y = {y.t}, .x = x.t, .W = {W.t}, .maps = 1};
    assert_refused(ctx, CARRY_ESHAPE, "W", carry_merged_linear(ctx, &args));
    args.y[0].shape[1] = 5; /* rows further apart: for GPUs */
    assert_refused(ctx, CARRY_ESTRIDE, "y", carry_merged_linear(ctx, &args));
    args.maps = CARRY_MAX_MERGED_MAPS + 1;
    assert_refused(ctx, CARRY_EARGUMENT, "9 maps", carry_merged_linear(ctx, &args));
    array dy = random_array(CARRY_F32, 2, SHAPE(4, 5), -1, 1);
    const carry_merged_linear_backward_args back = {
        .dW = {dW.t}, .dy = {dy.t, dy.t}, .x = x.t, .W = {W.t, W.t}, .maps = 2};
    assert_refused(ctx, CARRY_EARGUMENT, "dW of map 1 is absent", carry_merged_linear_backward(ctx, &back));
}

#define TEST(name) cmocka_unit_test_teardown(name, free_kept)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_linear_matches_float64_for_every_shape_and_type),
        TEST(test_no_tokens_change_nothing),
        TEST(test_linear_names_what_does_not_fit),
        TEST(test_merged_maps_are_the_maps_one_by_one),
        TEST(test_merged_maps_name_what_does_not_fit),
        TEST(test_cross_entropy_matches_float64),
        TEST(test_cross_entropy_passes_nan_on_and_refuses_targets),
        TEST(test_linear_cross_entropy_matches_float64_in_blocks_and_whole),
        TEST(test_linear_cross_entropy_says_what_it_needs),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
