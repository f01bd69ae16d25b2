/* Arbitrary bytes as a config.json: refused with an error message, or a configuration whose sizes can be multiplied.
   The same bytes as JSON: every string ends inside the document. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/lm/feedforward/feedforward.h"
#include "model/lm/mixers/mixer.h"

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

static size_t walk(const carry_json *node, int depth) {
    size_t count = 1;
    if (depth > CARRY_JSON_DEPTH + 1 || node->line < 1 || node->column < 1 ||
        (node->key != NULL && node->key[node->key_length] != '\0') ||
        (node->kind == CARRY_JSON_STRING && node->as.text.bytes[node->as.text.length] != '\0')) {
        abort();
    }
    if (node->kind == CARRY_JSON_ARRAY || node->kind == CARRY_JSON_OBJECT) {
        int64_t members = 0;
        for (const carry_json *inner = node->as.inside.first; inner != NULL; inner = inner->next) {
            count += walk(inner, depth + 1);
            members++;
        }
        if (members != node->as.inside.count) {
            abort();
        }
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static carry_ctx *ctx;
    if (ctx == NULL && carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                .log = silent}) != CARRY_OK) {
        abort();
    }
    carry_json *root;
    if (carry_json_parse(ctx, &root, (const char *)data, size, "config.json") != CARRY_OK) {
        if (root != NULL || carry_ctx_error(ctx)[0] == '\0') {
            abort();
        }
        return 0;
    }
    if (walk(root, 0) > size) {
        abort();
    }
    carry_lm_config c;
    if (carry_lm_config_parse(ctx, &c, root, "config.json") == CARRY_OK) {
        bool delta = false; /* widths are derived for parts that a layer has */
        bool swiglu = false;
        bool experts = false;
        for (int64_t i = 0; i < c.num_hidden_layers; i++) {
            delta = delta || c.mixer[i] == CARRY_LM_MIXER_DELTA || c.mixer[i] == CARRY_LM_MIXER_DELTAPRODUCT;
            swiglu = swiglu || c.feedforward[i] == CARRY_LM_FEEDFORWARD_SWIGLU;
            experts = experts || c.feedforward[i] == CARRY_LM_FEEDFORWARD_EXPERTS;
        }
        const carry_lm_delta_options *d = &c.delta;
        if ((delta && (d->key_width != d->heads * d->key || d->value_width != d->value_heads * d->value)) ||
            (swiglu && c.swiglu.width < 1) ||
            (experts && (c.experts.chosen < 1 || c.experts.chosen > c.experts.count)) || c.hidden_size < 1 ||
            c.vocab_size < 1 || c.num_hidden_layers < 1) {
            abort();
        }
    } else if (carry_ctx_error(ctx)[0] == '\0') {
        abort();
    }
    carry_json_free(root);
    return 0;
}
