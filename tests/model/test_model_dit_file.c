/* Folders of video transformers: a written folder reads back the same; values missing in config.json follow from the
   weights; files that do not fit are refused by name. */
#include "dit_support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "file/safetensors.h"

/* The sanitizers abort at an allocation that malloc would refuse, unless this option is set. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "allocator_may_return_null=1";
}

static carry_ctx *ctx;
static char folder[64], path[128];

static int open_folder(void **state) {
    (void)state;
    ctx = support_ctx(1, NULL, NULL);
    (void)snprintf(folder, sizeof folder, "/tmp/carry-dit-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return 0;
}

static const char *in_folder(const char *name) {
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int close_folder(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors", "diffusion_pytorch_model.safetensors"};
    for (int i = 0; i < 3; i++) {
        (void)unlink(in_folder(names[i]));
    }
    assert_int_equal(rmdir(folder), 0);
    carry_ctx_free(ctx);
    return 0;
}

static void write_config(const char *text) {
    FILE *file = fopen(in_folder("config.json"), "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Compares field by field, since padding has no defined value. */
static void assert_config(const carry_dit_config *a, const carry_dit_config *b) {
    assert_int_equal(a->dim, b->dim);
    assert_int_equal(a->ffn_dim, b->ffn_dim);
    assert_int_equal(a->num_heads, b->num_heads);
    assert_int_equal(a->num_layers, b->num_layers);
    assert_int_equal(a->in_dim, b->in_dim);
    assert_int_equal(a->out_dim, b->out_dim);
    assert_int_equal(a->text_len, b->text_len);
    assert_int_equal(a->text_dim, b->text_dim);
    assert_int_equal(a->freq_dim, b->freq_dim);
    assert_memory_equal(a->patch, b->patch, sizeof a->patch);
    assert_true(a->eps == b->eps && a->shift == b->shift);
    assert_true(a->qk_norm == b->qk_norm && a->cross_attn_norm == b->cross_attn_norm);
    assert_int_equal(a->chunk_frames, b->chunk_frames);
    assert_int_equal(a->window_frames, b->window_frames);
    assert_int_equal(a->sink_frames, b->sink_frames);
    assert_int_equal(a->steps, b->steps);
    assert_memory_equal(a->step, b->step, sizeof a->step);
}

static void test_what_is_saved_is_loaded(void **state) {
    (void)state;
    carry_dit_config c = small_config(), read;
    for (int kind = 0; kind < 3; kind++) {
        c.qk_norm = kind != 1;
        c.cross_attn_norm = kind != 2;
        c.chunk_frames = kind;
        c.window_frames = 7 * kind;
        c.sink_frames = kind;
        c.shift = 1.5 * kind;
        c.steps = kind;
        c.step[0] = kind > 0 ? 1000 : 0;
        c.step[1] = kind > 1 ? 333 : 0;
        carry_dit *dit = small_dit(ctx, &c), *again;
        assert_ok(ctx, carry_dit_save(dit, folder, CARRY_F32));
        assert_ok(ctx, carry_dit_config_read(ctx, &read, folder));
        assert_config(&read, &c);
        assert_ok(ctx, carry_dit_new(ctx, &again, &read, NULL, 0));
        assert_true(carry_dit_fingerprint(again) != carry_dit_fingerprint(dit));
        assert_ok(ctx, carry_dit_load(again, folder));
        assert_memory_equal(again->own.weights, dit->own.weights, (size_t)dit->own.count * sizeof(float));
        assert_true(carry_dit_fingerprint(again) == carry_dit_fingerprint(dit));
        assert_ok(ctx, carry_dit_save(dit, folder, CARRY_BF16));
        assert_ok(ctx, carry_dit_load(again, folder));
        for (int64_t i = 0; i < dit->own.count; i++) {
            float rounded = carry_f32_from_bf16(carry_bf16_from_f32(dit->own.weights[i]));
            assert_true(again->own.weights[i] == rounded);
        }
        carry_dit_free(again);
        carry_dit_free(dit);
    }
}

