/* Quantised weights of Hugging Face folders: the values read equal those of the original programs on the vectors of
   tests/make_quantised.py, and files that do not fit are refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "file/weights.h"
#include "support.h"

#define FOLDER CARRY_SOURCE "/tests/golden/quantised/"

static carry_ctx *ctx;
static char folder[64];

static int open_folder(void **state) {
    (void)state;
    ctx = support_ctx(2, NULL, NULL);
    (void)snprintf(folder, sizeof folder, "/tmp/carry-quantised-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int close_folder(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char path[CARRY_FILE_PATH];
        assert_ok(ctx, carry_file_in(ctx, path, folder, names[i]));
        (void)unlink(path);
    }
    (void)rmdir(folder);
    carry_ctx_free(ctx);
    return 0;
}

static unsigned char *read_golden(const char *name) {
    char path[512];
    (void)snprintf(path, sizeof path, FOLDER "%s.bin", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long bytes = ftell(file);
    rewind(file);
    unsigned char *data = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return data;
}

static void write_folder(const char *config, const carry_safetensors_item *items, int64_t count) {
    char path[CARRY_FILE_PATH];
    char text[512];
    (void)snprintf(text, sizeof text, "{\"quantization_config\": %s}", config);
    assert_ok(ctx, carry_file_in(ctx, path, folder, "config.json"));
    assert_ok(ctx, carry_file_replace(ctx, path, text, strlen(text)));
    assert_ok(ctx, carry_file_in(ctx, path, folder, "model.safetensors"));
    assert_ok(ctx, carry_safetensors_write(ctx, path, items, count, NULL));
}

/* The weights of the folder are a.weight, quantised, and b.weight, which is not; rows of a are as expected. */
static void expect_rows(const float *expected, int64_t rows, int64_t columns, int64_t step) {
    carry_weights weights;
    size_t bytes;
    assert_ok(ctx, carry_weights_open(ctx, &weights, folder));
    assert_int_equal(weights.count, 2);
    const carry_tensor *found = carry_weights_find(&weights, "a.weight");
    assert_non_null(found);
    assert_non_null(carry_weights_find(&weights, "b.weight"));
    assert_string_equal(carry_weights_name(&weights, 0)[0] == 'a' ? "a.weight" : "b.weight",
                        carry_weights_name(&weights, 0));
    const carry_quant_source *source = carry_quant_source_of(found); /* NULL: the file has blocks */
    const carry_quant_format *format = source != NULL ? source->format : carry_quant_format_of(found);
    assert_int_equal(found->shape[0], rows);
    assert_int_equal(found->shape[1], columns);
    assert_true(carry_quant_bytes(&bytes, format, rows, columns));
    void *blocks = malloc(bytes);
    float *row = malloc((size_t)columns * sizeof *row);
    assert_non_null(blocks);
    assert_non_null(row);
    if (source != NULL) {
        assert_ok(ctx, carry_quant_convert(ctx, source, blocks));
    } else {
        memcpy(blocks, found->data, bytes);
    }
    const carry_tensor W = carry_quant_view(blocks, format, rows, columns);
    assert_ok(ctx, carry_quant_check(ctx, "a.weight", &W));
    for (int64_t i = 0; i < rows; i += step) {
        carry_quant_decode(&W, i, 0, columns, row);
        for (int64_t j = 0; j < columns; j++) {
            assert_true(row[j] == expected[i / step * columns + j]);
        }
    }
    free(row);
    free(blocks);
    carry_weights_close(&weights);
}

static const float plain[4] = {1.0f, 2.0f, 3.0f, 4.0f};

static carry_safetensors_item item_of(const char *name, const void *data, carry_dtype dtype, int64_t rows,
                                      int64_t columns) {
    return (carry_safetensors_item){
        .name = name, .tensor = carry_view_2d((void *)(uintptr_t)data, dtype, rows, columns), .dtype = dtype};
}

