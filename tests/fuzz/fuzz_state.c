/* Arbitrary bytes as a state file: refused with an error message, or loaded completely. The first byte chooses whether
   the header's length is corrected, and whether hashes and the model are assumed to be right, so that the fuzzer gets
   past them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/lm/families/fla.h"
#include "model/lm/lm_state_file.h"

static carry_ctx *ctx;
static carry_lm_state *state;

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

/* A model with a layer of the delta rule and one of attention. */
static void make(void) {
    carry_lm_config c = carry_lm_config_default(&carry_lm_family_gated_deltanet);
    carry_lm *lm;
    c.vocab_size = 8;
    c.hidden_size = 8;
    c.num_hidden_layers = 2;
    c.delta.heads = 1;
    carry_lm_fla_of(&c)->head_dim = 4;
    c.mixer[1] = CARRY_LM_MIXER_ATTENTION;
    c.attention.heads = 2;
    c.attention.kv_heads = 1;
    if (carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1, .log = silent}) !=
            CARRY_OK ||
        carry_lm_config_finish(ctx, &c) != CARRY_OK || carry_lm_new(ctx, &lm, &c, 0) != CARRY_OK ||
        carry_lm_state_new(lm, &state, 1) != CARRY_OK) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (ctx == NULL) {
        make();
    }
    if (size < 3) {
        return 0;
    }
    const bool makes_header = data[0] % 2 == 1;
    const bool believes = data[0] % 4 >= 2;
    const size_t payload = (size_t)data[1] * 16; /* bytes of data after the header */
    const size_t length = makes_header ? 8 + size - 2 + payload : size - 2;
    unsigned char *bytes = aligned_alloc(8, (length + 16) / 8 * 8);
    if (bytes == NULL) {
        return 0;
    }
    memset(bytes, 0, length);
    memcpy(bytes + (makes_header ? 8 : 0), data + 2, size - 2);
    for (int i = 0; makes_header && i < 8; i++) {
        bytes[i] = (unsigned char)((uint64_t)(size - 2) >> (8 * i));
    }
    carry_state_file file;
    carry_status status = carry_state_parse(ctx, &file, bytes, length, "file");
    if (status == CARRY_OK) {
        status = carry_state_verify(ctx, &file, "file");
        status = believes ? carry_lm_hash(state->lm, &file.about.model) : status;
        status = status == CARRY_OK ? carry_lm_state_take(state, 0, &file, "file") : status;
        if (status == CARRY_OK && carry_lm_state_length(state, 0) != file.about.tokens) {
            abort();
        }
        carry_state_close(&file);
    }
    if (status != CARRY_OK && carry_ctx_error(ctx)[0] == '\0') {
        abort();
    }
    free(bytes);
    return 0;
}
