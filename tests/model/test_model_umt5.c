/* The text encoder: against a version in float64 over random weights, independent of the padding after a prompt, on
   every device, and folders that do not fit. */
#include "support.h"

#include <math.h>
#include <stdbool.h>
#include <unistd.h>

#include "carry/device.h"
#include "file/safetensors.h"
#include "model/text/umt5.h"

enum { D = 24, F = 40, K = 5, H = 3, LAYERS = 2, V = 50, BUCKETS = 8, FAR = 20, T = 37, TENSORS = 2 + 10 * LAYERS };

static carry_ctx *ctx;
static char folder[] = "umt5.XXXXXX";
static carry_safetensors_item item[TENSORS];
static char name[TENSORS][96];
static int items;

static const char config[] =
    "{\"model_type\": \"umt5\", \"vocab_size\": 50, \"d_model\": 24, \"d_ff\": 40, \"d_kv\": 5, \"num_heads\": 3, "
    "\"num_layers\": 2, \"relative_attention_num_buckets\": 8, \"relative_attention_max_distance\": 20, "
    "\"feed_forward_proj\": \"gated-gelu\", \"layer_norm_epsilon\": 1e-6}";

static void write_text(const char *text) {
    char path[64];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static const float *add(const char *prefix, int64_t layer, const char *key, int64_t rows, int64_t columns, float size) {
    if (layer >= 0) {
        (void)snprintf(name[items], sizeof name[0], "%s.%d.%s", prefix, (int)layer, key);
    } else {
        (void)snprintf(name[items], sizeof name[0], "%s", key);
    }
    const int64_t count = rows * columns;
    float *data = malloc((size_t)count * sizeof *data);
    assert_non_null(data);
    assert_ok(ctx, carry_random_uniform(ctx, carry_view_1d(data, CARRY_F32, count), 3, (uint64_t)items, -size, size));
    item[items] = (carry_safetensors_item){.name = name[items], .dtype = CARRY_F32};
    item[items].tensor =
        columns > 1 ? carry_view_2d(data, CARRY_F32, rows, columns) : carry_view_1d(data, CARRY_F32, rows);
    items++;
    return data;
}

typedef struct layer {
    const float *norm, *q, *k, *v, *o, *bias, *norm2, *gate, *up, *down;
} layer;

static layer layers[LAYERS];
static const float *table, *final_norm;

static int open_all(void **state) {
    (void)state;
    ctx = support_ctx(2, NULL, NULL);
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    table = add("", -1, "shared.weight", V, D, 1.0f);
    final_norm = add("", -1, "encoder.final_layer_norm.weight", D, 1, 1.5f);
    for (int64_t i = 0; i < LAYERS; i++) {
        const char *in = "encoder.block";
        layers[i] = (layer){
            .norm = add(in, i, "layer.0.layer_norm.weight", D, 1, 1.5f),
            .q = add(in, i, "layer.0.SelfAttention.q.weight", (int64_t)H * K, D, 0.4f),
            .k = add(in, i, "layer.0.SelfAttention.k.weight", (int64_t)H * K, D, 0.4f),
            .v = add(in, i, "layer.0.SelfAttention.v.weight", (int64_t)H * K, D, 0.4f),
            .o = add(in, i, "layer.0.SelfAttention.o.weight", D, (int64_t)H * K, 0.4f),
            .bias = add(in, i, "layer.0.SelfAttention.relative_attention_bias.weight", BUCKETS, H, 2.0f),
            .norm2 = add(in, i, "layer.1.layer_norm.weight", D, 1, 1.5f),
            .gate = add(in, i, "layer.1.DenseReluDense.wi_0.weight", F, D, 0.4f),
            .up = add(in, i, "layer.1.DenseReluDense.wi_1.weight", F, D, 0.4f),
            .down = add(in, i, "layer.1.DenseReluDense.wo.weight", D, F, 0.4f),
        };
    }
    char path[64];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(ctx, carry_safetensors_write(ctx, path, item, items, NULL));
    return 0;
}

static int close_all(void **state) {
    (void)state;
    char path[64];
    for (int i = 0; i < items; i++) {
        free(item[i].tensor.data);
    }
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    (void)remove(path);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    (void)remove(path);
    (void)remove(folder);
    carry_ctx_free(ctx);
    return 0;
}

static void norm64(double *y, const double *x, const float *w) {
    double sum = 0.0;
    for (int i = 0; i < D; i++) {
        sum += x[i] * x[i];
    }
    for (int i = 0; i < D; i++) {
        y[i] = x[i] / sqrt(sum / D + 1e-6) * (double)w[i];
    }
}

static void linear64(double *y, const double *x, const float *w, int out, int in, bool add) {
    for (int i = 0; i < out; i++) {
        double sum = add ? y[i] : 0.0;
        for (int j = 0; j < in; j++) {
            sum += (double)w[i * in + j] * x[j];
        }
        y[i] = sum;
    }
}

/* Buckets as in T5's paper: one for each distance below a quarter of all buckets, then logarithmic. */
static int bucket64(int distance) {
    const int half = BUCKETS / 2, exact = half / 2, away = abs(distance);
    const double along = away < exact ? 0.0 : log((double)away / exact) / log((double)FAR / exact) * (half - exact);
    const int bucket = away < exact ? away : exact + (int)(along + 1e-9);
    return (distance > 0 ? half : 0) + (bucket < half ? bucket : half - 1);
}

static void attend64(double x[T][D], const layer *l, int prompt) {
    static double h[T][D], q[T][H * K], k[T][H * K], v[T][H * K], o[T][H * K];
    for (int t = 0; t < T; t++) {
        norm64(h[t], x[t], l->norm);
        linear64(q[t], h[t], l->q, H * K, D, false);
        linear64(k[t], h[t], l->k, H * K, D, false);
        linear64(v[t], h[t], l->v, H * K, D, false);
    }
    memset(o, 0, sizeof o);
    for (int t = 0; t < T * H; t++) {
        const int row = t / H, head = t % H;
        double p[T], sum = 0.0;
        for (int j = 0; j < prompt; j++) {
            p[j] = (double)l->bias[bucket64(j - row) * H + head];
            for (int i = 0; i < K; i++) {
                p[j] += q[row][head * K + i] * k[j][head * K + i];
            }
            p[j] = exp(p[j]);
            sum += p[j];
        }
        for (int j = 0; j < prompt * K; j++) {
            o[row][head * K + j % K] += p[j / K] / sum * v[j / K][head * K + j % K];
        }
    }
    for (int t = 0; t < T; t++) {
        linear64(x[t], o[t], l->o, D, H * K, true);
    }
}

static void reference(double x[T][D], const int64_t *ids, int prompt) {
    double h[D], gate[F], up[F];
    for (int t = 0; t < T * D; t++) {
        x[t / D][t % D] = (double)table[ids[t / D] * D + t % D];
    }
    for (int i = 0; i < LAYERS; i++) {
        attend64(x, &layers[i], prompt);
        for (int t = 0; t < T; t++) {
            norm64(h, x[t], layers[i].norm2);
            linear64(gate, h, layers[i].gate, F, D, false);
            linear64(up, h, layers[i].up, F, D, false);
            for (int j = 0; j < F; j++) {
                gate[j] *= 0.5 * (1.0 + tanh(0.7978845608028654 * (gate[j] + 0.044715 * pow(gate[j], 3.0)))) * up[j];
            }
            linear64(x[t], gate, layers[i].down, D, F, true);
        }
    }
    for (int t = 0; t < T; t++) {
        norm64(h, x[t], final_norm);
        memcpy(x[t], h, sizeof h);
    }
}

static void make_ids(int64_t *ids) {
    for (int t = 0; t < T; t++) {
        ids[t] = (t * 7 + 3) % V;
    }
}

static void encode(float *hidden, int64_t *ids, int prompt, int device) {
    carry_umt5 *model;
    write_text(config);
    assert_ok(ctx, carry_umt5_open(ctx, &model, folder, device, CARRY_F32, T));
    assert_ok(ctx, carry_umt5_encode(model, carry_view_2d(hidden, CARRY_F32, T, D), carry_view_1d(ids, CARRY_I64, T),
                                     prompt));
    carry_umt5_free(model);
}

static void test_the_encoder_equals_float64_on_every_device(void **state) {
    (void)state;
    static double wanted[T][D];
    float hidden[T * D];
    int64_t ids[T];
    make_ids(ids);
    for (int device = 0; device < carry_device_count(); device++) {
        for (int prompt = 1; prompt <= T; prompt += 12) {
            double off = 0.0, size = 0.0;
            reference(wanted, ids, prompt);
            encode(hidden, ids, prompt, device);
            for (int i = 0; i < T * D; i++) {
                off += pow((double)hidden[i] - wanted[i / D][i % D], 2.0);
                size += pow(wanted[i / D][i % D], 2.0);
            }
            assert_true(sqrt(off / size) < 2e-6);
        }
    }
}

static void test_padding_is_not_seen(void **state) {
    (void)state;
    const int prompt = 9;
    float hidden[T * D], other[T * D];
    int64_t ids[T];
    make_ids(ids);
    encode(hidden, ids, prompt, 0);
    for (int t = prompt; t < T; t++) {
        ids[t] = 0;
    }
    encode(other, ids, prompt, 0);
    assert_memory_equal(hidden, other, (size_t)prompt * D * sizeof *hidden);
    assert_memory_not_equal(hidden, other, sizeof hidden);
}

static void test_buckets_are_those_of_t5(void **state) {
    (void)state;
    const int64_t distances[] = {0, -1, -7, -8, -15, -16, -127, -5000, 1, 7, 8, 127, 5000};
    const int64_t buckets[] = {0, 1, 7, 8, 9, 10, 15, 15, 17, 23, 24, 31, 31};
    for (size_t i = 0; i < sizeof distances / sizeof *distances; i++) {
        assert_int_equal(carry_umt5_bucket(distances[i], 32, 128), buckets[i]);
    }
}

static void refuse(const char *text, carry_status status, const char *words) {
    carry_umt5 *model;
    write_text(text);
    assert_refused(ctx, status, words, carry_umt5_open(ctx, &model, folder, 0, CARRY_F32, T));
    assert_null(model);
}

static void test_what_does_not_fit_is_named(void **state) {
    (void)state;
    carry_umt5 *model;
    float hidden[T * D];
    int64_t ids[T];
    refuse("{\"model_type\": \"t5\"}", CARRY_EUNSUPPORTED, "model_type");
    refuse("{\"model_type\": \"umt5\", \"vocab_size\": 50}", CARRY_EFORMAT, "d_model");
    char text[sizeof config];
    memcpy(text, config, sizeof config);
    *strstr(text, "24") = '3'; /* d_model 34 */
    refuse(text, CARRY_ESHAPE, "shared.weight");
    memcpy(text, config, sizeof config);
    *strstr(text, "gated-gelu") = 'x';
    refuse(text, CARRY_EUNSUPPORTED, "feed_forward_proj");
    write_text(config);
    assert_refused(ctx, CARRY_EUNSUPPORTED, "f32 on the CPU", carry_umt5_open(ctx, &model, folder, 0, CARRY_BF16, T));
    assert_ok(ctx, carry_umt5_open(ctx, &model, folder, 0, CARRY_F32, T - 1));
    make_ids(ids);
    const carry_tensor to = carry_view_2d(hidden, CARRY_F32, T, D);
    assert_refused(ctx, CARRY_ESHAPE, "37 tokens", carry_umt5_encode(model, to, carry_view_1d(ids, CARRY_I64, T), T));
    ids[3] = V;
    const carry_tensor fewer = carry_view_2d(hidden, CARRY_F32, 5, D);
    assert_refused(ctx, CARRY_ERANGE, "50", carry_umt5_encode(model, fewer, carry_view_1d(ids, CARRY_I64, 5), 5));
    carry_umt5_free(model);
}

/* Scores need memory for heads times the square of the tokens: for 65536 tokens 51 GB here. */
static void test_prompts_beyond_the_limit_are_refused_before_memory_is_taken(void **state) {
    static const int64_t lengths[] = {0, -1, CARRY_UMT5_TOKENS + 1, 65536, INT64_MAX};
    (void)state;
    carry_umt5 *model;
    write_text(config);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        assert_refused(ctx, CARRY_EUNSUPPORTED, "prompts of 1 to 4096 tokens are supported",
                       carry_umt5_open(ctx, &model, folder, 0, CARRY_F32, lengths[i]));
        assert_null(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_encoder_equals_float64_on_every_device),
        cmocka_unit_test(test_padding_is_not_seen),
        cmocka_unit_test(test_buckets_are_those_of_t5),
        cmocka_unit_test(test_what_does_not_fit_is_named),
        cmocka_unit_test(test_prompts_beyond_the_limit_are_refused_before_memory_is_taken),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
