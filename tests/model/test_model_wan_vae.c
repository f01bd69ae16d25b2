/* Wan's autoencoder over random weights of small widths: split into calls in every way, reset, as bytes, by the names
   of its own file, and folders that do not fit. The golden case wan-vae compares its numbers with those of another
   implementation. */
/* labels: gpu */
#include "support.h"

#include <math.h>
#include <stdbool.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "model/codec/codec.h"
#include "model/codec/wan_names.h"
#include "file/safetensors.h"

enum { TENSORS = 256, HEIGHT = 16, WIDTH = 24, AREA = 6, LATENT = 16 * AREA, FRAME = 3 * HEIGHT * WIDTH, BLOCKS = 1 };

static carry_ctx *ctx;
static char folder[] = "wan.XXXXXX";
static char names[TENSORS][96];
static carry_safetensors_item items[TENSORS + 1];
static int count;

static void add(const char *prefix, const char *name, int rank, const int64_t *shape) {
    int64_t size = 1;
    for (int i = 0; i < rank; i++) {
        size *= shape[i];
    }
    assert_in_range(count, 0, TENSORS - 1);
    float *data = malloc((size_t)size * sizeof *data);
    assert_non_null(data);
    const bool gamma = strstr(name, "gamma") != NULL;
    const float spread = gamma ? 0.3f : rank == 1 ? 0.1f : sqrtf(3.0f * (float)shape[0] / (float)size);
    assert_ok(ctx, carry_random_uniform(ctx, carry_view_1d(data, CARRY_F32, size), 11, (uint64_t)count,
                                        gamma ? 1.0f - spread : -spread, gamma ? 1.0f + spread : spread));
    (void)snprintf(names[count], sizeof names[0], "%s%s", prefix, name);
    items[count] = (carry_safetensors_item){.name = names[count], .tensor = carry_view(data, CARRY_F32, rank, shape)};
    count++;
}

#define SHAPE(...)      \
    (const int64_t[]) { \
        __VA_ARGS__     \
    }

static void add_conv(const char *prefix, const char *name, int rank, const int64_t *shape) {
    char full[64];
    (void)snprintf(full, sizeof full, "%s.weight", name);
    add(prefix, full, rank, shape);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    add(prefix, full, 1, shape);
}

static void add_block(const char *prefix, int64_t in, int64_t out) {
    add(prefix, "norm1.gamma", 4, SHAPE(in, 1, 1, 1));
    add_conv(prefix, "conv1", 5, SHAPE(out, in, 3, 3, 3));
    add(prefix, "norm2.gamma", 4, SHAPE(out, 1, 1, 1));
    add_conv(prefix, "conv2", 5, SHAPE(out, out, 3, 3, 3));
    if (in != out) {
        add_conv(prefix, "conv_shortcut", 5, SHAPE(out, in, 1, 1, 1));
    }
}

static void add_middle(const char *side, int64_t width) {
    char prefix[64];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(prefix, sizeof prefix, "%smid_block.resnets.%d.", side, i);
        add_block(prefix, width, width);
    }
    (void)snprintf(prefix, sizeof prefix, "%smid_block.attentions.0.", side);
    add(prefix, "norm.gamma", 3, SHAPE(width, 1, 1));
    add_conv(prefix, "to_qkv", 4, SHAPE(3 * width, width, 1, 1));
    add_conv(prefix, "proj", 4, SHAPE(width, width, 1, 1));
}

