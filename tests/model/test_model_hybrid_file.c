/* Folders of models with attention: a saved model loads again with the same keys; published names of tensors are found;
   unsupported settings are refused by name before any weight is read. */
#include "hybrid_support.h"

#include <unistd.h>

#include "core/file.h"
#include "file/safetensors.h"

static char folder[64];

static int make_folder(void **unused) {
    (void)unused;
    (void)snprintf(folder, sizeof folder, "/tmp/carry-hybrid-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static const char *in_folder(const char *name) {
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int remove_folder(void **unused) {
    (void)unused;
    (void)unlink(in_folder("config.json"));
    (void)unlink(in_folder("model.safetensors"));
    return rmdir(folder);
}

static void what_is_saved_loads_again(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int i = 0; i < HYBRIDS; i++) {
        carry_lm *lm = model(ctx, hybrid(i));
        carry_lm *back;
        assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
        assert_ok(ctx, carry_lm_load(ctx, &back, folder, 0));
        const carry_lm_config *a = &lm->config;
        const carry_lm_config *b = &back->config;
        assert_int_equal(lm->own.count, back->own.count);
        assert_memory_equal(lm->own.weights, back->own.weights, (size_t)lm->own.count * sizeof(float));
        assert_memory_equal(a->mixer, b->mixer, (size_t)a->num_hidden_layers);
        assert_true(a->family == b->family && a->attention.rotary == b->attention.rotary &&
                    a->attention.window == b->attention.window);
        assert_true(a->attention.heads == b->attention.heads && a->attention.kv_heads == b->attention.kv_heads);
        assert_true(a->attention.head_dim == b->attention.head_dim && a->attention.qk_norm == b->attention.qk_norm);
        assert_true(a->attention.rope_theta == b->attention.rope_theta && a->delta.value == b->delta.value &&
                    a->delta.key == b->delta.key);
        carry_lm_free(back);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* The logits of every token of a short row. */
static void logits_of(carry_ctx *ctx, carry_lm *lm, carry_dtype dtype, void *to) {
    int64_t ids[20];
    carry_lm_pass *pass;
    void *memory;
    for (int64_t i = 0; i < 20; i++) {
        ids[i] = i * 7 % lm->config.vocab_size;
    }
    const carry_lm_pass_options options = {.batch = 1, .tokens = 20, .dtype = dtype, .forward_only = true};
    assert_ok(ctx, carry_lm_pass_new(lm, &pass, &options));
    assert_ok(ctx, carry_lm_pass_take(pass, &memory));
    const int64_t shape[] = {1, 20, lm->config.vocab_size};
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, 20), .logits = carry_view(to, dtype, 3, shape)};
    assert_ok(ctx, carry_lm_run(pass, &args, memory, carry_lm_pass_memory(pass)));
    carry_lm_pass_give(pass, memory);
    carry_lm_pass_free(pass);
}

/* A model that is opened for reading keeps its bf16 matrices in the mapped file and computes the same as a loaded
   one. */
static void a_model_that_is_only_read_stays_in_its_file(void **unused) {
    (void)unused;
    static unsigned char a[20 * 4096];
    static unsigned char b[20 * 4096];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int i = 0; i < HYBRIDS; i++) {
        carry_lm *lm = model(ctx, hybrid(i));
        carry_lm *loaded;
        carry_lm *opened;
        assert_ok(ctx, carry_lm_save(lm, folder, CARRY_BF16));
        assert_ok(ctx, carry_lm_load(ctx, &loaded, folder, 0));
        assert_ok(ctx, carry_lm_open(ctx, &opened, folder, 0));
        /* Rows that are grouped in the file are reordered, and so cannot be mapped. */
        const int64_t most = lm->config.family->grouped != NULL ? loaded->own.count : loaded->own.count / 2;
        assert_true(opened->own.trained == loaded->own.trained && opened->own.count < most);
        assert_true(lm->config.vocab_size * (int64_t)sizeof(float) <= 4096);
        const size_t values = 20 * (size_t)lm->config.vocab_size;
        logits_of(ctx, loaded, CARRY_BF16, a);
        logits_of(ctx, opened, CARRY_BF16, b);
        assert_memory_equal(a, b, values * 2);
        logits_of(ctx, loaded, CARRY_F32, a);
        logits_of(ctx, opened, CARRY_F32, b);
        for (size_t at = 0; at < values; at++) {
            const float x = ((float *)(void *)a)[at];
            assert_true(fabsf(x - ((float *)(void *)b)[at]) <= 1e-5f * (1.0f + fabsf(x)));
        }
        assert_refused(ctx, CARRY_EUNSUPPORTED, "training", carry_lm_want_gradients(opened));
        assert_refused(ctx, CARRY_EUNSUPPORTED, "start values", carry_lm_init(opened, 1));
        assert_ok(ctx, carry_lm_save(opened, folder, CARRY_F32)); /* the old file stays mapped */
        logits_of(ctx, opened, CARRY_F32, a);
        assert_memory_equal(a, b, values * 4);
        carry_lm_free(opened);
        carry_lm_free(loaded);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* Writes the tensors of a model under the names that `rename` gives them, and one more. */
static void write_renamed(carry_ctx *ctx, const carry_lm *lm, void (*rename)(char *to, size_t size, const char *name),
                          const char *more) {
    carry_safetensors_item items[96];
    static char names[96][128];
    static float zeros[4];
    int64_t count = 0;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        rename(names[count], sizeof names[count], lm->own.parameter[i].name);
        items[count] =
            (carry_safetensors_item){.name = names[count], .tensor = carry_lm_weight(lm, i), .dtype = CARRY_F32};
        count++;
    }
    items[count++] = (carry_safetensors_item){.name = more, .tensor = carry_view_1d(zeros, CARRY_F32, 4)};
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder("model.safetensors"), items, count, NULL));
}

