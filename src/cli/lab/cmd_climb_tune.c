/* carry climb tune PROBLEM. */
#include <math.h>

#include "cli/lab/climb.h"
#include "core/clock.h"

static void tune_step(void *user, const carry_tune_step *step) {
    const bool *json = user;
    char setting[96];
    char seconds[32];
    char best[32];
    carry_tune_text(setting, &step->setting);
    if (*json) {
        cli_json_open();
        cli_json_integer("step", step->number);
        cli_json_text("algorithm", step->setting.algorithm);
        cli_json_integer("chunk", step->setting.chunk);
        cli_json_integer("threads", step->setting.threads);
        cli_json_number("median_s", step->seconds);
        cli_json_number("best_s", step->best_seconds);
        cli_json_number("ratio", step->ratio);
        cli_json_number("low", step->low);
        cli_json_number("high", step->high);
        cli_json_bool("kept", step->kept);
        cli_json_text("reason", step->reason);
        cli_json_close();
        return;
    }
    if (!isfinite(step->seconds)) {
        (void)printf("%4d  %-34s %sleft out: %s%s\n", step->number, setting, cli_dim(), step->reason, cli_plain());
    } else {
        (void)printf("%4d  %-34s %9s against %9s  %5.2fx  %s%s%s\n", step->number, setting,
                     carry_time_text(seconds, step->seconds), carry_time_text(best, step->best_seconds), step->ratio,
                     step->kept ? cli_green() : "",
                     step->number == 0 ? "the planner's"
                     : step->kept      ? "kept"
                                       : step->reason,
                     cli_plain());
    }
    (void)fflush(stdout);
}

int cli_climb_tune(carry_ctx *ctx, const char *problem, const carry_tune_options *options, bool json) {
    carry_tune_result r;
    carry_tune_options mine = *options;
    mine.stop = cli_interrupted;
    mine.told = tune_step;
    mine.user = &json;
    carry_status status = carry_tune(ctx, &r, problem, &mine);
    if (status != CARRY_OK) {
        return cli_failed(ctx);
    }
    char start_text[96];
    char best_text[96];
    carry_tune_text(start_text, &r.start);
    carry_tune_text(best_text, &r.best);
    if (json) {
        cli_json_open();
        cli_json_text("problem", problem);
        cli_json_text("start", start_text);
        cli_json_text("best", best_text);
        cli_json_number("gain", r.gain);
        cli_json_integer("steps", r.steps);
        cli_json_integer("kept", r.kept);
        cli_json_integer("saved", r.saved);
        cli_json_text("not_saved", r.not_saved);
        cli_json_close();
        return CLI_DONE;
    }
    (void)printf("%sbest: %s%s, %.2f times as fast as the planner's choice (%s); %d of %d steps kept\n", cli_bold(),
                 best_text, cli_plain(), r.gain, start_text, r.kept, r.steps);
    if (r.saved > 0) {
        (void)printf("saved in the wisdom: %s\n", r.saved_as);
    }
    if (r.not_saved[0] != '\0') {
        (void)printf("not saved: %s\n", r.not_saved);
    }
    return CLI_DONE;
}
