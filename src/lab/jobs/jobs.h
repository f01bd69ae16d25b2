/* Jobs: commands to be run by the local queue, by Slurm or on another machine by ssh, with their output and exit
   code.

   Each job has a row in the run store and files in the folder `jobs` next to it (NAME.jobs for a store that is not
   called store.db): ID.log, its output; ID.end, its exit code, written by the process that ran it, so that the
   result survives a killed worker or a Slurm that has forgotten the job; ID.environment (local). The last two are
   removed once the end is recorded in the store. Every function here first updates the state of the jobs it looks
   at.

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
    const char *name;             /* or NULL: the command's */
    const char *const *arguments; /* the command, NULL at the end; UTF-8, at most 128 KiB in all */
    const char *folder;           /* to run in; NULL: this one */
    const char *bring;            /* ssh: paths in the project that are brought back, with commas between; NULL: none */
} carry_job_request;

/* submitting: only while carry_job_submit is at it. cancelling: asked to end, not yet gone. lost: it ended without an
   exit code that anyone could keep (the machine went down, its processes were killed from outside); it is not run
   again. held: no record of this user agrees with it (jobs_record.c), it was submitted on another host or into a store
   in another folder, or, in the local queue, before this machine was started; nothing is run and no host is asked,
   since a store that was copied or cloned contains commands and names of hosts. */
typedef struct carry_job {
    int64_t id;
    char on[96], name[64];
    char state[16];    /* submitting, queued, held, running, cancelling; ended: done, failed, cancelled, lost */
    char held[48];     /* held: where it was submitted, such as "on another host"; else "" */
    char external[64]; /* Slurm's id; ssh: the folder there */
    char command[512], folder[1024], log[1024];
    double submitted, started, ended; /* seconds since 1970, 0: not yet */
    int code;                         /* exit code, 128 + signal when one ended it; -1: none */
} carry_job;

/* CARRY_ENOTFOUND when Slurm is asked for and sbatch is not installed. Locally, starts a worker if none is running. */
carry_status carry_job_submit(carry_store *store, int64_t *job, const carry_job_request *request);
/* The state in the store, without a query. */
carry_status carry_job_known(carry_store *store, carry_job *job, int64_t id);
/* Asks the queue or Slurm what became of it. Starts nothing, as do waiting, listing and cancelling. */
carry_status carry_job_refresh(carry_store *store, carry_job *job, int64_t id);
/* Until it has ended, seconds have passed (CARRY_ETIMEOUT) or stop returns true (CARRY_EINTERRUPTED; NULL: never). A
   Slurm that does not answer is asked again for half a minute. CARRY_EUNSUPPORTED when it is held, or queued with no
   worker at work. The job is left as it is in any case. */
carry_status carry_job_wait(carry_store *store, carry_job *job, int64_t id, double seconds, bool (*stop)(void));
/* SIGTERM, then after five seconds SIGKILL, to all of its process group; scancel. Nothing to do when it is cancelled
   already; CARRY_EARGUMENT when it has ended otherwise. Slurm may take longer: the job is then left as cancelling. */
carry_status carry_job_cancel(carry_store *store, int64_t id);
/* A held job becomes one of this user: a queued one is run, one of ssh or Slurm is asked for. CARRY_EARGUMENT when it
   is not held. */
carry_status carry_job_release(carry_store *store, int64_t id);
/* The newest first; the caller frees *jobs. What Slurm does not tell stays as it was last known, with a warning. */
carry_status carry_job_list(carry_store *store, carry_job **jobs, int *count);

bool carry_job_has_ended(const carry_job *job);
/* CARRY_ENOTFOUND if no job was submitted yet. */
carry_status carry_job_newest(carry_store *store, int64_t *id);

/* The local queue, one job at a time, oldest first, until it is empty or stop returns true (a running job is then left
   to finish). Runs what this user has submitted here; does nothing where another worker is at it. carry_job_submit
   starts this very program as a worker: `PROGRAM job work --store PATH`, so its main must lead here. */
carry_status carry_job_work(carry_store *store, bool (*stop)(void));

/* Where the last `lines` lines of a log begin (0: all of it), reading no more than these; -1 when it cannot be read. */
int64_t carry_job_log_tail(int file, int64_t lines);

#endif
