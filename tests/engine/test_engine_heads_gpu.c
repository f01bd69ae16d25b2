/* Guesses by multi-token heads on a GPU equal those of plain loops, and most are accepted. */
/* labels: gpu */
#include "heads_engine_support.h"
#include "heads_runner_support.h"

#include "carry/device.h"

static void guesses_equal_plain_loops(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    heads_run_texts(ctx, 1, false);
    carry_ctx_free(ctx);
}

/* In f32 the rounding of a step with more rows is far below the distances of logits; in bf16 it is not, so texts may
   differ there. */
static void texts_in_f32_are_those_without_guesses(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    heads_case c;
    heads_open(&c, ctx, true);
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        const carry_dtype dtype = is_bf16 ? CARRY_BF16 : CARRY_F32;
        heads_answer plain[4], guessed[4];
        int64_t accepted = 0;
        carry_engine *without = heads_engine(ctx, &c, NULL, 1, dtype);
        carry_engine *with = heads_engine(ctx, &c, "mtp", 1, dtype);
        for (int i = 0; i < 4; i++) {
            heads_ask(ctx, without, i, 0.0, &plain[i]);
            heads_ask(ctx, with, i, 0.0, &guessed[i]);
        }
        assert_ok(ctx, carry_engine_run(without));
        assert_ok(ctx, carry_engine_run(with));
        for (int i = 0; i < 4; i++) {
            assert_int_equal(guessed[i].count, 50);
            assert_true(is_bf16 || memcmp(guessed[i].token, plain[i].token, sizeof plain[i].token) == 0);
            accepted += guessed[i].accepted;
        }
        print_message("%s: %d guesses accepted of 200 tokens\n", carry_dtype_name(dtype), (int)accepted);
        assert_true(accepted > 60);
        carry_engine_close(with);
        carry_engine_close(without);
    }
    heads_close(&c);
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_equal_plain_loops),
        cmocka_unit_test(texts_in_f32_are_those_without_guesses),
    };
    return cmocka_run_group_tests_name("engine_heads_gpu", tests, NULL, NULL);
}
