/* A block of a video transformer on a GPU in bf16 against the CPU in f32, up to 64 tokens of small blocks; the same
   bits in every run; arguments that do not fit are refused by name. Without a GPU all of it is skipped. */
/* labels: gpu */
#include "support.h"

#include "bench/family/family.h"

static bool no_gpu(void) {
    if (carry_device_count() > 1) {
        return false;
    }
    (void)printf("skipped: there is no GPU here\n");
    return true;
}

static void *open_block(carry_ctx *ctx, const carry_family **family, const char *text) {
    carry_problem problem;
    void *instance;
    assert_ok(ctx, carry_problem_parse(ctx, &problem, text));
    assert_ok(ctx, carry_family_of(ctx, family, &problem));
    assert_ok(ctx, carry_family_open(*family, ctx, &instance, &problem, 3, 1));
    assert_ok(ctx, (*family)->choose(instance, NULL));
    return instance;
}

/* Odd numbers of tokens, both sizes of heads, a cache longer than the tokens and one as long, with and without
   biases. */
static void tokens_of_small_blocks_match_the_cpu(void **unused) {
    (void)unused;
    static const char *const problems[] = {
        "block:h2:d128:ff384:q1:kv1:text1:device=cuda",      "block:h2:d128:ff384:q40:kv100:text9:bias:device=cuda",
        "block:h4:d64:ff520:q131:kv131:text33:device=cuda",  "block:h3:d64:ff64:q17:kv300:text130:bias:device=cuda",
        "block:h5:d128:ff1024:q70:kv210:text64:device=cuda",
    };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const carry_family *family;
        carry_deviation deviations[CARRY_DEVIATIONS];
        void *instance = open_block(ctx, &family, problems[i]);
        for (int repeat = 0; repeat < 3; repeat++) { /* every time the same error, to the bit */
            int count = 0;
            double before = repeat > 0 ? deviations[0].error : 0.0;
            assert_ok(ctx, family->compare(instance, deviations, &count));
            assert_int_equal(count, 3);
            for (int j = 0; j < count; j++) {
                if (!(deviations[j].error <= deviations[j].bound)) {
                    fail_msg("%s: %s is %g away, and %g is allowed", problems[i], deviations[j].tensor,
                             deviations[j].error, deviations[j].bound);
                }
            }
            assert_true(repeat == 0 || deviations[0].error == before);
        }
        carry_family_close(family, instance);
    }
    carry_ctx_free(ctx);
}

static void a_block_that_does_not_fit_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_problem problem;
    const carry_family *family;
    void *instance;
    assert_ok(ctx, carry_problem_parse(ctx, &problem, "block:h2:d128:q40:kv20:device=cuda"));
    assert_ok(ctx, carry_family_of(ctx, &family, &problem));
    assert_refused(ctx, CARRY_EARGUMENT, "the cache", carry_family_open(family, ctx, &instance, &problem, 3, 1));
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_of_small_blocks_match_the_cpu),
        cmocka_unit_test(a_block_that_does_not_fit_is_refused),
    };
    if (no_gpu()) {
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