static void make_weights(void) {
    const int64_t width[] = {4, 8, 16, 16};
    char prefix[64];
    int at = 0;
    add_conv("encoder.", "conv_in", 5, SHAPE(4, 3, 3, 3, 3));
    for (int i = 0; i < 4; i++) {
        (void)snprintf(prefix, sizeof prefix, "encoder.down_blocks.%d.", at++);
        add_block(prefix, width[i > 0 ? i - 1 : 0], width[i]);
        (void)snprintf(prefix, sizeof prefix, "encoder.down_blocks.%d.", i < 3 ? at++ : at);
        if (i < 3) {
            add_conv(prefix, "resample.1", 4, SHAPE(width[i], width[i], 3, 3));
        }
        if (i == 1 || i == 2) {
            add_conv(prefix, "time_conv", 5, SHAPE(width[i], width[i], 3, 1, 1));
        }
    }
    add_middle("encoder.", 16);
    add("encoder.", "norm_out.gamma", 4, SHAPE(16, 1, 1, 1));
    add_conv("encoder.", "conv_out", 5, SHAPE(32, 16, 3, 3, 3));
    add_conv("", "quant_conv", 5, SHAPE(32, 32, 1, 1, 1));
    add_conv("", "post_quant_conv", 5, SHAPE(16, 16, 1, 1, 1));
    add_conv("decoder.", "conv_in", 5, SHAPE(16, 16, 3, 3, 3));
    add_middle("decoder.", 16);
    for (int i = 0; i < 4; i++) {
        const int64_t out = width[3 - i];
        for (int b = 0; b <= BLOCKS; b++) {
            (void)snprintf(prefix, sizeof prefix, "decoder.up_blocks.%d.resnets.%d.", i, b);
            add_block(prefix, b > 0 ? out : i > 0 ? width[4 - i] / 2 : 16, out);
        }
        (void)snprintf(prefix, sizeof prefix, "decoder.up_blocks.%d.upsamplers.0.", i);
        if (i < 3) {
            add_conv(prefix, "resample.1", 4, SHAPE(out / 2, out, 3, 3));
        }
        if (i < 2) {
            add_conv(prefix, "time_conv", 5, SHAPE(2 * out, out, 3, 1, 1));
        }
    }
    add("decoder.", "norm_out.gamma", 4, SHAPE(4, 1, 1, 1));
    add_conv("decoder.", "conv_out", 5, SHAPE(3, 4, 3, 3, 3));
}

static void write_config(const char *more) {
    char path[64];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(
        fprintf(file, "{\"_class_name\": \"AutoencoderKLWan\", \"base_dim\": 4, \"num_res_blocks\": 1%s}", more) > 0);
    assert_int_equal(fclose(file), 0);
}

static void write_weights(int tensors) {
    char path[64];
    (void)snprintf(path, sizeof path, "%s/diffusion_pytorch_model.safetensors", folder);
    assert_ok(ctx, carry_safetensors_write(ctx, path, items, tensors, NULL));
}

static int open_all(void **state) {
    (void)state;
    ctx = support_ctx(2, NULL, NULL);
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    make_weights();
    return 0;
}

static int close_all(void **state) {
    (void)state;
    static const char *const files[] = {"config.json", "diffusion_pytorch_model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char path[80];
        (void)snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        (void)remove(path);
    }
    (void)remove(folder);
    for (int i = 0; i < count; i++) {
        free(items[i].tensor.data);
    }
    carry_ctx_free(ctx);
    return 0;
}

static int fresh_folder(void **state) {
    (void)state;
    write_config("");
    write_weights(count);
    return 0;
}

static const carry_codec_size size = {.height = HEIGHT, .width = WIDTH, .most = 4};

static carry_tensor latents_of(float *data, int64_t n) {
    return carry_view_4d(data, CARRY_F32, 16, n, HEIGHT / 8, WIDTH / 8);
}

static carry_tensor frames_of(float *data, int64_t n) {
    return carry_view_4d(data, CARRY_F32, n, 3, HEIGHT, WIDTH);
}

static void fill(float *data, int64_t n, uint64_t stream, float low, float high) {
    assert_ok(ctx, carry_random_uniform(ctx, carry_view_1d(data, CARRY_F32, n), 7, stream, low, high));
}

/* Latent frames from..from+n-1 of four. */
static void part(float *to, const float *all, int64_t from, int64_t n) {
    for (int64_t c = 0; c < 16; c++) {
        memcpy(to + c * n * AREA, all + (c * 4 + from) * AREA, (size_t)(n * AREA) * sizeof *to);
    }
}

