/* Shared by the tests of tiny video autoencoders: a folder with random weights of any widths. */
#ifndef CARRY_TESTS_TAE_SUPPORT_H
#define CARRY_TESTS_TAE_SUPPORT_H

#include "support.h"

#include <math.h>
#include <stdbool.h>

#include "model/codec/codec.h"
#include "file/safetensors.h"

enum { TENSORS = 128 };

static carry_ctx *ctx;
static char folder[] = "tae.XXXXXX";
static void *kept[2048];
static int kept_count;

static inline int open_all(void **state) {
    (void)state;
    ctx = support_ctx(2, NULL, NULL);
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static inline int close_all(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors", "expected.safetensors"};
    for (int i = 0; i < 3; i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)remove(path);
    }
    (void)remove(folder);
    carry_ctx_free(ctx);
    return 0;
}

static inline int free_kept(void **state) {
    (void)state;
    while (kept_count > 0) {
        free(kept[--kept_count]);
    }
    return 0;
}

static inline void *keep(size_t bytes) {
    void *made = malloc(bytes);
    assert_non_null(made);
    assert_in_range(kept_count, 0, 2047);
    kept[kept_count++] = made;
    memset(made, 255, bytes);
    return made;
}

static inline float *numbers(int64_t count) {
    return keep((size_t)count * sizeof(float));
}

static inline float *random_numbers(int64_t count, uint64_t stream, float size) {
    float *made = numbers(count);
    assert_ok(ctx, carry_random_uniform(ctx, carry_view_1d(made, CARRY_F32, count), 5, stream, -size, size));
    return made;
}

/* A file's tensors. */
typedef struct weights {
    char name[TENSORS][64];
    carry_safetensors_item item[TENSORS + 1];
    int count;
} weights;

/* Scaled so that numbers keep their magnitude from layer to layer. */
static inline void add(weights *w, const char *name, int64_t out, int64_t in, int64_t side, bool bias) {
    assert_in_range(w->count, 0, TENSORS - 1 - bias);
    float size = sqrtf(3.0f / (float)(in * side * side)) * 1.2f;
    (void)snprintf(w->name[w->count], sizeof w->name[0], "%s.weight", name);
    float *data = random_numbers(out * in * side * side, (uint64_t)w->count, size);
    w->item[w->count].tensor = carry_view_4d(data, CARRY_F32, out, in, side, side);
    w->item[w->count].name = w->name[w->count];
    w->count++;
    if (bias) {
        (void)snprintf(w->name[w->count], sizeof w->name[0], "%s.bias", name);
        w->item[w->count].tensor = carry_view_1d(random_numbers(out, (uint64_t)w->count, 0.2f), CARRY_F32, out);
        w->item[w->count].name = w->name[w->count];
        w->count++;
    }
}

static inline void add_blocks(weights *w, const char *side, int at, int64_t width) {
    for (int i = 0; i < 9; i++) {
        char name[48];
        (void)snprintf(name, sizeof name, "%s.%d.conv.%d", side, at + i / 3, i % 3 * 2);
        add(w, name, width, i % 3 == 0 ? 2 * width : width, 3, true);
    }
}

static const int grows[] = {1, 2, 2};
static const int pools[] = {2, 2, 1};

/* decoder: widths of three levels and of the input of the last convolution; encoder: widths of the first convolution
   and of three levels. */
static inline weights *random_weights(const int64_t decoder[4], const int64_t encoder[4]) {
    weights *w = keep(sizeof *w);
    memset(w, 0, sizeof *w);
    add(w, "decoder.1", decoder[0], 16, 3, true);
    add(w, "encoder.0", encoder[0], 3, 3, true);
    for (int i = 0; i < 3; i++) {
        char name[32];
        add_blocks(w, "decoder", 3 + 6 * i, decoder[i]);
        (void)snprintf(name, sizeof name, "decoder.%d.conv", 7 + 6 * i);
        add(w, name, decoder[i] * grows[i], decoder[i], 1, false);
        (void)snprintf(name, sizeof name, "decoder.%d", 8 + 6 * i);
        add(w, name, decoder[i + 1], decoder[i], 3, false);
        (void)snprintf(name, sizeof name, "encoder.%d.conv", 2 + 5 * i);
        add(w, name, encoder[i], encoder[i] * pools[i], 1, false);
        (void)snprintf(name, sizeof name, "encoder.%d", 3 + 5 * i);
        add(w, name, encoder[i + 1], encoder[i], 3, false);
        add_blocks(w, "encoder", 4 + 5 * i, encoder[i + 1]);
    }
    add(w, "decoder.22", 3, decoder[3], 3, true);
    add(w, "encoder.17", 16, encoder[3], 3, true);
    assert_int_equal(w->count, TENSORS);
    return w;
}

static inline void write_config(const char *text) {
    char path[64];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static inline void write_folder(weights *w, int count, carry_dtype dtype) {
    char path[64];
    write_config("{\"_class_name\": \"TAEHV\", \"latent_channels\": 16, \"image_channels\": 3}");
    for (int i = 0; i < count; i++) {
        w->item[i].dtype = dtype;
    }
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(ctx, carry_safetensors_write(ctx, path, w->item, count, NULL));
}

#endif
