/* carry profile VERB ... and carry profile diff A B. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/lab/profile.h"
#include "cli/ranks.h"
#include "cli/window.h"
#include "core/clock.h"
#include "core/file.h"
#include "bench/bench.h"
#include "lab/store/store.h"
#include "lab/profile/trace.h"

#define MOST_COMMAND 2048
#define MOST_METRICS 200

typedef struct profile_options {
    cli_common common;
    const char *output, *store, *name;
    bool no_store, verb_unstored; /* --no-store was given before the verb, after it: either applies to both */
    int64_t events, top;
    int64_t from, steps;       /* window of a training; -1: not given */
    int own_count, verb_count; /* arguments of profile, and of the verb */
    char **own, **verb_arguments;
    const cli_verb *verb;
    bool diff;
    char command[MOST_COMMAND];
} profile_options;

/* One profiled run. */
typedef struct session {
    const profile_options *asked;
    carry_ctx *ctx;
    carry_recorder *recorder;
    carry_activity_log *gpu; /* NULL: GPU activity is not recorded */
    char without_gpu[256];   /* why GPU activity is not recorded, or "" */
    carry_store *store;
    int64_t run;
    int64_t steps; /* steps recorded in the window */
    bool is_stopped;
    carry_hotspots hotspots;
    void *trace;
    size_t trace_length;
} session;

static const cli_verb *find_verb(const char *name) {
    static const cli_verb *const verbs[] = {
        &cli_plan,  &cli_check,    &cli_bench, &cli_run, &cli_stream,
#ifdef CARRY_HAVE_TRAIN
        &cli_train, &cli_generate, &cli_eval,
#endif
    };
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(name, verbs[i]->name) == 0) {
            return verbs[i];
        }
    }
    return NULL;
}

static bool is_output(const char *argument) {
    return strcmp(argument, "-o") == 0 || strcmp(argument, "--output") == 0;
}

static bool is_window(const char *argument) {
    return strncmp(argument, "--profile-from", 14) == 0 || strncmp(argument, "--profile-steps", 15) == 0;
}

static bool has_value(const char *argument) {
    return is_output(argument) || strcmp(argument, "--store") == 0 || strcmp(argument, "--events") == 0 ||
           strcmp(argument, "--top") == 0 || strcmp(argument, "--name") == 0 || is_window(argument);
}

static bool is_own(const char *argument) {
    return has_value(argument) || strcmp(argument, "--no-store") == 0 || strcmp(argument, "--help") == 0 ||
           strcmp(argument, "-h") == 0 || strncmp(argument, "--output=", 9) == 0 ||
           strncmp(argument, "--store=", 8) == 0 || strncmp(argument, "--events=", 9) == 0 ||
           strncmp(argument, "--top=", 6) == 0 || strncmp(argument, "--name=", 7) == 0;
}

/* Separates the options of profile from those of the verb. Before the verb, options that profile knows are its own and
   all others belong to the verb. After the verb, only -o, --profile-from and --profile-steps belong to profile. --json
   is for both. */
static void split(profile_options *given, int count, char **arguments) {
    bool after = false;
    for (int i = 0; i < count; i++) {
        char *argument = arguments[i];
        bool own = after ? is_output(argument) || strncmp(argument, "--output=", 9) == 0 || is_window(argument)
                         : is_own(argument);
        if (strcmp(argument, "--") == 0 && after) {
            while (i < count) {
                given->verb_arguments[given->verb_count++] = arguments[i++];
            }
        } else if (own) {
            given->own[given->own_count++] = argument;
            if (has_value(argument) && strchr(argument, '=') == NULL && i + 1 < count) {
                given->own[given->own_count++] = arguments[++i];
            }
        } else if (!after && (find_verb(argument) != NULL || strcmp(argument, "diff") == 0)) {
            after = true;
            given->verb = find_verb(argument);
            given->diff = given->verb == NULL;
        } else {
            given->verb_arguments[given->verb_count++] = argument;
            given->common.json = given->common.json || strcmp(argument, "--json") == 0;
            given->verb_unstored = given->verb_unstored || (after && strcmp(argument, "--no-store") == 0);
        }
    }
}