static void test_int4_layouts(void **state) {
    (void)state;
    static const struct {
        const char *file, *config;
        bool is_awq;
    } cases[] = {
        {"awq_g128", "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128, \"version\": \"gemm\"}", true},
        {"awq_g32", "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32}", true},
        {"gptq_g128", "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, \"desc_act\": false}", false},
        {"gptq_g64",
         "{\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 64, \"packing_format\": "
         "\"auto_round:auto_gptq\"}",
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char *data = read_golden(cases[i].file);
        uint32_t head[3];
        memcpy(head, data, sizeof head);
        const int64_t in = head[0];
        const int64_t out = head[1];
        const int64_t groups = in / head[2];
        const unsigned char *zeros = data + 12 + in * out / 2;
        const unsigned char *scales = zeros + groups * out / 2;
        float *expected = malloc((size_t)(in * out) * sizeof *expected);
        int32_t *order = malloc((size_t)in * sizeof *order);
        assert_non_null(expected);
        assert_non_null(order);
        memcpy(expected, scales + groups * out * 2, (size_t)(in * out) * sizeof *expected);
        for (int64_t j = 0; j < in; j++) {
            order[j] = (int32_t)(j / head[2]);
        }
        carry_safetensors_item items[] = {
            item_of("a.qweight", data + 12, CARRY_I32, cases[i].is_awq ? in : in / 8, cases[i].is_awq ? out / 8 : out),
            item_of("a.qzeros", zeros, CARRY_I32, groups, out / 8),
            item_of("a.scales", scales, CARRY_F16, groups, out),
            item_of("b.weight", plain, CARRY_F32, 2, 2),
            {.name = "a.g_idx", .tensor = carry_view_1d(order, CARRY_I32, in), .dtype = CARRY_I32},
        };
        const int64_t count = cases[i].is_awq ? 4 : 5;
        write_folder(cases[i].config, items, count);
        expect_rows(expected, out, in, 1);
        if (!cases[i].is_awq) { /* sorted inputs are refused */
            carry_weights weights;
            order[0] = 1;
            write_folder(cases[i].config, items, count);
            assert_int_equal(carry_weights_open(ctx, &weights, folder), CARRY_EUNSUPPORTED);
            assert_non_null(strstr(carry_ctx_error(ctx), "desc_act"));
        }
        free(order);
        free(expected);
        free(data);
    }
}

static const char fp8[] = "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}";

static void test_fp8_blocks(void **state) {
    (void)state;
    unsigned char *data = read_golden("fp8_block");
    uint32_t head[2];
    memcpy(head, data, sizeof head);
    const int64_t rows = head[0];
    const int64_t columns = head[1];
    const unsigned char *scales = data + 8 + rows * columns;
    const carry_safetensors_item items[] = {item_of("a.weight", data + 8, CARRY_F8, rows, columns),
                                            item_of("a.weight_scale_inv", scales, CARRY_F32, 2, 2),
                                            item_of("b.weight", plain, CARRY_F32, 2, 2)};
    write_folder(fp8, items, 3);
    expect_rows((const float *)(const void *)(scales + 16), rows, columns, 13);
    free(data);
}

static void test_int8_rows(void **state) {
    (void)state;
    static const int8_t values[2][3] = {{-128, 0, 127}, {1, 2, 3}};
    static const float scales[2] = {0.5f, 0.0f};
    static const float expected[6] = {-64.0f, 0.0f, 63.5f, 0.0f, 0.0f, 0.0f};
    const carry_safetensors_item items[] = {item_of("a.weight", values, CARRY_I8, 2, 3),
                                            item_of("a.weight_scale", scales, CARRY_F32, 2, 1),
                                            item_of("b.weight", plain, CARRY_F32, 2, 2)};
    write_folder("{\"quant_method\": \"int8\"}", items, 3);
    expect_rows(expected, 2, 3, 1);
}

static void expect_refused(const char *config, const carry_safetensors_item *items, int64_t count, const char *why) {
    carry_weights weights;
    write_folder(config, items, count);
    assert_int_not_equal(carry_weights_open(ctx, &weights, folder), CARRY_OK);
    if (strstr(carry_ctx_error(ctx), why) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", carry_ctx_error(ctx), why);
    }
}

/* Every GGUF format in a folder: rows of blocks are used as they are. */
static void test_rows_of_blocks(void **state) {
    (void)state;
    enum { ROWS = 3, COLUMNS = 512 };
    float values[ROWS * COLUMNS];
    float expected[ROWS * COLUMNS];
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(values, CARRY_F32, ROWS * COLUMNS), 4, 0, 0.0f, 1.0f));
    for (int i = 0; carry_quant_format_at(i) != NULL; i++) {
        const carry_quant_format *format = carry_quant_format_at(i);
        const int64_t row = (int64_t)carry_quant_row_bytes(format, COLUMNS);
        unsigned char *blocks = malloc((size_t)(ROWS * row));
        char config[64];
        assert_non_null(blocks);
        format->encode(blocks, values, ROWS * COLUMNS / format->block);
        format->decode(expected, blocks, ROWS * COLUMNS / format->block);
        (void)snprintf(config, sizeof config, "{\"quant_method\": \"blocks\", \"format\": \"%s\"}", format->name);
        const carry_safetensors_item items[] = {item_of("a.weight", blocks, CARRY_I8, ROWS, row),
                                                item_of("b.weight", plain, CARRY_F32, 2, 2)};
        if (carry_quant_is_gguf(format)) {
            write_folder(config, items, 2);
            expect_rows(expected, ROWS, COLUMNS, 1);
        } else {
            expect_refused(config, items, 2, "\"q5_k\" or \"q6_k\"");
        }
        free(blocks);
    }
}

