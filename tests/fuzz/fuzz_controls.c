/* Arbitrary bytes as controls: refused with an error message and without a change, or a state within bounds that is the
   same after it was written and applied. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "stream/controls.h"

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

static void check(const carry_control_state *s) {
    double sum = 0;
    for (int i = 0; i < s->prompts; i++) {
        sum += s->prompt[i].weight;
        if (s->prompt[i].length > CARRY_PROMPT_BYTES || s->prompt[i].text[s->prompt[i].length] != '\0' ||
            !(s->prompt[i].weight >= 0)) {
            abort();
        }
    }
    if (s->prompts < 1 || s->prompts > CARRY_PROMPTS || !(sum > 0) || s->steps < 1 || s->steps > CARRY_CONTROL_STEPS ||
        !(s->kv_bias > 0 && s->kv_bias <= 1) || !(s->noise >= 0 && s->noise <= 2) || s->transition < 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static carry_ctx *ctx;
    static carry_control_state before, after;
    if (ctx == NULL && carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                .log = silent}) != CARRY_OK) {
        abort();
    }
    carry_controls *controls;
    if (carry_controls_new(ctx, &controls, NULL) != CARRY_OK) {
        return 0;
    }
    char why[64];
    carry_controls_read(controls, &before);
    const carry_status status = carry_controls_apply(controls, (const char *)data, size, why, sizeof why);
    carry_controls_read(controls, &after);
    check(&after);
    if ((status == CARRY_OK) != (why[0] == '\0') ||
        (status != CARRY_OK && memcmp(&before, &after, sizeof before) != 0)) {
        abort();
    }
    carry_json_text text = {0};
    carry_controls_write(controls, &text);
    if (!text.failed && carry_controls_apply(controls, text.bytes, text.length, why, sizeof why) != CARRY_OK) {
        abort();
    }
    carry_controls_read(controls, &before);
    if (memcmp(&before, &after, sizeof before) != 0) {
        abort();
    }
    carry_json_text_free(&text);
    carry_controls_free(controls);
    return 0;
}
