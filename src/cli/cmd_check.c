/* carry check PROBLEM... */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ranks.h"
#include "core/error.h"
#include "core/progress.h"
#include "bench/collective.h"
#include "bench/golden/golden.h"

static const char interrupted[] = "interrupted: what is printed was checked, the rest was not";

typedef struct tally {
    int right, wrong, left_out;
    bool json, titled, prints;
    carry_progress bar;
    int64_t done;
    const char *problem;
} tally;

/* Prints the problem's title once, before its first result. */
static void print_title(tally *t) {
    carry_progress_clear(&t->bar);
    if (!t->json && !t->titled) {
        (void)printf("%s%s%s\n", cli_bold(), t->problem, cli_plain());
    }
    t->titled = true;
}

static void print_line(tally *t, const char *method, const carry_deviation *d) {
    bool ok = d->error <= d->bound; /* false for NaN */
    t->right += ok;
    t->wrong += !ok;
    if (!t->prints) {
        return;
    }
    print_title(t);
    if (t->json) {
        cli_json_open();
        cli_json_text("problem", t->problem);
        cli_json_text("algorithm", method);
        cli_json_text("device", cli_problem_device(t->problem));
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
    t->left_out++;
    if (!t->prints) {
        return;
    }
    print_title(t);
    if (t->json) {
        cli_json_open();
        cli_json_text("problem", t->problem);
        cli_json_text("algorithm", method);
        cli_json_text("device", cli_problem_device(t->problem));
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

static carry_status check_methods(carry_ctx *ctx, carry_comm *comm, const carry_family *family, void *instance,
                                  tally *t) {
    const char *only = family->only(instance);
    if (only != NULL) {
        return check_method(ctx, family, instance, only, t);
    }
    for (int i = 0; family->method(i) != NULL; i++) {
        CARRY_TRY(carry_collective_agree(
            comm, cli_interrupted() ? carry_fail(ctx, CARRY_EINTERRUPTED, "%s", interrupted) : CARRY_OK));
        CARRY_TRY(check_method(ctx, family, instance, family->method(i), t));
    }
    return CARRY_OK;
}

/* Runs on one rank, or on each rank of a problem of several ranks. */
static carry_status check_on(carry_ctx *ctx, carry_comm *comm, const char *text, uint64_t seed, tally *t) {
    carry_problem problem;
    const carry_family *family;
    void *instance = NULL;
    CARRY_TRY(carry_problem_parse(ctx, &problem, text));
    CARRY_TRY(carry_family_of(ctx, &family, &problem));
    problem.comm = comm;
    CARRY_TRY(carry_family_open(family, ctx, &instance, &problem, seed, 1));
    t->problem = text;
    t->titled = false;
    const carry_status status = check_methods(ctx, comm, family, instance, t);
    carry_family_close(family, instance);
    return status;
}

typedef struct part {
    const char *text;
    uint64_t seed;
    tally *first; /* tally of rank 0 */
} part;

static carry_status check_part(void *user, carry_comm *comm) {
    const part *p = user;
    tally other = {0};
    return check_on(carry_comm_ctx(comm), comm, p->text, p->seed, carry_comm_rank(comm) == 0 ? p->first : &other);
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

/* The parsed command line, the same for every rank. */
typedef struct check_options {
    cli_common common;
    const char *golden, *device;
    int on; /* a device; -1: the best device for each check */
    int words;
    char **problems;
    tally first; /* tally of rank 0 */
} check_options;

static carry_status check_all(void *user, carry_comm *comm) {
    check_options *given = user;
    carry_ctx *ctx = carry_comm_ctx(comm);
    tally other = {0};
    tally *t = carry_comm_rank(comm) == 0 ? &given->first : &other;
    t->prints = t == &given->first;
    t->json = given->common.json;
    if (t->prints) {
        carry_progress_start(&t->bar, stderr, "checking", 0);
    }
    if (given->golden != NULL) {
        CARRY_TRY(carry_golden(ctx, given->golden, given->on, print_golden, t));
    }
    for (int i = 0; i < given->words; i++) {
        const int ranks = carry_collective_ranks(ctx, given->problems[i]);
        part p = {.text = given->problems[i], .seed = (uint64_t)given->common.seed, .first = t};
        CARRY_TRY(ranks > 0 ? carry_collective_run(ctx, comm, ranks, check_part, &p)
                            : check_on(ctx, NULL, p.text, p.seed, t));
    }
    return CARRY_OK;
}

static int golden_device(check_options *given) {
    carry_ctx *ctx = cli_open(&given->common);
    const int code = ctx == NULL ? CLI_IMPOSSIBLE : cli_device(ctx, given->device, &given->on);
    carry_ctx_free(ctx);
    return code;
}

static int run(int count, char **arguments) {
    check_options given = {.problems = arguments};
    const cli_option own[] = {
        {"golden", 0, CLI_TEXT, &given.golden, "PATH",
         "compare with vectors made elsewhere: a .safetensors file of delta-rule cases, or a model folder"},
        {"device", 0, CLI_TEXT, &given.device, "NAME",
         "for --golden and problems that do not name one: cpu, cuda or cuda:N (a GPU if there is one)"},
        {0},
    };
    given.words = cli_parse(&cli_check, count, arguments, own, &given.common);
    if (given.words < 0 || given.common.help) {
        return given.words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (given.words == 0 && given.golden == NULL) {
        return cli_refuse("check needs a problem, for example %s", cli_check.example + strlen("carry check "));
    }
    if (given.golden != NULL && cli_ranks() != 1) {
        return cli_refuse_ranks("check --golden");
    }
    char *texts = NULL;
    given.on = -1;
    int code = given.golden != NULL && given.device != NULL ? golden_device(&given) : CLI_DONE;
    code =
        code == CLI_DONE ? cli_device_problems(&given.common, given.device, given.words, given.problems, &texts) : code;
    code = code == CLI_DONE ? cli_ranks_problems("check", given.words, given.problems, false) : code;
    if (code == CLI_DONE) {
        cli_catch_interrupt();
        code = cli_on_ranks(&given.common, check_all, &given) == CARRY_OK ? CLI_DONE : CLI_IMPOSSIBLE;
    }
    free(texts);
    if (code != CLI_DONE) {
        return code;
    }
    if (!given.common.json) {
        (void)printf("%d right, %d wrong, %d left out\n", given.first.right, given.first.wrong, given.first.left_out);
    }
    return given.first.wrong > 0 ? CLI_WRONG : CLI_DONE;
}

const cli_verb cli_check = {
    .name = "check",
    .arguments = "PROBLEM...",
    .summary = "compare every applicable algorithm with the float64 reference",
    .details =
        "The error is the largest difference divided by the largest magnitude of the reference. The bound follows\n"
        "from the element type and the length (see src/bench/family/family_*.c). Exits with 1 if an error exceeds\n"
        "its bound. A problem for several ranks (allscan:...:p8, delta:...:p4) is checked by the ranks of --ranks or\n"
        "mpirun, else by threads; its error is the largest of any rank.",
    .example = "carry check scan:diagonal:bf16:t1000:n16:w64 scan:dense:t257:n33:backward",
    .run = run,
    .on_ranks = true,
};
