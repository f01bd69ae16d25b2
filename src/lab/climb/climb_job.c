/* Submits an attempt as a job: the same command, without --on. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "lab/climb/climb_internal.h"
#include "lab/jobs/jobs.h"

#define MOST_WORDS 40
#define WAIT_SECONDS (7.0 * 86400.0)

typedef struct command {
    const char *word[MOST_WORDS];
    int count;
} command;

static void add(command *c, const char *option, const char *value) {
    if (value != NULL && c->count + 2 < MOST_WORDS) {
        c->word[c->count++] = option;
        c->word[c->count++] = value;
    }
}

/* The local queue runs one job at a time, so the running job is this one. */
void climb_job_name(carry_climb *climb, char text[96], const char *given) {
    const char *slurm = getenv("SLURM_JOB_ID");
    carry_job *jobs = NULL;
    int count = 0;
    (void)carry_climb_line(text, 96, given != NULL ? given : "");
    if (slurm != NULL && *slurm != '\0' && strspn(slurm, "0123456789_") == strlen(slurm) && strlen(slurm) < 40) {
        (void)snprintf(text, 96, "slurm %s", slurm);
        return;
    }
    if (strcmp(text, "local") == 0 && carry_job_list(climb->store, &jobs, &count) == CARRY_OK) {
        for (int i = 0; i < count; i++) {
            if (strcmp(jobs[i].on, "local") == 0 && strcmp(jobs[i].state, "running") == 0) {
                (void)snprintf(text, 96, "local %lld", (long long)jobs[i].id);
            }
        }
    }
    free(jobs);
}

carry_status carry_climb_submit(carry_climb *climb, carry_climb_job *job, const carry_climb_attempt *attempt,
                                const char *on, bool wait) {
    char self[CLIMB_PATH];
    char base[CLIMB_HASH];
    char tree[CLIMB_HASH];
    char threshold[32];
    char repeats[32];
    char seconds[32];
    const carry_climb_log *log;
    CARRY_TRY(climb_check_hypothesis(climb->ctx, attempt));
    CARRY_TRY(carry_climb_log_of(climb, &log));
    CARRY_TRY(climb_head(climb, base));
    CARRY_TRY(climb_tree(climb, tree, climb->root, base)); /* edits made while the job waits are not judged */
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) {
        return carry_fail(climb->ctx, CARRY_EIO, "the path of this program cannot be read: %s", strerror(errno));
    }
    self[length] = '\0';
    (void)snprintf(threshold, sizeof threshold, "%g", attempt->threshold);
    (void)snprintf(repeats, sizeof repeats, "%lld", (long long)attempt->repeats);
    (void)snprintf(seconds, sizeof seconds, "%g", climb->options.seconds);
    command c = {.word = {self, "climb", "try"}, .count = 3};
    add(&c, "--log", climb->path);
    add(&c, "--hypothesis", attempt->hypothesis);
    add(&c, "--title", attempt->title);
    add(&c, "--next", attempt->next);
    add(&c, "--tests", attempt->tests);
    add(&c, "--profile", attempt->profile);
    add(&c, "--build", attempt->build);
    add(&c, "--threshold", attempt->threshold > 0.0 ? threshold : NULL);
    add(&c, "--repeats", attempt->repeats > 0 ? repeats : NULL);
    add(&c, "--timeout", climb->options.seconds > 0.0 ? seconds : NULL);
    add(&c, "--tree", tree);
    add(&c, "--job", on);
    if (attempt->trust_baseline) {
        c.word[c.count++] = "--trust-baseline";
    }
    carry_job state = {0};
    if (climb->lock >= 0) { /* the job is a separate climb and may begin at once */
        (void)close(climb->lock);
        climb->lock = -1;
    }
    CARRY_TRY(
        carry_job_submit(climb->store, &job->id,
                         &(carry_job_request){.on = on, .name = "climb", .arguments = c.word, .folder = climb->root}));
    climb_tell(climb, "job %lld is submitted", (long long)job->id);
    CARRY_TRY(wait ? carry_job_wait(climb->store, &state, job->id, WAIT_SECONDS, climb->options.stop)
                   : carry_job_refresh(climb->store, &state, job->id));
    (void)snprintf(job->external, sizeof job->external, "%s", state.external);
    (void)snprintf(job->log, sizeof job->log, "%s", state.log);
    (void)snprintf(job->state, sizeof job->state, "%s", state.state);
    job->code = state.code;
    int before = log->count;
    if (wait) {
        CARRY_TRY(climb_reload(climb));
        CARRY_TRY(carry_climb_log_of(climb, &log));
    }
    job->entry = log->count > before ? log->count - 1 : -1;
    return CARRY_OK;
}
