/* The list of formats, and views of quantised matrices. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "ops/quantised/quantised.h"

#define PIECE 256 /* columns of the largest block, to decode the last one of a row */

static const carry_quant_format *const formats[] = {
#define X(name) &carry_quant_##name,
    CARRY_QUANT_FORMATS(X)
#undef X
};

#define FORMATS (int)(sizeof formats / sizeof formats[0])

const carry_quant_format *carry_quant_format_at(int index) {
    return index >= 0 && index < FORMATS ? formats[index] : NULL;
}

const carry_quant_format *carry_quant_format_named(const char *name) {
    for (int i = 0; i < FORMATS; i++) {
        if (strcmp(formats[i]->name, name) == 0) {
            return formats[i];
        }
    }
    return NULL;
}

bool carry_quant_is_gguf(const carry_quant_format *format) {
    return format->name[0] == 'q';
}

int carry_quant_format_index(const carry_quant_format *format) {
    int index = 0;
    while (index < FORMATS && formats[index] != format) {
        index++;
    }
    return index;
}

const char *carry_quant_format_names(char text[CARRY_QUANT_NAMES]) {
    size_t length = 0;
    text[0] = 0;
    for (int i = 0; i < FORMATS && length < CARRY_QUANT_NAMES; i++) {
        const char *before = i == 0 ? "" : i + 1 < FORMATS ? ", " : " or ";
        length += (size_t)snprintf(text + length, CARRY_QUANT_NAMES - length, "%s%s", before, formats[i]->name);
    }
    return text;
}

size_t carry_quant_row_bytes(const carry_quant_format *format, int64_t columns) {
    return (size_t)((columns + format->block - 1) / format->block) * format->bytes;
}

bool carry_quant_bytes(size_t *bytes, const carry_quant_format *format, int64_t rows, int64_t columns) {
    if (rows < 0 || columns < 0 || columns > INT64_MAX - format->block) {
        return false;
    }
    const int64_t sizes[] = {rows, (columns + format->block - 1) / format->block};
    return carry_size_product(bytes, sizes, 2, format->bytes);
}

carry_tensor carry_quant_view(const void *data, const carry_quant_format *format, int64_t rows, int64_t columns) {
    carry_tensor view = carry_view_2d((void *)(uintptr_t)data, CARRY_QUANTISED, rows, columns); /* only read */
    view.stride[0] = (int64_t)carry_quant_row_bytes(format, columns);
    view.stride[1] = carry_quant_format_index(format);
    return view;
}

const carry_quant_format *carry_quant_format_of(const carry_tensor *tensor) {
    return tensor->dtype == CARRY_QUANTISED && tensor->stride[1] >= 0 && tensor->stride[1] < FORMATS
               ? formats[tensor->stride[1]]
               : NULL;
}

void carry_quant_decode(const carry_tensor *W, int64_t row, int64_t first, int64_t count, float *to) {
    const carry_quant_format *format = formats[W->stride[1]];
    const unsigned char *blocks = (const unsigned char *)W->data + row * W->stride[0];
    const int64_t whole = count / format->block;
    const int64_t rest = count - whole * format->block;
    blocks += (size_t)(first / format->block) * format->bytes;
    format->decode(to, blocks, whole);
    if (rest > 0) {
        float last[PIECE];
        format->decode(last, blocks + (size_t)whole * format->bytes, 1);
        memcpy(to + whole * format->block, last, (size_t)rest * sizeof *to);
    }
}

carry_status carry_quant_check(carry_ctx *ctx, const char *name, const carry_tensor *W) {
    const carry_quant_format *format = formats[W->stride[1]];
    const int64_t blocks = W->stride[0] / (int64_t)format->bytes;
    for (int64_t row = 0; row < W->shape[0]; row++) {
        const unsigned char *at = (const unsigned char *)W->data + row * W->stride[0];
        for (int64_t i = 0; !format->is_finite(at, blocks) && i < blocks; i++) {
            if (!format->is_finite(at + (size_t)i * format->bytes, 1)) {
                return carry_fail(ctx, CARRY_EFORMAT,
                                  "%s: block %" PRId64 " of row %" PRId64
                                  " (%s) has a scale or a value that is infinite or not a number",
                                  name, i, row, format->name);
            }
        }
    }
    return CARRY_OK;
}

bool carry_quant_is_square(const carry_quant_format *format, const void *blocks, int64_t rows, int64_t columns) {
    const int64_t across = (columns + format->block - 1) / format->block;
    const size_t row = carry_quant_row_bytes(format, columns);
    bool is_square = format == &carry_quant_fp8_block;
    for (int64_t r = 0; is_square && r < rows; r++) {
        const unsigned char *first = (const unsigned char *)blocks + (size_t)(r / 128 * 128) * row;
        const unsigned char *own = (const unsigned char *)blocks + (size_t)r * row;
        for (int64_t b = 0; is_square && b < across; b++) {
            is_square = memcmp(first + (size_t)b * format->bytes, own + (size_t)b * format->bytes, sizeof(float)) == 0;
        }
    }
    return is_square;
}
