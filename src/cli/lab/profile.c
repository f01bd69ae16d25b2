/* Prints tables of hotspots and of differences between two runs. */
#include "cli/lab/profile.h"

#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "core/clock.h"

#define PLACE 160

/* carry_time_text for times that may be 0 or, because of the clock's resolution, negative. */
static const char *time_of(char text[32], double seconds) {
    if (!(fabs(seconds) >= 1e-9)) {
        (void)snprintf(text, 32, "0 s");
    } else {
        text[0] = '-';
        (void)carry_time_text(seconds < 0.0 ? text + 1 : text, fabs(seconds));
    }
    return text;
}

static const char *place_of(char text[PLACE], const carry_hotspot *spot) {
    char line[16] = "";
    if (spot->line > 0) { /* kernels have no line */
        (void)snprintf(line, sizeof line, ":%d", spot->line);
    }
    (void)snprintf(text, PLACE, "%s%s", spot->file, line);
    return text;
}

static double share_of(const carry_hotspots *h, const carry_hotspot *spot) {
    return h->self > 0.0 ? spot->self / h->self : 0.0;
}

static double per_call(const carry_hotspot *spot) {
    return spot->calls > 0 ? spot->wall / (double)spot->calls : NAN;
}

static void print_json(const carry_hotspots *h, const carry_hotspot *spot, bool by_place) {
    char place[PLACE];
    cli_json_open();
    cli_json_text("by", by_place ? "place" : "category");
    cli_json_text("category", spot->category);
    if (by_place) {
        cli_json_text("name", spot->name);
        cli_json_text("place", place_of(place, spot));
        cli_json_number("wall_s", spot->wall);
    }
    cli_json_integer("calls", spot->calls);
    cli_json_number("total_s", spot->total);
    cli_json_number("self_s", spot->self);
    cli_json_number("share", share_of(h, spot));
    if (by_place && spot->tokens > 0.0) {
        cli_json_number("tokens_per_s", carry_hotspot_tokens_rate(h, spot));
        cli_json_number("mfu", carry_hotspot_mfu(h, spot));
    }
    cli_json_close();
}

static void print_row(const carry_hotspots *h, const carry_hotspot *spot, const char *name, const char *rest) {
    char total[32];
    char self[32];
    (void)printf("  %-26s %9s %9s  %5.1f %% %9lld  %s\n", name, time_of(total, spot->total), time_of(self, spot->self),
                 100.0 * share_of(h, spot), (long long)spot->calls, rest);
}

static void print_place(const carry_hotspots *h, const carry_hotspot *spot) {
    char name[100];
    char rest[PLACE + 64];
    char place[PLACE];
    double mfu = carry_hotspot_mfu(h, spot);
    (void)snprintf(name, sizeof name, "%s: %s", spot->category, spot->name);
    int used = snprintf(rest, sizeof rest, "%s", place_of(place, spot));
    if (spot->tokens > 0.0 && used > 0 && (size_t)used < sizeof rest) {
        used +=
            snprintf(rest + used, sizeof rest - (size_t)used, "  %.4g tokens/s", carry_hotspot_tokens_rate(h, spot));
    }
    if (isfinite(mfu) && used > 0 && (size_t)used < sizeof rest) {
        (void)snprintf(rest + used, sizeof rest - (size_t)used, ", MFU %.1f %%", 100.0 * mfu);
    }
    print_row(h, spot, name, rest);
}

static void print_kernel_json(const carry_hotspots *h, const carry_hotspot *kernel) {
    cli_json_open();
    cli_json_text("by", "kernel");
    cli_json_text("category", kernel->category);
    cli_json_text("name", kernel->name);
    cli_json_integer("calls", kernel->calls);
    cli_json_number("total_s", kernel->total);
    cli_json_number("mean_s", per_call(kernel));
    cli_json_number("share", carry_hotspot_gpu_share(h, kernel));
    cli_json_text("operators", kernel->operators);
    cli_json_text("file", kernel->file);
    cli_json_integer("line", kernel->line);
    cli_json_close();
}

/* Prints the GPU's busy share, and its activity per step of the window. */
static void print_step(const carry_hotspots *h) {
    char text[32];
    if (h->gpu_span > 0.0 && h->gpus == 1) {
        (void)printf("the GPU was busy %.1f %% of %s\n", 100.0 * h->gpu_busy / h->gpu_span, time_of(text, h->gpu_span));
    }
    if (h->steps == 0) {
        return;
    }
    const double steps = (double)h->steps;
    double kernels = 0.0;
    (void)printf("a step, of %lld: ", (long long)h->steps);
    for (int i = 0; i < h->kernels; i++) {
        kernels += h->kernel[i].category[0] == 'k' ? (double)h->kernel[i].calls : 0.0;
    }
    (void)printf("%.4g kernels", kernels / steps);
    for (int i = 0; i < h->kernels; i++) { /* copies by their direction */
        if (h->kernel[i].category[0] != 'k') {
            (void)printf(", %.4g x %s", (double)h->kernel[i].calls / steps, h->kernel[i].name);
        }
    }
    (void)printf(", %.4g waits of the host\n", (double)h->gpu_waits / steps);
}

