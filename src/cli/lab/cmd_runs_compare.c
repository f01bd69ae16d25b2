/* carry runs compare A B. */
#include <math.h>
#include <string.h>

#include "cli/lab/cmd_runs.h"
#include "core/clock.h"
#include "lab/compare.h"
#include "lab/compare_training.h"
#include "lab/quiet.h"

static void print_pair(const cli_runs_options *given, const carry_pair *p) {
    const carry_ratio *r = &p->ratio;
    const char *verdict = r->within_noise ? "within noise" : r->ratio > 1.0 ? "faster" : "slower";
    if (given->json) {
        cli_json_open();
        cli_json_text("problem", p->a->is.problem);
        cli_json_text("algorithm", p->a->is.method);
        cli_json_number("a_s", p->a->is.median);
        cli_json_number("b_s", p->b->is.median);
        cli_json_number("ratio", r->ratio);
        cli_json_number("low", r->low);
        cli_json_number("high", r->high);
        cli_json_text("verdict", verdict);
        cli_json_close();
        return;
    }
    char a[32];
    char b[32];
    (void)printf("  %-44s %-14s %9s %9s  %5.3f  %5.3f to %5.3f  %s%s%s\n", p->a->is.problem, p->a->is.method,
                 carry_time_text(a, p->a->is.median), carry_time_text(b, p->b->is.median), r->ratio, r->low, r->high,
                 r->within_noise  ? cli_dim()
                 : r->ratio > 1.0 ? cli_green()
                                  : cli_red(),
                 verdict, cli_plain());
}

static void print_comparison(const cli_runs_options *given, const carry_comparison *c, const carry_run *a,
                             const carry_run *b) {
    const char *verdict = c->within_noise  ? "within noise"
                          : c->mean_within ? "mixed"
                          : c->mean > 1.0  ? "faster"
                                           : "slower";
    if (!given->json) {
        (void)printf("  %-44s %-14s %9s %9s  %5s  %s\n", "problem", "algorithm", "A", "B", "A / B", "95 % interval");
    }
    for (int i = 0; i < c->pairs; i++) {
        print_pair(given, &c->pair[i]);
    }
    if (given->json) {
        cli_json_open();
        cli_json_integer("a", a->id);
        cli_json_integer("b", b->id);
        cli_json_integer("pairs", c->pairs);
        cli_json_number("mean", c->mean);
        cli_json_number("low", c->low);
        cli_json_number("high", c->high);
        cli_json_number("slack", c->slack);
        cli_json_number("drift", c->drift);
        cli_json_number("contention", c->contention);
        cli_json_bool("same_machine", c->same_machine);
        cli_json_text("verdict", verdict);
        cli_json_close();
        return;
    }
    (void)printf("%srun %lld against run %lld: %s%s\n", cli_bold(), (long long)b->id, (long long)a->id, verdict,
                 cli_plain());
    (void)printf("  geometric mean %.3f (%.3f to %.3f); %d within noise, %d faster, %d slower; only in A %d, only in B "
                 "%d\n",
                 c->mean, c->low, c->high, c->within, c->faster, c->slower, c->only_a, c->only_b);
    (void)printf(
        "  noise between runs is taken as %.1f %%: 5 %% unless given, the machine's ceilings moved by %.1f %%, other "
        "processes took up to %.0f %%%s\n",
        100.0 * c->slack, 100.0 * c->drift, 100.0 * c->contention,
        c->same_machine ? "" : "; the runs are from different machines, whose ratio this is");
    if (c->same_machine && fmax(c->drift, c->contention) > CARRY_NOT_QUIET) {
        (void)printf("  %sthe machine was not quiet in one of the runs: run them again before believing either%s\n",
                     cli_red(), cli_plain());
    }
}

static void json_losses(const char *name, const carry_loss_pair *l) {
    char key[64];
    const struct {
        const char *what;
        double value;
    } figures[] = {{"a", l->a}, {"b", l->b}, {"difference", l->difference}, {"low", l->low}, {"high", l->high}};
    (void)snprintf(key, sizeof key, "%s_steps", name);
    cli_json_integer(key, l->steps);
    for (size_t i = 0; i < sizeof figures / sizeof figures[0] && l->steps > 0; i++) {
        (void)snprintf(key, sizeof key, "%s_%s", name, figures[i].what);
        cli_json_number(key, figures[i].value);
    }
}

