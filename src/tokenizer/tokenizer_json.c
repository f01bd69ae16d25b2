/* Reads tokenizer.json. Keys that affect token numbers are read. Values with an effect that this code does not
   implement are refused with an error that names them. Keys without effect on numbers are ignored. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/json.h"
#include "file/gguf_model.h"
#include "file/hub_cache.h"
#include "tokenizer/tokenizer_internal.h"

typedef struct reader {
    carry_ctx *ctx;
    const char *name; /* name of the file */
    carry_tokenizer *made;
    char *left, *right; /* buffers for the bytes of two tokens, each as long as the whole text */
    int64_t most;       /* token numbers must be below this: the largest number of tokens that the file can hold */
} reader;

#define SHOWN 64

/* Prepares a token for a message: shortened, and without control characters. */
static const char *show(char shown[SHOWN], const char *text, size_t length) {
    size_t kept = length < SHOWN - 1 ? length : SHOWN - 1;
    for (size_t i = 0; i < kept; i++) {
        shown[i] = (char)((unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i]);
    }
    shown[kept] = '\0';
    return shown;
}

static bool is_absent(const carry_json *node) {
    return node == NULL || node->kind == CARRY_JSON_NULL;
}

static bool is_bool(const carry_json *node, bool truth) {
    return node->kind == CARRY_JSON_BOOL && node->truth == truth;
}

static carry_status refuse(const reader *r, const carry_json *node, const char *what) {
    char shown[CARRY_JSON_SHOWN];
    return carry_fail(r->ctx, CARRY_EUNSUPPORTED, "%s, line %u: %s is %s, which is not supported", r->name, node->line,
                      what, carry_json_show(shown, node));
}

/* Returns an object's "type", for messages; the object itself if the key is missing. */
static const carry_json *type_of(const carry_json *node) {
    const carry_json *type = carry_json_find(node, "type");
    return type != NULL ? type : node;
}

static carry_status expect_absent(const reader *r, const carry_json *object, const char *key) {
    const carry_json *node = carry_json_find(object, key);
    return is_absent(node) ? CARRY_OK : refuse(r, type_of(node), key);
}

/* Checks that the key is absent or a bool with this value. */
static carry_status expect_bool(const reader *r, const carry_json *object, const char *key, bool truth) {
    const carry_json *node = carry_json_find(object, key);
    return is_absent(node) || is_bool(node, truth) ? CARRY_OK : refuse(r, node, key);
}

static carry_status expect_empty(const reader *r, const carry_json *object, const char *key) {
    const carry_json *node = carry_json_find(object, key);
    return is_absent(node) || carry_json_is_text(node, "") ? CARRY_OK : refuse(r, node, key);
}

static carry_status check_surroundings(const reader *r, const carry_json *root) {
    CARRY_TRY(expect_absent(r, root, "truncation"));
    return expect_absent(r, root, "padding");
}

static carry_status check_model(const reader *r, const carry_json *root, const carry_json **model) {
    *model = carry_json_find(root, "model");
    if (*model == NULL || (*model)->kind != CARRY_JSON_OBJECT) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s is not a tokenizer.json: it has no model", r->name);
    }
    const carry_json *type = carry_json_find(*model, "type"); /* older files have none */
    if (!is_absent(type) && !carry_json_is_text(type, "BPE")) {
        return refuse(r, type, "the model");
    }
    CARRY_TRY(expect_absent(r, *model, "dropout"));
    CARRY_TRY(expect_empty(r, *model, "continuing_subword_prefix"));
    CARRY_TRY(expect_empty(r, *model, "end_of_word_suffix"));
    const carry_json *whole = carry_json_find(*model, "ignore_merges");
    if (!is_absent(whole) && whole->kind != CARRY_JSON_BOOL) {
        return refuse(r, whole, "ignore_merges");
    }
    r->made->whole_pieces = !is_absent(whole) && whole->truth;
    return CARRY_OK; /* unk_token and fuse_unk have no effect, since every byte has a token */
}

static carry_status take_id(const reader *r, const carry_json *node, const char *of, size_t of_length, int64_t *id) {
    char shown[CARRY_JSON_SHOWN];
    char token[SHOWN];
    if (node == NULL || node->kind != CARRY_JSON_NUMBER || !node->whole || node->as.number.integer < 0 ||
        node->as.number.integer >= r->most) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s: the number of '%s' is %s, and there are %lld tokens, from 0",
                          r->name, show(token, of, of_length), node != NULL ? carry_json_show(shown, node) : "missing",
                          (long long)r->most);
    }
    *id = node->as.number.integer;
    return CARRY_OK;
}

