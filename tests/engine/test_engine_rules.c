/* Rules of sampling of carry/engine.h: constraints, biases, penalties; states as cached prefixes. */
#include "hybrid_support.h"

#include <unistd.h>

#include "carry/engine.h"

enum { TOKENS = 24, PROMPT = 200, WORDS = 64 };

static char folder[64];

static int make_folder(void **unused) {
    (void)unused;
    (void)snprintf(folder, sizeof folder, "/tmp/carry-rules-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **unused) {
    (void)unused;
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    return rmdir(folder);
}

typedef struct answer {
    int64_t token[TOKENS];
    int64_t count, cached;
    carry_engine_reason reason;
    uint64_t state;
    char message[128];
} answer;

static void run(carry_ctx *ctx, carry_engine *engine) {
    for (bool is_busy = true; is_busy;) {
        carry_engine_event event = {CARRY_INIT(carry_engine_event)};
        assert_ok(ctx, carry_engine_step(engine, &is_busy));
        while (carry_engine_next(engine, &event)) {
            answer *a = event.user;
            if (event.token >= 0) {
                assert_true(a->count < TOKENS);
                a->token[a->count++] = event.token;
            } else {
                a->reason = event.reason;
                a->cached = event.cached_tokens;
                a->state = event.state;
                (void)snprintf(a->message, sizeof a->message, "%.120s", event.message);
            }
        }
    }
}

static carry_engine *open_engine(carry_ctx *ctx) {
    carry_lm *lm = model(ctx, hybrid(0));
    carry_engine *engine;
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    carry_lm_free(lm);
    assert_ok(ctx, carry_engine_open(ctx, &engine, folder,
                                     &(carry_engine_options){CARRY_INIT(carry_engine_options), .sequences = 4,
                                                             .context = 512, .memory = (size_t)64 << 20}));
    return engine;
}

static carry_engine_request request_of(const carry_engine *engine, int64_t ids[PROMPT], answer *a) {
    for (int64_t i = 0; i < PROMPT; i++) {
        ids[i] = (i * 3 + i / 7) % carry_engine_vocabulary(engine);
    }
    *a = (answer){0};
    return (carry_engine_request){CARRY_INIT(carry_engine_request),
                                  .ids = ids,
                                  .id_count = PROMPT,
                                  .tokens = TOKENS,
                                  .temperature = 1.0,
                                  .seed = 7,
                                  .logprobs = -1,
                                  .ignore_ends = true,
                                  .user = a};
}

static void submit(carry_ctx *ctx, carry_engine *engine, const carry_engine_request *r) {
    uint64_t id;
    assert_ok(ctx, carry_engine_submit(ctx, engine, r, &id));
}

/* Allows even tokens after odd ones and the reverse; fails after `fails_at` tokens, unless that is 0. */
typedef struct alternation {
    int64_t vocabulary, calls, fails_at;
    bool is_told_all; /* the last token of every call was the sampled one */
    const answer *text;
} alternation;

static bool alternate(void *user, int64_t last, uint32_t *allowed) {
    alternation *c = user;
    const int64_t expected = c->calls == 0 ? -1 : c->text->token[c->calls - 1];
    c->is_told_all = c->is_told_all && last == expected;
    for (int64_t i = 0; i < c->vocabulary; i++) {
        if (last >= 0 && (i & 1) == (last & 1)) {
            allowed[i / 32] &= ~(1u << i % 32);
        }
    }
    c->calls++;
    return c->calls != c->fails_at;
}

static void constraints_choose_among_the_allowed_tokens(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_engine *engine = open_engine(ctx);
    int64_t ids[PROMPT];
    answer a;
    answer beside;
    alternation c = {.vocabulary = carry_engine_vocabulary(engine), .is_told_all = true, .text = &a};
    carry_engine_request r = request_of(engine, ids, &a);
    r.constrain = alternate;
    r.constraint = &c;
    submit(ctx, engine, &r);
    carry_engine_request free_one = request_of(engine, ids, &beside);
    submit(ctx, engine, &free_one);
    run(ctx, engine);
    assert_int_equal(a.count, TOKENS);
    assert_int_equal(c.calls, TOKENS);
    assert_true(c.is_told_all);
    for (int i = 1; i < TOKENS; i++) {
        assert_int_not_equal(a.token[i] & 1, a.token[i - 1] & 1);
    }
    assert_int_equal(beside.count, TOKENS);
    carry_engine_close(engine);
    carry_ctx_free(ctx);
}

static void a_constraint_that_fails_ends_its_request_alone(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_engine *engine = open_engine(ctx);
    int64_t ids[PROMPT];
    answer a;
    answer beside;
    alternation c = {.vocabulary = carry_engine_vocabulary(engine), .fails_at = 6, .text = &a};
    carry_engine_request r = request_of(engine, ids, &a);
    r.constrain = alternate;
    r.constraint = &c;
    submit(ctx, engine, &r);
    carry_engine_request free_one = request_of(engine, ids, &beside);
    submit(ctx, engine, &free_one);
    run(ctx, engine);
    assert_int_equal(a.reason, CARRY_REASON_FAILED);
    assert_int_equal(a.count, 5);
    assert_non_null(strstr(a.message, "constraint"));
    assert_int_equal(beside.count, TOKENS);
    carry_engine_close(engine);
    carry_ctx_free(ctx);
}

static int64_t distinct(const answer *a) {
    int64_t count = 0;
    for (int64_t i = 0; i < a->count; i++) {
        bool is_new = true;
        for (int64_t j = 0; j < i; j++) {
            is_new = is_new && a->token[j] != a->token[i];
        }
        count += is_new;
    }
    return count;
}

static void biases_and_penalties_change_logits(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_engine *engine = open_engine(ctx);
    int64_t ids[PROMPT];
    answer a;
    const int64_t forced[] = {3, 5};
    const float biases[] = {1e4f, 1e4f};
    carry_engine_request r = request_of(engine, ids, &a);
    r.bias_ids = forced;
    r.biases = biases;
    r.bias_count = 1;
    submit(ctx, engine, &r);
    run(ctx, engine);
    assert_int_equal(a.count, TOKENS);
    assert_int_equal(distinct(&a), 1);
    assert_int_equal(a.token[0], 3);

    a = (answer){0};
    r.presence = 1e6; /* each token of the vocabulary once, then any */
    submit(ctx, engine, &r);
    run(ctx, engine);
    a.count = carry_engine_vocabulary(engine);
    assert_true(a.count <= TOKENS);
    assert_int_equal(distinct(&a), a.count);

    a = (answer){0};
    r.presence = 0.0;
    r.frequency = 3e3; /* a bias of 1e4 is used up after 4 occurrences */
    r.bias_count = 2;
    submit(ctx, engine, &r);
    run(ctx, engine);
    for (int64_t i = 0; i < 9; i++) {
        assert_int_equal(a.token[i] == 3 || a.token[i] == 5, i < 8);
    }

    uint64_t id;
    r.bias_ids = (const int64_t[]){carry_engine_vocabulary(engine), 0};
    assert_int_equal(carry_engine_submit(ctx, engine, &r, &id), CARRY_ERANGE);
    carry_engine_close(engine);
    carry_ctx_free(ctx);
}

static void a_state_becomes_a_cached_prefix(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_engine *engine = open_engine(ctx);
    int64_t ids[PROMPT];
    answer plain;
    answer a;
    carry_engine_request r = request_of(engine, ids, &plain);
    r.no_cache = true;
    submit(ctx, engine, &r);
    run(ctx, engine);
    r = request_of(engine, ids, &a);
    r.id_count = PROMPT - 9;
    r.tokens = 0;
    r.keep_state = true;
    r.no_cache = true;
    submit(ctx, engine, &r);
    run(ctx, engine);
    assert_true(a.state != 0);
    assert_ok(ctx, carry_engine_state_cache(engine, a.state));
    assert_ok(ctx, carry_engine_state_drop(engine, a.state));
    assert_int_equal(carry_engine_state_cache(engine, a.state), CARRY_ENOTFOUND);
    r = request_of(engine, ids, &a);
    submit(ctx, engine, &r);
    run(ctx, engine);
    assert_int_equal(a.cached, PROMPT - 9);
    assert_memory_equal(a.token, plain.token, sizeof a.token);
    carry_engine_close(engine);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constraints_choose_among_the_allowed_tokens),
        cmocka_unit_test(a_constraint_that_fails_ends_its_request_alone),
        cmocka_unit_test(biases_and_penalties_change_logits),
        cmocka_unit_test(a_state_becomes_a_cached_prefix),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
