/* Jobs by Slurm. A job is a script for sbatch that runs the command and then writes its exit code beside the store, so
   the exit code is known even after Slurm has forgotten the job, on a cluster without accounting. The state is queried
   from squeue, then sacct (which may lack a database), then scontrol. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "lab/jobs/jobs_internal.h"
#include "lab/process.h"
#include "lab/quote.h"

#define ANSWER_SECONDS 60.0
#define ANSWER_BYTES ((size_t)64 << 10)
#define CANCEL_SECONDS 5.0

/* Slurm's names of states, and ours. */
typedef struct word {
    const char *slurm, *state;
} word;

static const word words[] = {
    {"PENDING", "queued"},      {"CONFIGURING", "queued"},  {"REQUEUED", "queued"},      {"REQUEUE_FED", "queued"},
    {"REQUEUE_HOLD", "queued"}, {"SPECIAL_EXIT", "queued"}, {"RESV_DEL_HOLD", "queued"}, {"RUNNING", "running"},
    {"COMPLETING", "running"},  {"SUSPENDED", "running"},   {"STOPPED", "running"},      {"SIGNALING", "running"},
    {"STAGE_OUT", "running"},   {"RESIZING", "running"},    {"COMPLETED", "done"},       {"CANCELLED", "cancelled"},
    {"FAILED", "failed"},       {"TIMEOUT", "failed"},      {"NODE_FAIL", "failed"},     {"OUT_OF_MEMORY", "failed"},
    {"BOOT_FAIL", "failed"},    {"DEADLINE", "failed"},     {"PREEMPTED", "failed"},     {"REVOKED", "failed"},
};

/* Slurm's answer about a job. */
typedef struct answer {
    const char *state; /* our state; NULL: the job is unknown */
    int code;          /* -1: not stated */
} answer;

static const char *state_of(const char *text) {
    size_t length = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strlen(words[i].slurm) == length && strncmp(words[i].slurm, text, length) == 0) {
            return words[i].state;
        }
    }
    return NULL;
}

/* Parses "3:0": exit code and signal. */
static int code_of(const char *text) {
    char *end;
    if (!isdigit((unsigned char)text[0])) {
        return -1;
    }
    long code = strtol(text, &end, 10);
    long signal_number = *end == ':' && isdigit((unsigned char)end[1]) ? strtol(end + 1, NULL, 10) : 0;
    if (code < 0 || code > 255 || signal_number < 0 || signal_number > 127) {
        return -1;
    }
    return (int)(signal_number > 0 ? 128 + signal_number : code);
}

/* The first line of a program's output, for an error message. */
static const char *first_line(char line[200], const char *text) {
    (void)snprintf(line, 200, "%.*s", (int)(strcspn(text, "\n") < 199 ? strcspn(text, "\n") : 199), text);
    for (char *at = line; *at != '\0'; at++) {
        *at = (char)((unsigned char)*at < 0x20 ? '?' : *at);
    }
    return line[0] != '\0' ? line : "it says nothing";
}

static carry_status ask(carry_store *store, carry_process_result *result, const char *const *arguments,
                        const char *input) {
    carry_status status = carry_process_run(store->ctx, result,
                                            &(carry_process){.arguments = arguments,
                                                             .input = input,
                                                             .input_length = input != NULL ? strlen(input) : 0,
                                                             .limit = ANSWER_BYTES,
                                                             .seconds = ANSWER_SECONDS});
    if (status == CARRY_ENOTFOUND) {
        return carry_fail(store->ctx, CARRY_ENOTFOUND,
                          "%s is not here: jobs on slurm need Slurm's programs; --on local needs nothing",
                          arguments[0]);
    }
    CARRY_TRY(status);
    if (result->timed_out) {
        carry_process_free(result);
        return carry_fail(store->ctx, CARRY_ETIMEOUT, "%s gave no answer in %.0f s", arguments[0], ANSWER_SECONDS);
    }
    return CARRY_OK;
}

