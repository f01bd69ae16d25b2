/* A video transformer's folder, a rank's part of its tensors, and digests of weights. */
#include "model/dit/dit_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "core/tensor.h"
#include "model/dit/dit_config.h"
#include "model/dit/dit_parts.h"
#include "model/weights.h"

/* Rows of the part: they follow each other in the whole tensor when the cut is at the first index, and lie apart when
   it is at the second. */
carry_status carry_dit_take(carry_dit *dit, int64_t index, const void *whole, carry_dtype dtype) {
    const carry_parameter *p = &dit->own.parameter[index];
    const int cut = carry_dit_cut(p);
    const unsigned char *from = whole;
    const size_t size = carry_dtype_size(dtype);
    float *to = dit->own.weights + p->offset;
    const int64_t rows = cut == 1 ? p->shape[0] : 1;
    const int64_t columns = p->count / rows;
    const int64_t apart = cut == 1 ? columns * dit->ranks : columns;
    const int64_t first = cut >= 0 ? columns * dit->rank : 0;
    for (int64_t row = 0; row < rows; row++) {
        /* A view has a pointer that may be written through; this one is only read. */
        void *piece = (void *)(uintptr_t)(from + (size_t)(first + row * apart) * size);
        CARRY_TRY(carry_convert(dit->ctx, carry_view_1d(to + row * columns, CARRY_F32, columns),
                                carry_view_1d(piece, dtype, columns)));
    }
    return CARRY_OK;
}

static carry_status load_parameter(carry_dit *dit, const carry_weights *weights, int64_t index, const char *folder) {
    const carry_parameter *p = &dit->own.parameter[index];
    const carry_tensor *from = carry_weights_find(weights, p->name);
    const int cut = carry_dit_cut(p);
    int64_t shape[5];
    char has[CARRY_SHAPE_TEXT];
    char needs[CARRY_SHAPE_TEXT];
    memcpy(shape, p->shape, sizeof shape);
    if (cut >= 0) {
        shape[cut] *= dit->ranks;
    }
    if (from == NULL) {
        return carry_fail(dit->ctx, CARRY_EFORMAT, "%s has no tensor %s, which the configuration needs with shape %s",
                          folder, p->name, carry_shape_text(needs, p->rank, shape));
    }
    if (from->rank != p->rank || memcmp(from->shape, shape, (size_t)p->rank * sizeof *shape) != 0) {
        return carry_fail(dit->ctx, CARRY_ESHAPE, "%s: %s has shape %s where the configuration needs %s", folder,
                          p->name, carry_shape_text(has, from->rank, from->shape),
                          carry_shape_text(needs, p->rank, shape));
    }
    if (from->dtype == CARRY_I64) {
        return carry_fail(dit->ctx, CARRY_EDTYPE, "%s: %s is i64: f32, bf16 or f16 is needed", folder, p->name);
    }
    return carry_dit_take(dit, index, from->data, from->dtype);
}

