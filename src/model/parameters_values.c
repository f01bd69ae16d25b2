/* Checks the values of weights in files. Without it a damaged file would be used: one flipped bit of an exponent makes
   every result wrong. All threads read the tensor, which brings its pages into memory. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "model/parameters_file.h"

#define LARGEST 1e8f /* the largest accepted weight; the weights of working models are below 1e3 */

/* Returns one element. For f16 it returns 0 in place of any finite value. */
static float value_at(const void *data, carry_dtype dtype, int64_t index) {
    const unsigned char *at = (const unsigned char *)data + (size_t)index * carry_dtype_size(dtype);
    uint16_t half;
    uint32_t bits;
    float value;
    if (dtype == CARRY_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    if (dtype == CARRY_F16) { /* no finite f16 is too large; only NaN and infinity have this exponent */
        return (half & 0x7C00u) == 0x7C00u ? (half & 0x3FFu) != 0 ? NAN : INFINITY : 0.0f;
    }
    bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define SOME 4096 /* elements checked together */
#define LANES 32
#define GRAIN ((int64_t)32) /* blocks of SOME elements: the least that is worth a thread */

typedef struct value_check {
    const void *data;
    carry_dtype dtype;
    int64_t count;
    _Atomic int64_t wrong; /* a block with a bad value; -1: none */
} value_check;

/* Without the sign bit, the bits of two floats compare like their magnitudes. 1e8 is 0x4CBEBC20; in bf16 the next value
   below it is 0x4CBE. A fixed number of lanes lets the compiler use vectors at any optimisation level. */
static bool half_is_fine(const uint16_t *at, int64_t count, uint16_t largest) {
    uint16_t most[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            const uint16_t bits = at[i + lane] & 0x7FFFu;
            most[lane] = bits > most[lane] ? bits : most[lane];
        }
    }
    bool is_fine = true;
    for (int lane = 0; lane < LANES; lane++) {
        is_fine = is_fine && most[lane] <= largest;
    }
    for (; i < count; i++) {
        is_fine = is_fine && (at[i] & 0x7FFFu) <= largest;
    }
    return is_fine;
}

static bool float_is_fine(const uint32_t *at, int64_t count) {
    bool is_fine = true;
    for (int64_t i = 0; i < count; i++) {
        is_fine &= (at[i] & 0x7FFFFFFFu) <= 0x4CBEBC20u;
    }
    return is_fine;
}

static void check_blocks(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    value_check *c = argument;
    for (int64_t block = begin; block < end; block++) {
        const int64_t first = block * SOME;
        const int64_t count = c->count - first < SOME ? c->count - first : SOME;
        const bool is_fine = c->dtype == CARRY_F32 ? float_is_fine((const uint32_t *)c->data + first, count)
                                                   : half_is_fine((const uint16_t *)c->data + first, count,
                                                                  c->dtype == CARRY_BF16 ? 0x4CBEu : 0x7BFFu);
        if (!is_fine) {
            atomic_store(&c->wrong, block);
        }
    }
}

carry_status carry_parameters_check_values(const carry_parameters *own, const carry_tensor *from, const char *name,
                                           const char *folder) {
    value_check c = {.data = from->data, .dtype = from->dtype, .count = carry_tensor_count(from), .wrong = -1};
    carry_parallel(own->ctx, (c.count + SOME - 1) / SOME, GRAIN, check_blocks, &c);
    for (int64_t i = 0; atomic_load(&c.wrong) >= 0 && i < c.count; i++) {
        const float value = value_at(from->data, from->dtype, i);
        if (!(fabsf(value) <= LARGEST)) {
            return carry_fail(own->ctx, CARRY_EFORMAT,
                              "%s: element %lld of %s is %g: weights are finite and at most %g", folder, (long long)i,
                              name, (double)value, (double)LARGEST);
        }
    }
    return CARRY_OK;
}
