/* Keys and values in fp8 and states in bf16: log probabilities are close to those of f32, `same_bits` holds, and states
   of each type are forked, rolled back, saved, loaded and cached; other types are refused by name. */
#include "runner_support.h"

#include <dirent.h>
#include <unistd.h>

#include "carry/engine.h"
#include "core/tensor.h"
#include "engine/model_folder.h"

#define GOLDEN CARRY_SOURCE "/tests/golden/vectors/"

static const carry_state_types all_types[] = {{CARRY_F32, CARRY_F32},
                                              {CARRY_F8, CARRY_F32},
                                              {CARRY_F32, CARRY_BF16},
                                              {CARRY_F8, CARRY_BF16},
                                              {CARRY_BF16, CARRY_F32}};
enum { TYPES = sizeof all_types / sizeof *all_types };

/* The bound of the relative RMS of log probabilities. An 8-bit float has an error of at most 2^-4, a bf16 of 2^-9; an
   error of a key changes a weight by as much as the score, which is of the order of 1, and the errors of many keys
   average out. With bf16, errors of 2^-9 grow by some factor through the layers. A state in bf16 is rounded for every
   token, and the errors of tokens that it still knows add up. */
static double bound_of(const carry_state_types *types) {
    const double kv = types->kv == CARRY_F8 ? 0x1p-3 : types->kv == CARRY_BF16 ? 0x1p-7 : 0.0;
    const double state = types->state == CARRY_BF16 ? 0x1p-4 : 0.0;
    return kv + state > 0.0 ? kv + state : 1e-5;
}

/* In most tokens: in small models with random weights a rounding may choose another expert, or the other of two signs,
   which changes what follows. */
