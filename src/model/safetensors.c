/* Reading safetensors files. The header's JSON has one form only, so the reader knows that form and refuses all else.
 */
#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/memory.h"

#define HEADER_LIMIT ((uint64_t)100 << 20)
#define ENTRY_LIMIT ((int64_t)1 << 20)

typedef struct reader {
    carry_ctx *ctx;
    const char *start, *at, *end;
    const unsigned char *data; /* what follows the header */
    size_t data_bytes;
    carry_safetensors *file;
    int64_t room, note_room;
} reader;

static carry_status bad(const reader *r, const char *what) {
    return carry_fail(r->ctx, CARRY_EFORMAT, "the safetensors header is damaged at byte %lld: %s",
                      (long long)(8 + (r->at - r->start)), what);
}

static void skip_space(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) {
        r->at++;
    }
}

static bool take(reader *r, char c) {
    skip_space(r);
    if (r->at < r->end && *r->at == c) {
        r->at++;
        return true;
    }
    return false;
}

/* A string into text; escapes other than \uXXXX are undone, that one is kept as it stands. */
static carry_status take_string(reader *r, char *text, size_t size) {
    if (!take(r, '"')) {
        return bad(r, "a string is expected");
    }
    size_t used = 0;
    while (r->at < r->end && *r->at != '"') {
        char c = *r->at++;
        if ((unsigned char)c < 0x20) {
            return bad(r, "a control character inside a string");
        }
        if (c == '\\') {
            if (r->at == r->end) {
                break;
            }
            const char *escapes = "\"\\/bfnrtu";
            const char *meant = "\"\\/\b\f\n\r\tu";
            const char *found = strchr(escapes, *r->at);
            if (found == NULL || *found == '\0') {
                return bad(r, "an unknown escape");
            }
            c = meant[found - escapes];
            r->at++;
        }
        if (used + 1 >= size) {
            return bad(r, "a string is too long");
        }
        text[used++] = c;
    }
    text[used] = '\0';
    return take(r, '"') ? CARRY_OK : bad(r, "a string does not end");
}

static carry_status take_number(reader *r, int64_t *number) {
    skip_space(r);
    int64_t value = 0;
    const char *first = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') {
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *r->at - '0', &value)) {
            return bad(r, "a number is too large");
        }
        r->at++;
    }
    *number = value;
    return r->at > first ? CARRY_OK : bad(r, "a number is expected");
}

static carry_status take_numbers(reader *r, int64_t *numbers, int most, int *count) {
    *count = 0;
    if (!take(r, '[')) {
        return bad(r, "a list of numbers is expected");
    }
    if (take(r, ']')) {
        return CARRY_OK;
    }
    do {
        if (*count == most) {
            return bad(r, "a list is too long");
        }
        CARRY_TRY(take_number(r, &numbers[(*count)++]));
    } while (take(r, ','));
    return take(r, ']') ? CARRY_OK : bad(r, "a list does not end");
}

static carry_status parse_dtype(const reader *r, const char *text, carry_dtype *dtype) {
    static const struct {
        const char *text;
        carry_dtype dtype;
    } known[] = {{"F32", CARRY_F32}, {"BF16", CARRY_BF16}, {"F16", CARRY_F16}, {"I64", CARRY_I64}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(text, known[i].text) == 0) {
            *dtype = known[i].dtype;
            return CARRY_OK;
        }
    }
    return carry_fail(r->ctx, CARRY_EDTYPE, "the safetensors element type '%.20s' is none of F32, BF16, F16, I64",
                      text);
}

