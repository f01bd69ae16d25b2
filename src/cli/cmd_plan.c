/* carry plan PROBLEM... */
#include "cli/cli.h"
#include "lab/family.h"

static carry_status plan_one(carry_ctx *ctx, const char *text, bool measure, bool json) {
    carry_problem problem;
    const carry_family *family;
    void *instance = NULL;
    carry_status status = carry_problem_parse(ctx, &problem, text);
    status = status == CARRY_OK ? carry_family_find(ctx, &family, problem.family) : status;
    status = status == CARRY_OK ? family->plan(ctx, &instance, &problem, measure) : status;
    if (status != CARRY_OK) {
        return status;
    }
    if (json) {
        cli_json_open();
        cli_json_text("problem", text);
        cli_json_text("algorithm", family->chosen(instance));
        cli_json_text("device", "cpu");
        cli_json_text("about", family->about_plan(instance));
        cli_json_close();
    } else {
        (void)printf("%s%s%s  %s\n", cli_bold(), text, cli_plain(), family->about_plan(instance));
    }
    family->close(instance);
    return CARRY_OK;
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    bool measure = false;
    const cli_option own[] = {
        {"measure", 0, CLI_FLAG, &measure, NULL, "time every algorithm and remember the fastest in the wisdom"},
        {0},
    };
    int words = cli_parse(&cli_plan, count, arguments, own, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (words == 0) {
        return cli_refuse("plan needs a problem, for example %s", "scan:diagonal:b64:t4096:n16:w64");
    }
    carry_ctx *ctx = cli_open(&common);
    int code = ctx != NULL ? CLI_DONE : CLI_IMPOSSIBLE;
    for (int i = 0; i < words && code == CLI_DONE; i++) {
        if (plan_one(ctx, arguments[i], measure, common.json) != CARRY_OK) {
            code = cli_failed(ctx);
        }
    }
    carry_ctx_free(ctx);
    return code;
}

const cli_verb cli_plan = {
    .name = "plan",
    .arguments = "PROBLEM...",
    .summary = "what would run, and why",
    .details =
        "Prints for each problem the algorithm that the planner picks, the time it expects and the next best. It\n"
        "asks the wisdom first, then a cost model fed with this machine's measured rates (carry list rates).",
    .example = "carry plan scan:diagonal:b64:t4096:n16:w64 scan:dense:t1024:n32",
    .run = run,
};
