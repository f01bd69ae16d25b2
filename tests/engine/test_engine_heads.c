/* Guesses by multi-token heads: they equal those of plain loops, and texts are the same as without them. */
#include "heads_engine_support.h"
#include "heads_runner_support.h"

static void guesses_equal_plain_loops(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    heads_run_texts(ctx, 0, false);
    heads_run_texts(ctx, 0, true);
    carry_ctx_free(ctx);
}

static void texts_are_those_without_guesses(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    heads_case c;
    for (int variant = 0; variant < 4; variant++) {
        const double temperature = (variant & 1) != 0 ? 0.7 : 0.0;
        heads_answer plain[4], guessed[4], again[4];
        int64_t accepted = 0;
        heads_open(&c, ctx, (variant & 2) != 0);
        carry_engine *without = heads_engine(ctx, &c, NULL, 0, CARRY_F32);
        carry_engine *with = heads_engine(ctx, &c, "mtp", 0, CARRY_F32);
        for (int i = 0; i < 4; i++) {
            heads_ask(ctx, without, i, temperature, &plain[i]);
            heads_ask(ctx, with, i, temperature, &guessed[i]);
        }
        assert_ok(ctx, carry_engine_run(without));
        assert_ok(ctx, carry_engine_run(with));
        for (int i = 0; i < 4; i++) { /* one by one, from cached prefixes */
            heads_ask(ctx, with, i, temperature, &again[i]);
            assert_ok(ctx, carry_engine_run(with));
            assert_int_equal(plain[i].count, 50);
            assert_memory_equal(guessed[i].token, plain[i].token, sizeof plain[i].token);
            assert_memory_equal(again[i].token, plain[i].token, sizeof plain[i].token);
            assert_true(i < 2 || again[i].cached >= 64);
            assert_true(guessed[i].drafted > 0);
            assert_int_equal(again[i].accepted, guessed[i].accepted); /* the heads' state was cached too */
            accepted += guessed[i].accepted;
        }
        print_message("variant %d: %d guesses accepted of 200 tokens\n", variant, (int)accepted);
        assert_true(variant != 2 || accepted > 60);
        carry_engine_close(with);
        carry_engine_close(without);
        heads_close(&c);
    }
    carry_ctx_free(ctx);
}

static void checkpoints_without_heads_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    heads_case c;
    carry_engine *engine;
    const carry_engine_options options = {CARRY_INIT(carry_engine_options), .draft = "mtp"};
    heads_open(&c, ctx, false);
    assert_ok(ctx, carry_lm_save(c.mirror, c.folder, CARRY_F32));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "has no multi-token heads",
                   carry_engine_open(ctx, &engine, c.folder, &options));
    assert_null(engine);
    heads_close(&c);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_equal_plain_loops),
        cmocka_unit_test(texts_are_those_without_guesses),
        cmocka_unit_test(checkpoints_without_heads_are_refused),
    };
    return cmocka_run_group_tests_name("engine/heads", tests, NULL, NULL);
}