static void test_a_stream_equals_the_whole_for_every_split(void **state) {
    (void)state;
    static float latents[4 * LATENT], some[4 * LATENT], whole[13 * FRAME], got[13 * FRAME];
    static float pixels[13 * FRAME], coded[4 * LATENT];
    carry_codec *codec;
    fill(latents, 4 * LATENT, 1, -2.0f, 2.0f);
    fill(pixels, 13 * FRAME, 2, 0.0f, 1.0f);
    assert_ok(ctx, carry_codec_open(ctx, &codec, folder, &size));
    assert_string_equal(carry_codec_name(codec), "wan");
    assert_int_equal(carry_codec_frames(codec, 4), 13);
    assert_int_equal(carry_codec_latent_frames(codec, 13), 4);
    assert_ok(ctx, carry_codec_decode(codec, frames_of(whole, 13), latents_of(latents, 4)));
    assert_ok(ctx, carry_codec_encode(codec, latents_of(coded, 4), frames_of(pixels, 13)));
    double spread = 0.0;
    for (int i = 0; i < 13 * FRAME; i++) {
        assert_true(whole[i] >= 0.0f && whole[i] <= 1.0f);
        spread += fabs((double)whole[i] - (double)whole[0]);
    }
    assert_true(spread > 1.0); /* or nothing could differ */
    for (int split = 0; split < 8; split++) {
        memset(got, 255, sizeof got);
        carry_codec_reset(codec);
        for (int64_t from = 0, shown = 0; from < 4;) {
            int64_t n = 1;
            while (from + n < 4 && !(split >> (from + n - 1) & 1)) {
                n++;
            }
            const int64_t made = carry_codec_frames(codec, n);
            float piece[4 * LATENT];
            part(some, latents, from, n);
            assert_ok(ctx, carry_codec_decode(codec, frames_of(got + shown * FRAME, made), latents_of(some, n)));
            assert_ok(ctx, carry_codec_encode(codec, latents_of(piece, n), frames_of(pixels + shown * FRAME, made)));
            part(some, coded, from, n);
            assert_memory_equal(some, piece, (size_t)(n * LATENT) * sizeof *some);
            from += n;
            shown += made;
        }
        assert_memory_equal(got, whole, sizeof got);
    }
    carry_codec_free(codec);
}

static void test_bytes_are_the_frames_rounded(void **state) {
    (void)state;
    static float latents[2 * LATENT], frames[5 * FRAME];
    static unsigned char bytes[5 * FRAME];
    carry_codec *codec;
    fill(latents, 2 * LATENT, 3, -3.0f, 3.0f);
    assert_ok(ctx, carry_codec_open(ctx, &codec, folder, &size));
    assert_ok(ctx, carry_codec_decode(codec, frames_of(frames, 5), latents_of(latents, 2)));
    carry_codec_reset(codec);
    assert_ok(ctx, carry_codec_decode_bytes(codec, bytes, latents_of(latents, 2)));
    for (int i = 0; i < 5 * FRAME; i++) {
        const int frame = i / FRAME, pixel = i % FRAME / 3, c = i % 3;
        assert_int_equal(bytes[i], lrintf(255.0f * frames[frame * FRAME + c * HEIGHT * WIDTH + pixel]));
    }
    carry_codec_free(codec);
}

static double difference(const float *a, const float *b, int n) {
    double squares = 0.0;
    double magnitude = 0.0;
    for (int i = 0; i < n; i++) {
        squares += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        magnitude += (double)a[i] * (double)a[i];
    }
    return sqrt(squares / magnitude);
}

/* Latents in host memory give frames in host memory; latents on the device give bytes on the device, on the context's
   own stream. */