/* The value of one tensor's entry, in any order of its three keys. */
static carry_status take_entry(reader *r, carry_safetensors_entry *entry) {
    char key[32];
    char type[32] = "";
    int64_t shape[CARRY_MAX_RANK];
    int64_t offsets[2];
    int rank = -1;
    int bounds = -1;
    if (!take(r, '{')) {
        return bad(r, "a tensor's entry is expected");
    }
    do {
        CARRY_TRY(take_string(r, key, sizeof key));
        if (!take(r, ':')) {
            return bad(r, "a colon is expected");
        }
        if (strcmp(key, "dtype") == 0 && type[0] == '\0') {
            CARRY_TRY(take_string(r, type, sizeof type));
        } else if (strcmp(key, "shape") == 0 && rank < 0) {
            CARRY_TRY(take_numbers(r, shape, CARRY_MAX_RANK, &rank));
        } else if (strcmp(key, "data_offsets") == 0 && bounds < 0) {
            CARRY_TRY(take_numbers(r, offsets, 2, &bounds));
        } else {
            return bad(r, "a key other than dtype, shape and data_offsets, or one of them twice");
        }
    } while (take(r, ','));
    if (!take(r, '}') || rank < 0 || bounds != 2) {
        return bad(r, "an entry is not complete");
    }
    carry_dtype dtype;
    CARRY_TRY(parse_dtype(r, type, &dtype));
    size_t bytes;
    if (!carry_size_product(&bytes, shape, rank, carry_dtype_size(dtype)) || offsets[0] > offsets[1] ||
        (uint64_t)offsets[1] > r->data_bytes || (uint64_t)(offsets[1] - offsets[0]) != bytes) {
        return carry_fail(r->ctx, CARRY_EFORMAT,
                          "the tensor '%.60s' claims bytes %" PRId64 " to %" PRId64
                          " of %zu, which does not fit its shape or the file",
                          entry->name, offsets[0], offsets[1], r->data_bytes);
    }
    const unsigned char *data = r->data + offsets[0];
    if ((uintptr_t)data % carry_dtype_size(dtype) != 0) {
        return carry_fail(r->ctx, CARRY_EALIGN, "the tensor '%.60s' is not aligned in the file", entry->name);
    }
    entry->view = carry_view((void *)(uintptr_t)data, dtype, rank, shape);
    return CARRY_OK;
}

static carry_status take_metadata(reader *r) {
    if (!take(r, '{')) {
        return bad(r, "metadata must be an object");
    }
    if (take(r, '}')) {
        return CARRY_OK;
    }
    do {
        carry_safetensors *file = r->file;
        if (file->notes == r->note_room) {
            int64_t room = r->note_room > 0 ? 2 * r->note_room : 16;
            void *grown = room <= ENTRY_LIMIT ? realloc(file->note, (size_t)room * sizeof *file->note) : NULL;
            if (grown == NULL) {
                return carry_fail(r->ctx, CARRY_EMEMORY, "no memory for the metadata of a safetensors file");
            }
            file->note = grown;
            r->note_room = room;
        }
        carry_safetensors_note *note = &file->note[file->notes];
        size_t most = (size_t)(r->end - r->at) + 1;
        CARRY_TRY(take_string(r, note->key, sizeof note->key));
        if (!take(r, ':')) {
            return bad(r, "a colon is expected");
        }
        note->value = malloc(most < 65536 ? most : 65536);
        if (note->value == NULL) {
            return carry_fail(r->ctx, CARRY_EMEMORY, "no memory for the metadata of a safetensors file");
        }
        file->notes++;
        CARRY_TRY(take_string(r, note->value, most < 65536 ? most : 65536));
    } while (take(r, ','));
    return take(r, '}') ? CARRY_OK : bad(r, "metadata does not end");
}

static carry_status take_tensor(reader *r, const char *name) {
    carry_safetensors *file = r->file;
    if (carry_safetensors_find(file, name) != NULL) {
        return bad(r, "a tensor is named twice");
    }
    if (file->count == r->room) {
        int64_t room = r->room > 0 ? 2 * r->room : 64;
        void *grown = room <= ENTRY_LIMIT ? realloc(file->entries, (size_t)room * sizeof *file->entries) : NULL;
        if (grown == NULL) {
            return carry_fail(r->ctx, CARRY_EMEMORY, "no memory for the entries of a safetensors file");
        }
        file->entries = grown;
        r->room = room;
    }
    carry_safetensors_entry *entry = &file->entries[file->count];
    (void)snprintf(entry->name, sizeof entry->name, "%s", name);
    CARRY_TRY(take_entry(r, entry));
    file->count++;
    return CARRY_OK;
}