static void every_type_is_close_to_f32_in_every_model(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    for (int i = 0; i < RUNNER_MODELS * TYPES; i++) {
        const carry_state_types *types = &all_types[i % TYPES];
        if (!support_takes(i, 11)) {
            continue;
        }
        int of;
        carry_lm *lm = model(ctx, runner_model(i / TYPES));
        runner_open_typed(&c, lm, CARRY_F32, false, types, 7 + (uint32_t)i);
        runner_finish(&c, false);
        const int different = runner_differences(&c, lm, bound_of(types), i % TYPES == 0, &of);
        if (different > of / 8) {
            fail_msg("model %d, types %d: %d of %d tokens differ", i / TYPES, i % TYPES, different, of);
        }
        c.runner->ops->close(c.runner);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

static void same_bits_hold_in_every_type(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case one;
    static runner_case two;
    for (int i = 0; i < RUNNER_MODELS * TYPES; i++) {
        const carry_state_types *types = &all_types[i % TYPES];
        if (!support_takes(i, 11)) {
            continue;
        }
        carry_lm *lm = model(ctx, runner_model(i / TYPES));
        runner_open_typed(&one, lm, CARRY_F32, true, types, 3);
        runner_open_typed(&two, lm, CARRY_F32, true, types, 1000 + (uint32_t)i);
        runner_finish(&one, true);
        runner_finish(&two, false);
        for (int at = 0; at < RUNNER_SEQUENCES * RUNNER_TOKENS; at++) {
            const int s = at / RUNNER_TOKENS;
            const int t = at % RUNNER_TOKENS;
            if (one.has[s][t] && two.has[s][t] && memcmp(one.got[s][t], two.got[s][t], sizeof one.got[s][t]) != 0) {
                fail_msg("model %d, types %d, sequence %d, token %d: other bits", i / TYPES, i % TYPES, s, t);
            }
        }
        one.runner->ops->close(one.runner);
        two.runner->ops->close(two.runner);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* The largest relative RMS, over the tokens, of the 20 largest log probabilities. The first half is one piece, the rest
   single tokens. */
static double golden_distance(carry_ctx *ctx, const char *name, const carry_state_types *types) {
    char path[256];
    carry_model m;
    carry_safetensors expected;
    carry_runner *r;
    int32_t pages[4] = {2, 0, 3, 1};
    int32_t ids[128];
    double most = 0.0;
    (void)snprintf(path, sizeof path, GOLDEN "%s", name);
    assert_ok(ctx, carry_model_open_bare(ctx, &m, path, 0));
    (void)snprintf(path, sizeof path, GOLDEN "%s/expected.safetensors", name);
    assert_ok(ctx, carry_safetensors_open(ctx, &expected, path));
    const carry_tensor *logits = carry_safetensors_find(&expected, "logits");
    const carry_tensor *given = carry_safetensors_find(&expected, "input_ids");
    const int64_t T = given->shape[1];
    const int64_t V = logits->shape[2];
    const carry_runner_sizes sizes = {.slots = 1, .pages = 4, .sequences = 1, .tokens = 128, .context = 128};
    const carry_sampling greedy = {.top_p = 1.0};
    assert_true(T <= 128);
    for (int64_t i = 0; i < T; i++) {
        ids[i] = (int32_t)((const int64_t *)given->data)[i];
    }
    assert_ok(ctx,
              carry_model_runner_new_with(m.lm, &r, &sizes, CARRY_F32, &(carry_model_runner_options){.types = types}));
    assert_ok(ctx, r->ops->clear_slot(r, 0));
    for (int64_t at = 0; at < T;) {
        carry_run_result result;
        const int64_t count = at == 0 ? T / 2 : 1;
        const carry_run run = {.pages = pages,
                               .length = at,
                               .ids = ids + at,
                               .count = count,
                               .wants_token = true,
                               .sampling = &greedy,
                               .logprobs = CARRY_RUN_LOGPROBS};
        assert_ok(ctx, r->ops->step(r, &run, 1));
        assert_ok(ctx, r->ops->results(r, &result, 1));
        at += count;
        const float *row = (const float *)logits->data + (at - 1) * V;
        float wanted[CARRY_RUN_LOGPROBS];
        double sum = 0.0;
        for (int64_t i = 0; i < V; i++) {
            sum += exp((double)row[i]);
        }
        for (int i = 0; i < CARRY_RUN_LOGPROBS; i++) {
            wanted[i] = (float)((double)row[result.top[i]] - log(sum));
        }
        const double far = apart_f32(result.top_logprob, wanted, CARRY_RUN_LOGPROBS);
        most = far > most ? far : most;
    }
    r->ops->close(r);
    carry_safetensors_close(&expected);
    carry_model_close(&m);
    return most;
}

static void golden_hybrids_are_close_to_their_vectors(void **unused) {
    (void)unused;
    static const char *const names[] = {"lm-qwen3_5", "lm-qwen3_next-dense", "lm-olmo_hybrid",
                                        "lm-granitemoehybrid-bias", "lm-kimi_linear-bias"};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int j = 0; j < TYPES; j++) {
            if (!support_takes((int)i * TYPES + j, 4)) {
                continue;
            }
            const double far = golden_distance(ctx, names[i], &all_types[j]);
            const double allowed = j == 0 ? 1e-4 : bound_of(&all_types[j]);
            print_message("%s, keys and values %s, states %s: %.2g apart\n", names[i],
                          carry_state_types_name(all_types[j].kv), carry_state_types_name(all_types[j].state), far);
            if (!(far <= allowed)) {
                fail_msg("%s, types %d: %g apart, %g allowed", names[i], j, far, allowed);
            }
        }
    }
    carry_ctx_free(ctx);
}

static char folder[64];

static const char *in_folder(const char *name) {
    static char path[2][256];
    static int turn;
    turn ^= 1;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

enum { TOKENS = 20, PROMPT = 200 };

typedef struct answer {
    int64_t token[TOKENS], count, cached;
    uint64_t state;
} answer;

static answer ask(carry_ctx *ctx, carry_engine *engine, const int64_t *ids, int64_t count, uint64_t state) {
    answer a = {0};
    uint64_t id;
    const carry_engine_request r = {CARRY_INIT(carry_engine_request),
                                    .ids = ids,
                                    .id_count = count,
                                    .tokens = TOKENS,
                                    .ignore_ends = true,
                                    .state = state,
                                    .keep_state = state == 0};
    assert_ok(ctx, carry_engine_submit(ctx, engine, &r, &id));
    for (bool is_busy = true; is_busy;) {
        carry_engine_event e = {CARRY_INIT(carry_engine_event)};
        assert_ok(ctx, carry_engine_step(engine, &is_busy));
        while (carry_engine_next(engine, &e)) {
            if (e.token >= 0) {
                assert_true(a.count < TOKENS);
                a.token[a.count++] = e.token;
            } else {
                assert_int_equal(e.reason, CARRY_REASON_LENGTH);
                a.cached = e.cached_tokens;
                a.state = e.state;
            }
        }
    }
    return a;
}

static carry_engine_options options_of(const char *kv, const char *state) {
    return (carry_engine_options){CARRY_INIT(carry_engine_options),
                                  .sequences = 3,
                                  .context = 512,
                                  .memory = (size_t)32 << 20,
                                  .same_bits = true,
                                  .kv_type = kv,
                                  .state_type = state};
}

static const struct {
    const char *kv, *state;
} named[] = {{"fp8", NULL}, {NULL, "bf16"}, {"fp8", "bf16"}, {"bf16", "f32"}};
enum { NAMED = sizeof named / sizeof *named };

static void fill_prompt(int64_t ids[PROMPT], int64_t vocabulary) {
    for (int64_t i = 0; i < PROMPT; i++) {
        ids[i] = (3 * i + i / 7) % vocabulary;
    }
}

static void save_model(carry_ctx *ctx, int which) {
    carry_lm *lm = model(ctx, hybrid(which));
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    carry_lm_free(lm);
}

/* With same_bits a text that continues from a fork, after rolling back, or from a file equals the one that was never
   interrupted, also with a cached beginning. */
static void states_of_every_type_are_objects(void **unused) {
    (void)unused;
    static const int64_t more[] = {1, 2};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int i = 0; i < NAMED * 4; i++) {
        static const int models[] = {0, 5, 11, 13};
        if (!support_takes(i, 3)) {
            continue;
        }
        int64_t ids[PROMPT + TOKENS];
        carry_engine *engine;
        uint64_t fork;
        uint64_t loaded;
        const carry_engine_options o = options_of(named[i % NAMED].kv, named[i % NAMED].state);
        save_model(ctx, models[i / NAMED]);
        assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &o));
        fill_prompt(ids, carry_engine_vocabulary(engine));
        const answer a = ask(ctx, engine, ids, PROMPT, 0);
        assert_ok(ctx, carry_engine_state_fork(engine, a.state, &fork));
        assert_ok(ctx, carry_engine_state_save(engine, fork, in_folder("state")));
        const answer whole = ask(ctx, engine, more, 2, fork);
        assert_ok(ctx, carry_engine_state_roll_back(engine, a.state, 10));
        const answer back = ask(ctx, engine, more, 2, a.state);
        memcpy(ids + PROMPT, a.token, (TOKENS - 10) * sizeof *ids);
        memcpy(ids + PROMPT + TOKENS - 10, more, sizeof more);
        const answer expected = ask(ctx, engine, ids, PROMPT + TOKENS - 8, 0);
        assert_memory_equal(back.token, expected.token, sizeof back.token);
        assert_true(expected.cached >= 64);
        carry_engine_close(engine);
        assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &o));
        assert_ok(ctx, carry_engine_state_load(engine, &loaded, in_folder("state")));
        assert_memory_equal(ask(ctx, engine, more, 2, loaded).token, whole.token, sizeof whole.token);
        carry_engine_close(engine);
    }
    carry_ctx_free(ctx);
}