static void test_devices_give_the_cpus_frames(void **state) {
    (void)state;
    static float latents[2 * LATENT], want[5 * FRAME], got[5 * FRAME], coded[2 * LATENT], again[2 * LATENT];
    static unsigned char bytes[5 * FRAME];
    carry_codec *codec;
    fill(latents, 2 * LATENT, 6, -2.0f, 2.0f);
    assert_ok(ctx, carry_codec_open(ctx, &codec, folder, &size));
    assert_ok(ctx, carry_codec_decode(codec, frames_of(want, 5), latents_of(latents, 2)));
    assert_ok(ctx, carry_codec_encode(codec, latents_of(coded, 2), frames_of(want, 5)));
    carry_codec_free(codec);
    for (int device = 1; device < carry_device_count(); device++) {
        for (int t = 0; t < 2; t++) {
            carry_codec_size there = size;
            carry_stream *stream;
            void *far[2];
            there.device = device;
            there.dtype = t == 0 ? CARRY_F32 : CARRY_BF16;
            assert_ok(ctx, carry_stream_new(ctx, &stream, device));
            assert_ok(ctx, carry_ctx_set_stream(ctx, device, stream));
            assert_ok(ctx, carry_codec_open(ctx, &codec, folder, &there));
            assert_int_equal(carry_codec_device(codec), device);
            assert_ok(ctx, carry_codec_decode(codec, frames_of(got, 5), latents_of(latents, 2)));
            assert_ok(ctx, carry_codec_encode(codec, latents_of(again, 2), frames_of(want, 5)));
            assert_true(difference(want, got, 5 * FRAME) < (t == 0 ? 1e-5 : 0.05));
            assert_true(difference(coded, again, 2 * LATENT) < (t == 0 ? 1e-5 : 0.05));
            assert_ok(ctx, carry_device_alloc(ctx, &far[0], device, sizeof latents));
            assert_ok(ctx, carry_device_alloc(ctx, &far[1], device, sizeof bytes));
            const carry_tensor from = latents_of(latents, 2);
            const carry_tensor on = carry_view_on(device, far[0], CARRY_F32, 4, from.shape);
            assert_ok(ctx, carry_copy(ctx, on, from));
            carry_codec_reset(codec);
            assert_ok(ctx, carry_codec_decode_bytes(codec, far[1], on));
            assert_ok(ctx, carry_device_copy(ctx, bytes, 0, far[1], device, sizeof bytes, stream));
            assert_ok(ctx, carry_stream_wait(ctx, device, stream));
            for (int i = 0; i < 5 * FRAME; i++) {
                const float value = got[i / FRAME * FRAME + i % 3 * HEIGHT * WIDTH + i % FRAME / 3];
                assert_int_equal(bytes[i], lrintf(255.0f * value));
            }
            carry_codec_free(codec);
            carry_device_free(ctx, device, far[0]);
            carry_device_free(ctx, device, far[1]);
            assert_ok(ctx, carry_ctx_set_stream(ctx, device, NULL));
            carry_stream_free(ctx, device, stream);
        }
    }
}

static void test_frames_that_fill_no_latent_frame_end_a_stream(void **state) {
    (void)state;
    static float pixels[5 * FRAME], coded[2 * LATENT], again[2 * LATENT];
    carry_codec *codec;
    fill(pixels, 3 * FRAME, 4, 0.0f, 1.0f);
    memcpy(pixels + 3 * FRAME, pixels + 2 * FRAME, FRAME * sizeof *pixels);
    memcpy(pixels + 4 * FRAME, pixels + 2 * FRAME, FRAME * sizeof *pixels);
    assert_ok(ctx, carry_codec_open(ctx, &codec, folder, &size));
    assert_ok(ctx, carry_codec_encode(codec, latents_of(coded, 2), frames_of(pixels, 3)));
    assert_refused(ctx, CARRY_EARGUMENT, "ends a stream",
                   carry_codec_encode(codec, latents_of(again, 1), frames_of(pixels, 4)));
    carry_codec_reset(codec);
    assert_ok(ctx, carry_codec_encode(codec, latents_of(again, 2), frames_of(pixels, 5)));
    assert_memory_equal(coded, again, sizeof coded); /* the last frame is repeated */
    carry_codec_free(codec);
}

