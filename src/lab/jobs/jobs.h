/* Jobs: commands to be run by the local queue, by Slurm or on another machine by ssh, with their output and exit
   code.

   Each job has a row in the run store and files in the folder `jobs` next to it (NAME.jobs for a store that is not
   called store.db): ID.log, its output; ID.end, its exit code, written by the process that ran it, so that the
   result survives a killed worker or a Slurm that has forgotten the job; ID.environment (local). ID.end and
   ID.environment are removed once the end is recorded in the store. Functions that report or change jobs first update
   their state, except carry_job_known.

   On ssh:HOST a job runs in a copy of the project (lab/remote.h) with the environment of a login there. Otherwise a
   job gets the arguments, folder and environment of its submission, an empty standard input and its own process
   group; processes that it leaves running in that group are ended with it. */
#ifndef CARRY_LAB_JOBS_H
#define CARRY_LAB_JOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "lab/store/store.h"

typedef struct carry_job_request {
    const char *on;               /* local, slurm or ssh:HOST; NULL: local */
    const char *name;             /* NULL: that of the command */
    const char *const *arguments; /* the command, NULL at the end; UTF-8, at most 128 KiB in all */
    const char *folder;           /* the folder to run in; NULL: the current one */
    const char *bring;            /* ssh: comma-separated paths in the project that are copied back; NULL: none */
} carry_job_request;

/* submitting: only during carry_job_submit. cancelling: asked to end, not yet gone. lost: it ended without an exit
   code that could be kept (the machine went down, or its processes were killed from outside); it is not run again.
   held: it has not ended, and one of these is true: this user has no matching record of it (jobs_record.c); the store
   was in another folder; it is a job of ssh, or queued in the local queue, and was submitted on another host; it is
   queued in the local queue and was submitted before this machine was started. A held job is not run and no host is
   queried for it, since a copied or cloned store contains commands and names of hosts. */
typedef struct carry_job {
    int64_t id;
    char on[96], name[64];
    char state[16];    /* submitting, queued, held, running, cancelling; ended: done, failed, cancelled, lost */
    char held[48];     /* if held: where it was submitted, such as "on another host"; else "" */
    char external[64]; /* Slurm's id; ssh: the folder on the host */
    char command[512], folder[1024], log[1024];
    double submitted, started, ended; /* seconds since 1970, 0: not yet */
    int code;                         /* exit code; 128 + signal if a signal ended it; -1: none */
} carry_job;

/* CARRY_ENOTFOUND if Slurm is requested and sbatch is not installed. For the local queue, starts a worker if none is
   running. */
carry_status carry_job_submit(carry_store *store, int64_t *job, const carry_job_request *request);
/* Loads the state from the store without asking the job system. */
carry_status carry_job_known(carry_store *store, carry_job *job, int64_t id);
/* Asks the job system for the state. Like waiting, listing and cancelling, it starts nothing. */
carry_status carry_job_refresh(carry_store *store, carry_job *job, int64_t id);
/* Waits until the job has ended, `seconds` have passed (CARRY_ETIMEOUT) or `stop` returns true (CARRY_EINTERRUPTED;
   NULL: never). If Slurm or the host does not answer, it is asked again for half a minute. CARRY_EUNSUPPORTED
   if the job is held, or queued while no worker has run for ten seconds. The job itself is not changed. */
carry_status carry_job_wait(carry_store *store, carry_job *job, int64_t id, double seconds, bool (*stop)(void));
/* Sends SIGTERM to the job's whole process group, and SIGKILL after five seconds; or calls scancel. Does nothing if
   the job is already cancelled; CARRY_EARGUMENT if it has ended otherwise or is being submitted. Slurm may take longer:
   the job then stays in the state cancelling. */
carry_status carry_job_cancel(carry_store *store, int64_t id);
/* Makes a held job one of this user: a queued job is then run, and a job of ssh or Slurm is queried. CARRY_EARGUMENT
   if it is not held. */
carry_status carry_job_release(carry_store *store, int64_t id);
/* Lists the jobs, newest first; the caller frees *jobs. A job that cannot be queried keeps its last known state,
   with a warning, and so do the older jobs of the same host, or of Slurm, which are then not queried. After two
   minutes no further host is asked. */
carry_status carry_job_list(carry_store *store, carry_job **jobs, int *count);

bool carry_job_has_ended(const carry_job *job);
/* CARRY_ENOTFOUND if no job was submitted yet. */
carry_status carry_job_newest(carry_store *store, int64_t *id);

/* Runs the local queue, one job at a time, oldest first, until it is empty or `stop` returns true (a running job is
   then left to finish). Runs only jobs that this user submitted here; does nothing if another worker is running.
   carry_job_submit starts this very program as a worker, `PROGRAM job work --store PATH`, so its main must call this
   function. */
carry_status carry_job_work(carry_store *store, bool (*stop)(void));

/* The offset of the last `lines` lines of a log (0: of the whole log). Reads the log backwards, only as far as needed.
   -1 if it cannot be read. */
int64_t carry_job_log_tail(int file, int64_t lines);

#endif
