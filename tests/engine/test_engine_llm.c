/* carry/model.h: reading in pieces equals one pass, generation is greedy over logits, snapshots restore, steps lower
   the loss, errors are named. */
#include "hybrid_support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "carry/model.h"
#include "core/tensor.h"
#include "engine/generator.h"
#include "file/checkpoint_files.h"
#include "model/lm/lm_pass.h"

enum { TOKENS = 40, TEXT = 10 };

static char folder[64];

static int make_folder(void **unused) {
    (void)unused;
    (void)snprintf(folder, sizeof folder, "/tmp/carry-llm-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static const char *in_folder(const char *name) {
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int remove_folder(void **unused) {
    (void)unused;
    (void)unlink(in_folder("config.json"));
    (void)unlink(in_folder("model.safetensors"));
    (void)unlink(in_folder("state"));
    return rmdir(folder);
}

static void save_model(carry_ctx *ctx, int which, carry_dtype dtype) {
    carry_lm *lm = model(ctx, hybrid(which));
    assert_ok(ctx, carry_lm_save(lm, folder, dtype));
    carry_lm_free(lm);
}

static void fill_ids(int64_t *ids, int64_t count, int64_t vocabulary) {
    for (int64_t i = 0; i < count; i++) {
        ids[i] = i * 7 % vocabulary;
    }
}

typedef struct heard_text {
    int64_t token[TEXT];
    int count, most;
} heard_text;

static bool hear(void *user, int64_t token) {
    heard_text *h = user;
    h->token[h->count++] = token;
    return h->count < h->most;
}

static int64_t largest(const float *logits, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

static void reading_by_pieces_equals_one_pass(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int which = 0; which < HYBRIDS; which++) {
        carry_llm *llm;
        carry_llm_state *state;
        save_model(ctx, which, CARRY_BF16);
        assert_ok(ctx, carry_llm_open(ctx, &llm, folder, NULL));
        const int64_t n = carry_llm_vocabulary(llm);
        int64_t ids[TOKENS];
        float *whole = calloc((size_t)(TOKENS * n), sizeof *whole);
        float *logits = calloc((size_t)n, sizeof *logits);
        assert_true(whole != NULL && logits != NULL);
        fill_ids(ids, TOKENS, n);
        assert_ok(ctx, carry_llm_logits(llm, ids, TOKENS, whole));
        assert_ok(ctx, carry_llm_state_new(llm, &state));
        static const int64_t ends[] = {17, 18, TOKENS};
        for (int i = 0; i < 3; i++) {
            const int64_t first = i > 0 ? ends[i - 1] : 0;
            assert_ok(ctx, carry_llm_read(state, ids + first, ends[i] - first, logits));
            for (int64_t j = 0; j < n; j++) {
                const float wanted = whole[(ends[i] - 1) * n + j];
                assert_true(fabsf(logits[j] - wanted) <= 1e-5f * (1.0f + fabsf(wanted)));
            }
        }
        assert_int_equal(carry_llm_state_length(state), TOKENS);
        carry_llm_state_free(state);
        carry_llm_close(llm);
        free(whole);
        free(logits);
    }
    carry_ctx_free(ctx);
}

static void generation_is_greedy_and_snapshots_go_back(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_llm *llm;
    carry_llm_state *state;
    carry_llm_state *before;
    save_model(ctx, 0, CARRY_F32);
    assert_ok(ctx, carry_llm_open(ctx, &llm, folder, NULL));
    assert_ok(ctx, carry_llm_state_new(llm, &state));
    assert_ok(ctx, carry_llm_state_new(llm, &before));
    const int64_t n = carry_llm_vocabulary(llm);
    int64_t ids[3 + TEXT] = {1, 2, 3};
    float *logits = calloc((size_t)((3 + TEXT) * n), sizeof *logits);
    assert_non_null(logits);
    heard_text first = {.most = TEXT + 1};
    carry_llm_generation options = {CARRY_INIT(carry_llm_generation), .tokens = TEXT, .on_token = hear, .user = &first};
    assert_ok(ctx, carry_llm_read(state, ids, 2, NULL));
    assert_ok(ctx, carry_llm_state_copy(before, state));
    assert_ok(ctx, carry_llm_state_save(state, in_folder("state")));
    assert_ok(ctx, carry_llm_generate(state, ids + 2, 1, &options));
    assert_int_equal(first.count, TEXT);
    assert_int_equal(carry_llm_state_length(state), 3 + TEXT - 1);
    for (int i = 0; i < TEXT; i++) {
        assert_ok(ctx, carry_llm_logits(llm, ids, 3 + i, logits));
        assert_int_equal(largest(logits + (2 + i) * n, n), first.token[i]);
        ids[3 + i] = first.token[i];
    }
    for (int way = 0; way < 2; way++) { /* from the snapshot, and from the file */
        heard_text again = {.most = 4};
        options.user = &again;
        assert_ok(ctx,
                  way == 0 ? carry_llm_state_copy(state, before) : carry_llm_state_load(state, in_folder("state")));
        assert_ok(ctx, carry_llm_generate(state, ids + 2, 1, &options));
        assert_int_equal(again.count, 4); /* hear ended it */
        assert_memory_equal(again.token, first.token, 4 * sizeof *again.token);
    }
    options.ends = first.token + 3;
    options.end_count = 1;
    heard_text ended = {.most = TEXT + 1};
    options.user = &ended;
    assert_ok(ctx, carry_llm_state_copy(state, before));
    assert_ok(ctx, carry_llm_generate(state, ids + 2, 1, &options));
    assert_true(ended.count <= 3);
    free(logits);
    carry_llm_state_free(before);
    carry_llm_state_free(state);
    carry_llm_close(llm);
    carry_ctx_free(ctx);
}

enum { LONG = 4096, MORE = 64 };

typedef struct long_text {
    int64_t ids[LONG + MORE];
    int64_t count;
} long_text;

static bool append(void *user, int64_t token) {
    long_text *t = user;
    t->ids[t->count++] = token;
    return true;
}

/* Logits of steps and of the pass differ in their last bits, so either of two tokens may be taken if their logits are
   that close. */
static void a_long_prompt_and_its_text_equal_one_pass(void **unused) {
    (void)unused;
    static long_text t;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const int64_t prompt = support_cases(LONG, 1100); /* either is more than two pieces of a prompt */
    const int64_t more = support_cases(MORE, 16);
    for (int which = 0; which < 2; which++) { /* Qwen3.5's and OLMo's */
        carry_llm *llm;
        carry_llm_state *state;
        save_model(ctx, which, CARRY_BF16);
        assert_ok(ctx, carry_llm_open(ctx, &llm, folder, NULL));
        assert_ok(ctx, carry_llm_state_new(llm, &state));
        const int64_t n = carry_llm_vocabulary(llm);
        float *logits = calloc((size_t)((prompt + more) * n), sizeof *logits);
        assert_non_null(logits);
        fill_ids(t.ids, prompt, n);
        t.count = prompt;
        const carry_llm_generation options = {CARRY_INIT(carry_llm_generation), .tokens = more, .on_token = append,
                                              .user = &t};
        assert_ok(ctx, carry_llm_generate(state, t.ids, prompt, &options));
        assert_int_equal(t.count, prompt + more);
        assert_ok(ctx, carry_llm_logits(llm, t.ids, prompt + more, logits));
        for (int64_t i = prompt; i < prompt + more; i++) {
            const float *row = logits + (i - 1) * n;
            assert_true(row[largest(row, n)] - row[t.ids[i]] <= 1e-5f * (1.0f + fabsf(row[t.ids[i]])));
        }
        free(logits);
        carry_llm_state_free(state);
        carry_llm_close(llm);
    }
    carry_ctx_free(ctx);
}

/* Allows 1e-5 of the largest element of a part. */
static void compare_states(const carry_lm_state *a, const carry_lm_state *b, int64_t tokens) {
    for (int64_t layer = 0; layer < a->layers; layer++) {
        for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
            const carry_tensor *x = &a->part[layer][i];
            const float *of_a = x->data;
            const float *of_b = b->part[layer][i].data;
            if (of_a == NULL) {
                continue;
            }
            int64_t count = carry_tensor_count(x);
            count = a->about[layer][i].grows ? count / x->shape[1] * tokens : count; /* only the rows that were read */
            float most = 0.0f;
            float off = 0.0f;
            for (int64_t j = 0; j < count; j++) {
                most = fabsf(of_a[j]) > most ? fabsf(of_a[j]) : most;
                off = fabsf(of_a[j] - of_b[j]) > off ? fabsf(of_a[j] - of_b[j]) : off;
            }
            assert_true(most > 0.0f && off <= 1e-5f * most);
        }
    }
}

static void token_by_token_leaves_the_states_of_a_prompt(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const int64_t tokens = support_cases(150, 70); /* more than a chunk of 64 */
    for (int which = 0; which < HYBRIDS; which++) {
        carry_lm *lm = model(ctx, hybrid(which));
        carry_lm_generator *at_once;
        carry_lm_generator *by_token;
        int64_t ids[150];
        float logits[1024];
        assert_true(lm->config.vocab_size <= 1024);
        fill_ids(ids, tokens, lm->config.vocab_size);
        assert_ok(ctx, carry_lm_generator_new(lm, &at_once, 1, CARRY_F32));
        assert_ok(ctx, carry_lm_generator_new(lm, &by_token, 1, CARRY_F32));
        assert_ok(ctx, carry_lm_generator_prompt(at_once, 0, ids, tokens, logits));
        for (int64_t i = 0; i < tokens; i++) {
            assert_ok(ctx, carry_lm_generator_step(by_token, ids + i, logits));
        }
        compare_states(carry_lm_generator_state(at_once), carry_lm_generator_state(by_token), tokens);
        carry_lm_generator_free(by_token);
        carry_lm_generator_free(at_once);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

static void steps_lower_the_loss(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int which = 0; which < HYBRIDS; which++) {
        carry_llm *llm;
        save_model(ctx, which, CARRY_F32);
        assert_ok(ctx, carry_llm_open(ctx, &llm, folder,
                                      &(carry_llm_options){CARRY_INIT(carry_llm_options), .trains = true}));
        int64_t ids[2 * TOKENS];
        int64_t labels[2 * TOKENS];
        for (int64_t i = 0; i < 2 * TOKENS; i++) { /* one cycle over and over */
            ids[i] = i % 5;
            labels[i] = i % TOKENS == TOKENS - 1 ? -100 : (i + 1) % 5;
        }
        const carry_llm_batch batch = {CARRY_INIT(carry_llm_batch),
                                       .batch = 2,
                                       .tokens = TOKENS,
                                       .ids = ids,
                                       .labels = labels,
                                       .rate = 1e-2,
                                       .clip = 1.0};
        double loss = 0.0;
        double begun = 0.0;
        for (int step = 0; step < support_cases(25, 12); step++) {
            assert_ok(ctx, carry_llm_train_step(llm, &batch, &loss));
            begun = step == 0 ? loss : begun;
        }
        assert_true(loss < (support_cases(0, 1) == 0 ? 0.8 : 0.9) * begun);
        assert_ok(ctx, carry_llm_save(llm, folder, CARRY_F32));
        carry_llm_close(llm);
    }
    carry_ctx_free(ctx);
}

static void mistakes_are_named(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_llm *llm;
    carry_llm_state *state;
    float logits[1024];
    const int64_t large = 100000;
    assert_refused(ctx, CARRY_ENOTFOUND, "config.json", carry_llm_open(ctx, &llm, "/tmp/carry-no-such", NULL));
    assert_refused(
        ctx, CARRY_EDTYPE, "f32, bf16 or f16",
        carry_llm_open(ctx, &llm, folder, &(carry_llm_options){CARRY_INIT(carry_llm_options), .dtype = CARRY_I64}));
    save_model(ctx, 0, CARRY_F32);
    assert_refused(
        ctx, CARRY_EUNSUPPORTED, "cuda:98",
        carry_llm_open(ctx, &llm, folder, &(carry_llm_options){CARRY_INIT(carry_llm_options), .device = 99}));
    assert_refused(
        ctx, CARRY_EARGUMENT, "device -1",
        carry_llm_open(ctx, &llm, folder, &(carry_llm_options){CARRY_INIT(carry_llm_options), .device = -1}));
    assert_ok(ctx, carry_llm_open(ctx, &llm, folder, NULL));
    assert_true(carry_llm_vocabulary(llm) <= 1024);
    assert_refused(ctx, CARRY_EARGUMENT, "one token or more", carry_llm_logits(llm, &large, 0, logits));
    assert_true(carry_llm_logits(llm, &large, 1, logits) != CARRY_OK);
    assert_refused(ctx, CARRY_EARGUMENT, "trains",
                   carry_llm_train_step(llm, &(carry_llm_batch){CARRY_INIT(carry_llm_batch)}, NULL));
    assert_ok(ctx, carry_llm_state_new(llm, &state));
    assert_refused(ctx, CARRY_EARGUMENT, "1 or more",
                   carry_llm_generate(state, &large, 1, &(carry_llm_generation){CARRY_INIT(carry_llm_generation)}));
    carry_llm_state_free(state);
    carry_llm_close(llm);
    carry_ctx_free(ctx);
}

static void flip(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int byte = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    assert_true(fputc(byte ^ 1, f) != EOF);
    assert_int_equal(fclose(f), 0);
}

/* A step of a run, with checksums. */
static void save_step(carry_ctx *ctx, const char *name) {
    carry_lm *lm = model(ctx, hybrid(0));
    assert_int_equal(mkdir(in_folder(name), 0700), 0);
    assert_ok(ctx, carry_lm_save(lm, in_folder(name), CARRY_F32));
    assert_ok(ctx, carry_checkpoint_write_sums(ctx, in_folder(name)));
    carry_lm_free(lm);
}

static void damaged_checkpoints_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static const char *const files[] = {"run/step-20/model.safetensors", "run/step-20/config.json",
                                        "run/step-20/checksums.json"};
    carry_llm *llm;
    assert_int_equal(mkdir(in_folder("run"), 0700), 0);
    save_step(ctx, "run/step-9");
    save_step(ctx, "run/step-20");
    for (int trains = 0; trains < 2; trains++) {
        const carry_llm_options options = {CARRY_INIT(carry_llm_options), .trains = trains == 1};
        assert_ok(ctx, carry_llm_open(ctx, &llm, in_folder("run"), &options));
        assert_string_equal(carry_llm_folder(llm), in_folder("run/step-20"));
        carry_llm_close(llm);
        for (size_t i = 0; i < 3; i++) {
            const long at =
                i == 0 ? -4 : 5; /* in the weights, a low bit of a fraction, so that every value looks plausible */
            flip(in_folder(files[i]), at);
            assert_int_equal(carry_llm_open(ctx, &llm, in_folder("run/step-20"), &options), CARRY_EFORMAT);
            assert_null(llm);
            const bool is_fine = i == 1; /* if the path is a file, only that file is verified */
            assert_int_equal(carry_checkpoint_verify_model(ctx, in_folder(files[0])),
                             is_fine ? CARRY_OK : CARRY_EFORMAT);
            assert_ok(ctx, carry_llm_open(ctx, &llm, in_folder("run"), &options));
            assert_string_equal(carry_llm_folder(llm), in_folder("run/step-9"));
            carry_llm_close(llm);
            flip(in_folder(files[i]), at);
        }
    }
    flip(in_folder("run/step-9/model.safetensors"), -4);
    flip(in_folder(files[0]), -4);
    assert_refused(ctx, CARRY_EFORMAT,
                   "no complete step; the newest:", carry_llm_open(ctx, &llm, in_folder("run"), NULL));
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r '%s'", in_folder("run"));
    assert_int_equal(system(command), 0);
    carry_ctx_free(ctx);
}

/* A callback that uses the model that called it. */
typedef struct inside {
    carry_ctx *ctx;
    carry_llm *llm;
    carry_llm_state *state;
    bool frees, closes;
    int tokens, pieces;
} inside;

static bool use_inside(void *user, int64_t token) {
    inside *in = user;
    carry_llm_state *other;
    const carry_llm_generation options = {CARRY_INIT(carry_llm_generation), .tokens = 1};
    in->tokens++;
    assert_refused(in->ctx, CARRY_EARGUMENT, "in use", carry_llm_read(in->state, &token, 1, NULL));
    assert_refused(in->ctx, CARRY_EARGUMENT, "in use", carry_llm_state_clear(in->state));
    assert_refused(in->ctx, CARRY_EARGUMENT, "in use", carry_llm_state_load(in->state, in_folder("state")));
    assert_refused(in->ctx, CARRY_EARGUMENT, "in use", carry_llm_generate(in->state, &token, 1, &options));
    assert_ok(in->ctx, carry_llm_state_new(in->llm, &other));
    assert_refused(in->ctx, CARRY_EARGUMENT, "in use", carry_llm_state_copy(in->state, other));
    assert_ok(in->ctx, carry_llm_state_copy(other, in->state));
    assert_ok(in->ctx, carry_llm_generate(other, &token, 1, &options));
    carry_llm_state_free(other);
    if (in->frees) {
        carry_llm_state_free(in->state);
    }
    if (in->closes) {
        carry_llm_close(in->llm);
    }
    return true;
}

static bool stop_at_second_piece(void *user) {
    inside *in = user;
    return ++in->pieces < 2;
}

static void callbacks_cannot_free_what_is_in_use(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    save_model(ctx, 0, CARRY_F32);
    for (int closes = 0; closes < 2; closes++) {
        inside in = {.ctx = ctx, .frees = true, .closes = closes != 0};
        const int64_t first = 1;
        assert_ok(ctx, carry_llm_open(ctx, &in.llm, folder, NULL));
        assert_ok(ctx, carry_llm_state_new(in.llm, &in.state));
        const carry_llm_generation options = {CARRY_INIT(carry_llm_generation), .tokens = 5, .on_token = use_inside,
                                              .user = &in};
        assert_ok(ctx, carry_llm_generate(in.state, &first, 1, &options));
        assert_int_equal(in.tokens, 1);
        if (!in.closes) {
            carry_llm_close(in.llm);
        }
    }
    carry_ctx_free(ctx);
}

static void a_long_prompt_ends_between_pieces(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    inside in = {.ctx = ctx};
    int64_t ids[1100];
    save_model(ctx, 0, CARRY_F32);
    assert_ok(ctx, carry_llm_open(ctx, &in.llm, folder, NULL));
    assert_ok(ctx, carry_llm_state_new(in.llm, &in.state));
    fill_ids(ids, 1100, carry_llm_vocabulary(in.llm));
    const carry_llm_generation options = {CARRY_INIT(carry_llm_generation), .tokens = 3, .on_token = use_inside,
                                          .proceed = stop_at_second_piece, .user = &in};
    assert_ok(ctx, carry_llm_generate(in.state, ids, 1100, &options));
    assert_int_equal(in.pieces, 2);
    assert_int_equal(in.tokens, 0);
    assert_int_equal(carry_llm_state_length(in.state), 1024);
    carry_llm_state_free(in.state);
    carry_llm_close(in.llm);
    carry_ctx_free(ctx);
}

static void ends_come_from_the_folder(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_llm *llm;
    int64_t ends[4] = {-1, -1, -1, -1};
    save_model(ctx, 0, CARRY_F32);
    FILE *file = fopen(in_folder("generation_config.json"), "w");
    assert_non_null(file);
    (void)fputs("{\"eos_token_id\": [7, 3, 100000]}", file);
    assert_int_equal(fclose(file), 0);
    assert_ok(ctx, carry_llm_open(ctx, &llm, folder, NULL));
    const int64_t count = carry_llm_ends(llm, ends, 4);
    assert_true(count >= 2 && count <= 4); /* 100000 is not in the vocabulary */
    assert_int_equal(carry_llm_ends(llm, NULL, 0), count);
    assert_int_equal(ends[count - 2], 7);
    assert_int_equal(ends[count - 1], 3);
    carry_llm_close(llm);
    (void)unlink(in_folder("generation_config.json"));
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading_by_pieces_equals_one_pass),
        cmocka_unit_test(a_long_prompt_and_its_text_equal_one_pass),
        cmocka_unit_test(token_by_token_leaves_the_states_of_a_prompt),
        cmocka_unit_test(generation_is_greedy_and_snapshots_go_back),
        cmocka_unit_test(steps_lower_the_loss),
        cmocka_unit_test(damaged_checkpoints_are_refused),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(callbacks_cannot_free_what_is_in_use),
        cmocka_unit_test(a_long_prompt_ends_between_pieces),
        cmocka_unit_test(ends_come_from_the_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
