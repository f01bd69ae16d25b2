/* A GGUF file and folders with quantised weights predict on a GPU what their decoded weights predict on the CPU, and
   have the same hash on both. */
/* labels: gpu */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "carry/device.h"
#include "core/file.h"
#include "engine/generator.h"
#include "file/quantise.h"
#include "model/lm/lm.h"
#include "support.h"

#define MODEL CARRY_SOURCE "/tests/golden/vectors/lm-qwen3_5"
#define FILE_GGUF CARRY_SOURCE "/tests/golden/quantised/qwen35.gguf"
#define TOKENS 24
#define STEPS 3
#define VOCABULARY 256

enum { GPU = 1, SKIPPED = 77 };

/* The logits after a prompt, and after each of a few steps. */
static void predict(carry_ctx *ctx, carry_lm *lm, float logits[1 + STEPS][VOCABULARY]) {
    carry_lm_generator *g;
    int64_t ids[TOKENS + STEPS];
    for (int i = 0; i < TOKENS + STEPS; i++) {
        ids[i] = (i * 37 + 11) % VOCABULARY;
    }
    assert_ok(ctx, carry_lm_generator_new(lm, &g, 1, CARRY_F32));
    assert_ok(ctx, carry_lm_generator_prompt(g, 0, ids, TOKENS, logits[0]));
    for (int i = 0; i < STEPS; i++) {
        assert_ok(ctx, carry_lm_generator_step(g, &ids[TOKENS + i], logits[1 + i]));
    }
    carry_lm_generator_free(g);
}

static uint64_t hash_on(carry_ctx *ctx, const char *path, int device) {
    carry_lm *lm;
    uint64_t hash;
    assert_ok(ctx, carry_lm_open(ctx, &lm, path, device));
    assert_ok(ctx, carry_lm_hash(lm, &hash));
    carry_lm_free(lm);
    return hash;
}

/* Activations are rounded to f16, 5e-4 of them, and the random model multiplies errors by 20 or so. */
static void expect_equal(carry_ctx *ctx, const char *path) {
    static float want[1 + STEPS][VOCABULARY], got[1 + STEPS][VOCABULARY];
    carry_lm *lm;
    assert_ok(ctx, carry_lm_load(ctx, &lm, path, 0));
    predict(ctx, lm, want);
    carry_lm_free(lm);
    assert_ok(ctx, carry_lm_open(ctx, &lm, path, GPU));
    predict(ctx, lm, got);
    bool is_kept = false;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        is_kept = is_kept || lm->own.parameter[i].mapped != NULL;
    }
    carry_lm_free(lm);
    for (int step = 0; step <= STEPS; step++) {
        double error = 0.0;
        double size = 0.0;
        for (int i = 0; i < VOCABULARY; i++) {
            const double apart = (double)got[step][i] - (double)want[step][i];
            error += apart * apart;
            size += (double)want[step][i] * (double)want[step][i];
        }
        print_message("%s, step %d: %.2g apart%s\n", path, step, sqrt(error / size), is_kept ? "" : ", decoded");
        assert_true(sqrt(error / size) <= 0.05);
    }
    if (is_kept) { /* decoded weights have another hash */
        assert_true(hash_on(ctx, path, GPU) == hash_on(ctx, path, 0));
    }
}

static void a_gguf_file_predicts_as_on_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    expect_equal(ctx, FILE_GGUF);
    carry_ctx_free(ctx);
}

static void folders_predict_as_on_the_cpu(void **unused) {
    (void)unused;
    static const char *const formats[] = {"fp8_block", "int8", "int4_g32", "int4_g64"};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        static const char *const names[] = {"config.json", "model.safetensors"};
        char folder[] = "/tmp/carry-quantise-XXXXXX";
        char path[CARRY_FILE_PATH];
        carry_quantise_result result;
        assert_non_null(mkdtemp(folder));
        assert_ok(ctx, carry_quantise(ctx, MODEL, folder, formats[i], &result));
        expect_equal(ctx, folder);
        for (int j = 0; j < 2; j++) {
            assert_ok(ctx, carry_file_in(ctx, path, folder, names[j]));
            (void)unlink(path);
        }
        (void)rmdir(folder);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gguf_file_predicts_as_on_the_cpu),
        cmocka_unit_test(folders_predict_as_on_the_cpu),
    };
    if (carry_device_count() < 2) {
        (void)puts("skipped: no GPU");
        return SKIPPED;
    }
    return cmocka_run_group_tests_name("model/quantised_gpu", tests, NULL, NULL);
}
