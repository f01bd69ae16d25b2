/* Adapters, Muon and packed examples on the first GPU, which may be the emulated one: the losses equal the CPU's.
   Skipped without a GPU. */
/* labels: gpu */
#include "train_gpu_support.h"

#define GOLDEN CARRY_SOURCE "/tests/golden/finetune"

/* Three steps of f32 on both: sums in another order, amplified by Adam. */
static void compare(void **state, carry_train_options o, const char *name) {
    char here[256];
    char there[256];
    char folder[64];
    told cpu;
    told gpu;
    o.steps = 3;
    o.save_every = 10;
    (void)snprintf(folder, sizeof folder, "%s-cpu", name);
    (void)snprintf(o.out, sizeof o.out, "%s", below(here, state, folder));
    train_ok(1, &o, false, &cpu);
    (void)snprintf(folder, sizeof folder, "%s-gpu", name);
    (void)snprintf(o.out, sizeof o.out, "%s", below(there, state, folder));
    gpu_ok(&o, false, NULL, &gpu);
    for (int i = 1; i <= 3; i++) {
        assert_near(gpu.loss[i], cpu.loss[i], 5e-4);
        assert_near(gpu.norm[i], cpu.norm[i], 5e-3 * cpu.norm[i] + 1e-4);
    }
}

static carry_train_options tuning(void) {
    carry_train_options o = small("");
    (void)snprintf(o.model, sizeof o.model, "%s", GOLDEN);
    o.vocab = 100;
    return o;
}

static void test_adapters_have_the_losses_of_the_cpu(void **state) {
    carry_train_options o = tuning();
    o.lora_rank = 3;
    compare(state, o, "lora");
    o.lora_dropout = 0.25;
    o.recompute = true;
    compare(state, o, "dropout");
}

static void test_muon_has_the_losses_of_the_cpu(void **state) {
    carry_train_options o = tuning();
    (void)snprintf(o.optimizer, sizeof o.optimizer, "muon");
    compare(state, o, "muon");
}

#ifdef CARRY_HAVE_PCRE2
static void test_packed_examples_have_the_losses_of_the_cpu(void **state) {
    carry_train_options o = tuning();
    o.task[0] = '\0';
    o.vocab = 0;
    (void)snprintf(o.data, sizeof o.data, "%s", GOLDEN "/examples.jsonl");
    o.length = 64;
    compare(state, o, "packed");
    o.accumulate = 2;
    o.lora_rank = 2;
    compare(state, o, "packed-lora");
}
#endif

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapters_have_the_losses_of_the_cpu),
        cmocka_unit_test(test_muon_has_the_losses_of_the_cpu),
#ifdef CARRY_HAVE_PCRE2
        cmocka_unit_test(test_packed_examples_have_the_losses_of_the_cpu),
#endif
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
