/* GGUF files: a file written here reads back the same; a file cut off at any byte, and any number that does not fit, is
   refused with a message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/gguf.h"
#include "file/gguf_model.h"
#include "support.h"

static carry_ctx *ctx;

static int open_context(void **state) {
    (void)state;
    ctx = support_ctx(1, NULL, NULL);
    return 0;
}

static int close_context(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

typedef struct bytes {
    _Alignas(64) unsigned char at[8192];
    size_t length;
} bytes;

static void put(bytes *b, uint64_t value, int count) {
    for (int i = 0; i < count; i++) {
        b->at[b->length++] = (unsigned char)(i < 8 ? value >> (8 * i) : 0);
    }
}

static void put_text(bytes *b, const char *text) {
    put(b, strlen(text), 8);
    memcpy(b->at + b->length, text, strlen(text));
    b->length += strlen(text);
}

static void put_integer(bytes *b, const char *key, uint64_t value) {
    put_text(b, key);
    put(b, CARRY_GGUF_U32, 4);
    put(b, value, 4);
}

typedef struct choice {
    uint64_t version, alignment, rank, columns, type, second, tensors;
} choice;

static const choice usual = {
    .version = 3, .alignment = 64, .rank = 2, .columns = 64, .type = 8, .second = 192, .tensors = 2};

/* Two tensors: w of 2 rows in Q8_0 (unless chosen otherwise), and b of 4 numbers in F32. */
static void make_file(bytes *b, const choice *c) {
    memset(b, 0, sizeof *b);
    memcpy(b->at, "GGUF", 4);
    b->length = 4;
    put(b, c->version, 4);
    put(b, c->tensors, 8);
    put(b, 5, 8);
    put_integer(b, "general.alignment", c->alignment);
    put_text(b, "name");
    put(b, CARRY_GGUF_TEXT, 4);
    put_text(b, "a name");
    put_text(b, "list");
    put(b, CARRY_GGUF_ARRAY, 4);
    put(b, CARRY_GGUF_TEXT, 4);
    put(b, 2, 8);
    put_text(b, "one");
    put_text(b, "");
    put_text(b, "half");
    put(b, CARRY_GGUF_F32, 4);
    put(b, 0x3f000000, 4);
    put_text(b, "signed");
    put(b, CARRY_GGUF_ARRAY, 4);
    put(b, CARRY_GGUF_I16, 4);
    put(b, 2, 8);
    put(b, 0xfffe0007, 4);
    put_text(b, "w");
    put(b, c->rank, 4);
    put(b, c->columns, 8);
    put(b, 2, 8);
    put(b, c->type, 4);
    put(b, 0, 8);
    put_text(b, "b");
    put(b, 1, 4);
    put(b, 4, 8);
    put(b, 0, 4);
    put(b, c->second, 8);
    while (b->length % 64 != 0) {
        put(b, 0, 1);
    }
    for (int block = 0; block < 4; block++) { /* 1.0 times 0, 1, 2, ... */
        put(b, 0x3c00, 2);
        for (int i = 0; i < 32; i++) {
            put(b, (uint64_t)(block + i), 1);
        }
    }
    put(b, 0, 192 - 136);
    while (b->length % 64 != 0) {
        put(b, 0, 1);
    }
    for (int i = 0; i < 4; i++) {
        put(b, 0x3f800000, 4);
    }
}

static void test_what_was_written_is_read(void **state) {
    (void)state;
    static bytes b;
    carry_gguf file;
    int64_t integer;
    double number;
    carry_gguf_text text;
    make_file(&b, &usual);
    assert_ok(ctx, carry_gguf_parse(ctx, &file, b.at, b.length));
    assert_true(carry_gguf_integer(&file, "general.alignment", &integer));
    assert_int_equal(integer, 64);
    assert_true(carry_gguf_number(&file, "half", &number));
    assert_true(number == 0.5);
    assert_false(carry_gguf_integer(&file, "half", &integer));
    assert_true(carry_gguf_string(&file, "name", &text));
    assert_int_equal(text.length, 6);
    assert_memory_equal(text.bytes, "a name", 6);
    const carry_gguf_item *list = carry_gguf_find(&file, "list");
    assert_int_equal(list->count, 2);
    const unsigned char *at = list->at;
    assert_int_equal(carry_gguf_next_text(&at).length, 3);
    assert_int_equal(carry_gguf_next_text(&at).length, 0);
    assert_int_equal(carry_gguf_integer_at(carry_gguf_find(&file, "signed"), 0), 7);
    assert_int_equal(carry_gguf_integer_at(carry_gguf_find(&file, "signed"), 1), -2);
    assert_null(carry_gguf_find(&file, "nam"));
    const carry_tensor *w = carry_safetensors_find(&file.tensors, "w");
    assert_non_null(w);
    assert_ptr_equal(carry_quant_format_of(w), &carry_quant_q8_0);
    assert_int_equal(w->shape[0], 2);
    assert_int_equal(w->shape[1], 64);
    float row[64];
    carry_quant_decode(w, 1, 0, 64, row);
    for (int i = 0; i < 64; i++) {
        assert_true(row[i] == (float)(2 + i / 32 + i % 32));
    }
    const carry_tensor *vector = carry_safetensors_find(&file.tensors, "b");
    assert_non_null(vector);
    assert_int_equal(vector->dtype, CARRY_F32);
    assert_true(((const float *)vector->data)[3] == 1.0f);
    carry_gguf_close(&file);
}