static void test_missing_keys_are_told_by_the_weights(void **state) {
    (void)state;
    carry_dit_config c = small_config(), read;
    c.cross_attn_norm = false;
    c.out_dim = 3;
    c.patch[1] = 3;
    carry_dit *dit = small_dit(ctx, &c);
    assert_ok(ctx, carry_dit_save(dit, folder, CARRY_F32));
    write_config("{\"_class_name\": \"WanModel\", \"num_heads\": 12, \"text_len\": 5, \"eps\": 1e-06,\n"
                 "\"window_size\": [-1, -1], \"_diffusers_version\": \"0.30.0\", \"model_type\": \"t2v\"}");
    assert_ok(ctx, carry_dit_config_read(ctx, &read, folder));
    assert_config(&read, &c);
    char old[128];
    (void)snprintf(old, sizeof old, "%s", in_folder("model.safetensors"));
    assert_int_equal(rename(old, in_folder("diffusion_pytorch_model.safetensors")), 0); /* as diffusers has it */
    assert_ok(ctx, carry_dit_config_read(ctx, &read, folder));
    assert_config(&read, &c);
    assert_ok(ctx, carry_dit_load(dit, folder));
    write_config("{\"_class_name\": \"WanModel\"}");
    assert_refused(ctx, CARRY_EFORMAT, "num_heads", carry_dit_config_read(ctx, &read, folder));
    assert_int_equal(unlink(in_folder("diffusion_pytorch_model.safetensors")), 0);
    assert_int_not_equal(carry_dit_config_read(ctx, &read, folder), CARRY_OK); /* and there are no weights either */
    carry_dit_free(dit);
}

static void count_line(void *user, carry_log_level level, const char *line) {
    (void)level;
    (void)line;
    (*(int *)user)++;
}

static void test_a_model_of_another_kind_is_refused_without_warnings(void **state) {
    (void)state;
    int lines = 0;
    carry_ctx *own;
    carry_dit_config read;
    assert_int_equal(carry_ctx_new(&own, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                              .log = count_line, .log_user = &lines}),
                     CARRY_OK);
    write_config("{\"attention_bias\": false, \"hidden_size\": 64, \"model_type\": \"qwen3_5_text\"}");
    assert_refused(own, CARRY_EUNSUPPORTED, "model_type", carry_dit_config_read(own, &read, folder));
    assert_int_equal(lines, 0);
    carry_ctx_free(own);
}

static void test_configurations_that_cannot_be_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {{"[]", "not a JSON object"},
                 {"{\"dim\": 0}", "dim"},
                 {"{\"dim\": 9.5}", "dim"},
                 {"{\"dim\": \"96\"}", "dim"},
                 {"{\"dim\": 96, \"dim\": 96}", "duplicate"},
                 {"{\"patch_size\": [1, 2]}", "patch_size"},
                 {"{\"patch_size\": [1, 2, -2]}", "patch_size"},
                 {"{\"qk_norm\": 1}", "qk_norm"},
                 {"{\"window_size\": [5, 5]}", "no window"},
                 {"{\"model_type\": \"i2v\"}", "t2v"},
                 {"{\"_class_name\": \"UNet\"}", "WanModel"},
                 {"{\"eps\": -1}", "eps"},
                 {"{\"steps\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "steps"},
                 {"{\"steps\": [0]}", "steps"},
                 {"{\"sink_frames\": -1}", "sink_frames"},
                 {"{\"dim\": 96, \"ffn_dim\": 96, \"num_heads\": 2, \"num_layers\": 1, \"in_dim\": 4, \"out_dim\": 4, "
                  "\"text_len\":"
                  " 65536, \"text_dim\": 4, \"freq_dim\": 4, \"patch_size\": [1, 2, 2], \"qk_norm\": true, "
                  "\"cross_attn_norm\": true}",
                  "text_len is 65536: 1 to 4096"},
                 {"{\"dim\": 96", "line"}};
    carry_dit_config read;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_config(cases[i].text);
        if (carry_dit_config_read(ctx, &read, folder) == CARRY_OK ||
            strstr(carry_ctx_error(ctx), cases[i].words) == NULL) {
            fail_msg("%s: %s", cases[i].text, carry_ctx_error(ctx));
        }
    }
    carry_dit_config c = small_config();
    c.num_heads = 5;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "num_heads 5", carry_dit_config_check(ctx, &c, 1));
    c.num_heads = 8; /* of 9 */
    assert_refused(ctx, CARRY_EUNSUPPORTED, "even", carry_dit_config_check(ctx, &c, 1));
    c = small_config();
    c.freq_dim = 9;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "freq_dim", carry_dit_config_check(ctx, &c, 1));
    c = small_config();
    c.patch[0] = 2;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "one frame", carry_dit_config_check(ctx, &c, 1));
    c = small_config();
    c.ffn_dim = INT64_MAX;
    assert_refused(ctx, CARRY_ESIZE, "ffn_dim", carry_dit_config_check(ctx, &c, 1));
    c = small_config();
    c.chunk_frames = 3;
    c.window_frames = 4;
    c.sink_frames = 2;
    assert_refused(ctx, CARRY_ERANGE, "sink and chunk", carry_dit_config_check(ctx, &c, 1));
    c.sink_frames = INT64_MAX; /* their sum overflows */
    assert_refused(ctx, CARRY_ERANGE, "sink and chunk", carry_dit_config_check(ctx, &c, 1));
    c = small_config();
    c.num_layers = 4096;
    c.ffn_dim = c.text_dim = (int64_t)1 << 20; /* larger than any memory */
    c.dim = 128 * 4096;
    c.num_heads = 4096;
    carry_dit *dit;
    assert_refused(ctx, CARRY_EMEMORY, "out of memory", carry_dit_new(ctx, &dit, &c, NULL, 0));
}