static bool has_parameter(const carry_dit *dit, const char *name) {
    for (int64_t i = 0; i < dit->own.parameters; i++) {
        if (strcmp(dit->own.parameter[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* All parameters were found: what is more than their number is surplus. */
static carry_status refuse_surplus(const carry_dit *dit, const carry_weights *weights, const char *folder) {
    for (int64_t i = 0; weights->count != dit->own.parameters && i < weights->count; i++) {
        const char *name = carry_weights_name(weights, i);
        if (!has_parameter(dit, name)) {
            const carry_tensor *tensor = carry_weights_find(weights, name);
            char has[CARRY_SHAPE_TEXT];
            return carry_fail(dit->ctx, CARRY_EFORMAT,
                              "%s: the tensor %.80s of shape %s has no place in the configured model", folder, name,
                              carry_shape_text(has, tensor->rank, tensor->shape));
        }
    }
    return CARRY_OK;
}

carry_status carry_dit_load(carry_dit *dit, const char *folder) {
    carry_weights weights;
    CARRY_TRY(carry_weights_open(dit->ctx, &weights, folder));
    carry_status status = CARRY_OK;
    for (int64_t i = 0; status == CARRY_OK && i < dit->own.parameters; i++) {
        status = load_parameter(dit, &weights, i, folder);
    }
    status = status == CARRY_OK ? refuse_surplus(dit, &weights, folder) : status;
    carry_weights_close(&weights);
    return status;
}

carry_status carry_dit_save(const carry_dit *dit, const char *folder, carry_dtype dtype) {
    static const char *const notes[] = {"format", "pt", NULL};
    char path[CARRY_FILE_PATH];
    if (dit->ranks > 1) {
        return carry_fail(dit->ctx, CARRY_EUNSUPPORTED,
                          "a shard of %d cannot be saved as a model: save where one rank has it all", dit->ranks);
    }
    CARRY_TRY(carry_file_in(dit->ctx, path, folder, "config.json"));
    CARRY_TRY(carry_dit_config_write(dit->ctx, &dit->config, path));
    CARRY_TRY(carry_file_in(dit->ctx, path, folder, "model.safetensors"));
    carry_safetensors_item *items = calloc((size_t)dit->own.parameters, sizeof *items);
    if (items == NULL) {
        return carry_fail(dit->ctx, CARRY_EMEMORY, "no memory to write %s", path);
    }
    for (int64_t i = 0; i < dit->own.parameters; i++) {
        const carry_parameter *p = &dit->own.parameter[i];
        items[i] =
            (carry_safetensors_item){.name = p->name,
                                     .tensor = carry_view(dit->own.weights + p->offset, CARRY_F32, p->rank, p->shape),
                                     .dtype = dtype};
    }
    carry_status status = carry_safetensors_write(dit->ctx, path, items, dit->own.parameters, notes);
    free(items);
    return status;
}

/* A digest that is fast rather than hard: it tells models apart, not forgers. */
static uint64_t mix(uint64_t digest, uint64_t word) {
    digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
    return digest ^ digest >> 29;
}

static uint64_t mix_parameter(uint64_t digest, const carry_dit *dit, const carry_parameter *p) {
    const float *w = dit->own.weights + p->offset;
    uint64_t lane[4] = {1, 2, 3, 4};
    digest = mix(digest, carry_crc32c(0, p->name, strlen(p->name)));
    int64_t i = 0;
    for (; i + 8 <= p->count; i += 8) {
        for (int l = 0; l < 4; l++) {
            uint64_t word;
            memcpy(&word, w + i + 2 * l, sizeof word);
            lane[l] = mix(lane[l], word);
        }
    }
    for (; i < p->count; i++) {
        uint32_t word;
        memcpy(&word, w + i, sizeof word);
        lane[0] = mix(lane[0], word);
    }
    for (int l = 0; l < 4; l++) {
        digest = mix(digest, lane[l]);
    }
    return digest;
}

static uint64_t mix_config(const carry_dit_config *c) {
    const int64_t sizes[] = {c->dim,      c->ffn_dim,  c->num_heads,      c->num_layers, c->in_dim,
                             c->out_dim,  c->text_len, c->text_dim,       c->freq_dim,   c->patch[1],
                             c->patch[2], c->qk_norm,  c->cross_attn_norm};
    uint64_t digest = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        digest = mix(digest, (uint64_t)sizes[i]);
    }
    uint64_t eps;
    memcpy(&eps, &c->eps, sizeof eps);
    return mix(digest, eps);
}

static uint64_t fingerprint(const carry_dit *dit, bool common) {
    uint64_t digest = mix_config(&dit->config);
    digest = common ? digest : mix(digest, (uint64_t)dit->rank << 32 | (uint64_t)dit->ranks);
    for (int64_t i = 0; i < dit->own.parameters; i++) {
        if (!common || carry_dit_cut(&dit->own.parameter[i]) < 0) {
            digest = mix_parameter(digest, dit, &dit->own.parameter[i]);
        }
    }
    return digest;
}

uint64_t carry_dit_fingerprint(const carry_dit *dit) {
    return fingerprint(dit, false);
}

uint64_t carry_dit_common_fingerprint(const carry_dit *dit) {
    return fingerprint(dit, true);
}