/* Writes a token's bytes to `to`: those that its characters stand for in the byte alphabet or, in models by character,
   its name unchanged. Returns false if a character is not in the alphabet; no merge can produce such a token. */
static bool take_name(const reader *r, const char *name, size_t length, char *to, size_t *bytes) {
    if (!r->made->parts.by_character) {
        return carry_alphabet_bytes(name, length, to, bytes);
    }
    memcpy(to, name, length);
    *bytes = length;
    return true;
}

static carry_status take_vocabulary(const reader *r, const carry_json *model) {
    const carry_json *vocabulary = carry_json_find(model, "vocab");
    if (vocabulary == NULL || vocabulary->kind != CARRY_JSON_OBJECT) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s: the model has no vocab", r->name);
    }
    char token[SHOWN];
    for (const carry_json *node = vocabulary->as.inside.first; node != NULL; node = node->next) {
        int64_t id = 0;
        CARRY_TRY(take_id(r, node, node->key, node->key_length, &id));
        if (id < r->made->count && r->made->token[id].known) {
            return carry_fail(r->ctx, CARRY_EFORMAT, "%s, line %u: '%s' has the number %lld, which another token has",
                              r->name, node->line, show(token, node->key, node->key_length), (long long)id);
        }
        size_t bytes;
        bool literal = !take_name(r, node->key, node->key_length, r->left, &bytes);
        if (!literal && carry_tokenizer_named(r->made, r->left, bytes) >= 0) {
            return carry_fail(r->ctx, CARRY_EFORMAT, "%s, line %u: '%s' is in the vocab twice", r->name, node->line,
                              show(token, node->key, node->key_length));
        }
        CARRY_TRY(carry_tokenizer_put(r->ctx, r->made, id, r->left, bytes, literal, true));
    }
    return CARRY_OK;
}

/* Returns the number of the content in the vocabulary, or -1. Literal tokens are few, so they are searched linearly. */
static int64_t find_in_vocabulary(const reader *r, const char *content, size_t length) {
    size_t bytes;
    if (take_name(r, content, length, r->left, &bytes)) {
        return carry_tokenizer_named(r->made, r->left, bytes);
    }
    for (int64_t id = 0; id < r->made->count; id++) {
        const carry_token *token = &r->made->token[id];
        if (token->known && token->literal && token->length == length &&
            memcmp(r->made->text + token->start, content, length) == 0) {
            return id;
        }
    }
    return -1;
}

static carry_status take_added_token(const reader *r, const carry_json *node) {
    const carry_json *content = carry_json_find(node, "content");
    if (content == NULL || content->kind != CARRY_JSON_STRING || content->as.text.length == 0 ||
        content->as.text.length > CARRY_ADDED_BYTES) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s, line %u: an added token has no content of 1 to %d bytes", r->name,
                          node->line, CARRY_ADDED_BYTES);
    }
    const char *text = content->as.text.bytes;
    size_t length = content->as.text.length;
    char token[SHOWN];
    int64_t id = 0;
    CARRY_TRY(take_id(r, carry_json_find(node, "id"), text, length, &id));
    CARRY_TRY(expect_bool(r, node, "single_word", false));
    CARRY_TRY(expect_bool(r, node, "lstrip", false));
    CARRY_TRY(expect_bool(r, node, "rstrip", false));
    const carry_json *special = carry_json_find(node, "special");
    const carry_json *normalized = carry_json_find(node, "normalized");
    bool is_special = special != NULL && is_bool(special, true);
    bool is_normalized = normalized != NULL ? is_bool(normalized, true) : !is_special;
    int64_t known = find_in_vocabulary(r, text, length);
    bool taken = id < r->made->count && r->made->token[id].known;
    if (known >= 0 ? known != id : taken) {
        return carry_fail(r->ctx, CARRY_EFORMAT,
                          "%s, line %u: the added token '%s' has the number %lld, which is another token's, or has "
                          "another in the vocab",
                          r->name, node->line, show(token, text, length), (long long)id);
    }
    if (taken && r->made->token[id].added) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s, line %u: the token '%s' is added twice", r->name, node->line,
                          show(token, text, length));
    }
    return carry_tokenizer_add(r->ctx, r->made, id, text, length, is_special, is_normalized, known >= 0);
}

