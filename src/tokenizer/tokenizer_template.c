/* Reads two parts of tokenizer.json: the decoder of models by character, and the tokens that a post_processor puts
   around a text. */
#include <string.h>

#include "core/json.h"
#include "tokenizer/tokenizer_internal.h"

static bool is_type(const carry_json *node, const char *type) {
    return carry_json_is_text(carry_json_find(node, "type"), type);
}

/* Reads a decoder that is a sequence of Replace steps, ByteFallback, Fuse and Strip, in this order. */
carry_status carry_parts_read_decoder(carry_ctx *ctx, carry_parts *parts, const carry_json *decoder, const char *name) {
    const carry_json *list = carry_json_find(decoder, "decoders");
    if (!is_type(decoder, "Sequence") || list == NULL || list->kind != CARRY_JSON_ARRAY) {
        return carry_parts_refuse(ctx, decoder, "decoder", name);
    }
    bool is_fused = false;
    for (const carry_json *node = list->as.inside.first; node != NULL; node = node->next) {
        const carry_json *start = carry_json_find(node, "start");
        if (is_type(node, "Replace") && !is_fused && !parts->shows_bytes && parts->shows < CARRY_NORMALS) {
            CARRY_TRY(carry_parts_read_replace(ctx, &parts->shown[parts->shows], node, name));
            parts->shows++;
        } else if (is_type(node, "ByteFallback") && !is_fused) {
            parts->shows_bytes = true;
        } else if (is_type(node, "Fuse")) {
            is_fused = true;
        } else if (is_type(node, "Strip") && is_fused && carry_json_is_text(carry_json_find(node, "content"), " ") &&
                   start != NULL && start->whole && start->as.number.integer >= 0 && start->as.number.integer <= 16) {
            const carry_json *stop = carry_json_find(node, "stop");
            if (stop == NULL || !stop->whole || stop->as.number.integer != 0) {
                return carry_parts_refuse(ctx, stop != NULL ? stop : node, "the stop of the decoder's Strip", name);
            }
            parts->strips = (int)start->as.number.integer;
        } else {
            return carry_parts_refuse(ctx, node, "decoder", name);
        }
    }
    return is_fused ? CARRY_OK : carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: the decoder has no Fuse", name);
}

/* Reads one {"SpecialToken": {"id": "<s>"}}: appends the numbers that special_tokens lists for it. */
static carry_status take_special(carry_ctx *ctx, const carry_tokenizer *made, const carry_json *post,
                                 const carry_json *token, uint32_t *to, int *count, const char *name) {
    const carry_json *id = carry_json_find(token, "id");
    const carry_json *specials = carry_json_find(post, "special_tokens");
    const carry_json *ids = NULL;
    if (id != NULL && id->kind == CARRY_JSON_STRING && strlen(id->as.text.bytes) == id->as.text.length) {
        ids = carry_json_find(carry_json_find(specials, id->as.text.bytes), "ids");
    }
    if (ids == NULL || ids->kind != CARRY_JSON_ARRAY) {
        return carry_parts_refuse(ctx, token, "a token of the template that special_tokens does not list", name);
    }
    for (const carry_json *one = ids->as.inside.first; one != NULL; one = one->next) {
        if (one->kind != CARRY_JSON_NUMBER || !one->whole || one->as.number.integer < 0 ||
            one->as.number.integer >= made->count || *count == CARRY_TEMPLATE) {
            return carry_fail(ctx, CARRY_EFORMAT,
                              "%s, line %u: the template has an id that is not a token, or more than %d", name,
                              one->line, CARRY_TEMPLATE);
        }
        to[(*count)++] = (uint32_t)one->as.number.integer;
    }
    return CARRY_OK;
}

static carry_status take_template(carry_ctx *ctx, carry_tokenizer *made, const carry_json *post, const char *name) {
    carry_parts *p = &made->parts;
    const carry_json *single = carry_json_find(post, "single");
    bool is_after = false;
    if (single == NULL || single->kind != CARRY_JSON_ARRAY) {
        return carry_parts_refuse(ctx, post, "a post_processor without its template", name);
    }
    for (const carry_json *node = single->as.inside.first; node != NULL; node = node->next) {
        const carry_json *token = carry_json_find(node, "SpecialToken");
        const carry_json *text = carry_json_find(node, "Sequence");
        if (token != NULL) {
            CARRY_TRY(take_special(ctx, made, post, token, is_after ? p->after : p->before,
                                   is_after ? &p->afters : &p->befores, name));
        } else if (text != NULL && !is_after && carry_json_is_text(carry_json_find(text, "id"), "A")) {
            is_after = true;
        } else {
            return carry_parts_refuse(ctx, node, "a part of the template", name);
        }
    }
    return is_after ? CARRY_OK : carry_parts_refuse(ctx, single, "the template without a text", name);
}

/* ByteLevel changes offsets, not token numbers. */
static carry_status take_post(carry_ctx *ctx, carry_tokenizer *made, const carry_json *post, const char *name) {
    if (is_type(post, "ByteLevel")) {
        return CARRY_OK;
    }
    if (is_type(post, "TemplateProcessing") && made->parts.befores + made->parts.afters == 0) {
        return take_template(ctx, made, post, name);
    }
    return carry_parts_refuse(ctx, post, "post_processor", name);
}

carry_status carry_parts_read_template(carry_ctx *ctx, carry_tokenizer *made, const carry_json *root,
                                       const char *name) {
    const carry_json *post = carry_json_find(root, "post_processor");
    if (post == NULL || post->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    if (!is_type(post, "Sequence")) {
        return take_post(ctx, made, post, name);
    }
    const carry_json *list = carry_json_find(post, "processors");
    if (list == NULL || list->kind != CARRY_JSON_ARRAY) {
        return carry_parts_refuse(ctx, post, "a post_processor without its list", name);
    }
    for (const carry_json *one = list->as.inside.first; one != NULL; one = one->next) {
        CARRY_TRY(take_post(ctx, made, one, name));
    }
    return CARRY_OK;
}
