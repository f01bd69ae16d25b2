/* A language model's folder. */
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/tensor.h"
#include "model/lm/lm.h"

/* A tied head that was written all the same. */
static bool is_tied_head(const void *model, const carry_weights *weights, const char *name) {
    const carry_lm *lm = model;
    const carry_tensor *head = carry_weights_find(weights, name);
    const carry_tensor *table = carry_weights_find(weights, lm->own.parameter[lm->embeddings].name);
    return lm->config.tie_word_embeddings && strcmp(name, "lm_head.weight") == 0 && head != NULL && table != NULL &&
           head->dtype == table->dtype && head->rank == table->rank &&
           memcmp(head->shape, table->shape, (size_t)head->rank * sizeof *head->shape) == 0 &&
           memcmp(head->data, table->data, (size_t)carry_tensor_count(head) * carry_dtype_size(head->dtype)) == 0;
}

carry_status carry_lm_load_weights(carry_lm *lm, const char *folder) {
    return carry_parameters_load(&lm->own, folder, is_tied_head, lm);
}

carry_status carry_lm_load(carry_ctx *ctx, carry_lm **lm, const char *folder, int device) {
    char path[CARRY_FILE_PATH];
    carry_lm_config config;
    *lm = NULL;
    CARRY_TRY(carry_file_in(ctx, path, folder, "config.json"));
    CARRY_TRY(carry_lm_config_read(ctx, &config, path));
    CARRY_TRY(carry_lm_new_for(ctx, lm, &config, device, folder));
    carry_status status = carry_lm_load_weights(*lm, folder);
    if (status != CARRY_OK) {
        carry_lm_free(*lm);
        *lm = NULL;
    }
    return status;
}

carry_status carry_lm_save(const carry_lm *lm, const char *folder, carry_dtype dtype) {
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(lm->ctx, path, folder, "config.json"));
    CARRY_TRY(carry_lm_config_write(lm->ctx, &lm->config, dtype, path));
    return carry_parameters_save(&lm->own, folder, dtype);
}
