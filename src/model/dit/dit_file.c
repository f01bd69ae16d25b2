/* A video transformer's folder, and digests of weights. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "file/checkpoint_files.h"
#include "model/dit/dit_config.h"
#include "model/dit/dit_names.h"

/* True if a tensor is another name of one of the model's. */
static bool is_spare(const void *model, const carry_weights *weights, const char *name) {
    const carry_dit *dit = model;
    char own[CARRY_SAFETENSORS_NAME];
    (void)weights;
    carry_dit_own_name(name, own, sizeof own);
    return carry_parameters_find(&dit->own, own) != NULL;
}

carry_status carry_dit_load(carry_dit *dit, const char *folder) {
    CARRY_TRY(carry_checkpoint_verify_model(dit->ctx, folder));
    return carry_parameters_load(&dit->own, folder, is_spare, dit);
}

carry_status carry_dit_save(const carry_dit *dit, const char *folder, carry_dtype dtype) {
    char path[CARRY_FILE_PATH];
    if (dit->ranks > 1) {
        return carry_fail(dit->ctx, CARRY_EUNSUPPORTED,
                          "a shard of %d cannot be saved as a model: save where one rank has it all", dit->ranks);
    }
    CARRY_TRY(carry_file_in(dit->ctx, path, folder, "config.json"));
    CARRY_TRY(carry_dit_config_write(dit->ctx, &dit->config, path));
    return carry_parameters_save(&dit->own, folder, dtype);
}

/* A fast digest that distinguishes models; it is not cryptographic. */
static uint64_t mix(uint64_t digest, uint64_t word) {
    digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
    return digest ^ digest >> 29;
}

static uint64_t mix_parameter(uint64_t digest, const float *w, const carry_parameter *p) {
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

/* Elements of a shared parameter that are hashed: more would copy gigabytes from a GPU at every start. */
#define MOST_COMPARED (1 << 20)

static uint64_t fingerprint(const carry_dit *dit, bool common) {
    uint64_t digest = mix_config(&dit->config);
    digest = common ? digest : mix(digest, (uint64_t)dit->rank << 32 | (uint64_t)dit->ranks);
    for (int64_t i = 0; i < dit->own.parameters; i++) {
        carry_parameter p = dit->own.parameter[i];
        if (common && p.cut != CARRY_CUT_NONE) {
            continue;
        }
        p.count = common && p.count > MOST_COMPARED ? MOST_COMPARED : p.count;
        const bool is_here = dit->own.device == 0 && p.wide >= 0;
        float *copied = is_here ? NULL : carry_aligned_new((size_t)p.count * sizeof *copied);
        if (!is_here && (copied == NULL || carry_parameters_sample(&dit->own, copied, i, p.count) != CARRY_OK)) {
            free(copied);
            return 0;
        }
        digest = mix_parameter(digest, is_here ? dit->own.weights + p.wide : copied, &p);
        free(copied);
    }
    return digest;
}

uint64_t carry_dit_fingerprint(const carry_dit *dit) {
    return fingerprint(dit, false);
}

uint64_t carry_dit_common_fingerprint(const carry_dit *dit) {
    return fingerprint(dit, true);
}
