/* carry job submit | wait | logs | cancel | release | list | work. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "core/clock.h"
#include "lab/jobs/jobs.h"

#define WAIT_SECONDS 86400.0
#define FOLLOW_SECONDS 0.2
#define SHOWN_LINE 4096

typedef struct job_options {
    carry_ctx *ctx;
    carry_store *store;
    bool json, show_logs, follow;
    int64_t tail; /* lines; negative: all */
    double seconds;
    const char *on, *name, *bring, *store_path;
    int words; /* after the action */
    char **word;
    char **command; /* the words after --; NULL: no command was given */
} job_options;

typedef struct action {
    const char *name;
    bool takes_id;
    int (*run)(const job_options *o, int64_t id);
} action;

/* The state of the status line of a job that is waited for; carry_job_wait does not know about terminals. */
static struct {
    const carry_job *job;
    double started, drawn;
    bool on_terminal;
} waiting;

static bool draw_and_ask(void) {
    double now = carry_seconds();
    if (waiting.on_terminal && now - waiting.started > 2.0 && now - waiting.drawn > 0.5) {
        (void)fprintf(stderr, "\r\033[Kjob %lld %s, %.0f s", (long long)waiting.job->id, waiting.job->state,
                      now - waiting.started);
        (void)fflush(stderr);
        waiting.drawn = now;
    }
    return cli_interrupted();
}

static bool has_taken(const carry_job *job) {
    return job->started > 0.0 && job->ended >= job->started;
}

/* `submitted` is in seconds since 1970; times that are not known yet are null. */
static void print_json(const carry_job *job) {
    cli_json_open();
    cli_json_integer("id", job->id);
    cli_json_text("on", job->on);
    cli_json_text("name", job->name);
    cli_json_text("state", job->state);
    cli_json_text("external", job->external);
    cli_json_text("command", job->command);
    cli_json_text("folder", job->folder);
    cli_json_text("log", job->log);
    cli_json_integer("submitted", (int64_t)job->submitted);
    cli_json_number("wait_s", job->started > 0.0 ? job->started - job->submitted : NAN);
    cli_json_number("took_s", has_taken(job) ? job->ended - job->started : NAN);
    cli_json_number("code", job->code >= 0 ? (double)job->code : NAN);
    cli_json_close();
}

static const char *state_colour(const carry_job *job) {
    return strcmp(job->state, "done") == 0     ? cli_green()
           : carry_job_has_ended(job)          ? cli_red()
           : strcmp(job->state, "queued") == 0 ? cli_dim()
                                               : cli_bold();
}

static const char *code_text(char text[16], const carry_job *job) {
    (void)snprintf(text, 16, job->code >= 0 ? "%d" : "-", job->code);
    return text;
}

/* The end is the modification time of a file, with a resolution of some milliseconds. */
static const char *took_text(char text[32], const carry_job *job) {
    const bool taken = has_taken(job);
    (void)snprintf(text, 32, "%s", taken ? "<10 ms" : "-");
    return taken && job->ended - job->started >= 0.01 ? carry_time_text(text, job->ended - job->started) : text;
}

/* Prints one piece of a line as JSON. Bytes that are not ASCII, and zeros, are shown as ?. */
static void print_line(int64_t id, char *line, size_t length) {
    for (size_t i = 0; i < length; i++) {
        line[i] = (char)(line[i] == '\0' || (unsigned char)line[i] >= 0x80 ? '?' : line[i]);
    }
    line[length] = '\0';
    cli_json_open();
    cli_json_integer("id", id);
    cli_json_text("line", line);
    cli_json_close();
}

/* Prints the bytes of the file from the offset on, up to its current end or until Ctrl-C. Returns the new offset, or -1
   if the file cannot be read. */
static int64_t copy_plain(int file, int64_t offset) {
    char block[65536];
    ssize_t got;
    while ((got = pread(file, block, sizeof block, offset)) > 0 && !cli_interrupted()) {
        if (fwrite(block, 1, (size_t)got, stdout) != (size_t)got) {
            break; /* cli_finish reports the error */
        }
        offset += got;
    }
    (void)fflush(stdout);
    return got < 0 ? -1 : offset;
}

/* As copy_plain, but prints a JSON object for each line of the file. A line longer than SHOWN_LINE bytes is printed in
   pieces; a last line without a newline is printed only if `all` is true. */
static int64_t copy_json(int file, int64_t offset, int64_t id, bool all) {
    char block[SHOWN_LINE + 1];
    ssize_t got;
    while ((got = pread(file, block, SHOWN_LINE, offset)) > 0 && !cli_interrupted()) {
        const char *newline = memchr(block, '\n', (size_t)got);
        size_t length = newline != NULL ? (size_t)(newline - block) : (size_t)got;
        if (newline == NULL && got < SHOWN_LINE && !all) {
            break;
        }
        print_line(id, block, length);
        offset += (int64_t)length + (newline != NULL);
    }
    return got < 0 ? -1 : offset;
}

