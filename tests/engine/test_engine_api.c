/* carry/engine.h over small models of every family: a request has the same tokens beside others as alone, with the
   cache as without, and after states were forked, rolled back, saved and loaded. */
#include "hybrid_support.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carry/engine.h"
#include "core/memory.h"

enum { PROMPTS = 12, TOKENS = 24, LONGEST = 400 };

static char folder[64];

static int make_folder(void **unused) {
    (void)unused;
    (void)snprintf(folder, sizeof folder, "/tmp/carry-engine-XXXXXX");
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

static void save_model(carry_ctx *ctx, carry_lm_config config) {
    carry_lm *lm = model(ctx, config);
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    carry_lm_free(lm);
}

typedef struct answer {
    int64_t token[64];
    int64_t count, prompt, cached;
    carry_engine_reason reason;
    carry_status status;
    uint64_t state;
    char text[512];
    char message[128];
    bool has_ended;
} answer;

static void take(const carry_engine_event *event) {
    answer *a = event->user;
    assert_false(a->has_ended);
    (void)strncat(a->text, event->text, event->text_bytes);
    if (event->token >= 0) {
        assert_true(a->count < 64);
        a->token[a->count++] = event->token;
        return;
    }
    a->has_ended = true;
    a->reason = event->reason;
    a->status = event->status;
    a->prompt = event->prompt_tokens;
    a->cached = event->cached_tokens;
    a->state = event->state;
    assert_int_equal(a->count, event->tokens);
    (void)snprintf(a->message, sizeof a->message, "%.120s", event->message);
}

static void run(carry_ctx *ctx, carry_engine *engine) {
    for (bool is_busy = true; is_busy;) {
        carry_engine_event event = {CARRY_INIT(carry_engine_event)};
        assert_ok(ctx, carry_engine_step(engine, &is_busy));
        while (carry_engine_next(engine, &event)) {
            take(&event);
        }
    }
}

static carry_engine_request request_of(const int64_t *ids, int64_t count, answer *a) {
    return (carry_engine_request){CARRY_INIT(carry_engine_request),
                                  .ids = ids,
                                  .id_count = count,
                                  .tokens = TOKENS,
                                  .temperature = 0.7,
                                  .seed = 5,
                                  .logprobs = -1,
                                  .ignore_ends = true,
                                  .user = a};
}

static void fill_ids(int64_t *ids, int64_t count, int64_t vocabulary, int64_t step) {
    for (int64_t i = 0; i < count; i++) {
        ids[i] = (i * step + i / 7) % vocabulary;
    }
}

/* Prompts of different lengths, most of which have the same beginning. */
static int64_t make_prompt(int which, int64_t ids[LONGEST], int64_t vocabulary) {
    static const int64_t lengths[PROMPTS] = {1, 3, 64, 65, 130, 131, 200, 250, 300, 300, 399, 400};
    fill_ids(ids, LONGEST, vocabulary, which % 4 == 3 ? 5 : 3);
    return lengths[which];
}

static void submit_all(carry_ctx *ctx, carry_engine *engine, answer *answers, int64_t vocabulary) {
    for (int i = 0; i < PROMPTS; i++) {
        int64_t ids[LONGEST];
        const int64_t count = make_prompt(i, ids, vocabulary);
        const carry_engine_request r = request_of(ids, count, &answers[i]);
        uint64_t id;
        assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &id));
    }
}

static void texts_are_the_same_beside_others_and_with_the_cache(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int which = 0; which < HYBRIDS; which++) {
        if (which % 3 == support_cases(-1, 0)) {
            continue; /* states_are_objects runs these models */
        }
        save_model(ctx, hybrid(which));
        answer alone[PROMPTS] = {0};
        carry_engine *engine;
        carry_engine_options options = {
            CARRY_INIT(carry_engine_options), .sequences = 1,   .context = LONGEST + 64, .step_tokens = 128,
            .memory = (size_t)64 << 20,       .no_cache = true, .same_bits = true};
        assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &options));
        submit_all(ctx, engine, alone, carry_engine_vocabulary(engine));
        run(ctx, engine);
        carry_engine_close(engine);
        options.sequences = 5;
        options.no_cache = false;
        assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &options));
        for (int round = 0; round < 2; round++) {
            answer together[PROMPTS] = {0};
            int64_t cached = 0;
            submit_all(ctx, engine, together, carry_engine_vocabulary(engine));
            run(ctx, engine);
            for (int i = 0; i < PROMPTS; i++) {
                assert_int_equal(alone[i].count, TOKENS);
                assert_int_equal(together[i].count, TOKENS);
                assert_int_equal(together[i].reason, CARRY_REASON_LENGTH);
                assert_memory_equal(together[i].token, alone[i].token, sizeof alone[i].token);
                cached += together[i].cached;
            }
            assert_true(cached > round * 1200);
        }
        carry_engine_close(engine);
    }
    carry_ctx_free(ctx);
}

