/* Parses problems. */
#include "bench/problem.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/error.h"
#include "core/nearest.h"

static bool is_name(const char *text) {
    if (!islower((unsigned char)text[0])) {
        return false;
    }
    for (; *text != '\0'; text++) {
        if (!islower((unsigned char)*text) && !isdigit((unsigned char)*text) && *text != '_' && *text != '-') {
            return false;
        }
    }
    return true;
}

static bool is_value(const char *text) {
    for (const char *at = text; *at != '\0'; at++) {
        if (!isalnum((unsigned char)*at) && strchr("_-./", *at) == NULL) {
            return false;
        }
    }
    return *text != '\0';
}

/* Element types end in digits, but are words. */
static bool is_type(const char *text) {
    return strcmp(text, "f32") == 0 || strcmp(text, "bf16") == 0 || strcmp(text, "f16") == 0 ||
           strcmp(text, "f64") == 0;
}

static carry_status parse_size(carry_ctx *ctx, carry_problem_item *item, const char *problem, const char *digits) {
    int64_t number = 0;
    for (const char *at = digits; *at != '\0'; at++) {
        if (__builtin_mul_overflow(number, 10, &number) || __builtin_add_overflow(number, *at - '0', &number)) {
            return carry_fail(ctx, CARRY_ESIZE, "'%s%s' in '%s' is larger than any size can be", item->key, digits,
                              problem);
        }
    }
    if (number == 0) {
        return carry_fail(ctx, CARRY_ESIZE, "'%s%s' in '%s' is zero: sizes are at least 1", item->key, digits, problem);
    }
    item->number = number;
    return CARRY_OK;
}

/* True for a shape such as 2160x5120: numbers with x between them. */
static bool is_shape(const char *text) {
    const size_t digits = strspn(text, "0123456789");
    return digits > 0 && text[digits] == 'x' && strspn(text, "0123456789x") == strlen(text) &&
           strstr(text, "xx") == NULL && text[strlen(text) - 1] != 'x';
}

/* Parses one item between colons: key=value, a shape, letters and digits, or a word. */
static carry_status parse_item(carry_ctx *ctx, carry_problem_item *item, const char *problem, char *text) {
    *item = (carry_problem_item){.number = -1};
    if (*text == '\0') {
        return carry_fail(ctx, CARRY_EFORMAT, "'%s' has nothing between two colons or at its end", problem);
    }
    char *equals = strchr(text, '=');
    size_t letters = strcspn(text, "0123456789");
    if (equals != NULL) {
        *equals = '\0';
        if (strlen(text) >= CARRY_PROBLEM_WORD || strlen(equals + 1) >= CARRY_PROBLEM_WORD || !is_name(text) ||
            !is_value(equals + 1)) {
            return carry_fail(ctx, CARRY_EFORMAT, "'%.60s=%.60s' in '%s' is not of the form key=value", text,
                              equals + 1, problem);
        }
        (void)snprintf(item->key, sizeof item->key, "%s", text);
        (void)snprintf(item->value, sizeof item->value, "%s", equals + 1);
        return CARRY_OK;
    }
    if (strlen(text) < CARRY_PROBLEM_WORD && is_shape(text)) {
        (void)snprintf(item->key, sizeof item->key, "shape");
        (void)snprintf(item->value, sizeof item->value, "%s", text);
        return CARRY_OK;
    }
    if (strlen(text) >= CARRY_PROBLEM_WORD || !is_name(text)) {
        return carry_fail(ctx, CARRY_EFORMAT, "'%.60s' in '%s' is neither a word, nor letters and a number as t1024",
                          text, problem);
    }
    bool only_digits_follow = text[letters] != '\0' && text[letters + strspn(text + letters, "0123456789")] == '\0';
    if (letters > 0 && only_digits_follow && !is_type(text)) {
        (void)snprintf(item->key, sizeof item->key, "%.*s", (int)letters, text);
        return parse_size(ctx, item, problem, text + letters);
    }
    (void)snprintf(item->key, sizeof item->key, "%s", text);
    return CARRY_OK;
}

