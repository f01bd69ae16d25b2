/* Models with quantised weights: a GGUF file and folders in every format that can be written predict the same as the
   model in f32, within the error of their bits; on the CPU the weights stay quantised. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/tensor.h"
#include "file/gguf_model.h"
#include "file/quantise.h"
#include "model/lm/lm.h"
#include "support.h"

#define MODEL CARRY_SOURCE "/tests/golden/vectors/lm-qwen3_5"
#define FILE_GGUF CARRY_SOURCE "/tests/golden/quantised/qwen35.gguf"
#define TOKENS 24
#define VOCABULARY 256

static carry_ctx *ctx;

static int open_context(void **state) {
    (void)state;
    ctx = support_ctx(2, NULL, NULL);
    return 0;
}

static int close_context(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

/* Logits of TOKENS tokens in f32. */
static void read_logits(carry_lm *lm, float *logits) {
    int64_t ids[TOKENS];
    carry_lm_pass *pass;
    void *memory;
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (i * 37 + 11) % VOCABULARY;
    }
    assert_ok(ctx, carry_lm_pass_new(lm, &pass,
                                     &(carry_lm_pass_options){
                                         .batch = 1, .tokens = TOKENS, .dtype = CARRY_F32, .forward_only = true}));
    assert_ok(ctx, carry_lm_pass_take(pass, &memory));
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, TOKENS),
                                .logits = carry_view_3d(logits, CARRY_F32, 1, TOKENS, VOCABULARY)};
    assert_ok(ctx, carry_lm_run(pass, &args, memory, carry_lm_pass_memory(pass)));
    carry_lm_pass_give(pass, memory);
    carry_lm_pass_free(pass);
}

/* The error of logits, relative to their size. */
static double distance(const float *has, const float *expected) {
    double error = 0.0;
    double size = 0.0;
    for (int i = 0; i < TOKENS * VOCABULARY; i++) {
        const double apart = (double)has[i] - (double)expected[i];
        error += apart * apart;
        size += (double)expected[i] * (double)expected[i];
    }
    return sqrt(error / size);
}

static float expected[TOKENS * VOCABULARY];
static float logits[TOKENS * VOCABULARY];

static int64_t count_quantised(const carry_lm *lm) {
    int64_t count = 0;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        count += lm->own.parameter[i].mapped != NULL && lm->own.parameter[i].mapped_dtype == CARRY_QUANTISED;
    }
    return count;
}

/* Every weight of a model loaded from `path` is near the original: off by at most `bound` of its size. */
static void expect_weights(const char *path, double bound) {
    carry_lm *lm[2];
    assert_ok(ctx, carry_lm_load(ctx, &lm[0], MODEL, 0));
    assert_ok(ctx, carry_lm_load(ctx, &lm[1], path, 0));
    assert_int_equal(count_quantised(lm[1]), 0);
    assert_int_equal(lm[0]->own.parameters, lm[1]->own.parameters);
    for (int64_t i = 0; i < lm[0]->own.parameters; i++) {
        const carry_tensor original = carry_lm_weight(lm[0], i);
        const carry_tensor has = carry_lm_weight(lm[1], i);
        double error = 0.0;
        double size = 1e-12;
        for (int64_t j = 0; j < carry_tensor_count(&original); j++) {
            const double apart = carry_tensor_at(&has, j) - carry_tensor_at(&original, j);
            error += apart * apart;
            size += carry_tensor_at(&original, j) * carry_tensor_at(&original, j);
        }
        if (!(sqrt(error / size) <= bound)) {
            fail_msg("%s: %s is %g of its size apart, expected up to %g", path, lm[0]->own.parameter[i].name,
                     sqrt(error / size), bound);
        }
    }
    carry_lm_free(lm[0]);
    carry_lm_free(lm[1]);
}

/* A model opened for reading keeps its matrices quantised. The model is random and multiplies errors of its weights by
   20 or so; `bound` applies to logits. */
static void expect_near(const char *path, double bound) {
    carry_lm *lm;
    uint64_t hash;
    assert_ok(ctx, carry_lm_open(ctx, &lm, MODEL, 0));
    read_logits(lm, expected);
    carry_lm_free(lm);
    assert_ok(ctx, carry_lm_open(ctx, &lm, path, 0));
    assert_true(count_quantised(lm) > 10);
    assert_ok(ctx, carry_lm_hash(lm, &hash));
    read_logits(lm, logits);
    const double apart = distance(logits, expected);
    if (!(apart > 0.0 && apart <= bound)) {
        fail_msg("%s: logits are %g of their size apart, expected up to %g", path, apart, bound);
    }
    carry_lm_free(lm);
}

static void test_a_gguf_file_predicts_as_its_model(void **state) {
    (void)state;
    expect_weights(FILE_GGUF, 0.01);
    expect_near(FILE_GGUF, 0.2);
}

