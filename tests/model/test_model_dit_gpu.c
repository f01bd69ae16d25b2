/* A video transformer on every device and in every type against the same model on the CPU in f32: the velocities of a
   stream over its cache, and the loss and gradients of a training pass. The CPU in 16 bits is compared, too; without a
   GPU only that. */
/* labels: gpu */
#include "dit_support.h"

#include "carry/device.h"
#include "model/dit/dit_fp8.h"
#include "model/dit/dit_pass.h"

enum { HEIGHT = 4, WIDTH = 6, FRAMES = 2, CHUNKS = 3 };

/* Heads of 64 in bf16 use the fast kernels of a GPU, heads of 12 the plain ones. */
static carry_dit_config config_of(bool is_fast) {
    carry_dit_config c = small_config();
    c.dim = is_fast ? 128 : 48;
    c.num_heads = is_fast ? 2 : 4;
    c.ffn_dim = is_fast ? 256 : 60;
    return c;
}

static carry_dit *model_on(carry_ctx *ctx, const carry_dit_config *c, int device) {
    carry_dit *dit;
    assert_ok(ctx, carry_dit_new(ctx, &dit, c, NULL, device));
    assert_ok(ctx, carry_dit_init(dit, 7));
    assert_ok(ctx, carry_parameters_want_gradients(&dit->own));
    return dit;
}

/* Runs three chunks, the last of which wraps the ring, and one step again; *velocity gets that of the last forward. */
static void stream_by(carry_ctx *ctx, const carry_dit_config *c, int device, carry_dtype dtype, bool fp8,
                      float *velocity) {
    const int64_t count = c->in_dim * FRAMES * HEIGHT * WIDTH;
    carry_dit *dit = model_on(ctx, c, device);
    carry_dit_cache *cache;
    const carry_dit_cache_options options = {
        .height = HEIGHT, .width = WIDTH, .chunk = FRAMES, .window = 5, .sink = 1, .dtype = dtype};
    float *text = random_floats(ctx, 3 * c->text_dim, 2);
    if (fp8) { /* of other weights first: they are rounded again when they change */
        assert_ok(ctx, carry_dit_init(dit, 8));
        assert_ok(ctx, carry_dit_fp8_open(dit));
        assert_ok(ctx, carry_dit_init(dit, 7));
        assert_ok(ctx, carry_dit_fp8_refresh(dit));
    }
    assert_ok(ctx, carry_dit_cache_new(dit, &cache, &options));
    assert_ok(ctx, carry_dit_cache_text(cache, carry_view_2d(text, CARRY_F32, 3, c->text_dim)));
    for (int i = 0; i <= CHUNKS; i++) {
        const int at = i < CHUNKS ? i : CHUNKS - 1;
        float *latents = random_floats(ctx, count, 10 + (uint64_t)i);
        const carry_dit_chunk chunk = {.latents = carry_view_4d(latents, CARRY_F32, c->in_dim, FRAMES, HEIGHT, WIDTH),
                                       .velocity =
                                           i > 0 ? carry_view_4d(velocity, CARRY_F32, c->out_dim, FRAMES, HEIGHT, WIDTH)
                                                 : (carry_tensor){0},
                                       .t = 900.0 - 200.0 * i,
                                       .start = at * FRAMES};
        assert_ok(ctx, carry_dit_forward(dit, cache, &chunk, 1, -0.5f));
        free(latents);
    }
    free(text);
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
}

static void stream(carry_ctx *ctx, const carry_dit_config *c, int device, carry_dtype dtype, float *velocity) {
    stream_by(ctx, c, device, dtype, false, velocity);
}

