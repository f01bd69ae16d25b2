/* A folder whose experts are single quantised tensors, as published files have them, keeps them quantised on a GPU, and
   predicts what its decoded weights predict on the CPU. */
/* labels: gpu */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carry/device.h"
#include "core/file.h"
#include "engine/generator.h"
#include "file/quantise.h"
#include "file/safetensors.h"
#include "file/weights.h"
#include "model/lm/lm.h"
#include "support.h"

#define TOKENS 24
#define STEPS 3
#define VOCABULARY 64
#define EXPERTS 4

enum { GPU = 1, SKIPPED = 77 };

/* All experts are chosen: no rounding of a router's input can choose others. */
static const char *const config =
    "{\"model_type\": \"qwen3_5_moe_text\", \"hidden_size\": 128, \"num_hidden_layers\": 2, \"num_experts\": 4, "
    "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 64, \"shared_expert_intermediate_size\": 64, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 64, \"linear_num_key_heads\": 2, "
    "\"linear_num_value_heads\": 2, \"linear_key_head_dim\": 64, \"linear_value_head_dim\": 64, \"vocab_size\": 64, "
    "\"tie_word_embeddings\": false, \"linear_conv_kernel_dim\": 4, \"full_attention_interval\": 2, \"rms_norm_eps\": "
    "1e-6, \"initializer_range\": 0.1, \"bos_token_id\": null, \"eos_token_id\": null, \"pad_token_id\": null, "
    "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e7, \"partial_rotary_factor\": 0.25}}";

typedef struct folder {
    char path[64];
} folder;

static folder make_folder(void) {
    folder f = {"/tmp/carry-experts-XXXXXX"};
    assert_non_null(mkdtemp(f.path));
    return f;
}

static void file_in(carry_ctx *ctx, char path[CARRY_FILE_PATH], const folder *f, const char *name) {
    assert_ok(ctx, carry_file_in(ctx, path, f->path, name));
}

static void remove_folder(carry_ctx *ctx, const folder *f) {
    char path[CARRY_FILE_PATH];
    file_in(ctx, path, f, "config.json");
    (void)unlink(path);
    file_in(ctx, path, f, "model.safetensors");
    (void)unlink(path);
    assert_int_equal(rmdir(f->path), 0);
}

static void put_config(carry_ctx *ctx, const folder *f) {
    char path[CARRY_FILE_PATH];
    file_in(ctx, path, f, "config.json");
    assert_ok(ctx, carry_file_replace(ctx, path, config, strlen(config)));
}

/* Adds the rows first to first + rows - 1 of each expert as tensors of their own. */
static int64_t add_pieces(carry_safetensors_item *items, char (*names)[CARRY_SAFETENSORS_NAME], int64_t count,
                          const carry_tensor *from, const char *name, const char *map, int64_t first, int64_t rows) {
    const char *cut = strstr(name, "experts.");
    assert_non_null(cut);
    for (int64_t e = 0; e < EXPERTS; e++) {
        (void)snprintf(names[count], CARRY_SAFETENSORS_NAME, "%.*sexperts.%d.%s.weight", (int)(cut - name), name,
                       (int)e, map);
        float *data = (float *)from->data + (e * from->shape[1] + first) * from->shape[2];
        items[count] = (carry_safetensors_item){
            .name = names[count], .tensor = carry_view_2d(data, CARRY_F32, rows, from->shape[2]), .dtype = CARRY_F32};
        count++;
    }
    return count;
}

