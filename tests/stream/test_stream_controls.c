/* Controls: a change is applied completely or not at all, refusals name the accepted values, states survive writing and
   reading, and threads write while others read. */
#include "support.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/clock.h"
#include "stream/controls.h"

static carry_ctx *ctx;

static carry_controls *new_controls(void) {
    carry_controls *controls;
    assert_ok(ctx, carry_controls_new(ctx, &controls, NULL));
    return controls;
}

static carry_control_state *state_of(carry_controls *controls) {
    carry_control_state *state = malloc(sizeof *state);
    assert_non_null(state);
    memset(state, 0xA5, sizeof *state);
    carry_controls_read(controls, state);
    return state;
}

static void apply(carry_controls *controls, const char *json) {
    char why[256] = "poison";
    if (carry_controls_apply(controls, json, strlen(json), why, sizeof why) != CARRY_OK || why[0] != '\0') {
        fail_msg("%s: %s", json, why);
    }
}

static void refuse_bytes(carry_controls *controls, const char *json, size_t length, const char *words) {
    char why[512] = "";
    carry_control_state *before = state_of(controls);
    const carry_status status = carry_controls_apply(controls, json, length, why, sizeof why);
    carry_control_state *after = state_of(controls);
    if (status == CARRY_OK || strstr(why, words) == NULL) {
        fail_msg("%.80s: expected '%s', got %s: %s", json, words, carry_status_name(status), why);
    }
    assert_memory_equal(before, after, sizeof *before); /* nothing changed */
    free(before);
    free(after);
}

static void refuse(carry_controls *controls, const char *json, const char *words) {
    refuse_bytes(controls, json, strlen(json), words);
}

static void test_every_control_is_applied(void **state) {
    (void)state;
    carry_controls *controls = new_controls();
    apply(controls, "{}");
    apply(controls, "{\"prompt\": \"a red ball\", \"transition\": 7, \"seed\": 9223372036854775807, "
                    "\"steps\": [1000, 500, 1], \"cut\": true, \"pause\": true, \"kv_bias\": 0.5, \"noise\": 2}");
    carry_control_state *s = state_of(controls);
    assert_true(s->prompts == 1 && s->prompt[0].length == 10 && strcmp(s->prompt[0].text, "a red ball") == 0);
    assert_true(s->prompt[0].weight == 1 && s->prompt_version == 1 && s->transition == 7 && s->seed == INT64_MAX);
    assert_true(s->steps == 3 && s->step[0] == 1000 && s->step[1] == 500 && s->step[2] == 1);
    assert_true(s->cuts == 1 && s->paused && s->kv_bias == 0.5 && s->noise == 2);
    free(s);
    apply(controls, "{\"prompt\": [{\"text\": \"x\", \"weight\": 0.25}, {\"text\": \"\"}, \"y\"], \"cut\": false}");
    s = state_of(controls);
    assert_true(s->prompts == 3 && s->prompt[0].weight == 0.25 && s->prompt[1].weight == 1 && s->prompt[2].weight == 1);
    assert_true(s->prompt[1].length == 0 && strcmp(s->prompt[2].text, "y") == 0 && s->prompt_version == 2);
    assert_true(s->cuts == 1 && s->seed == INT64_MAX && s->paused); /* what is not named stays */
    free(s);
    carry_controls_free(controls);
    carry_controls_free(NULL);
}

static void test_the_version_of_prompts_grows_when_they_change(void **state) {
    (void)state;
    carry_controls *controls = new_controls();
    const char *json[] = {
        "{\"prompt\": \"a\"}", "{\"prompt\": \"a\"}",          "{\"prompt\": [{\"text\": \"a\", \"weight\": 2}]}",
        "{\"seed\": 4}",       "{\"prompt\": [\"a\", \"b\"]}", "{\"prompt\": [\"a\", \"c\"]}"};
    const uint64_t version[] = {1, 1, 2, 2, 3, 4};
    for (size_t i = 0; i < sizeof json / sizeof json[0]; i++) {
        apply(controls, json[i]);
        carry_control_state *s = state_of(controls);
        assert_int_equal(s->prompt_version, version[i]);
        free(s);
    }
    carry_controls_free(controls);
}

