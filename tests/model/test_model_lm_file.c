/* A model's folder: a saved model loads again, from one file or several; files that do not fit are refused by name;
   folders made by flash-linear-attention load, key for key, and are saved with the same keys. */
#include "lm_support.h"

#include <unistd.h>

#include "core/file.h"
#include "file/safetensors.h"

static char folder[64];

static int make_folder(void **unused) {
    (void)unused;
    (void)snprintf(folder, sizeof folder, "/tmp/carry-model-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static const char *in_folder(const char *name) {
    static char path[2][256];
    static int turn;
    turn = 1 - turn;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static int remove_folder(void **unused) {
    (void)unused;
    static const char *const names[] = {"config.json", "model.safetensors", "model.safetensors.index.json",
                                        "one.safetensors", "two.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)unlink(in_folder(names[i]));
    }
    return rmdir(folder);
}

static void what_is_saved_loads_again(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int i = 0; i < 4; i++) {
        carry_lm_config config = small(i < 2 ? &carry_lm_family_gated_deltanet : &carry_lm_family_delta_net);
        config.tie_word_embeddings = i % 2 == 1;
        config.delta.use_gate = i != 1;
        carry_lm *lm = model(ctx, config);
        carry_lm *back;
        assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
        assert_ok(ctx, carry_lm_load(ctx, &back, folder, 0));
        assert_int_equal(lm->own.count, back->own.count);
        assert_memory_equal(lm->own.weights, back->own.weights, (size_t)lm->own.count * sizeof(float));
        carry_lm_free(back);
        for (carry_dtype dtype = CARRY_BF16; dtype <= CARRY_F16; dtype++) {
            assert_ok(ctx, carry_lm_save(lm, folder, dtype));
            assert_ok(ctx, carry_lm_load(ctx, &back, folder, 0));
            /* half a unit of the last of 8 or 11 bits, and f16's spacing below 6e-5 */
            for (int64_t j = 0; j < lm->own.count; j++) {
                float off = fabsf(lm->own.weights[j] - back->own.weights[j]);
                assert_true(off <= fabsf(lm->own.weights[j]) * (dtype == CARRY_BF16 ? 0x1p-8f : 0x1p-11f) + 6e-8f);
            }
            carry_lm_free(back);
        }
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

static void start_values_follow_the_rules(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config config = small(&carry_lm_family_gated_deltanet);
    config.vocab_size = 5000;
    carry_lm_fla_of(&config)->num_v_heads = 64;
    carry_lm *lm;
    assert_ok(ctx, carry_lm_new(ctx, &lm, &config, 0));
    assert_ok(ctx, carry_lm_init(lm, 3));
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_lm_parameter *p = &lm->own.parameter[i];
        const float *w = lm->own.weights + p->offset;
        bool rule = strstr(p->name, "A_log") != NULL || strstr(p->name, "dt_bias") != NULL;
        assert_int_equal(p->decays, !rule);
        double squares = 0.0;
        for (int64_t j = 0; j < p->count; j++) {
            squares += (double)w[j] * (double)w[j];
            double step = log1p(exp((double)w[j]));
            assert_true(strstr(p->name, "norm") == NULL || w[j] == 1.0f);
            assert_true(strstr(p->name, "A_log") == NULL || w[j] <= logf(16.0f));
            assert_true(strstr(p->name, "dt_bias") == NULL || (step > 0.00099 && step < 0.101));
        }
        if (p->start == CARRY_LM_NORMAL) { /* five deviations of 1/sqrt(2 count) are allowed */
            double deviation = sqrt(squares / (double)p->count);
            assert_true(fabs(deviation / 0.02 - 1.0) <= 5.0 / sqrt(2.0 * (double)p->count));
        }
    }
    carry_lm *other;
    assert_ok(ctx, carry_lm_new(ctx, &other, &config, 0));
    assert_ok(ctx, carry_lm_init(other, 3));
    assert_memory_equal(lm->own.weights, other->own.weights, (size_t)lm->own.count * sizeof(float));
    assert_ok(ctx, carry_lm_init(other, 4));
    assert_true(memcmp(lm->own.weights, other->own.weights, (size_t)lm->own.count * sizeof(float)) != 0);
    carry_lm_free(other);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* The parameters of lm as items, which the caller changes and writes. */
static carry_safetensors_item *items_of(const carry_lm *lm) {
    carry_safetensors_item *items = calloc((size_t)lm->own.parameters + 1, sizeof *items);
    assert_non_null(items);
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        items[i] = (carry_safetensors_item){lm->own.parameter[i].name, carry_lm_weight(lm, i), CARRY_F32};
    }
    return items;
}

static void tensors_that_do_not_fit_are_refused_by_name(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = model(ctx, small(&carry_lm_family_gated_deltanet));
    carry_lm *back;
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    carry_safetensors_item *items = items_of(lm);
    const char *file = "model.safetensors";
    int64_t count = lm->own.parameters;
    items[2].tensor = carry_view_2d(lm->own.weights, CARRY_F32, 12, 10);
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder(file), items, count, NULL));
    assert_refused(ctx, CARRY_ESHAPE,
                   "model.layers.0.attn.q_proj.weight has shape [12, 10] where the configuration needs "
                   "[10, 12]",
                   carry_lm_load(ctx, &back, folder, 0));
    assert_null(back);
    items[2] = items[count - 1];
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder(file), items, count - 1, NULL));
    assert_refused(ctx, CARRY_EFORMAT, "no tensor model.layers.0.attn.q_proj.weight",
                   carry_lm_load(ctx, &back, folder, 0));
    free(items);
    items = items_of(lm);
    items[count] =
        (carry_safetensors_item){"model.layers.7.x", carry_view_1d(lm->own.weights, CARRY_F32, 3), CARRY_F32};
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder(file), items, count + 1, NULL));
    assert_refused(ctx, CARRY_EFORMAT, "model.layers.7.x of shape [3]", carry_lm_load(ctx, &back, folder, 0));
    int64_t wrong[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    items[1] = (carry_safetensors_item){lm->own.parameter[1].name, carry_view_1d(wrong, CARRY_I64, 12), CARRY_I64};
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder(file), items, count, NULL));
    assert_refused(ctx, CARRY_EDTYPE, "attn_norm.weight is i64", carry_lm_load(ctx, &back, folder, 0));
    free(items);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void a_tied_head_may_be_there_if_it_is_the_embeddings(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config config = small(&carry_lm_family_delta_net);
    config.tie_word_embeddings = true;
    carry_lm *lm = model(ctx, config);
    carry_lm *back;
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    carry_safetensors_item *items = items_of(lm);
    items[lm->own.parameters] = items[0];
    items[lm->own.parameters].name = "lm_head.weight";
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder("model.safetensors"), items, lm->own.parameters + 1, NULL));
    assert_ok(ctx, carry_lm_load(ctx, &back, folder, 0));
    carry_lm_free(back);
    items[lm->own.parameters].tensor.data = lm->own.weights + 1;
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder("model.safetensors"), items, lm->own.parameters + 1, NULL));
    assert_refused(ctx, CARRY_EFORMAT, "lm_head.weight", carry_lm_load(ctx, &back, folder, 0));
    free(items);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void write_index(carry_ctx *ctx, const carry_lm *lm, const char *second, int64_t listed) {
    char *text = calloc(1, 65536);
    assert_non_null(text);
    size_t used = (size_t)snprintf(text, 65536, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int64_t i = 0; i < listed; i++) {
        used += (size_t)snprintf(text + used, 65536 - used, "%s\"%s\": \"%s\"", i > 0 ? ", " : "",
                                 lm->own.parameter[i].name, i % 2 == 0 ? "one.safetensors" : second);
    }
    used += (size_t)snprintf(text + used, 65536 - used, "}}");
    assert_ok(ctx, carry_file_replace(ctx, in_folder("model.safetensors.index.json"), text, used));
    free(text);
}

