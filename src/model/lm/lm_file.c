/* A language model's folder. */
#include <string.h>

#include "core/context.h"
#include "core/file.h"
#include "core/tensor.h"
#include "file/checkpoint.h"
#include "model/lm/adapter.h"
#include "model/lm/lm.h"
#include "model/lm/lm_names.h"

/* True for a tied head that the file stores although it equals the embeddings. */
static bool is_tied_head(const void *model, const carry_weights *weights, const char *name) {
    const carry_lm *lm = model;
    const carry_tensor *head = carry_weights_find(weights, name);
    const carry_tensor *table = carry_weights_find(weights, lm->own.parameter[lm->embeddings].name);
    table = table != NULL ? table : carry_weights_find(weights, "model.language_model.embed_tokens.weight");
    return lm->config.tie_word_embeddings &&
           (strcmp(name, "lm_head.weight") == 0 || strcmp(name, "model.lm_head.weight") == 0) && head != NULL &&
           table != NULL && head->dtype == table->dtype && head->dtype != CARRY_QUANTISED &&
           head->rank == table->rank &&
           memcmp(head->shape, table->shape, (size_t)head->rank * sizeof *head->shape) == 0 &&
           memcmp(head->data, table->data, (size_t)carry_tensor_count(head) * carry_dtype_size(head->dtype)) == 0;
}

/* True for surplus tensors that are allowed: one with another name, one of a part that is not used, or a tied head. */
static bool is_spare(const void *model, const carry_weights *weights, const char *name) {
    const carry_lm *lm = model;
    char own[CARRY_SAFETENSORS_NAME];
    if (lm->own.other == NULL) {
        return is_tied_head(model, weights, name);
    }
    const carry_lm_file_names *files = lm->config.family->files;
    const int64_t expert = carry_lm_own_name(files, name, own, sizeof own);
    const carry_parameter *p = carry_parameters_find(&lm->own, own);
    return carry_lm_ignored(files, name) != NULL || is_tied_head(model, weights, name) ||
           (p != NULL && expert < p->shape[0] && carry_weights_find(weights, own) == NULL);
}

/* Prints one line for each part of the model in the folder that is ignored. */
static carry_status name_ignored(const carry_lm *lm, const char *folder) {
    const carry_lm_file_names *files = lm->config.family->files;
    carry_weights weights;
    if (files == NULL || files->ignored == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_weights_open(lm->ctx, &weights, folder));
    for (int part = 0; files->ignored[part][0] != NULL; part++) {
        const char *called = files->ignored[part][1];
        int64_t count = 0;
        if (part > 0 && strcmp(called, files->ignored[part - 1][1]) == 0) {
            continue; /* another name prefix of the same part */
        }
        for (int64_t i = 0; i < weights.count; i++) {
            const char *of = carry_lm_ignored(files, carry_weights_name(&weights, i));
            count += of != NULL && strcmp(of, called) == 0 ? 1 : 0;
        }
        if (count > 0) {
            carry_log(lm->ctx, CARRY_LOG_WARNING, "%s: %lld tensors of %s are ignored: only the language model is used",
                      folder, (long long)count, called);
        }
    }
    carry_weights_close(&weights);
    return CARRY_OK;
}

carry_status carry_lm_load_weights(carry_lm *lm, const char *folder) {
    CARRY_TRY(carry_parameters_load(&lm->own, folder, is_spare, lm));
    return name_ignored(lm, folder);
}

static carry_status load(carry_ctx *ctx, carry_lm **lm, const char *from, int device, bool maps) {
    char folder[CARRY_FILE_PATH];
    carry_lm_config config;
    *lm = NULL;
    CARRY_TRY(carry_checkpoint_resolve(ctx, folder, from));
    if (carry_lm_adapter_is(folder)) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%s is an adapter: name the model that it is for, and --adapter %s beside it", from, from);
    }
    CARRY_TRY(carry_lm_config_read_model(ctx, &config, folder));
    CARRY_TRY((maps ? carry_lm_new_mapped : carry_lm_new_for)(ctx, lm, &config, device, folder));
    carry_status status = carry_lm_load_weights(*lm, folder);
    (*lm)->folder = strdup(folder);
    if (status == CARRY_OK && (*lm)->folder == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s", folder);
    }
    if (status != CARRY_OK) {
        carry_lm_free(*lm);
        *lm = NULL;
    }
    return status;
}

carry_status carry_lm_load(carry_ctx *ctx, carry_lm **lm, const char *folder, int device) {
    return load(ctx, lm, folder, device, false);
}

carry_status carry_lm_open(carry_ctx *ctx, carry_lm **lm, const char *folder, int device) {
    return load(ctx, lm, folder, device, true);
}

carry_status carry_lm_save(const carry_lm *lm, const char *folder, carry_dtype dtype) {
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(lm->ctx, path, folder, "config.json"));
    CARRY_TRY(carry_lm_config_write(lm->ctx, &lm->config, dtype, path));
    return carry_parameters_save(&lm->own, folder, dtype);
}
