/* Plans problems given as text, for programs that link the library and for Python. */
#include <stdio.h>

#include "carry/problem.h"
#include "core/error.h"
#include "bench/family/family.h"

carry_status carry_problem_plan_about(carry_ctx *ctx, char *line, size_t size, const char *problem, bool measure) {
    carry_problem parsed;
    const carry_family *family;
    void *instance = NULL;
    if (size > 0) {
        line[0] = '\0';
    }
    CARRY_TRY(carry_problem_parse(ctx, &parsed, problem));
    CARRY_TRY(carry_family_of(ctx, &family, &parsed));
    CARRY_TRY(carry_family_plan(family, ctx, &instance, &parsed, measure));
    (void)snprintf(line, size, "%s", family->about_plan(instance));
    carry_family_close(family, instance);
    return CARRY_OK;
}

const char *carry_problem_family_name(int index) {
    const carry_family *family = carry_family_at(index);
    return family != NULL ? family->name : NULL;
}

const char *carry_problem_family_about(int index) {
    const carry_family *family = carry_family_at(index);
    return family != NULL ? family->about : NULL;
}

const char *carry_problem_family_takes(int index) {
    const carry_family *family = carry_family_at(index);
    return family != NULL ? family->takes : NULL;
}