/* Loss and gradients of one pass; the caller frees the gradients. */
static double train(carry_ctx *ctx, const carry_dit_config *c, int device, carry_dtype dtype, float **gradients,
                    int64_t *parameters, carry_parameter **list) {
    enum { VIDEOS = 2, TEXTS = 2 };
    const int64_t shape[] = {VIDEOS, CHUNKS, c->in_dim, FRAMES, HEIGHT, WIDTH};
    const int64_t count = VIDEOS * CHUNKS * c->in_dim * FRAMES * HEIGHT * WIDTH;
    carry_dit *dit = model_on(ctx, c, device);
    carry_dit_pass *pass;
    void *memory;
    const carry_dit_pass_options options = {.videos = VIDEOS,
                                            .chunks = CHUNKS,
                                            .frames = FRAMES,
                                            .height = HEIGHT,
                                            .width = WIDTH,
                                            .window = 4,
                                            .texts = TEXTS,
                                            .dtype = dtype};
    float *latents[3];
    float *text = random_floats(ctx, VIDEOS * TEXTS * c->text_len * c->text_dim, 30);
    for (int i = 0; i < 3; i++) {
        latents[i] = random_floats(ctx, count, 20 + (uint64_t)i);
    }
    static const double t[] = {100, 500, 900, 300, 700, 50};
    static const int64_t caption[] = {0, 0, 1, 1, 1, 0};
    static const int64_t start[] = {0, 9};
    static const float weight[] = {1.0f, 0.5f, 0.0f, 2.0f, 1.0f, 1.0f};
    double loss = NAN;
    assert_ok(ctx, carry_dit_pass_new(dit, &pass, &options));
    const size_t bytes = carry_dit_pass_memory(pass);
    assert_ok(ctx, carry_device_alloc(ctx, &memory, device, bytes));
    assert_ok(ctx, carry_device_fill(ctx, memory, device, 255, bytes, carry_ctx_stream(ctx, device)));
    const int64_t text_shape[] = {VIDEOS * TEXTS, c->text_len, c->text_dim};
    const carry_dit_pass_args args = {.clean = carry_view(latents[0], CARRY_F32, 6, shape),
                                      .noisy = carry_view(latents[1], CARRY_F32, 6, shape),
                                      .target = carry_view(latents[2], CARRY_F32, 6, shape),
                                      .text = carry_view(text, CARRY_F32, 3, text_shape),
                                      .t = t,
                                      .caption = caption,
                                      .start = start,
                                      .weight = weight,
                                      .backward = true,
                                      .scale = 1e-3,
                                      .loss = &loss};
    assert_ok(ctx, carry_dit_pass_run(pass, &args, memory, bytes));
    *gradients = calloc((size_t)dit->own.count, sizeof **gradients);
    *list = calloc((size_t)dit->own.parameters, sizeof **list);
    assert_true(*gradients != NULL && *list != NULL);
    assert_ok(ctx, carry_parameters_download(&dit->own, *gradients, dit->own.gradients, 0, dit->own.count));
    memcpy(*list, dit->own.parameter, (size_t)dit->own.parameters * sizeof **list);
    *parameters = dit->own.parameters;
    for (int i = 0; i < 3; i++) {
        free(latents[i]);
    }
    free(text);
    carry_device_free(ctx, device, memory);
    carry_dit_pass_free(pass);
    carry_dit_free(dit);
    return loss;
}

static double apart(const float *have, const float *want, int64_t count) {
    double off = 0.0;
    double size = 0.0;
    for (int64_t i = 0; i < count; i++) {
        off += ((double)have[i] - (double)want[i]) * ((double)have[i] - (double)want[i]);
        size += (double)want[i] * (double)want[i];
    }
    return sqrt(off / (size > 0.0 ? size : 1.0));
}

/* Bounds relative to f32 on the CPU: f32 sums in another order, or 2^-9 for each of some ten roundings of two blocks. A
   gradient passes through twice as many, and small gradients are differences of larger ones. */
static const struct {
    carry_dtype dtype;
    double velocity, loss, gradient;
} types[] = {{CARRY_F32, 1e-5, 1e-5, 1e-3}, {CARRY_BF16, 5e-2, 3e-2, 0.3}, {CARRY_F16, 1e-2, 1e-2, 0.1}};

#define EACH_DEVICE_AND_TYPE(device, i)                           \
    for (int device = 0; device < carry_device_count(); device++) \
        for (size_t i = device == 0 ? 1 : 0; i < sizeof types / sizeof *types; i++)

