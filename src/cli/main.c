/* carry: the table of verbs. */
#include <stdlib.h>
#include <string.h>

#include "cli/family_stream.h"
#ifdef CARRY_HAVE_TRAIN
#include "cli/family_train.h"
#endif
#include "cli/ranks.h"
#include "comm/ranks.h"
#include "core/nearest.h"

const cli_verb *const cli_verbs[] = {
    &cli_list,     &cli_plan,   &cli_check, &cli_bench,
#ifdef CARRY_HAVE_LAB
    &cli_run,      &cli_report, &cli_runs,  &cli_profile, &cli_climb,    &cli_job,   &cli_cards,
#endif
#ifdef CARRY_HAVE_TRAIN
    &cli_train,
#endif
    &cli_generate, &cli_chat,   &cli_serve, &cli_eval,    &cli_quantise, &cli_merge, &cli_tokenizer,
    &cli_pull,     &cli_stream, NULL,
};

#ifdef CARRY_HAVE_LAB
static bool needs_lab(const char *name) {
    (void)name;
    return false;
}
#else
static bool needs_lab(const char *name) {
    static const char *const verbs[] = {"run", "report", "runs", "profile", "climb", "job", "cards"};
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(name, verbs[i]) == 0) {
            return true;
        }
    }
    return false;
}
#endif

/* True if this build lacks training, which the verb needs. */
static bool needs_train(const char *name) {
#ifdef CARRY_HAVE_TRAIN
    (void)name;
    return false;
#else
    return strcmp(name, "train") == 0;
#endif
}

static int processes; /* value of --processes, or 0 */

/* Parses --ranks N or --processes N, also with =, before the verb. Returns the number of arguments consumed, or -1
   after printing a message. */
static int parse_ranks(int count, char **arguments) {
    const char *text = arguments[0];
    const bool apart = strncmp(text, "--processes", 11) == 0;
    const size_t length = apart ? 11 : 7;
    if ((!apart && strncmp(text, "--ranks", 7) != 0) || (text[length] != '\0' && text[length] != '=')) {
        return 0;
    }
    const char *value = text[length] == '=' ? text + length + 1 : count > 1 ? arguments[1] : "";
    char *end;
    long ranks = strtol(value, &end, 10);
    if (end == value || *end != '\0' || ranks < 1 || ranks > CARRY_RANKS) {
        char shown[64];
        (void)cli_refuse("%.*s needs a number from 1 to %d, not '%s'", (int)length, text, CARRY_RANKS,
                         cli_shown(shown, value));
        return -1;
    }
    processes = apart ? (int)ranks : processes;
    if (!apart) {
        cli_set_ranks((int)ranks);
    }
    return text[length] == '=' ? 1 : 2;
}

static void print_usage(FILE *to) {
    (void)fprintf(to, "carry VERB ...\n\nSequence models whose state is carried along the sequence.\n\n");
    for (int i = 0; cli_verbs[i] != NULL; i++) {
        (void)fprintf(to, "  %-10s %s\n", cli_verbs[i]->name, cli_verbs[i]->summary);
    }
    (void)fprintf(to, "\nBefore the verb, or after it:\n"
                      "  --threads N, --json, --seed N, --wisdom FILE, --kernels NAME, --verbose, --help\n"
                      "Before the verb only:\n"
                      "  --ranks N  run on N ranks, as threads of this process (mpirun -n N carry VERB: processes)\n"
                      "  --processes N  run on N ranks, as processes on this machine without MPI\n"
                      "  --version  print the version\n"
                      "\ncarry VERB --help (or carry help VERB) explains one verb with an example. Start with:\n"
                      "  carry bench scan:dense:t1024:n32\n");
}

static int refuse_verb(const char *name) {
    char shown[64];
    char hint[CARRY_NEAREST_HINT];
    if (needs_lab(name)) {
        return cli_refuse("this carry was built without the lab, which '%s' needs: build it where SQLite, libyaml "
                          "and zlib are found",
                          name);
    }
    if (needs_train(name)) {
        return cli_refuse("this carry was built without training, which '%s' needs: build it with CARRY_TRAIN=ON",
                          name);
    }
    carry_nearest near = carry_nearest_to(name);
    for (int i = 0; cli_verbs[i] != NULL; i++) {
        carry_nearest_offer(&near, cli_verbs[i]->name);
    }
    if (name[0] == '-') {
        return cli_refuse("'%s' is not a common option: it goes after its verb (carry --help)", cli_shown(shown, name));
    }
    return cli_refuse("there is no verb '%s'%s (carry --help lists them)", cli_shown(shown, name),
                      carry_nearest_hint(hint, &near, ""));
}