/* Continues with two tokens and returns the answer. */
static answer go_on(carry_ctx *ctx, carry_engine *engine, uint64_t state) {
    static const int64_t more[] = {1, 2};
    answer a = {0};
    carry_engine_request r = request_of(more, 2, &a);
    uint64_t id;
    r.state = state;
    assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &id));
    run(ctx, engine);
    assert_true(a.has_ended && a.count == TOKENS);
    return a;
}

static void states_are_objects(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int which = 0; which < HYBRIDS; which += 3) {
        int64_t ids[LONGEST];
        carry_engine *engine;
        uint64_t fork;
        uint64_t loaded;
        uint64_t id;
        save_model(ctx, hybrid(which));
        carry_engine_options options = {CARRY_INIT(carry_engine_options), .sequences = 4, .context = LONGEST + 128,
                                        .memory = (size_t)64 << 20, .same_bits = true};
        assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &options));
        fill_ids(ids, LONGEST, carry_engine_vocabulary(engine), 3);
        answer a = {0};
        carry_engine_request r = request_of(ids, 200, &a);
        r.keep_state = true;
        assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &id));
        run(ctx, engine);
        assert_true(a.state != 0);
        assert_ok(ctx, carry_engine_state_fork(engine, a.state, &fork));
        assert_ok(ctx, carry_engine_state_save(engine, fork, in_folder("state")));
        const answer whole = go_on(ctx, engine, a.state);
        assert_ok(ctx, carry_engine_state_roll_back(engine, a.state, 10));
        const answer back = go_on(ctx, engine, a.state);
        /* The same as a text whose answer was ten tokens shorter. */
        answer b = {0};
        r = request_of(ids, 200, &b);
        r.tokens = TOKENS - 10;
        r.keep_state = true;
        assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &id));
        run(ctx, engine);
        assert_memory_equal(b.token, a.token, (TOKENS - 10) * sizeof *b.token);
        const answer expected = go_on(ctx, engine, b.state);
        assert_memory_equal(back.token, expected.token, sizeof back.token);
        assert_memory_equal(go_on(ctx, engine, fork).token, whole.token, sizeof whole.token);
        carry_engine_close(engine);
        assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &options)); /* another start */
        assert_ok(ctx, carry_engine_state_load(engine, &loaded, in_folder("state")));
        assert_memory_equal(go_on(ctx, engine, loaded).token, whole.token, sizeof whole.token);
        assert_ok(ctx, carry_engine_state_drop(engine, loaded));
        assert_refused(ctx, CARRY_ENOTFOUND, "there is no state", carry_engine_state_drop(engine, loaded));
        carry_engine_close(engine);
    }
    carry_ctx_free(ctx);
}

static void texts_are_decoded_and_stopped(void **unused) {
    (void)unused;
#if !defined(CARRY_HAVE_PCRE2)
    skip(); /* no tokenizers */
#endif
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config config = small(&carry_lm_family_gated_deltanet);
    config.vocab_size = 256; /* bytes */
    save_model(ctx, config);
    carry_engine *engine;
    assert_ok(ctx, carry_engine_open(ctx, &engine, folder, NULL));
    answer whole = {0};
    answer stopped = {0};
    carry_engine_request r = request_of(NULL, 0, &whole);
    uint64_t id;
    r.text = "The delta rule";
    r.text_bytes = 14;
    assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &id));
    run(ctx, engine);
    assert_true(strlen(whole.text) >= TOKENS && whole.prompt == 14);
    char stop[4] = {0};
    memcpy(stop, strchr(whole.text, 0) - 6, 3); /* a stop of three bytes of the text, wherever it occurs first */
    r.stops = (const char *const[]){stop};
    r.stop_count = 1;
    r.user = &stopped;
    assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &id));
    run(ctx, engine);
    const size_t length = (size_t)(strstr(whole.text, stop) - whole.text);
    assert_int_equal(stopped.reason, CARRY_REASON_STOP);
    assert_int_equal(strlen(stopped.text), length);
    assert_memory_equal(stopped.text, whole.text, length);
    assert_string_equal(carry_engine_reason_name(stopped.reason), "stop");
    carry_engine_close(engine);
    carry_ctx_free(ctx);
}