static int64_t copy_log(const job_options *o, const carry_job *job, int file, int64_t offset) {
    return o->json ? copy_json(file, offset, job->id, carry_job_has_ended(job) || !o->follow)
                   : copy_plain(file, offset);
}

/* A job that has not started has no log yet; that is not an error. */
static int open_log(const carry_job *job, int *file) {
    *file = open(job->log, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*file >= 0 || errno == ENOENT) {
        return CLI_DONE;
    }
    return cli_refuse("%s cannot be read: %s", job->log, strerror(errno));
}

static int show_log(const job_options *o, const carry_job *job, int64_t *offset) {
    int file;
    int code = open_log(job, &file);
    if (file < 0) {
        return code;
    }
    if (*offset < 0) {
        *offset = o->tail == 0 ? lseek(file, 0, SEEK_END) : carry_job_log_tail(file, o->tail);
    }
    *offset = *offset >= 0 ? copy_log(o, job, file, *offset) : -1;
    (void)close(file);
    return *offset >= 0 ? CLI_DONE : cli_refuse("%s cannot be read: %s", job->log, strerror(errno));
}

static int submit(const job_options *o, int64_t id) {
    carry_job job;
    if (o->command == NULL || o->command[0] == NULL || o->words > 0) {
        return cli_refuse("job submit needs -- and a command, for example: carry job submit -- make test");
    }
    const carry_job_request request = {.on = o->on != NULL ? o->on : "local",
                                       .name = o->name,
                                       .bring = o->bring,
                                       .arguments = (const char *const *)(uintptr_t)o->command};
    if (carry_job_submit(o->store, &id, &request) != CARRY_OK) {
        return cli_failed(o->ctx);
    }
    if (carry_job_known(o->store, &job, id) != CARRY_OK) {
        return cli_failed(o->ctx);
    }
    if (o->json) {
        print_json(&job);
    } else {
        (void)printf("job %lld: %s (carry job wait %lld)\n", (long long)id, job.state, (long long)id);
    }
    return CLI_DONE;
}

static int wait_for(const job_options *o, int64_t id) {
    carry_job job = {.id = id, .state = "unknown"};
    waiting.job = &job;
    waiting.started = carry_seconds();
    waiting.on_terminal = isatty(STDERR_FILENO) != 0;
    const double seconds = o->seconds > 0.0 ? o->seconds : WAIT_SECONDS;
    carry_status status = carry_job_wait(o->store, &job, id, seconds, draw_and_ask);
    if (waiting.drawn > 0.0) {
        (void)fputs("\r\033[K", stderr);
    }
    if (status != CARRY_OK) {
        return cli_failed(o->ctx);
    }
    int64_t offset = -1;
    int code = o->show_logs ? show_log(o, &job, &offset) : CLI_DONE;
    char took[32];
    char exit_code[16];
    if (o->json) {
        print_json(&job);
    } else {
        char files[sizeof job.log + 8];
        (void)printf("job %lld: %s%s%s, exit code %s, took %s\n", (long long)id, state_colour(&job), job.state,
                     cli_plain(), code_text(exit_code, &job), took_text(took, &job));
        (void)snprintf(files, sizeof files, "%.*s.files", (int)(strlen(job.log) > 4 ? strlen(job.log) - 4 : 0),
                       job.log);
        if (access(files, F_OK) == 0) {
            (void)printf("  its files: %s\n", files);
        }
    }
    return code != CLI_DONE ? code : strcmp(job.state, "done") == 0 ? CLI_DONE : CLI_WRONG;
}

static int logs(const job_options *o, int64_t id) {
    carry_job job;
    int64_t offset = -1;
    bool again;
    do {
        bool told = carry_job_refresh(o->store, &job, id) == CARRY_OK;
        if (!told && carry_job_known(o->store, &job, id) != CARRY_OK) {
            return cli_failed(o->ctx);
        }
        again = o->follow && !carry_job_has_ended(&job);
        int code = show_log(o, &job, &offset);
        if (code != CLI_DONE) {
            return code;
        }
        if (again) {
            (void)usleep((useconds_t)(1e6 * FOLLOW_SECONDS));
        }
    } while (again && !cli_interrupted());
    return CLI_DONE;
}

