/* Experiments: the order of problems, and limits that end measuring before the grid is complete. */
#include "lab/experiment/experiment_bounds.h"

#include <stdio.h>
#include <string.h>

#include "core/context.h"

#define MOST_PRIORITY 1000.0
#define MOST_PRICE 1e6
#define MOST_BUDGET 1e7 /* seconds: 115 days */

carry_status carry_bounds_read_budget(carry_experiment *e, double *budget, carry_yaml *mapping) {
    carry_yaml *node = carry_yaml_get(mapping, "budget");
    if (node == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_yaml_number(e->ctx, budget, node, e->path));
    if (!(*budget > 0.0 && *budget <= MOST_BUDGET)) {
        return carry_yaml_fail(e->ctx, node, e->path, "'budget' must be more than 0 and at most %.0f seconds",
                               MOST_BUDGET);
    }
    return CARRY_OK;
}

carry_status carry_bounds_read_priority(carry_experiment *e, int *priority, carry_yaml *entry) {
    carry_yaml *node = carry_yaml_get(entry, "priority");
    double number = 0.0;
    if (node == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_yaml_number(e->ctx, &number, node, e->path));
    if (!(number >= -MOST_PRIORITY && number <= MOST_PRIORITY) || number != (double)(int)number) {
        return carry_yaml_fail(e->ctx, node, e->path, "'priority' must be a whole number from -%.0f to %.0f",
                               MOST_PRIORITY, MOST_PRIORITY);
    }
    *priority = (int)number;
    return CARRY_OK;
}

carry_status carry_bounds_read_price(carry_experiment *e) {
    carry_yaml *node = carry_yaml_get(e->yaml, "price");
    if (node == NULL) {
        return CARRY_OK;
    }
    carry_yaml *hour = node->kind == CARRY_YAML_MAPPING ? carry_yaml_get(node, "gpu_hour") : NULL;
    if (hour == NULL) {
        return carry_yaml_fail(e->ctx, node, e->path, "'price' must be a mapping: {gpu_hour: 2.5}");
    }
    CARRY_TRY(carry_yaml_number(e->ctx, &e->price, hour, e->path));
    if (!(e->price > 0.0 && e->price <= MOST_PRICE)) {
        return carry_yaml_fail(e->ctx, hour, e->path, "'gpu_hour' must be more than 0 and at most %.0f", MOST_PRICE);
    }
    return carry_yaml_finish(e->ctx, node, e->path, "gpu_hour");
}

double carry_bounds_gpu_seconds(const carry_experiment *e) {
    bool counted[CARRY_EXPERIMENT_STAGES] = {false};
    double seconds = 0.0;
    for (int i = 0; i < e->outcomes; i++) {
        const carry_outcome *o = &e->outcome[i];
        for (int s = 0; s < e->stages && strcmp(o->device, "cuda") == 0; s++) {
            if (!counted[s] && o->stage == e->stage[s].name) {
                counted[s] = true;
                seconds += e->stage[s].spent;
            }
        }
    }
    return seconds;
}

static carry_status add_stop(carry_experiment *e, const carry_yaml *node) {
    const char *text;
    CARRY_TRY(carry_yaml_text(e->ctx, &text, node, e->path));
    if (strcmp(text, "decided") == 0) {
        e->stop_decided = true;
        return CARRY_OK;
    }
    if (e->stops == CARRY_EXPERIMENT_STOPS) {
        return carry_yaml_fail(e->ctx, node, e->path, "'stop_when' has more than %d criteria", CARRY_EXPERIMENT_STOPS);
    }
    carry_experiment_criterion *c = &e->stop[e->stops];
    *c = (carry_experiment_criterion){.line = node->line};
    if ((size_t)snprintf(c->text, sizeof c->text, "%s", text) >= sizeof c->text) {
        return carry_yaml_fail(e->ctx, node, e->path, "'%.60s...' is longer than %zu letters", text,
                               sizeof c->text - 1);
    }
    carry_status status = carry_criterion_parse(e->ctx, &c->parsed, c->text);
    if (status == CARRY_OK) {
        e->stops++;
        status = carry_criterion_check(e->ctx, c->parsed, e->outcome, e->outcomes);
    }
    if (status != CARRY_OK) {
        char message[400];
        (void)snprintf(message, sizeof message, "%.390s", carry_ctx_error(e->ctx));
        return carry_yaml_fail(e->ctx, node, e->path, "%s", message);
    }
    return CARRY_OK;
}

carry_status carry_bounds_read_stops(carry_experiment *e) {
    const carry_yaml *node = carry_yaml_get(e->yaml, "stop_when");
    if (node == NULL) {
        return CARRY_OK;
    }
    if (node->kind == CARRY_YAML_SCALAR) {
        return add_stop(e, node);
    }
    if (node->kind != CARRY_YAML_SEQUENCE || node->count == 0) {
        return carry_yaml_fail(e->ctx, node, e->path, "'stop_when' must be the word decided, a criterion or a list");
    }
    for (const carry_yaml *entry = node->first; entry != NULL; entry = entry->next) {
        CARRY_TRY(add_stop(e, entry));
    }
    return CARRY_OK;
}

void carry_bounds_order(carry_experiment *e) {
    for (int i = 1; i < e->points; i++) {
        const carry_point moving = e->point[i];
        int at = i;
        for (; at > 0 && e->stage[e->point[at - 1].stage].priority < e->stage[moving.stage].priority; at--) {
            e->point[at] = e->point[at - 1];
        }
        e->point[at] = moving;
    }
}

static bool is_decided(const carry_experiment *e) {
    for (int i = 0; i < e->criteria; i++) {
        const carry_experiment_criterion *c = &e->criterion[i];
        const carry_verdict v = carry_criterion_judge(c->parsed, e->outcome, e->outcomes);
        if (v.kind == (c->is_failure ? CARRY_MET : CARRY_NOT_MET)) {
            return true;
        }
    }
    return false;
}

/* Seconds spent on the grid entries with this stage's name. */
static double spent_on(const carry_experiment *e, const char *stage) {
    double seconds = 0.0;
    for (int i = 0; i < e->stages; i++) {
        seconds += stage == NULL || strcmp(e->stage[i].name, stage) == 0 ? e->stage[i].spent : 0.0;
    }
    return seconds;
}

const char *carry_bounds_reached(const carry_experiment *e, const carry_point *next, char reason[256]) {
    const carry_stage *stage = &e->stage[next->stage];
    reason[0] = '\0';
    if (stage->budget > 0.0 && spent_on(e, stage->name) >= stage->budget) {
        (void)snprintf(reason, 256, "the stage '%s' has spent its budget of %g s", stage->name, stage->budget);
    } else if (e->budget > 0.0 && spent_on(e, NULL) >= e->budget) {
        (void)snprintf(reason, 256, "the experiment has spent its budget of %g s", e->budget);
    } else if (e->stop_decided && is_decided(e)) {
        (void)snprintf(reason, 256, "stopped early: the decision is known");
    }
    for (int i = 0; i < e->stops && reason[0] == '\0'; i++) {
        if (carry_criterion_judge(e->stop[i].parsed, e->outcome, e->outcomes).kind == CARRY_MET) {
            (void)snprintf(reason, 256, "stopped early: %.200s", e->stop[i].text);
        }
    }
    return reason;
}