static carry_status take_header(reader *r) {
    if (!take(r, '{')) {
        return bad(r, "an object is expected");
    }
    if (!take(r, '}')) {
        do {
            char name[CARRY_SAFETENSORS_NAME];
            CARRY_TRY(take_string(r, name, sizeof name));
            if (!take(r, ':')) {
                return bad(r, "a colon is expected");
            }
            CARRY_TRY(strcmp(name, "__metadata__") == 0 ? take_metadata(r) : take_tensor(r, name));
        } while (take(r, ','));
        if (!take(r, '}')) {
            return bad(r, "the object does not end");
        }
    }
    skip_space(r);
    return r->at == r->end ? CARRY_OK : bad(r, "something follows the object");
}

carry_status carry_safetensors_parse(carry_ctx *ctx, carry_safetensors *file, const void *data, size_t bytes) {
    *file = (carry_safetensors){0};
    const unsigned char *raw = data;
    uint64_t length = 0;
    for (int i = 7; i >= 0 && bytes >= 8; i--) {
        length = length << 8 | raw[i];
    }
    if (bytes < 8 || length > HEADER_LIMIT || length > bytes - 8) {
        return carry_fail(ctx, CARRY_EFORMAT,
                          "this is no safetensors file: its header would have %" PRIu64 " of %zu bytes", length, bytes);
    }
    const char *header = (const char *)raw + 8;
    reader r = {.ctx = ctx,
                .start = header,
                .at = header,
                .end = header + length,
                .data = raw + 8 + length,
                .data_bytes = bytes - 8 - (size_t)length,
                .file = file};
    carry_status status = take_header(&r);
    if (status != CARRY_OK) {
        carry_safetensors_close(file);
    }
    return status;
}

carry_status carry_safetensors_open(carry_ctx *ctx, carry_safetensors *file, const char *path) {
    *file = (carry_safetensors){0};
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat about;
    if (opened < 0) {
        carry_status status = errno == ENOENT ? CARRY_ENOTFOUND : CARRY_EIO;
        return carry_fail(ctx, status, "%s cannot be read: %s", path, strerror(errno));
    }
    if (fstat(opened, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size < 8) {
        (void)close(opened);
        return carry_fail(ctx, CARRY_EFORMAT, "%s is not a safetensors file", path);
    }
    size_t bytes = (size_t)about.st_size;
    void *mapping = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, opened, 0);
    (void)close(opened);
    if (mapping == MAP_FAILED) {
        return carry_fail(ctx, CARRY_EIO, "%s cannot be mapped: %s", path, strerror(errno));
    }
    carry_status status = carry_safetensors_parse(ctx, file, mapping, bytes);
    if (status != CARRY_OK) {
        (void)munmap(mapping, bytes);
        return status;
    }
    file->mapping = mapping;
    file->mapping_bytes = bytes;
    return CARRY_OK;
}

void carry_safetensors_close(carry_safetensors *file) {
    for (int64_t i = 0; i < file->notes; i++) {
        free(file->note[i].value);
    }
    free(file->note);
    free(file->entries);
    if (file->mapping != NULL) {
        (void)munmap(file->mapping, file->mapping_bytes);
    }
    *file = (carry_safetensors){0};
}

const carry_tensor *carry_safetensors_find(const carry_safetensors *file, const char *name) {
    for (int64_t i = 0; i < file->count; i++) {
        if (strcmp(file->entries[i].name, name) == 0) {
            return &file->entries[i].view;
        }
    }
    return NULL;
}

const char *carry_safetensors_metadata(const carry_safetensors *file, const char *key) {
    for (int64_t i = 0; i < file->notes; i++) {
        if (strcmp(file->note[i].key, key) == 0) {
            return file->note[i].value;
        }
    }
    return NULL;
}
