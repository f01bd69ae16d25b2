/* Controls shared between threads. Writers take turns: each parses into a draft and swaps it in at the end, so
   readers never wait for a parser and never see a partial change. */
#include "stream/controls.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/error.h"
#include "stream/controls_json.h"
#include "stream/vocabulary.h"

/* Twice the size of all prompts when every byte is escaped. */
#define JSON_MOST ((size_t)512 << 10)
#define WAIT_MOST 3600.0

struct carry_controls {
    pthread_mutex_t writing; /* held by the one writer, which owns ctx and draft; locked before `reading` */
    carry_ctx *ctx;          /* for messages; the context passed to carry_controls_new belongs to another thread */
    carry_control_state draft;
    pthread_mutex_t reading; /* protects the fields below */
    pthread_cond_t changed;
    carry_control_state state;
    /* The model's words; set before other threads use the controls, as is the next field. */
    char words[CARRY_VOCABULARY];
    int64_t first_level;
    double prompts_changed;
    uint64_t news, news_told; /* changes of `paused` and cuts so far; the number at which the last wait returned */
};

carry_control_state carry_control_default(void) {
    return (carry_control_state){
        .prompt = {{.weight = 1}},
        .prompts = 1,
        .transition = 4,
        .step = {1000, 750, 500, 250},
        .steps = 4,
        .kv_bias = 1,
        .noise = 1,
    };
}

static bool start_locks(carry_controls *controls) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) {
        return false;
    }
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    const bool has_condition = pthread_cond_init(&controls->changed, &attributes) == 0;
    (void)pthread_condattr_destroy(&attributes);
    if (!has_condition) {
        return false;
    }
    (void)pthread_mutex_init(&controls->writing, NULL); /* cannot fail without attributes */
    (void)pthread_mutex_init(&controls->reading, NULL);
    return true;
}

/* The initial state takes the same path as later changes: it is written as JSON, parsed and checked. */
static carry_status take_start(carry_controls *controls, const carry_control_state *start) {
    carry_ctx *ctx = controls->ctx;
    carry_json_text text = {0};
    carry_json *document = NULL;
    CARRY_TRY(carry_control_check(ctx, start));
    controls->state.loras = start->loras;
    carry_control_put(start, &text);
    carry_status status = CARRY_OK;
    if (text.failed) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: the controls");
    } else {
        status = carry_json_parse(ctx, &document, text.bytes, text.length, "the prompt and other controls");
    }
    if (status == CARRY_OK) {
        status = carry_control_take(ctx, &controls->state, document);
    }
    carry_json_free(document);
    carry_json_text_free(&text);
    controls->state.cuts = start->cuts;
    controls->state.prompt_version = start->prompt_version;
    return status;
}

carry_status carry_controls_new(carry_ctx *ctx, carry_controls **made, const carry_control_state *start) {
    *made = NULL;
    carry_controls *controls = calloc(1, sizeof *controls);
    if (controls == NULL || !start_locks(controls)) {
        free(controls);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the controls of a stream");
    }
    controls->state = carry_control_default();
    carry_status status =
        carry_ctx_new(&controls->ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1});
    if (status == CARRY_OK && start != NULL) {
        status = take_start(controls, start);
    }
    if (status != CARRY_OK) {
        (void)carry_fail(ctx, status, "%s", controls->ctx != NULL ? carry_ctx_error(controls->ctx) : "out of memory");
        carry_controls_free(controls);
        return status;
    }
    *made = controls;
    return CARRY_OK;
}

void carry_controls_free(carry_controls *controls) {
    if (controls == NULL) {
        return;
    }
    carry_ctx_free(controls->ctx);
    (void)pthread_cond_destroy(&controls->changed);
    (void)pthread_mutex_destroy(&controls->reading);
    (void)pthread_mutex_destroy(&controls->writing);
    free(controls);
}

void carry_controls_set_model(carry_controls *controls, const char *words, int64_t first_level) {
    (void)snprintf(controls->words, sizeof controls->words, "%s", words);
    controls->first_level = first_level;
}

carry_status carry_control_check_level(carry_ctx *ctx, const carry_control_state *state, int64_t first_level) {
    if (4 * state->step[0] >= 3 * first_level) {
        return CARRY_OK;
    }
    return carry_fail(ctx, CARRY_EARGUMENT,
                      "the steps begin at level %lld: this model begins at %lld, and below %lld noise would be left",
                      (long long)state->step[0], (long long)first_level, (long long)(3 * first_level + 3) / 4);
}

