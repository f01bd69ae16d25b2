/* Guesses by multi-token heads on a GPU equal those of plain loops. */
/* labels: gpu */
#include "heads_runner_support.h"

#include "carry/device.h"

static void guesses_equal_plain_loops(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    heads_run_texts(ctx, 1, false);
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(guesses_equal_plain_loops)};
    return cmocka_run_group_tests_name("engine_heads_gpu", tests, NULL, NULL);
}