static int refuse_output(const char *path) {
    struct stat about;
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode)) {
        return cli_refuse("the trace cannot be written to %s: it is not a regular file", path);
    }
    return CLI_DONE;
}

/* Opens the store and begins the run before the verb runs, so that errors are reported before any work. */
static carry_status begin(session *s) {
    CARRY_TRY(carry_recorder_new(s->ctx, &s->recorder, s->asked->events));
    if (s->asked->no_store) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_store_open(s->ctx, &s->store, s->asked->store));
    return carry_store_begin(s->store, &s->run,
                             &(carry_run_start){.kind = "profile",
                                                .name = s->asked->name != NULL ? s->asked->name : s->asked->verb->name,
                                                .command = s->asked->command});
}

/* Missing GPU activity is not an error: the reason is printed later, unless the verb is refused. */
static void start_gpu(session *s) {
    if (carry_activity_start(s->ctx, &s->gpu, s->asked->events) != CARRY_OK) {
        (void)snprintf(s->without_gpu, sizeof s->without_gpu, "%s", carry_ctx_error(s->ctx));
    }
}

static void stop_gpu(session *s) {
    if (s->gpu != NULL && carry_activity_stop(s->ctx, s->gpu) != CARRY_OK) {
        (void)snprintf(s->without_gpu, sizeof s->without_gpu, "%s", carry_ctx_error(s->ctx));
    }
}

/* Activity recording starts before the window, since a CUDA graph that is launched in the window may have been captured
   before it. Activity before the window is left out. */
static void begin_window(void *user) {
    session *s = user;
    if (s->gpu != NULL) {
        s->gpu->from = carry_seconds();
    }
}

static void end_window(void *user) {
    session *s = user;
    s->is_stopped = true;
    stop_gpu(s);
}

/* MFU needs the peak rate of all threads together. It is measured in a separate context, after the verb has ended. */
static void measure_ceiling(session *s) {
    bool tokens = false;
    for (int i = 0; i < s->hotspots.count; i++) {
        tokens = tokens || s->hotspots.spot[i].tokens > 0.0;
    }
    carry_ceilings ceilings;
    carry_ctx *ctx = NULL;
    if (tokens && !cli_interrupted() &&
        carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = s->hotspots.threads}) ==
            CARRY_OK &&
        carry_ceilings_measure(ctx, 1, &ceilings) == CARRY_OK) {
        s->hotspots.gemm_gflops = ceilings.gemm_gflops;
    }
    carry_ctx_free(ctx);
}

static carry_status store_metric(session *s, int64_t step, const char *name, const char *what, double value) {
    char text[128];
    (void)snprintf(text, sizeof text, "%s %s", name, what);
    return isfinite(value) ? carry_store_metric(s->store, s->run, step, text, value) : CARRY_OK;
}

static carry_status store_spot(session *s, int index) {
    const carry_hotspot *spot = &s->hotspots.spot[index];
    char name[112];
    (void)snprintf(name, sizeof name, "%s/%s", spot->category, spot->name);
    CARRY_TRY(store_metric(s, index, name, "self_s", spot->self));
    CARRY_TRY(store_metric(s, index, name, "total_s", spot->total));
    CARRY_TRY(store_metric(s, index, name, "calls", (double)spot->calls));
    CARRY_TRY(store_metric(s, index, name, "tokens_per_s", carry_hotspot_tokens_rate(&s->hotspots, spot)));
    return store_metric(s, index, name, "mfu", carry_hotspot_mfu(&s->hotspots, spot));
}

