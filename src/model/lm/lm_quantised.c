/* Quantised matrices of a language model: which parameters may be quantised, and random values for them. */
#include "model/lm/lm_quantised.h"

#include <math.h>
#include <stdlib.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/threads.h"
#include "model/lm/feedforward/experts.h"
#include "model/lm/feedforward/feedforward.h"
#include "model/lm/mixers/attention.h"
#include "model/lm/mixers/delta.h"
#include "ops/quantised/blocks.h"
#include "ops/quantised/tiles.h"

#define RANDOM_ROWS 64 /* a multiple of the rows of a tile */

/* Slots may be rows of one parameter: it may be tiled only if every slot starts at a tile. */
static void mark_slots(carry_lm *lm, const carry_lm_sublayer *own) {
    for (int slot = 0; slot < own->part->slots; slot++) {
        const carry_lm_slot *s = &own->slot[slot];
        if (s->parameter >= 0) {
            carry_parameter *p = &lm->own.parameter[s->parameter];
            p->may_be_tiled = p->rank == 2 && p->shape[1] >= CARRY_QUANT_TILE_COLUMNS;
            p->may_be_square = p->may_be_tiled;
        }
    }
    for (int slot = 0; slot < own->part->slots; slot++) {
        const carry_lm_slot *s = &own->slot[slot];
        if (s->parameter >= 0) {
            carry_parameter *p = &lm->own.parameter[s->parameter];
            p->may_be_tiled = p->may_be_tiled && s->first % CARRY_QUANT_TILE_ROWS == 0;
            p->may_be_square = p->may_be_square && s->first % CARRY_QUANT_SQUARE_ROWS == 0;
        }
    }
}

/* Marks the experts and the maps of the shared expert. Routers and gates stay as they are. */
static void mark_experts(carry_lm *lm, const carry_lm_sublayer *own) {
    static const int slots[] = {CARRY_LM_EXPERTS_UP, CARRY_LM_EXPERTS_DOWN, CARRY_LM_EXPERTS_SHARED_GATE,
                                CARRY_LM_EXPERTS_SHARED_UP, CARRY_LM_EXPERTS_SHARED_DOWN};
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        const carry_lm_slot *s = &own->slot[slots[i]];
        carry_parameter *p = s->parameter >= 0 ? &lm->own.parameter[s->parameter] : NULL;
        if (p != NULL) {
            const bool is_stack = p->rank == 3 && p->shape[1] % CARRY_QUANT_TILE_ROWS == 0;
            p->may_be_tiled =
                (is_stack || (p->rank == 2 && s->rows == 0)) && p->shape[p->rank - 1] >= CARRY_QUANT_TILE_COLUMNS;
            p->may_be_square = p->may_be_tiled && p->rank == 2;
        }
    }
}

void carry_lm_mark_tiled(carry_lm *lm) {
    for (int64_t i = 0; i < lm->config.num_hidden_layers; i++) {
        const carry_lm_layer *l = &lm->layer[i];
        if (l->mixer.part == &carry_lm_mixer_delta || l->mixer.part == &carry_lm_mixer_attention) {
            mark_slots(lm, &l->mixer);
        }
        if (l->feedforward.part == &carry_lm_feedforward_swiglu) {
            mark_slots(lm, &l->feedforward);
        }
        if (l->feedforward.part == &carry_lm_feedforward_experts) {
            mark_experts(lm, &l->feedforward);
        }
    }
    if (lm->head >= 0) {
        lm->own.parameter[lm->embeddings].may_be_tiled = true;
        lm->own.parameter[lm->head].may_be_tiled = true;
    }
}

void carry_lm_move_rest(carry_lm *lm) {
    for (int64_t i = 0; lm->own.device != 0 && i < lm->config.num_hidden_layers; i++) {
        carry_lm_layer *l = &lm->layer[i];
        l->mixer.rest = carry_parameters_moved(&lm->own, l->mixer.rest);
        l->feedforward.rest = carry_parameters_moved(&lm->own, l->feedforward.rest);
    }
}

typedef struct encode_job {
    const carry_quant_format *format;
    const float *from;
    unsigned char *to;
    int64_t columns;
} encode_job;

/* Encodes all rows of 8-bit floats with the same scales, as published files do for 128 rows. */
static void encode_square(const encode_job *j, int64_t rows) {
    const int64_t block = j->format->block;
    const int64_t blocks = j->columns / block;
    for (int64_t b = 0; b < blocks; b++) {
        float largest = 1e-30f;
        for (int64_t i = 0; i < rows * block; i++) {
            largest = fmaxf(largest, fabsf(j->from[i / block * j->columns + b * block + i % block]));
        }
        const float scale = largest / 448.0f;
        for (int64_t row = 0; row < rows; row++) {
            unsigned char *to = j->to + (size_t)(row * blocks + b) * j->format->bytes;
            carry_block_put_f32(to, scale);
            for (int64_t i = 0; i < block; i++) {
                to[sizeof scale + (size_t)i] = carry_f8_from_f32(j->from[row * j->columns + b * block + i] / scale);
            }
        }
    }
}

static void encode_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const encode_job *j = argument;
    const int64_t blocks = j->columns / j->format->block; /* padded */
    for (int64_t row = begin; row < end; row++) {
        j->format->encode(j->to + (size_t)(row * blocks) * j->format->bytes, j->from + row * j->columns, blocks);
    }
}

carry_status carry_lm_start_quantised(carry_lm *lm, int64_t index, uint64_t seed, uint64_t stream) {
    const carry_parameter *p = &lm->own.parameter[index];
    const carry_quant_format *format = p->format;
    const int64_t columns = p->shape[p->rank - 1];
    const int64_t rows = p->count / columns < RANDOM_ROWS ? p->count / columns : RANDOM_ROWS;
    encode_job j = {.format = format, .columns = (columns + format->block - 1) / format->block * format->block};
    float *from = carry_aligned_new((size_t)(rows * j.columns) * sizeof *from);
    j.from = from;
    j.to = carry_aligned_new((size_t)rows * carry_quant_row_bytes(format, columns));
    carry_status status = CARRY_OK;
    if (format->encode == NULL) {
        status = carry_fail(lm->ctx, CARRY_EUNSUPPORTED, "%s: %s is only read", p->name, format->name);
    } else if (from == NULL || j.to == NULL) {
        status = carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    } else {
        status = carry_random_normal(lm->ctx, carry_view_1d(from, CARRY_F32, rows * j.columns), seed, stream, 0.0f,
                                     (float)lm->config.initializer_range);
    }
    if (status == CARRY_OK) {
        if (format == &carry_quant_fp8_block) {
            encode_square(&j, rows);
        } else {
            carry_parallel(lm->ctx, rows, 16, encode_rows, &j);
        }
        status = carry_parameters_put_blocks(&lm->own, index, j.to, rows);
    }
    free(from);
    free(j.to);
    return status;
}