static void test_refusals_say_what_would_do(void **state) {
    (void)state;
    carry_controls *controls = new_controls();
    refuse(controls, "", "a value is expected");
    refuse(controls, "{\"seed\": 1", "line 1, column");
    refuse(controls, "[]", "an object");
    refuse(controls, "7", "the controls are 7");
    refuse(controls, "{\"sede\": 1}", "'sede' is not a control: expected prompt, transition, seed");
    refuse(controls, "{\"seed\\u0000\": 1}", "is not a control");
    refuse(controls, "{\"\": 1}", "'' is not a control");
    refuse(controls, "{\"seed\": 1, \"seed\": 2}", "seed is given twice");
    refuse(controls, "{\"seed\": -1}", "seed is -1: expected a whole number from 0");
    refuse(controls, "{\"seed\": 1.5}", "seed is 1.5");
    refuse(controls, "{\"seed\": 9223372036854775808}", "seed is 9");
    refuse(controls, "{\"seed\": \"1\"}", "seed is \"1\"");
    refuse(controls, "{\"seed\": null}", "seed is null");
    refuse(controls, "{\"transition\": -1}", "transition is -1: expected a whole number of chunks, 0 to 1000");
    refuse(controls, "{\"transition\": 1001}", "0 to 1000");
    refuse(controls, "{\"kv_bias\": 0}", "kv_bias is 0: expected a number above 0, up to 1");
    refuse(controls, "{\"kv_bias\": 1e-46}", "kv_bias is 1e-46"); /* 0 as f32, the type in the envelope */
    refuse(controls, "{\"kv_bias\": -0.5}", "kv_bias is -0.5");
    refuse(controls, "{\"kv_bias\": 1.0001}", "up to 1");
    refuse(controls, "{\"kv_bias\": NaN}", "a value is expected");
    refuse(controls, "{\"kv_bias\": 1e999}", "kv_bias is inf");
    refuse(controls, "{\"noise\": -1e-9}", "noise is -1e-09: expected a number from 0 to 2");
    refuse(controls, "{\"noise\": 2.1}", "noise is 2.1");
    refuse(controls, "{\"noise\": true}", "noise is true");
    refuse(controls, "{\"pause\": 1}", "pause is 1: expected true or false");
    refuse(controls, "{\"cut\": \"yes\"}", "cut is \"yes\"");
    refuse(controls, "{\"steps\": []}", "steps is []: expected a list of 1 to 16");
    refuse(controls, "{\"steps\": 4}", "steps is 4");
    refuse(controls, "{\"steps\": [1001]}", "steps is 1001");
    refuse(controls, "{\"steps\": [500, 500]}", "steps is 500");
    refuse(controls, "{\"steps\": [500, 0]}", "steps is 0");
    refuse(controls, "{\"steps\": [1, 0.5]}", "steps is 0.5");
    refuse(controls, "{\"steps\": [20,19,18,17,16,15,14,13,12,11,10,9,8,7,6,5,4]}", "1 to 16");
    refuse(controls, "{\"prompt\": 5}", "prompt is 5: expected a text of up to 4096 bytes");
    refuse(controls, "{\"prompt\": []}", "a list of 1 to 8");
    refuse(controls, "{\"prompt\": [1,2,3,4,5,6,7,8,9]}", "a list of 1 to 8");
    refuse(controls, "{\"prompt\": [\"a\", 2]}", "prompt is 2");
    refuse(controls, "{\"prompt\": [{\"weight\": 2}]}", "prompt 1 has other keys");
    refuse(controls, "{\"prompt\": [\"a\", {\"text\": \"b\", \"wieght\": 2}]}", "prompt 2 has other keys");
    refuse(controls, "{\"prompt\": [{\"text\": \"b\", \"text\": \"c\"}]}", "prompt 1 has other keys");
    refuse(controls, "{\"prompt\": [{\"text\": \"b\", \"weight\": -2}]}", "the weight of prompt 1 is -2");
    refuse(controls, "{\"prompt\": [{\"text\": \"b\", \"weight\": 1e999}]}", "the weight of prompt 1 is inf");
    refuse(controls, "{\"prompt\": [{\"text\": \"b\", \"weight\": 0}]}", "add up to 0");
    refuse(controls, "{\"prompt\": [{\"text\": \"b\", \"weight\": 1e308}, {\"text\": \"b\", \"weight\": 1e308}]}",
           "add up to inf");
    refuse(controls, "{\"prompt\": \"\xC3(\"}", "not UTF-8");
    /* All or nothing: fields before the fault are not applied either. */
    refuse(controls, "{\"seed\": 77, \"cut\": true, \"prompt\": \"new\", \"noise\": 9}", "noise is 9");
    carry_controls_free(controls);
}

