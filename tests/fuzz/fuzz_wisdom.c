/* Any bytes as a wisdom file. The first byte chooses how they are used: as they are; with a line of their checksum
   added, so that the fuzzer gets past it; or as lines between a valid beginning and a valid end. Wisdom that was read
   can be printed and read again. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "scan/wisdom.h"

#define MACHINE "fuzz"
#define BEGINNING "carry-wisdom 1\nmachine " MACHINE "\n"
#define END_ROOM 32

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static carry_wisdom first, second; /* large, and most of it is never touched */

static carry_ctx *context(void) {
    static carry_ctx *ctx;
    if (ctx == NULL &&
        carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) != CARRY_OK) {
        abort();
    }
    return ctx;
}

static void expect(int holds) {
    if (!holds) {
        abort();
    }
}

/* A block of exactly its length, so that the sanitizer sees a read beyond it. */
static char *compose(const uint8_t *data, size_t size, size_t *length) {
    int mode = size > 0 ? data[0] % 3 : 0;
    const char *beginning = mode == 2 ? BEGINNING : "";
    size_t before = strlen(beginning);
    size_t given = size > 0 ? size - 1 : 0;
    char *text = malloc(before + given + END_ROOM);
    expect(text != NULL);
    memcpy(text, beginning, before);
    if (given > 0) {
        memcpy(text + before, data + 1, given);
    }
    *length = before + given;
    if (mode > 0) {
        uint32_t crc = carry_crc32c(0, text, *length);
        *length += (size_t)snprintf(text + *length, END_ROOM, "end %08" PRIx32 "\n", crc);
    }
    char *exact = realloc(text, *length > 0 ? *length : 1);
    expect(exact != NULL);
    return exact;
}

static void print_and_parse_again(carry_ctx *ctx) {
    char *text;
    size_t length;
    expect(carry_wisdom_print(ctx, &first, &text, &length) == CARRY_OK);
    expect(carry_wisdom_parse(ctx, &second, text, length) == CARRY_OK);
    expect(second.plans == first.plans && second.rates == first.rates);
    for (int i = 0; i < first.plans; i++) {
        expect(second.plan[i].threads == first.plan[i].threads && strcmp(second.plan[i].key, first.plan[i].key) == 0 &&
               strcmp(second.plan[i].algorithm, first.plan[i].algorithm) == 0);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    carry_ctx *ctx = context();
    size_t length;
    char *text = compose(data, size, &length);
    (void)snprintf(first.machine, sizeof first.machine, MACHINE);
    (void)snprintf(second.machine, sizeof second.machine, MACHINE);
    carry_status status = carry_wisdom_parse(ctx, &first, text, length);
    free(text);
    if (status == CARRY_OK) {
        print_and_parse_again(ctx);
    } else {
        expect((status == CARRY_EFORMAT || status == CARRY_EUNSUPPORTED) && carry_ctx_error(ctx)[0] != '\0');
        expect(first.plans == 0 && first.rates == 0);
    }
    return 0;
}