static void nest(char *to, size_t size, const char *name) {
    const bool inside = strncmp(name, "model.", 6) == 0;
    (void)snprintf(to, size, "%s%s", inside ? "model.language_model." : "", inside ? name + 6 : name);
}

static void older(char *to, size_t size, const char *name) {
    const char *at = strstr(name, "input_layernorm");
    (void)snprintf(to, size, "%.*s%s", at != NULL ? (int)(at - name) : 127, name,
                   at != NULL ? "attention_layer_norm.weight" : "");
}

static void published_names_are_found(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        carry_lm *lm = model(ctx, hybrid(i));
        carry_lm *back;
        assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
        write_renamed(ctx, lm, i == 0 ? nest : older, i == 0 ? "model.visual.pos_embed.weight" : "mtp.norm.weight");
        assert_ok(ctx, carry_lm_load(ctx, &back, folder, 0));
        assert_memory_equal(lm->own.weights, back->own.weights, (size_t)lm->own.count * sizeof(float));
        carry_lm_free(back);
        write_renamed(ctx, lm, i == 0 ? nest : older, "model.surplus.weight");
        assert_refused(ctx, CARRY_EFORMAT, "model.surplus.weight", carry_lm_load(ctx, &back, folder, 0));
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

static carry_status read_text(carry_ctx *ctx, carry_lm_config *config, const char *text) {
    assert_ok(ctx, carry_file_replace(ctx, in_folder("config.json"), text, strlen(text)));
    return carry_lm_config_read(ctx, config, in_folder("config.json"));
}

static void what_cannot_be_honoured_is_refused_by_name(void **unused) {
    (void)unused;
    static const struct {
        const char *type, *inside, *words;
    } bad[] = {
        {"qwen3_5_text", "\"layer_types\": [\"sliding_attention\"]",
         "layer 0 of \"layer_types\" is \"sliding_attention\""},
        {"qwen3_5_text", "\"layer_types\": [\"full_attention\"]", "layer_types lists 1 layers"},
        {"qwen3_5_text", "\"hidden_act\": \"gelu\"", "\"hidden_act\" is \"gelu\""},
        {"qwen3_5_text", "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4}", "\"rope_type\" is \"yarn\""},
        {"olmo_hybrid", "\"rope_parameters\": {\"rope_type\": \"llama3\"}", "\"rope_type\" is \"llama3\""},
        {"qwen3_5_text", "\"quantization_config\": {\"bits\": 4}",
         "\"quant_method\" of quantization_config is missing"},
        {"gated_deltanet", "\"attention_bias\": true", "\"attention_bias\" is true"},
        {"qwen3_5_moe_text", "\"mlp_bias\": true", "\"mlp_bias\" is true"},
        {"mamba2", "\"mlp_bias\": true", "\"mlp_bias\" is true"},
        {"mamba2", "\"rms_norm\": false", "\"rms_norm\" is false"},
        {"granitemoehybrid", "\"normalization_function\": \"layernorm\"", "only \"rmsnorm\""},
        {"olmo_hybrid", "\"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5"},
        {"qwen3_5_text", "\"is_causal\": false", "\"is_causal\" is false"},
        {"qwen3_next", "\"scoring_func\": \"sigmoid\"", "expected \"softmax\""},
        {"nemotron_h", "\"scoring_func\": \"softmax\"", "expected \"sigmoid\""},
        {"kimi_linear", "\"moe_router_activation_func\": \"softmax\"", "expected \"sigmoid\""},
        {"kimi_linear", "\"mla_use_nope\": false", "\"mla_use_nope\" is false"},
        {"kimi_linear", "\"moe_layer_freq\": 2", "only 1"},
        {"kimi_linear", "\"num_expert_group\": 2, \"n_group\": 4", "\"num_expert_group\" has the same meaning"},
        {"kimi_linear", "\"moe_renormalize\": true, \"norm_topk_prob\": false", "\"moe_renormalize\" has the same"},
        {"bailing_hybrid", "\"rope_scaling\": {\"rope_type\": \"linear\"}", "\"rope_type\" is \"linear\""},
        {"qwen3_5_text", "\"attn_output_gate\": false", "\"attn_output_gate\" is false"},
        {"qwen3_5_text", "\"num_key_value_heads\": 3", "16 heads and 3 heads of keys"},
        {"qwen3_5_text", "\"head_dim\": 512", "the width of an attention head is 512"},
        {"olmo_hybrid", "\"num_attention_heads\": 0", "\"num_attention_heads\" is 0"},
        {"gated_deltanet", "\"attn\": {\"layers\": [1], \"num_heads\": 4, \"qkv_bias\": true}", "\"qkv_bias\" is true"},
        {"gated_deltanet", "\"attn\": {\"layers\": [-1], \"num_heads\": 4}", "\"layers\" is"},
        {"gated_deltanet", "\"attn\": {\"layers\": [1], \"num_heads\": 4, \"what\": 1}", "\"what\" is 1"},
        {"qwen3_5", "\"text_config\": null", "\"text_config\""},
        {"qwen3_next", "\"num_experts\": 8", "the number of experts of a token is 10 and must be 1 to 8"},
        {"qwen3_next", "\"num_experts\": 5000", "the number of experts is 5000"},
        {"qwen3_5_moe_text", "\"num_experts\": 0", "\"num_experts\" is 0"},
        {"qwen3_5_moe_text", "\"moe_intermediate_size\": 0", "\"moe_intermediate_size\" is 0"},
        {"qwen3_5_moe_text", "\"mlp_only_layers\": [2]", "\"mlp_only_layers\" is"},
        {"qwen3_next", "\"num_experts\": -1", "\"num_experts\" is -1"},
        {"qwen3_next", "\"mlp_only_layers\": [-1]", "\"mlp_only_layers\" is"},
        {"qwen3_next", "\"mlp_only_layers\": 4", "\"mlp_only_layers\" is 4"},
        {"qwen3_5_moe", "\"num_experts\": 8", "\"text_config\""},
        {"mixtral", "\"num_experts\": 8", "gated_deltaproduct, qwen3_5_moe_text, qwen3_5_moe"},
    };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config c;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s}", bad[i].type, bad[i].inside);
        const carry_status status = read_text(ctx, &c, text);
        if (status == CARRY_OK || strstr(carry_ctx_error(ctx), bad[i].words) == NULL) {
            fail_msg("%s: %s, %s", text, carry_status_name(status), carry_ctx_error(ctx));
        }
    }
    carry_ctx_free(ctx);
}

