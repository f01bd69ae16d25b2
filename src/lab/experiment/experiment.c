/* Experiments: reads the file, lays out the grid, checks the criteria against it. */
#include "lab/experiment/experiment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/file.h"
#include "core/shared.h"
#include "lab/experiment/experiment_bounds.h"
#include "lab/experiment/experiment_runs.h"
#include "lab/experiment/experiment_template.h"

#define MOST_BYTES ((size_t)1 << 20)
#define MOST_REPEATS 2000

static carry_status fail_at(carry_experiment *e, const carry_yaml *node, const char *message) {
    return carry_yaml_fail(e->ctx, node, e->path, "%s", message);
}

static carry_status read_methods(carry_experiment *e, carry_stage *stage, const carry_yaml *list) {
    if (list->kind != CARRY_YAML_SEQUENCE || list->count == 0 || list->count > CARRY_BENCH_METHODS) {
        return fail_at(e, list, "'methods' must be a list of 1 to 24 names");
    }
    int count = 0;
    for (const carry_yaml *name = list->first; name != NULL; name = name->next) {
        CARRY_TRY(carry_yaml_text(e->ctx, &stage->methods[count], name, e->path));
        if (strlen(stage->methods[count]) >= sizeof((carry_outcome *)0)->method) {
            return fail_at(e, name, "not a method's name");
        }
        for (int i = 0; i < count; i++) {
            if (strcmp(stage->methods[i], stage->methods[count]) == 0) {
                return fail_at(e, name, "duplicate method");
            }
        }
        count++;
    }
    stage->methods[count] = NULL;
    return CARRY_OK;
}

static carry_status read_count(carry_experiment *e, int *count, carry_yaml *mapping, const char *key, int most) {
    double number = *count;
    carry_yaml *node = carry_yaml_get(mapping, key);
    if (node != NULL) {
        CARRY_TRY(carry_yaml_number(e->ctx, &number, node, e->path));
        if (number < 1 || number > most || number != (double)(int)number) {
            return carry_yaml_fail(e->ctx, node, e->path, "'%s' must be a whole number from 1 to %d", key, most);
        }
    }
    *count = (int)number;
    return CARRY_OK;
}

static carry_status read_flag(carry_experiment *e, bool *flag, carry_yaml *mapping, const char *key) {
    carry_yaml *node = carry_yaml_get(mapping, key);
    const char *text = "false";
    if (node == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_yaml_text(e->ctx, &text, node, e->path));
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
        return carry_yaml_fail(e->ctx, node, e->path, "'%s' must be true or false", key);
    }
    *flag = strcmp(text, "true") == 0;
    return CARRY_OK;
}

/* Reads the timing options: at the top for all entries, in an entry of the grid for that entry. */
static carry_status read_timing(carry_experiment *e, carry_stage *stage, carry_yaml *mapping) {
    carry_yaml *methods = carry_yaml_get(mapping, "methods");
    carry_yaml *seconds = carry_yaml_get(mapping, "seconds");
    if (methods != NULL) {
        CARRY_TRY(read_methods(e, stage, methods));
    }
    if (seconds != NULL) {
        CARRY_TRY(carry_yaml_number(e->ctx, &stage->seconds, seconds, e->path));
        if (!(stage->seconds > 0.0 && stage->seconds <= 3600.0)) {
            return fail_at(e, seconds, "'seconds' must be more than 0 and at most 3600");
        }
    }
    carry_yaml *spread = carry_yaml_get(mapping, "spread");
    if (spread != NULL) {
        CARRY_TRY(carry_yaml_number(e->ctx, &stage->spread, spread, e->path));
        if (!(stage->spread > 0.0 && stage->spread <= 1e6)) {
            return fail_at(e, spread, "'spread' must be more than 0 and at most 1e6 (0.5: 50 %)");
        }
    }
    CARRY_TRY(read_count(e, &stage->repeats, mapping, "repeats", MOST_REPEATS));
    CARRY_TRY(read_count(e, &stage->warm_up, mapping, "warm_up", 1000));
    CARRY_TRY(read_count(e, &stage->runs, mapping, "runs", CARRY_EXPERIMENT_RUNS));
    CARRY_TRY(read_flag(e, &stage->hot, mapping, "hot"));
    return read_flag(e, &stage->unchecked, mapping, "unchecked");
}