/* Splits "123;cluster" into the options of squeue, sacct and scancel. */
static void split_external(const char *external, char jobs[80], char number[64], char clusters[80]) {
    const char *semicolon = strchr(external, ';');
    (void)snprintf(number, 64, "%.*s", (int)strcspn(external, ";"), external);
    (void)snprintf(jobs, 80, "--jobs=%s", number);
    (void)snprintf(clusters, 80, "--clusters=%s", semicolon != NULL ? semicolon + 1 : "");
    if (semicolon == NULL) {
        clusters[0] = '\0';
    }
}

static carry_status ask_squeue(carry_store *store, const char *external, answer *said) {
    char jobs[80];
    char number[64];
    char clusters[80];
    split_external(external, jobs, number, clusters);
    const char *const arguments[] = {
        "squeue", "--noheader", "--states=all", "--format=%T", jobs, clusters[0] != '\0' ? clusters : NULL, NULL};
    carry_process_result result;
    CARRY_TRY(ask(store, &result, arguments, NULL));
    char line[200];
    carry_status status = CARRY_OK;
    const char *last = result.output; /* with --clusters, a line "CLUSTER: name" comes first */
    for (const char *at = result.output; *at != '\0'; at += strcspn(at, "\n"), at += *at != '\0') {
        last = *at != '\n' ? at : last;
    }
    if (result.code == 0) {
        said->state = state_of(last);
    } else if (strstr(result.errors, "Invalid job id") == NULL) { /* Slurm's message for a job that it has forgotten */
        status = carry_fail(store->ctx, CARRY_EIO, "squeue does not tell: %s", first_line(line, result.errors));
    }
    carry_process_free(&result);
    return status;
}

/* Without accounting or sacct there is no answer, which is not an error. */
static void ask_sacct(carry_store *store, const char *external, answer *said) {
    char jobs[80];
    char number[64];
    char clusters[80];
    split_external(external, jobs, number, clusters);
    const char *const arguments[] = {"sacct",
                                     "--noheader",
                                     "--parsable2",
                                     "--allocations",
                                     "--format=State,ExitCode",
                                     jobs,
                                     clusters[0] != '\0' ? clusters : NULL,
                                     NULL};
    carry_process_result result;
    if (ask(store, &result, arguments, NULL) != CARRY_OK) {
        return;
    }
    const char *bar = strchr(result.output, '|');
    if (result.code == 0 && bar != NULL && state_of(result.output) != NULL) {
        said->state = state_of(result.output);
        said->code = code_of(bar + 1);
    }
    carry_process_free(&result);
}

static void ask_scontrol(carry_store *store, const char *external, answer *said) {
    char jobs[80];
    char number[64];
    char clusters[80];
    split_external(external, jobs, number, clusters);
    const char *const alone[] = {"scontrol", "--oneliner", "show", "job", number, NULL};
    const char *const several[] = {"scontrol", clusters, "--oneliner", "show", "job", number, NULL};
    carry_process_result result;
    if (ask(store, &result, clusters[0] != '\0' ? several : alone, NULL) != CARRY_OK) {
        return;
    }
    const char *state = strstr(result.output, " JobState=");
    const char *code = strstr(result.output, " ExitCode=");
    if (result.code == 0 && state != NULL && state_of(state + 10) != NULL) {
        said->state = state_of(state + 10);
        said->code = code != NULL ? code_of(code + 10) : -1;
    }
    carry_process_free(&result);
}

static bool is_over(const answer *said) {
    return said->state == NULL || (strcmp(said->state, "queued") != 0 && strcmp(said->state, "running") != 0);
}

/* Checks that the id has the form that sbatch returns, since it becomes an argument of commands. */
static carry_status check_external(carry_store *store, const carry_job_row *row) {
    char id[64];
    return carry_slurm_parse_id(store->ctx, id, row->is.external) == CARRY_OK && strcmp(id, row->is.external) == 0
               ? CARRY_OK
               : carry_fail(store->ctx, CARRY_EFORMAT, "job %lld has '%.60s' where an id of Slurm was expected",
                            (long long)row->is.id, row->is.external);
}

