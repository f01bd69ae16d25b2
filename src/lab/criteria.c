/* Criteria: checked against the grid before anything runs, judged on what was measured. */
#include "lab/criteria.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/criteria_tree.h"

/* Whether a piece of a problem such as t128, bf16, device=cuda fits the filter. */
static bool piece_fits(const char *piece, size_t length, const filter *f) {
    char wanted[2 * WORD + 2];
    if (f->value[0] == '\0') {
        (void)snprintf(wanted, sizeof wanted, "%s", f->key);
    } else {
        (void)snprintf(wanted, sizeof wanted, "%s%s", f->key, f->value);
    }
    if (strlen(wanted) == length && strncmp(piece, wanted, length) == 0) {
        return true;
    }
    (void)snprintf(wanted, sizeof wanted, "%s=%s", f->key, f->value);
    return f->value[0] != '\0' && strlen(wanted) == length && strncmp(piece, wanted, length) == 0;
}

static bool fits(const carry_outcome *o, const filter *f) {
    if (strcmp(f->key, "stage") == 0) {
        return strcmp(o->stage, f->value) == 0;
    }
    if (strcmp(f->key, "device") == 0) {
        return strcmp(o->device, f->value) == 0;
    }
    if (f->value[0] == '\0' && strcmp(f->key, "f64") == 0) {
        return true; /* every error is measured against float64 */
    }
    for (const char *piece = o->problem; *piece != '\0';) {
        size_t length = strcspn(piece, ":");
        if (piece_fits(piece, length, f)) {
            return true;
        }
        piece += length + (piece[length] == ':' ? 1 : 0);
    }
    return false;
}

static bool fits_all(const carry_outcome *o, const node *n) {
    for (int i = 0; i < n->filters; i++) {
        if (!fits(o, &n->filter[i])) {
            return false;
        }
    }
    return true;
}

static carry_status check_measure(carry_ctx *ctx, const carry_criterion *c, const node *n,
                                  const carry_outcome *outcomes, int count) {
    for (int m = 0; m < n->measure->methods; m++) {
        bool known = false;
        bool matches = false;
        for (int i = 0; i < count; i++) {
            bool same = strcmp(outcomes[i].method, n->method[m]) == 0;
            known = known || same;
            matches = matches || (same && fits_all(&outcomes[i], n));
        }
        if (!known) {
            return carry_fail(ctx, CARRY_EARGUMENT, "the criterion '%s' names the method '%s', which nothing here runs",
                              c->text, n->method[m]);
        }
        if (!matches) {
            return carry_fail(ctx, CARRY_EARGUMENT,
                              "the criterion '%s': no problem of the grid with the method '%s' fits its filters",
                              c->text, n->method[m]);
        }
    }
    return CARRY_OK;
}

carry_status carry_criterion_check(carry_ctx *ctx, const carry_criterion *criterion, const carry_outcome *outcomes,
                                   int count) {
    for (int i = 0; i < criterion->count; i++) {
        if (criterion->nodes[i].kind == MEASURE) {
            CARRY_TRY(check_measure(ctx, criterion, &criterion->nodes[i], outcomes, count));
        }
    }
    return CARRY_OK;
}

typedef struct judge {
    const carry_criterion *c;
    const carry_outcome *outcomes;
    int count;
    char reason[256];
} judge;

static const carry_outcome *same_problem(const judge *j, const carry_outcome *o, const char *method) {
    for (int i = 0; i < j->count; i++) {
        const carry_outcome *other = &j->outcomes[i];
        if (strcmp(other->method, method) == 0 && strcmp(other->problem, o->problem) == 0 &&
            strcmp(other->stage, o->stage) == 0) {
            return other;
        }
    }
    return NULL;
}

/* The figure of one outcome; NaN, with the reason noted, when something was not measured. */
static double figure(judge *j, const node *n, const carry_outcome *o) {
    const carry_outcome *against = n->measure->methods == 2 ? same_problem(j, o, n->method[1]) : o;
    const carry_outcome *lacking = o->reason[0] != '\0' ? o : against;
    if (against == NULL || lacking->reason[0] != '\0') {
        (void)snprintf(j->reason, sizeof j->reason, "%s on %s: %.160s",
                       lacking != NULL ? lacking->method : n->method[1], o->problem,
                       lacking != NULL ? lacking->reason : "it was not run there");
        return NAN;
    }
    double value = n->measure->value(o, against);
    if (isnan(value)) {
        (void)snprintf(j->reason, sizeof j->reason, "%s of %s on %s has no figure", n->measure->name, o->method,
                       o->problem);
    }
    return value;
}

