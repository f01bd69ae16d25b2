/* Writes quantised folders. */
#include "file/quantise.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json_write.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "ops/quantised/blocks.h"

#define WIDE 128
#define LEAST 64
#define PARTS 4 /* a quantised matrix has at most this many tensors */
#define CONFIG_LIMIT ((size_t)16 << 20)
#define COPY_LIMIT ((size_t)256 << 20)

typedef struct writer {
    carry_ctx *ctx;
    const carry_quant_format *format;
    carry_weights weights;
    carry_safetensors_item *items;
    char (*names)[CARRY_SAFETENSORS_NAME]; /* names of items */
    int64_t count;
    void **made; /* memory that items point to */
    int64_t made_count;
    carry_quantise_result *result;
} writer;

static bool is_int4(const carry_quant_format *format) {
    return strncmp(format->name, "int4", 4) == 0;
}

/* True if a row of this many columns can be written: the files of some formats have whole blocks only. */
static bool fits(const carry_quant_format *format, const carry_tensor *tensor) {
    return carry_quant_is_gguf(format) ? tensor->shape[1] % format->block == 0
           : is_int4(format)           ? tensor->shape[1] % format->block == 0 && tensor->shape[0] % 8 == 0
                                       : true;
}

static float value_at(const carry_tensor *from, int64_t index) {
    return (float)carry_tensor_at(from, index);
}

static bool contains(const char *name, const char *part) {
    return strstr(name, part) != NULL;
}

static bool is_quantised_here(const writer *w, const char *name, const carry_tensor *tensor) {
    const size_t length = strlen(name);
    const bool is_matrix = tensor->rank == 2 && carry_dtype_is_real(tensor->dtype) && length > 7 &&
                           strcmp(name + length - 7, ".weight") == 0 && contains(name, "layers.");
    const bool is_other = contains(name, "norm") || contains(name, "conv") || contains(name, "embed") ||
                          contains(name, ".gate.weight") || contains(name, "shared_expert_gate");
    return is_matrix && !is_other && fits(w->format, tensor) && tensor->shape[0] >= LEAST && tensor->shape[1] >= LEAST;
}

static void *take(writer *w, int64_t rows, int64_t columns, size_t size) {
    const int64_t sizes[] = {rows, columns};
    size_t bytes;
    void *made = carry_size_product(&bytes, sizes, 2, size) ? calloc(1, bytes) : NULL;
    if (made != NULL) {
        w->made[w->made_count++] = made;
    }
    return made;
}

static void add(writer *w, const char *module, const char *part, void *data, carry_dtype dtype, int64_t rows,
                int64_t columns) {
    char *name = w->names[w->count];
    (void)snprintf(name, CARRY_SAFETENSORS_NAME, "%.*s.%s", CARRY_SAFETENSORS_NAME - 24, module, part);
    const carry_tensor view =
        columns > 0 ? carry_view_2d(data, dtype, rows, columns) : carry_view_1d(data, dtype, rows);
    w->items[w->count++] = (carry_safetensors_item){.name = name, .tensor = view, .dtype = dtype};
    w->result->bytes_out += rows * (columns > 0 ? columns : 1) * (int64_t)carry_dtype_size(dtype);
}

static carry_status no_memory(const writer *w, const char *module) {
    return carry_fail(w->ctx, CARRY_EMEMORY, "out of memory: quantising %s", module);
}

static carry_status add_fp8(writer *w, const char *module, const carry_tensor *from) {
    const int64_t rows = from->shape[0];
    const int64_t columns = from->shape[1];
    const int64_t across = (columns + WIDE - 1) / WIDE;
    const int64_t down = (rows + WIDE - 1) / WIDE;
    uint8_t *values = take(w, rows, columns, 1);
    float *scales = take(w, down, across, sizeof *scales);
    if (values == NULL || scales == NULL) {
        return no_memory(w, module);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            float *scale = &scales[i / WIDE * across + j / WIDE];
            const float step = fabsf(value_at(from, i * columns + j)) / 448.0f;
            *scale = step > *scale ? step : *scale;
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            const float scale = scales[i / WIDE * across + j / WIDE];
            values[i * columns + j] = carry_f8_from_f32(scale > 0.0f ? value_at(from, i * columns + j) / scale : 0.0f);
        }
    }
    add(w, module, "weight", values, CARRY_F8, rows, columns);
    add(w, module, "weight_scale_inv", scales, CARRY_F32, down, across);
    return CARRY_OK;
}

static carry_status add_int8(writer *w, const char *module, const carry_tensor *from) {
    const int64_t rows = from->shape[0];
    const int64_t columns = from->shape[1];
    int8_t *values = take(w, rows, columns, 1);
    float *scales = take(w, rows, 1, sizeof *scales);
    if (values == NULL || scales == NULL) {
        return no_memory(w, module);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            const float step = fabsf(value_at(from, i * columns + j)) / 127.0f;
            scales[i] = step > scales[i] ? step : scales[i];
        }
        for (int64_t j = 0; j < columns; j++) {
            const float q = scales[i] > 0.0f ? value_at(from, i * columns + j) / scales[i] : 0.0f;
            values[i * columns + j] = (int8_t)carry_block_round(q, -127, 127);
        }
    }
    add(w, module, "weight", values, CARRY_I8, rows, columns);
    add(w, module, "weight_scale", scales, CARRY_F32, rows, 1);
    return CARRY_OK;
}