/* The names of Wan2.1_VAE.pth, with num_res_blocks 2. */
static void test_names_are_those_of_wans_own_file(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"quant_conv.bias", "conv1.bias"},
        {"post_quant_conv.weight", "conv2.weight"},
        {"encoder.conv_in.weight", "encoder.conv1.weight"},
        {"encoder.down_blocks.3.conv_shortcut.weight", "encoder.downsamples.3.shortcut.weight"},
        {"encoder.down_blocks.5.time_conv.bias", "encoder.downsamples.5.time_conv.bias"},
        {"encoder.down_blocks.2.resample.1.weight", "encoder.downsamples.2.resample.1.weight"},
        {"encoder.mid_block.resnets.1.norm2.gamma", "encoder.middle.2.residual.3.gamma"},
        {"decoder.mid_block.attentions.0.to_qkv.weight", "decoder.middle.1.to_qkv.weight"},
        {"decoder.up_blocks.0.resnets.2.conv2.bias", "decoder.upsamples.2.residual.6.bias"},
        {"decoder.up_blocks.0.upsamplers.0.time_conv.weight", "decoder.upsamples.3.time_conv.weight"},
        {"decoder.up_blocks.1.resnets.0.conv_shortcut.bias", "decoder.upsamples.4.shortcut.bias"},
        {"decoder.up_blocks.3.resnets.2.norm1.gamma", "decoder.upsamples.14.residual.0.gamma"},
        {"decoder.norm_out.gamma", "decoder.head.0.gamma"},
        {"decoder.conv_out.weight", "decoder.head.2.weight"}};
    char other[96];
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_true(carry_wan_other_name(2, pairs[i][0], other, sizeof other));
        assert_string_equal(other, pairs[i][1]);
    }
    assert_false(carry_wan_other_name(2, "decoder.up_blocks.x.resnets.0.conv1.bias", other, sizeof other));
    assert_false(carry_wan_other_name(2, "something.else", other, sizeof other));

    static float latents[LATENT], frame[FRAME], again[FRAME];
    static char own[TENSORS][96];
    carry_codec *codec;
    fill(latents, LATENT, 5, -2.0f, 2.0f);
    assert_ok(ctx, carry_codec_open(ctx, &codec, folder, &size));
    assert_ok(ctx, carry_codec_decode(codec, frames_of(frame, 1), latents_of(latents, 1)));
    carry_codec_free(codec);
    for (int i = 0; i < count; i++) {
        assert_true(carry_wan_other_name(BLOCKS, names[i], own[i], sizeof own[0]));
        items[i].name = own[i];
    }
    write_weights(count);
    assert_ok(ctx, carry_codec_open(ctx, &codec, folder, &size));
    assert_ok(ctx, carry_codec_decode(codec, frames_of(again, 1), latents_of(latents, 1)));
    carry_codec_free(codec);
    assert_memory_equal(frame, again, sizeof frame);
    for (int i = 0; i < count; i++) {
        items[i].name = names[i];
    }
}

static void test_folders_that_do_not_fit_are_refused_by_name(void **state) {
    (void)state;
    static const char *const configs[][2] = {{", \"z_dim\": 48", "z_dim"},
                                             {", \"is_residual\": true", "is_residual"},
                                             {", \"patch_size\": 2", "patch_size"},
                                             {", \"dim_mult\": [1, 2, 4]", "dim_mult"},
                                             {", \"temperal_downsample\": [true, true, true]", "temperal_downsample"},
                                             {", \"temperal_downsample\": [false, true]", "temperal_downsample"},
                                             {", \"attn_scales\": [1.0]", "attn_scales"},
                                             {", \"latents_mean\": [1, 2]", "latents_mean"},
                                             {", \"latents_std\": [0]", "latents_std"}};
    carry_codec *codec;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        write_config(configs[i][0]);
        assert_refused(ctx, CARRY_EUNSUPPORTED, configs[i][1], carry_codec_open(ctx, &codec, folder, &size));
        assert_null(codec);
    }
    write_config("");
    for (int i = 0; i < count; i += 7) { /* missing, then of another shape */
        const carry_safetensors_item saved = items[i];
        items[i] = items[count - 1];
        write_weights(count - 1);
        items[i] = saved;
        assert_refused(ctx, CARRY_EFORMAT, i < count - 1 ? saved.name : "no tensor",
                       carry_codec_open(ctx, &codec, folder, &size));
        items[i].tensor.shape[0]--;
        write_weights(count);
        items[i] = saved;
        assert_refused(ctx, CARRY_ESHAPE, saved.name, carry_codec_open(ctx, &codec, folder, &size));
    }
    items[count] = (carry_safetensors_item){.name = "decoder.more", .tensor = items[0].tensor};
    write_weights(count + 1);
    assert_refused(ctx, CARRY_EFORMAT, "decoder.more", carry_codec_open(ctx, &codec, folder, &size));
    write_weights(count);
    carry_codec_size half = size;
    half.dtype = CARRY_BF16;
    assert_refused(ctx, CARRY_EDTYPE, "bf16 on the CPU", carry_codec_open(ctx, &codec, folder, &half));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_stream_equals_the_whole_for_every_split, fresh_folder),
        cmocka_unit_test_setup(test_bytes_are_the_frames_rounded, fresh_folder),
        cmocka_unit_test_setup(test_devices_give_the_cpus_frames, fresh_folder),
        cmocka_unit_test_setup(test_frames_that_fill_no_latent_frame_end_a_stream, fresh_folder),
        cmocka_unit_test_setup(test_names_are_those_of_wans_own_file, fresh_folder),
        cmocka_unit_test_setup(test_folders_that_do_not_fit_are_refused_by_name, fresh_folder),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
