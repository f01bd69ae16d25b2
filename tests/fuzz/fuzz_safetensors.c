/* Arbitrary bytes as a safetensors file: refused with an error message, or every view is inside the file. A mode byte
   corrects the header's length, so that the fuzzer gets past it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "file/safetensors.h"

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static carry_ctx *ctx;
    if (ctx == NULL && carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                .log = silent}) != CARRY_OK) {
        abort();
    }
    if (size < 2) {
        return 0;
    }
    size_t payload = data[1]; /* bytes of data after the header */
    size_t length = data[0] % 2 == 0 ? size - 2 : 8 + size - 2 + payload;
    unsigned char *bytes = aligned_alloc(8, (length + 16) / 8 * 8);
    if (bytes == NULL) {
        return 0;
    }
    memset(bytes, 0, length);
    if (data[0] % 2 == 0) {
        memcpy(bytes, data + 2, size - 2);
    } else {
        uint64_t header = size - 2;
        for (int i = 0; i < 8; i++) {
            bytes[i] = (unsigned char)(header >> (8 * i));
        }
        memcpy(bytes + 8, data + 2, size - 2);
    }
    carry_safetensors file;
    if (carry_safetensors_parse(ctx, &file, bytes, length) == CARRY_OK) {
        for (int64_t i = 0; i < file.count; i++) {
            const carry_tensor *view = &file.entries[i].view;
            size_t elements = 1;
            for (int j = 0; j < view->rank; j++) {
                elements *= (size_t)view->shape[j];
            }
            const unsigned char *from = view->data;
            if (from < bytes + 8 || from + elements * carry_dtype_size(view->dtype) > bytes + length) {
                abort();
            }
        }
        carry_safetensors_close(&file);
    } else if (carry_ctx_error(ctx)[0] == '\0') {
        abort();
    }
    free(bytes);
    return 0;
}