/* Computes the scale and zero point of a group. The file stores zero - 1, so a zero point of 0 becomes 1. */
static void fit_group(const carry_tensor *from, int64_t first, int64_t group, float *scale, int *zero) {
    float low = 0.0f;
    float high = 0.0f;
    for (int64_t i = 0; i < group; i++) {
        const float value = value_at(from, first + i);
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    *scale = carry_f32_from_f16(carry_f16_from_f32((high - low) / 15.0f));
    *zero = *scale > 0.0f ? carry_block_round(-low / *scale, 0, 15) : 1;
    if (*zero == 0) {
        *zero = 1;
        *scale = carry_f32_from_f16(carry_f16_from_f32(high / 14.0f));
    }
}

static carry_status add_int4(writer *w, const char *module, const carry_tensor *from) {
    const int64_t rows = from->shape[0];
    const int64_t columns = from->shape[1];
    const int64_t group = w->format->block;
    uint32_t *values = take(w, columns / 8, rows, sizeof *values);
    uint32_t *zeros = take(w, columns / group, rows / 8, sizeof *zeros);
    uint16_t *scales = take(w, columns / group, rows, sizeof *scales);
    int32_t *groups = take(w, columns, 1, sizeof *groups);
    if (values == NULL || zeros == NULL || scales == NULL || groups == NULL) {
        return no_memory(w, module);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t g = 0; g < columns / group; g++) {
            float scale;
            int zero;
            fit_group(from, i * columns + g * group, group, &scale, &zero);
            scales[g * rows + i] = carry_f16_from_f32(scale);
            zeros[g * (rows / 8) + i / 8] |= (uint32_t)(zero - 1) << (4 * (i % 8));
            for (int64_t j = g * group; j < (g + 1) * group; j++) {
                const float q = scale > 0.0f ? value_at(from, i * columns + j) / scale : 0.0f;
                values[j / 8 * rows + i] |= (uint32_t)carry_block_round(q + (float)zero, 0, 15) << (4 * (j % 8));
            }
        }
    }
    for (int64_t j = 0; j < columns; j++) {
        groups[j] = (int32_t)(j / group);
    }
    add(w, module, "qweight", values, CARRY_I32, columns / 8, rows);
    add(w, module, "qzeros", zeros, CARRY_I32, columns / group, rows / 8);
    add(w, module, "scales", scales, CARRY_F16, columns / group, rows);
    add(w, module, "g_idx", groups, CARRY_I32, columns, 0);
    return CARRY_OK;
}

/* Rows of blocks of a GGUF format, as bytes. */
static carry_status add_blocks(writer *w, const char *module, const carry_tensor *from) {
    const int64_t rows = from->shape[0];
    const int64_t columns = from->shape[1];
    const int64_t row_bytes = (int64_t)carry_quant_row_bytes(w->format, columns);
    unsigned char *blocks = take(w, rows, row_bytes, 1);
    float *row = malloc((size_t)columns * sizeof *row);
    if (blocks == NULL || row == NULL) {
        free(row);
        return no_memory(w, module);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            row[j] = value_at(from, i * columns + j);
        }
        w->format->encode(blocks + i * row_bytes, row, columns / w->format->block);
    }
    free(row);
    add(w, module, "weight", blocks, CARRY_I8, rows, row_bytes);
    return CARRY_OK;
}