/* Reads the list of features that an entry needs. If this build or machine lacks one, `missing` receives the reason. An
   unknown name is refused, since it is a typo. */
static carry_status read_needs(carry_experiment *e, char missing[160], const carry_yaml *needs) {
    missing[0] = '\0';
    if (needs->kind != CARRY_YAML_SEQUENCE) {
        return fail_at(e, needs, "'needs' must be a list");
    }
    for (const carry_yaml *need = needs->first; need != NULL; need = need->next) {
        const char *text;
        CARRY_TRY(carry_yaml_text(e->ctx, &text, need, e->path));
        const carry_family *family;
        if (strcmp(text, "cuda") == 0) {
            if (carry_device_count() < 2) {
                (void)snprintf(missing, 160, "there is no GPU here");
            }
        } else if (strcmp(text, "gpus") == 0) {
            if (carry_device_count() < 3) { /* the count includes the CPU */
                (void)snprintf(missing, 160, "there are not several GPUs here");
            }
        } else if (strcmp(text, "train") == 0 ||
                   strcmp(text, "stream") == 0) { /* the program registers these families */
            if (carry_family_find(e->ctx, &family, text) != CARRY_OK) {
                (void)snprintf(missing, 160, "this build has no %s", text[0] == 't' ? "training" : "streaming");
            }
        } else if (carry_family_find(e->ctx, &family, text) != CARRY_OK) {
            return carry_yaml_fail(e->ctx, need, e->path,
                                   "needs '%.40s': expected cuda, gpus, train, stream or a problem family", text);
        }
    }
    return CARRY_OK;
}

static carry_status check_methods(carry_experiment *e, const carry_point *point, const carry_family *family,
                                  const carry_yaml *node) {
    const carry_stage *stage = &e->stage[point->stage];
    for (int i = 0; stage->methods[i] != NULL; i++) {
        bool known = false;
        for (int j = 0; family->method(j) != NULL; j++) {
            known = known || strcmp(family->method(j), stage->methods[i]) == 0;
        }
        if (!known) {
            return carry_yaml_fail(e->ctx, node, e->path, "there is no method '%.40s' for problems of the family '%s'",
                                   stage->methods[i], family->name);
        }
    }
    return CARRY_OK;
}

/* Checks that a problem parses, and that its family and methods are known. The family may be unknown if a feature
   that the entry needs is missing. A problem that is not supported here gets the reason in point->missing. */
static carry_status check_problem(carry_experiment *e, carry_point *point, const carry_yaml *node) {
    carry_problem problem;
    const carry_family *family = NULL;
    void *instance = NULL;
    carry_status status = carry_problem_parse(e->ctx, &problem, point->problem);
    if (status == CARRY_OK && carry_family_of(e->ctx, &family, &problem) != CARRY_OK) {
        status = point->missing[0] != '\0' ? CARRY_OK : CARRY_ENOTFOUND;
    }
    if (family != NULL) {
        CARRY_TRY(check_methods(e, point, family, node));
        status = carry_family_plan(family, e->ctx, &instance, &problem, false);
    }
    if (instance != NULL) {
        carry_family_close(family, instance);
    }
    if (status == CARRY_EUNSUPPORTED && point->missing[0] == '\0') {
        (void)snprintf(point->missing, sizeof point->missing, "%.150s", carry_ctx_error(e->ctx));
    }
    if (status != CARRY_OK && status != CARRY_EUNSUPPORTED) {
        char message[400];
        (void)snprintf(message, sizeof message, "%.390s", carry_ctx_error(e->ctx));
        return fail_at(e, node, message);
    }
    return CARRY_OK;
}