/* Moves options before the verb behind it, where the verb reads them. Returns false after printing a message. */
static bool move_options(int count, char **arguments) {
    int verb = 1;
    bool wants_help = false;
    while (verb < count) {
        const int taken = cli_common_takes(arguments[verb]);
        if (taken == 0) {
            break;
        }
        wants_help = wants_help || strcmp(arguments[verb], "--help") == 0 || strcmp(arguments[verb], "-h") == 0;
        verb += taken;
    }
    if (verb == 1) {
        return true;
    }
    if (verb >= count && !wants_help) {
        (void)cli_refuse("options alone: a verb comes after them (carry --help lists them)");
        return false;
    }
    if (verb < count) {
        char *name = arguments[verb];
        memmove(arguments + 2, arguments + 1, (size_t)(verb - 1) * sizeof *arguments);
        arguments[1] = name;
    }
    return true;
}

/* --ranks may stand anywhere among the options before the verb. */
static int take_ranks(int *count, char **arguments) {
    for (int i = 1; i < *count;) {
        const int taken = parse_ranks(*count - i, arguments + i);
        if (taken < 0) {
            return CLI_IMPOSSIBLE;
        }
        if (taken > 0) {
            const int next = i + taken <= *count ? i + taken : *count;
            memmove(arguments + i, arguments + next, (size_t)(*count - next) * sizeof *arguments);
            *count -= next - i;
            arguments[*count] = NULL;
            if (*count <= 1) {
                return cli_refuse("%s needs a verb to run: carry %s 2 bench scan:dense:t1024:n32",
                                  processes > 0 ? "--processes" : "--ranks", processes > 0 ? "--processes" : "--ranks");
            }
            continue;
        }
        const int skipped = cli_common_takes(arguments[i]);
        if (skipped == 0) {
            return CLI_DONE;
        }
        i += skipped;
    }
    return CLI_DONE;
}

static int run(int count, char **arguments) {
    if (count < 2) {
        print_usage(stderr);
        return CLI_IMPOSSIBLE;
    }
    if (take_ranks(&count, arguments) != CLI_DONE || !move_options(count, arguments)) {
        return CLI_IMPOSSIBLE;
    }
    const char *name = arguments[1];
    if (name == NULL) {
        return cli_refuse("a verb is missing: carry --help lists them");
    }
    if (processes > 0 && cli_ranks_asked() > 0) {
        return cli_refuse("--ranks and --processes both say how many ranks there are: give one");
    }
    if (processes > 0 && cli_process_rank() < 0) {
        return cli_processes_run(processes, arguments);
    }
    if (processes > 0 && cli_processes_check(processes) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    char *help[] = {"--help", NULL};
    if (strcmp(name, "help") == 0 && count > 2) {
        for (int i = 0; cli_verbs[i] != NULL; i++) {
            if (strcmp(arguments[2], cli_verbs[i]->name) == 0) {
                return cli_finish(cli_verbs[i]->run(1, help));
            }
        }
        return refuse_verb(arguments[2]);
    }
    if (cli_common_takes(name) > 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return cli_finish(CLI_DONE);
    }
    if (strcmp(name, "--version") == 0) {
        (void)printf("carry %s\n", carry_version());
        return cli_finish(CLI_DONE);
    }
    for (int i = 0; cli_verbs[i] != NULL; i++) {
        if (strcmp(name, cli_verbs[i]->name) == 0) {
            int code = cli_ranks_check(cli_verbs[i]);
            return code == CLI_DONE ? cli_finish(cli_verbs[i]->run(count - 2, arguments + 2)) : code;
        }
    }
    return refuse_verb(name);
}

int main(int count, char **arguments) {
    if (!cli_ranks_start(count, arguments)) {
        return CLI_IMPOSSIBLE;
    }
#ifdef CARRY_HAVE_TRAIN
    carry_family_register(&carry_family_train);
#endif
    carry_family_register(&carry_family_stream);
    return cli_ranks_leave(run(count, arguments));
}
