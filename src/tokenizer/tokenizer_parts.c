/* Reads the parts of tokenizer.json around its model: normalizer, pre_tokenizer and post_processor. The kinds that
   published models use are supported (GPT-2, Llama 2 and 3, Mistral, Qwen, OLMo); others are refused with an error that
   names them. */
#include <string.h>

#include "core/json.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"

typedef struct reader {
    carry_ctx *ctx;
    const char *name;
    carry_parts *parts;
    bool has_bytes; /* a ByteLevel was read: no step may follow it */
    bool is_plain;
} reader;

static bool is_absent(const carry_json *node) {
    return node == NULL || node->kind == CARRY_JSON_NULL;
}

static bool is_type(const carry_json *node, const char *type) {
    return carry_json_is_text(carry_json_find(node, "type"), type);
}

carry_status carry_parts_refuse(carry_ctx *ctx, const carry_json *node, const char *what, const char *name) {
    char shown[CARRY_JSON_SHOWN];
    const carry_json *type = carry_json_find(node, "type");
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s, line %u: %s is %s, which is not supported", name, node->line, what,
                      carry_json_show(shown, type != NULL ? type : node));
}

static carry_status refuse(const reader *r, const carry_json *node, const char *what) {
    return carry_parts_refuse(r->ctx, node, what, r->name);
}

/* Reads the bool of a key; `absent` is its value if the key is missing. */
static carry_status take_bool(const reader *r, const carry_json *object, const char *key, bool absent, bool *value) {
    const carry_json *node = carry_json_find(object, key);
    *value = is_absent(node) ? absent : node->truth;
    return is_absent(node) || node->kind == CARRY_JSON_BOOL ? CARRY_OK : refuse(r, node, key);
}

/* Reads a text of `least` to CARRY_NORMAL_BYTES bytes. */
static carry_status take_short(carry_ctx *ctx, const carry_json *node, const char *what, const char *name, size_t least,
                               char to[CARRY_NORMAL_BYTES], unsigned char *length) {
    if (node == NULL || node->kind != CARRY_JSON_STRING || node->as.text.length < least ||
        node->as.text.length > CARRY_NORMAL_BYTES) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: %s is not a text of %zu to %d bytes", name, what, least,
                          CARRY_NORMAL_BYTES);
    }
    memcpy(to, node->as.text.bytes, node->as.text.length);
    *length = (unsigned char)node->as.text.length;
    return CARRY_OK;
}

carry_status carry_parts_read_replace(carry_ctx *ctx, carry_normal *normal, const carry_json *node, const char *name) {
    const carry_json *pattern = carry_json_find(node, "pattern");
    const carry_json *text = carry_json_find(pattern, "String");
    if (text == NULL) {
        return carry_parts_refuse(ctx, pattern != NULL ? pattern : node, "the pattern of a Replace", name);
    }
    normal->kind = CARRY_NORMAL_REPLACE;
    CARRY_TRY(take_short(ctx, text, "the pattern of a Replace", name, 1, normal->from, &normal->from_length));
    return take_short(ctx, carry_json_find(node, "content"), "the content of a Replace", name, 0, normal->to,
                      &normal->to_length);
}

static carry_status add_normal(reader *r, const carry_json *node) {
    carry_parts *p = r->parts;
    if (p->normals == CARRY_NORMALS) {
        return carry_fail(r->ctx, CARRY_EUNSUPPORTED, "%s: the normalizer has more than %d steps", r->name,
                          CARRY_NORMALS);
    }
    carry_normal *normal = &p->normal[p->normals];
    r->is_plain = false;
    if (is_type(node, "NFC")) {
        normal->kind = CARRY_NORMAL_NFC;
        if (!carry_normal_has_nfc()) {
            return carry_fail(r->ctx, CARRY_EUNSUPPORTED,
                              "%s: the normalizer is NFC, and this program was built without utf8proc", r->name);
        }
    } else if (is_type(node, "Prepend")) {
        normal->kind = CARRY_NORMAL_PREPEND;
        CARRY_TRY(take_short(r->ctx, carry_json_find(node, "prepend"), "what is prepended", r->name, 1, normal->to,
                             &normal->to_length));
    } else if (is_type(node, "Replace")) {
        CARRY_TRY(carry_parts_read_replace(r->ctx, normal, node, r->name));
    } else {
        return refuse(r, node, "normalizer");
    }
    p->normals++;
    return CARRY_OK;
}