static void bad_requests_are_refused_by_name(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    save_model(ctx, hybrid(0));
    carry_engine *engine;
    carry_engine_options options = {CARRY_INIT(carry_engine_options), .sequences = 2, .context = 100, .queue = 1,
                                    .memory = 1000};
    assert_refused(ctx, CARRY_ESIZE, "and 1000 are allowed", carry_engine_open(ctx, &engine, folder, &options));
    assert_null(engine);
    assert_refused(ctx, CARRY_EARGUMENT, "CARRY_INIT",
                   carry_engine_open(ctx, &engine, folder, &(carry_engine_options){.sequences = 2}));
    options.memory = 0;
    for (int i = 0; i < 3; i++) {
        carry_engine_options large = options;
        *(i == 0 ? &large.sequences : i == 1 ? &large.context : &large.step_tokens) = INT64_MAX - 5;
        assert_refused(ctx, CARRY_EARGUMENT, "at most 1073741824", carry_engine_open(ctx, &engine, folder, &large));
    }
    assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &options));
    int64_t ids[200];
    uint64_t id;
    fill_ids(ids, 200, carry_engine_vocabulary(engine), 3);
    carry_engine_request r = request_of(ids, 0, NULL);
    assert_refused(ctx, CARRY_EARGUMENT, "the prompt is empty", carry_engine_submit(ctx, engine, &r, &id));
    r.id_count = 100;
    assert_refused(ctx, CARRY_ESIZE, "longer than the context of 100", carry_engine_submit(ctx, engine, &r, &id));
    r.id_count = 10;
    ids[4] = carry_engine_vocabulary(engine);
    assert_refused(ctx, CARRY_ERANGE, "token 4 of the prompt", carry_engine_submit(ctx, engine, &r, &id));
    ids[4] = 1;
    r.end_count = 1;
    assert_refused(ctx, CARRY_EARGUMENT, "without end tokens", carry_engine_submit(ctx, engine, &r, &id));
    r.end_count = 0;
    r.text = "a";
    assert_refused(ctx, CARRY_EARGUMENT, "ids or text", carry_engine_submit(ctx, engine, &r, &id));
    r.ids = NULL;
    assert_refused(ctx, CARRY_EARGUMENT, "has no tokenizer", carry_engine_submit(ctx, engine, &r, &id));
    answer answers[3] = {0};
    uint64_t last = 0;
    for (int i = 0; i < 3; i++) {
        r = request_of(ids, 10, &answers[i]);
        assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &last));
    }
    assert_refused(ctx, CARRY_ESIZE, "the queue is full: 1 requests wait", carry_engine_submit(ctx, engine, &r, &id));
    carry_engine_cancel(engine, last);
    carry_engine_cancel(engine, 12345);
    run(ctx, engine);
    assert_int_equal(answers[2].reason, CARRY_REASON_CANCELLED);
    assert_int_equal(answers[0].reason, CARRY_REASON_LENGTH);
    carry_engine_stats stats = {CARRY_INIT(carry_engine_stats)};
    carry_engine_statistics(engine, &stats);
    assert_int_equal(stats.requests, 3);
    assert_int_equal(stats.cancelled, 1);
    r = request_of(ids, 10, &answers[0]);
    assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &id));
    carry_engine_close(engine); /* with a request under way */
    carry_ctx_free(ctx);
}

typedef struct inside {
    carry_ctx *ctx;
    carry_engine *engine;
    uint64_t kept, made; /* states: one made before, and a fork of it */
    int tokens, constrained, ends, errors;
} inside;

