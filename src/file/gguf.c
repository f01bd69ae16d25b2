/* Reads GGUF files. */
#include "file/gguf.h"

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
#include "ops/quantised/quantised.h"

#define COUNT_LIMIT ((uint64_t)1 << 20) /* limit of keys, and of tensors */
#define RANK_LIMIT 4
#define KEY_LIMIT 256

typedef struct reader {
    carry_ctx *ctx;
    const unsigned char *start, *at, *end;
    carry_gguf *file;
} reader;

static carry_status cut_off(const reader *r, const char *where) {
    return carry_fail(r->ctx, CARRY_EFORMAT, "the GGUF file is cut off or damaged at byte %zu: %s",
                      (size_t)(r->at - r->start), where);
}

static uint64_t number_at(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | at[i];
    }
    return value;
}

static carry_status take_number(reader *r, uint64_t *value, int bytes, const char *where) {
    if (r->end - r->at < bytes) {
        return cut_off(r, where);
    }
    *value = number_at(r->at, bytes);
    r->at += bytes;
    return CARRY_OK;
}

static carry_status take_text(reader *r, carry_gguf_text *text, const char *where) {
    uint64_t length;
    CARRY_TRY(take_number(r, &length, 8, where));
    if (length > (uint64_t)(r->end - r->at)) {
        return cut_off(r, where);
    }
    *text = (carry_gguf_text){.bytes = (const char *)r->at, .length = (size_t)length};
    r->at += length;
    return CARRY_OK;
}

/* Returns the size of a value in bytes; 0 for texts and arrays. */
static int size_of(carry_gguf_type type) {
    static const int sizes[CARRY_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[type];
}

static carry_status take_values(reader *r, carry_gguf_item *item) {
    const int size = size_of(item->type);
    item->at = r->at;
    if (size > 0) {
        if (item->count > (uint64_t)(r->end - r->at) / (uint64_t)size) {
            return cut_off(r, "a list of numbers");
        }
        r->at += item->count * (uint64_t)size;
        return CARRY_OK;
    }
    /* Ends with the file at the latest: each text takes at least 8 bytes. */
    for (uint64_t i = 0; i < item->count; i++) {
        carry_gguf_text text;
        CARRY_TRY(take_text(r, &text, "a text"));
    }
    return CARRY_OK;
}

static carry_status take_item(reader *r, carry_gguf_item *item) {
    uint64_t type;
    CARRY_TRY(take_text(r, &item->key, "a key"));
    CARRY_TRY(take_number(r, &type, 4, "the type of a key"));
    item->count = 1;
    if (item->key.length == 0 || item->key.length >= KEY_LIMIT) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "a key of the GGUF file has %zu bytes: expected 1 to %d",
                          item->key.length, KEY_LIMIT - 1);
    }
    if (type == CARRY_GGUF_ARRAY) {
        item->is_array = true;
        CARRY_TRY(take_number(r, &type, 4, "the type of a list"));
        CARRY_TRY(take_number(r, &item->count, 8, "the length of a list"));
    }
    if (type >= CARRY_GGUF_TYPES || type == CARRY_GGUF_ARRAY) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "the key '%.*s' of the GGUF file is of type %" PRIu64 ", which is %s",
                          (int)item->key.length, item->key.bytes, type,
                          type == CARRY_GGUF_ARRAY ? "a list of lists" : "unknown");
    }
    item->type = (carry_gguf_type)type;
    return take_values(r, item);
}

