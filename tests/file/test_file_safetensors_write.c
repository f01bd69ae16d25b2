/* Writing safetensors: a written file reads back the same, in any order of its tensors; a file cut off at any byte is
   refused; a failure leaves the old file. */
#include "support.h"

#include <unistd.h>

#include "core/file.h"
#include "file/safetensors.h"

static char folder[64];
static char path[128];

static int make_folder(void **unused) {
    (void)unused;
    (void)snprintf(folder, sizeof folder, "/tmp/carry-safetensors-XXXXXX");
    (void)snprintf(path, sizeof path, "%s/x.safetensors", mkdtemp(folder) != NULL ? folder : "");
    return 0;
}

static int remove_folder(void **unused) {
    (void)unused;
    (void)unlink(path);
    return rmdir(folder); /* nothing else was left in it */
}

static float numbers[6] = {1.0f, -2.5f, 3.0f, 1e-3f, 65504.0f, -0.0f};
static int64_t whole[3] = {-1, 5, INT64_MAX};

static int64_t make_items(carry_safetensors_item items[6]) {
    static uint16_t low[3] = {0x3f80, 0x4000, 0xbf80};
    items[0] = (carry_safetensors_item){"z", carry_view_2d(numbers, CARRY_F32, 2, 3), CARRY_F32};
    items[1] = (carry_safetensors_item){"odd", carry_view_1d(low, CARRY_BF16, 3), CARRY_BF16};
    items[2] = (carry_safetensors_item){"a \"quoted\" name", carry_view_1d(numbers, CARRY_F32, 5), CARRY_F16};
    items[3] = (carry_safetensors_item){"i", carry_view_1d(whole, CARRY_I64, 3), CARRY_I64};
    items[4] = (carry_safetensors_item){"scalar", carry_view(numbers, CARRY_F32, 0, NULL), CARRY_F32};
    items[5] = (carry_safetensors_item){"empty", carry_view_2d(numbers, CARRY_F32, 0, 4), CARRY_F32};
    return 6;
}

static const char *const notes[] = {"format", "pt", "say", "\"x\"\n", NULL};

static void check(carry_ctx *ctx) {
    carry_safetensors file;
    assert_ok(ctx, carry_safetensors_open(ctx, &file, path));
    assert_int_equal(file.count, 6);
    assert_string_equal(carry_safetensors_metadata(&file, "say"), "\"x\"\n");
    const carry_tensor *z = carry_safetensors_find(&file, "z");
    assert_true(z->dtype == CARRY_F32 && z->rank == 2 && z->shape[0] == 2 && z->shape[1] == 3);
    assert_memory_equal(z->data, numbers, sizeof numbers);
    const carry_tensor *half = carry_safetensors_find(&file, "a \"quoted\" name");
    assert_int_equal(half->dtype, CARRY_F16);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(((const uint16_t *)half->data)[i], carry_f16_from_f32(numbers[i]));
    }
    assert_memory_equal(carry_safetensors_find(&file, "i")->data, whole, sizeof whole);
    assert_true(carry_safetensors_find(&file, "scalar")->rank == 0);
    assert_true(carry_safetensors_find(&file, "empty")->shape[0] == 0);
    carry_safetensors_close(&file);
}

static void what_is_written_is_read_in_any_order(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_safetensors_item items[6];
    char *texts[2];
    size_t lengths[2];
    for (int turn = 0; turn < 2; turn++) {
        int64_t count = make_items(items);
        for (int i = 0; turn == 1 && i < 3; i++) {
            carry_safetensors_item swap = items[i];
            items[i] = items[5 - i];
            items[5 - i] = swap;
        }
        assert_ok(ctx, carry_safetensors_write(ctx, path, items, count, notes));
        check(ctx);
        assert_ok(ctx, carry_file_read(ctx, &texts[turn], &lengths[turn], path, 1 << 20));
    }
    assert_int_equal(lengths[0], lengths[1]);
    assert_memory_equal(texts[0], texts[1], lengths[0]);
    uint64_t header = 0;
    memcpy(&header, texts[0], sizeof header);
    assert_int_equal(header % 8, 0);
    free(texts[0]);
    free(texts[1]);
    carry_ctx_free(ctx);
}