static void print_losses(const char *name, const carry_loss_pair *l) {
    if (l->steps == 0) {
        (void)printf("  %-14s no step in common\n", name);
        return;
    }
    (void)printf("  %-14s %9.4f %9.4f  B - A %+.4f  %+.4f to %+.4f  %s%s%s\n", name, l->a, l->b, l->difference, l->low,
                 l->high,
                 l->within_noise        ? cli_dim()
                 : l->difference <= 0.0 ? cli_green()
                                        : cli_red(),
                 l->within_noise        ? "within noise"
                 : l->difference <= 0.0 ? "lower"
                                        : "higher",
                 cli_plain());
    (void)printf("  %s%14s at step %lld; the difference is the mean over the last %d of %d steps in common%s\n",
                 cli_dim(), "", (long long)l->last, l->averaged, l->steps, cli_plain());
}

static int compare_trainings(const cli_runs_options *given, const carry_run *a, const carry_run *b) {
    carry_training_pair p;
    if (carry_compare_training(given->ctx, &p, a, b, given->slack / 100.0) != CARRY_OK) {
        return cli_failed(given->ctx);
    }
    const bool has_speed = !isnan(p.a_tokens);
    const char *verdict = !has_speed             ? "not measured"
                          : p.speed.within_noise ? "within noise"
                          : p.speed.ratio > 1.0  ? "faster"
                                                 : "slower";
    if (given->json) {
        cli_json_open();
        cli_json_integer("a", a->id);
        cli_json_integer("b", b->id);
        cli_json_number("a_tokens_per_s", p.a_tokens);
        cli_json_number("b_tokens_per_s", p.b_tokens);
        cli_json_number("ratio", has_speed ? p.speed.ratio : NAN);
        cli_json_number("low", has_speed ? p.speed.low : NAN);
        cli_json_number("high", has_speed ? p.speed.high : NAN);
        cli_json_text("verdict", verdict);
        json_losses("loss", &p.loss);
        json_losses("eval_loss", &p.held_out);
        cli_json_number("a_memory", p.a_memory);
        cli_json_number("b_memory", p.b_memory);
        cli_json_bool("same_machine", p.same_machine);
        cli_json_bool("same_options", p.same_options);
        cli_json_close();
        return CLI_DONE;
    }
    (void)printf("%strainings %lld (A) and %lld (B)%s\n  %-14s %9s %9s\n", cli_bold(), (long long)a->id,
                 (long long)b->id, cli_plain(), "", "A", "B");
    if (has_speed) {
        (void)printf("  %-14s %9.0f %9.0f  B / A %.3f  %.3f to %.3f  %s%s%s\n", "tokens/s", p.a_tokens, p.b_tokens,
                     p.speed.ratio, p.speed.low, p.speed.high,
                     p.speed.within_noise  ? cli_dim()
                     : p.speed.ratio > 1.0 ? cli_green()
                                           : cli_red(),
                     verdict, cli_plain());
    }
    print_losses("loss", &p.loss);
    print_losses("held-out loss", &p.held_out);
    if (!isnan(p.a_memory) && !isnan(p.b_memory)) {
        (void)printf("  %-14s %6.0f MB %6.0f MB  B / A %.3f\n", "memory, most", 1e-6 * p.a_memory, 1e-6 * p.b_memory,
                     p.b_memory / p.a_memory);
    }
    (void)printf("  intervals are 95 %%, by the bootstrap over blocks of neighbouring steps; %s options, %s\n",
                 p.same_options ? "the same" : "different",
                 p.same_machine ? "the same machine and threads" : "another machine or number of threads");
    return CLI_DONE;
}

int cli_runs_compare(cli_runs_options *given) {
    if (given->words != 3) {
        return cli_refuse("runs compare needs two runs, for example: carry runs compare 3 last");
    }
    carry_run *a = NULL;
    carry_run *b = NULL;
    carry_comparison comparison;
    int code = CLI_IMPOSSIBLE;
    if (cli_runs_load(given, &a, given->word[1]) && cli_runs_load(given, &b, given->word[2])) {
        if (carry_is_training(a) && carry_is_training(b)) {
            code = compare_trainings(given, a, b);
        } else if (carry_compare(given->ctx, &comparison, a, b, given->slack / 100.0) == CARRY_OK) {
            print_comparison(given, &comparison, a, b);
            carry_compare_free(&comparison);
            code = CLI_DONE;
        } else {
            code = cli_failed(given->ctx);
        }
    }
    carry_run_free(a);
    carry_run_free(b);
    return code;
}
