/* Reads safetensors files. The header must be JSON of exactly one form; anything else is refused. */
#include "file/safetensors.h"

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
#include "core/tensor.h"
#include "core/json.h"

#define HEADER_LIMIT ((uint64_t)100 << 20)
#define ENTRY_LIMIT ((int64_t)1 << 20)

typedef struct reader {
    carry_ctx *ctx;
    const unsigned char *data; /* starts after the header */
    size_t data_bytes;
    carry_safetensors *file;
} reader;

static carry_status bad(const reader *r, const carry_json *node, const char *what) {
    return carry_fail(r->ctx, CARRY_EFORMAT, "the safetensors header is damaged at line %u, column %u: %s", node->line,
                      node->column, what);
}

/* Copies a tensor's name, which must be short enough and have no NUL inside. */
static carry_status take_name(const reader *r, char name[CARRY_SAFETENSORS_NAME], const carry_json *node) {
    if (node->key_length >= CARRY_SAFETENSORS_NAME || strlen(node->key) != node->key_length) {
        return bad(r, node, "a name is too long, or has a zero inside");
    }
    memcpy(name, node->key, node->key_length + 1);
    return CARRY_OK;
}

static carry_status take_numbers(const reader *r, int64_t *numbers, int most, int *count, const carry_json *list) {
    *count = 0;
    if (list->kind != CARRY_JSON_ARRAY || list->as.inside.count > most) {
        return bad(r, list, "a list of numbers is expected, or it is too long");
    }
    for (const carry_json *node = list->as.inside.first; node != NULL; node = node->next) {
        if (node->kind != CARRY_JSON_NUMBER || !node->whole || node->as.number.integer < 0) {
            return bad(r, node, "a whole number from 0 on is expected");
        }
        numbers[(*count)++] = node->as.number.integer;
    }
    return CARRY_OK;
}

static carry_status parse_dtype(const reader *r, const char *name, const carry_json *text, carry_dtype *dtype) {
    static const struct {
        const char *text;
        carry_dtype dtype;
    } known[] = {{"F32", CARRY_F32},    {"BF16", CARRY_BF16}, {"F16", CARRY_F16}, {"I64", CARRY_I64},
                 {"F8_E4M3", CARRY_F8}, {"I8", CARRY_I8},     {"I32", CARRY_I32}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (carry_json_is_text(text, known[i].text)) {
            *dtype = known[i].dtype;
            return CARRY_OK;
        }
    }
    char shown[CARRY_JSON_SHOWN];
    return carry_fail(
        r->ctx, CARRY_EDTYPE,
        "the tensor '%.60s' has the element type %s, which is not supported: expected F32, BF16, F16, I64, "
        "F8_E4M3, I8 or I32",
        name, carry_json_show(shown, text));
}

/* Reads the entry of one tensor; its three keys may be in any order. */
static carry_status take_entry(const reader *r, carry_safetensors_entry *entry, const carry_json *node) {
    const carry_json *type = carry_json_find(node, "dtype");
    const carry_json *sizes = carry_json_find(node, "shape");
    const carry_json *places = carry_json_find(node, "data_offsets");
    if (type == NULL || sizes == NULL || places == NULL || node->as.inside.count != 3) {
        return bad(r, node, "an entry has dtype, shape and data_offsets, once each, and nothing else");
    }
    carry_dtype dtype;
    int64_t shape[CARRY_MAX_RANK];
    int64_t offsets[2];
    int rank;
    int bounds;
    CARRY_TRY(parse_dtype(r, entry->name, type, &dtype));
    CARRY_TRY(take_numbers(r, shape, CARRY_MAX_RANK, &rank, sizes));
    CARRY_TRY(take_numbers(r, offsets, 2, &bounds, places));
    if (bounds != 2) {
        return bad(r, places, "two offsets are expected");
    }
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

static carry_status take_metadata(const reader *r, const carry_json *notes) {
    carry_safetensors *file = r->file;
    if (notes->kind != CARRY_JSON_OBJECT || file->note != NULL) {
        return bad(r, notes, "metadata must be an object, and one only");
    }
    file->note = calloc((size_t)notes->as.inside.count + 1, sizeof *file->note);
    if (file->note == NULL) {
        return carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: the metadata of a safetensors file");
    }
    for (const carry_json *node = notes->as.inside.first; node != NULL; node = node->next) {
        carry_safetensors_note *note = &file->note[file->notes];
        CARRY_TRY(take_name(r, note->key, node));
        if (node->kind != CARRY_JSON_STRING) {
            return bad(r, node, "metadata holds texts only");
        }
        note->value = malloc(node->as.text.length + 1);
        if (note->value == NULL) {
            return carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: the metadata of a safetensors file");
        }
        memcpy(note->value, node->as.text.bytes, node->as.text.length + 1);
        file->notes++;
    }
    return CARRY_OK;
}

static int by_name(const void *left, const void *right) {
    const carry_safetensors_entry *const *a = left;
    const carry_safetensors_entry *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

static size_t entry_bytes(const carry_safetensors_entry *entry) {
    return (size_t)carry_tensor_count(&entry->view) * carry_dtype_size(entry->view.dtype);
}

/* Empty tensors come first, so that an empty tensor at the start of another does not look like an overlap. */
static int by_place(const void *left, const void *right) {
    const carry_safetensors_entry *const *a = left;
    const carry_safetensors_entry *const *b = right;
    uintptr_t first = (uintptr_t)(*a)->view.data;
    uintptr_t second = (uintptr_t)(*b)->view.data;
    if (first != second) {
        return first < second ? -1 : 1;
    }
    return (entry_bytes(*a) > 0) - (entry_bytes(*b) > 0);
}

/* Checks that every byte of the data belongs to one tensor, as the safetensors library does: a file with holes between
   tensors, or bytes after the last, was cut, joined or damaged. by_name is sorted by place here. */
static carry_status check_places(const reader *r) {
    const carry_safetensors *file = r->file;
    size_t end = 0;
    for (int64_t i = 0; i < file->count; i++) {
        const carry_safetensors_entry *entry = file->by_name[i];
        const size_t begin = (size_t)((const unsigned char *)entry->view.data - r->data);
        if (begin < end) {
            return carry_fail(r->ctx, CARRY_EFORMAT, "the tensors '%.60s' and '%.60s' share bytes of the file",
                              file->by_name[i - 1]->name, entry->name);
        }
        if (begin > end) {
            return carry_fail(r->ctx, CARRY_EFORMAT, "bytes %zu to %zu, before the tensor '%.60s', are in no tensor",
                              end, begin, entry->name);
        }
        end = begin + entry_bytes(entry);
    }
    if (end != r->data_bytes) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "%zu bytes after the last tensor '%.60s' are in no tensor",
                          r->data_bytes - end, file->count > 0 ? file->by_name[file->count - 1]->name : "");
    }
    return CARRY_OK;
}