static void other_types_are_refused_by_name(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_engine *engine;
    carry_engine *other;
    int64_t ids[PROMPT];
    uint64_t made;
    save_model(ctx, 0);
    carry_engine_options o = options_of("int4", NULL);
    assert_refused(ctx, CARRY_EARGUMENT, "kv_type 'int4': expected f32, bf16, f16 or fp8",
                   carry_engine_open(ctx, &engine, folder, &o));
    o = options_of(NULL, "int8");
    assert_refused(ctx, CARRY_EARGUMENT, "state_type 'int8': expected f32 or bf16",
                   carry_engine_open(ctx, &engine, folder, &o));
    o = options_of("fp8", "bf16");
    assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &o));
    fill_prompt(ids, carry_engine_vocabulary(engine));
    const answer a = ask(ctx, engine, ids, PROMPT, 0);
    assert_ok(ctx, carry_engine_state_save(engine, a.state, in_folder("state")));
    o = options_of(NULL, NULL);
    assert_ok(ctx, carry_engine_open(ctx, &other, folder, &o));
    assert_refused(ctx, CARRY_EARGUMENT, "keys and values in fp8 and states in bf16, and this engine f32 and f32",
                   carry_engine_state_load(other, &made, in_folder("state")));
    assert_refused(ctx, CARRY_EARGUMENT, "the other engine has keys and values in f32 and states in f32",
                   carry_engine_state_move(engine, a.state, other, &made));
    carry_engine_close(other);
    carry_engine_close(engine);
    carry_ctx_free(ctx);
}

static void delete_cache(void) {
    char path[600];
    DIR *opened = opendir(in_folder("cache"));
    assert_non_null(opened);
    for (const struct dirent *e = readdir(opened); e != NULL; e = readdir(opened)) {
        (void)snprintf(path, sizeof path, "%s/cache/%s", folder, e->d_name);
        (void)unlink(path);
    }
    (void)closedir(opened);
    assert_int_equal(rmdir(in_folder("cache")), 0);
}

