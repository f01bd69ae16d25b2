/* Shared by the job systems and the table of jobs. */
#ifndef CARRY_LAB_JOBS_INTERNAL_H
#define CARRY_LAB_JOBS_INTERNAL_H

#include "lab/jobs/jobs.h"
#include "lab/store/store_internal.h"

#define CARRY_JOB_PATH 1024 /* of a job's files, as in carry_job */

typedef struct carry_job_row {
    carry_job is;
    char *arguments; /* a JSON array of texts */
    int64_t pid;     /* submitting: who submits; running here: who leads its process group */
    int64_t process_start;
    char boot[64], host[128];
    const char *bring; /* of the request, while it is submitted */
} carry_job_row;

/* One way to run jobs. Each function is called with the row as it is in the store and writes its changes there. */
typedef struct carry_job_system {
    const char *name, *about;
    bool takes_host; /* it is asked for as NAME:HOST */
    /* Brings a row that is submitting to queued, or to running. */
    carry_status (*submit)(carry_store *store, const carry_job_row *row, const char *const *arguments);
    /* Of a row that is queued, running or cancelling. */
    carry_status (*refresh)(carry_store *store, const carry_job_row *row);
    carry_status (*cancel)(carry_store *store, const carry_job_row *row);
} carry_job_system;

extern const carry_job_system carry_job_local, carry_job_slurm, carry_job_ssh;

double carry_job_now(void); /* seconds since 1970 */
void carry_job_sleep(double seconds);

/* Writes the record of a job that this user submits or releases (jobs_record.c), from its row as stored. */
carry_status carry_job_record(carry_store *store, int64_t id);
/* True if the record of this row exists and agrees with it; row->is.log is the path beside the store. */
bool carry_job_is_recorded(carry_store *store, const carry_job_row *row);
void carry_job_unrecord(carry_store *store, int64_t id);
/* Cancels a held job of the local queue; other held jobs are refused with CARRY_EUNSUPPORTED. */
carry_status carry_job_cancel_held(carry_store *store, const carry_job *job);

/* A file of a job, by its ending: log, end, environment; id 0 for what all jobs share (ending is then a whole name). */
carry_status carry_job_file(carry_store *store, char path[CARRY_JOB_PATH], int64_t id, const char *ending);

/* CARRY_ENOTFOUND with an error message; free row->arguments. */
carry_status carry_job_load(carry_store *store, carry_job_row *row, int64_t id);
/* The exit code that ID.end holds; else false, and nothing is set. *started is 0 when the file does not say. */
bool carry_job_verdict(carry_store *store, int64_t id, int *code, double *started, double *ended);
/* Ends a row: by its verdict when there is one, else by this code, else (code < 0) in this state: lost, failed, ...
   Commits the transaction if there is one. */
carry_status carry_job_settle(carry_store *store, int64_t id, int code, const char *otherwise);
/* Begins, ends or undoes a transaction. */
carry_status carry_job_transaction(carry_store *store, const char *word);

/* The local queue's two locks, kept by the kernel, so that they are gone with the process that held them: the worker's,
   and the one of the job that runs. *taken is false when another holds it; else *file is to be closed. */
typedef enum carry_job_lock { CARRY_JOB_LOCK_WORKER, CARRY_JOB_LOCK_RUNNING } carry_job_lock;
carry_status carry_job_lock_take(carry_store *store, carry_job_lock lock, int *file, bool *taken);
bool carry_job_lock_held(carry_store *store, carry_job_lock lock);
/* Are there local jobs to start? The oldest that was submitted here, 0: none. */
carry_status carry_job_local_waiting(carry_store *store, int64_t *id);
/* The folder of the jobs' files is a folder and belongs to the user: only such a queue is run or added to. */
carry_status carry_job_own_folder(carry_store *store);
/* Starts a worker if jobs are queued and no worker is running. */
carry_status carry_job_local_poke(carry_store *store);

/* The id in an answer of sbatch --parsable: a number, and ;cluster if there are several; else CARRY_EFORMAT. */
carry_status carry_slurm_parse_id(carry_ctx *ctx, char id[64], const char *answer);
/* The script for sbatch; the caller frees it; NULL when out of memory. */
char *carry_slurm_script(int64_t id, const char *end, const char *const *arguments);

#endif