static carry_status add_point(carry_experiment *e, carry_yaml *entry, const carry_bindings *b, void *user) {
    const char *missing = user;
    carry_yaml *template = carry_yaml_get(entry, "problem");
    if (e->points == CARRY_EXPERIMENT_POINTS) {
        return carry_yaml_fail(e->ctx, entry, e->path, "the grid has more than %d problems", CARRY_EXPERIMENT_POINTS);
    }
    carry_point *point = &e->point[e->points];
    *point = (carry_point){.stage = e->stages - 1};
    CARRY_TRY(carry_template_fill(e, point->problem, sizeof point->problem, template, b));
    (void)snprintf(point->missing, sizeof point->missing, "%s", missing);
    CARRY_TRY(check_problem(e, point, template));
    for (int i = 0; i < e->points; i++) {
        if (strcmp(e->point[i].problem, point->problem) == 0 &&
            strcmp(e->stage[e->point[i].stage].name, e->stage[point->stage].name) == 0) {
            return carry_yaml_fail(e->ctx, template, e->path, "the stage '%s' has the problem '%s' twice",
                                   e->stage[point->stage].name, point->problem);
        }
    }
    e->points++;
    return CARRY_OK;
}

static carry_status read_entry(carry_experiment *e, carry_yaml *entry, const carry_stage *defaults) {
    static const char *const no_lists[] = {"problem",   "stage",   "needs",    "methods", "repeats", "warm_up", "runs",
                                           "unchecked", "seconds", "priority", "budget",  "spread",  "hot",     NULL};
    if (entry->kind != CARRY_YAML_MAPPING) {
        return fail_at(e, entry, "an entry of the grid must be a mapping with a problem");
    }
    if (e->stages == CARRY_EXPERIMENT_STAGES) {
        return fail_at(e, entry, "the grid has too many entries");
    }
    carry_stage *stage = &e->stage[e->stages++];
    *stage = *defaults;
    carry_yaml *problem = carry_yaml_get(entry, "problem");
    carry_yaml *name = carry_yaml_get(entry, "stage");
    carry_yaml *needs = carry_yaml_get(entry, "needs");
    const char *text = "all";
    char missing[160] = "";
    if (problem == NULL || problem->kind != CARRY_YAML_SCALAR) {
        return fail_at(e, entry, "an entry of the grid must have a problem");
    }
    if (name != NULL) {
        CARRY_TRY(carry_yaml_text(e->ctx, &text, name, e->path));
    }
    if (*text == '\0' || (size_t)snprintf(stage->name, sizeof stage->name, "%s", text) >= sizeof stage->name) {
        return carry_yaml_fail(e->ctx, name, e->path, "a stage's name has 1 to %d letters", CARRY_EXPERIMENT_WORD - 1);
    }
    CARRY_TRY(read_timing(e, stage, entry));
    CARRY_TRY(carry_bounds_read_budget(e, &stage->budget, entry));
    CARRY_TRY(carry_bounds_read_priority(e, &stage->priority, entry));
    if (stage->methods[0] == NULL) {
        return fail_at(e, entry, "there are no methods, neither here nor at the top");
    }
    if (needs != NULL) {
        CARRY_TRY(read_needs(e, missing, needs));
    }
    return carry_template_each(e, entry, no_lists, add_point, missing);
}

static carry_status add_criterion(carry_experiment *e, carry_yaml *entry, const carry_bindings *b, void *user) {
    const bool *is_failure = user;
    const carry_yaml *text = entry->kind == CARRY_YAML_MAPPING ? carry_yaml_get(entry, "criterion") : entry;
    if (e->criteria == CARRY_EXPERIMENT_CRITERIA) {
        return fail_at(e, entry, "there are too many criteria");
    }
    carry_experiment_criterion *c = &e->criterion[e->criteria];
    *c = (carry_experiment_criterion){.is_failure = *is_failure, .line = text->line};
    CARRY_TRY(carry_template_fill(e, c->text, sizeof c->text, text, b));
    carry_status status = carry_criterion_parse(e->ctx, &c->parsed, c->text);
    if (status == CARRY_OK) {
        e->criteria++;
        status = carry_criterion_check(e->ctx, c->parsed, e->outcome, e->outcomes);
    }
    if (status != CARRY_OK) {
        char message[400];
        (void)snprintf(message, sizeof message, "%.390s", carry_ctx_error(e->ctx));
        return fail_at(e, text, message);
    }
    return CARRY_OK;
}

