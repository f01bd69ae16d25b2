/* The dct codec: pictures as the cosine transform of their 8 x 8 blocks, without weights.

   A block of pixels becomes luma and two chromas (Y, Cb, Cr as in JPEG). Each of them gets an orthonormal cosine
   transform, of which the lowest coefficients in zigzag order are kept: 10 of luma, 3 of each chroma. Latent channel c
   is (coefficient - mean[c]) / deviation[c], which has mean 0 and variance 1, as the model needs. The tables were
   measured on pictures of plain coloured shapes on a dark background, which tests/model/test_model_codec.c draws; the
   test prints the tables again and fails if they no longer fit. */
#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/threads.h"
#include "model/codec/codec_kind.h"

#define SIDE CARRY_LATENT_BLOCK
#define PIXELS (SIDE * SIDE)
#define LATENTS CARRY_LATENT_CHANNELS
#define LUMA 10
#define CHROMA 3

/* Rows and columns of the first ten coefficients in zigzag order. */
static const int zigzag[LUMA][2] = {{0, 0}, {0, 1}, {1, 0}, {2, 0}, {1, 1}, {0, 2}, {0, 3}, {1, 2}, {2, 1}, {3, 0}};

/* For each channel: ten of luma, three of Cb, three of Cr; a coefficient and its transpose have the same values. */
static const float mean[LATENTS] = {0.83f};
static const float deviation[LATENTS] = {1.12f, 0.325f, 0.325f, 0.15f,  0.131f, 0.15f, 0.096f, 0.08f,
                                         0.08f, 0.096f, 0.56f,  0.156f, 0.156f, 0.56f, 0.156f, 0.156f};

typedef struct dct {
    carry_ctx *ctx;
    carry_codec_size size;
    float basis[LUMA][PIXELS]; /* orthonormal */
} dct;

typedef struct job {
    const dct *d;
    float *frames, *latents; /* one of them is only read */
    int64_t count;           /* frames */
} job;

/* The plane (0: Y, 1: Cb, 2: Cr) of a latent channel, and the index of its coefficient. */
static int plane_of(int channel, int *coefficient) {
    int plane = channel < LUMA ? 0 : 1 + (channel - LUMA) / CHROMA;
    *coefficient = channel < LUMA ? channel : (channel - LUMA) % CHROMA;
    return plane;
}

static void read_block(float planes[3][PIXELS], const float *frame, int64_t area, int64_t width) {
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < SIDE; x++) {
            const float *pixel = frame + y * width + x;
            float r = pixel[0];
            float g = pixel[area];
            float b = pixel[2 * area];
            float luma = 0.299f * r + 0.587f * g + 0.114f * b;
            planes[0][y * SIDE + x] = luma;
            planes[1][y * SIDE + x] = (b - luma) / 1.772f;
            planes[2][y * SIDE + x] = (r - luma) / 1.402f;
        }
    }
}

/* NaN becomes 0, so that any latents give a valid picture. */
static float in_range(float value) {
    return value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f;
}

static void write_block(float *frame, float planes[3][PIXELS], int64_t area, int64_t width) {
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < SIDE; x++) {
            float *pixel = frame + y * width + x;
            float luma = planes[0][y * SIDE + x];
            float cb = planes[1][y * SIDE + x];
            float cr = planes[2][y * SIDE + x];
            pixel[0] = in_range(luma + 1.402f * cr);
            pixel[area] = in_range(luma - (0.299f * 1.402f * cr + 0.114f * 1.772f * cb) / 0.587f);
            pixel[2 * area] = in_range(luma + 1.772f * cb);
        }
    }
}

/* Sets the first pixel, and the first latent of channel 0, of row `row` of blocks, counted over all frames. */
static void place(const job *j, int64_t row, float **frame, float **latent) {
    int64_t rows = j->d->size.height / SIDE;
    int64_t columns = j->d->size.width / SIDE;
    int64_t n = row / rows;
    *frame = j->frames + n * 3 * j->d->size.height * j->d->size.width + row % rows * SIDE * j->d->size.width;
    *latent = j->latents + n * rows * columns + row % rows * columns;
}