static void count_errors(void *user, carry_log_level level, const char *line) {
    ((inside *)user)->errors += level == CARRY_LOG_ERROR && strstr(line, "carry_engine_close was called") != NULL;
}

static void drive_inside(inside *in) {
    bool is_busy = false;
    const char *message = "call it after the step has returned";
    assert_refused(in->ctx, CARRY_EARGUMENT, message, carry_engine_step(in->engine, &is_busy));
    assert_refused(in->ctx, CARRY_EARGUMENT, message, carry_engine_run(in->engine));
    assert_refused(in->ctx, CARRY_EARGUMENT, message, carry_engine_state_roll_back(in->engine, in->kept, 1));
    carry_engine_close(in->engine);
}

static bool on_event_inside(void *user, const carry_engine_event *event) {
    inside *in = user;
    drive_inside(in);
    in->tokens += event->token >= 0;
    in->ends += event->token < 0;
    if (event->token < 0) { /* states and requests can be used */
        int64_t ids[] = {1, 2};
        uint64_t id;
        const carry_engine_request r = request_of(ids, 2, NULL);
        assert_ok(in->ctx, carry_engine_state_fork(in->engine, in->kept, &in->made));
        assert_ok(in->ctx, carry_engine_state_drop(in->engine, in->kept));
        assert_ok(in->ctx, carry_engine_submit(in->ctx, in->engine, &r, &id));
        carry_engine_cancel(in->engine, id);
    }
    return true;
}

static bool constrain_inside(void *user, int64_t last, uint32_t *allowed) {
    (void)last;
    (void)allowed;
    ((inside *)user)->constrained++;
    drive_inside(user);
    return true;
}

/* A callback that drives its own engine is refused; the request ends as without it. */
static void callbacks_cannot_drive_their_engine(void **unused) {
    (void)unused;
    inside in = {0};
    assert_int_equal(carry_ctx_new(&in.ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                 .log = count_errors, .log_user = &in}),
                     CARRY_OK);
    save_model(in.ctx, hybrid(0));
    assert_ok(in.ctx, carry_engine_open(in.ctx, &in.engine, folder,
                                        &(carry_engine_options){CARRY_INIT(carry_engine_options), .sequences = 2,
                                                                .context = 200, .memory = (size_t)16 << 20}));
    int64_t ids[50];
    uint64_t id;
    answer alone = {0};
    fill_ids(ids, 50, carry_engine_vocabulary(in.engine), 3);
    carry_engine_request r = request_of(ids, 50, &alone);
    r.keep_state = true;
    assert_ok(in.ctx, carry_engine_submit(in.ctx, in.engine, &r, &id));
    run(in.ctx, in.engine);
    in.kept = alone.state;
    r = request_of(ids, 50, NULL);
    r.on_event = on_event_inside;
    r.constrain = constrain_inside;
    r.user = r.constraint = &in;
    assert_ok(in.ctx, carry_engine_submit(in.ctx, in.engine, &r, &id));
    assert_ok(in.ctx, carry_engine_run(in.engine));
    assert_int_equal(in.tokens, TOKENS);
    assert_int_equal(in.ends, 1);
    assert_int_equal(in.constrained, TOKENS);
    assert_int_equal(in.errors, 2 * TOKENS + 1);
    assert_ok(in.ctx, carry_engine_state_roll_back(in.engine, in.made, 1)); /* outside it works */
    carry_engine_close(in.engine);
    carry_ctx_free(in.ctx);
}

typedef struct client {
    carry_engine *engine;
    answer answers[40];
    int refused;
} client;

static void *submit_from_thread(void *argument) {
    client *c = argument;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    int64_t ids[LONGEST];
    fill_ids(ids, LONGEST, carry_engine_vocabulary(c->engine), 3);
    for (int i = 0; i < 40; i++) {
        const carry_engine_request r = request_of(ids, 5 + i, &c->answers[i]);
        uint64_t id;
        const carry_status status = carry_engine_submit(ctx, c->engine, &r, &id);
        c->refused += status != CARRY_OK;
        if (status == CARRY_OK && i % 3 == 0) {
            carry_engine_cancel(c->engine, id);
        }
    }
    carry_ctx_free(ctx);
    return NULL;
}