static void test_weights_that_do_not_fit_are_named(void **state) {
    (void)state;
    carry_dit_config c = small_config();
    carry_dit *dit = small_dit(ctx, &c), *other;
    assert_ok(ctx, carry_dit_save(dit, folder, CARRY_F32));
    c.ffn_dim = 61;
    assert_ok(ctx, carry_dit_new(ctx, &other, &c, NULL, 0));
    assert_refused(ctx, CARRY_ESHAPE, "blocks.0.ffn.0.weight has shape [60, 72] where the configuration needs [61, 72]",
                   carry_dit_load(other, folder));
    carry_dit_free(other);
    c.ffn_dim = 60;
    c.num_layers = 3;
    assert_ok(ctx, carry_dit_new(ctx, &other, &c, NULL, 0));
    assert_refused(ctx, CARRY_EFORMAT, "no tensor blocks.2.modulation", carry_dit_load(other, folder));
    carry_dit_free(other);
    c.num_layers = 2;
    c.qk_norm = false;
    assert_ok(ctx, carry_dit_new(ctx, &other, &c, NULL, 0));
    assert_refused(ctx, CARRY_EFORMAT, "norm_k.weight of shape [72] has no place", carry_dit_load(other, folder));
    carry_dit_free(other);
    carry_dit_free(dit);
}

static void test_names_and_sizes_of_known_models(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double billions;
    } known[] = {{"1.3B", 1.4}, {"14B", 14.3}, {"shapes", 0.0038}};
    carry_dit_config c;
    const char *about;
    for (int i = 0; i < 3; i++) {
        assert_string_equal(carry_dit_config_name(i, &about), known[i].name);
        assert_ok(ctx, carry_dit_config_named(ctx, &c, known[i].name));
        assert_ok(ctx, carry_dit_config_check(ctx, &c, 1));
        const double d = (double)c.dim, block = 8.0 * d * d + 2.0 * d * (double)c.ffn_dim;
        const double all = (double)c.num_layers * block + d * (7.0 * d + d + (double)c.text_dim);
        assert_true(fabs(all * 1e-9 / known[i].billions - 1.0) < 0.1);
    }
    assert_null(carry_dit_config_name(3, NULL));
    assert_null(carry_dit_config_name(-1, NULL));
    assert_refused(ctx, CARRY_EARGUMENT, "1.3B, 14B, shapes are known", carry_dit_config_named(ctx, &c, "7B"));
}

/* Training starts with blocks that only attend to the text, and with a velocity of zero. */
static void test_training_starts_at_zero(void **state) {
    (void)state;
    carry_dit_config c = small_config();
    carry_dit *dit = small_dit(ctx, &c);
    carry_dit_cache *cache;
    assert_ok(ctx, carry_dit_init_training(dit, 5));
    assert_ok(ctx, carry_dit_cache_new(dit, &cache,
                                       &(carry_dit_cache_options){.height = 2, .width = 4, .chunk = 1, .window = 1}));
    assert_ok(ctx, carry_dit_cache_text(cache, (carry_tensor){.data = NULL}));
    float *latents = random_floats(ctx, 16 * 8, 3), velocity[16 * 8];
    memset(velocity, 255, sizeof velocity);
    const carry_dit_chunk chunk = {.velocity = carry_view_4d(velocity, CARRY_F32, 16, 1, 2, 4),
                                   .latents = carry_view_4d(latents, CARRY_F32, 16, 1, 2, 4),
                                   .t = 700.0};
    assert_ok(ctx, carry_dit_forward(dit, cache, &chunk, 1, 0.0f));
    for (int i = 0; i < 16 * 8; i++) {
        assert_true(velocity[i] == 0.0f);
    }
    free(latents);
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_saved_is_loaded, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_missing_keys_are_told_by_the_weights, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_a_model_of_another_kind_is_refused_without_warnings, open_folder,
                                        close_folder),
        cmocka_unit_test_setup_teardown(test_configurations_that_cannot_be_are_refused, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_weights_that_do_not_fit_are_named, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_names_and_sizes_of_known_models, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_training_starts_at_zero, open_folder, close_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