static void encode_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const carry_codec_size *size = &j->d->size;
    int64_t next_channel = j->count * (size->height / SIDE) * (size->width / SIDE);
    for (int64_t row = begin; row < end; row++) {
        float *frame;
        float *latent;
        place(j, row, &frame, &latent);
        for (int64_t block = 0; block < size->width / SIDE; block++) {
            float planes[3][PIXELS];
            read_block(planes, frame + block * SIDE, size->height * size->width, size->width);
            for (int c = 0; c < LATENTS; c++) {
                int coefficient;
                const float *plane = planes[plane_of(c, &coefficient)];
                float sum = 0.0f;
                for (int i = 0; i < PIXELS; i++) {
                    sum += j->d->basis[coefficient][i] * plane[i];
                }
                latent[c * next_channel + block] = (sum - mean[c]) / deviation[c];
            }
        }
    }
}

static void decode_rows(void *argument, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const job *j = argument;
    const carry_codec_size *size = &j->d->size;
    int64_t next_channel = j->count * (size->height / SIDE) * (size->width / SIDE);
    for (int64_t row = begin; row < end; row++) {
        float *frame;
        float *latent;
        place(j, row, &frame, &latent);
        for (int64_t block = 0; block < size->width / SIDE; block++) {
            float planes[3][PIXELS] = {{0}};
            for (int c = 0; c < LATENTS; c++) {
                int coefficient;
                float *plane = planes[plane_of(c, &coefficient)];
                float value = latent[c * next_channel + block] * deviation[c] + mean[c];
                for (int i = 0; i < PIXELS; i++) {
                    plane[i] += value * j->d->basis[coefficient][i];
                }
            }
            write_block(frame + block * SIDE, planes, size->height * size->width, size->width);
        }
    }
}

static carry_status run(dct *d, carry_task rows, carry_tensor frames, carry_tensor latents) {
    job j = {.d = d, .frames = frames.data, .latents = latents.data, .count = frames.shape[0]};
    carry_parallel(d->ctx, j.count * (d->size.height / SIDE), 4, rows, &j);
    return CARRY_OK;
}

static carry_status decode(void *opened, const carry_codec_output *to, carry_tensor latents) {
    return run(opened, decode_rows, to->frames, latents);
}

static carry_status encode(void *opened, carry_tensor latents, carry_tensor frames) {
    return run(opened, encode_rows, frames, latents);
}

static carry_status open_dct(carry_ctx *ctx, void **opened, const char *folder, const carry_codec_size *size) {
    (void)folder;
    const double turn = acos(-1.0) / (2 * SIDE);
    dct *d = malloc(sizeof *d);
    if (d == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a codec");
    }
    d->ctx = ctx;
    d->size = *size;
    for (int c = 0; c < LUMA; c++) {
        int v = zigzag[c][0];
        int u = zigzag[c][1];
        double factor = 2.0 / SIDE * (v == 0 ? sqrt(0.5) : 1.0) * (u == 0 ? sqrt(0.5) : 1.0);
        for (int i = 0; i < PIXELS; i++) {
            d->basis[c][i] =
                (float)(factor * cos((2 * (i / SIDE) + 1) * v * turn) * cos((2 * (i % SIDE) + 1) * u * turn));
        }
    }
    *opened = d;
    return CARRY_OK;
}

static void reset(void *opened) {
    (void)opened; /* frames are independent of each other */
}

const carry_codec_kind carry_codec_dct = {.name = "dct",
                                          .about = "lowest cosine coefficients of 8 x 8 blocks; no weights",
                                          .class_name = "DCT",
                                          .ratio = 1,
                                          .first = 1,
                                          .encode_first = 1,
                                          .open = open_dct,
                                          .close = free,
                                          .reset = reset,
                                          .decode = decode,
                                          .encode = encode};
