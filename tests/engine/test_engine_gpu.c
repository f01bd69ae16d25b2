/* carry/engine.h on a GPU: cached prefixes are used and change no text beyond rounding; concurrent requests end
   correctly while steps run ahead of the host; with same_bits an answer has the bits that it has alone. */
/* labels: gpu */
#include "gpu_model_support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "carry/engine.h"
#include "core/clock.h"
#include "core/memory.h"

enum { VOCABULARY = 200, LONGEST = 420, TOKENS = 20, REQUESTS = 24 };

static char folder[64];

static const char *in_folder(const char *name) {
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int make_folder(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    (void)snprintf(folder, sizeof folder, "/tmp/carry-engine-gpu-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    carry_lm *lm = gpu_rounded_model(ctx, gpu_config(VOCABULARY, 640));
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    carry_lm_free(lm);
    carry_ctx_free(ctx);
    return 0;
}

static int remove_folder(void **unused) {
    (void)unused;
    (void)unlink(in_folder("config.json"));
    (void)unlink(in_folder("model.safetensors"));
    return rmdir(folder);
}

typedef struct answer {
    int64_t token[TOKENS];
    double logprob[TOKENS];
    int64_t count, cached;
    carry_engine_reason reason;
} answer;

static carry_engine *open_engine(carry_ctx *ctx, int64_t sequences, bool no_cache, bool same_bits) {
    carry_engine *engine;
    const carry_engine_options options = {CARRY_INIT(carry_engine_options),
                                          .device = 1,
                                          .dtype = CARRY_BF16,
                                          .sequences = sequences,
                                          .context = LONGEST + TOKENS,
                                          .step_tokens = 256,
                                          .memory = (size_t)256 << 20,
                                          .no_cache = no_cache,
                                          .same_bits = same_bits};
    assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &options));
    return engine;
}

/* All prompts have the same first `shared` tokens. */
static uint64_t submit_for(carry_ctx *ctx, carry_engine *engine, int64_t shared, int64_t length, int64_t variant,
                           int64_t tokens, answer *a) {
    int64_t ids[LONGEST];
    uint64_t id;
    for (int64_t i = 0; i < length; i++) {
        ids[i] = (i * 3 + i / 7 + (i >= shared ? variant + 1 : 0)) % VOCABULARY;
    }
    *a = (answer){0};
    const carry_engine_request r = {CARRY_INIT(carry_engine_request),
                                    .ids = ids,
                                    .id_count = length,
                                    .tokens = tokens,
                                    .ignore_ends = true,
                                    .user = a};
    assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &id));
    return id;
}

static uint64_t submit(carry_ctx *ctx, carry_engine *engine, int64_t shared, int64_t length, int64_t variant,
                       answer *a) {
    return submit_for(ctx, engine, shared, length, variant, TOKENS, a);
}

static void take(const carry_engine_event *event) {
    answer *a = event->user;
    if (event->token >= 0) {
        assert_true(a->count < TOKENS);
        a->token[a->count] = event->token;
        a->logprob[a->count++] = event->logprob;
    } else {
        assert_int_equal(a->count, event->tokens);
        a->reason = event->reason;
        a->cached = event->cached_tokens;
    }
}

static void run(carry_ctx *ctx, carry_engine *engine, uint64_t cancelled, int64_t after) {
    int64_t steps = 0;
    for (bool is_busy = true; is_busy; steps++) {
        carry_engine_event event = {CARRY_INIT(carry_engine_event)};
        if (steps == after) {
            carry_engine_cancel(engine, cancelled);
        }
        assert_ok(ctx, carry_engine_step(engine, &is_busy));
        while (carry_engine_next(engine, &event)) {
            take(&event);
        }
    }
}

/* Rounding to bf16 changes log probabilities by some 0.01; the state of another text changes them by more than 1. */
static void assert_alike(const answer *a, const answer *b) {
    int64_t same = 0;
    for (; same < a->count && same < b->count && a->token[same] == b->token[same]; same++) {
        if (!(fabs(a->logprob[same] - b->logprob[same]) < 0.2)) {
            fail_msg("token %d: log probabilities %g and %g", (int)same, a->logprob[same], b->logprob[same]);
        }
    }
    if (same < a->count && same < b->count) { /* two tokens that are about equally likely */
        assert_true(fabs(a->logprob[same] - b->logprob[same]) < 0.2);
    }
}

