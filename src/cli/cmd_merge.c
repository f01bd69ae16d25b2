/* carry merge: writes a model folder with an adapter merged into its weights. */
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "core/error.h"
#include "core/file.h"
#include "file/checkpoint.h"
#include "file/hub_cache.h"
#include "file/quantise.h"
#include "model/lm/adapter.h"

static carry_status merge(carry_ctx *ctx, char **words, carry_dtype dtype, bool has_dtype) {
    char found[CARRY_FILE_PATH];
    char from[CARRY_FILE_PATH];
    carry_lm *lm;
    CARRY_TRY(carry_hub_resolve(ctx, found, words[0]));
    CARRY_TRY(carry_checkpoint_resolve(ctx, from, found));
    CARRY_TRY(carry_lm_load(ctx, &lm, from, 0));
    carry_status status = carry_lm_adapter_merge(lm, words[1]);
    if (status == CARRY_OK && mkdir(words[2], 0777) != 0) {
        status = carry_fail(ctx, CARRY_EIO, "%s cannot be made, or exists already: give another folder", words[2]);
    }
    status = status == CARRY_OK ? carry_lm_save(lm, words[2], has_dtype ? dtype : carry_parameters_stored(&lm->own))
                                : status;
    status = status == CARRY_OK ? carry_copy_others(ctx, from, words[2]) : status;
    carry_lm_free(lm);
    return status;
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    const char *type = NULL;
    carry_dtype dtype = CARRY_F32;
    const cli_option own[] = {
        {"dtype", 0, CLI_TEXT, &type, "TYPE", "type of the weights: f32, bf16 or f16 (that of the model)"},
        {0},
    };
    const int words = cli_parse(&cli_merge, count, arguments, own, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (words != 3) {
        return cli_refuse("merge needs a model, an adapter and a new folder: carry merge MODEL ADAPTER OUT");
    }
    if (cli_dtype(type, &dtype) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    carry_ctx *ctx = cli_open(&common);
    if (ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    int code = CLI_DONE;
    if (merge(ctx, arguments, dtype, type != NULL) != CARRY_OK) {
        code = cli_failed(ctx);
    } else if (common.json) {
        cli_json_open();
        cli_json_text("folder", arguments[2]);
        cli_json_close();
    } else {
        (void)printf("the merged model is in %s\n", arguments[2]);
    }
    carry_ctx_free(ctx);
    return code;
}

const cli_verb cli_merge = {
    .name = "merge",
    .arguments = "MODEL ADAPTER OUT",
    .summary = "write a model folder with a LoRA adapter merged into its weights",
    .details =
        "Reads the folder MODEL, adds scale B A of the adapter in PEFT's format to the weights that it changes,\n"
        "computed in f32, and writes the new folder OUT, with tokenizer and chat template. An adapter of another\n"
        "model is refused. carry generate, chat, eval and serve take --adapter ADAPTER without merging to disk.",
    .example = "carry merge Qwen3.5-0.8B trained/chats/latest Qwen3.5-0.8B-chats",
    .support = {.cpu = "f32 bf16 f16"},
    .run = run,
};
