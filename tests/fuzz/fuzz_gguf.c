/* Arbitrary bytes as a GGUF file: refused with an error message, or every view is inside the file and the texts of a
   model folder are made or refused. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "file/gguf_model.h"
#include "ops/quantised/quantised.h"

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

static size_t bytes_of(const carry_tensor *view) {
    size_t bytes = view->dtype == CARRY_QUANTISED ? (size_t)view->stride[0] * (size_t)view->shape[0]
                                                  : carry_dtype_size(view->dtype);
    for (int i = 0; view->dtype != CARRY_QUANTISED && i < view->rank; i++) {
        bytes *= (size_t)view->shape[i];
    }
    return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static carry_ctx *ctx;
    if (ctx == NULL && carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                .log = silent}) != CARRY_OK) {
        abort();
    }
    unsigned char *bytes = aligned_alloc(64, (size + 64) / 64 * 64);
    if (bytes == NULL) {
        return 0;
    }
    memcpy(bytes, data, size);
    carry_gguf file;
    if (carry_gguf_parse(ctx, &file, bytes, size) != CARRY_OK) {
        if (carry_ctx_error(ctx)[0] == '\0') {
            abort();
        }
        free(bytes);
        return 0;
    }
    for (int64_t i = 0; i < file.tensors.count; i++) {
        const carry_tensor *view = &file.tensors.entries[i].view;
        const unsigned char *from = view->data;
        if (from < bytes || from + bytes_of(view) > bytes + size) {
            abort();
        }
    }
    carry_json_text text = {0};
    (void)carry_gguf_put_config(ctx, &file, &text);
    (void)carry_gguf_put_tokenizer(ctx, &file, &text);
    (void)carry_gguf_put_settings(ctx, &file, &text);
    carry_json_text_free(&text);
    carry_gguf_close(&file);
    free(bytes);
    return 0;
}