static void configurations_mean_what_their_origin_means(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config c;
    assert_ok(ctx, read_text(ctx, &c,
                             "{\"model_type\": \"qwen3_5\", \"tie_word_embeddings\": true, \"vision_config\": {}, "
                             "\"text_config\": {\"model_type\": \"qwen3_5_text\", \"num_hidden_layers\": 8, "
                             "\"rope_parameters\": {\"rope_theta\": 10000000, \"mrope_section\": [11, 11, 10]}}}"));
    assert_true(c.family == &carry_lm_family_qwen3_5 && c.tie_word_embeddings && c.attention.rotary == 64);
    for (int64_t i = 0; i < 8; i++) {
        assert_int_equal(c.mixer[i], i % 4 == 3 ? CARRY_LM_MIXER_ATTENTION : CARRY_LM_MIXER_DELTA);
    }
    assert_ok(ctx, read_text(ctx, &c, "{\"model_type\": \"qwen3_next\", \"num_experts\": 0}"));
    assert_true(c.num_hidden_layers == 48 && c.mixer[3] == CARRY_LM_MIXER_ATTENTION && c.attention.kv_heads == 2);
    assert_ok(ctx, read_text(ctx, &c,
                             "{\"model_type\": \"qwen3_next\", \"num_hidden_layers\": 3, \"mlp_only_layers\": [1], "
                             "\"decoder_sparse_step\": 2}"));
    assert_true(c.feedforward[0] == CARRY_LM_FEEDFORWARD_SWIGLU && c.feedforward[1] == CARRY_LM_FEEDFORWARD_SWIGLU &&
                c.feedforward[2] == CARRY_LM_FEEDFORWARD_SWIGLU);
    assert_ok(ctx, read_text(ctx, &c, "{\"model_type\": \"qwen3_next\", \"decoder_sparse_step\": 2}"));
    assert_true(c.feedforward[0] == CARRY_LM_FEEDFORWARD_SWIGLU && c.feedforward[1] == CARRY_LM_FEEDFORWARD_EXPERTS &&
                c.experts.count == 512 && c.experts.chosen == 10 && c.experts.router.normalise);
    assert_ok(ctx, read_text(ctx, &c, "{\"model_type\": \"qwen3_5_moe_text\"}"));
    assert_true(c.feedforward[39] == CARRY_LM_FEEDFORWARD_EXPERTS && c.experts.count == 256 && c.experts.chosen == 8 &&
                c.experts.shared_gate && c.attention.kv_heads == 2);
    assert_ok(ctx, read_text(ctx, &c, "{\"model_type\": \"olmo_hybrid\"}"));
    assert_true(c.attention.rotary == 0 && c.delta.heads == 30 && c.delta.key == 96 && c.delta.value == 192 &&
                c.attention.head_dim == 128);
    assert_ok(ctx, read_text(ctx, &c,
                             "{\"model_type\": \"gated_deltanet\", \"attn\": {\"layers\": [2], \"num_heads\": 32, "
                             "\"num_kv_heads\": 8, \"window_size\": 2048, \"rope_theta\": 500000.0}}"));
    assert_true(c.mixer[2] == CARRY_LM_MIXER_ATTENTION && c.attention.kv_heads == 8 && c.attention.window == 2048);
    assert_true(c.attention.rotary == 64 && c.attention.rope_theta == 500000.0 && c.mixer[1] == CARRY_LM_MIXER_DELTA);
    /* the object takes precedence, wherever it is */
    assert_ok(ctx,
              read_text(ctx, &c,
                        "{\"model_type\": \"qwen3_5_text\", \"rope_parameters\": {\"rope_theta\": 300.0, "
                        "\"partial_rotary_factor\": 0.5}, \"rope_theta\": 70.0, \"partial_rotary_factor\": 0.25}"));
    assert_true(c.attention.rope_theta == 300.0 && c.attention.rotary == 128);
    assert_ok(ctx, read_text(ctx, &c,
                             "{\"model_type\": \"kimi_linear\", \"num_experts_per_tok\": 3, \"num_local_experts\": 16, "
                             "\"n_group\": 1, \"num_expert_group\": 1}"));
    assert_true(c.experts.chosen == 3 && c.experts.count == 16);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_loads_again),
        cmocka_unit_test(a_model_that_is_only_read_stays_in_its_file),
        cmocka_unit_test(published_names_are_found),
        cmocka_unit_test(what_cannot_be_honoured_is_refused_by_name),
        cmocka_unit_test(configurations_mean_what_their_origin_means),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