static carry_status read_criteria(carry_experiment *e, const char *key, bool is_failure) {
    static const char *const no_lists[] = {"criterion", NULL};
    carry_yaml *list = carry_yaml_get(e->yaml, key);
    if (list == NULL) {
        return CARRY_OK;
    }
    if (list->kind != CARRY_YAML_SEQUENCE) {
        return carry_yaml_fail(e->ctx, list, e->path, "'%s' must be a list of criteria", key);
    }
    for (carry_yaml *entry = list->first; entry != NULL; entry = entry->next) {
        if (entry->kind == CARRY_YAML_SCALAR) {
            CARRY_TRY(add_criterion(e, entry, &(carry_bindings){0}, &is_failure));
            continue;
        }
        carry_yaml *text = carry_yaml_get(entry, "criterion");
        if (text == NULL || text->kind != CARRY_YAML_SCALAR) {
            return fail_at(e, entry, "a criterion is a text, or a mapping with a criterion and lists of values");
        }
        CARRY_TRY(carry_template_each(e, entry, no_lists, add_criterion, &is_failure));
    }
    return CARRY_OK;
}

/* Makes an outcome for every method on every problem. */
static carry_status lay_out_outcomes(carry_experiment *e) {
    size_t room = 0;
    for (int i = 0; i < e->points; i++) {
        for (int m = 0; e->stage[e->point[i].stage].methods[m] != NULL; m++) {
            room++;
        }
    }
    e->outcome = calloc(room > 0 ? room : 1, sizeof *e->outcome);
    if (e->outcome == NULL) {
        return carry_fail(e->ctx, CARRY_EMEMORY, "out of memory: %zu outcomes", room);
    }
    for (int i = 0; i < e->points; i++) {
        const carry_stage *stage = &e->stage[e->point[i].stage];
        const bool on_gpu =
            strstr(e->point[i].problem, ":device=cuda") != NULL || strstr(e->point[i].problem, ":device=gpus") != NULL;
        for (int m = 0; stage->methods[m] != NULL; m++) {
            carry_outcome *o = &e->outcome[e->outcomes++];
            o->problem = e->point[i].problem;
            o->stage = stage->name;
            (void)snprintf(o->method, sizeof o->method, "%s", stage->methods[m]);
            (void)snprintf(o->device, sizeof o->device, "%s", on_gpu ? "cuda" : "cpu");
            (void)snprintf(o->reason, sizeof o->reason, "%s",
                           e->point[i].missing[0] != '\0' ? e->point[i].missing : "not reached");
            o->pending = true;
            o->spread_limit = stage->spread;
            o->price = on_gpu ? e->price : 0.0;
        }
    }
    return CARRY_OK;
}