/* Checks that no two tensors share a byte or a name. Keeps the list sorted by name, for lookups. */
static carry_status order_entries(const reader *r) {
    carry_safetensors *file = r->file;
    size_t count = (size_t)file->count;
    file->by_name = malloc((count + 1) * sizeof(carry_safetensors_entry *));
    if (file->by_name == NULL) {
        return carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: the entries of a safetensors file");
    }
    for (size_t i = 0; i < count; i++) {
        file->by_name[i] = &file->entries[i];
    }
    qsort(file->by_name, count, sizeof(carry_safetensors_entry *), by_place);
    CARRY_TRY(check_places(r));
    qsort(file->by_name, count, sizeof(carry_safetensors_entry *), by_name);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) == 0) {
            return carry_fail(r->ctx, CARRY_EFORMAT, "the tensor '%.60s' is named twice", file->by_name[i]->name);
        }
    }
    return CARRY_OK;
}

static carry_status take_header(const reader *r, const carry_json *header) {
    carry_safetensors *file = r->file;
    if (header->kind != CARRY_JSON_OBJECT || header->as.inside.count > ENTRY_LIMIT) {
        return bad(r, header, "an object is expected, or it names too many tensors");
    }
    file->entries = calloc((size_t)header->as.inside.count + 1, sizeof *file->entries);
    if (file->entries == NULL) {
        return carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: the entries of a safetensors file");
    }
    for (const carry_json *node = header->as.inside.first; node != NULL; node = node->next) {
        carry_safetensors_entry *entry = &file->entries[file->count];
        CARRY_TRY(take_name(r, entry->name, node));
        if (strcmp(entry->name, "__metadata__") == 0) {
            CARRY_TRY(take_metadata(r, node));
        } else {
            CARRY_TRY(take_entry(r, entry, node));
            file->count++;
        }
    }
    return order_entries(r);
}

carry_status carry_safetensors_parse(carry_ctx *ctx, carry_safetensors *file, const void *data, size_t bytes) {
    *file = (carry_safetensors){0};
    const unsigned char *raw = data;
    uint64_t length = 0;
    for (int i = 7; i >= 0 && bytes >= 8; i--) {
        length = length << 8 | raw[i];
    }
    if (bytes < 8 || length > HEADER_LIMIT || length > bytes - 8) {
        return carry_fail(ctx, CARRY_EFORMAT, "not a safetensors file: its header would have %" PRIu64 " of %zu bytes",
                          length, bytes);
    }
    carry_json *header;
    CARRY_TRY(carry_json_parse(ctx, &header, (const char *)raw + 8, (size_t)length, "the safetensors header"));
    reader r = {.ctx = ctx, .data = raw + 8 + length, .data_bytes = bytes - 8 - (size_t)length, .file = file};
    carry_status status = take_header(&r, header);
    carry_json_free(header);
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
        char why[256];
        (void)snprintf(why, sizeof why, "%s", carry_ctx_error(ctx));
        return carry_fail(ctx, status, "%s: %s", path, why);
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
    free(file->by_name);
    if (file->mapping != NULL) {
        (void)munmap(file->mapping, file->mapping_bytes);
    }
    *file = (carry_safetensors){0};
}

void carry_safetensors_sort(carry_safetensors *file) {
    for (int64_t i = 0; i < file->count; i++) {
        file->by_name[i] = &file->entries[i];
    }
    qsort(file->by_name, (size_t)file->count, sizeof(carry_safetensors_entry *), by_name);
}

const carry_tensor *carry_safetensors_find(const carry_safetensors *file, const char *name) {
    int64_t first = 0;
    int64_t end = file->count;
    while (first < end) {
        int64_t middle = first + (end - first) / 2;
        int order = strcmp(file->by_name[middle]->name, name);
        if (order == 0) {
            return &file->by_name[middle]->view;
        }
        first = order < 0 ? middle + 1 : first;
        end = order < 0 ? end : middle;
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
