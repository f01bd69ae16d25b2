/* config.json: flash-linear-attention's defaults, every refusal by name, and a written file that reads back the
   same. */
#include "support.h"

#include <unistd.h>

#include "model/lm/families/fla.h"

static char logged[1024];
static int lines;

static void keep(void *user, carry_log_level level, const char *line) {
    (void)user;
    if (level == CARRY_LOG_WARNING) {
        lines++;
        (void)snprintf(logged, sizeof logged, "%s", line);
    }
}

static carry_ctx *listening(void) {
    carry_ctx *ctx;
    assert_int_equal(
        carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1, .log = keep}), CARRY_OK);
    logged[0] = '\0';
    lines = 0;
    return ctx;
}

static carry_status read_text(carry_ctx *ctx, carry_lm_config *config, const char *text) {
    carry_json *root;
    assert_ok(ctx, carry_json_parse(ctx, &root, text, strlen(text), "config.json"));
    carry_status status = carry_lm_config_parse(ctx, config, root, "config.json");
    carry_json_free(root);
    return status;
}

static void missing_keys_have_the_defaults(void **unused) {
    (void)unused;
    carry_ctx *ctx = listening();
    carry_lm_config c;
    assert_ok(ctx, read_text(ctx, &c, "{\"model_type\": \"gated_deltanet\"}"));
    assert_true(c.family == &carry_lm_family_gated_deltanet && c.vocab_size == 32000 && c.hidden_size == 2048);
    assert_true(c.num_hidden_layers == 21 && c.delta.heads == 6 && c.delta.value_heads == 6 && c.delta.key == 256 &&
                c.delta.value == 512);
    assert_true(c.delta.key_width == 1536 && c.delta.value_width == 3072 && c.swiglu.width == 5632 &&
                c.delta.conv_size == 4);
    assert_true(c.delta.use_gate && c.delta.use_short_conv && !c.delta.allow_neg_eigval && !c.tie_word_embeddings);
    assert_true(c.norm_eps == 1e-6 && c.bos_token_id == 1 && c.eos_token_id == 2 && c.pad_token_id == -1);
    assert_ok(ctx, read_text(ctx, &c, "{\"model_type\": \"delta_net\"}"));
    assert_true(c.family == &carry_lm_family_delta_net && c.num_hidden_layers == 24 && c.delta.heads == 16 &&
                c.delta.key == 128);
    assert_true(c.delta.value == 128 && !c.delta.use_gate && c.delta.use_beta && c.delta.qk_activation == CARRY_SILU &&
                c.swiglu.width == 5632);
    assert_int_equal(lines, 0);
    carry_ctx_free(ctx);
}

static void keys_are_heeded(void **unused) {
    (void)unused;
    carry_ctx *ctx = listening();
    carry_lm_config c;
    assert_ok(ctx,
              read_text(ctx, &c,
                        "{\"model_type\": \"gated_deltanet\", \"hidden_size\": 64, \"expand_v\": 2, \"head_dim\": 32,"
                        "\"num_heads\": 2, \"num_v_heads\": 4, \"intermediate_size\": null, \"hidden_ratio\": null,"
                        "\"attn\": null, \"eos_token_id\": [7, 8], \"pad_token_id\": 0, \"use_gate\": false,"
                        "\"hidden_act\": \"silu\", \"fuse_norm\": true, \"use_l2warp\": false, "
                        "\"output_gate_activation\": \"swish\"}"));
    assert_true(c.delta.value_heads == 4 && c.delta.value == 64 && c.swiglu.width == 256 && c.eos_token_id == 7);
    assert_true(c.pad_token_id == 0 && !c.delta.use_gate && c.delta.value_width == 256);
    assert_ok(ctx,
              read_text(ctx, &c,
                        "{\"model_type\": \"delta_net\", \"hidden_size\": 96, \"expand_k\": 0.5, \"expand_v\": 1.5,"
                        "\"num_heads\": 3, \"qk_activation\": \"elu\", \"use_beta\": false, \"qk_norm\": \"l2\"}"));
    assert_true(c.delta.key == 16 && c.delta.value == 48 && c.delta.qk_activation == CARRY_ELU && !c.delta.use_beta);
    assert_int_equal(lines, 0);
    carry_ctx_free(ctx);
}

