/* Writes, reads and checks state files. */
#include "file/state_file.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/hash.h"
#include "core/tensor.h"
#include "core/threads.h"

#define PREFIX "xxh64."
#define OWN_NOTES 5 /* notes beside those of tensors */
#define KEY (CARRY_SAFETENSORS_NAME + sizeof PREFIX)
#define NUMBER 24

static size_t bytes_of(const carry_tensor *tensor) {
    return (size_t)carry_tensor_count(tensor) * carry_dtype_size(tensor->dtype);
}

static uint64_t hash_number(uint64_t before, uint64_t number) {
    return carry_hash_ids(before, (const int64_t[]){(int64_t)number}, 1);
}

static uint64_t hash_about(const carry_state_about *about) {
    uint64_t hash = carry_hash(0, CARRY_STATE_VERSION, strlen(CARRY_STATE_VERSION));
    hash = hash_number(hash, about->model);
    hash = hash_number(hash, (uint64_t)about->tokens);
    return hash_number(hash, about->ids);
}

/* Returns one tensor's contribution to the header's hash. Contributions are added, so the order of tensors does not
   matter. */
static uint64_t hash_entry(const char *name, const carry_tensor *tensor, uint64_t data) {
    const char *type = carry_dtype_name(tensor->dtype);
    uint64_t hash = carry_hash(data, name, strlen(name));
    hash = carry_hash(hash, type, strlen(type));
    for (int i = 0; i < tensor->rank; i++) {
        hash = hash_number(hash, (uint64_t)tensor->shape[i]);
    }
    return hash;
}

typedef struct hashing {
    const carry_tensor *const *tensor; /* NULL: not hashed */
    uint64_t *hash;
} hashing;

static void hash_tensors(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const hashing *h = argument;
    for (int64_t i = begin; i < end; i++) {
        h->hash[i] = h->tensor[i] != NULL ? carry_hash(0, h->tensor[i]->data, bytes_of(h->tensor[i])) : 0;
    }
}

/* The notes of a file, and the memory of their keys and texts. */
typedef struct written_notes {
    const carry_tensor **tensor;
    uint64_t *hash;
    char (*text)[CARRY_HASH_TEXT];
    char (*key)[KEY];
    const char **notes;
} written_notes;

static void free_notes(written_notes *w) {
    free(w->tensor);
    free(w->hash);
    free(w->text);
    free(w->key);
    free(w->notes);
}

static carry_status check_items(carry_ctx *ctx, const carry_safetensors_item *items, int64_t count,
                                const carry_state_about *about) {
    for (int64_t i = 0; i < count; i++) {
        if (strlen(items[i].name) + sizeof PREFIX > CARRY_SAFETENSORS_NAME || items[i].dtype != items[i].tensor.dtype) {
            return carry_fail(ctx, CARRY_EARGUMENT,
                              "'%.60s' cannot be a tensor of a state: its name is too long, or "
                              "it would be converted",
                              items[i].name);
        }
    }
    return about->tokens >= 0 && about->tokens <= CARRY_STATE_TOKENS
               ? CARRY_OK
               : carry_fail(ctx, CARRY_ERANGE,
                            "a state of %" PRId64 " tokens cannot be written: expected 0 to %" PRId64, about->tokens,
                            CARRY_STATE_TOKENS);
}