static carry_status read_all(carry_experiment *e) {
    carry_yaml *root = e->yaml;
    if (root->kind != CARRY_YAML_MAPPING) {
        return fail_at(e, root, "an experiment is a mapping with name, hypothesis, grid, methods, success, failure");
    }
    carry_yaml *name = carry_yaml_get(root, "name");
    carry_yaml *hypothesis = carry_yaml_get(root, "hypothesis");
    carry_yaml *grid = carry_yaml_get(root, "grid");
    if (name == NULL || hypothesis == NULL) {
        return fail_at(e, root, "an experiment has a name and a hypothesis");
    }
    CARRY_TRY(carry_yaml_text(e->ctx, &e->name, name, e->path));
    CARRY_TRY(carry_yaml_text(e->ctx, &e->hypothesis, hypothesis, e->path));
    if (*e->name == '\0' || *e->hypothesis == '\0') {
        return fail_at(e, *e->name == '\0' ? name : hypothesis, "the name and the hypothesis must not be empty");
    }
    if (grid == NULL || grid->kind != CARRY_YAML_SEQUENCE || grid->count == 0) {
        return fail_at(e, grid != NULL ? grid : root, "the grid is empty: give it at least one entry with a problem");
    }
    carry_stage defaults = {.warm_up = 1, .runs = 1, .spread = CARRY_EXPERIMENT_SPREAD};
    CARRY_TRY(read_timing(e, &defaults, root));
    CARRY_TRY(carry_bounds_read_budget(e, &e->budget, root));
    CARRY_TRY(carry_bounds_read_price(e));
    for (carry_yaml *entry = grid->first; entry != NULL; entry = entry->next) {
        CARRY_TRY(read_entry(e, entry, &defaults));
    }
    carry_bounds_order(e);
    CARRY_TRY(lay_out_outcomes(e));
    CARRY_TRY(read_criteria(e, "success", false));
    CARRY_TRY(read_criteria(e, "failure", true));
    CARRY_TRY(carry_bounds_read_stops(e));
    if (e->criteria == 0) {
        return fail_at(e, root, "there is no criterion: an experiment ends in a verdict");
    }
    return carry_yaml_finish(
        e->ctx, root, e->path,
        "name, hypothesis, grid, methods, warm_up, repeats, runs, seconds, spread, hot, unchecked, budget, "
        "price, stop_when, success, failure");
}

/* Takes ownership of the text. */
static carry_status load(carry_ctx *ctx, carry_experiment **experiment, char *text, size_t length, const char *path) {
    *experiment = NULL;
    carry_experiment *e = calloc(1, sizeof *e);
    if (e == NULL) {
        free(text);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: an experiment");
    }
    e->ctx = ctx;
    e->path = path;
    e->text = text;
    carry_status status = carry_yaml_parse(ctx, &e->yaml, text, length, path);
    status = status == CARRY_OK ? read_all(e) : status;
    if (status != CARRY_OK) {
        carry_experiment_free(e);
        return status;
    }
    *experiment = e;
    return CARRY_OK;
}

carry_status carry_experiment_load(carry_ctx *ctx, carry_experiment **experiment, const char *path) {
    char *text = NULL;
    size_t length = 0;
    /* named: found by name, such as 044-matmulscan in carry list experiments. */
    char shared[CARRY_FILE_PATH], named[CARRY_FILE_PATH];
    *experiment = NULL;
    if (strchr(path, '/') == NULL && strchr(path, '.') == NULL && access(path, F_OK) != 0) {
        (void)snprintf(named, sizeof named, "experiments/%.200s.yaml", path);
        if (access(named, F_OK) != 0 && !carry_file_shared(shared, named)) {
            return carry_fail(ctx, CARRY_ENOTFOUND, "there is no experiment '%s' (carry list experiments shows them)",
                              path);
        }
        path = named;
    }
    if (path[0] != '/' && access(path, F_OK) != 0 && carry_file_shared(shared, path)) {
        path = shared; /* experiments/demo.yaml, from any folder */
    }
    CARRY_TRY(carry_file_read(ctx, &text, &length, path, MOST_BYTES));
    return load(ctx, experiment, text, length, path);
}

carry_status carry_experiment_load_text(carry_ctx *ctx, carry_experiment **experiment, const char *text,
                                        const char *path) {
    char *copy = strdup(text);
    *experiment = NULL;
    if (copy == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: experiment");
    }
    return load(ctx, experiment, copy, strlen(copy), path);
}

void carry_experiment_free(carry_experiment *e) {
    if (e == NULL) {
        return;
    }
    for (int i = 0; i < e->criteria; i++) {
        carry_criterion_free(e->criterion[i].parsed);
    }
    for (int i = 0; i < e->stops; i++) {
        carry_criterion_free(e->stop[i].parsed);
    }
    free(e->outcome);
    free(e->text);
    carry_yaml_free(e->yaml);
    free(e);
}