/* Tensor types by their number in files. Formats that Carry does not support are listed for messages. */
static const struct {
    uint64_t number;
    const char *name;
    carry_dtype dtype;
    const carry_quant_format *format; /* NULL with dtype CARRY_QUANTISED: not supported */
} types[] = {
    {0, "F32", CARRY_F32, NULL},
    {1, "F16", CARRY_F16, NULL},
    {30, "BF16", CARRY_BF16, NULL},
    {2, "Q4_0", CARRY_QUANTISED, &carry_quant_q4_0},
    {8, "Q8_0", CARRY_QUANTISED, &carry_quant_q8_0},
    {12, "Q4_K", CARRY_QUANTISED, &carry_quant_q4_k},
    {13, "Q5_K", CARRY_QUANTISED, &carry_quant_q5_k},
    {14, "Q6_K", CARRY_QUANTISED, &carry_quant_q6_k},
    {3, "Q4_1", CARRY_QUANTISED, NULL},
    {6, "Q5_0", CARRY_QUANTISED, NULL},
    {7, "Q5_1", CARRY_QUANTISED, NULL},
    {10, "Q2_K", CARRY_QUANTISED, NULL},
    {11, "Q3_K", CARRY_QUANTISED, NULL},
    {16, "IQ2_XXS", CARRY_QUANTISED, NULL},
    {17, "IQ2_XS", CARRY_QUANTISED, NULL},
    {18, "IQ3_XXS", CARRY_QUANTISED, NULL},
    {19, "IQ1_S", CARRY_QUANTISED, NULL},
    {20, "IQ4_NL", CARRY_QUANTISED, NULL},
    {21, "IQ3_S", CARRY_QUANTISED, NULL},
    {22, "IQ2_S", CARRY_QUANTISED, NULL},
    {23, "IQ4_XS", CARRY_QUANTISED, NULL},
    {29, "IQ1_M", CARRY_QUANTISED, NULL},
    {39, "MXFP4", CARRY_QUANTISED, NULL},
};

#define TYPES (int)(sizeof types / sizeof types[0])

static carry_status refuse_type(const reader *r, const char *name, uint64_t number) {
    const char *called = "unknown";
    for (int i = 0; i < TYPES; i++) {
        called = types[i].number == number ? types[i].name : called;
    }
    return carry_fail(r->ctx, CARRY_EUNSUPPORTED,
                      "the tensor '%.60s' has type %" PRIu64
                      " (%s): expected F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K or Q6_K",
                      name, number, called);
}

/* Reads the sizes in the order of the file: the fastest index comes first. */
static carry_status take_shape(reader *r, const char *name, int64_t shape[RANK_LIMIT], int *rank) {
    uint64_t value;
    uint64_t sizes[RANK_LIMIT];
    CARRY_TRY(take_number(r, &value, 4, "the rank of a tensor"));
    if (value < 1 || value > RANK_LIMIT) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "the tensor '%.60s' has rank %" PRIu64 ": expected 1 to %d", name,
                          value, RANK_LIMIT);
    }
    *rank = (int)value;
    for (int i = 0; i < *rank; i++) {
        CARRY_TRY(take_number(r, &sizes[i], 8, "the sizes of a tensor"));
        if (sizes[i] < 1 || sizes[i] > INT64_MAX) {
            return carry_fail(r->ctx, CARRY_EFORMAT, "the tensor '%.60s' has a size of %" PRIu64, name, sizes[i]);
        }
        shape[*rank - 1 - i] = (int64_t)sizes[i];
    }
    return CARRY_OK;
}

/* Makes the view of a tensor, with a NULL data pointer, which place_tensors sets. *bytes: the size of its data. */
static carry_status make_view(const reader *r, carry_safetensors_entry *entry, uint64_t type, int rank,
                              const int64_t *shape, size_t *bytes) {
    int found = 0;
    while (found < TYPES && types[found].number != type) {
        found++;
    }
    if (found == TYPES || (types[found].dtype == CARRY_QUANTISED && types[found].format == NULL)) {
        return refuse_type(r, entry->name, type);
    }
    const carry_quant_format *format = types[found].format;
    if (format == NULL) {
        entry->view = carry_view(NULL, types[found].dtype, rank, shape);
        return carry_size_product(bytes, shape, rank, carry_dtype_size(types[found].dtype))
                   ? CARRY_OK
                   : carry_fail(r->ctx, CARRY_ESIZE, "the tensor '%.60s' is too large", entry->name);
    }
    const int64_t columns = shape[rank - 1];
    size_t rows;
    if (columns % format->block != 0) {
        return carry_fail(r->ctx, CARRY_EFORMAT,
                          "the tensor '%.60s' has %" PRId64 " columns in %s: expected a multiple of %" PRId64,
                          entry->name, columns, types[found].name, format->block);
    }
    if (!carry_size_product(&rows, shape, rank - 1, 1) || rows > INT64_MAX ||
        !carry_quant_bytes(bytes, format, (int64_t)rows, columns)) {
        return carry_fail(r->ctx, CARRY_ESIZE, "the tensor '%.60s' is too large", entry->name);
    }
    entry->view = carry_quant_view(NULL, format, (int64_t)rows, columns);
    return CARRY_OK;
}

typedef struct extent {
    uint64_t offset;
    size_t bytes;
} extent;

