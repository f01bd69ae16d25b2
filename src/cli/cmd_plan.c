/* carry plan PROBLEM... */
#include <stdlib.h>

#include "cli/ranks.h"
#include "core/error.h"
#include "bench/collective.h"

typedef struct plan_options {
    cli_common common;
    bool measure;
    int words;
    char **problems;
} plan_options;

/* Runs on one rank, or on each rank of a problem of several ranks. */
static carry_status plan_on(carry_ctx *ctx, carry_comm *comm, const char *text, const plan_options *given) {
    carry_problem problem;
    const carry_family *family;
    void *instance = NULL;
    CARRY_TRY(carry_problem_parse(ctx, &problem, text));
    CARRY_TRY(carry_family_of(ctx, &family, &problem));
    problem.comm = comm;
    CARRY_TRY(carry_family_plan(family, ctx, &instance, &problem, given->measure));
    if (comm != NULL && carry_comm_rank(comm) > 0) {
        carry_family_close(family, instance);
        return CARRY_OK;
    }
    if (given->common.json) {
        cli_json_open();
        cli_json_text("problem", text);
        cli_json_text("algorithm", family->chosen(instance));
        cli_json_text("device", cli_problem_device(text));
        cli_json_text("about", family->about_plan(instance));
        cli_json_close();
    } else {
        (void)printf("%s%s%s  %s\n", cli_bold(), text, cli_plain(), family->about_plan(instance));
    }
    carry_family_close(family, instance);
    return CARRY_OK;
}

typedef struct part {
    const plan_options *given;
    const char *text;
} part;

static carry_status plan_part(void *user, carry_comm *comm) {
    const part *p = user;
    return plan_on(carry_comm_ctx(comm), comm, p->text, p->given);
}

static carry_status plan_all(void *user, carry_comm *comm) {
    const plan_options *given = user;
    carry_ctx *ctx = carry_comm_ctx(comm);
    for (int i = 0; i < given->words; i++) {
        const int ranks = carry_collective_ranks(ctx, given->problems[i]);
        part p = {.given = given, .text = given->problems[i]};
        CARRY_TRY(ranks > 0 ? carry_collective_run(ctx, comm, ranks, plan_part, &p)
                            : plan_on(ctx, NULL, given->problems[i], given));
    }
    return CARRY_OK;
}

static int run(int count, char **arguments) {
    plan_options given = {.problems = arguments};
    const char *device = NULL;
    char *texts = NULL;
    const cli_option own[] = {
        {"measure", 0, CLI_FLAG, &given.measure, NULL, "time every algorithm and store the fastest in the wisdom file"},
        {"device", 0, CLI_TEXT, &device, "NAME",
         "for problems that do not name one: cpu, cuda or cuda:N (a GPU if there is one)"},
        {0},
    };
    given.words = cli_parse(&cli_plan, count, arguments, own, &given.common);
    if (given.words < 0 || given.common.help) {
        return given.words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (given.words == 0) {
        return cli_refuse("plan needs a problem, for example %s", "scan:diagonal:b64:t4096:n16:w64");
    }
    int code = cli_device_problems(&given.common, device, given.words, given.problems, &texts);
    code = code == CLI_DONE ? cli_ranks_problems("plan", given.words, given.problems, false) : code;
    if (code == CLI_DONE) {
        cli_catch_interrupt();
        code = cli_on_ranks(&given.common, plan_all, &given) == CARRY_OK ? CLI_DONE : CLI_IMPOSSIBLE;
    }
    free(texts);
    return code;
}

const cli_verb cli_plan = {
    .name = "plan",
    .arguments = "PROBLEM...",
    .summary = "show which algorithm would run, and why",
    .details =
        "For each problem, prints the algorithm that the planner chooses, the predicted time and the second best.\n"
        "The planner looks in the wisdom file first, then uses a cost model with the measured rates of this machine\n"
        "(carry list rates). A problem for several ranks (allscan:...:p8) is planned by the ranks of --ranks or\n"
        "mpirun, else by threads.",
    .example = "carry plan scan:diagonal:b64:t4096:n16:w64 scan:dense:t1024:n32",
    .run = run,
    .on_ranks = true,
};
