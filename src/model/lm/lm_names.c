/* What published folders call the tensors of a language model: those of a multimodal one are below
   model.language_model., and OLMo Hybrid's have older names. */
#include "model/lm/lm_names.h"

#include <stdio.h>
#include <string.h>

#define NESTED "model.language_model."

static const struct {
    const char *here, *there;
} renamed[] = {
    {"input_layernorm.weight", "attention_layer_norm.weight"},
    {"post_attention_layernorm.weight", "feedforward_layer_norm.weight"},
};
#define RENAMED ((int)(sizeof renamed / sizeof renamed[0]))

static const char *const pieces_of_conv[] = {"linear_attn.q_conv1d.weight", "linear_attn.k_conv1d.weight",
                                             "linear_attn.v_conv1d.weight"};
#define CONV "linear_attn.conv1d.weight"

static bool ends_in(const char *name, const char *end) {
    const size_t length = strlen(name);
    return length >= strlen(end) && strcmp(name + length - strlen(end), end) == 0;
}

/* name with its end replaced. */
static bool replace_end(char *to, size_t size, const char *name, const char *end, const char *by) {
    return ends_in(name, end) && snprintf(to, size, "%.*s%s", (int)(strlen(name) - strlen(end)), name, by) < (int)size;
}

bool carry_lm_other_name(const char *name, int which, bool pieces, char *to, size_t size) {
    if (pieces) {
        return which < 3 && replace_end(to, size, name, CONV, pieces_of_conv[which]);
    }
    if (which == 0 && strncmp(name, "model.", 6) == 0 && strncmp(name, NESTED, strlen(NESTED)) != 0) {
        return snprintf(to, size, NESTED "%s", name + 6) < (int)size;
    }
    if (which == 0) { /* lm_head.weight */
        return snprintf(to, size, "model.%s", name) < (int)size;
    }
    for (int i = 0; which == 1 && i < RENAMED; i++) {
        if (replace_end(to, size, name, renamed[i].here, renamed[i].there)) {
            return true;
        }
    }
    return false;
}

void carry_lm_own_name(const char *name, char *to, size_t size) {
    char short_name[512];
    const bool nested = strncmp(name, NESTED, strlen(NESTED)) == 0;
    (void)snprintf(short_name, sizeof short_name, "%s%s", nested ? "model." : "",
                   nested ? name + strlen(NESTED) : name);
    for (int i = 0; i < RENAMED; i++) {
        if (replace_end(to, size, short_name, renamed[i].there, renamed[i].here)) {
            return;
        }
    }
    for (int i = 0; i < 3; i++) {
        if (replace_end(to, size, short_name, pieces_of_conv[i], CONV)) {
            return;
        }
    }
    (void)snprintf(to, size, "%s", strcmp(short_name, "model.lm_head.weight") == 0 ? "lm_head.weight" : short_name);
}

const char *carry_lm_passed_over(const char *name) {
    static const char *const parts[][2] = {{"model.visual.", "the vision tower"},
                                           {"visual.", "the vision tower"},
                                           {"mtp.", "multi-token heads"},
                                           {"model.mtp.", "multi-token heads"}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strncmp(name, parts[i][0], strlen(parts[i][0])) == 0) {
            return parts[i][1];
        }
    }
    return NULL;
}