static carry_status refresh(carry_store *store, const carry_job_row *row) {
    int code = -1;
    double started = 0.0;
    double ended = 0.0;
    answer said = {.state = NULL, .code = -1};
    if (carry_job_verdict(store, row->is.id, &code, &started, &ended)) {
        return carry_job_settle(store, row->is.id, code, "lost");
    }
    CARRY_TRY(check_external(store, row));
    CARRY_TRY(ask_squeue(store, row->is.external, &said));
    if (!is_over(&said)) {
        sqlite3_stmt *statement;
        CARRY_TRY(carry_store_prepare(store, &statement,
                                      "UPDATE jobs SET state = ?2, started = CASE WHEN ?2 = 'running' THEN "
                                      "coalesce(started, ?3) END WHERE id = ?1 AND state IN ('queued', 'running')",
                                      "isd", row->is.id, said.state, carry_job_now()));
        return carry_store_exec(store, "noting a job", statement);
    }
    ask_sacct(store, row->is.external, &said);
    if (said.code < 0) {
        ask_scontrol(store, row->is.external, &said);
    }
    bool succeeded = said.state != NULL && strcmp(said.state, "done") == 0;
    if (said.state == NULL || (said.code == 0) != succeeded) { /* a job that ran out of time may still have code 0 */
        said.code = succeeded ? 0 : -1;
    }
    if (said.state != NULL && strcmp(said.state, "cancelled") == 0) {
        said.code = -1; /* the exit code of a cancelled job has no meaning */
    }
    return carry_job_settle(store, row->is.id, said.code, said.state != NULL ? said.state : "lost");
}

carry_status carry_slurm_parse_id(carry_ctx *ctx, char id[64], const char *answered) {
    char line[200];
    size_t digits = strspn(answered, "0123456789");
    size_t length = digits;
    bool good = digits > 0 && digits <= 10 && answered[0] != '0';
    if (answered[digits] == ';') {
        size_t cluster =
            strspn(answered + digits + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
        good = good && cluster > 0 && cluster <= 40;
        length = digits + 1 + cluster;
    }
    const char *end = answered + length;
    if (!good || !(*end == '\0' || strcmp(end, "\n") == 0)) {
        return carry_fail(ctx, CARRY_EFORMAT, "sbatch answered '%s', which is not a job number",
                          first_line(line, answered));
    }
    (void)snprintf(id, 64, "%.*s", (int)length, answered);
    return CARRY_OK;
}

/* The script runs the command with exec, so that its name is not taken for a shell builtin, and in a subshell, so that
   the outer shell remains and writes the exit code. */
char *carry_slurm_script(int64_t id, const char *end, const char *const *arguments) {
    static const char tail[] = ")\ncode=$?\nprintf '%s %s\\n' \"$code\" \"$started\" > \"$end.new\" && mv -f "
                               "\"$end.new\" \"$end\"\nexit $code\n";
    size_t size = 256 + carry_quoted_length(end) + sizeof tail;
    for (int i = 0; arguments[i] != NULL; i++) {
        size += carry_quoted_length(arguments[i]) + 1;
    }
    char *script = malloc(size);
    if (script == NULL) {
        return NULL;
    }
    char *at = script + snprintf(script, size, "#!/bin/sh\n# carry job %lld\nend=", (long long)id);
    at = carry_append_quoted(at, end);
    at += snprintf(at, 64, "\nstarted=$(date +%%s)\n(exec");
    for (int i = 0; arguments[i] != NULL; i++) {
        *at++ = ' ';
        at = carry_append_quoted(at, arguments[i]);
    }
    memcpy(at, tail, sizeof tail);
    return script;
}

/* In sbatch's file names % begins a pattern, and a backslash turns patterns off. */
static carry_status output_option(carry_ctx *ctx, char option[2 * CARRY_JOB_PATH + 16], const char *log) {
    char *at = option + snprintf(option, 16, "--output=");
    for (; *log != '\0'; log++) {
        if (*log == '\\') {
            return carry_fail(ctx, CARRY_EARGUMENT, "Slurm takes no backslash in the path of a log: %s", log);
        }
        if (*log == '%') {
            *at++ = '%';
        }
        *at++ = *log;
    }
    *at = '\0';
    return CARRY_OK;
}

static carry_status run_sbatch(carry_store *store, const carry_job_row *row, const char *script, char external[64]) {
    char name[80];
    char output[2 * CARRY_JOB_PATH + 16];
    char folder[1024 + 16];
    char line[200];
    (void)snprintf(name, sizeof name, "--job-name=%s", row->is.name);
    (void)snprintf(folder, sizeof folder, "--chdir=%s", row->is.folder);
    CARRY_TRY(output_option(store->ctx, output, row->is.log));
    const char *const arguments[] = {"sbatch", "--parsable", "--export=ALL", name, output, folder, NULL};
    carry_process_result result;
    CARRY_TRY(ask(store, &result, arguments, script));
    carry_status status;
    if (result.code == 0) {
        status = carry_slurm_parse_id(store->ctx, external, result.output);
    } else {
        status = carry_fail(store->ctx, CARRY_EIO, "sbatch refused the job: %s", first_line(line, result.errors));
    }
    carry_process_free(&result);
    return status;
}

static carry_status submit(carry_store *store, const carry_job_row *row, const char *const *arguments) {
    char end[CARRY_JOB_PATH];
    char external[64];
    CARRY_TRY(carry_job_file(store, end, row->is.id, "end"));
    char *script = carry_slurm_script(row->is.id, end, arguments);
    if (script == NULL) {
        return carry_fail(store->ctx, CARRY_EMEMORY, "out of memory: the script of job %lld", (long long)row->is.id);
    }
    carry_status status = run_sbatch(store, row, script, external);
    free(script);
    CARRY_TRY(status);
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE jobs SET state = 'queued', external = ?2 WHERE id = ?1 AND state = "
                                  "'submitting'",
                                  "is", row->is.id, external));
    return carry_store_exec(store, "submitting a job", statement);
}