static carry_status check_twice(carry_ctx *ctx, const carry_problem *problem) {
    const carry_problem_item *last = &problem->item[problem->items - 1];
    for (int i = 0; i < problem->items - 1; i++) {
        if (strcmp(problem->item[i].key, last->key) == 0) {
            return carry_fail(ctx, CARRY_EFORMAT, "'%s' gives '%s' twice", problem->text, last->key);
        }
    }
    return CARRY_OK;
}

carry_status carry_problem_parse(carry_ctx *ctx, carry_problem *problem, const char *text) {
    *problem = (carry_problem){.items = 0};
    (void)snprintf(problem->text, sizeof problem->text, "%s", text);
    for (char *at = problem->text; *at != '\0'; at++) {
        if (!isprint((unsigned char)*at)) {
            *at = '?'; /* shown as ? in messages, and refused below since no name contains it */
        }
    }
    if (strlen(text) >= CARRY_PROBLEM_TEXT) {
        return carry_fail(ctx, CARRY_ESIZE, "'%.40s...' is longer than %d characters", problem->text,
                          CARRY_PROBLEM_TEXT - 1);
    }
    char copy[CARRY_PROBLEM_TEXT];
    memcpy(copy, problem->text, sizeof copy);
    char *rest = copy;
    char *family = strsep(&rest, ":");
    if (strlen(family) >= CARRY_PROBLEM_WORD || !is_name(family)) {
        return carry_fail(ctx, CARRY_EFORMAT, "'%s' does not start with a family, as scan:dense:t1024:n32 does",
                          problem->text);
    }
    (void)snprintf(problem->family, sizeof problem->family, "%s", family);
    while (rest != NULL) {
        if (problem->items == CARRY_PROBLEM_ITEMS) {
            return carry_fail(ctx, CARRY_ESIZE, "'%s' has more than %d parts", problem->text, CARRY_PROBLEM_ITEMS);
        }
        CARRY_TRY(parse_item(ctx, &problem->item[problem->items++], problem->text, strsep(&rest, ":")));
        CARRY_TRY(check_twice(ctx, problem));
    }
    return CARRY_OK;
}

carry_dtype carry_problem_type(const carry_problem *problem, carry_dtype otherwise) {
    carry_dtype type = otherwise;
    for (int i = 0; i < problem->items; i++) {
        const carry_problem_item *item = &problem->item[i];
        if (item->number < 0 && item->value[0] == '\0' && is_type(item->key)) {
            (void)carry_dtype_parse(&type, item->key);
        }
    }
    return type;
}

bool carry_problem_has(carry_problem *problem, const char *word) {
    for (int i = 0; i < problem->items; i++) {
        carry_problem_item *item = &problem->item[i];
        if (item->number < 0 && item->value[0] == '\0' && strcmp(item->key, word) == 0) {
            item->asked = true;
            return true;
        }
    }
    return false;
}

int64_t carry_problem_size(carry_problem *problem, const char *letters, int64_t otherwise) {
    for (int i = 0; i < problem->items; i++) {
        carry_problem_item *item = &problem->item[i];
        if (item->number >= 0 && strcmp(item->key, letters) == 0) {
            item->asked = true;
            return item->number;
        }
    }
    return otherwise;
}

const char *carry_problem_setting(carry_problem *problem, const char *key) {
    for (int i = 0; i < problem->items; i++) {
        carry_problem_item *item = &problem->item[i];
        if (item->value[0] != '\0' && strcmp(item->key, key) == 0) {
            item->asked = true;
            return item->value;
        }
    }
    return NULL;
}

/* Offers every word, size and key in a family's `takes` as a suggestion; text in brackets is explanation and
   skipped. Returns true if the word itself is one of them. */
