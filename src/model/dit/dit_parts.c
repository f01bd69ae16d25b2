/* Parts of a video transformer that passes share. */
#include "model/dit/dit_parts.h"

#include <math.h>
#include <string.h>

#include "core/threads.h"

carry_tensor carry_dit_view(const carry_dit *dit, float *buffer, int64_t index) {
    if (index < 0) {
        return (carry_tensor){.data = NULL};
    }
    const carry_parameter *p = &dit->own.parameter[index];
    float *data = buffer + p->offset;
    if (p->rank == 3) {
        return carry_view_2d(data, CARRY_F32, p->shape[1], p->shape[2]);
    }
    return p->rank == 1 ? carry_view_1d(data, CARRY_F32, p->count)
                        : carry_view_2d(data, CARRY_F32, p->shape[0], p->count / p->shape[0]);
}

carry_tensor carry_dit_block_weight(const carry_dit *dit, int64_t block, carry_dit_slot slot) {
    return carry_dit_view(dit, dit->own.weights, dit->block[block][slot]);
}

carry_tensor carry_dit_outer_weight(const carry_dit *dit, carry_dit_outer outer) {
    return carry_dit_view(dit, dit->own.weights, dit->outer[outer]);
}

void carry_dit_sinusoid(float *to, int64_t freq_dim, double t) {
    const int64_t half = freq_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle = t * pow(10000.0, -(double)i / (double)half);
        to[i] = (float)cos(angle);
        to[half + i] = (float)sin(angle);
    }
}

void carry_dit_positions(float *positions, int64_t head) {
    const int64_t pairs = head / 2;
    const int64_t part[3] = {pairs - 2 * (pairs / 3), pairs / 3, pairs / 3};
    for (int64_t at = 0; at < CARRY_DIT_POSITIONS; at++) {
        float *to = positions + at * head;
        for (int which = 0; which < 3; which++) {
            for (int64_t i = 0; i < part[which]; i++, to += 2) {
                double angle = (double)at * pow(10000.0, -(double)i / (double)part[which]);
                to[0] = (float)cos(angle);
                to[1] = (float)sin(angle);
            }
        }
    }
}

void carry_dit_rotary_table(float *table, const float *positions, int64_t head, int64_t first, int64_t frames,
                            int64_t rows, int64_t columns) {
    const int64_t third = head / 2 / 3 * 2;
    const int64_t time = head - 2 * third;
    const size_t time_bytes = (size_t)time * sizeof(float);
    const size_t third_bytes = (size_t)third * sizeof(float);
    for (int64_t f = 0; f < frames; f++) {
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < columns; c++, table += head) {
                memcpy(table, positions + (first + f) * head, time_bytes);
                memcpy(table + time, positions + r * head + time, third_bytes);
                memcpy(table + time + third, positions + c * head + time + third, third_bytes);
            }
        }
    }
}

typedef struct patching {
    float *latents, *patches;
    int64_t channels, frames, height, width;
    int64_t p, q;
    bool back;
} patching;

/* One row of patches. */
static void patch_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const patching *j = argument;
    const int64_t rows = j->height / j->p;
    const int64_t columns = j->width / j->q;
    const int64_t size = j->channels * j->p * j->q;
    for (int64_t row = begin; row < end; row++) {
        const int64_t frame = row / rows;
        for (int64_t c = 0; c < j->channels; c++) {
            for (int64_t a = 0; a < j->p; a++) {
                float *line = j->latents + ((c * j->frames + frame) * j->height + row % rows * j->p + a) * j->width;
                float *patch = j->patches + row * columns * size;
                for (int64_t x = 0; x < columns; x++, patch += size) {
                    for (int64_t b = 0; b < j->q; b++) {
                        if (j->back) {
                            line[x * j->q + b] = patch[(a * j->q + b) * j->channels + c];
                        } else {
                            patch[(c * j->p + a) * j->q + b] = line[x * j->q + b];
                        }
                    }
                }
            }
        }
    }
}

static void run_patching(carry_ctx *ctx, float *patches, const carry_tensor *latents, const int64_t patch[2],
                         bool back) {
    patching j = {.latents = latents->data,
                  .patches = patches,
                  .channels = latents->shape[0],
                  .frames = latents->shape[1],
                  .height = latents->shape[2],
                  .width = latents->shape[3],
                  .p = patch[0],
                  .q = patch[1],
                  .back = back};
    const int64_t line = j.channels * j.width * j.p;
    carry_parallel(ctx, j.frames * (j.height / j.p), 16384 / (line + 1) + 1, patch_rows, &j);
}

void carry_dit_patchify(carry_ctx *ctx, float *patches, const carry_tensor *latents, const int64_t patch[2]) {
    run_patching(ctx, patches, latents, patch, false);
}

void carry_dit_unpatchify(carry_ctx *ctx, const carry_tensor *latents, const float *patches, const int64_t patch[2]) {
    run_patching(ctx, (float *)(uintptr_t)patches, latents, patch, true);
}
