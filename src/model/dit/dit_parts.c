/* Code that all passes of a video transformer share. */
#include "model/dit/dit_parts.h"

#include <math.h>
#include <string.h>

#include "core/tensor.h"
#include "ops/cpu.h"

/* Parameter `index` of a flat buffer as a matrix or a vector, whose elements start at data. */
static carry_tensor as_operand(const carry_dit *dit, int64_t index, void *data, carry_dtype dtype) {
    const carry_parameter *p = &dit->own.parameter[index];
    const int64_t rows = p->rank == 3 ? p->shape[1] : p->shape[0];
    return carry_view_on(dit->own.device, data, dtype, p->rank == 1 ? 1 : 2, (const int64_t[]){rows, p->count / rows});
}

carry_tensor carry_dit_view(const carry_dit *dit, float *buffer, int64_t index) {
    if (index < 0) {
        return (carry_tensor){.data = NULL};
    }
    const carry_tensor view = carry_parameters_view(&dit->own, buffer, index); /* 16 bits if it has no f32 master */
    return as_operand(dit, index, view.data, view.dtype);
}

carry_tensor carry_dit_block_weight(const carry_dit *dit, int64_t block, carry_dit_slot slot) {
    return carry_dit_view(dit, dit->own.weights, dit->block[block][slot]);
}

carry_tensor carry_dit_outer_weight(const carry_dit *dit, carry_dit_outer outer) {
    return carry_dit_view(dit, dit->own.weights, dit->outer[outer]);
}

carry_tensor carry_dit_product(const carry_dit *dit, int64_t index, carry_dtype dtype) {
    if (dtype == CARRY_F32 || dit->own.low == NULL || dit->own.low_dtype != dtype) {
        return carry_dit_view(dit, dit->own.weights, index);
    }
    return as_operand(dit, index, carry_parameters_low(&dit->own, dit->own.parameter[index].offset, 0).data, dtype);
}

carry_status carry_dit_affine(carry_dit *dit, carry_tensor y, carry_tensor x, int64_t weight, int64_t bias,
                              carry_activation activation, bool accumulate) {
    return carry_affine(dit->ctx, y, x, carry_dit_product(dit, weight, x.dtype), carry_dit_product(dit, bias, x.dtype),
                        activation, accumulate);
}

carry_status carry_dit_outer_affine(carry_dit *dit, carry_tensor y, carry_tensor x, carry_dit_outer outer,
                                    carry_activation activation) {
    return carry_dit_affine(dit, y, x, dit->outer[outer], dit->outer[outer + 1], activation, false);
}

/* True if three consecutive parameters are adjacent in the flat buffers. */
static bool follow_each_other(const carry_dit *dit, carry_dit_slot first) {
    const carry_parameter *q = &dit->own.parameter[dit->block[0][first]];
    return q[1].offset == q->offset + q->count && q[2].offset == q[1].offset + q[1].count;
}

bool carry_dit_has_qkv(const carry_dit *dit) {
    return follow_each_other(dit, CARRY_DIT_Q) && follow_each_other(dit, CARRY_DIT_Q_BIAS);
}

void carry_dit_qkv(const carry_dit *dit, int64_t block, carry_dtype dtype, carry_tensor *W, carry_tensor *b) {
    const carry_tensor q = carry_dit_product(dit, dit->block[block][CARRY_DIT_Q], dtype);
    *W = carry_reshape_2d(q, 3 * q.shape[0], q.shape[1]);
    *b = carry_reshape_1d(carry_dit_product(dit, dit->block[block][CARRY_DIT_Q_BIAS], dtype), 3 * q.shape[0]);
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

/* Uses the CPU's functions directly: the caller checks shapes, and they cannot fail. */
void carry_dit_patchify(carry_ctx *ctx, float *patches, const carry_tensor *latents, const int64_t patch[2],
                        bool by_head) {
    (void)carry_cpu_patchify(ctx, carry_view_1d(patches, CARRY_F32, carry_tensor_count(latents)), *latents, patch,
                             by_head);
}

void carry_dit_unpatchify(carry_ctx *ctx, const carry_tensor *latents, const float *patches, const int64_t patch[2]) {
    /* carry_view_1d takes a pointer to non-const; it is only read. */
    const carry_tensor from = carry_view_1d((void *)(uintptr_t)patches, CARRY_F32, carry_tensor_count(latents));
    (void)carry_cpu_unpatchify(ctx, *latents, from, patch, true);
}
