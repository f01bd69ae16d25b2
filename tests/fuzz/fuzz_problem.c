/* Any text as a problem: it is refused with an error message, or parsed and then planned by its family, however large:
   planning allocates no inputs. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "bench/family/family.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

/* One context for all inputs: its rates are measured once. */
static carry_ctx *context(void) {
    static carry_ctx *ctx;
    if (ctx == NULL && carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                .log = silent}) != CARRY_OK) {
        abort();
    }
    return ctx;
}

static void expect(int holds) {
    if (!holds) {
        abort();
    }
}

static void expect_sentence(const carry_ctx *ctx) {
    const char *message = carry_ctx_error(ctx);
    expect(strlen(message) > 0);
    for (; *message != '\0'; message++) {
        expect(isprint((unsigned char)*message));
    }
}

static void plan(carry_ctx *ctx, carry_problem *problem) {
    const carry_family *family;
    void *instance;
    if (carry_family_find(ctx, &family, problem->family) != CARRY_OK) {
        return;
    }
    if (carry_family_plan(family, ctx, &instance, problem, false) != CARRY_OK) {
        expect_sentence(ctx);
        return;
    }
    expect(strlen(family->chosen(instance)) > 0 && strlen(family->about_plan(instance)) > 0);
    expect(family->bytes(instance) > 0.0);
    carry_family_close(family, instance);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    carry_ctx *ctx = context();
    char *text = malloc(size + 1);
    if (text == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(text, data, size);
    }
    text[size] = '\0';
    carry_problem problem;
    memset(&problem, 0xff, sizeof problem);
    if (carry_problem_parse(ctx, &problem, text) != CARRY_OK) {
        expect_sentence(ctx);
        free(text);
        return 0;
    }
    expect(strcmp(problem.text, text) == 0); /* a text with replaced characters is not accepted */
    free(text);
    expect(problem.items >= 0 && problem.items <= CARRY_PROBLEM_ITEMS);
    for (int i = 0; i < problem.items; i++) {
        expect(strlen(problem.item[i].key) > 0 && problem.item[i].number != 0 && problem.item[i].number >= -1);
    }
    plan(ctx, &problem);
    return 0;
}
