/* Generated texts: equal to those of the full forward pass, the same beside others as alone, ended at the right
   place. */
#include "text_model_support.h"

#include "engine/generate.h"

#define VOCABULARY 257
#define PROMPTS 21

static const char *const prompt_texts[PROMPTS] = {"Hello",
                                                  "",
                                                  "a",
                                                  "The delta rule",
                                                  "x\ty",
                                                  "\xff\xfe",
                                                  "Hello",
                                                  "ab",
                                                  "abc",
                                                  "abcd",
                                                  "zz",
                                                  "Hello",
                                                  "0123456789 0123456789 0123456789",
                                                  "q",
                                                  "r",
                                                  "\xc3\xa4",
                                                  "<|endoftext|>",
                                                  "s",
                                                  "t",
                                                  "some more",
                                                  "u"};

static void make_prompts(carry_prompt prompts[PROMPTS]) {
    for (int i = 0; i < PROMPTS; i++) {
        prompts[i] = (carry_prompt){.text = prompt_texts[i], .length = strlen(prompt_texts[i])};
    }
}

static carry_generate_options options_of(double temperature, int64_t tokens) {
    return (carry_generate_options){.sampling = {.temperature = temperature, .top_p = 0.95, .seed = 4},
                                    .tokens = tokens};
}

static void free_all(carry_continuation *results, int count) {
    for (int i = 0; i < count; i++) {
        carry_continuation_free(&results[i]);
    }
}