static int cancel(const job_options *o, int64_t id) {
    carry_job job;
    if (carry_job_cancel(o->store, id) != CARRY_OK || carry_job_refresh(o->store, &job, id) != CARRY_OK) {
        return cli_failed(o->ctx);
    }
    if (o->json) {
        print_json(&job);
    } else {
        (void)printf("job %lld: %s\n", (long long)id, job.state);
    }
    return CLI_DONE;
}

static int release(const job_options *o, int64_t id) {
    carry_job job;
    if (carry_job_release(o->store, id) != CARRY_OK || carry_job_known(o->store, &job, id) != CARRY_OK) {
        return cli_failed(o->ctx);
    }
    if (o->json) {
        print_json(&job);
    } else {
        (void)printf("job %lld: %s\n", (long long)id, job.state);
    }
    return CLI_DONE;
}

static int list(const job_options *o, int64_t id) {
    carry_job *jobs;
    int count;
    (void)id;
    if (carry_job_list(o->store, &jobs, &count) != CARRY_OK) {
        return cli_failed(o->ctx);
    }
    if (!o->json) {
        (void)(count > 0 ? printf("%s%5s %-10s %-6s %-14s %5s %9s  %s%s\n", cli_bold(), "id", "state", "on", "name",
                                  "code", "took", "command", cli_plain())
                         : printf("there are no jobs yet: carry job submit -- COMMAND\n"));
    }
    for (int i = 0; i < count; i++) {
        char took[32];
        char exit_code[16];
        char shown[64];
        if (o->json) {
            print_json(&jobs[i]);
        } else {
            (void)printf("%5lld %s%-10s%s %-6s %-14.14s %5s %9s  %s\n", (long long)jobs[i].id, state_colour(&jobs[i]),
                         jobs[i].state, cli_plain(), jobs[i].on, jobs[i].name, code_text(exit_code, &jobs[i]),
                         took_text(took, &jobs[i]), cli_shown(shown, jobs[i].command));
        }
    }
    free(jobs);
    return CLI_DONE;
}

static int work(const job_options *o, int64_t id) {
    (void)id;
    return carry_job_work(o->store, cli_interrupted) == CARRY_OK ? CLI_DONE : cli_failed(o->ctx);
}

static const action actions[] = {
    {"submit", false, submit},  {"wait", true, wait_for}, {"logs", true, logs},  {"cancel", true, cancel},
    {"release", true, release}, {"list", false, list},    {"work", false, work},
};

static const action *find_action(const char *name) {
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        if (strcmp(actions[i].name, name) == 0) {
            return &actions[i];
        }
    }
    return NULL;
}

/* Parses the number of a job, or "last". */
static int parse_id(const job_options *o, const char *name, int64_t *id) {
    char shown[64];
    if (o->words != 1) {
        return cli_refuse("job %s needs the number of one job, or last", name);
    }
    const char *text = o->word[0];
    if (strcmp(text, "last") == 0) {
        return carry_job_newest(o->store, id) == CARRY_OK ? CLI_DONE : cli_failed(o->ctx);
    }
    size_t digits = strspn(text, "0123456789");
    *id = digits > 0 && digits <= 18 && text[digits] == '\0' ? strtoll(text, NULL, 10) : 0;
    return *id > 0
               ? CLI_DONE
               : cli_refuse("'%s' is not a job: a number, or last (carry job list shows them)", cli_shown(shown, text));
}

static int act(job_options *o, const cli_common *common, const action *chosen) {
    int64_t id = 0;
    cli_common quiet = *common;
    quiet.threads = quiet.threads > 0 ? quiet.threads : 1; /* nothing is computed here */
    o->ctx = cli_open(&quiet);
    if (o->ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    int code = carry_store_open(o->ctx, &o->store, o->store_path) == CARRY_OK ? CLI_DONE : cli_failed(o->ctx);
    if (code == CLI_DONE && chosen->takes_id) {
        code = parse_id(o, chosen->name, &id);
    }
    if (code == CLI_DONE) {
        cli_catch_interrupt();
        code = chosen->run(o, id);
    }
    carry_store_close(o->store);
    carry_ctx_free(o->ctx);
    return code;
}

/* Returns an option that was given but does not apply to this word, or NULL. */
static const char *idle_option(const job_options *o, const char *word) {
    const struct {
        bool given;
        const char *option, *words;
    } options[] = {{o->on != NULL, "on", "submit"},       {o->name != NULL, "name", "submit"},
                   {o->bring != NULL, "bring", "submit"}, {o->show_logs, "show-logs", "wait"},
                   {o->tail >= 0, "tail", "wait logs"},   {o->follow, "follow", "logs"},
                   {o->seconds > 0.0, "seconds", "wait"}};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (options[i].given && strstr(options[i].words, word) == NULL) {
            return options[i].option;
        }
    }
    return NULL;
}

