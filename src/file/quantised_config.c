/* Reads quantization_config of a config.json. */
#include <inttypes.h>
#include <stdio.h>

#include "core/error.h"
#include "file/quantised.h"

#define METHODS "fp8, int8, blocks, awq, gptq or auto-round"

static carry_status refuse(carry_ctx *ctx, const char *name, const char *key, const carry_json *node,
                           const char *accepted) {
    char shown[CARRY_JSON_SHOWN];
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: \"%s\" of quantization_config is %s: expected %s", name, key,
                      node != NULL ? carry_json_show(shown, node) : "missing", accepted);
}

static bool is_whole(const carry_json *node, int64_t value) {
    return node != NULL && node->kind == CARRY_JSON_NUMBER && node->whole && node->as.number.integer == value;
}

static carry_status read_fp8(carry_ctx *ctx, const carry_json *node, const char *name) {
    const carry_json *block = carry_json_find(node, "weight_block_size");
    const carry_json *first = carry_json_first(block);
    return carry_json_count(block) == 2 && is_whole(first, 128) && is_whole(first->next, 128)
               ? CARRY_OK
               : refuse(ctx, name, "weight_block_size", block, "[128, 128]");
}

static carry_status read_blocks(carry_ctx *ctx, carry_quant_config *config, const carry_json *node, const char *name) {
    const carry_json *format = carry_json_find(node, "format");
    for (int i = 0; carry_quant_format_at(i) != NULL; i++) {
        if (carry_quant_is_gguf(carry_quant_format_at(i)) &&
            carry_json_is_text(format, carry_quant_format_at(i)->name)) {
            config->format = carry_quant_format_at(i);
            return CARRY_OK;
        }
    }
    return refuse(ctx, name, "format", format, "\"q8_0\", \"q4_0\", \"q4_k\", \"q5_k\" or \"q6_k\"");
}

static carry_status read_int4(carry_ctx *ctx, carry_quant_config *config, const carry_json *node, const char *name) {
    const carry_json *bits = carry_json_find(node, "bits");
    const carry_json *group = carry_json_find(node, "group_size");
    if (!is_whole(bits, 4)) {
        return refuse(ctx, name, "bits", bits, "4");
    }
    if (group == NULL || group->kind != CARRY_JSON_NUMBER || !group->whole || group->as.number.integer < -1 ||
        group->as.number.integer == 0) {
        return refuse(ctx, name, "group_size", group, "-1, 32, 64 or a multiple of 128");
    }
    config->group = group->as.number.integer;
    return CARRY_OK;
}

/* AWQ versions differ in the order of nibbles; only "gemm" is supported. */
static carry_status read_awq(carry_ctx *ctx, const carry_json *node, const char *name) {
    const carry_json *version = carry_json_find(node, "version");
    return version == NULL || carry_json_is_text(version, "gemm") || carry_json_is_text(version, "GEMM")
               ? CARRY_OK
               : refuse(ctx, name, "version", version, "\"gemm\"");
}

static carry_status read_gptq(carry_ctx *ctx, carry_quant_config *config, const carry_json *node, const char *name) {
    const carry_json *form = carry_json_find(node, "checkpoint_format");
    const bool is_second = carry_json_is_text(form, "gptq_v2");
    if (form != NULL && !is_second && !carry_json_is_text(form, "gptq")) {
        return refuse(ctx, name, "checkpoint_format", form, "\"gptq\" or \"gptq_v2\"");
    }
    config->zero_plus = is_second ? 0 : 1;
    return CARRY_OK;
}

static carry_status read_auto_round(carry_ctx *ctx, carry_quant_config *config, const carry_json *node,
                                    const char *name) {
    const carry_json *form = carry_json_find(node, "packing_format");
    const bool is_awq = carry_json_is_text(form, "auto_round:auto_awq");
    if (!is_awq && !carry_json_is_text(form, "auto_round:auto_gptq")) {
        return refuse(ctx, name, "packing_format", form, "\"auto_round:auto_gptq\" or \"auto_round:auto_awq\"");
    }
    config->layout = is_awq ? CARRY_QUANT_AWQ : CARRY_QUANT_GPTQ;
    config->zero_plus = is_awq ? 0 : 1;
    return CARRY_OK;
}

carry_status carry_quant_config_parse(carry_ctx *ctx, carry_quant_config *config, const carry_json *node,
                                      const char *name) {
    const carry_json *method = carry_json_find(node, "quant_method");
    *config = (carry_quant_config){.group = -1};
    if (carry_json_is_text(method, "fp8")) {
        config->layout = CARRY_QUANT_FP8;
        return read_fp8(ctx, node, name);
    }
    if (carry_json_is_text(method, "int8")) {
        config->layout = CARRY_QUANT_INT8;
        return CARRY_OK;
    }
    if (carry_json_is_text(method, "blocks")) {
        config->layout = CARRY_QUANT_BLOCKS;
        return read_blocks(ctx, config, node, name);
    }
    const bool is_awq = carry_json_is_text(method, "awq");
    const bool is_gptq = carry_json_is_text(method, "gptq");
    if (!is_awq && !is_gptq && !carry_json_is_text(method, "auto-round")) {
        return refuse(ctx, name, "quant_method", method, METHODS);
    }
    config->layout = is_awq ? CARRY_QUANT_AWQ : CARRY_QUANT_GPTQ;
    CARRY_TRY(read_int4(ctx, config, node, name));
    return is_awq    ? read_awq(ctx, node, name)
           : is_gptq ? read_gptq(ctx, config, node, name)
                     : read_auto_round(ctx, config, node, name);
}
