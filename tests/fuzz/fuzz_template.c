/* Any bytes as a chat template, with small bounds on rendering: refused with an error message, or a text that is UTF-8
   and within the bound. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "tokenizer/template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

static carry_ctx *context(void) {
    static carry_ctx *ctx;
    if (ctx == NULL && carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                .log = silent}) != CARRY_OK) {
        abort();
    }
    return ctx;
}

static void expect(int holds) {
    if (!holds) {
        abort();
    }
}

static const carry_json *variables(carry_ctx *ctx) {
    static const char text[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"h\\u00e9 <b>\"}, {\"role\": \"assistant\", \"content\": "
        "[{\"text\": \"a\"}], \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1.5}}}]}], "
        "\"tools\": null, \"t\": true, \"n\": -3, \"l\": [3, 1, 2], \"d\": {\"b\": 1, \"A\": null}, \"s\": \" a-b \"}";
    static carry_json *root;
    if (root == NULL) {
        expect(carry_json_parse(ctx, &root, text, sizeof text - 1, "input") == CARRY_OK);
    }
    return root;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    carry_ctx *ctx = context();
    const carry_json *objects[] = {variables(ctx)};
    carry_template *parsed;
    if (carry_template_parse(ctx, &parsed, size > 0 ? (const char *)data : "", size, "input") != CARRY_OK) {
        expect(parsed == NULL && strlen(carry_ctx_error(ctx)) > 0);
        return 0;
    }
    struct tm now = {.tm_year = 126, .tm_mday = 15};
    char *text, *raised;
    size_t length;
    carry_template_input input = {.objects = objects,
                                  .count = 1,
                                  .now = &now,
                                  .limits = {.steps = 100000, .memory = (size_t)8 << 20, .output = (size_t)1 << 20},
                                  .raised = &raised};
    if (carry_template_render(ctx, parsed, &input, &text, &length) == CARRY_OK) {
        expect(length < (size_t)1 << 20 && text[length] == 0 && raised == NULL);
        for (size_t i = 0; i < length;) {
            int bytes = carry_json_utf8_length(text + i, text + length);
            expect(bytes > 0);
            i += (size_t)bytes;
        }
    } else {
        expect(text == NULL);
    }
    free(text);
    free(raised);
    carry_template_free(parsed);
    return 0;
}
