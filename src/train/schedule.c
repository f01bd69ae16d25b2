/* Learning rates. */
#include "train/schedule.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/error.h"

static const char *const names[] = {"constant", "linear", "cosine"};

carry_status carry_schedule_parse(carry_ctx *ctx, carry_schedule_kind *kind, const char *name) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *kind = (carry_schedule_kind)i;
            return CARRY_OK;
        }
    }
    return carry_fail(ctx, CARRY_ENOTFOUND, "there is no schedule '%.40s': expected constant, linear or cosine", name);
}

double carry_schedule_rate(const carry_schedule *schedule, int64_t step) {
    if (step <= schedule->warmup) {
        return schedule->rate * (double)step / (double)schedule->warmup;
    }
    if (schedule->kind == CARRY_SCHEDULE_CONSTANT) {
        return schedule->rate;
    }
    double x = 1.0;
    if (step < schedule->steps) {
        x = (double)(step - schedule->warmup) / (double)(schedule->steps - schedule->warmup);
    }
    const double f = schedule->kind == CARRY_SCHEDULE_LINEAR ? 1.0 - x : 0.5 * (1.0 + cos(3.14159265358979323846 * x));
    return schedule->rate * (schedule->final + (1.0 - schedule->final) * f);
}