static carry_status add_tensor(writer *w, const char *name) {
    const carry_tensor *from = carry_weights_find(&w->weights, name);
    const int64_t bytes = carry_tensor_count(from) * (int64_t)carry_dtype_size(from->dtype);
    char module[CARRY_SAFETENSORS_NAME];
    if (from->dtype == CARRY_QUANTISED) {
        return carry_fail(w->ctx, CARRY_EUNSUPPORTED, "%s is quantised already: quantise the model it was made from",
                          name);
    }
    w->result->bytes_in += bytes;
    if (!is_quantised_here(w, name, from)) {
        w->items[w->count++] = (carry_safetensors_item){.name = name, .tensor = *from, .dtype = from->dtype};
        w->result->kept++;
        w->result->bytes_out += bytes;
        return CARRY_OK;
    }
    (void)snprintf(module, sizeof module, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    w->result->matrices++;
    return w->format == &carry_quant_fp8_block ? add_fp8(w, module, from)
           : w->format == &carry_quant_int8    ? add_int8(w, module, from)
           : is_int4(w->format)                ? add_int4(w, module, from)
                                               : add_blocks(w, module, from);
}

static carry_status write_config(const writer *w, const char *from, const char *to) {
    carry_json_text text = {.spaced = true};
    carry_json *root;
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(w->ctx, path, from, "config.json"));
    CARRY_TRY(carry_json_read(w->ctx, &root, path, CONFIG_LIMIT));
    carry_json_begin(&text, NULL, '{');
    for (const carry_json *node = carry_json_first(root); node != NULL; node = node->next) {
        if (strcmp(node->key, "quantization_config") != 0) {
            carry_json_add_node(&text, node->key, node);
        }
    }
    carry_json_begin(&text, "quantization_config", '{');
    if (w->format == &carry_quant_fp8_block) {
        carry_json_add_text(&text, "quant_method", "fp8");
        carry_json_add_text(&text, "fmt", "e4m3");
        carry_json_add_text(&text, "activation_scheme", "dynamic");
        carry_json_begin(&text, "weight_block_size", '[');
        carry_json_add_integer(&text, NULL, WIDE);
        carry_json_add_integer(&text, NULL, WIDE);
        carry_json_end(&text, ']');
    } else if (w->format == &carry_quant_int8) {
        carry_json_add_text(&text, "quant_method", "int8");
    } else if (carry_quant_is_gguf(w->format)) {
        carry_json_add_text(&text, "quant_method", "blocks");
        carry_json_add_text(&text, "format", w->format->name);
    } else {
        carry_json_add_text(&text, "quant_method", "gptq");
        carry_json_add_text(&text, "checkpoint_format", "gptq");
        carry_json_add_integer(&text, "bits", 4);
        carry_json_add_integer(&text, "group_size", w->format->block);
        carry_json_add_bool(&text, "desc_act", false);
        carry_json_add_bool(&text, "sym", false);
    }
    carry_json_end(&text, '}');
    carry_json_end(&text, '}');
    carry_json_free(root);
    carry_status status = carry_file_in(w->ctx, path, to, "config.json");
    if (status == CARRY_OK && text.failed) {
        status = carry_fail(w->ctx, CARRY_EMEMORY, "out of memory: writing %s", path);
    }
    status = status == CARRY_OK ? carry_file_replace(w->ctx, path, text.bytes, text.length) : status;
    carry_json_text_free(&text);
    return status;
}

carry_status carry_copy_others(carry_ctx *ctx, const char *from, const char *to) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                        "generation_config.json", "special_tokens_map.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[CARRY_FILE_PATH];
        char *text;
        size_t length;
        CARRY_TRY(carry_file_in(ctx, path, from, names[i]));
        carry_status status = carry_file_read(ctx, &text, &length, path, COPY_LIMIT);
        if (status == CARRY_ENOTFOUND) {
            continue;
        }
        CARRY_TRY(status);
        status = carry_file_in(ctx, path, to, names[i]);
        status = status == CARRY_OK ? carry_file_replace(ctx, path, text, length) : status;
        free(text);
        CARRY_TRY(status);
    }
    return CARRY_OK;
}

static carry_status write_all(writer *w, const char *from, const char *to) {
    static const char *const notes[] = {"format", "pt", NULL};
    char path[CARRY_FILE_PATH];
    const size_t most = (size_t)w->weights.count * PARTS + 1;
    w->items = calloc(most, sizeof *w->items);
    w->names = calloc(most, sizeof *w->names);
    w->made = calloc(most, sizeof *w->made);
    if (w->items == NULL || w->names == NULL || w->made == NULL) {
        return carry_fail(w->ctx, CARRY_EMEMORY, "out of memory: %" PRId64 " tensors", w->weights.count);
    }
    for (int64_t i = 0; i < w->weights.count; i++) {
        CARRY_TRY(add_tensor(w, carry_weights_name(&w->weights, i)));
    }
    if (w->result->matrices == 0) {
        return carry_fail(w->ctx, CARRY_EUNSUPPORTED, "%s has no matrix that %s fits", from, w->format->name);
    }
    CARRY_TRY(write_config(w, from, to));
    CARRY_TRY(carry_copy_others(w->ctx, from, to));
    CARRY_TRY(carry_file_in(w->ctx, path, to, "model.safetensors"));
    return carry_safetensors_write(w->ctx, path, w->items, w->count, notes);
}

carry_status carry_quantise(carry_ctx *ctx, const char *from, const char *to, const char *format,
                            carry_quantise_result *result) {
    writer w = {.ctx = ctx, .format = carry_quant_format_named(format), .result = result};
    char names[CARRY_QUANT_NAMES];
    *result = (carry_quantise_result){0};
    if (w.format == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "--format '%.40s': expected %s", format,
                          carry_quant_format_names(names));
    }
    CARRY_TRY(carry_weights_open(ctx, &w.weights, from));
    const carry_status status = write_all(&w, from, to);
    for (int64_t i = 0; i < w.made_count; i++) {
        free(w.made[i]);
    }
    free(w.made);
    free(w.names);
    free(w.items);
    carry_weights_close(&w.weights);
    return status;
}
