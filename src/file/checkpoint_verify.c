/* Compares the files of a checkpoint with the sizes and checksums that training wrote. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/file.h"
#include "file/checkpoint_files.h"
#include "file/weights.h"

#define NOTE_BYTES ((size_t)1 << 20) /* largest train.json */

carry_status carry_checkpoint_whole(carry_ctx *ctx, int64_t *to, const carry_json *object, const char *key,
                                    const char *path) {
    const carry_json *node = carry_json_find(object, key);
    if (node == NULL || node->kind != CARRY_JSON_NUMBER || !node->whole || node->as.number.integer < 0) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s has no whole number '%s'", path, key);
    }
    *to = node->as.number.integer;
    return CARRY_OK;
}

/* True if this is a file that a checkpoint has. Names in a downloaded file must not be followed as paths. */
static bool is_known(const carry_json *name) {
    for (int i = 0; carry_checkpoint_files[i] != NULL; i++) {
        if (carry_json_is_text(name, carry_checkpoint_files[i])) {
            return true;
        }
    }
    return carry_json_is_text(name, CARRY_WORDS_FILE);
}

carry_status carry_checkpoint_check(carry_ctx *ctx, const carry_json *entry, const char *folder, const char *note) {
    const carry_json *name = carry_json_find(entry, "name");
    char path[CARRY_FILE_PATH];
    int64_t bytes;
    int64_t crc;
    int64_t has_bytes;
    uint32_t has_crc;
    if (!is_known(name)) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s lists a file that checkpoints do not have", note);
    }
    CARRY_TRY(carry_checkpoint_whole(ctx, &bytes, entry, "bytes", note));
    CARRY_TRY(carry_checkpoint_whole(ctx, &crc, entry, "crc32c", note));
    CARRY_TRY(carry_file_in(ctx, path, folder, name->as.text.bytes));
    CARRY_TRY(carry_checkpoint_sum(ctx, path, &has_bytes, &has_crc));
    if (bytes != has_bytes) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s has %" PRId64 " bytes, and %" PRId64 " were written", path, has_bytes,
                          bytes);
    }
    return (uint32_t)crc == has_crc ? CARRY_OK
                                    : carry_fail(ctx, CARRY_EFORMAT, "%s has other bytes than were written", path);
}

/* Reads train.json. Its last member is a checksum of the text before it; older files lack it. */
carry_status carry_checkpoint_note(carry_ctx *ctx, carry_json **document, const char *path) {
    char *text;
    size_t length;
    CARRY_TRY(carry_file_read(ctx, &text, &length, path, NOTE_BYTES));
    carry_status status = carry_json_parse(ctx, document, text, length, path);
    const carry_json *sum = status == CARRY_OK ? carry_json_find(*document, CARRY_NOTE_SUM_KEY) : NULL;
    if (sum != NULL) {
        const char *at = strstr(text, CARRY_NOTE_SUM); /* not inside a string, where the line end would be escaped */
        int64_t wanted = -1;
        status = carry_checkpoint_whole(ctx, &wanted, *document, CARRY_NOTE_SUM_KEY, path);
        if (status == CARRY_OK && (at == NULL || carry_crc32c(0, text, (size_t)(at - text)) != (uint32_t)wanted)) {
            status = carry_fail(ctx, CARRY_EFORMAT, "%s has other bytes than were written", path);
        }
    }
    free(text);
    return status;
}

static bool exists(carry_ctx *ctx, char path[CARRY_FILE_PATH], const char *folder, const char *name) {
    struct stat about;
    return carry_file_in(ctx, path, folder, name) == CARRY_OK && stat(path, &about) == 0;
}

/* Checks the entries of train.json. only: compares just this file; NULL: all but the optimizer's state. */
static carry_status check_entries(carry_ctx *ctx, const carry_json *document, const char *folder, const char *note,
                                  const char *only) {
    const carry_json *files = carry_json_find(document, "files");
    const carry_json *f = files != NULL && files->kind == CARRY_JSON_ARRAY ? files->as.inside.first : NULL;
    int found = 0;
    for (; f != NULL; f = f->next) {
        const carry_json *name = carry_json_find(f, "name");
        if (only != NULL ? carry_json_is_text(name, only) : !carry_json_is_text(name, CARRY_STATE_FILE)) {
            CARRY_TRY(carry_checkpoint_check(ctx, f, folder, note));
        }
        found += carry_json_is_text(name, "config.json") || carry_json_is_text(name, "model.safetensors") ||
                 carry_json_is_text(name, "adapter_config.json") ||
                 carry_json_is_text(name, "adapter_model.safetensors");
    }
    /* A train.json of another program has no checksum of its own. */
    return found >= 2 || carry_json_find(document, CARRY_NOTE_SUM_KEY) == NULL
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EFORMAT, "%s lists no checksums of config.json and model.safetensors", note);
}

carry_status carry_checkpoint_verify_model(carry_ctx *ctx, const char *path) {
    char folder[CARRY_FILE_PATH];
    char note[CARRY_FILE_PATH];
    carry_json *document = NULL;
    const char *only = NULL;
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder) {
        return carry_fail(ctx, CARRY_ESIZE, "the path %.60s... is too long", path);
    }
    if (carry_weights_is_file(path)) {
        char *slash = strrchr(folder, '/');
        only = slash != NULL ? path + (slash - folder) + 1 : path;
        (void)snprintf(slash != NULL ? slash + 1 : folder, 2, "%s", ".");
    }
    if (!exists(ctx, note, folder, CARRY_NOTE_FILE) && !exists(ctx, note, folder, CARRY_SUMS_FILE)) {
        return CARRY_OK;
    }
    carry_status status = carry_checkpoint_note(ctx, &document, note);
    status = status == CARRY_OK ? check_entries(ctx, document, folder, note, only) : status;
    carry_json_free(document);
    return status;
}
