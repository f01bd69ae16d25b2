/* A GPU older than sm_80 is refused with its name, its architecture and the one that is needed, for every method. Runs
   on the emulated GPU, whose architecture can be set; skipped elsewhere. */
/* labels: gpu */
#include "support.h"

static void an_old_gpu_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int form = 0; form < 4; form++) {
        carry_delta_problem p = {.batch = 1,
                                 .tokens = 4,
                                 .heads = 1,
                                 .value_heads = 1,
                                 .key = form < 2 ? 128 : 32,
                                 .value = form < 2 ? 128 : 32,
                                 .dtype = form % 2 == 0 ? CARRY_BF16 : CARRY_F32,
                                 .gate = CARRY_DELTA_HEAD_GATE,
                                 .device = 1};
        carry_delta_plan *plan;
        assert_refused(ctx, CARRY_EUNSUPPORTED, "is sm_70, and the delta rule needs sm_80 or later",
                       carry_delta_plan_new(ctx, &plan, &p, NULL));
        assert_refused(
            ctx, CARRY_EUNSUPPORTED, "needs sm_80 or later",
            carry_delta_plan_new(ctx, &plan, &p,
                                 &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "recurrent"}));
        assert_null(plan);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_old_gpu_is_refused)};
    (void)setenv("CARRY_EMULATE_SM", "70", 1);
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_device_properties found = {CARRY_INIT(carry_device_properties)};
    bool old = carry_device_count() > 1 && carry_delta_name(1, 0) != NULL &&
               carry_device_properties_of(ctx, &found, 1) == CARRY_OK && strcmp(found.kernels, "sm_70") == 0;
    carry_ctx_free(ctx);
    if (!old) {
        (void)printf("skipped: there is no emulated GPU here\n");
        return 77;
    }
    return cmocka_run_group_tests_name("delta/gpu old", tests, NULL, NULL);
}