static void streams_equal_those_of_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int is_fast = 0; is_fast < 2; is_fast++) {
        const carry_dit_config c = config_of(is_fast != 0);
        const int64_t count = c.out_dim * FRAMES * HEIGHT * WIDTH;
        float *want = random_floats(ctx, count, 1);
        float *have = random_floats(ctx, count, 1);
        stream(ctx, &c, 0, CARRY_F32, want);
        EACH_DEVICE_AND_TYPE(device, i) {
            stream(ctx, &c, device, types[i].dtype, have);
            const double off = apart(have, want, count);
            if (!(off <= types[i].velocity)) {
                fail_msg("device %d, %s, dim %lld: velocities are off by %g", device, carry_dtype_name(types[i].dtype),
                         (long long)c.dim, off);
            }
        }
        free(want);
        free(have);
    }
    carry_ctx_free(ctx);
}

/* The velocity of one chunk with `given` rows of text; with is_padded, zeros up to text_len are part of them, so that
   every row is attended to separately. */
static void velocity_under(carry_ctx *ctx, const carry_dit_config *c, int device, carry_dtype dtype, int64_t given,
                           bool is_padded, float *velocity) {
    carry_dit *dit = model_on(ctx, c, device);
    carry_dit_cache *cache;
    const carry_dit_cache_options options = {
        .height = HEIGHT, .width = WIDTH, .chunk = FRAMES, .window = FRAMES, .dtype = dtype};
    float *text = random_floats(ctx, c->text_len * c->text_dim, 3);
    float *latents = random_floats(ctx, c->in_dim * FRAMES * HEIGHT * WIDTH, 4);
    memset(text + given * c->text_dim, 0, (size_t)((c->text_len - given) * c->text_dim) * sizeof *text);
    assert_ok(ctx, carry_dit_cache_new(dit, &cache, &options));
    assert_ok(
        ctx, carry_dit_cache_text(cache, carry_view_2d(text, CARRY_F32, is_padded ? c->text_len : given, c->text_dim)));
    const carry_dit_chunk chunk = {.latents = carry_view_4d(latents, CARRY_F32, c->in_dim, FRAMES, HEIGHT, WIDTH),
                                   .velocity = carry_view_4d(velocity, CARRY_F32, c->out_dim, FRAMES, HEIGHT, WIDTH),
                                   .t = 700.0};
    assert_ok(ctx, carry_dit_forward(dit, cache, &chunk, 1, 0.0f));
    free(text);
    free(latents);
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
}

/* Wan attends to all 512 rows of a text, also to those after the prompt, which are zeros before the text's MLP. One row
   that counts for all of these must give the same result as 512: for lengths around the limit of the kernels for short
   prompts (47 rows and that one), for no text and for a full one. Heads have 128 elements, which those kernels need. */
static void prompts_give_what_their_padded_text_gives(void **unused) {
    (void)unused;
    static const int64_t lengths[] = {0, 1, 20, 44, 45, 47, 48, 200, 510, 511, 512};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_dit_config c = small_config();
    c.dim = 128, c.num_heads = 1, c.num_layers = 1, c.text_len = 512;
    const int64_t count = c.out_dim * FRAMES * HEIGHT * WIDTH;
    float *none = random_floats(ctx, count, 1), *want = random_floats(ctx, count, 1);
    float *whole = random_floats(ctx, count, 1), *have = random_floats(ctx, count, 1);
    velocity_under(ctx, &c, 0, CARRY_F32, 0, true, none);
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        velocity_under(ctx, &c, 0, CARRY_F32, lengths[n], true, want);
        velocity_under(ctx, &c, 0, CARRY_F32, lengths[n], false, have);
        assert_memory_equal(have, want, (size_t)count * sizeof *have);
        const double seen = apart(want, none, count); /* the text decides something */
        for (int device = 1; device < carry_device_count(); device++) {
            for (size_t i = 0; i < 2; i++) {
                velocity_under(ctx, &c, device, types[i].dtype, lengths[n], true, whole);
                velocity_under(ctx, &c, device, types[i].dtype, lengths[n], false, have);
                const double merged = apart(have, whole, count), off = apart(have, want, count);
                (void)printf("device %d, %s, %lld rows: %.2g of all 512 rows, %.2g of the CPU; the text's part %.2g\n",
                             device, carry_dtype_name(types[i].dtype), (long long)lengths[n], merged, off, seen);
                assert_true(merged <= types[i].velocity / 5 && off <= types[i].velocity);
            }
        }
    }
    free(none);
    free(want);
    free(whole);
    free(have);
    carry_ctx_free(ctx);
}

