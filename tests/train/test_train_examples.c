/* Fine-tuning on examples: the losses equal those of transformers and PEFT (golden/finetune, tests/make_finetune.py);
   refusals. */
#include "train_support.h"

#include "core/json.h"
#include "file/safetensors.h"
#include "model/lm/adapter.h"
#include "train/data/batches.h"
#include "train/data/examples.h"

#define GOLDEN CARRY_SOURCE "/tests/golden/finetune"
/* Of the first 20 steps; a sanitizer sees in 5 all that it would see in 20. */
#define STEPS support_cases(20, 5)
#define LENGTH 96
#define ROWS 3

static carry_train_options fine_tuning(const char *out, double rate) {
    carry_train_options o = carry_train_options_default();
    (void)snprintf(o.data, sizeof o.data, "%s", GOLDEN "/examples.jsonl");
    (void)snprintf(o.model, sizeof o.model, "%s", GOLDEN);
    (void)snprintf(o.out, sizeof o.out, "%s", out);
    (void)snprintf(o.schedule, sizeof o.schedule, "constant");
    o.length = LENGTH;
    o.batch = ROWS;
    o.in_order = true;
    o.steps = STEPS;
    o.rate = rate;
    o.warmup = 0;
    o.log_every = 1;
    o.eval_every = 0;
    return o;
}

static void compare_losses(const told *t, const char *name, double apart) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_json *root;
    assert_ok(ctx, carry_json_read(ctx, &root, GOLDEN "/losses.json", 1 << 20));
    const carry_json *at = carry_json_first(carry_json_find(root, name));
    for (int i = 1; i <= STEPS; i++, at = at->next) {
        assert_non_null(at);
        assert_near(t->loss[i], carry_json_number(at), apart);
    }
    carry_json_free(root);
    carry_ctx_free(ctx);
}

/* Losses of 4 to 6 differ by 1e-6 in f32; steps of Adam amplify that to about 1e-5 after 20. A leak between examples, a
   wrong mask or counted padding changes the first loss by more than 1e-2. */
static void test_twenty_steps_have_the_losses_of_transformers(void **state) {
    char out[256];
    told t;
    carry_train_options o = fine_tuning(below(out, state, "full"), 2e-3);
    train_ok(1, &o, false, &t);
    compare_losses(&t, "full", 5e-5);
    (void)below(o.out, state, "parts");
    o.accumulate = 3;
    train_ok(1, &o, false, &t);
    compare_losses(&t, "full", 5e-5);
    (void)below(o.out, state, "ranks");
    o.accumulate = 1;
    train_ok(3, &o, false, &t);
    compare_losses(&t, "full", 5e-5);
}

static void test_twenty_steps_of_an_adapter_have_the_losses_of_peft(void **state) {
    char out[256];
    told t;
    carry_train_options o = fine_tuning(below(out, state, "lora"), 5e-3);
    (void)snprintf(o.adapter, sizeof o.adapter, "%s", GOLDEN "/adapter");
    train_ok(1, &o, false, &t);
    compare_losses(&t, "lora", 2e-5);
    (void)below(o.out, state, "lora-ranks");
    train_ok(3, &o, false, &t);
    compare_losses(&t, "lora", 2e-5);
}

/* Runs forward and backward on the first batch of the examples. */
static void run_first_batch(carry_ctx *ctx, carry_lm *lm) {
    carry_tokenizer *tokenizer;
    carry_examples *examples;
    carry_batches *batches;
    const carry_batch *batch;
    const char *path = GOLDEN "/examples.jsonl";
    assert_ok(ctx, carry_tokenizer_open(ctx, &tokenizer, GOLDEN));
    assert_ok(ctx, carry_examples_open(
                       ctx, &examples, &path, 1,
                       &(carry_examples_options){.tokenizer = tokenizer, .length = LENGTH, .in_order = true}));
    const carry_source source = carry_examples_source(examples);
    assert_ok(ctx, carry_batches_new(ctx, &batches, &source, &(carry_batches_options){.rows = ROWS, .length = LENGTH}));
    assert_ok(ctx, carry_batches_next(ctx, batches, &batch));
    carry_lm_pass *pass;
    assert_ok(ctx, carry_lm_pass_new(
                       lm, &pass,
                       &(carry_lm_pass_options){.batch = 1, .tokens = ROWS * LENGTH, .sequences = batch->sequences}));
    void *memory;
    assert_ok(ctx, carry_lm_pass_take(pass, &memory));
    const carry_lm_args args = {.ids = carry_view_2d(batch->input, CARRY_I64, 1, ROWS * LENGTH),
                                .labels = carry_view_2d(batch->label, CARRY_I64, 1, ROWS * LENGTH),
                                .cu_seqlens = carry_view_1d(batch->cu_seqlens, CARRY_I64, batch->sequences + 1),
                                .backward = true};
    assert_ok(ctx, carry_lm_run(pass, &args, memory, carry_lm_pass_memory(pass)));
    carry_lm_pass_give(pass, memory);
    carry_lm_pass_free(pass);
    carry_batches_free(batches);
    carry_examples_free(examples);
    carry_tokenizer_close(tokenizer);
}

