/* Checks of a climb log whose checksums are right: order, decisions, differences. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "lab/climb/climb_log.h"

static bool is_date(const char *text) {
    static const char form[] = "0000-00-00T00:00:00Z";
    for (size_t i = 0; i < sizeof form; i++) {
        if (form[i] == '0' ? !isdigit((unsigned char)text[i]) : text[i] != form[i]) {
            return false;
        }
    }
    return true;
}

static bool is_commit(const char *text) {
    size_t length = strspn(text, "0123456789abcdef");
    return text[length] == '\0' && (length == 40 || length == 64);
}

static carry_status wrong(carry_ctx *ctx, const char *name, const carry_climb_entry *e, const char *what) {
    return carry_fail(ctx, CARRY_ERANGE, "%s, entry %d (%.60s): %s", name, e->number, e->title, what);
}

static carry_status check_decision(carry_ctx *ctx, const char *name, const carry_climb_entry *e) {
    bool kept = strcmp(e->decision, "kept") == 0;
    bool baseline = strcmp(e->decision, "baseline") == 0;
    if (baseline != (e->number == 0)) {
        return wrong(ctx, name, e, "the decision 'baseline' belongs to entry 0, and to it alone");
    }
    if (!kept && !baseline && strcmp(e->decision, "refused") != 0) {
        return wrong(ctx, name, e, "the decision must be baseline, kept or refused");
    }
    if ((kept || baseline) != is_commit(e->commit) || (!kept && !baseline && strcmp(e->commit, "none") != 0)) {
        return wrong(ctx, name, e, "an entry that was kept must have a commit, one that was refused must not");
    }
    if (!is_commit(e->on)) {
        return wrong(ctx, name, e, "'on' must name the commit that was changed");
    }
    if ((kept || baseline) && e->count == 0) {
        return wrong(ctx, name, e, "it was kept, and there are no samples");
    }
    if (kept && !(e->gain_best > 1.0)) {
        return wrong(ctx, name, e, "it was kept, and by its samples it is no faster than the best before it");
    }
    if (kept && strncmp(e->result, "passed", 6) != 0 && strncmp(e->result, "not run", 7) != 0) {
        return wrong(ctx, name, e, "it was kept, and its tests did not pass");
    }
    return CARRY_OK;
}

/* Checks that the stored throughput and differences follow from the samples and shares (MFU). best_share is the share
   of the best that the entry was compared with; the baseline is compared with itself. */
static carry_status check_differences(carry_ctx *ctx, const carry_climb_log *log, const char *name,
                                      const carry_climb_entry *e) {
    char expected[96];
    char throughput[32];
    char what[256];
    (void)snprintf(throughput, sizeof throughput, e->count > 0 ? "%.9g" : "none", e->median);
    if (strcmp(throughput, e->throughput) != 0) {
        (void)snprintf(what, sizeof what, "the throughput is %.40s and the median of its samples is %s", e->throughput,
                       throughput);
        return wrong(ctx, name, e, what);
    }
    carry_climb_difference(expected, e->gain_baseline, e->share, log->entry[0].share);
    if (strcmp(expected, e->against_baseline) != 0) {
        (void)snprintf(what, sizeof what, "against the baseline it says '%.60s', and the figures say '%s'",
                       e->against_baseline, expected);
        return wrong(ctx, name, e, what);
    }
    carry_climb_difference(expected, e->gain_best, e->share, e->number == 0 ? e->share : e->best_share);
    if (strcmp(expected, e->against_best) != 0) {
        (void)snprintf(what, sizeof what, "against the best it says '%.60s', and the figures say '%s'", e->against_best,
                       expected);
        return wrong(ctx, name, e, what);
    }
    return CARRY_OK;
}

carry_status carry_climb_log_check(carry_ctx *ctx, const carry_climb_log *log, const char *name) {
    for (int i = 0; i < log->count; i++) {
        const carry_climb_entry *e = &log->entry[i];
        if (!is_date(e->date)) {
            return wrong(ctx, name, e, "the date is not of the form 2026-03-01T12:00:00Z");
        }
        if (i > 0 && strcmp(e->date, log->entry[i - 1].date) < 0) {
            return wrong(ctx, name, e, "its date lies before that of the entry above it");
        }
        CARRY_TRY(check_decision(ctx, name, e));
        CARRY_TRY(check_differences(ctx, log, name, e));
    }
    return CARRY_OK;
}