static carry_status take_added(const reader *r, const carry_json *root) {
    const carry_json *added = carry_json_find(root, "added_tokens");
    if (is_absent(added)) {
        return CARRY_OK;
    }
    if (added->kind != CARRY_JSON_ARRAY || added->as.inside.count > CARRY_ADDED_MOST) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s: added_tokens is not a list of at most %d tokens", r->name,
                          CARRY_ADDED_MOST);
    }
    for (const carry_json *node = added->as.inside.first; node != NULL; node = node->next) {
        CARRY_TRY(take_added_token(r, node));
    }
    return CARRY_OK;
}

/* Finds the two sides of a merge: ["a", "b"], or "a b" in older files. */
static bool split_merge(const carry_json *node, const char *side[2], size_t length[2]) {
    if (node->kind == CARRY_JSON_STRING) {
        const char *text = node->as.text.bytes;
        const char *space = memchr(text, ' ', node->as.text.length);
        if (space == NULL) {
            return false;
        }
        side[0] = text;
        length[0] = (size_t)(space - text);
        side[1] = space + 1;
        length[1] = node->as.text.length - length[0] - 1;
        return memchr(side[1], ' ', length[1]) == NULL;
    }
    if (node->kind != CARRY_JSON_ARRAY || node->as.inside.count != 2) {
        return false;
    }
    const carry_json *part = node->as.inside.first;
    for (int i = 0; i < 2; i++, part = part->next) {
        if (part->kind != CARRY_JSON_STRING) {
            return false;
        }
        side[i] = part->as.text.bytes;
        length[i] = part->as.text.length;
    }
    return true;
}

static carry_status take_merge(const reader *r, const carry_json *node, int64_t place) {
    const char *side[2];
    size_t length[2];
    size_t bytes[2];
    int64_t id[2];
    char *to[2] = {r->left, r->right};
    char token[2][SHOWN];
    if (!split_merge(node, side, length)) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s, line %u: merge %lld does not name two tokens", r->name,
                          node->line, (long long)place);
    }
    for (int i = 0; i < 2; i++) {
        bool known = take_name(r, side[i], length[i], to[i], &bytes[i]);
        id[i] = known ? carry_tokenizer_named(r->made, to[i], bytes[i]) : -1;
        if (id[i] < 0) {
            return carry_fail(r->ctx, CARRY_EFORMAT, "%s, line %u: merge %lld names '%s', which is not in the vocab",
                              r->name, node->line, (long long)place, show(token[i], side[i], length[i]));
        }
    }
    memcpy(r->left + bytes[0], r->right, bytes[1]); /* fits: left is as long as the whole text, which contains both */
    int64_t result = carry_tokenizer_named(r->made, r->left, bytes[0] + bytes[1]);
    if (result < 0) {
        return carry_fail(r->ctx, CARRY_EFORMAT,
                          "%s, line %u: merge %lld of '%s' and '%s' makes a token that is not in the vocab", r->name,
                          node->line, (long long)place, show(token[0], side[0], length[0]),
                          show(token[1], side[1], length[1]));
    }
    return carry_tokenizer_merge(r->ctx, r->made, (uint32_t)id[0], (uint32_t)id[1], (uint32_t)result);
}

static carry_status take_merges(const reader *r, const carry_json *model) {
    const carry_json *merges = carry_json_find(model, "merges");
    if (merges == NULL || merges->kind != CARRY_JSON_ARRAY) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s: the model has no merges", r->name);
    }
    int64_t place = 0;
    for (const carry_json *node = merges->as.inside.first; node != NULL; node = node->next) {
        CARRY_TRY(take_merge(r, node, place++));
    }
    return CARRY_OK;
}

static int64_t count_of(const carry_json *node, carry_json_kind kind) {
    return node != NULL && node->kind == kind ? node->as.inside.count : 0;
}

