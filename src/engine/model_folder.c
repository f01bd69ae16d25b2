/* Finds a model: the folder, the checkpoint, the tokenizer. */
#include "engine/model_folder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/json.h"
#include "file/gguf_model.h"
#include "file/hub_cache.h"
#include "model/lm/adapter.h"
#include "ops/product/bf16.h"

#define PADDING 128
#define BYTES 256
#define GENERATION_BYTES ((size_t)1 << 20)

static carry_status load_weights(carry_ctx *ctx, carry_model *model, const char *folder) {
    CARRY_TRY(carry_lm_open(ctx, &model->lm, folder, model->device));
    (void)snprintf(model->folder, sizeof model->folder, "%s", model->lm->folder);
    return CARRY_OK;
}

static carry_status open_tokenizer(carry_ctx *ctx, carry_model *model, const char *folder) {
    int64_t vocabulary = model->lm->config.vocab_size;
    if (carry_model_has(ctx, model->folder, "tokenizer.json")) {
        return carry_tokenizer_open(ctx, &model->tokenizer, model->folder);
    }
    if (carry_model_has(ctx, folder, "tokenizer.json")) {
        return carry_tokenizer_open(ctx, &model->tokenizer, folder);
    }
    if (vocabulary < BYTES || vocabulary > BYTES + PADDING) {
        return carry_fail(ctx, CARRY_ENOTFOUND,
                          "%s has no tokenizer.json, and a vocabulary of %" PRId64
                          " is not that of bytes (256, or 257 with %s); generate --ids needs none",
                          model->folder, vocabulary, CARRY_END_OF_TEXT);
    }
    static const char *const added[] = {CARRY_END_OF_TEXT};
    return carry_tokenizer_bytes(ctx, &model->tokenizer, added, vocabulary > BYTES);
}

static carry_status compare_sizes(carry_ctx *ctx, const carry_model *model) {
    int64_t has = carry_tokenizer_size(model->tokenizer);
    int64_t vocabulary = model->lm->config.vocab_size;
    if (has > vocabulary) {
        return carry_fail(ctx, CARRY_EFORMAT,
                          "%s: the model has a vocabulary of %" PRId64 " tokens, its tokenizer one of %" PRId64
                          ": they do not belong together",
                          model->folder, vocabulary, has);
    }
    return CARRY_OK;
}

/* Configurations may name tokens that are not special in their tokenizer: flash-linear-attention's defaults, 1 and 2,
   are plain bytes if the vocabulary is bytes. */
static int64_t special_or_none(const carry_model *model, int64_t id) {
    return id >= 0 && carry_tokenizer_is_special(model->tokenizer, id) ? id : -1;
}

bool carry_model_ends_with(const carry_model *model, int64_t token) {
    bool ends = token == model->end || token == model->other_end;
    for (int i = 0; i < model->end_count && !ends; i++) {
        ends = token == model->ends[i];
    }
    return ends;
}

void carry_model_add_end(carry_model *model, int64_t token) {
    if (token >= 0 && token < model->lm->config.vocab_size && !carry_model_ends_with(model, token) &&
        model->end_count < CARRY_MODEL_ENDS) {
        model->ends[model->end_count++] = token;
    }
}

/* Reads eos_token_id, a number or a list, from generation_config.json. Only this key is needed, so a damaged file is
   ignored with a warning. */
static void read_generation(carry_ctx *ctx, carry_model *model) {
    char path[CARRY_FILE_PATH];
    carry_json *root;
    if (!carry_model_has(ctx, model->folder, "generation_config.json") ||
        carry_file_in(ctx, path, model->folder, "generation_config.json") != CARRY_OK) {
        return;
    }
    if (carry_json_read(ctx, &root, path, GENERATION_BYTES) != CARRY_OK) {
        carry_log(ctx, CARRY_LOG_WARNING, "generation_config.json is ignored: %s", carry_ctx_error(ctx));
        return;
    }
    const carry_json *eos = carry_json_find(root, "eos_token_id");
    const carry_json *one = eos != NULL && eos->kind == CARRY_JSON_ARRAY ? eos->as.inside.first : eos;
    for (; one != NULL; one = eos->kind == CARRY_JSON_ARRAY ? one->next : NULL) {
        if (one->kind == CARRY_JSON_NUMBER && one->whole) {
            carry_model_add_end(model, one->as.number.integer);
        }
    }
    carry_json_free(root);
}

void carry_model_find_ends(carry_ctx *ctx, carry_model *model) {
    const carry_lm_config *config = &model->lm->config;
    if (model->tokenizer == NULL) {
        model->start = config->bos_token_id < config->vocab_size ? config->bos_token_id : -1;
        carry_model_add_end(model, config->eos_token_id);
    } else {
        model->end = carry_tokenizer_end(model->tokenizer);
        model->other_end = special_or_none(model, config->eos_token_id);
        model->start = special_or_none(model, config->bos_token_id);
        model->start = model->start >= 0 ? model->start : model->end >= 0 ? model->end : model->other_end;
        carry_model_add_end(model, carry_tokenizer_eos(model->tokenizer));
    }
    read_generation(ctx, model);
}