static carry_status read_normalizer(reader *r, const carry_json *node) {
    if (is_absent(node)) {
        return CARRY_OK;
    }
    if (!is_type(node, "Sequence")) {
        return add_normal(r, node);
    }
    const carry_json *list = carry_json_find(node, "normalizers");
    if (list == NULL || list->kind != CARRY_JSON_ARRAY) {
        return refuse(r, node, "a normalizer without its list");
    }
    for (const carry_json *one = list->as.inside.first; one != NULL; one = one->next) {
        CARRY_TRY(add_normal(r, one));
    }
    return CARRY_OK;
}

static carry_status new_stage(reader *r, carry_pattern ***stage) {
    if (r->parts->stages == CARRY_STAGES) {
        return carry_fail(r->ctx, CARRY_EUNSUPPORTED, "%s: the pre_tokenizer has more than %d patterns", r->name,
                          CARRY_STAGES);
    }
    *stage = &r->parts->stage[r->parts->stages++];
    return CARRY_OK;
}

static carry_status read_split(reader *r, const carry_json *node) {
    const carry_json *pattern = carry_json_find(node, "pattern");
    const carry_json *regex = carry_json_find(pattern, "Regex");
    const carry_json *behavior = carry_json_find(node, "behavior");
    bool invert;
    carry_pattern **stage;
    CARRY_TRY(take_bool(r, node, "invert", false, &invert));
    bool drops = carry_json_is_text(behavior, "Removed") && invert;
    if (regex == NULL || regex->kind != CARRY_JSON_STRING) {
        return refuse(r, pattern != NULL ? pattern : node, "the pattern of a Split");
    }
    if (!drops && !carry_json_is_text(behavior, "Isolated")) {
        return refuse(r, behavior != NULL ? behavior : node, invert ? "the inverted Split" : "the Split");
    }
    CARRY_TRY(new_stage(r, &stage));
    return carry_pattern_parse(r->ctx, stage, regex->as.text.bytes, regex->as.text.length, drops, r->name);
}

static carry_status read_byte_level(reader *r, const carry_json *node) {
    const carry_json *prefix = carry_json_find(node, "add_prefix_space");
    carry_pattern **stage;
    bool has_pattern;
    if (is_absent(prefix)) { /* `tokenizers` treats a missing value as true */
        return carry_fail(r->ctx, CARRY_EUNSUPPORTED, "%s: the pre_tokenizer does not say add_prefix_space: false",
                          r->name);
    }
    if (prefix->kind != CARRY_JSON_BOOL || prefix->truth) {
        return refuse(r, prefix, "add_prefix_space");
    }
    CARRY_TRY(take_bool(r, node, "use_regex", true, &has_pattern));
    r->has_bytes = true;
    r->is_plain = r->is_plain && has_pattern;
    if (!has_pattern) {
        return CARRY_OK;
    }
    CARRY_TRY(new_stage(r, &stage));
    return carry_pattern_new(r->ctx, stage);
}

static carry_status take_mark(const reader *r, const carry_json *node, carry_metaspace *metaspace) {
    const carry_json *mark = carry_json_find(node, "replacement");
    size_t length = mark != NULL && mark->kind == CARRY_JSON_STRING ? mark->as.text.length : 0;
    if (length == 0 || length > CARRY_UTF8_LONGEST || mark->as.text.bytes[0] == ' ' ||
        carry_utf8_at((const unsigned char *)mark->as.text.bytes, length) != (int)length) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s: the replacement of a Metaspace is not one character", r->name);
    }
    memcpy(metaspace->mark, mark->as.text.bytes, length);
    metaspace->length = (unsigned char)length;
    metaspace->used = true;
    const carry_json *scheme = carry_json_find(node, "prepend_scheme");
    bool prepends;
    CARRY_TRY(take_bool(r, node, "add_prefix_space", true, &prepends)); /* key of older files */
    metaspace->prepend = prepends ? CARRY_PREPEND_ALWAYS : CARRY_PREPEND_NEVER;
    if (!is_absent(scheme)) {
        bool is_known = true;
        if (carry_json_is_text(scheme, "first")) {
            metaspace->prepend = CARRY_PREPEND_FIRST;
        } else if (carry_json_is_text(scheme, "never")) {
            metaspace->prepend = CARRY_PREPEND_NEVER;
        } else {
            is_known = carry_json_is_text(scheme, "always");
            metaspace->prepend = CARRY_PREPEND_ALWAYS;
        }
        if (!is_known) {
            return refuse(r, scheme, "prepend_scheme");
        }
    }
    return take_bool(r, node, "split", true, &metaspace->splits);
}