static carry_status take_all(reader *r, const carry_json *root, bool *is_plain) {
    const carry_json *model;
    if (root->kind != CARRY_JSON_OBJECT) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%s is not a tokenizer.json: not a JSON object", r->name);
    }
    CARRY_TRY(check_model(r, root, &model));
    CARRY_TRY(check_surroundings(r, root));
    CARRY_TRY(carry_parts_read(r->ctx, r->made, root, r->name, is_plain));
    r->most = count_of(carry_json_find(model, "vocab"), CARRY_JSON_OBJECT) +
              count_of(carry_json_find(root, "added_tokens"), CARRY_JSON_ARRAY);
    if (r->most > CARRY_TOKENS_MOST) {
        return carry_fail(r->ctx, CARRY_ESIZE, "%s has %lld tokens, more than the %lld that are read", r->name,
                          (long long)r->most, (long long)CARRY_TOKENS_MOST);
    }
    CARRY_TRY(take_vocabulary(r, model));
    CARRY_TRY(take_added(r, root));
    CARRY_TRY(take_merges(r, model));
    CARRY_TRY(carry_parts_read_template(r->ctx, r->made, root, r->name));
    *is_plain = *is_plain && r->made->parts.befores + r->made->parts.afters == 0;
    return carry_tokenizer_finish(r->ctx, r->made, r->name);
}

carry_status carry_tokenizer_parse(carry_ctx *ctx, carry_tokenizer **tokenizer, const char *text, size_t length,
                                   const char *name) {
    *tokenizer = NULL;
    carry_json *root;
    CARRY_TRY(carry_json_parse(ctx, &root, text, length, name));
    reader r = {ctx, name, carry_tokenizer_new(), malloc(length + 1), malloc(length + 1), 0};
    carry_status status;
    if (r.made == NULL || r.left == NULL || r.right == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: the tokenizer %s", name);
    } else {
        bool is_plain = true;
        status = take_all(&r, root, &is_plain);
        if (status == CARRY_OK && !is_plain) {
            r.made->source = malloc(length + 1);
            status = r.made->source != NULL ? CARRY_OK
                                            : carry_fail(ctx, CARRY_EMEMORY, "out of memory: the tokenizer %s", name);
        }
        if (status == CARRY_OK && !is_plain) {
            memcpy(r.made->source, text, length);
            r.made->source[length] = '\0';
            r.made->source_length = length;
        }
    }
    carry_json_free(root);
    free(r.left);
    free(r.right);
    if (status != CARRY_OK) {
        carry_tokenizer_close(r.made);
        return status;
    }
    *tokenizer = r.made;
    return CARRY_OK;
}

carry_status carry_tokenizer_open(carry_ctx *ctx, carry_tokenizer **tokenizer, const char *path) {
    *tokenizer = NULL;
    char inside[CARRY_FILE_PATH], found[CARRY_FILE_PATH];
    char folder[CARRY_FILE_PATH];
    struct stat about;
    CARRY_TRY(carry_hub_resolve(ctx, found, path)); /* hf:OWNER/NAME */
    path = found;
    const bool is_gguf = carry_gguf_is_file(path);
    if (is_gguf) {
        (void)snprintf(folder, sizeof folder, "%s", path);
    } else if (stat(path, &about) == 0 && S_ISDIR(about.st_mode)) {
        CARRY_TRY(carry_file_in(ctx, inside, path, "tokenizer.json"));
        (void)snprintf(folder, sizeof folder, "%s", path);
        path = inside;
    } else {
        const char *slash = strrchr(path, '/');
        (void)snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - path) + 1 : 1,
                       slash != NULL ? path : ".");
        const size_t length = strlen(path);
        if (length > 6 && strcmp(path + length - 6, ".model") == 0) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s is a SentencePiece model: expected a tokenizer.json", path);
        }
    }
    char *text;
    size_t length;
    if (is_gguf) {
        CARRY_TRY(carry_gguf_text_of(ctx, path, "tokenizer.json", &text, &length));
    } else {
        CARRY_TRY(carry_file_read(ctx, &text, &length, path, CARRY_TOKENIZER_BYTES));
    }
    carry_status status = carry_tokenizer_parse(ctx, tokenizer, text, length, path);
    free(text);
    if (status == CARRY_OK) {
        status = carry_tokenizer_read_beside(ctx, *tokenizer, folder);
    }
    if (status != CARRY_OK) {
        carry_tokenizer_close(*tokenizer);
        *tokenizer = NULL;
    }
    return status;
}
