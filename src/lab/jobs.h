/* Jobs: commands to be run later, by the local queue or by Slurm, with their output kept. */
#ifndef CARRY_LAB_JOBS_H
#define CARRY_LAB_JOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "lab/store.h"

typedef struct carry_job_request {
    const char *on;               /* local or slurm */
    const char *name;             /* or NULL */
    const char *const *arguments; /* the command, NULL at the end */
    const char *folder;           /* to run in; NULL: this one */
} carry_job_request;

typedef struct carry_job {
    int64_t id;
    char on[16], name[64], state[16]; /* queued, running, done, failed, cancelled, lost */
    char external[64];                /* Slurm's id */
    char command[512], folder[512], log[512];
    double submitted, started, ended; /* seconds since 1970, 0: not yet */
    int code;                         /* exit code, -1: none yet */
} carry_job;

carry_status carry_job_submit(carry_store *store, int64_t *job, const carry_job_request *request);
/* Asks the queue or Slurm what became of it. */
carry_status carry_job_refresh(carry_store *store, carry_job *job, int64_t id);
/* Until it has ended, seconds have passed (CARRY_ETIMEOUT) or stop said so (CARRY_EINTERRUPTED). */
carry_status carry_job_wait(carry_store *store, carry_job *job, int64_t id, double seconds, bool (*stop)(void));
carry_status carry_job_cancel(carry_store *store, int64_t id);
/* The newest first; the caller frees *jobs. */
carry_status carry_job_list(carry_store *store, carry_job **jobs, int *count);

#endif
