/* Criteria: checked against the grid before anything runs, evaluated on the measured figures. */
#include "lab/experiment/criteria.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/experiment/criteria_tree.h"

/* True if a piece of a problem, such as t128, bf16 or device=cuda, matches the filter. */
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

static bool is_error(const measure *m) {
    return strstr(m->name, "error") != NULL;
}

static bool fits(const carry_outcome *o, const filter *f, const measure *m) {
    if (strcmp(f->key, "stage") == 0) {
        return strcmp(o->stage, f->value) == 0;
    }
    if (strcmp(f->key, "device") == 0) {
        return strcmp(o->device, f->value) == 0;
    }
    if (f->value[0] == '\0' && strcmp(f->key, "f64") == 0 && is_error(m)) {
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

/* The state while a criterion is checked and judged. */
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

/* True for an outcome of the first method that passes every filter, on a problem that the second method also runs. */
static bool belongs(const judge *j, const node *n, const carry_outcome *o) {
    if (strcmp(o->method, n->method[0]) != 0) {
        return false;
    }
    for (int i = 0; i < n->filters; i++) {
        if (!fits(o, &n->filter[i], n->measure)) {
            return false;
        }
    }
    return n->measure->methods < 2 || same_problem(j, o, n->method[1]) != NULL;
}

static carry_status check_measure(carry_ctx *ctx, const judge *j, const node *n) {
    for (int m = 0; m < n->measure->methods; m++) {
        bool known = false;
        for (int i = 0; i < j->count; i++) {
            known = known || strcmp(j->outcomes[i].method, n->method[m]) == 0;
        }
        if (!known) {
            return carry_fail(ctx, CARRY_EARGUMENT,
                              "the criterion '%s', column %d: it names the method '%s', which nothing here runs",
                              j->c->text, n->column, n->method[m]);
        }
    }
    for (int i = 0; i < j->count; i++) {
        if (belongs(j, n, &j->outcomes[i])) {
            return CARRY_OK;
        }
    }
    bool two = n->measure->methods == 2;
    return carry_fail(ctx, CARRY_EARGUMENT,
                      "the criterion '%s', column %d: no problem of the grid with the method %s%s%s fits its filters",
                      j->c->text, n->column, n->method[0], two ? " and with " : "", two ? n->method[1] : "");
}

/* True if the error is above its bound. A result that was not compared has no bound. */
static bool is_wrong(const carry_outcome *o) {
    return o->error > o->bound;
}

static bool spreads(const carry_outcome *o) {
    return o->spread_limit > 0.0 && o->spread > o->spread_limit;
}

/* The figure of one outcome. NaN, with the reason in j->reason, if something was not measured or, for a time, if the
   result was wrong or the times spread beyond their limit. */
static double figure(judge *j, const node *n, const carry_outcome *o) {
    const carry_outcome *against = n->measure->methods == 2 ? same_problem(j, o, n->method[1]) : o;
    const carry_outcome *lacking = o->reason[0] != '\0' ? o : against;
    if (lacking->reason[0] != '\0') {
        (void)snprintf(j->reason, sizeof j->reason, "%s on %s: %.160s", lacking->method, o->problem, lacking->reason);
        return NAN;
    }
    const carry_outcome *wrong = is_wrong(o) ? o : against;
    if (n->measure->timed && is_wrong(wrong)) {
        (void)snprintf(j->reason, sizeof j->reason, "%s on %s: its result is wrong (error %.2e, bound %.2e)",
                       wrong->method, o->problem, wrong->error, wrong->bound);
        return NAN;
    }
    const carry_outcome *unsteady = spreads(o) ? o : against;
    if (n->measure->timed && spreads(unsteady)) {
        (void)snprintf(j->reason, sizeof j->reason,
                       "%s on %s: its times spread by %.0f %%, more than %.0f %% (spread): the machine was not quiet",
                       unsteady->method, o->problem, 100.0 * unsteady->spread, 100.0 * unsteady->spread_limit);
        return NAN;
    }
    double value = n->measure->value(o, against);
    if (isnan(value)) {
        (void)snprintf(j->reason, sizeof j->reason, "%s of %s on %s has no figure", n->measure->name, o->method,
                       o->problem);
    }
    return value;
}

/* The value of an expression, and the bounds that it will have once everything is measured. */
typedef struct range {
    double value, low, high;
} range;

static range exactly(double value) {
    return (range){value, value, value};
}

static bool is_exact(range r) {
    return r.low == r.high;
}

/* True if the figure may still be measured. */
static bool is_pending(const judge *j, const node *n, const carry_outcome *o) {
    const carry_outcome *against = n->measure->methods == 2 ? same_problem(j, o, n->method[1]) : o;
    return o->pending || against->pending;
}

/* The minimum or maximum of the figures of all matching problems. choice NULL: the worse of the two for this measure;
   NaN unless all problems were measured. Otherwise: the minimum or maximum, as chosen, over the measured problems; its
   bounds allow for pending problems, which may still lower a minimum or raise a maximum. */
static range gather(judge *j, const node *n, const worst *choice) {
    worst which = choice != NULL ? *choice : n->measure->worst;
    const char *pending = NULL; /* name of a stage */
    double result = NAN;
    for (int i = 0; i < j->count; i++) {
        const carry_outcome *o = &j->outcomes[i];
        if (!belongs(j, n, o)) {
            continue;
        }
        double value = figure(j, n, o);
        if (isnan(value) && choice == NULL) {
            return exactly(NAN);
        }
        pending = isnan(value) && is_pending(j, n, o) ? o->stage : pending;
        if (isnan(result) || (which == LEAST ? value < result : value > result)) {
            result = isnan(value) ? result : value;
        }
    }
    range r = exactly(result);
    if (pending != NULL && !isnan(result)) {
        (void)snprintf(j->reason, sizeof j->reason, "the stage '%.40s' is not wholly measured, which could change it",
                       pending);
        r.low = which == LEAST ? -INFINITY : r.low;
        r.high = which == LEAST ? r.high : INFINITY;
    }
    return r;
}

/* The mean over every matching problem, all of which must have been measured. */
static double average(judge *j, const node *n) {
    double sum = 0.0;
    int count = 0;
    for (int i = 0; i < j->count; i++) {
        if (belongs(j, n, &j->outcomes[i])) {
            sum += figure(j, n, &j->outcomes[i]); /* a NaN and its reason are kept */
            count++;
        }
    }
    return sum / count;
}

/* Finds the size with these letters in a problem's text. For "t" in scan:diagonal:t1024:n16, returns a pointer to
   "t1024:n16"; NULL if the problem does not have that size. */
static const char *size_piece(const char *problem, const char *letters) {
    size_t length = strlen(letters);
    for (const char *piece = problem; *piece != '\0';) {
        size_t size = strcspn(piece, ":");
        if (size > length && strncmp(piece, letters, length) == 0 && isdigit((unsigned char)piece[length])) {
            return piece;
        }
        piece += size + (piece[size] == ':' ? 1 : 0);
    }
    return NULL;
}

/* If b is the same problem as a with a larger size along `along`, returns that size, else NaN. */
static double larger_size(const carry_outcome *a, const carry_outcome *b, const char *along) {
    const char *at = size_piece(a->problem, along);
    const char *bt = size_piece(b->problem, along);
    if (at == NULL || bt == NULL || strcmp(a->stage, b->stage) != 0 || at - a->problem != bt - b->problem ||
        strncmp(a->problem, b->problem, (size_t)(at - a->problem)) != 0 ||
        strcmp(at + strcspn(at, ":"), bt + strcspn(bt, ":")) != 0) {
        return NAN;
    }
    double from = strtod(at + strlen(along), NULL);
    double to = strtod(bt + strlen(along), NULL);
    return to > from ? to : NAN;
}

/* The next outcome along a size with everything else equal, or NULL after the last. */
static const carry_outcome *follower(const judge *j, const node *n, const carry_outcome *o, const char *along) {
    const carry_outcome *next = NULL;
    double least = INFINITY;
    for (int i = 0; i < j->count; i++) {
        double size = larger_size(o, &j->outcomes[i], along);
        if (size < least && belongs(j, n, &j->outcomes[i])) {
            least = size;
            next = &j->outcomes[i];
        }
    }
    return next;
}

/* The smallest growth of the figure from one value of a size to the next larger one: the minimum of next / current
   over all pairs of problems that differ only in that size. */
static double growth(judge *j, const node *n, const char *along) {
    double least = NAN;
    for (int i = 0; i < j->count; i++) {
        const carry_outcome *o = &j->outcomes[i];
        const carry_outcome *next = belongs(j, n, o) ? follower(j, n, o, along) : NULL;
        if (next == NULL) {
            continue;
        }
        double growth_here = figure(j, n, next) / figure(j, n, o);
        if (isnan(growth_here)) {
            return NAN;
        }
        least = fmin(least, growth_here); /* fmin ignores a NaN */
    }
    return least;
}

static carry_status check_growth(carry_ctx *ctx, const judge *j, const node *n, const char *along) {
    for (int i = 0; i < j->count; i++) {
        if (belongs(j, n, &j->outcomes[i]) && follower(j, n, &j->outcomes[i], along) != NULL) {
            return CARRY_OK;
        }
    }
    return carry_fail(ctx, CARRY_EARGUMENT,
                      "the criterion '%s', column %d: no two problems that fit differ in '%s' alone", j->c->text,
                      n->column, along);
}

carry_status carry_criterion_check(carry_ctx *ctx, const carry_criterion *criterion, const carry_outcome *outcomes,
                                   int count) {
    const judge j = {.c = criterion, .outcomes = outcomes, .count = count};
    for (int i = 0; i < criterion->count; i++) {
        const node *n = &criterion->nodes[i];
        if (n->kind == MEASURE) {
            CARRY_TRY(check_measure(ctx, &j, n));
        } else if (n->kind == GROWS) {
            CARRY_TRY(check_growth(ctx, &j, &criterion->nodes[n->left], n->along));
        }
    }
    return CARRY_OK;
}

static double divided(judge *j, double left, double right) {
    if (right == 0.0) {
        (void)snprintf(j->reason, sizeof j->reason, "a division by zero");
        return NAN;
    }
    return left / right;
}

static double logarithm(judge *j, double of) {
    if (of <= 0.0) {
        (void)snprintf(j->reason, sizeof j->reason, "a logarithm of %g", of);
        return NAN;
    }
    return log2(of);
}

/* Multiplies a range and its bounds by an exact factor; a negative factor swaps the bounds. A product of two inexact
   ranges has no bounds. */
static range scaled(range of, double factor) {
    if (factor == 0.0 || isnan(factor)) {
        return exactly(of.value * factor);
    }
    return factor > 0.0 ? (range){of.value * factor, of.low * factor, of.high * factor}
                        : (range){of.value * factor, of.high * factor, of.low * factor};
}

static range multiplied(range a, range b) {
    return is_exact(b)   ? scaled(a, b.value)
           : is_exact(a) ? scaled(b, a.value)
                         : (range){a.value * b.value, -INFINITY, INFINITY};
}

static range quotient(judge *j, range a, range b) {
    const double value = divided(j, a.value, b.value);
    if (is_exact(b) && !isnan(value)) {
        range r = scaled(a, 1.0 / b.value);
        return is_exact(a) ? exactly(value) : (range){value, r.low, r.high};
    }
    return isnan(value) ? exactly(NAN) : (range){value, -INFINITY, INFINITY};
}

static range logged(judge *j, range of) {
    const double value = logarithm(j, of.value);
    return is_exact(of) || isnan(value)
               ? exactly(value)
               : (range){value, of.low > 0.0 ? log2(of.low) : -INFINITY, of.high > 0.0 ? log2(of.high) : INFINITY};
}

static range evaluate(judge *j, int index) {
    const node *n = &j->c->nodes[index];
    static const worst least = LEAST;
    static const worst largest = LARGEST;
    if (n->kind == NUMBER) {
        return exactly(n->number);
    }
    if (n->kind == MEASURE) {
        return gather(j, n, NULL);
    }
    if (n->kind == MIN || n->kind == MAX) {
        return gather(j, &j->c->nodes[n->left], n->kind == MIN ? &least : &largest);
    }
    if (n->kind == MEAN || n->kind == GROWS) {
        const node *of = &j->c->nodes[n->left];
        return exactly(n->kind == MEAN ? average(j, of) : growth(j, of, n->along));
    }
    const range a = evaluate(j, n->left);
    if (n->kind == NEGATE || n->kind == LOG2) {
        return n->kind == NEGATE ? (range){-a.value, -a.high, -a.low} : logged(j, a);
    }
    const range b = evaluate(j, n->right);
    switch (n->kind) {
    case ADD:
        return (range){a.value + b.value, a.low + b.low, a.high + b.high};
    case SUBTRACT:
        return (range){a.value - b.value, a.low - b.high, a.high - b.low};
    case MULTIPLY:
        return multiplied(a, b);
    case DIVIDE:
        return quotient(j, a, b);
    default:
        return exactly(NAN);
    }
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

/* True if missing figures cannot change the verdict. */
static bool is_certain(const char *compare, range value, range bound) {
    if (compare[0] == '=') {
        return (is_exact(value) && is_exact(bound)) || value.high < bound.low || value.low > bound.high;
    }
    return holds(compare, value.low, bound.high) == holds(compare, value.high, bound.low);
}

carry_verdict carry_criterion_judge(const carry_criterion *criterion, const carry_outcome *outcomes, int count) {
    judge j = {.c = criterion, .outcomes = outcomes, .count = count};
    carry_verdict v = {.kind = CARRY_NOT_MEASURED};
    const range value = evaluate(&j, criterion->left);
    const range bound = evaluate(&j, criterion->right);
    v.value = value.value;
    v.bound = bound.value;
    if (isnan(v.value) || isnan(v.bound) || !is_certain(criterion->compare, value, bound)) {
        (void)snprintf(v.reason, sizeof v.reason, "%s", j.reason[0] != '\0' ? j.reason : "it has no figure");
    } else {
        v.kind = holds(criterion->compare, v.value, v.bound) ? CARRY_MET : CARRY_NOT_MET;
    }
    return v;
}

const char *carry_verdict_name(carry_verdict_kind kind) {
    return kind == CARRY_MET ? "met" : kind == CARRY_NOT_MET ? "not met" : "not measured";
}