static int run(int count, char **arguments) {
    cli_common common = {0};
    job_options o = {.tail = -1};
    const cli_option own[] = {
        {"on", 0, CLI_TEXT, &o.on, "SYSTEM", "submit: local, slurm or ssh:HOST (local)"},
        {"name", 0, CLI_TEXT, &o.name, "NAME", "submit: name of the job (that of the command)"},
        {"bring", 0, CLI_TEXT, &o.bring, "PATH,...",
         "submit to ssh:HOST: files of the project to copy back at the end"},
        {"show-logs", 0, CLI_FLAG, &o.show_logs, NULL, "wait: then print the output of the job"},
        {"tail", 0, CLI_NUMBER, &o.tail, "N", "wait, logs: only the last N lines"},
        {"follow", 'f', CLI_FLAG, &o.follow, NULL, "logs: continue until the job has ended"},
        {"seconds", 0, CLI_SECONDS, &o.seconds, "S", "wait: at most this long (a day)"},
        {"store", 0, CLI_TEXT, &o.store_path, "FILE",
         "the run store ($CARRY_STORE, or .carry/store.db of the project)"},
        {0},
    };
    int before = 0; /* the options after -- belong to the command */
    while (before < count && strcmp(arguments[before], "--") != 0) {
        before++;
    }
    o.command = before < count ? arguments + before + 1 : NULL; /* ends with NULL, as main's arguments do */
    int words = cli_parse(&cli_job, before, arguments, own, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    char shown[64];
    const action *chosen = words > 0 ? find_action(arguments[0]) : NULL;
    if (chosen == NULL) {
        return words == 0 ? cli_refuse("job needs one of submit, wait, logs, cancel, release, list, work")
                          : cli_refuse("job has no '%s': expected submit, wait, logs, cancel, release, list or work",
                                       cli_shown(shown, arguments[0]));
    }
    o.json = common.json;
    o.words = words - 1;
    o.word = arguments + 1;
    const char *idle = idle_option(&o, chosen->name);
    if (idle != NULL) {
        return cli_refuse("job %s has no option --%s (see carry job --help)", chosen->name, idle);
    }
    if (o.command != NULL && chosen->run != submit) {
        return cli_refuse("job %s takes no command", chosen->name);
    }
    if (!chosen->takes_id && o.words > 0 && chosen->run != submit) {
        return cli_refuse("job %s takes no '%s'", chosen->name, cli_shown(shown, o.word[0]));
    }
    /* A worker's store may have been removed while the worker started. */
    if (chosen->run != submit && cli_store_there(o.store_path) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    return act(&o, &common, chosen);
}

const cli_verb cli_job = {
    .name = "job",
    .arguments = "WHAT",
    .summary = "run commands later or elsewhere: in a local queue, with Slurm, or over ssh",
    .details =
        "  submit [--on SYSTEM] [--name NAME] -- COMMAND...        queue a command, in this folder and environment\n"
        "  wait ID [--show-logs] [--tail N] [--seconds S]          wait until a job has ended\n"
        "  logs ID [--tail N] [--follow]                           print the output of a job\n"
        "  cancel ID                                               SIGTERM, five seconds later SIGKILL; scancel\n"
        "  release ID                                              let a held job run\n"
        "  list                                                    list all jobs, newest first\n"
        "  work                                                    run the local queue here until it is empty\n"
        "ID is a number, or last. wait exits with 0 if the job succeeded, 1 if it failed, was cancelled or lost, 2\n"
        "if its result is unknown; Ctrl-C stops waiting, not the job.\n"
        "\n"
        "local: one job at a time per store, oldest first. submit and release start a worker in the background if\n"
        "none is running; listing jobs starts nothing. Jobs that were queued before the last boot are held until\n"
        "released. A job that was running when the machine went down is marked as lost and not run again.\n"
        "slurm: sbatch and its SBATCH_ variables (SBATCH_PARTITION, ...) decide where the job runs; the nodes must\n"
        "be able to read the folder of the store.\n"
        "ssh:HOST: copies the project there (all files that git does not ignore, and the program if it is in the\n"
        "project), runs the command detached, copies its log when it is read, and at the end copies the files of\n"
        "--bring to .carry/jobs/ID.files. Keys, ports and users come from ~/.ssh/config, or from\n"
        "CARRY_SSH_CONFIG=FILE.\n"
        "A store from elsewhere (a clone, a copy, another user or host) runs nothing and asks no host: its jobs are\n"
        "held until released. Jobs of this user have a record in $XDG_STATE_HOME/carry/jobs (~/.local/state).",
    .example = "carry job submit --name bench -- carry bench --grid && carry job wait last --show-logs --tail 5",
    .run = run,
};
