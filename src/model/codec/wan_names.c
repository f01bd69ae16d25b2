/* Names in Wan's own file for the tensors that diffusers renamed. */
#include "model/codec/wan_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Inside a residual block. */
static const char *const inside[][2] = {{"norm1.", "residual.0."},
                                        {"conv1.", "residual.2."},
                                        {"norm2.", "residual.3."},
                                        {"conv2.", "residual.6."},
                                        {"conv_shortcut.", "shortcut."}};
/* Names of one side, without its levels. */
static const char *const parts[][2] = {{"conv_in.", "conv1."},
                                       {"norm_out.", "head.0."},
                                       {"conv_out.", "head.2."},
                                       {"mid_block.resnets.0.", "middle.0."},
                                       {"mid_block.attentions.0.", "middle.1."},
                                       {"mid_block.resnets.1.", "middle.2."}};

static const char *after(const char *text, const char *start) {
    const size_t length = strlen(start);
    return strncmp(text, start, length) == 0 ? text + length : NULL;
}

static bool join(char *to, size_t size, const char *start, const char *rest) {
    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++) {
        const char *end = after(rest, inside[i][0]);
        if (end != NULL) {
            return snprintf(to, size, "%s%s%s", start, inside[i][1], end) < (int)size;
        }
    }
    return snprintf(to, size, "%s%s", start, rest) < (int)size;
}

/* Reads a number and the dot after it. */
static bool number(const char **text, long *value) {
    char *end;
    *value = strtol(*text, &end, 10);
    if (end == *text || *end != '.') {
        return false;
    }
    *text = end + 1;
    return true;
}

/* In Wan's file the decoder's blocks and resamplers are in one list. */
static bool up_block(char *to, size_t size, const char *rest, int blocks) {
    char start[48];
    long level;
    long index = blocks + 1;
    if (!number(&rest, &level)) {
        return false;
    }
    const char *resnet = after(rest, "resnets.");
    const char *resampler = after(rest, "upsamplers.0.");
    if (resnet != NULL ? !number(&resnet, &index) : resampler == NULL) {
        return false;
    }
    (void)snprintf(start, sizeof start, "decoder.upsamples.%ld.", level * (blocks + 2) + index);
    return join(to, size, start, resnet != NULL ? resnet : resampler);
}

bool carry_wan_other_name(int blocks, const char *name, char *to, size_t size) {
    static const char *const sides[] = {"encoder.", "decoder."};
    char start[48];
    const char *rest = after(name, "quant_conv.");
    if (rest != NULL) {
        return snprintf(to, size, "conv1.%s", rest) < (int)size;
    }
    if ((rest = after(name, "post_quant_conv.")) != NULL) {
        return snprintf(to, size, "conv2.%s", rest) < (int)size;
    }
    if ((rest = after(name, "encoder.down_blocks.")) != NULL) {
        long index;
        if (!number(&rest, &index)) {
            return false;
        }
        (void)snprintf(start, sizeof start, "encoder.downsamples.%ld.", index);
        return join(to, size, start, rest);
    }
    if ((rest = after(name, "decoder.up_blocks.")) != NULL) {
        return up_block(to, size, rest, blocks);
    }
    for (size_t i = 0; i < 2; i++) {
        const char *of = after(name, sides[i]);
        for (size_t p = 0; of != NULL && p < sizeof parts / sizeof parts[0]; p++) {
            if ((rest = after(of, parts[p][0])) != NULL) {
                (void)snprintf(start, sizeof start, "%s%s", sides[i], parts[p][1]);
                return join(to, size, start, rest);
            }
        }
    }
    return false;
}
