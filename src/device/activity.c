/* The log of GPU activity, and asking a backend to fill it. */
#include "device/activity.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "device/backend.h"

#define LONGEST 512 /* bytes of a name while it is shortened */

static carry_activity_sum *sum_of(carry_activity_log *log, carry_activity_kind kind, const char *name) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (const char *at = name; *at != '\0'; at++) {
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    }
    for (uint64_t i = 0; i < CARRY_ACTIVITY_NAMES; i++) {
        carry_activity_sum *sum = &log->sum[(hash + i) % CARRY_ACTIVITY_NAMES];
        if (sum->name == NULL) {
            sum->name = strdup(name);
            sum->kind = kind;
        }
        if (sum->name == NULL) {
            break;
        }
        if (sum->kind == kind && strcmp(sum->name, name) == 0) {
            return sum;
        }
    }
    return &log->sum[CARRY_ACTIVITY_NAMES];
}

static int compare(double x, double y) {
    return (x > y) - (x < y);
}

static int by_start(const void *a, const void *b) {
    const carry_activity *x = a;
    const carry_activity *y = b;
    return x->gpu != y->gpu ? compare(x->gpu, y->gpu) : compare(x->start, y->start);
}

static int by_stream(const void *a, const void *b) {
    const carry_activity *x = a;
    const carry_activity *y = b;
    return x->gpu != y->gpu || x->stream == y->stream ? by_start(a, b) : compare(x->stream, y->stream);
}

/* Adds up the time that at least one record covers; the records are sorted by start. */
static void add_up_busy(carry_activity_log *log) {
    double until = 0.0;
    log->gpus = 0;
    log->first = log->count > 0 ? log->record[0].start : 0.0;
    log->last = log->first;
    log->busy = log->dropped_seconds; /* as if nothing else had run meanwhile, which is true of a single stream */
    for (int64_t i = 0; i < log->count; i++) {
        const carry_activity *at = &log->record[i];
        if (i == 0 || at->gpu != at[-1].gpu) {
            log->gpus++;
            until = at->start;
        }
        double from = at->start > until ? at->start : until;
        log->first = at->start < log->first ? at->start : log->first;
        log->last = at->end > log->last ? at->end : log->last;
        if (at->end > from) {
            log->busy += at->end - from;
            until = at->end;
        }
    }
}

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* Returns the position after the bracket that closes the one at `at`. */
static const char *skip_brackets(const char *at) {
    int depth = 0;
    do {
        depth += (*at == '(') - (*at == ')');
        at++;
    } while (depth > 0 && *at != '\0');
    return at;
}

static const carry_backend *recording_backend(void) {
    int devices = carry_device_count();
    for (int device = 0; device < devices; device++) {
        int ordinal;
        const carry_backend *backend = carry_backend_of(device, &ordinal);
        if (backend != NULL && backend->activity_start != NULL) {
            return backend;
        }
    }
    return NULL;
}

carry_status carry_activity_new(carry_ctx *ctx, carry_activity_log **log, int64_t records) {
    int64_t limit = records > 0 && records < CARRY_ACTIVITY_RECORDS ? records : CARRY_ACTIVITY_RECORDS;
    carry_activity_log *made = calloc(1, sizeof *made);
    *log = NULL;
    if (made != NULL) {
        made->limit = limit;
        made->record = malloc((size_t)limit * sizeof *made->record);
        made->sum[CARRY_ACTIVITY_NAMES].name = strdup("other kernels");
    }
    if (made == NULL || made->record == NULL || made->sum[CARRY_ACTIVITY_NAMES].name == NULL) {
        carry_activity_free(made);
        return carry_fail(ctx, CARRY_EMEMORY, "kernels are not on the trace: out of memory: %lld records",
                          (long long)limit);
    }
    *log = made;
    return CARRY_OK;
}

void carry_activity_free(carry_activity_log *log) {
    if (log == NULL) {
        return;
    }
    for (int i = 0; i <= CARRY_ACTIVITY_NAMES; i++) {
        free(log->sum[i].name);
    }
    free(log->record);
    free(log);
}

carry_status carry_activity_start(carry_ctx *ctx, carry_activity_log **log, int64_t records) {
    const carry_backend *backend = recording_backend();
    *log = NULL;
    if (backend == NULL) {
        return CARRY_OK;
    }
    carry_activity_log *made;
    CARRY_TRY(carry_activity_new(ctx, &made, records));
    made->backend = backend;
    carry_status status = backend->activity_start(ctx, made);
    if (status != CARRY_OK) {
        carry_activity_free(made);
        return status;
    }
    *log = made;
    return CARRY_OK;
}

carry_status carry_activity_stop(carry_ctx *ctx, carry_activity_log *log) {
    carry_status status = log->backend->activity_stop(ctx, log);
    carry_activity_finish(log);
    return status;
}

void carry_activity_add(carry_activity_log *log, const carry_activity *activity, const char *name) {
    carry_activity_sum *sum = sum_of(log, activity->kind, name);
    sum->calls++;
    sum->seconds += activity->end - activity->start;
    if (log->count == log->limit) {
        log->dropped++;
        log->dropped_seconds += activity->end - activity->start;
        return;
    }
    log->record[log->count] = *activity;
    log->record[log->count++].name = (int)(sum - log->sum);
}

void carry_activity_launched(carry_activity_log *log, const char *name, const carry_launcher *by) {
    carry_activity_sum *sum = sum_of(log, CARRY_ACTIVITY_KERNEL, name);
    for (int i = 0; i < CARRY_ACTIVITY_OPERATORS; i++) {
        if (sum->operator_name[i] == NULL || strcmp(sum->operator_name[i], by->name) == 0) {
            sum->operator_name[i] = by->name;
            sum->operator_place[i] = by->place;
            sum->launches[i]++;
            return;
        }
    }
}

void carry_activity_finish(carry_activity_log *log) {
    qsort(log->record, (size_t)log->count, sizeof *log->record, by_start);
    add_up_busy(log);
    qsort(log->record, (size_t)log->count, sizeof *log->record, by_stream);
}

void carry_activity_shorten(char shown[CARRY_ACTIVITY_NAME], const char *name) {
    static const char nameless[] = "(anonymous namespace)::";
    char text[LONGEST];
    size_t used = 0;
    int depth = 0; /* nesting depth of template arguments */
    for (const char *at = name; *at != '\0' && used + 1 < sizeof text;) {
        if (strncmp(at, nameless, sizeof nameless - 1) == 0) {
            at += sizeof nameless - 1;
        } else if (at[0] == ':' && at[1] == ':') { /* the part before is a namespace or a class */
            while (used > 0 && (depth == 0 || is_word(text[used - 1]))) {
                used--;
            }
            at += 2;
        } else if (*at == '(' && depth > 0) { /* the type of a constant */
            at = skip_brackets(at);
        } else if (*at == '(' && used > 0) { /* parameters */
            break;
        } else if (*at == ' ' && depth == 0) { /* the type of the result */
            used = 0;
            at++;
        } else {
            depth += (*at == '<') - (*at == '>');
            text[used++] = (char)(*at < 0x20 || *at > 0x7e ? '?' : *at);
            at++;
        }
    }
    text[used] = '\0';
    bool cut = used >= CARRY_ACTIVITY_NAME;
    (void)snprintf(shown, CARRY_ACTIVITY_NAME, "%.*s%s", cut ? CARRY_ACTIVITY_NAME - 5 : CARRY_ACTIVITY_NAME - 1,
                   used > 0 ? text : "a kernel without a name",
                   !cut                        ? ""
                   : strchr(text, '<') != NULL ? "...>"
                                               : "...");
}