static void unknown_keys_are_warned_about_in_one_line(void **unused) {
    (void)unused;
    carry_ctx *ctx = listening();
    carry_lm_config c;
    assert_ok(ctx, read_text(ctx, &c, "{\"model_type\": \"delta_net\", \"head_dim\": 3, \"frobnicate\": {\"x\": []}}"));
    assert_int_equal(lines, 1);
    assert_non_null(strstr(logged, "head_dim, frobnicate"));
    carry_ctx_free(ctx);
}

static void unknown_keys_that_change_the_model_are_refused(void **unused) {
    (void)unused;
    static const char *const bad[] = {"\"attention_sinks\": 4", "\"final_logit_softcapping\": 30.0",
                                      "\"sliding_window\": 512", "\"logits_scaling\": 8", "\"use_alibi\": true"};
    static const char *const harmless[] = {"\"attention_sinks\": 0", "\"final_logit_softcapping\": null",
                                           "\"sliding_window\": 512, \"use_sliding_window\": false",
                                           "\"logits_scaling\": 1.0", "\"use_alibi\": false"};
    carry_ctx *ctx = listening();
    carry_lm_config c;
    char text[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)snprintf(text, sizeof text, "{\"model_type\": \"delta_net\", %s}", bad[i]);
        assert_int_equal(read_text(ctx, &c, text), CARRY_EUNSUPPORTED);
        assert_non_null(strstr(carry_ctx_error(ctx), "models of type delta_net do not have it"));
        (void)snprintf(text, sizeof text, "{\"model_type\": \"delta_net\", %s}", harmless[i]);
        assert_ok(ctx, read_text(ctx, &c, text));
    }
    carry_ctx_free(ctx);
}

static void what_cannot_be_honoured_is_refused_by_name(void **unused) {
    (void)unused;
    static const struct {
        const char *inside, *words;
    } bad[] = {
        {"\"attn\": {\"layers\": [1]}", "\"attn\" is {...}"},
        {"\"hidden_act\": \"gelu\"", "\"hidden_act\" is \"gelu\""},
        {"\"output_gate_activation\": \"sigmoid\"", "\"output_gate_activation\" is \"sigmoid\""},
        {"\"conv_bias\": true", "\"conv_bias\" is true"},
        {"\"use_l2warp\": true", "\"use_l2warp\" is true"},
        {"\"attnres_block_size\": 4", "\"attnres_block_size\" is 4"},
        {"\"hidden_size\": \"64\"", "\"hidden_size\" is \"64\""},
        {"\"hidden_size\": 64.5", "\"hidden_size\" is 64.5"},
        {"\"hidden_size\": 0", "\"hidden_size\" is 0"},
        {"\"hidden_size\": -4", "\"hidden_size\" is -4"},
        {"\"hidden_size\": null", "\"hidden_size\" is null"},
        {"\"hidden_size\": 1000000000000", "hidden_size is 1000000000000"},
        {"\"vocab_size\": 9223372036854775807", "vocab_size"},
        {"\"num_hidden_layers\": 100000", "num_hidden_layers is 100000"},
        {"\"num_heads\": 16777216, \"num_v_heads\": 16777216", "width"},
        {"\"num_v_heads\": 7", "num_v_heads is 7"},
        {"\"head_dim\": 257", "head_dim is 257"},
        {"\"expand_v\": 0.3", "expand_v 0.3"},
        {"\"expand_v\": 1e300", "expand_v"},
        {"\"expand_v\": 1e999", "\"expand_v\" is inf"},
        {"\"use_gate\": 1", "\"use_gate\" is 1"},
        {"\"conv_size\": 17", "conv_size is 17"},
        {"\"norm_eps\": 0", "\"norm_eps\" is 0"},
        {"\"eos_token_id\": \"x\"", "\"eos_token_id\" is \"x\""},
        {"\"use_gate\": true, \"use_gate\": true", "duplicate"},
        {"\"hidden_ratio\": 1e9", "hidden_ratio"},
    };
    carry_ctx *ctx = listening();
    carry_lm_config c;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, "{\"model_type\": \"gated_deltanet\", %s}", bad[i].inside);
        carry_status status = read_text(ctx, &c, text);
        if ((status != CARRY_EUNSUPPORTED && status != CARRY_ESIZE) ||
            strstr(carry_ctx_error(ctx), bad[i].words) == NULL) {
            fail_msg("%s: %s, %s", bad[i].inside, carry_status_name(status), carry_ctx_error(ctx));
        }
    }
    assert_refused(ctx, CARRY_EUNSUPPORTED, "\"qk_norm\" is \"sum\"",
                   read_text(ctx, &c, "{\"model_type\": \"delta_net\", \"qk_norm\": \"sum\"}"));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "\"qk_activation\" is \"tanh\"",
                   read_text(ctx, &c, "{\"model_type\": \"delta_net\", \"qk_activation\": \"tanh\"}"));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "num_heads is 7",
                   read_text(ctx, &c, "{\"model_type\": \"delta_net\", \"num_heads\": 7}"));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "\"model_type\" is \"llama\"",
                   read_text(ctx, &c, "{\"model_type\": \"llama\"}"));
    assert_refused(ctx, CARRY_EFORMAT, "model_type", read_text(ctx, &c, "{}"));
    assert_refused(ctx, CARRY_EFORMAT, "model_type", read_text(ctx, &c, "[1]"));
    carry_ctx_free(ctx);
}