static carry_status take_tensor(reader *r, carry_safetensors_entry *entry, extent *place) {
    carry_gguf_text name;
    int64_t shape[RANK_LIMIT];
    int rank;
    uint64_t type;
    CARRY_TRY(take_text(r, &name, "the name of a tensor"));
    if (name.length == 0 || name.length >= CARRY_SAFETENSORS_NAME || memchr(name.bytes, 0, name.length) != NULL) {
        return carry_fail(r->ctx, CARRY_EFORMAT,
                          "the name of a tensor has %zu bytes or a zero inside: expected 1 to %d", name.length,
                          CARRY_SAFETENSORS_NAME - 1);
    }
    memcpy(entry->name, name.bytes, name.length);
    CARRY_TRY(take_shape(r, entry->name, shape, &rank));
    CARRY_TRY(take_number(r, &type, 4, "the type of a tensor"));
    CARRY_TRY(take_number(r, &place->offset, 8, "the offset of a tensor"));
    return make_view(r, entry, type, rank, shape, &place->bytes);
}

static carry_status place_tensors(const reader *r, const extent *places, const unsigned char *data, size_t bytes,
                                  uint64_t alignment) {
    for (int64_t i = 0; i < r->file->tensors.count; i++) {
        carry_safetensors_entry *entry = &r->file->tensors.entries[i];
        if (places[i].offset > bytes || places[i].bytes > bytes - places[i].offset) {
            return carry_fail(r->ctx, CARRY_EFORMAT,
                              "the tensor '%.60s' claims %zu bytes from %" PRIu64 " on of %zu: the file is cut off or "
                              "damaged",
                              entry->name, places[i].bytes, places[i].offset, bytes);
        }
        if (places[i].offset % alignment != 0) {
            return carry_fail(r->ctx, CARRY_EALIGN,
                              "the tensor '%.60s' begins at byte %" PRIu64 ": expected a multiple of %" PRIu64,
                              entry->name, places[i].offset, alignment);
        }
        entry->view.data = (void *)(uintptr_t)(data + places[i].offset);
    }
    return CARRY_OK;
}

static int by_offset(const void *left, const void *right) {
    const extent *a = left;
    const extent *b = right;
    return a->offset < b->offset ? -1 : a->offset > b->offset ? 1 : 0;
}

/* Checks that no two tensors share a byte or a name. No tensor is empty. */
static carry_status check_apart(const reader *r, extent *places) {
    carry_safetensors *tensors = &r->file->tensors;
    qsort(places, (size_t)tensors->count, sizeof *places, by_offset);
    for (int64_t i = 1; i < tensors->count; i++) {
        if (places[i].offset - places[i - 1].offset < places[i - 1].bytes) {
            return carry_fail(r->ctx, CARRY_EFORMAT, "two tensors of the GGUF file share byte %" PRIu64,
                              places[i].offset);
        }
    }
    carry_safetensors_sort(tensors);
    for (int64_t i = 1; i < tensors->count; i++) {
        if (strcmp(tensors->by_name[i - 1]->name, tensors->by_name[i]->name) == 0) {
            return carry_fail(r->ctx, CARRY_EFORMAT, "the tensor '%.60s' is named twice", tensors->by_name[i]->name);
        }
    }
    return CARRY_OK;
}

static carry_status take_alignment(const reader *r, int64_t *alignment) {
    *alignment = 32;
    (void)carry_gguf_integer(r->file, "general.alignment", alignment);
    return *alignment >= 8 && *alignment <= 1 << 16 && (*alignment & (*alignment - 1)) == 0
               ? CARRY_OK
               : carry_fail(r->ctx, CARRY_EFORMAT,
                            "general.alignment is %" PRId64 ": expected a power of two from 8 to 65536", *alignment);
}

static carry_status take_tensors(reader *r, extent *places) {
    int64_t alignment;
    for (int64_t i = 0; i < r->file->tensors.count; i++) {
        CARRY_TRY(take_tensor(r, &r->file->tensors.entries[i], &places[i]));
    }
    CARRY_TRY(take_alignment(r, &alignment));
    const size_t head = (size_t)(r->at - r->start);
    const size_t rest = (size_t)alignment - head % (size_t)alignment;
    const size_t padding = rest == (size_t)alignment ? 0 : rest;
    const size_t left = (size_t)(r->end - r->at);
    CARRY_TRY(place_tensors(r, places, r->at + (padding < left ? padding : left), padding < left ? left - padding : 0,
                            (uint64_t)alignment));
    return check_apart(r, places);
}