/* The message is one line of valid UTF-8, whatever it quotes. */
static void test_sentences_are_printable(void **state) {
    (void)state;
    carry_controls *controls = new_controls();
    const char *json = "{\"\\u001b[31m\\n\xC3\xA4\xC3\xA4\xC3\xA4\": 1}";
    char why[200];
    for (size_t room = 1; room < sizeof why; room++) { /* cut anywhere, in the middle of a character too */
        memset(why, 'x', sizeof why);
        assert_true(carry_controls_apply(controls, json, strlen(json), why, room) != CARRY_OK);
        assert_true(strlen(why) < room);
        for (const char *at = why; *at != '\0'; at++) {
            assert_true((unsigned char)*at >= 0x20);
            assert_true((unsigned char)*at < 0x80 || ((unsigned char)*at == 0xC3 && (unsigned char)at[1] == 0xA4) ||
                        ((unsigned char)*at == 0xA4 && (unsigned char)at[-1] == 0xC3));
        }
    }
    assert_true(carry_controls_apply(controls, json, strlen(json), NULL, 0) != CARRY_OK);
    carry_controls_free(controls);
}

static char *with_prompt(const char *before, size_t length, const char *after, char filling) {
    char *json = malloc(strlen(before) + length + strlen(after) + 1);
    assert_non_null(json);
    memcpy(json, before, strlen(before));
    memset(json + strlen(before), filling, length);
    memcpy(json + strlen(before) + length, after, strlen(after) + 1);
    return json;
}

static void test_prompts_of_any_length_up_to_the_limit(void **state) {
    (void)state;
    const size_t lengths[] = {0, 1, 4095, 4096, 4097, 100000, 600000};
    carry_controls *controls = new_controls();
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char *json = with_prompt("{\"prompt\": \"", lengths[i], "\"}", (char)('a' + i));
        if (lengths[i] <= CARRY_PROMPT_BYTES) {
            apply(controls, json);
            carry_control_state *s = state_of(controls);
            assert_int_equal(s->prompt[0].length, lengths[i]);
            assert_int_equal(strlen(s->prompt[0].text), lengths[i]);
            free(s);
        } else {
            refuse(controls, json, lengths[i] > 500000 ? "bytes of controls: at most" : "at most 4096 are taken");
        }
        free(json);
    }
    /* No byte of a longer prompt remains after a shorter one. */
    apply(controls, "{\"prompt\": \"z\"}");
    carry_control_state *s = state_of(controls);
    for (size_t i = 1; i < sizeof s->prompt[0].text; i++) {
        assert_int_equal(s->prompt[0].text[i], 0);
    }
    free(s);
    carry_controls_free(controls);
}

static void test_what_is_written_changes_nothing_when_applied(void **state) {
    (void)state;
    const char *json[] = {
        "{}",
        "{\"prompt\": \"quotes \\\" and \\\\ and \\u0000 zero \\u0001\\n\\ttab \xF0\x9F\x90\x88 \\ud83d\\ude00\"}",
        "{\"prompt\": [{\"text\": \"a\", \"weight\": 0.1}, {\"text\": \"b\", \"weight\": 1e-300}], \"pause\": true}",
        "{\"kv_bias\": 0.30000000000000004, \"noise\": 5e-324, \"seed\": 9007199254740993, \"steps\": [3, 2, 1]}",
        "{\"transition\": 0, \"prompt\": [\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\"]}",
    };
    for (size_t i = 0; i < sizeof json / sizeof json[0]; i++) {
        carry_controls *controls = new_controls(), *other = new_controls();
        carry_json_text text = {0}, again = {0};
        apply(controls, json[i]);
        carry_control_state *before = state_of(controls);
        carry_controls_write(controls, &text);
        assert_false(text.failed);
        apply(controls, text.bytes);
        carry_control_state *after = state_of(controls);
        assert_memory_equal(before, after, sizeof *before);
        apply(other, text.bytes); /* after a restart */
        carry_controls_write(other, &again);
        assert_string_equal(text.bytes, again.bytes);
        /* And as a start. */
        carry_controls *third;
        assert_ok(ctx, carry_controls_new(ctx, &third, before));
        carry_control_state *start = state_of(third);
        assert_memory_equal(before, start, sizeof *before);
        carry_controls_free(third);
        free(start);
        free(before);
        free(after);
        carry_json_text_free(&text);
        carry_json_text_free(&again);
        carry_controls_free(controls);
        carry_controls_free(other);
    }
}

