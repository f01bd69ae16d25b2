/* Arbitrary bytes as an envelope and as a result: refused with an error message, or a message that encodes to the same
   bytes again. The first byte chooses whether the CRCs are corrected first, since random bytes never have correct
   ones. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "stream/envelope.h"

#define MOST 8192

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

static void put_u32(unsigned char *to, uint32_t value) {
    for (int i = 0; i < 4; i++) {
        to[i] = (unsigned char)(value >> 8 * i);
    }
}

static void refused(const carry_ctx *ctx, carry_status status) {
    if ((status != CARRY_EFORMAT && status != CARRY_EARGUMENT) || carry_ctx_error(ctx)[0] == '\0') {
        abort();
    }
}

static void same(const unsigned char *message, size_t size, const unsigned char *again, size_t bytes) {
    if (bytes != size || memcmp(message, again, size) != 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static carry_ctx *ctx;
    static uint64_t again[MOST / 8];
    if (ctx == NULL && carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                .log = silent}) != CARRY_OK) {
        abort();
    }
    if (size < 1 || size > MOST) {
        return 0;
    }
    const bool sealed = data[0] % 2 == 1;  /* the letter C is odd: seeds start like messages */
    unsigned char *message = malloc(size); /* a separate block, so that a sanitizer sees a read beyond it */
    if (message == NULL) {
        return 0;
    }
    memcpy(message, data, size);
    if (sealed && size >= CARRY_ENVELOPE_HEADER) {
        message[0] = 'C';
        put_u32(message + 24, carry_crc32c(0, message + CARRY_ENVELOPE_HEADER, size - CARRY_ENVELOPE_HEADER));
        put_u32(message + 28, carry_crc32c(0, message, 28));
    }
    size_t follow;
    for (int is_result = 0; is_result < 2; is_result++) {
        if (size >= CARRY_ENVELOPE_HEADER &&
            carry_envelope_follows(ctx, &follow, message, SIZE_MAX, is_result) == CARRY_OK &&
            follow > CARRY_ENVELOPE_BYTES) {
            abort();
        }
    }
    carry_envelope envelope;
    carry_result result;
    size_t bytes;
    carry_status status = carry_envelope_decode(ctx, &envelope, message, size);
    if (status != CARRY_OK) {
        refused(ctx, status);
    } else if (carry_envelope_encode(ctx, again, sizeof again, &bytes, &envelope) != CARRY_OK) {
        abort();
    } else {
        same(message, size, (const unsigned char *)again, bytes);
    }
    status = carry_result_decode(ctx, &result, message, size);
    if (status != CARRY_OK) {
        refused(ctx, status);
    } else if (carry_result_encode(ctx, again, sizeof again, &bytes, &result) != CARRY_OK) {
        abort();
    } else {
        same(message, size, (const unsigned char *)again, bytes);
    }
    free(message);
    return 0;
}
