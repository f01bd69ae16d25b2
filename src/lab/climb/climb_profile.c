/* Runs the user's commands, and reads the output of a profile command.

   A profile command prints JSON lines; other lines are ignored. There are three kinds of lines, and the first kind
   that is present decides:

       {"throughput": 812.5, "mfu": 0.41, "samples": [...], "trace": "trace.json.gz", "hotspots": "walk 61 %"}
       {"problem": "scan:...", "algorithm": "...", "median_s": 0.0012, "planned": true, ...}    carry bench --json
       {"step": 10, "tokens_per_s": 51234, "mfu": 0.38, ...}                                    carry train --json

   Several lines of the first kind, and the problems of a bench (the planner's choice, else the fastest), are
   combined: the throughput is the geometric mean, so that a gain of a tenth counts the same for each of them, and the
   MFU the arithmetic mean. The throughput of a bench is runs per second; its MFU is the rate of its arithmetic over the
   ceiling measured in the same run. Training steps are combined by the median. Lines with the key "share" and one of
   "place", "category" and "name" add hotspots: `carry profile bench --json PROBLEM` gives figures, hotspots and a trace
   at once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/climb/climb_internal.h"
#include "bench/sample.h"
#include "core/json.h"

#define OUTPUT_BYTES ((size_t)16 << 20)
#define MOST_PROBLEMS 64
#define MOST_STEPS 4096
#define MOST_HOTSPOTS 5
#define SECONDS 3600.0
#define TAIL_LINES 20
#define TAIL_BYTES 4000

typedef struct problem {
    char name[256];
    double seconds, gflops;
    bool planned;
} problem;

typedef struct reading {
    climb_figure *figure;
    double logarithms, shares; /* of throughput lines */
    int lines, share_lines;
    problem problems[MOST_PROBLEMS];
    int problem_count;
    double ceiling; /* GFLOP/s */
    double steps[MOST_STEPS], step_shares[MOST_STEPS];
    int step_count, step_share_count;
    int hotspots;
} reading;

static double number_of(const carry_json *object, const char *key) {
    return carry_json_number(carry_json_find(object, key));
}

static const char *text_of(const carry_json *object, const char *key) {
    const char *text = carry_json_string(carry_json_find(object, key));
    return text != NULL ? text : "";
}

static double median_of_array(const carry_json *array) {
    double samples[MOST_STEPS];
    int count = 0;
    for (const carry_json *at = carry_json_first(array); at != NULL && count < MOST_STEPS; at = at->next) {
        if (carry_json_number(at) > 0.0) {
            samples[count++] = carry_json_number(at);
        }
    }
    return count > 0 ? carry_summarise(samples, count).median : (double)NAN;
}

static void read_throughput(reading *r, const carry_json *line) {
    double throughput = number_of(line, "throughput");
    if (isnan(throughput)) {
        throughput = median_of_array(carry_json_find(line, "samples"));
    }
    if (isfinite(throughput) && throughput > 0.0) {
        r->logarithms += log(throughput);
        r->lines++;
        if (isfinite(number_of(line, "mfu"))) {
            r->shares += number_of(line, "mfu");
            r->share_lines++;
        }
    }
}

static void read_bench(reading *r, const carry_json *line) {
    double seconds = number_of(line, "median_s");
    const carry_json *flag = carry_json_find(line, "planned");
    bool planned = flag != NULL && flag->kind == CARRY_JSON_BOOL && flag->truth;
    int at = 0;
    while (at < r->problem_count && strcmp(r->problems[at].name, text_of(line, "problem")) != 0) {
        at++;
    }
    if (!isfinite(seconds) || seconds <= 0.0 || at == MOST_PROBLEMS) {
        return;
    }
    problem *p = &r->problems[at];
    bool better = at == r->problem_count || (planned && !p->planned) || (planned == p->planned && seconds < p->seconds);
    if (better) {
        (void)snprintf(p->name, sizeof p->name, "%s", text_of(line, "problem"));
        p->seconds = seconds;
        p->gflops = number_of(line, "gflops");
        p->planned = planned;
        r->problem_count += at == r->problem_count;
    }
}