static void test_a_start_is_refused_like_what_comes_later(void **state) {
    (void)state;
    carry_controls *controls;
    static carry_control_state s;
#define REFUSE_START(words, change)                                                                         \
    do {                                                                                                    \
        s = carry_control_default();                                                                        \
        change;                                                                                             \
        carry_status started = carry_controls_new(ctx, &controls, &s);                                      \
        assert_null(controls);                                                                              \
        if (started == CARRY_OK || strstr(carry_ctx_error(ctx), words) == NULL) {                           \
            fail_msg("expected '%s', got %s: %s", words, carry_status_name(started), carry_ctx_error(ctx)); \
        }                                                                                                   \
    } while (0)
    REFUSE_START("0 prompts", s.prompts = 0);
    REFUSE_START("9 prompts", s.prompts = 9);
    REFUSE_START("17 steps", s.steps = 17);
    REFUSE_START("-1 steps", s.steps = -1);
    REFUSE_START("seed 18446744073709551615", s.seed = UINT64_MAX);
    REFUSE_START("4097 bytes", s.prompt[0].length = 4097);
    REFUSE_START("weight nan", s.prompt[0].weight = (double)NAN);
    REFUSE_START("weight of prompt 1 is -1", s.prompt[0].weight = -1);
    REFUSE_START("kv_bias and noise are nan", s.kv_bias = (double)NAN);
    REFUSE_START("kv_bias is 0", s.kv_bias = 0);
    REFUSE_START("noise is 3", s.noise = 3);
    REFUSE_START("steps is 1000", s.step[1] = 1000);
    REFUSE_START("transition is -1", s.transition = -1);
    REFUSE_START("not UTF-8", (s.prompt[0].length = 1, s.prompt[0].text[0] = (char)0xFF));
    s = carry_control_default();
    s.cuts = 5;
    s.prompt_version = 9;
    assert_ok(ctx, carry_controls_new(ctx, &controls, &s));
    carry_control_state *now = state_of(controls);
    assert_true(now->cuts == 5 && now->prompt_version == 9);
    free(now);
    carry_controls_free(controls);
}

static void test_the_table_names_every_key(void **state) {
    (void)state;
    carry_controls *controls = new_controls();
    int count = 0;
    const char *key, *may_be;
    while ((key = carry_control_key(count, &may_be)) != NULL) {
        char json[64];
        (void)snprintf(json, sizeof json, "{\"%s\": {}}", key);
        refuse(controls, json, may_be);
        refuse(controls, "{\"unknown\": 1}", key);
        count++;
    }
    assert_int_equal(count, 9);
    assert_null(carry_control_key(-1, NULL));
    carry_controls_free(controls);
}

static void test_waiting_ends_with_a_change_or_the_time(void **state) {
    (void)state;
    carry_controls *controls = new_controls();
    double start = carry_seconds();
    carry_controls_wait(controls, 0.02);
    assert_true(carry_seconds() - start >= 0.019);
    start = carry_seconds();
    carry_controls_wait(controls, 0);
    carry_controls_wait(controls, -5);
    carry_controls_wait(controls, 0.0 / 0.0);
    apply(controls, "{\"cut\": true}"); /* before the wait: not missed */
    carry_controls_wait(controls, 1000);
    apply(controls, "{\"pause\": true}");
    carry_controls_wait(controls, 1000);
    assert_true(carry_seconds() - start < 500);
    apply(controls, "{\"pause\": true, \"seed\": 3}"); /* does not change the awaited field */
    start = carry_seconds();
    carry_controls_wait(controls, 0.02);
    assert_true(carry_seconds() - start >= 0.019);
    carry_controls_free(controls);
}

typedef struct crowd {
    carry_controls *controls;
    atomic_bool done;
    atomic_int torn, read;
} crowd;

/* Seed and prompt are always written together: the prompt is "wwww...", with a length that follows from the seed. */
static void *write_much(void *user) {
    crowd *c = user;
    for (int i = 0; i < 300; i++) {
        char json[4300], text[64];
        const int length = 1 + (i * 37) % 4000;
        memset(json, 0, sizeof json);
        (void)snprintf(text, sizeof text, "{\"seed\": %d, \"cut\": true, \"prompt\": \"", length);
        (void)snprintf(json, sizeof json, "%s", text);
        memset(json + strlen(text), 'a' + length % 26, (size_t)length);
        (void)snprintf(json + strlen(text) + length, 8, "\"}");
        (void)carry_controls_apply(c->controls, json, strlen(json), text, sizeof text);
        (void)carry_controls_apply(c->controls, "{\"seed\": 0, \"noise\": -1}", 24, text, sizeof text);
    }
    return NULL;
}