static void remove_folder(const char *folder) {
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char path[CARRY_FILE_PATH];
        assert_ok(ctx, carry_file_in(ctx, path, folder, names[i]));
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

static void test_written_folders_predict_as_their_model(void **state) {
    (void)state;
    static const struct {
        const char *format;
        double weights, logits;
    } cases[] = {{"int8", 0.01, 0.2},     {"fp8_block", 0.03, 0.6}, {"int4_g32", 0.12, 1.5},
                 {"int4_g64", 0.14, 1.5}, {"q8_0", 0.01, 0.2},      {"q4_0", 0.12, 1.5}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char folder[] = "/tmp/carry-quantise-XXXXXX";
        carry_quantise_result result;
        assert_non_null(mkdtemp(folder));
        assert_ok(ctx, carry_quantise(ctx, MODEL, folder, cases[i].format, &result));
        assert_true(result.matrices > 10 && result.bytes_out < result.bytes_in);
        expect_weights(folder, cases[i].weights);
        expect_near(folder, cases[i].logits);
        /* Quantising it again is refused, since its weights are quantised. */
        char other[64];
        (void)snprintf(other, sizeof other, "%s-2", folder);
        assert_int_equal(carry_quantise(ctx, folder, other, cases[i].format, &result), CARRY_EUNSUPPORTED);
        remove_folder(folder);
    }
}

static void test_formats_that_do_not_fit_are_named(void **state) {
    (void)state;
    carry_quantise_result result;
    assert_int_equal(carry_quantise(ctx, MODEL, "/tmp/x", "int3", &result), CARRY_EUNSUPPORTED);
    assert_non_null(strstr(carry_ctx_error(ctx), "expected fp8_block, int8, "));
    assert_non_null(strstr(carry_ctx_error(ctx), "q5_k or q6_k"));
    /* No matrix of this model has rows of 256. */
    assert_int_equal(carry_quantise(ctx, MODEL, "/tmp/x", "q4_k", &result), CARRY_EUNSUPPORTED);
    assert_non_null(strstr(carry_ctx_error(ctx), "has no matrix that q4_k fits"));
}

/* Writes a copy of `from` whose block `block` of `bytes` bytes begins with `scale`. */
static void write_changed(const char *from, const char *to, const void *block, size_t bytes, const void *scale,
                          size_t scale_bytes) {
    char *text;
    size_t length;
    assert_ok(ctx, carry_file_read(ctx, &text, &length, from, (size_t)1 << 30));
    char *at = memmem(text, length, block, bytes);
    assert_non_null(at);
    memcpy(at, scale, scale_bytes);
    assert_ok(ctx, carry_file_replace(ctx, to, text, length));
    free(text);
}

static void expect_not_finite(const char *path) {
    carry_lm *lm;
    assert_int_equal(carry_lm_open(ctx, &lm, path, 0), CARRY_EFORMAT);
    assert_non_null(strstr(carry_ctx_error(ctx), "infinite or not a number"));
}

static void test_models_with_infinite_scales_are_refused(void **state) {
    (void)state;
    static const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00}; /* infinity, -infinity and a NaN */
    char folder[] = "/tmp/carry-quantise-XXXXXX";
    char path[CARRY_FILE_PATH];
    char changed[CARRY_FILE_PATH];
    carry_weights weights;
    carry_quantise_result result;
    unsigned char block[32];
    assert_non_null(mkdtemp(folder));
    assert_ok(ctx, carry_file_in(ctx, changed, folder, "changed.gguf"));
    assert_ok(ctx, carry_weights_open(ctx, &weights, FILE_GGUF));
    memcpy(block, carry_weights_find(&weights, "model.embed_tokens.weight")->data, sizeof block);
    carry_weights_close(&weights);
    for (int i = 0; i < 3; i++) {
        write_changed(FILE_GGUF, changed, block, sizeof block, &halves[i], sizeof halves[i]);
        expect_not_finite(changed);
    }
    (void)unlink(changed);
    /* A folder: the first scale of a matrix. */
    assert_ok(ctx, carry_quantise(ctx, MODEL, folder, "int8", &result));
    assert_ok(ctx, carry_weights_open(ctx, &weights, folder));
    const carry_quant_source *source =
        carry_quant_source_of(carry_weights_find(&weights, "model.layers.0.mlp.up_proj.weight"));
    assert_non_null(source);
    memcpy(block, source->scales.data, sizeof block);
    carry_weights_close(&weights);
    assert_ok(ctx, carry_file_in(ctx, path, folder, "model.safetensors"));
    write_changed(path, path, block, sizeof block, &(float){NAN}, sizeof(float));
    expect_not_finite(folder);
    remove_folder(folder);
}

static void test_texts_of_a_gguf_file(void **state) {
    (void)state;
    char *text;
    size_t length;
    assert_ok(ctx, carry_model_text(ctx, FILE_GGUF, "tokenizer_config.json", 1 << 20, &text, &length));
    assert_non_null(strstr(text, "chat_template"));
    free(text);
    assert_ok(ctx, carry_model_text(ctx, FILE_GGUF, "tokenizer.json", 1 << 20, &text, &length));
    carry_json *root;
    assert_ok(ctx, carry_json_parse(ctx, &root, text, length, "tokenizer.json"));
    assert_int_equal(carry_json_count(carry_json_find(carry_json_find(root, "model"), "vocab")), 256);
    carry_json_free(root);
    free(text);
    assert_true(carry_model_has(ctx, FILE_GGUF, "config.json"));
    assert_false(carry_model_has(ctx, FILE_GGUF, "generation_config.json"));
    assert_int_equal(carry_model_text(ctx, FILE_GGUF, "chat_template.jinja", 1 << 20, &text, &length), CARRY_ENOTFOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_gguf_file_predicts_as_its_model),
        cmocka_unit_test(test_written_folders_predict_as_their_model),
        cmocka_unit_test(test_formats_that_do_not_fit_are_named),
        cmocka_unit_test(test_models_with_infinite_scales_are_refused),
        cmocka_unit_test(test_texts_of_a_gguf_file),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