static void test_gradients_of_an_adapter_are_those_of_peft(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm;
    carry_safetensors file;
    assert_ok(ctx, carry_lm_load(ctx, &lm, GOLDEN, 0));
    assert_ok(ctx, carry_lm_adapter_load(lm, GOLDEN "/adapter", NULL));
    run_first_batch(ctx, lm);
    const carry_parameters *own = &lm->adapter->own;
    assert_ok(ctx, carry_safetensors_open(ctx, &file, GOLDEN "/adapter/gradients.safetensors"));
    assert_int_equal(file.count, own->parameters);
    for (int64_t i = 0; i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        const carry_tensor *wanted = carry_safetensors_find(&file, p->name);
        assert_non_null(wanted);
        double most = 0.0;
        double apart = 0.0;
        for (int64_t j = 0; j < p->count; j++) {
            const double w = (double)((const float *)wanted->data)[j];
            most = fmax(most, fabs(w));
            apart = fmax(apart, fabs((double)own->gradients[p->offset + j] - w));
        }
        if (!(apart <= 1e-5 * fmax(most, 0.1))) {
            fail_msg("%s: the gradient is %g apart, its largest element %g", p->name, apart, most);
        }
    }
    carry_safetensors_close(&file);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* An adapter that PEFT saved, loaded and saved here, has the same names, shapes and numbers. */
static void test_an_adapter_is_saved_as_it_was_loaded(void **state) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm;
    carry_safetensors file[2];
    char path[300];
    assert_ok(ctx, carry_lm_load(ctx, &lm, GOLDEN, 0));
    assert_ok(ctx, carry_lm_adapter_load(lm, GOLDEN "/adapter", NULL));
    assert_ok(ctx, carry_lm_adapter_save(lm, *state, "finetune"));
    (void)snprintf(path, sizeof path, "%s/%s", (const char *)*state, CARRY_ADAPTER_WEIGHTS);
    assert_ok(ctx, carry_safetensors_open(ctx, &file[0], path));
    assert_ok(ctx, carry_safetensors_open(ctx, &file[1], GOLDEN "/adapter/" CARRY_ADAPTER_WEIGHTS));
    assert_int_equal(file[0].count, file[1].count);
    for (int64_t i = 0; i < file[1].count; i++) {
        const carry_tensor *wanted = &file[1].entries[i].view;
        const carry_tensor *got = carry_safetensors_find(&file[0], file[1].entries[i].name);
        assert_non_null(got);
        assert_int_equal(got->rank, 2);
        assert_memory_equal(got->shape, wanted->shape, 2 * sizeof(int64_t));
        assert_memory_equal(got->data, wanted->data, (size_t)(got->shape[0] * got->shape[1]) * sizeof(float));
    }
    carry_safetensors_close(&file[0]);
    carry_safetensors_close(&file[1]);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void write_lines(const char *path, const char *lines) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    assert_ok(ctx, carry_file_replace(ctx, path, lines, strlen(lines)));
    carry_ctx_free(ctx);
}

static void refused(void **state, const char *lines, const char *why) {
    char path[256];
    char out[256];
    told t;
    write_lines(below(path, state, "wrong.jsonl"), lines);
    carry_train_options o = fine_tuning(below(out, state, "wrong"), 1e-3);
    (void)snprintf(o.data, sizeof o.data, "%s", path);
    o.length = 16;
    assert_int_not_equal(train_on(1, &o, false, NULL, &t), CARRY_OK);
    if (strstr(t.error, why) == NULL) {
        fail_msg("'%s' is not in the message: %s", why, t.error);
    }
}