static void read_step(reading *r, const carry_json *line) {
    double rate = number_of(line, "tokens_per_s");
    double share = number_of(line, "mfu");
    if (isfinite(rate) && rate > 0.0 && r->step_count < MOST_STEPS) {
        r->steps[r->step_count++] = rate;
        if (isfinite(share)) {
            r->step_shares[r->step_share_count++] = share;
        }
    }
}

static void read_hotspot(reading *r, const carry_json *line) {
    static const char *const names[] = {"place", "category", "name"};
    double share = number_of(line, "share");
    const char *name = "";
    for (size_t i = 0; i < sizeof names / sizeof names[0] && *name == '\0'; i++) {
        name = text_of(line, names[i]);
    }
    char *to = r->figure->hotspots;
    char clean[96];
    size_t used = strlen(to);
    name = carry_climb_line(clean, sizeof clean, name);
    if (*name != '\0' && isfinite(share) && r->hotspots < MOST_HOTSPOTS) {
        (void)snprintf(to + used, sizeof r->figure->hotspots - used, "%s%s %.0f %%", used > 0 ? ", " : "", name,
                       100.0 * share);
        r->hotspots++;
    }
}

static void read_line(reading *r, const carry_json *line) {
    double ceiling = number_of(carry_json_find(line, "ceilings"), "gemm_gflops");
    r->ceiling = isfinite(ceiling) && ceiling > 0.0 ? ceiling : r->ceiling;
    if (*text_of(line, "trace") != '\0') {
        (void)carry_climb_line(r->figure->trace, sizeof r->figure->trace, text_of(line, "trace"));
    }
    if (*text_of(line, "hotspots") != '\0') {
        (void)carry_climb_line(r->figure->hotspots, sizeof r->figure->hotspots, text_of(line, "hotspots"));
        r->hotspots = MOST_HOTSPOTS;
    }
    /* carry profile prints such lines for places, whose rates are not that of the command. */
    if (carry_json_find(line, "by") != NULL) {
        if (strcmp(text_of(line, "by"), "place") == 0) {
            read_hotspot(r, line);
        }
    } else if (carry_json_find(line, "throughput") != NULL || carry_json_find(line, "samples") != NULL) {
        read_throughput(r, line);
    } else if (carry_json_find(line, "median_s") != NULL) {
        read_bench(r, line);
    } else if (carry_json_find(line, "tokens_per_s") != NULL) {
        read_step(r, line);
    } else {
        read_hotspot(r, line);
    }
}

static void settle_bench(reading *r) {
    double logarithms = 0.0;
    double shares = 0.0;
    int known = 0;
    for (int i = 0; i < r->problem_count; i++) {
        logarithms -= log(r->problems[i].seconds);
        if (isfinite(r->problems[i].gflops) && r->ceiling > 0.0) {
            shares += r->problems[i].gflops / r->ceiling;
            known++;
        }
    }
    r->figure->throughput = exp(logarithms / r->problem_count);
    r->figure->share = known == r->problem_count ? shares / known : (double)NAN;
}

static carry_status settle(carry_ctx *ctx, reading *r) {
    climb_figure *figure = r->figure;
    figure->throughput = figure->share = (double)NAN;
    if (r->lines > 0) {
        figure->throughput = exp(r->logarithms / r->lines);
        figure->share = r->share_lines > 0 ? r->shares / r->share_lines : (double)NAN;
    } else if (r->problem_count > 0) {
        settle_bench(r);
    } else if (r->step_count > 0) {
        figure->throughput = carry_summarise(r->steps, r->step_count).median;
        if (r->step_share_count > 0) {
            figure->share = carry_summarise(r->step_shares, r->step_share_count).median;
        }
    }
    figure->throughput = carry_climb_rounded(figure->throughput);
    figure->share = carry_climb_rounded(figure->share);
    if (!isfinite(figure->throughput) || !(figure->throughput > 0.0)) {
        return carry_fail(ctx, CARRY_EFORMAT,
                          "the profile command printed no JSON line with throughput, median_s or tokens_per_s above 0");
    }
    return CARRY_OK;
}

