/* Any text as a criterion: refused with an error message, or understood, checked and judged, always with one of three
   verdicts and with a reason where there is no figure. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/experiment/criteria.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

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

static const carry_outcome outcomes[] = {
    {.problem = "scan:dense:t8",
     .stage = "cpu",
     .method = "cyclic",
     .device = "cpu",
     .products = 3,
     .median = 1e-3,
     .error = 1e-7,
     .bound = 1e-5},
    {.problem = "scan:dense:t8",
     .stage = "cpu",
     .method = "sequential",
     .device = "cpu",
     .median = 2e-3,
     .error = NAN,
     .bound = NAN},
    {.problem = "scan:dense:t16",
     .stage = "cpu",
     .method = "cyclic",
     .device = "cpu",
     .products = 9,
     .median = 0.0,
     .error = INFINITY,
     .bound = 1e-5},
    {.problem = "scan:dense:t16", .stage = "cpu", .method = "sequential", .device = "cpu", .median = 3e-3},
    {.problem = "scan:bf16:t8:device=cuda", .stage = "gpu", .method = "cyclic", .device = "cuda", .reason = "no GPU"},
};
#define COUNT ((int)(sizeof outcomes / sizeof outcomes[0]))

static void expect_verdict(carry_verdict v) {
    bool known = !isnan(v.value) && !isnan(v.bound);
    expect(known == (v.kind != CARRY_NOT_MEASURED));
    expect(known || strlen(v.reason) > 0);
    expect(strlen(carry_verdict_name(v.kind)) > 0);
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
    carry_criterion *criterion;
    if (carry_criterion_parse(ctx, &criterion, text) != CARRY_OK) {
        expect(criterion == NULL && strlen(carry_ctx_error(ctx)) > 0);
        for (const char *at = carry_ctx_error(ctx); *at != '\0'; at++) {
            expect(!iscntrl((unsigned char)*at));
        }
    } else {
        (void)carry_criterion_check(ctx, criterion, outcomes, COUNT);
        expect_verdict(carry_criterion_judge(criterion, outcomes, COUNT));
        expect_verdict(carry_criterion_judge(criterion, outcomes, 0));
        carry_criterion_free(criterion);
    }
    free(text);
    return 0;
}