static void test_lines_that_teach_nothing_are_refused_by_number(void **state) {
    refused(state, "{\"prompt\": \"a\", \"completion\": \"b\"}\n\n{\"prompt\": \"a\", \"completion\": \"\"}\n",
            "line 3: \"completion\" is empty");
    refused(state, "{\"prompt\": \"a\"}\n", "line 1: expected {\"prompt\"");
    refused(state, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n", "no message has the role");
    refused(state, "{\"messages\": []}\n", "at least one message");
    refused(state, "{\"prompt\": 1, \"completion\": \"b\"}\n", "must be strings");
    refused(state, "{\"prompt\": \"a\", \"completion\": \"b\"\n", "line 1, column 34: ");
    refused(state, "\n", "has no examples");
    refused(state, "{\"prompt\": \"a long prompt\", \"completion\": \"and more\"}\n", "--long-examples cut");
}

static void test_long_examples_are_cut_if_asked(void **state) {
    char path[256];
    char out[256];
    told t;
    write_lines(below(path, state, "long.jsonl"), "{\"prompt\": \"a prompt\", \"completion\": \"and more of it\"}\n");
    carry_train_options o = fine_tuning(below(out, state, "long"), 1e-3);
    (void)snprintf(o.data, sizeof o.data, "%s", path);
    (void)snprintf(o.long_examples, sizeof o.long_examples, "cut");
    o.length = 16;
    o.steps = 1;
    train_ok(1, &o, false, &t);
    (void)below(o.out, state, "long-prompt");
    o.length = 4;
    assert_int_not_equal(train_on(1, &o, false, NULL, &t), CARRY_OK);
    assert_non_null(strstr(t.error, "its prompt fills the row"));
}

/* Each epoch has every example once, in another order. */
static void test_epochs_have_all_examples_in_other_orders(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_tokenizer *tokenizer;
    carry_examples *examples;
    const char *path = GOLDEN "/examples.jsonl";
    assert_ok(ctx, carry_tokenizer_open(ctx, &tokenizer, GOLDEN));
    assert_ok(ctx, carry_examples_open(ctx, &examples, &path, 1,
                                       &(carry_examples_options){.tokenizer = tokenizer, .length = LENGTH, .seed = 4}));
    const carry_source source = carry_examples_source(examples);
    int64_t labels[3] = {0};
    uint64_t first[3] = {0};
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        int64_t rows;
        int64_t windows;
        int64_t input[LENGTH];
        int64_t label[LENGTH];
        assert_ok(ctx, source.open(ctx, source.state, epoch, 0, LENGTH, false, &rows, &windows));
        for (int64_t row = 0; row < rows; row++) {
            int64_t starts[CARRY_EXAMPLES_OF_A_ROW];
            source.row(source.state, row, LENGTH, input, label);
            const int64_t count = source.cuts(source.state, row, LENGTH, starts);
            assert_in_range(count, 1, CARRY_EXAMPLES_OF_A_ROW);
            assert_int_equal(starts[0], 0);
            for (int64_t i = 0; i < LENGTH; i++) {
                labels[epoch] += label[i] != CARRY_NO_LABEL;
                first[epoch] = first[epoch] * 31 + (uint64_t)input[i];
            }
        }
    }
    assert_int_equal(labels[0], carry_examples_learned(examples));
    assert_int_equal(labels[1], labels[0]);
    assert_int_equal(labels[2], labels[0]);
    assert_true(first[0] != first[1] && first[1] != first[2]);
    carry_examples_free(examples);
    carry_tokenizer_close(tokenizer);
    carry_ctx_free(ctx);
}

/* Stopped in the middle and resumed: the bits equal those of a run that was not stopped. */
static void resumed_is_whole(void **state, const char *name, carry_train_options o) {
    char whole[256];
    char parts[256];
    char file[64] = CARRY_ADAPTER_WEIGHTS;
    told t;
    char folder[64];
    (void)snprintf(folder, sizeof folder, "%s-whole", name);
    (void)below(o.out, state, folder);
    o.steps = support_cases(10, 6);
    o.save_every = 3;
    train_ok(1, &o, false, &t);
    (void)snprintf(folder, sizeof folder, "%s-whole/latest", name);
    (void)below(whole, state, folder);
    (void)snprintf(folder, sizeof folder, "%s-parts", name);
    (void)below(o.out, state, folder);
    o.steps = 4;
    train_ok(1, &o, false, &t);
    o.steps = support_cases(10, 6);
    train_ok(1, &o, true, &t);
    assert_int_equal(t.last, support_cases(10, 6));
    (void)snprintf(folder, sizeof folder, "%s-parts/latest", name);
    (void)below(parts, state, folder);
    if (!carry_train_has_adapter(&o)) {
        (void)snprintf(file, sizeof file, "model.safetensors");
    }
    assert_true(same_file(whole, parts, file));
    assert_true(same_file(whole, parts, "optimizer.safetensors"));
}

static void test_resumed_runs_have_the_bits_of_whole_ones(void **state) {
    carry_train_options o = fine_tuning("", 2e-3);
    o.in_order = false;
    resumed_is_whole(state, "full", o);
    (void)snprintf(o.optimizer, sizeof o.optimizer, "muon");
    resumed_is_whole(state, "muon", o);
    o.lora_rank = 4;
    o.lora_dropout = 0.1;
    resumed_is_whole(state, "muon-lora", o);
    (void)snprintf(o.optimizer, sizeof o.optimizer, "adamw");
    resumed_is_whole(state, "lora", o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twenty_steps_have_the_losses_of_transformers),
        cmocka_unit_test(test_twenty_steps_of_an_adapter_have_the_losses_of_peft),
        cmocka_unit_test(test_gradients_of_an_adapter_are_those_of_peft),
        cmocka_unit_test(test_an_adapter_is_saved_as_it_was_loaded),
        cmocka_unit_test(test_lines_that_teach_nothing_are_refused_by_number),
        cmocka_unit_test(test_long_examples_are_cut_if_asked),
        cmocka_unit_test(test_epochs_have_all_examples_in_other_orders),
        cmocka_unit_test(test_resumed_runs_have_the_bits_of_whole_ones),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