static void test_what_does_not_fit_is_named(void **state) {
    (void)state;
    static const uint8_t bytes[4 * 4] = {0};
    static const int32_t words[64] = {0};
    const carry_safetensors_item wide[] = {item_of("a.weight", bytes, CARRY_F8, 4, 4),
                                           item_of("a.weight_scale_inv", words, CARRY_F32, 1, 2)};
    expect_refused(fp8, wide, 2, "a.weight_scale_inv has shape [1, 2] (f32): expected [1, 1]");
    expect_refused(fp8, wide, 1, "has no tensor a.weight_scale_inv");
    const carry_safetensors_item rows[] = {item_of("a.weight", bytes, CARRY_I8, 1, 16)};
    expect_refused("{\"quant_method\": \"blocks\", \"format\": \"q4_0\"}", rows, 1, "blocks of 18 bytes (q4_0)");
    expect_refused("{\"quant_method\": \"blocks\"}", rows, 1, "\"format\" of quantization_config is missing");
    expect_refused("null", wide, 1, "no \"quantization_config\"");
    expect_refused("{\"quant_method\": \"hqq\"}", wide, 2, "expected fp8, int8, blocks, awq, gptq or auto-round");
    expect_refused("{\"quant_method\": \"fp8\"}", wide, 2, "expected [128, 128]");
    expect_refused("{\"quant_method\": \"awq\", \"bits\": 8, \"group_size\": 128}", wide, 2, "expected 4");
    expect_refused("{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 0}", wide, 2, "group_size");
    expect_refused("{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32, \"version\": \"gemv\"}", wide, 2,
                   "gemm");
    expect_refused("{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"checkpoint_format\": \"marlin\"}",
                   wide, 2, "gptq_v2");
    expect_refused("{\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 32}", wide, 2,
                   "auto_round:auto_awq");
    static const char awq[] = "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32}";
    carry_safetensors_item int4[] = {
        item_of("a.qweight", words, CARRY_I32, 32, 1), item_of("a.qzeros", words, CARRY_I32, 1, 1),
        item_of("a.scales", words, CARRY_F32, 1, 8), item_of("a.weight", words, CARRY_F32, 8, 4)};
    expect_refused(awq, int4, 4, "is there quantised, as qweight, and not");
    expect_refused(awq, int4, 2, "has no tensor a.scales");
    int4[1] = item_of("a.qzeros", words, CARRY_I32, 2, 1);
    expect_refused(awq, int4, 3, "a.qzeros has shape [2, 1]");
    int4[0] = item_of("a.qweight", words, CARRY_I32, 31, 1);
    expect_refused(awq, int4, 3, "whole groups of 32");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int4_layouts),
        cmocka_unit_test(test_fp8_blocks),
        cmocka_unit_test(test_int8_rows),
        cmocka_unit_test(test_rows_of_blocks),
        cmocka_unit_test(test_what_does_not_fit_is_named),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