static carry_status read_cut(reader *r, const carry_json *node) {
    bool each;
    carry_pattern **stage;
    if (r->has_bytes || r->parts->metaspace.used) {
        return refuse(r, node, r->has_bytes ? "what follows ByteLevel" : "what follows Metaspace");
    }
    if (is_type(node, "ByteLevel")) {
        return read_byte_level(r, node);
    }
    r->is_plain = false;
    if (is_type(node, "Split")) {
        return read_split(r, node);
    }
    if (is_type(node, "Digits")) {
        CARRY_TRY(take_bool(r, node, "individual_digits", false, &each));
        CARRY_TRY(new_stage(r, &stage));
        return carry_pattern_digits(r->ctx, stage, each);
    }
    if (is_type(node, "Metaspace") && r->parts->stages == 0) {
        return take_mark(r, node, &r->parts->metaspace);
    }
    return refuse(r, node, "pre_tokenizer");
}

static carry_status read_cuts(reader *r, const carry_json *node) {
    if (is_absent(node)) {
        r->is_plain = false;
        return CARRY_OK;
    }
    if (!is_type(node, "Sequence")) {
        return read_cut(r, node);
    }
    const carry_json *list = carry_json_find(node, "pretokenizers");
    if (list == NULL || list->kind != CARRY_JSON_ARRAY) {
        return refuse(r, node, "a pre_tokenizer without its list");
    }
    r->is_plain = false;
    for (const carry_json *one = list->as.inside.first; one != NULL; one = one->next) {
        CARRY_TRY(read_cut(r, one));
    }
    return CARRY_OK;
}

/* Reads the decoder Metaspace. */
static carry_status read_unmark(reader *r, const carry_json *node) {
    carry_metaspace *m = &r->parts->unmark;
    CARRY_TRY(take_mark(r, node, m));
    carry_normal *shown = &r->parts->shown[r->parts->shows++];
    *shown = (carry_normal){CARRY_NORMAL_REPLACE, m->length, 1, "", " "};
    memcpy(shown->from, m->mark, m->length);
    return CARRY_OK;
}

/* Chooses where texts of this tokenizer can be cut. carry_tokenizer_finish may restrict this further, after looking at
   the tokens. */
static void choose_rule(carry_parts *p) {
    p->rule = p->by_character ? CARRY_CUT_SPACES : p->stages > 0 ? CARRY_CUT_BLANKS_AND_LINES : CARRY_CUT_NOWHERE;
    for (int i = 0; i < p->stages; i++) {
        carry_cut_rule rule = carry_pattern_rule(p->stage[i]);
        p->rule = rule < p->rule ? rule : p->rule;
    }
    for (int i = 0; i < p->normals; i++) {
        const carry_normal *n = &p->normal[i];
        bool marks = n->kind == CARRY_NORMAL_REPLACE && n->from_length == 1 && n->from[0] == ' ';
        if (marks && !p->metaspace.used && n->to_length > 0 && n->to_length <= CARRY_UTF8_LONGEST && p->by_character) {
            memcpy(p->metaspace.mark, n->to, n->to_length); /* words start with it, without Metaspace */
            p->metaspace.length = n->to_length;
        } else if (n->kind == CARRY_NORMAL_REPLACE || (n->kind == CARRY_NORMAL_PREPEND && !p->by_character)) {
            p->rule = CARRY_CUT_NOWHERE;
        }
    }
}

carry_status carry_parts_read(carry_ctx *ctx, carry_tokenizer *made, const carry_json *root, const char *name,
                              bool *is_plain) {
    reader r = {.ctx = ctx, .name = name, .parts = &made->parts, .is_plain = true};
    made->parts.was_read = true;
    CARRY_TRY(read_normalizer(&r, carry_json_find(root, "normalizer")));
    CARRY_TRY(read_cuts(&r, carry_json_find(root, "pre_tokenizer")));
    bool has_fallback;
    const carry_json *model = carry_json_find(root, "model");
    const carry_json *decoder = carry_json_find(root, "decoder");
    CARRY_TRY(take_bool(&r, model, "byte_fallback", false, &has_fallback));
    made->parts.by_character = !r.has_bytes;
    if (!r.has_bytes && !has_fallback) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "%s: neither a ByteLevel pre_tokenizer nor byte_fallback, so not every text has tokens",
                          name);
    }
    if (is_absent(decoder)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s has no decoder: ByteLevel, Metaspace or a Sequence is needed",
                          name);
    }
    if (!r.has_bytes) {
        CARRY_TRY(is_type(decoder, "Metaspace") ? read_unmark(&r, decoder)
                                                : carry_parts_read_decoder(ctx, &made->parts, decoder, name));
    } else if (!is_type(decoder, "ByteLevel")) {
        return refuse(&r, decoder, "decoder");
    }
    choose_rule(&made->parts);
    *is_plain = r.is_plain && !has_fallback;
    return CARRY_OK;
}

void carry_parts_free(carry_parts *parts) {
    for (int i = 0; i < parts->stages; i++) {
        carry_pattern_free(parts->stage[i]);
    }
    parts->stages = 0;
}