static void print_kernels(const carry_hotspots *h, bool json, int top) {
    char text[2][32];
    if (h->gpus > 0 && !json) {
        (void)printf("%skernels%s: busy for %s on %d GPU%s; the host waited %lld times\n", cli_bold(), cli_plain(),
                     time_of(text[0], h->gpu_busy), h->gpus, h->gpus == 1 ? "" : "s", (long long)h->gpu_waits);
        print_step(h);
        (void)printf("  %-42s %9s %9s  %7s %9s  %s\n", "kernel", "total", "mean", "share", "calls",
                     "operator, where it was entered");
    }
    for (int i = 0; i < h->kernels && i < top; i++) {
        const carry_hotspot *kernel = &h->kernel[i];
        if (json) {
            print_kernel_json(h, kernel);
        } else {
            char where[160] = "";
            if (kernel->line > 0) {
                (void)snprintf(where, sizeof where, "  %s:%d", kernel->file, kernel->line);
            }
            (void)printf("  %-42s %9s %9s  %5.1f %% %9lld  %s%s\n", kernel->name, time_of(text[0], kernel->total),
                         time_of(text[1], per_call(kernel)), 100.0 * carry_hotspot_gpu_share(h, kernel),
                         (long long)kernel->calls, kernel->operators, where);
        }
    }
    if (!json && h->kernels > top) {
        (void)printf("  %s%d more (--top)%s\n", cli_dim(), h->kernels - top, cli_plain());
    }
}

void cli_profile_print(carry_ctx *ctx, const carry_hotspots *hotspots, bool json, int top) {
    carry_hotspot *categories;
    int count;
    char wall[32];
    char self[32];
    if (carry_hotspots_categories(ctx, &categories, &count, hotspots) != CARRY_OK) {
        (void)cli_failed(ctx);
        return;
    }
    if (!json) {
        (void)printf("%shotspots%s: %s in spans over %s, %d rank%s, %d thread%s\n  %-26s %9s %9s  %7s %9s\n",
                     cli_bold(), cli_plain(), time_of(self, hotspots->self), time_of(wall, hotspots->wall),
                     hotspots->ranks, hotspots->ranks == 1 ? "" : "s", hotspots->threads,
                     hotspots->threads == 1 ? "" : "s", "category", "total", "self", "share", "calls");
    }
    for (int i = 0; i < count; i++) {
        if (json) {
            print_json(hotspots, &categories[i], false);
        } else {
            print_row(hotspots, &categories[i], categories[i].category, "");
        }
    }
    if (!json) {
        (void)printf("  %-26s %9s %9s  %7s %9s  %s\n", "place", "total", "self", "share", "calls", "source");
    }
    int left_out = 0;
    for (int i = 0; i < hotspots->count; i++) {
        if (i >= top && !(hotspots->spot[i].tokens > 0.0)) { /* spots with tokens are always shown, for their rate */
            left_out++;
        } else if (json) {
            print_json(hotspots, &hotspots->spot[i], true);
        } else {
            print_place(hotspots, &hotspots->spot[i]);
        }
    }
    if (!json && left_out > 0) {
        (void)printf("  %s%d more (--top)%s\n", cli_dim(), left_out, cli_plain());
    }
    free(categories);
    print_kernels(hotspots, json, top);
}