static void test_every_shorter_file_is_refused(void **state) {
    (void)state;
    static bytes b;
    make_file(&b, &usual);
    for (size_t length = 0; length < b.length; length++) {
        carry_gguf file;
        assert_int_not_equal(carry_gguf_parse(ctx, &file, b.at, length), CARRY_OK);
        assert_true(carry_ctx_error(ctx)[0] != 0);
    }
}

static void expect_refused(choice c, const char *why) {
    static bytes b;
    carry_gguf file;
    make_file(&b, &c);
    assert_int_not_equal(carry_gguf_parse(ctx, &file, b.at, b.length), CARRY_OK);
    if (strstr(carry_ctx_error(ctx), why) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", carry_ctx_error(ctx), why);
    }
}

static void test_numbers_that_do_not_fit_are_named(void **state) {
    (void)state;
    choice c = usual;
    c.version = 1;
    expect_refused(c, "version 1: expected 2 or 3");
    c = usual;
    c.alignment = 48;
    expect_refused(c, "general.alignment is 48");
    c = usual;
    c.rank = 5;
    expect_refused(c, "rank 5");
    c = usual;
    c.columns = 48;
    expect_refused(c, "48 columns in Q8_0: expected a multiple of 32");
    c = usual;
    c.columns = (uint64_t)1 << 62;
    expect_refused(c, "too large");
    c = usual;
    c.columns = UINT64_MAX;
    expect_refused(c, "has a size of");
    c = usual;
    c.type = 10;
    expect_refused(c, "type 10 (Q2_K): expected F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K or Q6_K");
    c = usual;
    c.type = 77;
    expect_refused(c, "type 77 (unknown)");
    c = usual;
    c.second = 100;
    expect_refused(c, "expected a multiple of 64");
    c = usual;
    c.second = 64;
    expect_refused(c, "share byte 64");
    c = usual;
    c.second = UINT64_MAX;
    expect_refused(c, "claims 16 bytes");
    c = usual;
    c.tensors = UINT64_MAX;
    expect_refused(c, "do not fit in it");
}

static void test_an_unknown_architecture_is_named(void **state) {
    (void)state;
    static bytes b;
    carry_gguf file;
    carry_gguf_sizes sizes;
    make_file(&b, &usual);
    assert_ok(ctx, carry_gguf_parse(ctx, &file, b.at, b.length));
    assert_int_equal(carry_gguf_take_sizes(ctx, &file, &sizes), CARRY_EUNSUPPORTED);
    assert_non_null(strstr(carry_ctx_error(ctx), "expected qwen35"));
    carry_gguf_close(&file);
}

static void test_heads_return_to_their_groups(void **state) {
    (void)state;
    /* Two groups of three heads of two rows after one row. The file has heads 0, 3, 1, 4, 2, 5. */
    const carry_head_order order = {.first = 1, .groups = 2, .each = 3, .size = 2};
    static const int64_t there[] = {0, 1, 2, 5, 6, 9, 10, 3, 4, 7, 8, 11, 12};
    for (int64_t i = 0; i < 13; i++) {
        assert_int_equal(carry_head_place(&order, i), there[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_written_is_read),
        cmocka_unit_test(test_every_shorter_file_is_refused),
        cmocka_unit_test(test_numbers_that_do_not_fit_are_named),
        cmocka_unit_test(test_an_unknown_architecture_is_named),
        cmocka_unit_test(test_heads_return_to_their_groups),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