carry_status carry_state_write(carry_ctx *ctx, const char *path, const carry_state_about *about,
                               const carry_safetensors_item *items, int64_t count) {
    const size_t n = (size_t)count + 1;
    char model[CARRY_HASH_TEXT];
    char ids[CARRY_HASH_TEXT];
    char header[CARRY_HASH_TEXT];
    char tokens[NUMBER];
    CARRY_TRY(check_items(ctx, items, count, about));
    written_notes w = {.tensor = calloc(n, sizeof(const carry_tensor *)),
                       .hash = calloc(n, sizeof *w.hash),
                       .text = calloc(n, sizeof *w.text),
                       .key = calloc(n, sizeof *w.key),
                       .notes = calloc(2 * (n + OWN_NOTES) + 1, sizeof *w.notes)};
    if (w.tensor == NULL || w.hash == NULL || w.text == NULL || w.key == NULL || w.notes == NULL) {
        free_notes(&w);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing %s", path);
    }
    for (int64_t i = 0; i < count; i++) {
        w.tensor[i] = &items[i].tensor;
    }
    carry_parallel(ctx, count, 1, hash_tensors, &(hashing){.tensor = w.tensor, .hash = w.hash});
    uint64_t sum = hash_about(about);
    for (int64_t i = 0; i < count; i++) {
        sum += hash_entry(items[i].name, &items[i].tensor, w.hash[i]);
    }
    (void)snprintf(tokens, sizeof tokens, "%" PRId64, about->tokens);
    const char *const own[2 * OWN_NOTES] = {"carry_state", CARRY_STATE_VERSION,
                                            "model",       carry_hash_text(model, about->model),
                                            "tokens",      tokens,
                                            "ids",         carry_hash_text(ids, about->ids),
                                            "header",      carry_hash_text(header, sum)};
    memcpy(w.notes, own, sizeof own);
    for (int64_t i = 0; i < count; i++) {
        (void)snprintf(w.key[i], sizeof w.key[i], PREFIX "%s", items[i].name);
        w.notes[2 * (OWN_NOTES + i)] = w.key[i];
        w.notes[2 * (OWN_NOTES + i) + 1] = carry_hash_text(w.text[i], w.hash[i]);
    }
    carry_status status = carry_safetensors_write(ctx, path, items, count, w.notes);
    free_notes(&w);
    return status;
}

static carry_status damaged(carry_ctx *ctx, const char *path, const char *what) {
    return carry_fail(ctx, CARRY_EFORMAT, "%s is damaged: %s; read its text again and save the state", path, what);
}

/* Parses a number from 0 to CARRY_STATE_TOKENS in the form in which it is written: only digits, without a leading
   zero. */
static bool parse_tokens(int64_t *tokens, const char *text) {
    int64_t value = 0;
    size_t i = 0;
    for (; text[i] >= '0' && text[i] <= '9' && value <= CARRY_STATE_TOKENS; i++) {
        value = 10 * value + (text[i] - '0');
    }
    *tokens = value;
    return i > 0 && text[i] == '\0' && value <= CARRY_STATE_TOKENS && (i == 1 || text[0] != '0');
}

static bool take_hash(uint64_t *hash, const carry_safetensors *file, const char *key) {
    const char *text = carry_safetensors_metadata(file, key);
    return text != NULL && carry_hash_parse(hash, text);
}

static bool take_tensor_hash(uint64_t *hash, const carry_safetensors *file, const char *name) {
    char key[KEY];
    (void)snprintf(key, sizeof key, PREFIX "%s", name);
    return take_hash(hash, file, key);
}

/* True if the tensors fill the file without gaps from the header to its end. */
static bool is_filled(const carry_safetensors *file, const unsigned char *data, size_t bytes) {
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | data[i];
    }
    const unsigned char *at = data + 8 + length; /* already parsed, so inside the file */
    for (int64_t i = 0; i < file->count; i++) {
        if (file->entries[i].view.data != at) {
            return false;
        }
        at += bytes_of(&file->entries[i].view);
    }
    return at == data + bytes;
}

static carry_status take_notes(carry_ctx *ctx, carry_state_file *state, const char *path) {
    const carry_safetensors *file = &state->file;
    const char *version = carry_safetensors_metadata(file, "carry_state");
    if (version == NULL) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s is not a state that carry saved", path);
    }
    if (strcmp(version, CARRY_STATE_VERSION) != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "%s is a state file of version %.8s, and this carry reads version %s: read its text again "
                          "and save the state (carry generate --state-save)",
                          path, version, CARRY_STATE_VERSION);
    }
    const char *tokens = carry_safetensors_metadata(file, "tokens");
    if (tokens == NULL || !parse_tokens(&state->about.tokens, tokens)) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s: tokens is '%.24s': expected a whole number from 0 to %" PRId64, path,
                          tokens != NULL ? tokens : "", CARRY_STATE_TOKENS);
    }
    if (!take_hash(&state->about.model, file, "model") || !take_hash(&state->about.ids, file, "ids") ||
        !take_hash(&state->header, file, "header") || file->notes != OWN_NOTES + file->count) {
        return damaged(ctx, path, "its metadata is not that of a state");
    }
    for (int64_t i = 0; i < file->count; i++) {
        uint64_t hash;
        if (!take_tensor_hash(&hash, file, file->entries[i].name)) {
            return damaged(ctx, path, "a tensor has no hash");
        }
    }
    return CARRY_OK;
}