carry_status carry_model_open_bare(carry_ctx *ctx, carry_model *model, const char *folder, int device) {
    char found[CARRY_FILE_PATH]; /* hf:OWNER/NAME: path in the cache of the hub */
    *model = (carry_model){.device = device, .start = -1, .end = -1, .other_end = -1};
    CARRY_TRY(carry_hub_resolve(ctx, found, folder));
    folder = found;
    carry_status status = load_weights(ctx, model, folder);
    if (status != CARRY_OK) {
        carry_model_close(model);
        return status;
    }
    carry_model_find_ends(ctx, model);
    return CARRY_OK;
}

carry_status carry_model_open(carry_ctx *ctx, carry_model *model, const char *folder, int device) {
    char found[CARRY_FILE_PATH]; /* hf:OWNER/NAME: path in the cache of the hub */
    *model = (carry_model){.device = device, .start = -1, .end = -1, .other_end = -1};
    CARRY_TRY(carry_hub_resolve(ctx, found, folder));
    folder = found;
    carry_status status = load_weights(ctx, model, folder);
    status = status == CARRY_OK ? open_tokenizer(ctx, model, folder) : status;
    status = status == CARRY_OK ? compare_sizes(ctx, model) : status;
    if (status != CARRY_OK) {
        carry_model_close(model);
        return status;
    }
    carry_model_find_ends(ctx, model);
    return CARRY_OK;
}

/* If ids are enough, a missing tokenizer is not worth a warning. */
static void try_tokenizer(carry_ctx *ctx, carry_model *model, const char *folder) {
    carry_status status = open_tokenizer(ctx, model, folder);
    status = status == CARRY_OK ? compare_sizes(ctx, model) : status;
    if (status != CARRY_OK) {
        carry_tokenizer_close(model->tokenizer);
        model->tokenizer = NULL;
        carry_log(ctx, status == CARRY_ENOTFOUND ? CARRY_LOG_INFO : CARRY_LOG_WARNING,
                  "prompts and texts are token ids: %s", carry_ctx_error(ctx));
    }
    carry_model_find_ends(ctx, model);
}

carry_status carry_model_open_with_text(carry_ctx *ctx, carry_model *model, const char *folder, int device) {
    char found[CARRY_FILE_PATH]; /* hf:OWNER/NAME: path in the cache of the hub */
    *model = (carry_model){.device = device, .start = -1, .end = -1, .other_end = -1};
    CARRY_TRY(carry_hub_resolve(ctx, found, folder));
    folder = found;
    const carry_status status = load_weights(ctx, model, folder);
    if (status != CARRY_OK) {
        carry_model_close(model);
        return status;
    }
    try_tokenizer(ctx, model, folder);
    return CARRY_OK;
}

void carry_model_borrow(carry_ctx *ctx, carry_model *model, carry_lm *lm) {
    *model = (carry_model){.device = lm->own.device, .lm = lm, .start = -1, .end = -1, .other_end = -1};
    if (lm->folder != NULL) {
        (void)snprintf(model->folder, sizeof model->folder, "%s", lm->folder);
        try_tokenizer(ctx, model, lm->folder);
    } else {
        carry_model_find_ends(ctx, model);
    }
}

carry_dtype carry_model_dtype(carry_ctx *ctx, const carry_model *model, char why[CARRY_MODEL_WHY]) {
    const carry_dtype stored = carry_parameters_stored(&model->lm->own);
    const carry_bf16 *by = model->device == 0 ? carry_bf16_of(ctx) : NULL;
    const char *name = carry_dtype_name(stored);
    if (model->lm->own.quantised > 0) {
        (void)snprintf(why, CARRY_MODEL_WHY, "the weights are quantised%s",
                       model->device != 0 ? ", and the GPU has fast products in bf16"
                       : by != NULL       ? ""
                                          : ", without bf16 products here");
    } else if (stored == CARRY_F32) {
        (void)snprintf(why, CARRY_MODEL_WHY, "the weights are f32");
    } else if (stored == CARRY_BF16 && model->device != 0) {
        (void)snprintf(why, CARRY_MODEL_WHY, "the weights are bf16, and the GPU has fast products in it");
    } else if (stored == CARRY_BF16 && by != NULL) {
        (void)snprintf(why, CARRY_MODEL_WHY, "the weights are bf16, and the CPU has products in it (%s)", by->name);
    } else {
        (void)snprintf(why, CARRY_MODEL_WHY, "the weights are %s, without fast products in it on this device", name);
    }
    return stored == CARRY_BF16 && (model->device != 0 || by != NULL) ? CARRY_BF16 : CARRY_F32;
}

carry_status carry_model_adapt(carry_model *model, const char *adapter) {
    return adapter != NULL ? carry_lm_adapter_merge(model->lm, adapter) : CARRY_OK;
}

void carry_model_close(carry_model *model) {
    carry_lm_free(model->lm);
    carry_tokenizer_close(model->tokenizer);
    model->lm = NULL;
    model->tokenizer = NULL;
}