static void prefixes_are_read_once(void **unused) {
    (void)unused;
    static const int64_t shared[] = {300, 300, 260, 128, 300}, lengths[] = {300, 300, 380, 300, 415};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_engine *cached = open_engine(ctx, 4, false, false);
    carry_engine *plain = open_engine(ctx, 1, true, false);
    for (int i = 0; i < 5; i++) { /* one after the other */
        answer with, without;
        (void)submit(ctx, cached, shared[i], lengths[i], i, &with);
        run(ctx, cached, 0, -1);
        (void)submit(ctx, plain, shared[i], lengths[i], i, &without);
        run(ctx, plain, 0, -1);
        print_message("prompt of %d tokens: %d cached\n", (int)lengths[i], (int)with.cached);
        assert_int_equal(with.reason, CARRY_REASON_LENGTH);
        assert_int_equal(without.cached, 0);
        /* Short prompts are cached at their end: repeating the prompt finds nothing, and leaves a state at 256. */
        assert_true(i < 2 ? with.cached == 0 : i == 4 ? with.cached >= 256 : with.cached <= shared[i]);
        assert_alike(&with, &without);
    }
    answer again; /* the branches of the third and fourth prompt are cached by now */
    (void)submit(ctx, cached, 260, 390, 2, &again);
    run(ctx, cached, 0, -1);
    assert_true(again.cached >= 256);
    carry_engine_close(plain);
    carry_engine_close(cached);
    carry_ctx_free(ctx);
}

static void requests_beside_each_other_end_as_they_should(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static answer alone[REQUESTS], together[REQUESTS];
    carry_engine *engine = open_engine(ctx, 1, true, false);
    for (int i = 0; i < REQUESTS; i++) {
        (void)submit(ctx, engine, 0, 3 + 17 * i, i, &alone[i]);
        run(ctx, engine, 0, -1);
        assert_int_equal(alone[i].count, TOKENS);
    }
    carry_engine_close(engine);
    for (int64_t sequences = 3; sequences <= REQUESTS; sequences *= 2) {
        engine = open_engine(ctx, sequences, sequences == 6, false);
        uint64_t fifth = 0;
        for (int i = 0; i < REQUESTS; i++) {
            const uint64_t id = submit(ctx, engine, 0, 3 + 17 * i, i, &together[i]);
            fifth = i == 4 ? id : fifth;
        }
        run(ctx, engine, fifth, 6);
        for (int i = 0; i < REQUESTS; i++) {
            assert_int_equal(together[i].reason, i == 4 ? CARRY_REASON_CANCELLED : CARRY_REASON_LENGTH);
            assert_alike(&together[i], &alone[i]);
        }
        carry_engine_stats stats = {CARRY_INIT(carry_engine_stats)};
        carry_engine_statistics(engine, &stats);
        assert_int_equal(stats.cancelled, 1);
        assert_int_equal(stats.failed, 0);
        carry_engine_close(engine);
    }
    carry_ctx_free(ctx);
}

/* Numbers of sequences for which products use one, two and four tiles. */
static void answers_have_the_same_bits_beside_others(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static answer alone[REQUESTS], together[REQUESTS];
    carry_engine *engine = open_engine(ctx, 1, true, true);
    for (int i = 0; i < REQUESTS; i++) {
        (void)submit(ctx, engine, 40, 3 + 17 * i, i % 5, &alone[i]);
        run(ctx, engine, 0, -1);
    }
    carry_engine_close(engine);
    for (int64_t sequences = 5; sequences <= 40; sequences *= 2) {
        engine = open_engine(ctx, sequences, sequences == 20, true);
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < REQUESTS; i++) {
                (void)submit(ctx, engine, 40, 3 + 17 * i, i % 5, &together[i]);
            }
            run(ctx, engine, 0, -1);
            for (int i = 0; i < REQUESTS; i++) {
                assert_int_equal(together[i].count, TOKENS);
                assert_memory_equal(together[i].token, alone[i].token, sizeof alone[i].token);
                assert_memory_equal(together[i].logprob, alone[i].logprob, sizeof alone[i].logprob);
            }
        }
        carry_engine_close(engine);
    }
    carry_ctx_free(ctx);
}