static carry_status parse_all(reader *r) {
    uint64_t version;
    uint64_t tensors;
    uint64_t items;
    carry_gguf *file = r->file;
    if (r->end - r->at < 4 || memcmp(r->at, "GGUF", 4) != 0) {
        return carry_fail(r->ctx, CARRY_EFORMAT, "not a GGUF file: it does not begin with GGUF");
    }
    r->at += 4;
    CARRY_TRY(take_number(r, &version, 4, "the version"));
    if (version != 2 && version != 3) {
        return carry_fail(r->ctx, CARRY_EUNSUPPORTED, "the GGUF file has version %" PRIu64 ": expected 2 or 3",
                          version);
    }
    CARRY_TRY(take_number(r, &tensors, 8, "the number of tensors"));
    CARRY_TRY(take_number(r, &items, 8, "the number of keys"));
    const uint64_t most = (uint64_t)(r->end - r->at) / 12; /* each takes at least 12 bytes */
    if (tensors > COUNT_LIMIT || items > COUNT_LIMIT || tensors > most || items > most) {
        return carry_fail(r->ctx, CARRY_EFORMAT,
                          "the GGUF file claims %" PRIu64 " tensors and %" PRIu64 " keys, which do not fit in it",
                          tensors, items);
    }
    file->items = calloc((size_t)items + 1, sizeof *file->items);
    file->tensors.entries = calloc((size_t)tensors + 1, sizeof *file->tensors.entries);
    file->tensors.by_name = calloc((size_t)tensors + 1, sizeof(carry_safetensors_entry *));
    extent *places = calloc((size_t)tensors + 1, sizeof *places);
    carry_status status = CARRY_OK;
    if (file->items == NULL || file->tensors.entries == NULL || file->tensors.by_name == NULL || places == NULL) {
        status = carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: the header of a GGUF file");
    }
    for (uint64_t i = 0; status == CARRY_OK && i < items; i++) {
        status = take_item(r, &file->items[file->item_count++]);
    }
    file->tensors.count = (int64_t)tensors;
    status = status == CARRY_OK ? take_tensors(r, places) : status;
    free(places);
    return status;
}

carry_status carry_gguf_parse(carry_ctx *ctx, carry_gguf *file, const void *data, size_t bytes) {
    *file = (carry_gguf){0};
    reader r = {.ctx = ctx, .start = data, .at = data, .end = (const unsigned char *)data + bytes, .file = file};
    const carry_status status = parse_all(&r);
    if (status != CARRY_OK) {
        carry_gguf_close(file);
    }
    return status;
}

void carry_gguf_close(carry_gguf *file) {
    free(file->items);
    carry_safetensors_close(&file->tensors);
    *file = (carry_gguf){0};
}

bool carry_gguf_is_file(const char *path) {
    const size_t length = strlen(path);
    struct stat about;
    return length > 5 && strcmp(path + length - 5, ".gguf") == 0 && stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

carry_status carry_gguf_open(carry_ctx *ctx, carry_gguf *file, const char *path) {
    *file = (carry_gguf){0};
    struct stat about;
    const int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0) {
        return carry_fail(ctx, errno == ENOENT ? CARRY_ENOTFOUND : CARRY_EIO, "%s cannot be read: %s", path,
                          strerror(errno));
    }
    if (fstat(opened, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size < 4) {
        (void)close(opened);
        return carry_fail(ctx, CARRY_EFORMAT, "%s is not a GGUF file", path);
    }
    const size_t bytes = (size_t)about.st_size;
    void *mapping = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, opened, 0);
    (void)close(opened);
    if (mapping == MAP_FAILED) {
        return carry_fail(ctx, CARRY_EIO, "%s cannot be mapped: %s", path, strerror(errno));
    }
    const carry_status status = carry_gguf_parse(ctx, file, mapping, bytes);
    if (status != CARRY_OK) {
        char why[256];
        (void)munmap(mapping, bytes);
        (void)snprintf(why, sizeof why, "%s", carry_ctx_error(ctx));
        return carry_fail(ctx, status, "%s: %s", path, why);
    }
    file->tensors.mapping = mapping;
    file->tensors.mapping_bytes = bytes;
    return CARRY_OK;
}
