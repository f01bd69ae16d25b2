/* Known shapes and random weights. */
#include "engine/model_random.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/context.h"
#include "core/file.h"
#include "core/nearest.h"
#include "ops/quantised/quantised.h"

#define ROPE "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e7, \"partial_rotary_factor\": 0.25}"
#define QWEN                                                                                                          \
    "\"linear_conv_kernel_dim\": 4, \"full_attention_interval\": 4, \"rms_norm_eps\": 1e-6, \"bos_token_id\": null, " \
    "\"eos_token_id\": null, \"pad_token_id\": null, " ROPE

static const struct {
    const char *name, *config;
} shapes[] = {
    {"tiny", "{\"model_type\": \"qwen3_5_text\", \"hidden_size\": 256, \"num_hidden_layers\": 4, "
             "\"intermediate_size\": 512, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, "
             "\"linear_num_key_heads\": 4, \"linear_num_value_heads\": 4, \"linear_key_head_dim\": 64, "
             "\"linear_value_head_dim\": 64, \"vocab_size\": 4096, \"tie_word_embeddings\": true, " QWEN "}"},
    {"qwen3.5-0.8b",
     "{\"model_type\": \"qwen3_5_text\", \"hidden_size\": 1024, \"num_hidden_layers\": 24, "
     "\"intermediate_size\": 3584, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 256, "
     "\"linear_num_key_heads\": 16, \"linear_num_value_heads\": 16, \"linear_key_head_dim\": 128, "
     "\"linear_value_head_dim\": 128, \"vocab_size\": 248320, \"tie_word_embeddings\": true, " QWEN "}"},
    {"qwen3.5-4b",
     "{\"model_type\": \"qwen3_5_text\", \"hidden_size\": 2560, \"num_hidden_layers\": 32, "
     "\"intermediate_size\": 9216, \"num_attention_heads\": 16, \"num_key_value_heads\": 4, \"head_dim\": 256, "
     "\"linear_num_key_heads\": 16, \"linear_num_value_heads\": 32, \"linear_key_head_dim\": 128, "
     "\"linear_value_head_dim\": 128, \"vocab_size\": 248320, \"tie_word_embeddings\": true, " QWEN "}"},
    {"qwen3.5-35b-a3b",
     "{\"model_type\": \"qwen3_5_moe_text\", \"hidden_size\": 2048, \"num_hidden_layers\": 40, "
     "\"num_experts\": 256, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 512, "
     "\"shared_expert_intermediate_size\": 512, \"num_attention_heads\": 16, \"num_key_value_heads\": 2, "
     "\"head_dim\": 256, \"linear_num_key_heads\": 16, \"linear_num_value_heads\": 32, \"linear_key_head_dim\": 128, "
     "\"linear_value_head_dim\": 128, \"vocab_size\": 248320, \"tie_word_embeddings\": false, " QWEN "}"},
};

#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

const char *carry_model_random_name(int index) {
    return index >= 0 && index < SHAPES ? shapes[index].name : NULL;
}

static carry_status parse_shape(carry_ctx *ctx, carry_lm_config *config, int index) {
    carry_json *root;
    CARRY_TRY(carry_json_parse(ctx, &root, shapes[index].config, strlen(shapes[index].config), shapes[index].name));
    const carry_status status = carry_lm_config_parse(ctx, config, root, shapes[index].name);
    carry_json_free(root);
    return status;
}

carry_status carry_model_random_config(carry_ctx *ctx, carry_lm_config *config, const char *name) {
    char path[CARRY_FILE_PATH];
    char hint[CARRY_NEAREST_HINT];
    struct stat about;
    carry_nearest near = carry_nearest_to(name);
    for (int i = 0; i < SHAPES; i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            return parse_shape(ctx, config, i);
        }
        carry_nearest_offer(&near, shapes[i].name);
    }
    if (stat(name, &about) != 0) {
        return carry_fail(ctx, CARRY_ENOTFOUND,
                          "'%s' is neither a file nor a shape%s Shapes are tiny, qwen3.5-0.8b, qwen3.5-4b and "
                          "qwen3.5-35b-a3b",
                          name, near.best[0] != '\0' ? carry_nearest_hint(hint, &near, "") : ".");
    }
    CARRY_TRY(carry_file_in(ctx, path, name, "config.json"));
    return carry_lm_config_read(ctx, config, S_ISDIR(about.st_mode) ? path : name);
}

carry_status carry_model_random_quantised(carry_ctx *ctx, carry_lm **lm, const char *name, int device,
                                          carry_dtype dtype, const char *format, uint64_t seed) {
    carry_lm_config config;
    char names[CARRY_QUANT_NAMES];
    const carry_quant_format *found = format != NULL ? carry_quant_format_named(format) : NULL;
    *lm = NULL;
    if (format != NULL && found == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "--quantise '%s': expected %s", format,
                          carry_quant_format_names(names));
    }
    CARRY_TRY(carry_model_random_config(ctx, &config, name));
    const bool narrow = device != 0 && dtype != CARRY_F32;
    CARRY_TRY(found != NULL ? carry_lm_new_quantised(ctx, lm, &config, device, found, narrow ? dtype : CARRY_F32)
              : narrow      ? carry_lm_new_narrow(ctx, lm, &config, device, dtype)
                            : carry_lm_new(ctx, lm, &config, device));
    carry_status status = carry_lm_init_there(*lm, seed);
    if (status == CARRY_OK && dtype != CARRY_F32 && !narrow) {
        status = carry_parameters_want_low(&(*lm)->own, dtype);
    }
    (*lm)->own.reads_only = true; /* like a model that was opened for reading */
    if (status != CARRY_OK) {
        carry_lm_free(*lm);
        *lm = NULL;
    }
    return status;
}

carry_status carry_model_random(carry_ctx *ctx, carry_lm **lm, const char *name, int device, carry_dtype dtype,
                                uint64_t seed) {
    return carry_model_random_quantised(ctx, lm, name, device, dtype, NULL, seed);
}
