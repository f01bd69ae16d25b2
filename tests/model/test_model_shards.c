/* Folders of several files: read file by file with a message for each; whole tensors and experts in pieces keep the
   bits of the files if they are stored in 16 bits; a missing or truncated file is named before any weight is read. */
#include "hybrid_support.h"

#include <unistd.h>

#include "core/file.h"
#include "file/safetensors.h"

#define FILES 3

static char folder[64];
static char said[8192]; /* all messages of the context */

static const char *in_folder(const char *name) {
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *shard(int index) {
    static char name[32];
    (void)snprintf(name, sizeof name, "part-%d.safetensors", index);
    return name;
}

static int make_folder(void **unused) {
    (void)unused;
    (void)snprintf(folder, sizeof folder, "/tmp/carry-shards-XXXXXX");
    said[0] = '\0';
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **unused) {
    (void)unused;
    for (int i = 0; i < FILES; i++) {
        (void)unlink(in_folder(shard(i)));
    }
    (void)unlink(in_folder("config.json"));
    (void)unlink(in_folder("model.safetensors"));
    (void)unlink(in_folder("model.safetensors.index.json"));
    return rmdir(folder);
}

static void keep_message(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", line);
}

/* The items of a model; each half of each expert is a tensor, as in published files. */
static int64_t list_items(const carry_lm *lm, carry_safetensors_item *items, char (*names)[96], int64_t most) {
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    int64_t count = 0;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_parameter *p = &lm->own.parameter[i];
        const int64_t halves = strstr(p->name, "gate_up_proj") != NULL ? 2 : 1;
        if (p->rank != 3 || !p->may_be_narrow) {
            assert_true(count < most);
            items[count++] = (carry_safetensors_item){
                .name = p->name,
                .tensor = carry_view(lm->own.weights + p->offset, CARRY_F32, p->rank, p->shape),
                .dtype = CARRY_BF16};
            continue;
        }
        const int64_t rows = p->shape[1] / halves;
        const int64_t each = rows * p->shape[2];
        for (int64_t j = 0; j < p->shape[0] * halves; j++) {
            const int length = (int)(strstr(p->name, "experts.") - p->name) + (int)strlen("experts.");
            assert_true(count < most);
            (void)snprintf(names[count], sizeof names[count], "%.*s%d.%s.weight", length, p->name, (int)(j / halves),
                           parts[halves == 2 ? j % 2 : 2]);
            items[count] = (carry_safetensors_item){
                .name = names[count],
                .tensor = carry_view_2d(lm->own.weights + p->offset + j * each, CARRY_F32, rows, p->shape[2]),
                .dtype = CARRY_BF16};
            count++;
        }
    }
    return count;
}

/* Item i is in file i % FILES. */
static void write_files(carry_ctx *ctx, const carry_lm *lm) {
    enum { MOST = 512 };
    static carry_safetensors_item items[MOST], own[MOST];
    static char names[MOST][96], text[65536];
    const int64_t count = list_items(lm, items, names, MOST);
    size_t used = (size_t)snprintf(text, sizeof text, "{\"weight_map\": {");
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_BF16)); /* config.json */
    (void)unlink(in_folder("model.safetensors"));
    for (int file = 0; file < FILES; file++) {
        int64_t of_file = 0;
        for (int64_t i = file; i < count; i += FILES) {
            own[of_file++] = items[i];
            used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\": \"%s\"", used > 20 ? ", " : "",
                                     items[i].name, shard(file));
        }
        assert_ok(ctx, carry_safetensors_write(ctx, in_folder(shard(file)), own, of_file, NULL));
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "}}");
    assert_ok(ctx, carry_file_replace(ctx, in_folder("model.safetensors.index.json"), text, used));
}

static carry_lm *written_model(carry_ctx *ctx) {
    carry_lm *lm = model(ctx, hybrid(8)); /* qwen3_5_moe */
    write_files(ctx, lm);
    return lm;
}

static carry_ctx *talking_ctx(void) {
    carry_ctx *ctx;
    const carry_rates_table rates = support_rates();
    const carry_ctx_options options = {CARRY_INIT(carry_ctx_options), .threads = 2, .log_level = CARRY_LOG_INFO,
                                       .log = keep_message};
    assert_int_equal(carry_ctx_new(&ctx, &options), CARRY_OK);
    assert_true(carry_rates_put(ctx, &rates));
    return ctx;
}

static void weights_are_those_of_the_files(void **unused) {
    (void)unused;
    carry_ctx *ctx = talking_ctx();
    carry_lm *lm = written_model(ctx);
    carry_lm *back;
    carry_lm *narrow;
    assert_ok(ctx, carry_lm_load(ctx, &back, folder, 0));
    assert_non_null(strstr(said, "read 1 of 3 files"));
    assert_non_null(strstr(said, "read 3 of 3 files"));
    assert_ok(ctx, carry_lm_new_narrow(ctx, &narrow, &lm->config, 0, CARRY_BF16));
    assert_ok(ctx, carry_lm_load_weights(narrow, folder));
    assert_ok(ctx, carry_parameters_want_low(&back->own, CARRY_BF16));
    for (int64_t i = 0; i < lm->own.count; i++) { /* half a unit of the last of 8 bits */
        assert_true(fabsf(lm->own.weights[i] - back->own.weights[i]) <= fabsf(lm->own.weights[i]) * 0x1p-8f);
    }
    assert_memory_equal(narrow->own.low, back->own.low, (size_t)lm->own.count * sizeof(uint16_t));
    carry_lm_free(narrow);
    carry_lm_free(back);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void damaged_files_are_named_first(void **unused) {
    (void)unused;
    carry_ctx *ctx = talking_ctx();
    carry_lm *lm = written_model(ctx);
    carry_lm *back;
    assert_int_equal(truncate(in_folder(shard(2)), 3000), 0);
    assert_refused(ctx, CARRY_EFORMAT, shard(2), carry_lm_load(ctx, &back, folder, 0));
    assert_int_equal(unlink(in_folder(shard(1))), 0);
    assert_refused(ctx, CARRY_ENOTFOUND, shard(1), carry_lm_open(ctx, &back, folder, 0));
    assert_null(strstr(said, "of 3 files")); /* nothing was read */
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(weights_are_those_of_the_files, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(damaged_files_are_named_first, make_folder, remove_folder),
    };
    return cmocka_run_group_tests_name("model_shards", tests, NULL, NULL);
}