void carry_controls_note(carry_controls *controls, char note[CARRY_CONTROL_NOTE]) {
    char unknown[1024] = "";
    note[0] = '\0';
    if (controls->words[0] == '\0') {
        return;
    }
    (void)pthread_mutex_lock(&controls->reading);
    for (int i = 0; i < controls->state.prompts; i++) {
        const carry_prompt *prompt = &controls->state.prompt[i];
        carry_vocabulary_compare(unknown, sizeof unknown, controls->words, prompt->text, prompt->length);
    }
    (void)pthread_mutex_unlock(&controls->reading);
    if (unknown[0] != '\0') {
        (void)snprintf(note, CARRY_CONTROL_NOTE, "this model does not know %s: it was trained on %s", unknown,
                       controls->words);
    }
}

void carry_controls_read(carry_controls *controls, carry_control_state *state) {
    (void)pthread_mutex_lock(&controls->reading);
    *state = controls->state;
    (void)pthread_mutex_unlock(&controls->reading);
}

double carry_controls_prompts_changed(carry_controls *controls) {
    (void)pthread_mutex_lock(&controls->reading);
    const double when = controls->prompts_changed;
    (void)pthread_mutex_unlock(&controls->reading);
    return when;
}

void carry_controls_wait(carry_controls *controls, double seconds) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    const double length = seconds > 0 ? fmin(seconds, WAIT_MOST) : 0; /* NaN counts as 0 */
    const double whole = floor(length);
    until.tv_sec += (time_t)whole;
    until.tv_nsec += (long)((length - whole) * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    (void)pthread_mutex_lock(&controls->reading);
    int late = 0;
    while (controls->news == controls->news_told && late == 0) {
        late = pthread_cond_timedwait(&controls->changed, &controls->reading, &until);
    }
    controls->news_told = controls->news;
    (void)pthread_mutex_unlock(&controls->reading);
}

static void exchange(carry_controls *controls) {
    carry_control_state *draft = &controls->draft;
    (void)pthread_mutex_lock(&controls->reading);
    if (!carry_control_same_prompts(draft, &controls->state)) {
        draft->prompt_version++;
        controls->prompts_changed = carry_seconds();
    }
    const bool is_news = draft->paused != controls->state.paused || draft->cuts != controls->state.cuts;
    controls->state = *draft;
    controls->news += is_news;
    if (is_news) {
        (void)pthread_cond_broadcast(&controls->changed);
    }
    (void)pthread_mutex_unlock(&controls->reading);
}

/* Messages quote external text that may be cut in the middle of a character, and they must be one line of UTF-8:
   replaces every byte that is not part of a complete printable character by a question mark. */
static void make_printable(char *text) {
    unsigned char *at = (unsigned char *)text;
    while (*at != '\0') {
        const int more = *at < 0x80 ? 0 : *at >= 0xF0 ? 3 : *at >= 0xE0 ? 2 : 1;
        int found = 0;
        while (found < more && (at[1 + found] & 0xC0) == 0x80) {
            found++;
        }
        const bool is_bad = *at < 0x20 || *at == 0x7F || (*at >= 0x80 && *at < 0xC2) || *at > 0xF4 || found < more;
        if (is_bad) {
            *at++ = '?';
        } else {
            at += 1 + more;
        }
    }
}

carry_status carry_controls_apply(carry_controls *controls, const char *json, size_t length, char *why,
                                  size_t why_size) {
    carry_json *document = NULL;
    (void)pthread_mutex_lock(&controls->writing);
    carry_ctx *ctx = controls->ctx;
    carry_status status = CARRY_OK;
    if (length > JSON_MOST) {
        status = carry_fail(ctx, CARRY_ESIZE, "%zu bytes of controls: at most %zu are read", length, JSON_MOST);
    } else {
        status = carry_json_parse(ctx, &document, json, length, "the controls");
    }
    if (status == CARRY_OK) {
        /* This thread holds `writing`: no other thread changes the draft. */
        carry_controls_read(controls, &controls->draft);
        status = carry_control_take(ctx, &controls->draft, document);
    }
    if (status == CARRY_OK) {
        status = carry_control_check_level(ctx, &controls->draft, controls->first_level);
    }
    if (status == CARRY_OK) {
        exchange(controls);
    }
    if (why_size > 0) {
        (void)snprintf(why, why_size, "%s", status == CARRY_OK ? "" : carry_ctx_error(ctx));
        make_printable(why);
    }
    carry_json_free(document);
    (void)pthread_mutex_unlock(&controls->writing);
    return status;
}

void carry_controls_write(carry_controls *controls, carry_json_text *text) {
    carry_control_state *state = malloc(sizeof *state); /* too large for a thread's stack */
    if (state == NULL) {
        text->failed = true;
        return;
    }
    carry_controls_read(controls, state);
    carry_control_put(state, text);
    free(state);
}
