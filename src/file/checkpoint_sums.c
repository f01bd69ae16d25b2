/* Writes the sizes and checksums of a model's files. */
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/file.h"
#include "file/checkpoint_files.h"

carry_status carry_checkpoint_put_files(carry_ctx *ctx, carry_json_text *text, const char *folder,
                                        const char *const *names, bool may_lack) {
    const char *before = "";
    carry_json_put_raw(text, "  \"files\": [");
    for (int i = 0; names[i] != NULL; i++) {
        int64_t bytes;
        uint32_t crc;
        char path[CARRY_FILE_PATH];
        struct stat about;
        CARRY_TRY(carry_file_in(ctx, path, folder, names[i]));
        if (may_lack && stat(path, &about) != 0) {
            continue;
        }
        CARRY_TRY(carry_checkpoint_sum(ctx, path, &bytes, &crc));
        carry_json_put_raw(text, "%s\n    {\"name\": \"%s\", \"bytes\": %" PRId64 ", \"crc32c\": %" PRIu32 "}", before,
                           names[i], bytes, crc);
        before = ",";
    }
    carry_json_put_raw(text, "\n  ]");
    return CARRY_OK;
}

void carry_checkpoint_put_sum(carry_json_text *text) {
    const uint32_t sum = text->failed ? 0 : carry_crc32c(0, text->bytes, text->length);
    carry_json_put_raw(text, CARRY_NOTE_SUM " %" PRIu32 "\n}\n", sum);
}

carry_status carry_checkpoint_write_sums(carry_ctx *ctx, const char *folder) {
    static const char *const names[] = {"config.json", "model.safetensors", CARRY_WORDS_FILE, NULL};
    char path[CARRY_FILE_PATH];
    carry_json_text text = {0};
    CARRY_TRY(carry_file_in(ctx, path, folder, CARRY_SUMS_FILE));
    carry_json_put_raw(&text, "{\n  \"format\": %d,\n", CARRY_CHECKPOINT_FORMAT);
    carry_status status = carry_checkpoint_put_files(ctx, &text, folder, names, true);
    carry_checkpoint_put_sum(&text);
    if (status == CARRY_OK && text.failed) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing %s", path);
    }
    status = status == CARRY_OK ? carry_file_replace(ctx, path, text.bytes, text.length) : status;
    carry_json_text_free(&text);
    return status;
}

void carry_checkpoint_remove_sums(const char *folder) {
    char path[CARRY_FILE_PATH];
    if (snprintf(path, sizeof path, "%s/" CARRY_SUMS_FILE, folder) < (int)sizeof path) {
        (void)unlink(path);
    }
}
