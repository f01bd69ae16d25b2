/* carry check PROBLEM... */
#include <math.h>
#include <string.h>

#include "cli/cli.h"
#include "core/progress.h"
#include "lab/family.h"
#include "lab/golden.h"

typedef struct tally {
    int right, wrong, left_out;
    bool json, titled;
    carry_progress bar;
    int64_t done;
    const char *problem;
} tally;

/* The problem's title, once there is something to say about it. */
static void print_title(tally *t) {
    carry_progress_clear(&t->bar);
    if (!t->json && !t->titled) {
        (void)printf("%s%s%s\n", cli_bold(), t->problem, cli_plain());
    }
    t->titled = true;
}

static void print_line(tally *t, const char *method, const carry_deviation *d) {
    bool ok = d->error <= d->bound; /* false for NaN */
    print_title(t);
    t->right += ok;
    t->wrong += !ok;
    if (t->json) {
        cli_json_open();
        cli_json_text("problem", t->problem);
        cli_json_text("algorithm", method);
        cli_json_text("device", "cpu");
        cli_json_text("tensor", d->tensor);
        cli_json_number("error", d->error);
        cli_json_number("bound", d->bound);
        cli_json_number("absolute", d->absolute);
        cli_json_bool("ok", ok);
        cli_json_close();
    } else {
        (void)printf("  %-14s %-4s error %9.2e  bound %9.2e  %s%s%s\n", method, d->tensor, d->error, d->bound,
                     ok ? cli_green() : cli_red(), ok ? "ok" : "WRONG", cli_plain());
    }
}

static void print_left_out(tally *t, const char *method, const char *reason) {
    print_title(t);
    t->left_out++;
    if (t->json) {
        cli_json_open();
        cli_json_text("problem", t->problem);
        cli_json_text("algorithm", method);
        cli_json_text("device", "cpu");
        cli_json_text("left_out", reason);
        cli_json_close();
    } else {
        (void)printf("  %s%-14s left out: %s%s\n", cli_dim(), method, reason, cli_plain());
    }
}

static carry_status check_method(carry_ctx *ctx, const carry_family *family, void *instance, const char *method,
                                 tally *t) {
    carry_deviation deviations[CARRY_DEVIATIONS];
    int count = 0;
    carry_progress_step(&t->bar, t->done++);
    carry_status status = family->choose(instance, method);
    status = status == CARRY_OK ? family->compare(instance, deviations, &count) : status;
    if (status == CARRY_EUNSUPPORTED || status == CARRY_ERANGE) {
        if (family->only(instance) != NULL) {
            return status;
        }
        print_left_out(t, method, carry_ctx_error(ctx));
        return CARRY_OK;
    }
    for (int i = 0; status == CARRY_OK && i < count; i++) {
        print_line(t, method, &deviations[i]);
    }
    return status;
}

static carry_status check_problem(carry_ctx *ctx, const char *text, uint64_t seed, tally *t) {
    carry_problem problem;
    const carry_family *family;
    void *instance = NULL;
    carry_status status = carry_problem_parse(ctx, &problem, text);
    status = status == CARRY_OK ? carry_family_find(ctx, &family, problem.family) : status;
    status = status == CARRY_OK ? family->open(ctx, &instance, &problem, seed, 1) : status;
    if (status != CARRY_OK) {
        return status;
    }
    t->problem = text;
    t->titled = false;
    const char *only = family->only(instance);
    if (only != NULL) {
        status = check_method(ctx, family, instance, only, t);
    }
    for (int i = 0; only == NULL && status == CARRY_OK && family->method(i) != NULL && !cli_interrupted(); i++) {
        status = check_method(ctx, family, instance, family->method(i), t);
    }
    family->close(instance);
    return status;
}

static void print_golden(void *user, const carry_golden_line *line) {
    tally *t = user;
    bool ok = line->error <= line->bound;
    t->right += ok;
    t->wrong += !ok;
    if (t->json) {
        cli_json_open();
        cli_json_text("case", line->name);
        cli_json_text("algorithm", line->method);
        cli_json_text("dtype", carry_dtype_name(line->dtype));
        cli_json_text("tensor", line->tensor);
        cli_json_number("error", line->error);
        cli_json_number("bound", line->bound);
        cli_json_bool("ok", ok);
        cli_json_close();
    } else {
        (void)printf("  %-22s %-10s %-5s %-*s error %9.2e  bound %7.0e  %s%s%s\n", line->name, line->method,
                     carry_dtype_name(line->dtype), line->column > 0 ? line->column : 15, line->tensor, line->error,
                     line->bound, ok ? cli_green() : cli_red(), ok ? "ok" : "WRONG", cli_plain());
    }
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    const char *golden = NULL;
    const cli_option own[] = {
        {"golden", 0, CLI_TEXT, &golden, "PATH",
         "compare with vectors made elsewhere: a .safetensors of delta-rule cases, or a model's folder"},
        {0},
    };
    int words = cli_parse(&cli_check, count, arguments, own, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (words == 0 && golden == NULL) {
        return cli_refuse("check needs a problem, for example %s", cli_check.example + strlen("carry check "));
    }
    carry_ctx *ctx = cli_open(&common);
    if (ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    cli_catch_interrupt();
    tally t = {.json = common.json};
    carry_progress_start(&t.bar, stderr, "checking", 0);
    int code = CLI_DONE;
    if (golden != NULL && carry_golden(ctx, golden, print_golden, &t) != CARRY_OK) {
        code = cli_failed(ctx);
    }
    for (int i = 0; i < words && code == CLI_DONE && !cli_interrupted(); i++) {
        if (check_problem(ctx, arguments[i], (uint64_t)common.seed, &t) != CARRY_OK) {
            code = cli_failed(ctx);
        }
    }
    carry_ctx_free(ctx);
    if (!common.json && code == CLI_DONE) {
        (void)printf("%d right, %d wrong, %d left out\n", t.right, t.wrong, t.left_out);
    }
    if (cli_interrupted()) {
        return cli_refuse("interrupted: what is printed was checked, the rest was not");
    }
    return code != CLI_DONE ? code : t.wrong > 0 ? CLI_WRONG : CLI_DONE;
}

const cli_verb cli_check = {
    .name = "check",
    .arguments = "PROBLEM...",
    .summary = "compare every applicable algorithm with the float64 reference",
    .details =
        "The error is the largest difference over the reference's largest magnitude; the bound follows from the\n"
        "element type and the length (the arithmetic stands in src/lab/family_*.c). Exit 1 when one is exceeded.",
    .example = "carry check scan:diagonal:bf16:t1000:n16:w64 scan:dense:t257:n33:backward",
    .run = run,
};