/* Writes a random model, then the same with a tensor for each map of each expert. */
static void write_pieces(carry_ctx *ctx, const folder *to) {
    enum { MOST = 256 };
    static carry_safetensors_item items[MOST];
    static char names[MOST][CARRY_SAFETENSORS_NAME];
    char path[CARRY_FILE_PATH];
    const folder whole = make_folder();
    carry_lm_config parsed;
    carry_lm *lm;
    carry_weights weights;
    int64_t count = 0;
    put_config(ctx, &whole);
    put_config(ctx, to);
    file_in(ctx, path, &whole, "config.json");
    assert_ok(ctx, carry_lm_config_read(ctx, &parsed, path));
    assert_ok(ctx, carry_lm_new(ctx, &lm, &parsed, 0));
    assert_ok(ctx, carry_lm_init(lm, 3));
    assert_ok(ctx, carry_lm_save(lm, whole.path, CARRY_F32));
    carry_lm_free(lm);
    assert_ok(ctx, carry_weights_open(ctx, &weights, whole.path));
    for (int64_t i = 0; i < weights.count; i++) {
        const char *name = carry_weights_name(&weights, i);
        const carry_tensor *from = carry_weights_find(&weights, name);
        assert_true(count + 2 * EXPERTS < MOST);
        if (strstr(name, "experts.gate_up_proj") != NULL) {
            const int64_t half = from->shape[1] / 2;
            count = add_pieces(items, names, count, from, name, "gate_proj", 0, half);
            count = add_pieces(items, names, count, from, name, "up_proj", half, half);
        } else if (strstr(name, "experts.down_proj") != NULL) {
            count = add_pieces(items, names, count, from, name, "down_proj", 0, from->shape[1]);
        } else {
            (void)snprintf(names[count], CARRY_SAFETENSORS_NAME, "%s", name);
            items[count] = (carry_safetensors_item){.name = names[count], .tensor = *from, .dtype = CARRY_F32};
            count++;
        }
    }
    file_in(ctx, path, to, "model.safetensors");
    assert_ok(ctx, carry_safetensors_write(ctx, path, items, count, NULL));
    carry_weights_close(&weights);
    remove_folder(ctx, &whole);
}

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

/* Activations of other matrices may be rounded to f16, 5e-4 of them, which the random model multiplies. */
static void expect_equal(carry_ctx *ctx, const folder *f, const char *format) {
    static float want[1 + STEPS][VOCABULARY], got[1 + STEPS][VOCABULARY];
    carry_lm *lm;
    int kept = 0;
    assert_ok(ctx, carry_lm_load(ctx, &lm, f->path, 0));
    predict(ctx, lm, want);
    carry_lm_free(lm);
    assert_ok(ctx, carry_lm_open(ctx, &lm, f->path, GPU));
    predict(ctx, lm, got);
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_parameter *p = &lm->own.parameter[i];
        kept += p->rank == 3 && p->mapped != NULL;
    }
    carry_lm_free(lm);
    assert_int_equal(kept, 4); /* gate and up, and down, of two layers */
    for (int step = 0; step <= STEPS; step++) {
        double error = 0.0;
        double size = 0.0;
        for (int i = 0; i < VOCABULARY; i++) {
            const double apart = (double)got[step][i] - (double)want[step][i];
            error += apart * apart;
            size += (double)want[step][i] * (double)want[step][i];
        }
        print_message("%s, step %d: %.2g apart\n", format, step, sqrt(error / size));
        assert_true(sqrt(error / size) <= 0.05);
    }
}

static void single_experts_stay_quantised(void **unused) {
    (void)unused;
    static const char *const formats[] = {"fp8_block", "int8", "int4_g64", "q8_0", "q4_0"};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const folder from = make_folder();
    write_pieces(ctx, &from);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const folder to = make_folder();
        carry_quantise_result result;
        assert_ok(ctx, carry_quantise(ctx, from.path, to.path, formats[i], &result));
        expect_equal(ctx, &to, formats[i]);
        remove_folder(ctx, &to);
    }
    remove_folder(ctx, &from);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_experts_stay_quantised),
    };
    if (carry_device_count() < 2) {
        (void)puts("skipped: no GPU");
        return SKIPPED;
    }
    return cmocka_run_group_tests_name("model/quantised_experts_gpu", tests, NULL, NULL);
}