static void several_files_are_one_model(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = model(ctx, small(&carry_lm_family_gated_deltanet));
    carry_lm *back;
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    (void)unlink(in_folder("model.safetensors"));
    carry_safetensors_item *items = items_of(lm);
    carry_safetensors_item *parts[2] = {items_of(lm), items_of(lm)};
    int64_t counts[2] = {0, 0};
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        parts[i % 2][counts[i % 2]++] = items[i];
    }
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder("one.safetensors"), parts[0], counts[0], NULL));
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder("two.safetensors"), parts[1], counts[1], NULL));
    write_index(ctx, lm, "two.safetensors", lm->own.parameters);
    assert_ok(ctx, carry_lm_load(ctx, &back, folder, 0));
    assert_memory_equal(lm->own.weights, back->own.weights, (size_t)lm->own.count * sizeof(float));
    carry_lm_free(back);
    write_index(ctx, lm, "two.safetensors", lm->own.parameters - 1);
    assert_refused(ctx, CARRY_EFORMAT, "its files hold", carry_lm_load(ctx, &back, folder, 0));
    write_index(ctx, lm, "one.safetensors", lm->own.parameters);
    assert_refused(ctx, CARRY_EFORMAT, "is not in one.safetensors", carry_lm_load(ctx, &back, folder, 0));
    static const char *const hostile[] = {"../two.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", ""};
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        write_index(ctx, lm, hostile[i], lm->own.parameters);
        assert_refused(ctx, CARRY_EFORMAT, "not a file name", carry_lm_load(ctx, &back, folder, 0));
    }
    write_index(ctx, lm, "gone.safetensors", lm->own.parameters);
    assert_refused(ctx, CARRY_ENOTFOUND, "gone.safetensors", carry_lm_load(ctx, &back, folder, 0));
    assert_ok(ctx, carry_file_replace(ctx, in_folder("model.safetensors.index.json"), "{\"weight_map\": 3}", 17));
    assert_refused(ctx, CARRY_EFORMAT, "weight_map", carry_lm_load(ctx, &back, folder, 0));
    (void)unlink(in_folder("model.safetensors.index.json"));
    assert_refused(ctx, CARRY_ENOTFOUND, "model.safetensors", carry_lm_load(ctx, &back, folder, 0));
    free(items);
    free(parts[0]);
    free(parts[1]);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* A folder made by flash-linear-attention and saved here has the same keys, shapes and bytes, and no others. */