static carry_status store_gpu(session *s) {
    const carry_hotspots *h = &s->hotspots;
    if (h->gpus == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_store_metric(s->store, s->run, 0, "gpu_busy_s", h->gpu_busy));
    CARRY_TRY(carry_store_metric(s->store, s->run, 0, "gpu_dropped", (double)h->gpu_dropped));
    for (int i = 0; i < h->kernels && i < MOST_METRICS; i++) {
        const carry_hotspot *kernel = &h->kernel[i];
        char name[112];
        (void)snprintf(name, sizeof name, "gpu/%s/%s", kernel->category, kernel->name);
        CARRY_TRY(store_metric(s, i, name, "total_s", kernel->total));
        CARRY_TRY(store_metric(s, i, name, "share", carry_hotspot_gpu_share(h, kernel)));
        CARRY_TRY(store_metric(s, i, name, "calls", (double)kernel->calls));
        CARRY_TRY(store_metric(s, i, name, "mean_s", kernel->total / (double)kernel->calls));
    }
    return CARRY_OK;
}

static carry_status store_all(session *s, int code) {
    if (s->store == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_store_used(
        s->store, s->run,
        &(carry_run_used){.threads = s->hotspots.ranks > 0 ? s->hotspots.threads / s->hotspots.ranks : 0,
                          .ranks = s->hotspots.ranks}));
    CARRY_TRY(carry_store_artefact(s->store, s->run, CLI_PROFILE_TRACE, s->trace, s->trace_length));
    CARRY_TRY(carry_store_metric(s->store, s->run, 0, "wall_s", s->hotspots.wall));
    CARRY_TRY(carry_store_metric(s->store, s->run, 0, "dropped", (double)s->hotspots.dropped));
    for (int i = 0; i < s->hotspots.count && i < MOST_METRICS; i++) {
        CARRY_TRY(store_spot(s, i));
    }
    CARRY_TRY(store_gpu(s));
    const char *state = cli_interrupted() ? "interrupted" : code == CLI_IMPOSSIBLE ? "failed" : "done";
    return carry_store_end(s->store, s->run, state, NULL, NULL);
}

/* After the verb: writes the hotspots, the trace and the store. */
static int conclude(session *s, int code) {
    if (carry_hotspots_of(s->ctx, &s->hotspots, s->recorder) != CARRY_OK) {
        return cli_failed(s->ctx);
    }
    if (code == CLI_IMPOSSIBLE && s->hotspots.count == 0) { /* the verb was refused: nothing has run */
        if (s->store != NULL) {
            (void)carry_store_delete(s->store, s->run);
        }
        return code;
    }
    if (s->without_gpu[0] != '\0') {
        (void)cli_refuse("%s", s->without_gpu);
    }
    if (s->gpu != NULL && carry_hotspots_add_gpu(s->ctx, &s->hotspots, s->gpu) != CARRY_OK) {
        return cli_failed(s->ctx);
    }
    s->hotspots.steps = s->steps;
    measure_ceiling(s);
    if (carry_trace_make(s->ctx, &s->trace, &s->trace_length, s->recorder, s->gpu, &s->hotspots, s->asked->command) !=
        CARRY_OK) {
        return cli_failed(s->ctx);
    }
    carry_status stored = store_all(s, code);
    if (stored != CARRY_OK) {
        code = cli_failed(s->ctx); /* the trace may still be written */
    }
    const bool written = carry_file_replace(s->ctx, s->asked->output, s->trace, s->trace_length) == CARRY_OK;
    if (!written) {
        code = cli_failed(s->ctx);
    }
    cli_profile_print(s->ctx, &s->hotspots, s->asked->common.json, (int)s->asked->top);
    cli_profile_print_end(&s->hotspots, s->asked->common.json, written ? s->asked->output : NULL, s->run,
                          s->store != NULL ? carry_store_path(s->store) : NULL);
    return code;
}

