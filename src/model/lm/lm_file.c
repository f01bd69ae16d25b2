/* A language model's folder. */
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "core/tensor.h"
#include "model/lm/lm.h"
#include "model/weights.h"

static carry_status load_parameter(carry_lm *lm, const carry_weights *weights, int64_t index, const char *folder) {
    const carry_lm_parameter *p = &lm->parameter[index];
    const carry_tensor *from = carry_weights_find(weights, p->name);
    char has[CARRY_SHAPE_TEXT];
    char needs[CARRY_SHAPE_TEXT];
    if (from == NULL) {
        return carry_fail(lm->ctx, CARRY_EFORMAT, "%s has no tensor %s, which the configuration needs with shape %s",
                          folder, p->name, carry_shape_text(needs, p->rank, p->shape));
    }
    if (from->rank != p->rank || memcmp(from->shape, p->shape, (size_t)p->rank * sizeof *p->shape) != 0) {
        return carry_fail(lm->ctx, CARRY_ESHAPE, "%s: %s has shape %s where the configuration needs %s", folder,
                          p->name, carry_shape_text(has, from->rank, from->shape),
                          carry_shape_text(needs, p->rank, p->shape));
    }
    if (from->dtype == CARRY_I64) {
        return carry_fail(lm->ctx, CARRY_EDTYPE, "%s: %s is i64: f32, bf16 or f16 is needed", folder, p->name);
    }
    return carry_convert(lm->ctx, carry_lm_weight(lm, index), *from);
}

/* A tied head that was written all the same. */
static bool is_tied_head(const carry_lm *lm, const carry_weights *weights, const char *name) {
    const carry_tensor *head = carry_weights_find(weights, name);
    const carry_tensor *table = carry_weights_find(weights, lm->parameter[lm->embeddings].name);
    return lm->config.tie_word_embeddings && strcmp(name, "lm_head.weight") == 0 && head != NULL && table != NULL &&
           head->dtype == table->dtype && head->rank == table->rank &&
           memcmp(head->shape, table->shape, (size_t)head->rank * sizeof *head->shape) == 0 &&
           memcmp(head->data, table->data, (size_t)carry_tensor_count(head) * carry_dtype_size(head->dtype)) == 0;
}

/* All parameters were found: what is more than their number is surplus. */
static carry_status refuse_surplus(const carry_lm *lm, const carry_weights *weights, const char *folder) {
    if (weights->count == lm->parameters) {
        return CARRY_OK;
    }
    for (int64_t i = 0; i < weights->count; i++) {
        const char *name = carry_weights_name(weights, i);
        if (carry_lm_find(lm, name) == NULL && !is_tied_head(lm, weights, name)) {
            const carry_tensor *tensor = carry_weights_find(weights, name);
            char has[CARRY_SHAPE_TEXT];
            return carry_fail(lm->ctx, CARRY_EFORMAT,
                              "%s: the tensor %.80s of shape %s has no place in the configured model", folder, name,
                              carry_shape_text(has, tensor->rank, tensor->shape));
        }
    }
    return CARRY_OK;
}

carry_status carry_lm_load_weights(carry_lm *lm, const char *folder) {
    carry_weights weights;
    CARRY_TRY(carry_weights_open(lm->ctx, &weights, folder));
    carry_status status = CARRY_OK;
    for (int64_t i = 0; status == CARRY_OK && i < lm->parameters; i++) {
        status = load_parameter(lm, &weights, i, folder);
    }
    status = status == CARRY_OK ? refuse_surplus(lm, &weights, folder) : status;
    carry_weights_close(&weights);
    return status;
}

carry_status carry_lm_load(carry_ctx *ctx, carry_lm **lm, const char *folder) {
    char path[CARRY_FILE_PATH];
    carry_lm_config config;
    *lm = NULL;
    CARRY_TRY(carry_file_in(ctx, path, folder, "config.json"));
    CARRY_TRY(carry_lm_config_read(ctx, &config, path));
    CARRY_TRY(carry_lm_new(ctx, lm, &config));
    carry_status status = carry_lm_load_weights(*lm, folder);
    if (status != CARRY_OK) {
        carry_lm_free(*lm);
        *lm = NULL;
    }
    return status;
}

carry_status carry_lm_save(const carry_lm *lm, const char *folder, carry_dtype dtype) {
    static const char *const notes[] = {"format", "pt", NULL}; /* transformers asks for it */
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(lm->ctx, path, folder, "config.json"));
    CARRY_TRY(carry_lm_config_write(lm->ctx, &lm->config, dtype, path));
    CARRY_TRY(carry_file_in(lm->ctx, path, folder, "model.safetensors"));
    carry_safetensors_item *items = calloc((size_t)lm->parameters, sizeof *items);
    if (items == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "no memory to write %s", path);
    }
    for (int64_t i = 0; i < lm->parameters; i++) {
        items[i] =
            (carry_safetensors_item){.name = lm->parameter[i].name, .tensor = carry_lm_weight(lm, i), .dtype = dtype};
    }
    carry_status status = carry_safetensors_write(lm->ctx, path, items, lm->parameters, notes);
    free(items);
    return status;
}
