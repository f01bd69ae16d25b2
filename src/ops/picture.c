/* Converts planes to pictures, and pictures to planes and bytes, with rows over threads; and the norm followed by
   SiLU. */
#include "ops/picture.h"

#include <inttypes.h>
#include <math.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/cpu.h"
#include "ops/nn.h"

#define GRAIN_ROWS 16

typedef struct job {
    carry_tensor picture, planes;
    unsigned char *bytes;
    carry_picture_map map;
} job;

static float number(const carry_tensor *t, int64_t at) {
    switch (t->dtype) {
    case CARRY_F32:
        return ((const float *)t->data)[at];
    case CARRY_BF16:
        return carry_f32_from_bf16(((const uint16_t *)t->data)[at]);
    default:
        return carry_f32_from_f16(((const uint16_t *)t->data)[at]);
    }
}

static void put(const carry_tensor *t, int64_t at, float value) {
    switch (t->dtype) {
    case CARRY_F32:
        ((float *)t->data)[at] = value;
        break;
    case CARRY_BF16:
        ((uint16_t *)t->data)[at] = carry_bf16_from_f32(value);
        break;
    default:
        ((uint16_t *)t->data)[at] = carry_f16_from_f32(value);
    }
}

static float mapped(float value, const carry_picture_map *map) {
    if (map->tanh3) {
        value = 3.0f * tanhf(value / 3.0f);
    } else if (map->scale != 1.0f || map->shift != 0.0f) { /* else -0 would become 0 */
        value = map->scale * value + map->shift;
    }
    if (!map->clamped) {
        return value;
    }
    return value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f;
}

static void read_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const int64_t channels = j->picture.shape[2];
    const int64_t width = j->planes.shape[2];
    for (int64_t y = begin; y < end; y++) {
        const int64_t row = ((y + 1) * (width + 2) + 1) * channels;
        for (int64_t c = 0; c < channels; c++) {
            const int64_t plane = c * j->planes.stride[0] + y * width;
            for (int64_t x = 0; x < width; x++) {
                put(&j->picture, row + x * channels + c, mapped(number(&j->planes, plane + x), &j->map));
            }
        }
    }
}

static void write_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const int64_t channels = j->picture.shape[2];
    const int64_t width = j->planes.shape[2];
    for (int64_t y = begin; y < end; y++) {
        const int64_t row = ((y + 1) * (width + 2) + 1) * channels;
        for (int64_t c = 0; c < channels; c++) {
            const int64_t plane = c * j->planes.stride[0] + y * width;
            for (int64_t x = 0; x < width; x++) {
                put(&j->planes, plane + x, mapped(number(&j->picture, row + x * channels + c), &j->map));
            }
        }
    }
}

static void write_bytes(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const int64_t count = (j->picture.shape[1] - 2) * j->picture.shape[2];
    for (int64_t y = begin; y < end; y++) {
        const int64_t row = (y + 1) * j->picture.shape[1] * j->picture.shape[2] + j->picture.shape[2];
        for (int64_t i = 0; i < count; i++) {
            j->bytes[y * count + i] = (unsigned char)lrintf(255.0f * mapped(number(&j->picture, row + i), &j->map));
        }
    }
}

/* Checks that a picture is f32 or bf16 and has at least one pixel inside its border. */
static carry_status check_picture(carry_ctx *ctx, const carry_tensor *picture, int device) {
    CARRY_TRY(carry_expect_rank(ctx, "picture", picture, 3));
    CARRY_TRY(carry_expect_activation(ctx, "picture", picture, 3, picture->shape, device));
    if (picture->dtype == CARRY_F16) {
        return carry_fail(ctx, CARRY_EDTYPE, "picture is f16: pictures are f32 or bf16");
    }
    if (picture->shape[0] < 3 || picture->shape[1] < 3 || picture->shape[2] < 1) {
        return carry_fail(ctx, CARRY_ESHAPE, "picture must have a pixel inside the frame, and a channel");
    }
    return CARRY_OK;
}