static carry_status check_layout(carry_ctx *ctx, carry_state_file *state, const void *data, size_t bytes,
                                 const char *path) {
    CARRY_TRY(take_notes(ctx, state, path));
    return is_filled(&state->file, data, bytes) ? CARRY_OK : damaged(ctx, path, "its tensors do not fill the file");
}

carry_status carry_state_parse(carry_ctx *ctx, carry_state_file *state, const void *data, size_t bytes,
                               const char *path) {
    *state = (carry_state_file){0};
    carry_status status = carry_safetensors_parse(ctx, &state->file, data, bytes);
    status = status == CARRY_OK ? check_layout(ctx, state, data, bytes, path) : status;
    if (status != CARRY_OK) {
        carry_state_close(state);
    }
    return status;
}

/* hash: of each tensor that was read. */
static carry_status compare(carry_ctx *ctx, const carry_state_check *check, const carry_tensor *const *tensor,
                            const uint64_t *hash) {
    const carry_safetensors *file = &check->file->file;
    uint64_t sum = hash_about(&check->file->about);
    for (int64_t i = 0; i < file->count; i++) {
        const char *name = file->entries[i].name;
        uint64_t written = 0;
        if (!take_tensor_hash(&written, file, name) || (tensor[i] != NULL && written != hash[i])) {
            char what[128];
            (void)snprintf(what, sizeof what, "%.60s has other bytes than were written", name);
            return damaged(ctx, check->path, what);
        }
        sum += hash_entry(name, &file->entries[i].view, written);
    }
    return sum == check->file->header ? CARRY_OK
                                      : damaged(ctx, check->path, "its header has other bytes than were written");
}

carry_status carry_state_verify_files(carry_ctx *ctx, const carry_state_check *checks, int64_t count, int64_t *wrong) {
    int64_t tensors = 0;
    for (int64_t i = 0; i < count; i++) {
        tensors += checks[i].file->file.count;
    }
    *wrong = 0;
    const carry_tensor **tensor = calloc((size_t)tensors + 1, sizeof(const carry_tensor *));
    uint64_t *hash = calloc((size_t)tensors + 1, sizeof *hash);
    carry_status status = tensor != NULL && hash != NULL
                              ? CARRY_OK
                              : carry_fail(ctx, CARRY_EMEMORY, "out of memory: reading %s", checks[0].path);
    int64_t at = 0;
    for (int64_t i = 0; status == CARRY_OK && i < count; i++) {
        const carry_safetensors *file = &checks[i].file->file;
        for (int64_t j = 0; j < file->count; j++, at++) {
            const bool is_read = checks[i].unread == NULL || strcmp(file->entries[j].name, checks[i].unread) != 0;
            tensor[at] = is_read ? &file->entries[j].view : NULL;
        }
    }
    if (status == CARRY_OK) {
        carry_parallel(ctx, tensors, 1, hash_tensors, &(hashing){.tensor = tensor, .hash = hash});
    }
    at = 0;
    for (int64_t i = 0; status == CARRY_OK && i < count; i++) {
        *wrong = i;
        status = compare(ctx, &checks[i], tensor + at, hash + at);
        at += checks[i].file->file.count;
    }
    free(tensor);
    free(hash);
    return status;
}

carry_status carry_state_verify(carry_ctx *ctx, const carry_state_file *state, const char *path) {
    int64_t wrong;
    return carry_state_verify_files(ctx, &(carry_state_check){.file = state, .path = path}, 1, &wrong);
}

carry_status carry_state_map(carry_ctx *ctx, carry_state_file *state, const char *path) {
    *state = (carry_state_file){0};
    CARRY_TRY(carry_safetensors_open(ctx, &state->file, path));
    const carry_status status = check_layout(ctx, state, state->file.mapping, state->file.mapping_bytes, path);
    if (status != CARRY_OK) {
        carry_state_close(state);
    }
    return status;
}

carry_status carry_state_open(carry_ctx *ctx, carry_state_file *state, const char *path) {
    CARRY_TRY(carry_state_map(ctx, state, path));
    const carry_status status = carry_state_verify(ctx, state, path);
    if (status != CARRY_OK) {
        carry_state_close(state);
    }
    return status;
}

void carry_state_close(carry_state_file *state) {
    carry_safetensors_close(&state->file);
    *state = (carry_state_file){0};
}
