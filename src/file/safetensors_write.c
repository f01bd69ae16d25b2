/* Writes safetensors files. Tensors with wide elements come first, so that every tensor is aligned to its element if
   the data is aligned; the header is padded with spaces to a multiple of 8 bytes for this. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "core/json_write.h"
#include "file/safetensors.h"

#define BLOCK 65536 /* elements converted at a time */

static int by_width_and_name(const void *left, const void *right) {
    const carry_safetensors_item *const *a = left;
    const carry_safetensors_item *const *b = right;
    size_t first = carry_dtype_size((*a)->dtype);
    size_t second = carry_dtype_size((*b)->dtype);
    return first != second ? (first > second ? -1 : 1) : strcmp((*a)->name, (*b)->name);
}

static carry_status check_item(carry_ctx *ctx, const carry_safetensors_item *item) {
    const carry_tensor *tensor = &item->tensor;
    size_t length = strlen(item->name);
    if (length == 0 || length >= CARRY_SAFETENSORS_NAME || strcmp(item->name, "__metadata__") == 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%.60s' cannot be the name of a tensor", item->name);
    }
    CARRY_TRY(carry_tensor_expect(ctx, item->name, tensor, tensor->rank, tensor->shape));
    if (tensor->device != 0 || !carry_tensor_is_packed(tensor, 0)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s must be packed and on the CPU to be written", item->name);
    }
    bool both_real = carry_dtype_is_real(item->dtype) && carry_dtype_is_real(tensor->dtype);
    const bool is_plain =
        item->dtype == CARRY_I64 || item->dtype == CARRY_F8 || item->dtype == CARRY_I8 || item->dtype == CARRY_I32;
    if (!both_real && (!is_plain || tensor->dtype != item->dtype)) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s and cannot be written as %s", item->name,
                          carry_dtype_name(tensor->dtype), carry_dtype_name(item->dtype));
    }
    return CARRY_OK;
}

static const char *type_text(carry_dtype dtype) {
    switch (dtype) {
    case CARRY_F32:
        return "F32";
    case CARRY_BF16:
        return "BF16";
    case CARRY_F16:
        return "F16";
    case CARRY_F8:
        return "F8_E4M3";
    case CARRY_I8:
        return "I8";
    case CARRY_I32:
        return "I32";
    case CARRY_I64:
    case CARRY_F64: /* already refused, like quantised tensors */
    case CARRY_QUANTISED:
        break;
    }
    return "I64";
}

static carry_status put_entry(carry_ctx *ctx, carry_json_text *text, const carry_safetensors_item *item,
                              size_t *offset) {
    size_t bytes;
    size_t end;
    if (!carry_size_product(&bytes, item->tensor.shape, item->tensor.rank, carry_dtype_size(item->dtype)) ||
        !carry_size_add(&end, *offset, bytes) || end > INT64_MAX) {
        return carry_fail(ctx, CARRY_ESIZE, "%s makes the file larger than a file can be", item->name);
    }
    carry_json_put_key(text, item->name);
    carry_json_put_raw(text, "{\"dtype\":\"%s\",\"shape\":[", type_text(item->dtype));
    for (int i = 0; i < item->tensor.rank; i++) {
        carry_json_put_raw(text, "%s%" PRId64, i > 0 ? "," : "", item->tensor.shape[i]);
    }
    carry_json_put_raw(text, "],\"data_offsets\":[%zu,%zu]}", *offset, end);
    *offset = end;
    return CARRY_OK;
}

static carry_status make_header(carry_ctx *ctx, carry_json_text *text, const carry_safetensors_item **order,
                                int64_t count, const char *const *notes) {
    size_t offset = 0;
    carry_json_put_raw(text, "{");
    if (notes != NULL) {
        carry_json_put_key(text, "__metadata__");
        carry_json_put_raw(text, "{");
        for (int i = 0; notes[i] != NULL && notes[i + 1] != NULL; i += 2) {
            carry_json_put_raw(text, i > 0 ? "," : "");
            carry_json_put_key(text, notes[i]);
            carry_json_put_string(text, notes[i + 1]);
        }
        carry_json_put_raw(text, "}");
    }
    for (int64_t i = 0; i < count; i++) {
        if (i > 0 && strcmp(order[i - 1]->name, order[i]->name) == 0) {
            return carry_fail(ctx, CARRY_EARGUMENT, "the tensor '%.60s' would be written twice", order[i]->name);
        }
        carry_json_put_raw(text, i > 0 || notes != NULL ? "," : "");
        CARRY_TRY(put_entry(ctx, text, order[i], &offset));
    }
    carry_json_put_raw(text, "}");
    while (text->length % 8 != 0) {
        carry_json_put_raw(text, " ");
    }
    return text->failed ? carry_fail(ctx, CARRY_EMEMORY, "out of memory: the header of a safetensors file") : CARRY_OK;
}

static carry_status write_tensor(carry_ctx *ctx, carry_file_writing *writing, const carry_safetensors_item *item,
                                 void *block) {
    const carry_tensor *tensor = &item->tensor;
    int64_t count = carry_tensor_count(tensor);
    if (item->dtype == tensor->dtype) {
        return carry_file_write(ctx, writing, tensor->data, (size_t)count * carry_dtype_size(item->dtype));
    }
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t some = count - at < BLOCK ? count - at : BLOCK;
        unsigned char *from = (unsigned char *)tensor->data + (size_t)at * carry_dtype_size(tensor->dtype);
        CARRY_TRY(
            carry_convert(ctx, carry_view_1d(block, item->dtype, some), carry_view_1d(from, tensor->dtype, some)));
        CARRY_TRY(carry_file_write(ctx, writing, block, (size_t)some * carry_dtype_size(item->dtype)));
    }
    return CARRY_OK;
}

static carry_status write_all(carry_ctx *ctx, carry_file_writing *writing, const carry_json_text *header,
                              const carry_safetensors_item **order, int64_t count, void *block) {
    unsigned char length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)((uint64_t)header->length >> (8 * i));
    }
    CARRY_TRY(carry_file_write(ctx, writing, length, sizeof length));
    CARRY_TRY(carry_file_write(ctx, writing, header->bytes, header->length));
    for (int64_t i = 0; i < count; i++) {
        CARRY_TRY(write_tensor(ctx, writing, order[i], block));
    }
    return carry_file_commit(ctx, writing);
}

carry_status carry_safetensors_write(carry_ctx *ctx, const char *path, const carry_safetensors_item *items,
                                     int64_t count, const char *const *notes) {
    for (int64_t i = 0; i < count; i++) {
        CARRY_TRY(check_item(ctx, &items[i]));
    }
    carry_json_text header = {0};
    carry_file_writing writing = {.file = -1};
    const carry_safetensors_item **order = malloc(((size_t)count + 1) * sizeof(const carry_safetensors_item *));
    void *block = carry_aligned_new(BLOCK * sizeof(float));
    carry_status status = CARRY_OK;
    if (order == NULL || block == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing %s", path);
        goto done;
    }
    for (int64_t i = 0; i < count; i++) {
        order[i] = &items[i];
    }
    qsort(order, (size_t)count, sizeof(const carry_safetensors_item *), by_width_and_name);
    status = make_header(ctx, &header, order, count, notes);
    status = status == CARRY_OK ? carry_file_begin(ctx, &writing, path) : status;
    status = status == CARRY_OK ? write_all(ctx, &writing, &header, order, count, block) : status;
done:
    carry_file_abandon(&writing);
    carry_json_text_free(&header);
    free(order);
    free(block);
    return status;
}