static carry_status check_planes(carry_ctx *ctx, const carry_tensor *picture, const carry_tensor *planes) {
    const int64_t shape[] = {picture->shape[2], picture->shape[0] - 2, picture->shape[1] - 2};
    CARRY_TRY(carry_tensor_expect(ctx, "planes", planes, 3, shape));
    if (!carry_dtype_is_real(planes->dtype)) {
        return carry_fail(ctx, CARRY_EDTYPE, "planes is %s: f32, bf16 or f16 is needed",
                          carry_dtype_name(planes->dtype));
    }
    if (!carry_tensor_is_apart(planes, 1)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "planes: each must be packed, and they must not overlap");
    }
    return carry_device_expect(ctx, "planes", planes, picture->device);
}

carry_status carry_picture_read(carry_ctx *ctx, carry_tensor picture, carry_tensor planes, carry_picture_map map) {
    CARRY_OPERATOR(ctx, operators, picture_read, &picture)
    CARRY_TRY(check_picture(ctx, &picture, picture.device));
    CARRY_TRY(check_planes(ctx, &picture, &planes));
    return operators->picture_read(ctx, picture, planes, map);
}

carry_status carry_picture_write(carry_ctx *ctx, carry_tensor planes, carry_tensor picture, carry_picture_map map) {
    CARRY_OPERATOR(ctx, operators, picture_write, &picture)
    CARRY_TRY(check_picture(ctx, &picture, picture.device));
    CARRY_TRY(check_planes(ctx, &picture, &planes));
    return operators->picture_write(ctx, planes, picture, map);
}

carry_status carry_picture_bytes(carry_ctx *ctx, unsigned char *bytes, carry_tensor picture, carry_picture_map map) {
    CARRY_OPERATOR(ctx, operators, picture_bytes, &picture)
    CARRY_TRY(check_picture(ctx, &picture, picture.device));
    if (bytes == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "bytes is NULL");
    }
    if (picture.device != 0) {
        CARRY_TRY(carry_device_check_pointer(ctx, "bytes", bytes, picture.device));
    }
    map.clamped = true;
    return operators->picture_bytes(ctx, bytes, picture, map);
}

carry_status carry_rms_norm_silu(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w, float eps) {
    CARRY_OPERATOR(ctx, operators, rms_norm_silu, &x)
    CARRY_TRY(carry_expect_rank(ctx, "x", &x, 2));
    CARRY_TRY(carry_expect_activation(ctx, "x", &x, 2, x.shape, x.device));
    CARRY_TRY(carry_expect_like(ctx, "y", &y, &x));
    CARRY_TRY(carry_expect_weight(ctx, "w", &w, 1, &x.shape[1], &x));
    return operators->rms_norm_silu(ctx, y, x, w, eps);
}

carry_status carry_cpu_picture_read(carry_ctx *ctx, carry_tensor picture, carry_tensor planes, carry_picture_map map) {
    job j = {.picture = picture, .planes = planes, .map = map};
    carry_parallel(ctx, planes.shape[1], GRAIN_ROWS, read_rows, &j);
    return CARRY_OK;
}

carry_status carry_cpu_picture_write(carry_ctx *ctx, carry_tensor planes, carry_tensor picture, carry_picture_map map) {
    job j = {.picture = picture, .planes = planes, .map = map};
    carry_parallel(ctx, planes.shape[1], GRAIN_ROWS, write_rows, &j);
    return CARRY_OK;
}

carry_status carry_cpu_picture_bytes(carry_ctx *ctx, unsigned char *bytes, carry_tensor picture,
                                     carry_picture_map map) {
    job j = {.picture = picture, .bytes = bytes, .map = map};
    carry_parallel(ctx, picture.shape[0] - 2, GRAIN_ROWS, write_bytes, &j);
    return CARRY_OK;
}

carry_status carry_cpu_rms_norm_silu(carry_ctx *ctx, carry_tensor y, carry_tensor x, carry_tensor w, float eps) {
    CARRY_TRY(carry_cpu_rms_norm(ctx, y, x, w, (carry_tensor){0}, eps));
    return carry_cpu_activate(ctx, y, y, CARRY_SILU);
}