/* The token with the largest logit after these, by a pass over all of them. */
static int64_t next_by_forward(carry_ctx *ctx, carry_lm *lm, int64_t *ids, int64_t count) {
    float logits[VOCABULARY];
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, count),
                                .logits = carry_view_2d(logits, CARRY_F32, 1, VOCABULARY),
                                .last_logits = true};
    assert_ok(ctx, run_once(lm, &(carry_lm_pass_options){.batch = 1, .tokens = count, .forward_only = true}, &args));
    int64_t best = 0;
    for (int64_t i = 1; i < VOCABULARY; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

static void greedy_text_is_that_of_the_full_forward(void **unused) {
    (void)unused;
    enum { TOKENS = 40 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_model m = byte_model(ctx, VOCABULARY);
    const carry_prompt prompt = {.text = "The delta rule", .length = 14};
    carry_generate_options options = options_of(0.0, TOKENS);
    carry_continuation result = {0};
    assert_ok(ctx, carry_generate(ctx, &m, &prompt, 1, &options, &result));
    int64_t ids[14 + TOKENS];
    for (int i = 0; i < 14; i++) {
        ids[i] = (unsigned char)prompt.text[i];
    }
    char expected[CARRY_UNFOLD_GROWTH * (TOKENS + 4)];
    size_t length = 0;
    carry_unfold unfold = {0};
    int64_t tokens = 0;
    while (tokens < TOKENS && (ids[14 + tokens] = next_by_forward(ctx, m.lm, ids, 14 + tokens)) < 256) {
        unsigned char byte = (unsigned char)ids[14 + tokens++];
        length += carry_unfold_bytes(&unfold, expected + length, &byte, 1);
    }
    length += carry_unfold_end(&unfold, expected + length);
    assert_int_equal(result.tokens, tokens);
    assert_int_equal(result.prompt_tokens, 14);
    assert_int_equal(result.length, length);
    assert_memory_equal(result.text, expected, length);
    assert_true(tokens > 5 && result.seconds >= result.first && result.first > 0.0);
    carry_continuation_free(&result);
    carry_model_close(&m);
    carry_ctx_free(ctx);
}

static void a_text_is_the_same_beside_others_as_alone(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_model m = byte_model(ctx, VOCABULARY);
    carry_prompt prompts[PROMPTS];
    make_prompts(prompts);
    static const int64_t batches[] = {0, 1, 5};
    carry_continuation together[3][PROMPTS] = {0};
    carry_generate_options options = options_of(0.9, 25);
    for (int b = 0; b < 3; b++) {
        const carry_engine_options engine = {CARRY_INIT(carry_engine_options), .sequences = batches[b]};
        options.engine = &engine;
        assert_ok(ctx, carry_generate(ctx, &m, prompts, PROMPTS, &options, together[b]));
    }
    options.engine = NULL;
    for (int i = 0; i < PROMPTS; i++) {
        carry_continuation alone = {0};
        assert_ok(ctx, carry_generate(ctx, &m, &prompts[i], 1, &options, &alone));
        for (int b = 0; b < 3; b++) {
            const carry_continuation *c = &together[b][i];
            assert_true(c->ending == CARRY_ENDED_BY_LENGTH || c->ending == CARRY_ENDED_BY_TOKEN);
            assert_int_equal(c->length, together[0][i].length);
            assert_memory_equal(c->text, together[0][i].text, c->length);
            if (i != 6 && i != 11) { /* the same prompt again */
                assert_int_equal(c->tokens, alone.tokens);
                assert_int_equal(c->length, alone.length);
                assert_memory_equal(c->text, alone.text, alone.length);
            }
        }
        carry_continuation_free(&alone);
    }
    assert_string_not_equal(together[0][0].text, together[0][6].text);
    assert_string_not_equal(together[0][0].text, together[0][11].text);
    assert_string_not_equal(together[0][6].text, together[0][11].text);
    for (int b = 0; b < 3; b++) {
        free_all(together[b], PROMPTS);
    }
    carry_model_close(&m);
    carry_ctx_free(ctx);
}

/* Divides the outputs of mixers by ten, so that the last token decides most and greedy texts repeat themselves. */
static void make_repetitive(carry_lm *lm) {
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_parameter *p = &lm->own.parameter[i];
        for (int64_t j = 0; j < p->count && strstr(p->name, "o_proj") != NULL; j++) {
            lm->own.weights[p->offset + j] *= 0.1f;
        }
    }
}

/* Greedy and sampled, alone and beside others: the same tokens, whatever is guessed. */
static void a_text_with_guesses_is_the_one_without(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_model m = byte_model(ctx, VOCABULARY);
    carry_prompt prompts[PROMPTS];
    make_prompts(prompts);
    make_repetitive(m.lm);
    static const int64_t guesses[] = {1, 4, 16};
    int64_t accepted = 0;
    for (int i = 0; i < 12; i++) {
        const int64_t count = i % 2 == 0 ? 1 : 5;
        carry_generate_options options = options_of((const double[]){0.0, 0.05}[i / 2 % 2], 80);
        carry_continuation plain[5] = {0};
        carry_continuation guessed[5] = {0};
        options.engine = &(carry_engine_options){CARRY_INIT(carry_engine_options), .same_bits = true};
        assert_ok(ctx, carry_generate(ctx, &m, prompts, count, &options, plain));
        options.engine = &(carry_engine_options){CARRY_INIT(carry_engine_options), .same_bits = true, .draft = "ngram",
                                                 .draft_tokens = guesses[i / 4]};
        assert_ok(ctx, carry_generate(ctx, &m, prompts, count, &options, guessed));
        for (int64_t j = 0; j < count; j++) {
            assert_int_equal(plain[j].drafted_tokens, 0);
            assert_true(guessed[j].accepted_tokens <= guessed[j].drafted_tokens);
            assert_int_equal(guessed[j].ending, plain[j].ending);
            assert_int_equal(guessed[j].tokens, plain[j].tokens);
            assert_memory_equal(guessed[j].ids.id, plain[j].ids.id, plain[j].ids.count * sizeof *plain[j].ids.id);
            accepted += guessed[j].accepted_tokens;
        }
        free_all(plain, (int)count);
        free_all(guessed, (int)count);
    }
    assert_true(accepted > 0);
    carry_model_close(&m);
    carry_ctx_free(ctx);
}

/* The settled text as a listener got it, and the number of calls. */
typedef struct listener {
    const carry_continuation *result;
    char settled[4096];
    size_t length;
    int calls, most;
} listener;

static bool listen_to(void *user, int64_t prompt) {
    listener *l = user;
    const carry_continuation *c = &l->result[prompt];
    assert_true(c->settled >= l->length && c->settled <= c->length && c->settled < sizeof l->settled);
    assert_true(l->length == 0 || memcmp(l->settled, c->text, l->length) == 0);
    if (c->settled > 0) {
        memcpy(l->settled, c->text, c->settled);
    }
    l->length = c->settled;
    return ++l->calls < l->most;
}

/* Uses every part of a text as the stop: the text ends before its first occurrence, and no settled text is taken
   back. */
static void a_text_ends_before_the_stop(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_model m = byte_model(ctx, VOCABULARY);
    const carry_prompt prompt = {.text = "ab", .length = 2};
    carry_generate_options options = options_of(0.9, 30);
    carry_continuation whole = {0};
    assert_ok(ctx, carry_generate(ctx, &m, &prompt, 1, &options, &whole));
    assert_true(whole.length > 12);
    for (size_t from = 0; from + 1 < whole.length; from += 3) {
        for (size_t length = 1; length <= 7 && from + length <= whole.length; length += 2) {
            char stop[8] = "";
            memcpy(stop, whole.text + from, length);
            const char *first = strlen(stop) == length ? strstr(whole.text, stop) : NULL;
            if (first == NULL) {
                continue; /* a 0 byte */
            }
            carry_continuation result = {0};
            listener l = {.result = &result, .most = 1000};
            const char *const stops[] = {"", "never there", stop};
            options.stops = stops;
            options.stop_count = 3;
            options.heard = listen_to;
            options.user = &l;
            assert_ok(ctx, carry_generate(ctx, &m, &prompt, 1, &options, &result));
            /* The last bytes of the whole text may be there only because it ended in the middle of a character. */
            if (result.ending == CARRY_ENDED_BY_STOP) {
                assert_int_equal(result.length, first - whole.text);
            } else {
                assert_true(from + length > whole.length - 3);
            }
            assert_memory_equal(result.text, whole.text, result.length);
            assert_int_equal(l.length, result.length);
            carry_continuation_free(&result);
        }
    }
    carry_continuation_free(&whole);
    carry_model_close(&m);
    carry_ctx_free(ctx);
}

/* Makes the end token likeliest: its row of the head is a multiple of the winning one. */
static void a_text_ends_at_the_end_token(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_model m = byte_model(ctx, VOCABULARY);
    int64_t ids[] = {'a', 'b'};
    int64_t winner = next_by_forward(ctx, m.lm, ids, 2);
    float *head = m.lm->own.weights + m.lm->own.parameter[m.lm->head].offset;
    for (int64_t i = 0; i < m.lm->config.hidden_size; i++) {
        head[256 * m.lm->config.hidden_size + i] = 2.0f * head[winner * m.lm->config.hidden_size + i];
    }
    const carry_prompt prompt = {.text = "ab", .length = 2};
    carry_generate_options options = options_of(0.0, 10);
    carry_continuation result = {0};
    assert_ok(ctx, carry_generate(ctx, &m, &prompt, 1, &options, &result));
    assert_int_equal(result.ending, CARRY_ENDED_BY_TOKEN);
    assert_true(result.tokens == 0 && result.length == 0);
    carry_continuation_free(&result);
    carry_model_close(&m);
    carry_ctx_free(ctx);
}

static void an_interrupted_text_is_what_there_was(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_model m = byte_model(ctx, VOCABULARY);
    const carry_prompt prompts[] = {{.text = "ab", .length = 2}, {.text = "cd", .length = 2}};
    carry_generate_options options = options_of(0.9, 100);
    carry_continuation result[2] = {0};
    listener l = {.result = result, .most = 6};
    options.heard = listen_to;
    options.user = &l;
    options.engine = &(carry_engine_options){CARRY_INIT(carry_engine_options), .sequences = 1};
    assert_ok(ctx, carry_generate(ctx, &m, prompts, 2, &options, result));
    assert_true(result[0].ending == CARRY_INTERRUPTED && result[1].ending == CARRY_INTERRUPTED);
    assert_true(result[0].tokens == 6 && result[1].tokens == 0 && result[0].length >= 4);
    free_all(result, 2);
    carry_model_close(&m);
    carry_ctx_free(ctx);
}

static void what_cannot_be_generated_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_model m = byte_model(ctx, 256);
    const carry_prompt empty = {.text = "", .length = 0};
    const carry_prompt good = {.text = "a", .length = 1};
    carry_generate_options options = options_of(1.0, 4);
    carry_continuation result = {0};
    assert_refused(ctx, CARRY_EARGUMENT, "empty prompt", carry_generate(ctx, &m, &empty, 1, &options, &result));
    carry_continuation_free(&result);
    options.tokens = 0;
    assert_refused(ctx, CARRY_EARGUMENT, "0 tokens", carry_generate(ctx, &m, &good, 1, &options, &result));
    options = options_of(-1.0, 4);
    assert_refused(ctx, CARRY_EARGUMENT, "temperature", carry_generate(ctx, &m, &good, 1, &options, &result));
    options = options_of(1.0, 4);
    m.lm->own.weights[m.lm->own.parameter[m.lm->norm].offset] = NAN;
    assert_refused(ctx, CARRY_ERANGE, "NaN", carry_generate(ctx, &m, &good, 1, &options, &result));
    carry_continuation_free(&result);
    carry_model_close(&m);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_text_is_that_of_the_full_forward),
        cmocka_unit_test(a_text_is_the_same_beside_others_as_alone),
        cmocka_unit_test(a_text_with_guesses_is_the_one_without),
        cmocka_unit_test(a_text_ends_before_the_stop),
        cmocka_unit_test(a_text_ends_at_the_end_token),
        cmocka_unit_test(an_interrupted_text_is_what_there_was),
        cmocka_unit_test(what_cannot_be_generated_is_refused),
    };
    return cmocka_run_group_tests_name("train/generate", tests, NULL, NULL);
}