static void training_passes_equal_those_of_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int is_fast = 0; is_fast < 2; is_fast++) {
        const carry_dit_config c = config_of(is_fast != 0);
        float *want, *have;
        int64_t count;
        carry_parameter *list, *same;
        const double loss = train(ctx, &c, 0, CARRY_F32, &want, &count, &list);
        EACH_DEVICE_AND_TYPE(device, i) {
            const double other = train(ctx, &c, device, types[i].dtype, &have, &count, &same);
            assert_true(fabs(other - loss) <= types[i].loss * fabs(loss));
            for (int64_t p = 0; p < count; p++) {
                const double off = apart(have + list[p].offset, want + list[p].offset, list[p].count);
                if (!(off <= types[i].gradient)) {
                    fail_msg("device %d, %s, dim %lld: the gradient of %s is off by %g", device,
                             carry_dtype_name(types[i].dtype), (long long)c.dim, list[p].name, off);
                }
            }
            free(have);
            free(same);
        }
        free(want);
        free(list);
    }
    carry_ctx_free(ctx);
}

static void start_values_are_the_same_bits_on_every_device(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const carry_dit_config c = config_of(false);
    carry_dit *here = model_on(ctx, &c, 0);
    for (int device = 1; device < carry_device_count(); device++) {
        carry_dit *there = model_on(ctx, &c, device);
        assert_true(carry_dit_fingerprint(here) == carry_dit_fingerprint(there));
        carry_dit_free(there);
    }
    carry_dit_free(here);
    carry_ctx_free(ctx);
}

/* e4m3 has 3 bits of fraction: a relative error of up to 2^-4 for each element, about 2^-5.2 in the mean square, of
   both factors of each product; the sums' errors are as large as those of their terms. */
static void streams_in_8_bits_are_near_those_in_f32(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const carry_dit_config c = config_of(true);
    const int64_t count = c.out_dim * FRAMES * HEIGHT * WIDTH;
    float *want = random_floats(ctx, count, 1);
    float *have = random_floats(ctx, count, 1);
    float *again = random_floats(ctx, count, 1);
    stream(ctx, &c, 0, CARRY_F32, want);
    for (int device = 0; device < carry_device_count(); device++) {
        stream_by(ctx, &c, device, CARRY_BF16, true, have);
        stream(ctx, &c, device, CARRY_BF16, again);
        print_message("device %d: velocity off by %.1e in 8 bits, by %.1e in bf16\n", device, apart(have, want, count),
                      apart(again, want, count));
        assert_true(apart(have, want, count) > apart(again, want, count));
        stream_by(ctx, &c, device, CARRY_BF16, true, again);
        assert_true(apart(have, want, count) < 0.1);
        assert_memory_equal(have, again, (size_t)count * sizeof *have);
    }
    free(want);
    free(have);
    free(again);
    carry_ctx_free(ctx);
}

static void widths_that_are_not_multiples_of_16_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_dit_config c = config_of(false);
    carry_dit *dit = model_on(ctx, &c, 0);
    assert_int_equal(carry_dit_fp8_open(dit), CARRY_ESHAPE);
    assert_non_null(strstr(carry_ctx_error(ctx), "multiples of 16"));
    assert_null(dit->fp8);
    carry_dit_free(dit);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_equal_those_of_the_cpu),
        cmocka_unit_test(streams_in_8_bits_are_near_those_in_f32),
        cmocka_unit_test(widths_that_are_not_multiples_of_16_are_refused),
        cmocka_unit_test(prompts_give_what_their_padded_text_gives),
        cmocka_unit_test(training_passes_equal_those_of_the_cpu),
        cmocka_unit_test(start_values_are_the_same_bits_on_every_device),
    };
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no GPU here; 16 bits on the CPU are compared all the same\n");
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