carry_status climb_figure_parse(carry_ctx *ctx, climb_figure *figure, const char *output, size_t length) {
    reading *r = calloc(1, sizeof *r);
    *figure = (climb_figure){.throughput = (double)NAN, .share = (double)NAN};
    if (r == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: reading what the profile command printed");
    }
    r->figure = figure;
    for (const char *at = output; at < output + length;) {
        const char *newline = memchr(at, '\n', (size_t)(output + length - at));
        size_t line_length = newline != NULL ? (size_t)(newline - at) : (size_t)(output + length - at);
        carry_json *line = NULL;
        if (*at == '{' && carry_json_parse(ctx, &line, at, line_length, "a line") == CARRY_OK) {
            read_line(r, line);
            carry_json_free(line);
        }
        at += line_length + 1;
    }
    carry_status status = settle(ctx, r);
    free(r);
    return status;
}

double climb_seconds(const carry_climb *climb) {
    return climb->options.seconds > 0.0 ? climb->options.seconds : SECONDS;
}

carry_status climb_shell(carry_climb *climb, carry_process_result *result, const char *folder, const char *command,
                         const char *const *environment) {
    const char *words[16] = {"env"};
    int count = 1;
    for (int i = 0; environment != NULL && environment[i] != NULL && count < 12; i++) {
        words[count++] = environment[i];
    }
    words[count++] = "sh";
    words[count++] = "-c";
    words[count++] = command;
    const carry_process how = {.arguments = words,
                               .folder = folder,
                               .limit = OUTPUT_BYTES,
                               .seconds = climb_seconds(climb),
                               .stop = climb->options.stop};
    if (climb->remote != NULL) {
        const carry_status status = climb_remote_shell(climb, result, folder, command, environment, &how);
        return status == CARRY_EINTERRUPTED
                   ? carry_fail(climb->ctx, status, "interrupted: nothing was recorded or committed")
                   : status;
    }
    CARRY_TRY(carry_process_run(climb->ctx, result, &how));
    if (result->stopped) {
        carry_process_free(result);
        return carry_fail(climb->ctx, CARRY_EINTERRUPTED, "interrupted: nothing was recorded or committed");
    }
    return CARRY_OK;
}

carry_status climb_measure(carry_climb *climb, climb_figure *figure, char why[256], const char *folder,
                           const char *command) {
    carry_process_result result;
    why[0] = '\0';
    CARRY_TRY(climb_shell(climb, &result, folder, command, NULL));
    if (result.timed_out) {
        (void)snprintf(why, 256, "the profile command took more than %.3g s", climb_seconds(climb));
    } else if (result.code != 0) {
        char *tail = climb_tail(result.errors[0] != '\0' ? result.errors : result.output);
        char last[160] = "";
        const char *newline = tail != NULL ? strrchr(tail, '\n') : NULL;
        (void)carry_climb_line(last, sizeof last, newline != NULL ? newline + 1 : tail != NULL ? tail : "");
        (void)snprintf(why, 256, "the profile command failed with exit %d%s%s", result.code,
                       last[0] != '\0' ? ": " : "", last);
        free(tail);
    } else if (climb_figure_parse(climb->ctx, figure, result.output, result.output_length) != CARRY_OK) {
        (void)snprintf(why, 256, "%s", carry_ctx_error(climb->ctx));
    }
    carry_process_free(&result);
    return CARRY_OK;
}

char *climb_tail(const char *output) {
    size_t length = strlen(output);
    while (length > 0 && output[length - 1] == '\n') {
        length--;
    }
    size_t from = length;
    int lines = 0;
    while (from > 0 && length - from < TAIL_BYTES) {
        lines += output[from - 1] == '\n';
        if (lines == TAIL_LINES) {
            break;
        }
        from--;
    }
    return strndup(output + from, length - from);
}