/* Runs the verb and records all of it, or some of its steps. */
static int run_recorded(session *s) {
    const profile_options *given = s->asked;
    if (given->from > 0 || given->steps > 0) {
        cli_window window = {.from = given->from > 0 ? given->from : 1,
                             .steps = given->steps > 0 ? given->steps : 0,
                             .recorder = s->recorder,
                             .begin = begin_window,
                             .end = end_window,
                             .user = s};
        cli_set_window(&window);
        start_gpu(s);
        if (s->gpu != NULL) {
            s->gpu->from = INFINITY;
        }
        const int code = given->verb->run(given->verb_count, given->verb_arguments);
        cli_set_window(NULL);
        if (!s->is_stopped) { /* the verb failed or never reached the window */
            stop_gpu(s);
        }
        s->steps = window.covered;
        if (code == CLI_DONE && window.covered == 0) {
            return cli_refuse("--profile-from %lld: no step was recorded, since the training ended before it",
                              (long long)window.from);
        }
        return code;
    }
    cli_set_recorder(s->recorder);
    start_gpu(s);
    const int code = given->verb->run(given->verb_count, given->verb_arguments);
    stop_gpu(s);
    cli_set_recorder(NULL);
    return code;
}

static int profile_verb(const profile_options *given) {
    session s = {.asked = given};
    int code = refuse_output(given->output);
    if (code != CLI_DONE) {
        return code;
    }
    if (cli_ranks() > 1 && !given->verb->on_ranks) {
        return cli_refuse_ranks(given->verb->name);
    }
    s.ctx = cli_open(&(cli_common){.threads = 1, .kernels = given->common.kernels, .wisdom = "none"});
    if (s.ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    if (begin(&s) == CARRY_OK) {
        code = run_recorded(&s);
        code = conclude(&s, code);
    } else {
        code = cli_failed(s.ctx);
    }
    free(s.trace);
    carry_hotspots_free(&s.hotspots);
    carry_store_close(s.store);
    carry_activity_free(s.gpu);
    carry_recorder_free(s.recorder);
    carry_ctx_free(s.ctx);
    return code;
}

/* Passes --no-store on to a verb that stores runs itself. There is room for the argument because profile's own were
   removed. */
static void pass_no_store(profile_options *given) {
    const bool stores = strcmp(given->verb->name, "train") == 0 || strcmp(given->verb->name, "run") == 0;
    if (given->no_store && stores && !given->verb_unstored) {
        memmove(given->verb_arguments + 1, given->verb_arguments,
                (size_t)given->verb_count * sizeof *given->verb_arguments);
        given->verb_arguments[0] = "--no-store";
        given->verb_count++;
    }
    given->no_store = given->no_store || (stores && given->verb_unstored);
}

static int run_options(profile_options *given, int count, char **arguments) {
    const cli_option own[] = {
        {"output", 'o', CLI_TEXT, &given->output, "FILE", "the trace (trace.json.gz); also allowed after the verb"},
        {"store", 0, CLI_TEXT, &given->store, "FILE",
         "the run store ($CARRY_STORE, or .carry/store.db of the project)"},
        {"name", 0, CLI_TEXT, &given->name, "NAME",
         "name of the stored run (that of the verb); NAME/ numbers a series"},
        {"no-store", 0, CLI_FLAG, &given->no_store, NULL, "do not store this run"},
        {"events", 0, CLI_NUMBER, &given->events, "N",
         "most events per thread in the trace (20000; GPUs: 65536); hotspots count all"},
        {"top", 0, CLI_NUMBER, &given->top, "N", "places to print (20)"},
        {"profile-from", 0, CLI_NUMBER, &given->from, "N",
         "train: the first step to record (1); also allowed after the verb"},
        {"profile-steps", 0, CLI_NUMBER, &given->steps, "N",
         "train: how many steps to record (all); also allowed after the verb"},
        {0},
    };
    char name[32] = "profile";
    if (cli_ranks() > 1) {
        (void)snprintf(name, sizeof name, "--ranks %d profile", cli_ranks());
    }
    (void)cli_command(given->command, sizeof given->command, name, count, arguments);
    split(given, count, arguments);
    bool json = given->common.json;
    if (given->diff || given->verb == NULL) { /* no verb will parse the arguments */
        given->own_count = count;
        memcpy(given->own, arguments, (size_t)count * sizeof *arguments);
    }
    int words = cli_parse(&cli_profile, given->own_count, given->own, own, &given->common);
    if (words < 0 || given->common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    given->common.json = given->common.json || json;
    given->top = given->top < CARRY_HOTSPOTS ? given->top : CARRY_HOTSPOTS;
    if (given->diff) {
        given->verb_count = words - 1;
        memcpy(given->verb_arguments, given->own + 1, (size_t)(words - 1) * sizeof *given->own);
        return profile_diff(given->verb_arguments, given->verb_count, given->store, given->common.json,
                            (int)given->top);
    }
    if (given->verb == NULL) {
        char shown[64];
        return words > 0 ? cli_refuse("profile runs plan, check, bench, run, train, generate, eval or stream, or "
                                      "compares (diff), not '%s'",
                                      cli_shown(shown, given->own[0]))
                         : cli_refuse("profile needs a verb to run, for example bench scan:dense:t1024:n32");
    }
    if ((given->from >= 0 || given->steps >= 0) && strcmp(given->verb->name, "train") != 0) {
        return cli_refuse("--profile-from and --profile-steps are steps of train, not of %s", given->verb->name);
    }
    if (given->from == 0 || given->steps == 0) {
        return cli_refuse("--profile-%s 0: expected 1 or more%s", given->from == 0 ? "from" : "steps",
                          given->from == 0 ? ", the first step being 1" : "");
    }
    pass_no_store(given);
    return profile_verb(given);
}

static int run(int count, char **arguments) {
    if (cli_ranks_kind_of() == CLI_RANKS_MPI) {
        return cli_refuse("profile records one process, and there are several: carry --ranks N profile VERB ... has "
                          "threads for ranks");
    }
    profile_options given = {.output = CLI_PROFILE_TRACE, .top = 20, .from = -1, .steps = -1};
    given.own = calloc((size_t)count + 1, sizeof *given.own);
    given.verb_arguments = calloc((size_t)count + 1, sizeof *given.verb_arguments);
    int code = given.own != NULL && given.verb_arguments != NULL ? run_options(&given, count, arguments)
                                                                 : cli_refuse("out of memory: arguments");
    free(given.own);
    free(given.verb_arguments);
    return code;
}

const cli_verb cli_profile = {
    .name = "profile",
    .arguments = "VERB ... | diff A B",
    .summary = "profile a verb: a trace for Perfetto, and hotspots",
    .details =
        "Runs plan, check, bench, run, train, generate, eval or stream in this process while every thread records\n"
        "spans. Writes a trace that ui.perfetto.dev opens: ranks as processes, threads as tracks, with counters for\n"
        "resident memory and for the length of the thread pool's queue. After the output of the verb it prints\n"
        "hotspots, by category and by place: calls; total time, on all threads; self time, total without inner\n"
        "spans; share of all self time; and, where there are tokens, tokens per second and MFU\n"
        "(relative to the 512^3 product on all threads).\n"
        "\n"
        "On a GPU, if libcupti is found (CARRY_CUPTI names it), the trace also has kernels, copies and fills, one\n"
        "track per stream, and hotspots are also listed by kernel: time on the GPU, share of its busy time, calls,\n"
        "mean. Recording slows down launches. --profile-from and --profile-steps record only some steps of a\n"
        "training, and count the kernels, copies, fills and waits of one step.\n"
        "\n"
        "The run, its figures and its trace are kept in the run store. The exit code is that of the verb, or 2 if\n"
        "the trace or the store could not be written.\n"
        "\n"
        "Options before VERB apply to profile if it has them, else to the verb; after VERB only -o, --profile-from\n"
        "and --profile-steps apply to profile. --json applies to both: a line per hotspot (by, category, name,\n"
        "place, calls, total_s, self_s, share, tokens_per_s, mfu; for kernels by, category, name, calls, total_s,\n"
        "mean_s, share) and a last line with trace, events, dropped and run.\n"
        "\n"
        "profile diff A B compares two traces, files or stored runs (a number, a name, last), place by place, sorted\n"
        "by the change of self time. A bench runs each method for a given time, so compare the time per call there.",
    .example = "carry --ranks 2 profile bench scan:dense:t256:n16 -o trace.json.gz",
    .run = run,
    .on_ranks = true, /* if the verb that it runs does */
};
