/* The tensor names of a video transformer in the files of Wan and of diffusers. */
#include "model/dit/dit_names.h"

#include <stdio.h>
#include <string.h>

/* Names of the same parts in Wan and diffusers. Those within a block are without "blocks.N.". A name that ends in a dot
   is a prefix. */
static const char *const renamed[][2] = {
    {"time_embedding.0.", "condition_embedder.time_embedder.linear_1."},
    {"time_embedding.2.", "condition_embedder.time_embedder.linear_2."},
    {"time_projection.1.", "condition_embedder.time_proj."},
    {"text_embedding.0.", "condition_embedder.text_embedder.linear_1."},
    {"text_embedding.2.", "condition_embedder.text_embedder.linear_2."},
    {"head.head.", "proj_out."},
    {"head.modulation", "scale_shift_table"},
};
static const char *const renamed_in_block[][2] = {
    {"self_attn.o.", "attn1.to_out.0."},
    {"self_attn.q.", "attn1.to_q."},
    {"self_attn.k.", "attn1.to_k."},
    {"self_attn.v.", "attn1.to_v."},
    {"self_attn.norm_q.", "attn1.norm_q."},
    {"self_attn.norm_k.", "attn1.norm_k."},
    {"cross_attn.o.", "attn2.to_out.0."},
    {"cross_attn.q.", "attn2.to_q."},
    {"cross_attn.k.", "attn2.to_k."},
    {"cross_attn.v.", "attn2.to_v."},
    {"cross_attn.norm_q.", "attn2.norm_q."},
    {"cross_attn.norm_k.", "attn2.norm_k."},
    {"norm3.", "norm2."},
    {"ffn.0.", "ffn.net.0.proj."},
    {"ffn.2.", "ffn.net.2."},
    {"modulation", "scale_shift_table"},
};
static const char *const prefixes[] = {
    "model.",           "generator.model.",      "generator_ema.model.", "generator.", "model._fsdp_wrapped_module.",
    "diffusion_model.", "model.diffusion_model."};

enum { PREFIXES = sizeof prefixes / sizeof prefixes[0] };

/* The length of "blocks.N." at the start of a name, or 0. */
static size_t block_length(const char *name) {
    if (strncmp(name, "blocks.", 7) != 0) {
        return 0;
    }
    const size_t digits = strspn(name + 7, "0123456789");
    return digits > 0 && name[7 + digits] == '.' ? 8 + digits : 0;
}

/* Translates a name from column `from` of the lists to the other column; false if it is the same in both. */
static bool rename_to(const char *name, int from, char *to, size_t size) {
    const size_t block = block_length(name);
    const char *const(*list)[2] = block > 0 ? renamed_in_block : renamed;
    const size_t count =
        block > 0 ? sizeof renamed_in_block / sizeof *renamed_in_block : sizeof renamed / sizeof *renamed;
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(list[i][from]);
        if (strncmp(name + block, list[i][from], length) == 0) {
            (void)snprintf(to, size, "%.*s%s%s", (int)block, name, list[i][1 - from], name + block + length);
            return true;
        }
    }
    return false;
}

bool carry_dit_other_name(const void *names, const char *name, int which, bool pieces, char *to, size_t size) {
    char there[256];
    (void)names;
    if (pieces || which > 2 * PREFIXES) {
        return false;
    }
    const bool differs = rename_to(name, 0, there, sizeof there);
    if (which == 0) {
        (void)snprintf(to, size, "%s", differs ? there : name);
    } else {
        (void)snprintf(to, size, "%s%s", prefixes[(which - 1) / 2], which % 2 == 1 || !differs ? name : there);
    }
    return true;
}

void carry_dit_own_name(const char *name, char *to, size_t size) {
    const char *prefix = "";
    for (int i = 0; i < PREFIXES; i++) {
        const bool has = strncmp(name, prefixes[i], strlen(prefixes[i])) == 0;
        prefix = has && strlen(prefixes[i]) > strlen(prefix) ? prefixes[i] : prefix;
    }
    name += strlen(prefix);
    if (!rename_to(name, 1, to, size)) {
        (void)snprintf(to, size, "%s", name);
    }
}