/* Over every problem that fits. Without `choice` the worst of them, and then all must have been measured; a chosen min
   or max is over those that were. */
static double gather(judge *j, const node *n, const worst *choice) {
    worst which = choice != NULL ? *choice : n->measure->worst;
    double result = NAN;
    for (int i = 0; i < j->count; i++) {
        const carry_outcome *o = &j->outcomes[i];
        if (strcmp(o->method, n->method[0]) != 0 || !fits_all(o, n)) {
            continue;
        }
        double value = figure(j, n, o);
        if (isnan(value) && choice == NULL) {
            return NAN;
        }
        if (isnan(result) || (which == LEAST ? value < result : value > result)) {
            result = isnan(value) ? result : value;
        }
    }
    return result;
}

static double size_of(const char *problem, const char *letters) {
    size_t length = strlen(letters);
    for (const char *piece = problem; *piece != '\0';) {
        size_t size = strcspn(piece, ":");
        if (size > length && strncmp(piece, letters, length) == 0 && isdigit((unsigned char)piece[length])) {
            return strtod(piece + length, NULL);
        }
        piece += size + (piece[size] == ':' ? 1 : 0);
    }
    return NAN;
}

/* The least quotient of successive figures along a size. */
static double growth(judge *j, const node *n, const char *along) {
    double last_size = -INFINITY;
    double last_value = NAN;
    double least = NAN;
    for (;;) {
        double next_size = INFINITY;
        double next_value = NAN;
        for (int i = 0; i < j->count; i++) {
            const carry_outcome *o = &j->outcomes[i];
            double size = size_of(o->problem, along);
            if (strcmp(o->method, n->method[0]) == 0 && fits_all(o, n) && size > last_size && size < next_size) {
                next_size = size;
                next_value = figure(j, n, o);
            }
        }
        if (isinf(next_size)) {
            break;
        }
        if (isnan(next_value)) {
            return NAN;
        }
        if (!isnan(last_value)) {
            least = isnan(least) ? next_value / last_value : fmin(least, next_value / last_value);
        }
        last_size = next_size;
        last_value = next_value;
    }
    if (isnan(least) && j->reason[0] == '\0') {
        (void)snprintf(j->reason, sizeof j->reason, "fewer than two problems differ in %s", along);
    }
    return least;
}

static double evaluate(judge *j, int index) {
    const node *n = &j->c->nodes[index];
    static const worst least = LEAST;
    static const worst largest = LARGEST;
    double right;
    switch (n->kind) {
    case NUMBER:
        return n->number;
    case ADD:
        return evaluate(j, n->left) + evaluate(j, n->right);
    case SUBTRACT:
        return evaluate(j, n->left) - evaluate(j, n->right);
    case MULTIPLY:
        return evaluate(j, n->left) * evaluate(j, n->right);
    case DIVIDE:
        right = evaluate(j, n->right);
        if (right == 0.0) {
            (void)snprintf(j->reason, sizeof j->reason, "a division by zero");
            return NAN;
        }
        return evaluate(j, n->left) / right;
    case NEGATE:
        return -evaluate(j, n->left);
    case LOG2:
        return log2(evaluate(j, n->left));
    case MEASURE:
        return gather(j, n, NULL);
    case MIN:
        return gather(j, &j->c->nodes[n->left], &least);
    case MAX:
        return gather(j, &j->c->nodes[n->left], &largest);
    case GROWS:
        return growth(j, &j->c->nodes[n->left], n->along);
    }
    return NAN;
}

static bool holds(const char *compare, double value, double bound) {
    if (compare[0] == '=') {
        return value == bound;
    }
    if (compare[0] == '<') {
        return compare[1] == '=' ? value <= bound : value < bound;
    }
    return compare[1] == '=' ? value >= bound : value > bound;
}

carry_verdict carry_criterion_judge(const carry_criterion *criterion, const carry_outcome *outcomes, int count) {
    judge j = {.c = criterion, .outcomes = outcomes, .count = count};
    carry_verdict v = {.kind = CARRY_NOT_MEASURED};
    v.value = evaluate(&j, criterion->left);
    v.bound = evaluate(&j, criterion->right);
    if (isnan(v.value) || isnan(v.bound)) {
        (void)snprintf(v.reason, sizeof v.reason, "%s", j.reason[0] != '\0' ? j.reason : "it has no figure");
    } else {
        v.kind = holds(criterion->compare, v.value, v.bound) ? CARRY_MET : CARRY_NOT_MET;
    }
    return v;
}

const char *carry_verdict_name(carry_verdict_kind kind) {
    return kind == CARRY_MET ? "met" : kind == CARRY_NOT_MET ? "not met" : "not measured";
}
