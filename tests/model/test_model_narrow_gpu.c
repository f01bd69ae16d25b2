/* Models whose experts are kept in 16 bits alone: their weights and logits equal those of a model with f32 masters, on
   the CPU and on every GPU. */
/* labels: gpu */
#include "hybrid_support.h"

#include "carry/device.h"
#include "model/host.h"

#define TOKENS 12
#define LOGITS (TOKENS * SUPPORT_VOCABULARY)

static void read_low(carry_ctx *ctx, const carry_lm *lm, uint16_t *to) {
    assert_ok(ctx, carry_read(ctx, carry_view_1d(to, lm->own.low_dtype, lm->own.count),
                              carry_parameters_low(&lm->own, 0, lm->own.count)));
}

static void read_logits(carry_ctx *ctx, carry_lm *lm, uint16_t *to) {
    int64_t ids[TOKENS];
    const int64_t shape[] = {1, TOKENS, SUPPORT_VOCABULARY};
    const int device = lm->own.device;
    carry_lm_pass *pass;
    void *memory;
    void *logits;
    for (int64_t i = 0; i < TOKENS; i++) {
        ids[i] = (7 * i * i + 3) % SUPPORT_VOCABULARY;
    }
    assert_ok(ctx, carry_lm_pass_new(lm, &pass,
                                     &(carry_lm_pass_options){
                                         .batch = 1, .tokens = TOKENS, .dtype = CARRY_BF16, .forward_only = true}));
    assert_ok(ctx, carry_lm_pass_take(pass, &memory));
    assert_ok(ctx, carry_device_alloc(ctx, &logits, device, LOGITS * sizeof *to));
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, TOKENS),
                                .logits = carry_view_on(device, logits, CARRY_BF16, 3, shape)};
    assert_ok(ctx, carry_lm_run(pass, &args, memory, carry_lm_pass_memory(pass)));
    assert_ok(ctx, carry_read(ctx, carry_view(to, CARRY_BF16, 3, shape), args.logits));
    carry_device_free(ctx, device, logits);
    carry_lm_pass_give(pass, memory);
    carry_lm_pass_free(pass);
}

static void compare_with_masters(carry_ctx *ctx, carry_lm_config config, int device) {
    static uint16_t of_wide[LOGITS], of_narrow[LOGITS];
    carry_lm *wide;
    carry_lm *narrow;
    assert_ok(ctx, carry_lm_new(ctx, &wide, &config, device));
    assert_ok(ctx, carry_lm_init_there(wide, 5));
    assert_ok(ctx, carry_parameters_want_low(&wide->own, CARRY_BF16));
    assert_ok(ctx, carry_lm_new_narrow(ctx, &narrow, &config, device, CARRY_BF16));
    assert_ok(ctx, carry_lm_init_there(narrow, 5));
    assert_true(narrow->own.wide_count < narrow->own.count);
    assert_int_equal(narrow->own.count, wide->own.count);
    uint16_t *low = calloc((size_t)wide->own.count * 2, sizeof *low);
    assert_non_null(low);
    read_low(ctx, wide, low);
    read_low(ctx, narrow, low + wide->own.count);
    assert_memory_equal(low, low + wide->own.count, (size_t)wide->own.count * sizeof *low);
    read_logits(ctx, wide, of_wide);
    read_logits(ctx, narrow, of_narrow);
    assert_memory_equal(of_wide, of_narrow, sizeof of_wide);
    free(low);
    carry_lm_free(narrow);
    carry_lm_free(wide);
}

static void experts_without_masters_equal_those_with_masters(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int device = 0; device < carry_device_count(); device++) {
        compare_with_masters(ctx, hybrid(8), device);
        compare_with_masters(ctx, hybrid(9), device);
    }
    carry_ctx_free(ctx);
}

static void training_without_masters_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_lm_config config = hybrid(8);
    carry_lm *lm;
    assert_ok(ctx, carry_lm_new_narrow(ctx, &lm, &config, 0, CARRY_BF16));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "training needs it loaded in f32", carry_lm_want_gradients(lm));
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_without_masters_equal_those_with_masters),
        cmocka_unit_test(training_without_masters_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