static void a_file_cut_off_at_any_byte_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_safetensors_item items[6];
    assert_ok(ctx, carry_safetensors_write(ctx, path, items, make_items(items), notes));
    char *text;
    size_t length;
    assert_ok(ctx, carry_file_read(ctx, &text, &length, path, 1 << 20));
    for (size_t cut = 0; cut < length; cut++) {
        carry_safetensors file;
        void *copy = aligned_alloc(8, (cut + 8) / 8 * 8);
        assert_non_null(copy);
        memcpy(copy, text, cut);
        assert_true(carry_safetensors_parse(ctx, &file, copy, cut) != CARRY_OK);
        free(copy);
    }
    free(text);
    carry_ctx_free(ctx);
}

static void a_large_tensor_is_converted_in_blocks(void **unused) {
    (void)unused;
    enum { COUNT = 65536 * 2 + 7 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    float *values = malloc(COUNT * sizeof *values);
    assert_non_null(values);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(values, CARRY_F32, COUNT), 1, 2, 0.0f, 3.0f));
    const carry_safetensors_item item = {"x", carry_view_1d(values, CARRY_F32, COUNT), CARRY_BF16};
    assert_ok(ctx, carry_safetensors_write(ctx, path, &item, 1, NULL));
    carry_safetensors file;
    assert_ok(ctx, carry_safetensors_open(ctx, &file, path));
    const uint16_t *got = carry_safetensors_find(&file, "x")->data;
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(got[i], carry_bf16_from_f32(values[i]));
    }
    carry_safetensors_close(&file);
    free(values);
    carry_ctx_free(ctx);
}

static void what_cannot_be_written_leaves_the_old_file(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_safetensors_item items[6];
    assert_ok(ctx, carry_safetensors_write(ctx, path, items, make_items(items), notes));
    items[1].name = "z";
    items[1].dtype = CARRY_F32;
    assert_refused(ctx, CARRY_EARGUMENT, "'z' would be written twice",
                   carry_safetensors_write(ctx, path, items, 6, notes));
    (void)make_items(items);
    items[3].dtype = CARRY_F32;
    assert_refused(ctx, CARRY_EDTYPE, "i is i64", carry_safetensors_write(ctx, path, items, 6, notes));
    (void)make_items(items);
    items[0].tensor.stride[0] = 4;
    assert_refused(ctx, CARRY_ESTRIDE, "z must be packed", carry_safetensors_write(ctx, path, items, 6, notes));
    (void)make_items(items);
    items[0].name = "__metadata__";
    assert_refused(ctx, CARRY_EARGUMENT, "__metadata__", carry_safetensors_write(ctx, path, items, 6, notes));
    (void)make_items(items);
    assert_refused(ctx, CARRY_EIO, "cannot be written",
                   carry_safetensors_write(ctx, "/proc/nowhere/x.safetensors", items, 6, notes));
    assert_refused(ctx, CARRY_EIO, "not a regular file", carry_safetensors_write(ctx, folder, items, 6, notes));
    check(ctx);
    carry_ctx_free(ctx);
}

/* Once a write has failed, no later call produces a file. */
static void what_was_abandoned_is_not_committed(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_file_writing writing;
    assert_ok(ctx, carry_file_begin(ctx, &writing, path));
    assert_ok(ctx, carry_file_write(ctx, &writing, "abc", 3));
    carry_file_abandon(&writing);
    assert_int_equal(access(writing.beside, F_OK), -1);
    assert_refused(ctx, CARRY_EIO, "cannot be written", carry_file_write(ctx, &writing, "abc", 3));
    assert_refused(ctx, CARRY_EIO, "cannot be written", carry_file_commit(ctx, &writing));
    assert_int_equal(access(path, F_OK), 0); /* the file of an earlier test */
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_in_any_order),
        cmocka_unit_test(a_file_cut_off_at_any_byte_is_refused),
        cmocka_unit_test(a_large_tensor_is_converted_in_blocks),
        cmocka_unit_test(what_cannot_be_written_leaves_the_old_file),
        cmocka_unit_test(what_was_abandoned_is_not_committed),
    };
    return cmocka_run_group_tests_name("file/safetensors_write", tests, make_folder, remove_folder);
}
