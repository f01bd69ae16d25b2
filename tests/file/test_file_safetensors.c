/* Reading safetensors: a written file reads back the same; a file cut off at any byte, or with a header that does not
   fit, is refused. */
#include "support.h"

#include <unistd.h>

#include "file/safetensors.h"

static size_t build(unsigned char *bytes, const char *header, size_t payload) {
    size_t length = strlen(header);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    }
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < payload; i++) {
        bytes[8 + length + i] = (unsigned char)i;
    }
    return 8 + length + payload;
}

/* Spaces at the end, so that the data is aligned. */
static const char good[] =
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},\"b\":{\"dtype\":\"BF16\",\"shape\":[3],"
    "\"data_offsets\":[16,22]},\"__metadata__\":{\"a\":\"{\\\"x\\\": 1}\"}}         ";

static void what_is_written_is_read(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    _Alignas(8) unsigned char bytes[512];
    carry_safetensors file;
    assert_int_equal(strlen(good) % 4, 0);
    assert_ok(ctx, carry_safetensors_parse(ctx, &file, bytes, build(bytes, good, 22)));
    assert_int_equal(file.count, 2);
    const carry_tensor *a = carry_safetensors_find(&file, "a");
    assert_non_null(a);
    assert_true(a->rank == 2 && a->shape[0] == 2 && a->shape[1] == 2 && a->stride[0] == 2 && a->dtype == CARRY_F32);
    assert_ptr_equal(a->data, bytes + 8 + strlen(good));
    assert_true(carry_safetensors_find(&file, "b")->dtype == CARRY_BF16);
    assert_null(carry_safetensors_find(&file, "c"));
    assert_string_equal(carry_safetensors_metadata(&file, "a"), "{\"x\": 1}");
    carry_safetensors_close(&file);
    carry_ctx_free(ctx);
}

static void a_file_cut_off_at_any_byte_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    _Alignas(8) unsigned char bytes[512];
    size_t whole = build(bytes, good, 22);
    for (size_t length = 0; length < whole; length++) {
        carry_safetensors file;
        assert_true(carry_safetensors_parse(ctx, &file, bytes, length) != CARRY_OK);
        assert_int_equal(file.count, 0);
    }
    carry_ctx_free(ctx);
}

static void claims_that_do_not_fit_are_refused(void **unused) {
    (void)unused;
    static const char twice[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                                "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    static const char overlap[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                  "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}  ";
    static const char *const bad[] = {
        "",
        "[]",
        "{",
        "{}x",
        "{\"a\":1}",
        "{\"a\":{}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[20,28]}}",
        "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
        twice,
        overlap,
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}",
        "{\"__metadata__\":{\"k\":1}}",
        "{\"a\\q\":{}}"};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        _Alignas(8) unsigned char bytes[512];
        carry_safetensors file;
        carry_status status = carry_safetensors_parse(ctx, &file, bytes, build(bytes, bad[i], 24));
        if (status == CARRY_OK || carry_ctx_error(ctx)[0] == '\0') {
            fail_msg("accepted: %s", bad[i]);
        }
    }
    assert_refused(ctx, CARRY_ENOTFOUND, "cannot be read",
                   carry_safetensors_open(ctx, &(carry_safetensors){0}, "/nowhere/at/all"));
    carry_ctx_free(ctx);
}

/* As the safetensors library does: every byte belongs to one tensor. */
static void bytes_in_no_tensor_are_refused(void **unused) {
    (void)unused;
    static const char hole[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                               "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}    ";
    static const char late[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}          ";
    static const char empty[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
                                "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                                "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}        ";
    static const char inside[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}     ";
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    _Alignas(8) unsigned char bytes[512];
    carry_safetensors file;
    assert_refused(ctx, CARRY_EFORMAT, "2 bytes after the last tensor 'b' are in no tensor",
                   carry_safetensors_parse(ctx, &file, bytes, build(bytes, good, 24)));
    assert_refused(ctx, CARRY_EFORMAT, "8 bytes after the last tensor '' are in no tensor",
                   carry_safetensors_parse(ctx, &file, bytes, build(bytes, "{}      ", 8)));
    assert_refused(ctx, CARRY_EFORMAT, "bytes 4 to 8, before the tensor 'b', are in no tensor",
                   carry_safetensors_parse(ctx, &file, bytes, build(bytes, hole, 12)));
    assert_refused(ctx, CARRY_EFORMAT, "bytes 0 to 4, before the tensor 'a', are in no tensor",
                   carry_safetensors_parse(ctx, &file, bytes, build(bytes, late, 8)));
    assert_ok(ctx, carry_safetensors_parse(ctx, &file, bytes, build(bytes, empty, 4)));
    carry_safetensors_close(&file);
    assert_refused(ctx, CARRY_EFORMAT, "share bytes",
                   carry_safetensors_parse(ctx, &file, bytes, build(bytes, inside, 8)));

    char path[] = "/tmp/carry-safetensors-XXXXXX";
    const int made = mkstemp(path);
    assert_true(made >= 0);
    const size_t whole = build(bytes, good, 24);
    assert_int_equal(write(made, bytes, whole), whole);
    assert_int_equal(close(made), 0);
    assert_refused(ctx, CARRY_EFORMAT, path, carry_safetensors_open(ctx, &file, path));
    assert_int_equal(unlink(path), 0);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(a_file_cut_off_at_any_byte_is_refused),
        cmocka_unit_test(claims_that_do_not_fit_are_refused),
        cmocka_unit_test(bytes_in_no_tensor_are_refused),
    };
    return cmocka_run_group_tests_name("file/safetensors", tests, NULL, NULL);
}
