/* carry quantise: writes a model folder with quantised weights. */
#include <math.h>
#include <string.h>

#include "cli/cli.h"
#include "core/file.h"
#include "engine/evaluate.h"
#include "file/checkpoint.h"
#include "file/hub_cache.h"
#include "file/quantise.h"

/* The perplexity of a text under the model in a folder, or NaN after printing a message. */
static double perplexity(carry_ctx *ctx, const char *folder, const char *text) {
    carry_model model;
    carry_evaluation found;
    const carry_evaluate_options options = {.dtype = CARRY_F32};
    double value = NAN;
    if (carry_model_open(ctx, &model, folder, 0) != CARRY_OK) {
        (void)cli_failed(ctx);
        return value;
    }
    if (carry_evaluate(ctx, &model, text, &options, &found) == CARRY_OK) {
        value = exp(carry_evaluation_loss(&found));
    } else {
        (void)cli_failed(ctx);
    }
    carry_model_close(&model);
    return value;
}

static void print_result(const cli_common *common, const char *format, const char *to,
                         const carry_quantise_result *result, const double of[2]) {
    if (common->json) {
        cli_json_open();
        cli_json_text("format", format);
        cli_json_text("folder", to);
        cli_json_integer("matrices", result->matrices);
        cli_json_integer("kept", result->kept);
        cli_json_integer("bytes_in", result->bytes_in);
        cli_json_integer("bytes_out", result->bytes_out);
        if (of[0] > 0.0) {
            cli_json_number("perplexity_before", of[0]);
            cli_json_number("perplexity_after", of[1]);
        }
        cli_json_close();
        return;
    }
    (void)printf("%s: %lld matrices in %s, %lld tensors kept; %.1f MB of %.1f MB\n", to, (long long)result->matrices,
                 format, (long long)result->kept, (double)result->bytes_out / 1e6, (double)result->bytes_in / 1e6);
    if (of[0] > 0.0) {
        (void)printf("perplexity %.4f before, %.4f after\n", of[0], of[1]);
    }
}

static int quantise(carry_ctx *ctx, const cli_common *common, char **words, const char *format, const char *text) {
    char found[CARRY_FILE_PATH];
    char from[CARRY_FILE_PATH];
    carry_quantise_result result;
    double of[2] = {0.0, 0.0};
    if (carry_hub_resolve(ctx, found, words[0]) != CARRY_OK || carry_checkpoint_resolve(ctx, from, found) != CARRY_OK ||
        carry_quantise(ctx, from, words[1], format, &result) != CARRY_OK) {
        return cli_failed(ctx);
    }
    for (int i = 0; text != NULL && i < 2; i++) {
        of[i] = perplexity(ctx, i == 0 ? from : words[1], text);
        if (isnan(of[i])) {
            return CLI_IMPOSSIBLE;
        }
    }
    print_result(common, format, words[1], &result, of);
    return CLI_DONE;
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    const char *format = NULL;
    const char *text = NULL;
    const cli_option own[] = {
        {"format", 0, CLI_TEXT, &format, "NAME",
         "fp8_block, int8, int4_g32, int4_g64, int4_g128, q8_0, q4_0, q4_k, q5_k or q6_k"},
        {"text", 0, CLI_TEXT, &text, "FILE", "print the perplexity of this text before and after, computed in f32"},
        {0},
    };
    const int words = cli_parse(&cli_quantise, count, arguments, own, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (words != 2 || format == NULL) {
        return cli_refuse("quantise needs a model, a new folder and a format: carry quantise IN OUT --format NAME");
    }
    if (strcmp(arguments[0], arguments[1]) == 0) {
        return cli_refuse("quantise writes a new folder: OUT is IN, %s", arguments[0]);
    }
    carry_ctx *ctx = cli_open(&common);
    if (ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    const int code = quantise(ctx, &common, arguments, format, text);
    carry_ctx_free(ctx);
    return code;
}

const cli_verb cli_quantise = {
    .name = "quantise",
    .arguments = "IN OUT --format NAME",
    .summary = "write a model folder with quantised weights",
    .details =
        "Reads the folder IN and writes OUT with the matrices of its layers in fewer bits: fp8_block (8-bit floats,\n"
        "one scale for 128 x 128), int8 (one scale for each row), int4_g32, int4_g64, int4_g128 (4 bits, a scale and\n"
        "a zero point for each group of inputs) or the blocks of GGUF files, q8_0, q4_0, q4_k, q5_k, q6_k. "
        "Embeddings,\n"
        "head, norms, convolutions and routers keep their type. The layouts are those of Hugging Face's fp8 and gptq;\n"
        "folders in int8 and in GGUF's blocks are read by Carry alone. Values are rounded to nearest: there is no\n"
        "calibration.\n\n"
        "carry generate, eval and serve read such folders, those of AWQ, GPTQ, AutoRound and fp8, and .gguf files of\n"
        "Qwen3.5 (Q8_0, Q4_0, Q4_K, Q5_K, Q6_K).",
    .example = "carry quantise model model-int4 --format int4_g128 --text wiki.test.tokens",
    .support = {.cpu = "f32 bf16 f16"},
    .run = run,
};