/* Requests of random lengths, a third of them cancelled; CARRY_ENGINE_REQUESTS=100000 for a long run. */
static void many_requests_are_answered_as_alone(void **unused) {
    (void)unused;
    enum { KINDS = 12, UNDER_WAY = 96, PROGRESS = 10000 };
    static const int64_t lengths[KINDS] = {1, 2, 3, 5, 9, 12, 17, 23, 30, 41, 64, 65};
    static const int64_t tokens[KINDS] = {20, 3, 9, 1, 14, 5, 18, 2, 11, 7, 16, 4};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const char *asked = getenv("CARRY_ENGINE_REQUESTS");
    const int64_t count = asked != NULL ? strtoll(asked, NULL, 10) : 300;
    carry_engine *engine = open_engine(ctx, 64, false, true);
    const double begin = carry_seconds();
    static answer alone[KINDS], answers[UNDER_WAY];
    int kind[UNDER_WAY];
    for (int i = 0; i < KINDS; i++) {
        (void)submit_for(ctx, engine, 3, lengths[i], i, tokens[i], &alone[i]);
        run(ctx, engine, 0, -1);
        assert_int_equal(alone[i].count, tokens[i]);
    }
    size_t held_there = 0; /* by this process alone: other tests may use the same GPU */
    double held = 0.0;
    int64_t submitted = 0;
    int64_t reported = 0;
    int64_t cancelled = 0;
    for (bool is_busy = true; is_busy || submitted < count;) {
        for (int i = 0; i < UNDER_WAY && submitted < count; i++) {
            if (submitted >= UNDER_WAY && answers[i].reason == CARRY_REASON_NONE) {
                continue;
            }
            kind[i] = (int)(submitted * 7 % KINDS);
            const uint64_t id = submit_for(ctx, engine, 3, lengths[kind[i]], kind[i], tokens[kind[i]], &answers[i]);
            if (submitted++ % 3 == 0 && id > 20) {
                carry_engine_cancel(engine, id - 19); /* under way, waiting or ended */
            }
        }
        if (held == 0.0 && submitted > count / 2) {
            held = carry_resident_bytes();
            held_there = carry_device_held(ctx, 1);
        }
        if (submitted >= reported + PROGRESS) {
            reported = submitted;
            print_message("%lld requests after %.1f s\n", (long long)submitted, carry_seconds() - begin);
        }
        carry_engine_event event = {CARRY_INIT(carry_engine_event)};
        assert_ok(ctx, carry_engine_step(engine, &is_busy));
        while (carry_engine_next(engine, &event)) {
            answer *a = event.user;
            take(&event);
            if (a->reason != CARRY_REASON_NONE) {
                const answer *expected = &alone[kind[a - answers]];
                assert_memory_equal(a->token, expected->token, (size_t)a->count * sizeof *a->token);
                assert_memory_equal(a->logprob, expected->logprob, (size_t)a->count * sizeof *a->logprob);
                assert_true(a->reason == CARRY_REASON_CANCELLED || a->count == expected->count);
                cancelled += a->reason == CARRY_REASON_CANCELLED;
            }
        }
    }
    const size_t held_now = carry_device_held(ctx, 1);
    print_message("%lld requests in %.1f s, %lld cancelled: host %+.1f MB, device %+.1f MB since the first half\n",
                  (long long)count, carry_seconds() - begin, (long long)cancelled,
                  1e-6 * (carry_resident_bytes() - held), 1e-6 * ((double)held_now - (double)held_there));
    assert_true(cancelled > count / 20);
    assert_true(carry_resident_bytes() - held < 4e6);
    assert_true(held_now < held_there + ((size_t)4 << 20));
    carry_engine_close(engine);
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_are_read_once),
        cmocka_unit_test(requests_beside_each_other_end_as_they_should),
        cmocka_unit_test(answers_have_the_same_bits_beside_others),
        cmocka_unit_test(many_requests_are_answered_as_alone),
    };
    return cmocka_run_group_tests_name("engine_gpu", tests, make_folder, remove_folder);
}