static void threads_submit_and_cancel(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    save_model(ctx, hybrid(0));
    static client clients[3];
    pthread_t threads[3];
    carry_engine *engine;
    assert_ok(ctx, carry_engine_open(ctx, &engine, folder, NULL));
    assert_false(carry_engine_wait(engine, 0.0));
    for (int i = 0; i < 3; i++) {
        clients[i] = (client){.engine = engine};
        assert_int_equal(pthread_create(&threads[i], NULL, submit_from_thread, &clients[i]), 0);
    }
    carry_engine_stats stats = {CARRY_INIT(carry_engine_stats)};
    while (stats.finished < 120) {
        (void)carry_engine_wait(engine, 0.01);
        run(ctx, engine);
        carry_engine_statistics(engine, &stats);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(clients[i].refused, 0);
        for (int j = 0; j < 40; j++) {
            const answer *a = &clients[i].answers[j];
            assert_true(a->has_ended && (a->reason == CARRY_REASON_LENGTH || j % 3 == 0));
        }
    }
    carry_engine_close(engine);
    carry_ctx_free(ctx);
}

/* Requests of random lengths, a third of them cancelled; CARRY_ENGINE_REQUESTS=100000 for a long run. */
static void many_requests_are_answered_as_alone(void **unused) {
    (void)unused;
    enum { UNDER_WAY = 24 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    const char *asked = getenv("CARRY_ENGINE_REQUESTS");
    const int64_t count = asked != NULL ? strtoll(asked, NULL, 10) : support_cases(600, 100);
    carry_engine *engine;
    carry_engine_options options = {CARRY_INIT(carry_engine_options), .sequences = 8,
                                    .context = LONGEST + 64,          .step_tokens = 128,
                                    .memory = (size_t)4 << 20,        .same_bits = true};
    save_model(ctx, hybrid(0));
    assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &options));
    const int64_t vocabulary = carry_engine_vocabulary(engine);
    answer alone[PROMPTS] = {0};
    submit_all(ctx, engine, alone, vocabulary);
    run(ctx, engine);
    static answer answers[UNDER_WAY];
    int which[UNDER_WAY];
    memset(answers, 0, sizeof answers);
    double held = 0.0;
    int64_t submitted = 0;
    int64_t cancelled = 0;
    for (bool is_busy = true; is_busy || submitted < count;) {
        for (int i = 0; i < UNDER_WAY && submitted < count; i++) {
            if (submitted >= UNDER_WAY && !answers[i].has_ended) {
                continue;
            }
            int64_t ids[LONGEST];
            uint64_t id;
            answers[i] = (answer){0};
            which[i] = (int)(submitted * 7 % PROMPTS);
            const carry_engine_request r = request_of(ids, make_prompt(which[i], ids, vocabulary), &answers[i]);
            assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &id));
            if (submitted++ % 3 == 0 && id > 9) {
                carry_engine_cancel(engine, id - 9); /* under way, waiting or ended */
            }
        }
        held = held == 0.0 && submitted > count / 2 ? carry_resident_bytes() : held;
        carry_engine_event event = {CARRY_INIT(carry_engine_event)};
        assert_ok(ctx, carry_engine_step(engine, &is_busy));
        while (carry_engine_next(engine, &event)) {
            answer *a = event.user;
            take(&event);
            if (a->has_ended) {
                const answer *expected = &alone[which[a - answers]];
                assert_memory_equal(a->token, expected->token, (size_t)a->count * sizeof *a->token);
                assert_true(a->reason == CARRY_REASON_CANCELLED || a->count == TOKENS);
                cancelled += a->reason == CARRY_REASON_CANCELLED;
            }
        }
    }
    assert_true(cancelled > count / 20);
    if (!SUPPORT_SANITIZED) {
        assert_true(carry_resident_bytes() - held < 4e6);
    }
    carry_engine_close(engine);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_the_same_beside_others_and_with_the_cache),
        cmocka_unit_test(states_are_objects),
        cmocka_unit_test(texts_are_decoded_and_stopped),
        cmocka_unit_test(bad_requests_are_refused_by_name),
        cmocka_unit_test(callbacks_cannot_drive_their_engine),
        cmocka_unit_test(threads_submit_and_cancel),
        cmocka_unit_test(many_requests_are_answered_as_alone),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