static bool offer_takes(carry_nearest *near, const char *takes) {
    int depth = 0;
    for (const char *at = takes; *at != '\0';) {
        depth += (*at == '(') - (*at == ')');
        const size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_-");
        if (length == 0 || depth > 0) {
            at++;
            continue;
        }
        if (length == strlen(near->word) && strncmp(at, near->word, length) == 0) {
            return true;
        }
        if (strncmp(at, "or", length) != 0) {
            carry_nearest_offer_part(near, at, length);
        }
        at += length;
    }
    return false;
}

carry_status carry_problem_check(carry_ctx *ctx, const carry_problem *problem, const char *takes) {
    for (int i = 0; i < problem->items; i++) {
        const carry_problem_item *item = &problem->item[i];
        char whole[CARRY_PROBLEM_WORD + 24];
        char hint[CARRY_NEAREST_HINT];
        (void)snprintf(whole, sizeof whole, item->number >= 0 ? "%s%lld" : "%s", item->key, (long long)item->number);
        carry_nearest near = carry_nearest_to(item->number >= 0 ? item->key : whole);
        if (offer_takes(&near, takes)) {
            continue;
        }
        if (item->number >= 0) { /* a misspelling such as fp16 has the form of a size */
            carry_nearest type = carry_nearest_to(whole);
            (void)offer_takes(&type, "f32, bf16, f16");
            near = type.distance <= near.distance ? type : near;
        }
        if (near.best[0] != '\0') {
            return carry_fail(ctx, CARRY_EARGUMENT, "%s does not know '%s%s%s' (in '%s')%s", problem->family, whole,
                              item->value[0] != '\0' ? "=" : "", item->value, problem->text,
                              carry_nearest_hint(hint, &near, ""));
        }
    }
    return CARRY_OK;
}

carry_status carry_problem_finish(carry_ctx *ctx, const carry_problem *problem, const char *takes) {
    for (int i = 0; i < problem->items; i++) {
        const carry_problem_item *item = &problem->item[i];
        if (item->asked) {
            continue;
        }
        if (item->number >= 0) {
            return carry_fail(ctx, CARRY_EARGUMENT, "%s has no size '%s' (in '%s'): it takes %s", problem->family,
                              item->key, problem->text, takes);
        }
        return carry_fail(ctx, CARRY_EARGUMENT, "%s does not know '%s%s%s' (in '%s'): it takes %s", problem->family,
                          item->key, item->value[0] != '\0' ? "=" : "", item->value, problem->text, takes);
    }
    return CARRY_OK;
}

carry_status carry_problem_dtype(carry_ctx *ctx, carry_dtype *dtype, carry_problem *problem, carry_dtype last) {
    int named = 0;
    *dtype = CARRY_F32;
    for (carry_dtype type = CARRY_F32; type <= last; type++) {
        if (carry_problem_has(problem, carry_dtype_name(type))) {
            *dtype = type;
            named++;
        }
    }
    return named <= 1 ? CARRY_OK
                      : carry_fail(ctx, CARRY_EARGUMENT, "'%s' names more than one element type", problem->text);
}

carry_status carry_problem_device(carry_ctx *ctx, int *device, carry_problem *problem) {
    const char *text = carry_problem_setting(problem, "device");
    *device = 0;
    if (text == NULL || strcmp(text, "cpu") == 0) {
        return CARRY_OK;
    }
    char *end = NULL;
    long wanted = strncmp(text, "cuda", 4) == 0 && text[4] != '\0' ? strtol(text + 4, &end, 10) : 0;
    if (strncmp(text, "cuda", 4) != 0 || (end != NULL && *end != '\0') || wanted < 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "device=%s in '%s': expected cpu, cuda, cuda1, ...", text,
                          problem->text);
    }
    char name[32];
    char why[192];
    (void)snprintf(name, sizeof name, "cuda:%ld", wanted);
    const carry_status status = carry_device_named(ctx, device, wanted > 0 ? name : "cuda");
    if (status == CARRY_OK) {
        return CARRY_OK;
    }
    (void)snprintf(why, sizeof why, "%s", carry_ctx_error(ctx));
    return carry_fail(ctx, status, "device=%s in '%s': %s", text, problem->text, why);
}