/* The second engine of each type begins with the prefix that the first has stored, whatever the others have done. */
static void engines_of_different_types_share_a_cache_folder(void **unused) {
    (void)unused;
    static const char *const kv[] = {"f32", "bf16", "f16", "fp8"};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    char cache[300];
    (void)snprintf(cache, sizeof cache, "%s", in_folder("cache"));
    save_model(ctx, 0);
    for (int i = 0; i < 16; i++) {
        int64_t ids[PROMPT];
        carry_engine *engine;
        carry_engine_options o = options_of(kv[i % 4], i / 4 % 2 == 0 ? "f32" : "bf16");
        o.cache_dir = cache;
        assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &o));
        fill_prompt(ids, carry_engine_vocabulary(engine));
        const int64_t cached = ask(ctx, engine, ids, PROMPT, 0).cached;
        if ((cached > 0) != (i >= 8)) {
            fail_msg("engine %d, with keys and values in %s: %d tokens from the folder", i, kv[i % 4], (int)cached);
        }
        carry_engine_close(engine);
    }
    delete_cache();
    carry_ctx_free(ctx);
}

/* A model without keys and values: files of its states do not depend on their type. */
static void types_of_absent_parts_do_not_matter(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = model(ctx, small(&carry_lm_family_gated_deltanet));
    carry_engine *engine;
    carry_engine *other;
    int64_t ids[PROMPT];
    uint64_t made;
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    carry_lm_free(lm);
    carry_engine_options o = options_of("fp8", NULL);
    assert_ok(ctx, carry_engine_open(ctx, &engine, folder, &o));
    fill_prompt(ids, carry_engine_vocabulary(engine));
    const answer a = ask(ctx, engine, ids, PROMPT, 0);
    assert_ok(ctx, carry_engine_state_save(engine, a.state, in_folder("state")));
    o = options_of(NULL, NULL);
    assert_ok(ctx, carry_engine_open(ctx, &other, folder, &o));
    assert_ok(ctx, carry_engine_state_load(other, &made, in_folder("state")));
    assert_ok(ctx, carry_engine_state_move(engine, a.state, other, &made));
    carry_engine_close(other);
    o = options_of(NULL, "bf16");
    assert_ok(ctx, carry_engine_open(ctx, &other, folder, &o));
    assert_refused(ctx, CARRY_EARGUMENT, "keys and values in none and states in f32, and this engine none and bf16",
                   carry_engine_state_load(other, &made, in_folder("state")));
    carry_engine_close(other);
    carry_engine_close(engine);
    carry_ctx_free(ctx);
}

/* The memory of a page and of a slot follows the types. Qwen3.5's small model: one layer of attention with two heads of
   8, and two with states of 2 x 5 x 6. */
static void memory_follows_the_types(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = model(ctx, hybrid(0));
    size_t slot[2];
    size_t page[2];
    const carry_state_types small_types = {CARRY_F8, CARRY_BF16};
    carry_model_runner_measure(lm, NULL, CARRY_F32, NULL, &slot[0], &page[0]);
    carry_model_runner_measure(lm, NULL, CARRY_F32, &small_types, &slot[1], &page[1]);
    assert_int_equal(page[0], 64 * 2 * 2 * 8 * 4);
    assert_int_equal(page[1], 64 * 2 * 2 * (8 + 1));
    assert_int_equal(slot[0] - slot[1], 2 * 2 * 5 * 6 * 2);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static int make_folder(void **unused) {
    (void)unused;
    (void)snprintf(folder, sizeof folder, "/tmp/carry-state-types-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **unused) {
    (void)unused;
    (void)unlink(in_folder("config.json"));
    (void)unlink(in_folder("model.safetensors"));
    (void)unlink(in_folder("state"));
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_follows_the_types),
        cmocka_unit_test(golden_hybrids_are_close_to_their_vectors),
        cmocka_unit_test(every_type_is_close_to_f32_in_every_model),
        cmocka_unit_test(same_bits_hold_in_every_type),
        cmocka_unit_test(states_of_every_type_are_objects),
        cmocka_unit_test(other_types_are_refused_by_name),
        cmocka_unit_test(engines_of_different_types_share_a_cache_folder),
        cmocka_unit_test(types_of_absent_parts_do_not_matter),
    };
    return cmocka_run_group_tests_name("engine_state_types", tests, make_folder, remove_folder);
}