static void *read_much(void *user) {
    crowd *c = user;
    carry_control_state *s = malloc(sizeof *s);
    while (s != NULL && !atomic_load(&c->done)) {
        carry_controls_read(c->controls, s);
        const size_t length = s->prompt[0].length;
        bool same = s->seed == length;
        for (size_t i = 0; i < length; i++) {
            same = same && s->prompt[0].text[i] == (char)('a' + length % 26);
        }
        atomic_fetch_add(&c->torn, !same);
        atomic_fetch_add(&c->read, 1);
        carry_json_text text = {0};
        carry_controls_write(c->controls, &text);
        carry_json_text_free(&text);
    }
    free(s);
    return NULL;
}

static void *wait_much(void *user) {
    crowd *c = user;
    while (!atomic_load(&c->done)) {
        carry_controls_wait(c->controls, 0.01);
    }
    return NULL;
}

static void test_threads_see_whole_states(void **state) {
    (void)state;
    crowd c = {.controls = new_controls()};
    pthread_t thread[6];
    void *(*const role[])(void *) = {write_much, write_much, write_much, read_much, read_much, wait_much};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, role[i], &c), 0);
    }
    for (int i = 0; i < 6; i++) {
        if (i == 3) {
            atomic_store(&c.done, true);
        }
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    }
    assert_int_equal(atomic_load(&c.torn), 0);
    carry_control_state *s = state_of(c.controls);
    assert_int_equal(s->cuts, 900); /* none was lost */
    free(s);
    carry_controls_free(c.controls);
}

static void test_words_that_the_model_does_not_know_are_named(void **state) {
    (void)state;
    char note[CARRY_CONTROL_NOTE];
    carry_controls *controls = new_controls();
    apply(controls, "{\"prompt\": \"red zebra\"}");
    carry_controls_note(controls, note);
    assert_string_equal(note, ""); /* no note for a model without a list */
    carry_controls_set_model(controls, "red circle moving", 1000);
    carry_controls_note(controls, note);
    assert_string_equal(note, "this model does not know 'zebra': it was trained on red circle moving");
    apply(controls, "{\"prompt\": [\"RED (Moon:1.5), red\", \"mov zebra moon\"]}");
    carry_controls_note(controls, note);
    assert_string_equal(note, "this model does not know 'moon', 'mov', 'zebra': it was trained on red circle moving");
    apply(controls, "{\"prompt\": \"(red:2) moving Circle\"}");
    carry_controls_note(controls, note);
    assert_string_equal(note, "");
    carry_controls_free(controls);
}

static void test_steps_that_begin_far_below_the_model_are_refused(void **state) {
    (void)state;
    carry_controls *controls = new_controls();
    apply(controls, "{\"steps\": [5]}"); /* nothing is known of the model */
    carry_controls_set_model(controls, "", 1000);
    const char low[] = "{\"steps\": [749, 500]}";
    refuse_bytes(controls, low, sizeof low - 1, "begin at level 749: this model begins at 1000");
    apply(controls, "{\"steps\": [750, 500]}");
    carry_controls_free(controls);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_control_is_applied),
        cmocka_unit_test(test_the_version_of_prompts_grows_when_they_change),
        cmocka_unit_test(test_refusals_say_what_would_do),
        cmocka_unit_test(test_sentences_are_printable),
        cmocka_unit_test(test_prompts_of_any_length_up_to_the_limit),
        cmocka_unit_test(test_what_is_written_changes_nothing_when_applied),
        cmocka_unit_test(test_a_start_is_refused_like_what_comes_later),
        cmocka_unit_test(test_the_table_names_every_key),
        cmocka_unit_test(test_waiting_ends_with_a_change_or_the_time),
        cmocka_unit_test(test_threads_see_whole_states),
        cmocka_unit_test(test_words_that_the_model_does_not_know_are_named),
        cmocka_unit_test(test_steps_that_begin_far_below_the_model_are_refused),
    };
    ctx = support_ctx(1, NULL, NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