static void folders_made_elsewhere_travel_both_ways(void **unused) {
    (void)unused;
    static const char *const names[] = {"lm-gated_deltanet", "lm-delta_net"};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    int found = 0;
    for (int i = 0; i < 2; i++) {
        char source[512];
        char path[600];
        if (!support_vectors(source, sizeof source, names[i])) {
            continue;
        }
        (void)snprintf(path, sizeof path, "%s/model.safetensors", source);
        found++;
        carry_lm *lm;
        carry_safetensors there;
        carry_safetensors here;
        assert_ok(ctx, carry_lm_load(ctx, &lm, source, 0));
        assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
        assert_ok(ctx, carry_safetensors_open(ctx, &there, path));
        assert_ok(ctx, carry_safetensors_open(ctx, &here, in_folder("model.safetensors")));
        assert_int_equal(here.count, there.count);
        for (int64_t j = 0; j < there.count; j++) {
            const carry_tensor *a = &there.by_name[j]->view;
            const carry_tensor *b = &here.by_name[j]->view;
            assert_string_equal(there.by_name[j]->name, here.by_name[j]->name);
            assert_int_equal(a->rank, b->rank);
            size_t count = 1;
            for (int k = 0; k < a->rank; k++) {
                assert_int_equal(a->shape[k], b->shape[k]);
                count *= (size_t)a->shape[k];
            }
            assert_memory_equal(a->data, b->data, count * sizeof(float));
        }
        carry_safetensors_close(&there);
        carry_safetensors_close(&here);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
    assert_true(found > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_loads_again),
        cmocka_unit_test(start_values_follow_the_rules),
        cmocka_unit_test(tensors_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(a_tied_head_may_be_there_if_it_is_the_embeddings),
        cmocka_unit_test(several_files_are_one_model),
        cmocka_unit_test(folders_made_elsewhere_travel_both_ways),
    };
    return cmocka_run_group_tests_name("model/lm_file", tests, make_folder, remove_folder);
}