void cli_profile_print_end(const carry_hotspots *hotspots, bool json, const char *trace, int64_t run,
                           const char *store) {
    if (json) {
        cli_json_open();
        if (trace != NULL) {
            cli_json_text("trace", trace);
        }
        cli_json_integer("events", hotspots->events);
        cli_json_integer("dropped", hotspots->dropped);
        cli_json_integer("ranks", hotspots->ranks);
        cli_json_integer("threads", hotspots->threads);
        cli_json_number("wall_s", hotspots->wall);
        if (hotspots->gpus > 0 || hotspots->gpu_lost > 0) {
            cli_json_integer("gpus", hotspots->gpus);
            cli_json_number("gpu_busy_s", hotspots->gpu_busy);
            cli_json_number("gpu_span_s", hotspots->gpu_span);
            cli_json_integer("steps", hotspots->steps);
            cli_json_integer("gpu_waits", hotspots->gpu_waits);
            cli_json_integer("gpu_events", hotspots->gpu_events);
            cli_json_integer("gpu_dropped", hotspots->gpu_dropped);
            cli_json_integer("gpu_lost", hotspots->gpu_lost);
        }
        if (store != NULL) {
            cli_json_integer("run", run);
            cli_json_text("store", store);
        }
        cli_json_close();
        return;
    }
    if (hotspots->dropped > 0) {
        (void)printf("the trace is cut: %lld events are in it and %lld are not (--events); the hotspots count all\n",
                     (long long)hotspots->events, (long long)hotspots->dropped);
    }
    if (hotspots->gpu_dropped > 0) {
        (void)printf("the trace is cut: %lld events of GPUs are in it and %lld are not; the hotspots count all\n",
                     (long long)hotspots->gpu_events, (long long)hotspots->gpu_dropped);
    }
    if (hotspots->gpu_lost > 0) {
        (void)printf("CUPTI lost %lld events of GPUs: they are neither on the trace nor among the hotspots\n",
                     (long long)hotspots->gpu_lost);
    }
    (void)(trace != NULL ? printf("trace: %s (ui.perfetto.dev opens it)", trace) : printf("no trace was written"));
    if (store != NULL) {
        (void)printf("; run %lld in %s", (long long)run, store);
    }
    (void)puts("");
}

static const char *call_text(char text[32], const carry_hotspot *spot) {
    if (spot->calls > 0) {
        return time_of(text, per_call(spot));
    }
    (void)snprintf(text, 32, "-");
    return text;
}

static void print_change_json(const carry_hotspot_change *c, const carry_hotspot *known) {
    char place[PLACE];
    cli_json_open();
    cli_json_text("category", known->category);
    cli_json_text("name", known->name);
    cli_json_text("place", place_of(place, known));
    cli_json_number("change_s", c->change);
    cli_json_number("ratio", c->a.self > 0.0 ? c->b.self / c->a.self : NAN);
    cli_json_number("self_a_s", c->a.self);
    cli_json_number("self_b_s", c->b.self);
    cli_json_integer("calls_a", c->a.calls);
    cli_json_integer("calls_b", c->b.calls);
    cli_json_number("call_a_s", per_call(&c->a));
    cli_json_number("call_b_s", per_call(&c->b));
    cli_json_number("call_ratio", per_call(&c->b) / per_call(&c->a));
    cli_json_close();
}

static void print_change(const carry_hotspot_change *c, const carry_hotspot *known) {
    char name[100];
    char text[5][32];
    char place[PLACE];
    char ratio[16] = "-";
    (void)snprintf(name, sizeof name, "%s: %s", known->category, known->name);
    if (c->a.self > 0.0) {
        (void)snprintf(ratio, sizeof ratio, "%.3f", c->b.self / c->a.self);
    }
    (void)printf("  %-26s %s%9s%s %7s %9s %9s %9s %9s  %s\n", name, c->change > 0.0 ? cli_red() : cli_green(),
                 time_of(text[0], c->change), cli_plain(), ratio, time_of(text[1], c->a.self),
                 time_of(text[2], c->b.self), call_text(text[3], &c->a), call_text(text[4], &c->b),
                 place_of(place, known));
}

static void print_changes(const carry_hotspot_change *changes, int count, bool json, int top) {
    for (int i = 0; i < count && i < top; i++) {
        const carry_hotspot *known = changes[i].b.file[0] != '\0' ? &changes[i].b : &changes[i].a;
        if (json) {
            print_change_json(&changes[i], known);
        } else {
            print_change(&changes[i], known);
        }
    }
    if (!json && count > top) {
        (void)printf("  %s%d more (--top)%s\n", cli_dim(), count - top, cli_plain());
    }
}

static void print_diff_head(bool json, const char *of, double a, double b, const char *column) {
    char text[2][32];
    if (!json) {
        (void)printf("%s: %s, then %s\n  %-26s %9s %7s %9s %9s %9s %9s\n", of, time_of(text[0], a), time_of(text[1], b),
                     column, "change", "ratio", "self A", "self B", "a call A", "a call B");
    }
}

carry_status cli_profile_print_diff(carry_ctx *ctx, const carry_hotspots *a, const carry_hotspots *b, bool json,
                                    int top) {
    carry_hotspot_change *changes;
    int count;
    CARRY_TRY(carry_hotspots_compare(ctx, &changes, &count, a, b));
    print_diff_head(json, "self time in spans", a->self, b->self, "place");
    print_changes(changes, count, json, top);
    free(changes);
    if (a->kernels + b->kernels == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_hotspots_compare_gpu(ctx, &changes, &count, a, b));
    print_diff_head(json, "GPUs busy", a->gpu_busy, b->gpu_busy, "kernel");
    print_changes(changes, count, json, top);
    free(changes);
    return CARRY_OK;
}