static void what_is_written_reads_back_the_same(void **unused) {
    (void)unused;
    carry_ctx *ctx = listening();
    char path[] = "/tmp/carry-config-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    (void)close(file);
    for (int i = 0; i < 3; i++) {
        carry_lm_config c =
            carry_lm_config_default(i == 0 ? &carry_lm_family_gated_deltanet : &carry_lm_family_delta_net);
        carry_lm_config back;
        c.hidden_size = 96;
        c.delta.heads = 3;
        c.norm_eps = 1e-5;
        c.delta.allow_neg_eigval = i == 1;
        carry_lm_fla_of(&c)->num_v_heads = i == 0 ? 6 : 0;
        carry_lm_fla_of(&c)->expand_v = 1.5;
        carry_lm_fla_of(&c)->hidden_ratio = i == 0 ? 3.5 : 4.0;
        carry_lm_fla_of(&c)->intermediate_size = i == 1 ? 77 : 0;
        c.delta.qk_activation = i == 2 ? CARRY_NO_ACTIVATION : CARRY_SILU;
        c.pad_token_id = i == 0 ? 5 : -1;
        c.eos_token_id = i == 1 ? -1 : 2;
        assert_ok(ctx, carry_lm_config_finish(ctx, &c));
        assert_ok(ctx, carry_lm_config_write(ctx, &c, CARRY_F32, path));
        assert_ok(ctx, carry_lm_config_read(ctx, &back, path));
        carry_json *root; /* padding inside the structs may differ: compares the texts that a second write gives */
        char second[64];
        (void)snprintf(second, sizeof second, "%s.2", path);
        assert_ok(ctx, carry_lm_config_write(ctx, &back, CARRY_BF16, second));
        assert_ok(ctx, carry_json_read(ctx, &root, second, 1 << 20));
        assert_true(carry_json_find(root, "num_heads")->as.number.integer == 3);
        assert_true(carry_json_is_text(carry_json_find(root, "dtype"), "bfloat16"));
        carry_json_free(root);
        assert_true(back.family == c.family && back.norm_eps == c.norm_eps &&
                    back.delta.allow_neg_eigval == c.delta.allow_neg_eigval);
        assert_true(back.delta.value == c.delta.value && back.delta.key == c.delta.key &&
                    back.swiglu.width == c.swiglu.width);
        assert_true(back.delta.value_heads == c.delta.value_heads && back.delta.qk_activation == c.delta.qk_activation);
        assert_true(back.pad_token_id == c.pad_token_id && back.eos_token_id == c.eos_token_id);
        (void)unlink(second);
    }
    assert_int_equal(lines, 0); /* no written key is unknown */
    (void)unlink(path);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_keys_have_the_defaults),
        cmocka_unit_test(keys_are_heeded),
        cmocka_unit_test(unknown_keys_are_warned_about_in_one_line),
        cmocka_unit_test(unknown_keys_that_change_the_model_are_refused),
        cmocka_unit_test(what_cannot_be_honoured_is_refused_by_name),
        cmocka_unit_test(what_is_written_reads_back_the_same),
    };
    return cmocka_run_group_tests_name("model/config", tests, NULL, NULL);
}