/* Queries the job a few more times: a pending job is gone at once, a running one after Slurm's KillWait. */
static carry_status await_cancelled(carry_store *store, int64_t id) {
    double started = carry_seconds();
    carry_status status = CARRY_OK;
    bool ended = false;
    while (status == CARRY_OK && !ended && carry_seconds() - started < CANCEL_SECONDS) {
        carry_job_row row = {0};
        CARRY_TRY(carry_job_load(store, &row, id));
        ended = carry_job_has_ended(&row.is);
        status = ended ? CARRY_OK : refresh(store, &row);
        free(row.arguments);
        if (!ended) {
            carry_job_sleep(0.2);
        }
    }
    return status;
}

static carry_status run_scancel(carry_store *store, const char *external) {
    char jobs[80];
    char number[64];
    char clusters[80];
    char line[200];
    split_external(external, jobs, number, clusters);
    const char *const alone[] = {"scancel", number, NULL};
    const char *const several[] = {"scancel", clusters, number, NULL};
    carry_process_result result;
    CARRY_TRY(ask(store, &result, clusters[0] != '\0' ? several : alone, NULL));
    carry_status status =
        result.code == 0 || strstr(result.errors, "Invalid job id") != NULL
            ? CARRY_OK
            : carry_fail(store->ctx, CARRY_EIO, "scancel does not end it: %s", first_line(line, result.errors));
    carry_process_free(&result);
    return status;
}

static carry_status move(carry_store *store, int64_t id, const char *to) {
    sqlite3_stmt *statement;
    CARRY_TRY(carry_store_prepare(store, &statement,
                                  "UPDATE jobs SET state = ?2 WHERE id = ?1 AND state IN ('queued', 'running', "
                                  "'cancelling')",
                                  "is", id, to));
    return carry_store_exec(store, "cancelling a job", statement);
}

/* Marks the job first, so that a process that sees it end meanwhile knows the reason. */
static carry_status cancel(carry_store *store, const carry_job_row *row) {
    CARRY_TRY(check_external(store, row));
    CARRY_TRY(move(store, row->is.id, "cancelling"));
    carry_status status = run_scancel(store, row->is.external);
    if (status != CARRY_OK) {
        char message[400];
        (void)snprintf(message, sizeof message, "%s", carry_ctx_error(store->ctx));
        CARRY_TRY(move(store, row->is.id, row->is.state));
        return carry_fail(store->ctx, status, "%s", message);
    }
    return await_cancelled(store, row->is.id);
}

const carry_job_system carry_job_slurm = {
    .name = "slurm",
    .about = "the cluster's Slurm: sbatch, squeue, sacct, scontrol, scancel",
    .submit = submit,
    .refresh = refresh,
    .cancel = cancel,
};
