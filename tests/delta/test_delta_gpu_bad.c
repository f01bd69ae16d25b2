/* A NaN or an infinity in one token reaches no earlier token, by any method of the GPU: earlier outputs equal those
   without it, except for rounding (a chunk with one may be computed differently). From that token on, results that are
   NaN by the recurrence are not finite. Without a GPU all of it is skipped. */
/* labels: gpu */
#include "delta_gpu_support.h"

enum { TOKENS = 150 };

static void put(data *d, int which, int64_t token, float x) {
    carry_tensor *t = &d->here[which];
    int64_t row = carry_tensor_count(t) / TOKENS;
    int64_t at = token * row + row - 1;
    if (t->dtype == CARRY_F32) {
        ((float *)t->data)[at] = x;
    } else { /* bf16 */
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        ((uint16_t *)t->data)[at] = (uint16_t)(bits >> 16);
    }
    send(d, which);
}

static void *copy_of(const carry_tensor *t) {
    void *copy = malloc(bytes_of(t));
    assert_non_null(copy);
    memcpy(copy, t->data, bytes_of(t));
    return copy;
}

static void run(const data *d, const device_plan *on) {
    carry_delta_forward_args args = forward_args(d, d->there);
    poison(d);
    assert_ok(d->ctx, carry_delta_forward(on->plan, &args, on->workspace, on->forward));
    fetch(d, O);
}

static void compare_with_clean(const data *d, const char *method, int which, int64_t token, float x, void *clean,
                               const carry_tensor *wanted) {
    carry_tensor before = d->here[O];
    int64_t row = carry_tensor_count(&before) / TOKENS;
    before.data = clean;
    double largest = 0.0;
    for (int64_t i = 0; i < carry_tensor_count(&before); i++) {
        double one = fabs(carry_tensor_at(&before, i));
        largest = one > largest ? one : largest;
    }
    for (int64_t i = 0; i < carry_tensor_count(&before); i++) {
        double got = carry_tensor_at(&d->here[O], i);
        double without = carry_tensor_at(&before, i);
        bool right = i / row < token ? fabs(got - without) <= 0x1p-8 * (fabs(without) + largest)
                                     : isfinite(carry_tensor_at(wanted, i)) || !isfinite(got);
        if (!right) {
            fail_msg("by %s with %g in %s of token %lld, o of token %lld is %g (without it %g), K=%lld l2norm %d",
                     method, (double)x, names[which], (long long)token, (long long)(i / row), got, without,
                     (long long)d->p.key, d->p.l2norm);
        }
    }
}

/* Runs the recurrence and then the method, with the same bad number. */
static void check(carry_delta_problem p, const char *method) {
    static const int inputs[] = {Q, KEY, V, BETA, G};
    static const int64_t tokens[] = {0, 1, 37, 64, 127};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t c = 0; c < 50; c++) {
        int which = inputs[c % 5];
        int64_t token = tokens[c / 5 % 5];
        float x = c < 25 ? NAN : INFINITY;
        device_plan plain;
        device_plan on;
        data d = make(ctx, p, NULL);
        if ((which != KEY && which != V && c >= 25) || !open_plan(&d, &on, method)) {
            discard(&d);
            continue;
        }
        assert_true(open_plan(&d, &plain, "recurrent"));
        run(&d, &on);
        void *clean = copy_of(&d.here[O]);
        put(&d, which, token, x);
        run(&d, &plain);
        carry_tensor wanted = d.here[O];
        wanted.data = copy_of(&d.here[O]);
        run(&d, &on);
        compare_with_clean(&d, method, which, token, x, clean, &wanted);
        free(clean);
        free(wanted.data);
        close_plan(&d, &plain);
        close_plan(&d, &on);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

static void earlier_tokens_are_as_without_it(void **unused) {
    (void)unused;
    static const int64_t sizes[] = {32, 64, 128};
    for (int form = 0; form < 6; form++) {
        for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
            if (strcmp(carry_delta_name(GPU, m), "recurrent") == 0) {
                continue;
            }
            check((carry_delta_problem){.batch = 1,
                                        .tokens = TOKENS,
                                        .heads = 1,
                                        .value_heads = 2,
                                        .key = sizes[form / 2],
                                        .value = sizes[form / 2],
                                        .dtype = CARRY_BF16,
                                        .gate = CARRY_DELTA_HEAD_GATE,
                                        .l2norm = form % 2 == 1},
                  carry_delta_name(GPU, m));
        }
    }
}

/* Blocks of 128 values. */
static void the_same_with_many_heads(void **unused) {
    (void)unused;
    carry_delta_problem p = {.batch = 1, .tokens = TOKENS, .heads = 1, .value_heads = 104, .key = 128, .value = 128};
    p.dtype = CARRY_BF16;
    p.gate = CARRY_DELTA_HEAD_GATE;
    check(p, "chunk64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(earlier_tokens_are_as_without_it),
        cmocka_unit_test(the_same_with_many_heads),
    };
    if (no_gpu()) {
        return 77;
    }
    return cmocka_run_group_tests_name("delta/gpu_bad", tests, NULL, NULL);
}
