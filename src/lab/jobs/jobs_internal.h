/* Shared by the job systems and the table of jobs. */
#ifndef CARRY_LAB_JOBS_INTERNAL_H
#define CARRY_LAB_JOBS_INTERNAL_H

#include "lab/jobs/jobs.h"
#include "lab/store/store_internal.h"

#define CARRY_JOB_PATH 1024 /* maximum length of the paths of a job's files, as in carry_job */

typedef struct carry_job_row {
    carry_job is;
    char *arguments; /* a JSON array of texts */
    /* While submitting: the submitting process; while running here: the leader of the job's process group. */
    int64_t pid;
    int64_t process_start;
    char boot[64], host[128];
    const char *bring; /* from the request, during submission */
} carry_job_row;

/* One way to run jobs. Each function receives the row as stored and writes its changes to the store. */
typedef struct carry_job_system {
    const char *name, *about;
    bool takes_host; /* requested as NAME:HOST */
    /* Moves a row from submitting to queued or running. */
    carry_status (*submit)(carry_store *store, const carry_job_row *row, const char *const *arguments);
    /* Called for a row that is queued, running or cancelling. */
    carry_status (*refresh)(carry_store *store, const carry_job_row *row);
    carry_status (*cancel)(carry_store *store, const carry_job_row *row);
} carry_job_system;

extern const carry_job_system carry_job_local, carry_job_slurm, carry_job_ssh;

double carry_job_now(void); /* seconds since 1970 */
void carry_job_sleep(double seconds);

/* Writes the record of a job that this user submits or releases (jobs_record.c), from its stored row. */
carry_status carry_job_record(carry_store *store, int64_t id);
/* True if the record of this row exists and matches it. row->is.log must be the path beside the store. */
bool carry_job_is_recorded(carry_store *store, const carry_job_row *row);
void carry_job_unrecord(carry_store *store, int64_t id);
/* Cancels a held job of the local queue; other held jobs are refused with CARRY_EUNSUPPORTED. */
carry_status carry_job_cancel_held(carry_store *store, const carry_job *job);

/* The path of a job's file by its ending: log, end, environment. With id 0 it is a file shared by all jobs, and
   `ending` is the whole name. */
carry_status carry_job_file(carry_store *store, char path[CARRY_JOB_PATH], int64_t id, const char *ending);

/* Loads a row; the caller frees row->arguments. CARRY_ENOTFOUND with an error message. */
carry_status carry_job_load(carry_store *store, carry_job_row *row, int64_t id);
/* Reads the exit code in ID.end. Without it, returns false and sets nothing. *started is 0 if the file does
   not state it. */
bool carry_job_verdict(carry_store *store, int64_t id, int *code, double *started, double *ended);
/* Marks a row as ended, with the exit code in ID.end if that file exists, else with `code` or, if code < 0, in the
   state `otherwise` (lost, failed, ...). A job that is being cancelled becomes cancelled unless its code is 0. Commits
   the transaction if one is open. */
carry_status carry_job_settle(carry_store *store, int64_t id, int code, const char *otherwise);
/* Begins, commits or rolls back a transaction. */
carry_status carry_job_transaction(carry_store *store, const char *word);

/* The two locks of the local queue: that of the worker, and that of the running job. The kernel holds them, so they
   disappear with the process. *taken is false if another process holds the lock; otherwise the caller closes *file. */
typedef enum carry_job_lock { CARRY_JOB_LOCK_WORKER, CARRY_JOB_LOCK_RUNNING } carry_job_lock;
carry_status carry_job_lock_take(carry_store *store, carry_job_lock lock, int *file, bool *taken);
bool carry_job_lock_held(carry_store *store, carry_job_lock lock);
/* The oldest local job that was submitted here and can be started; 0: none. */
carry_status carry_job_local_waiting(carry_store *store, int64_t *id);
/* Checks that the folder of the jobs' files is a folder and belongs to the user: only then is the queue run or
   extended. */
carry_status carry_job_own_folder(carry_store *store);
/* Starts a worker if jobs are queued and no worker is running. */
carry_status carry_job_local_poke(carry_store *store);

/* Parses the answer of sbatch --parsable: a number, and ;cluster if there are several. CARRY_EFORMAT for anything
   else. */
carry_status carry_slurm_parse_id(carry_ctx *ctx, char id[64], const char *answer);
/* The script for sbatch, which the caller frees; NULL when out of memory. */
char *carry_slurm_script(int64_t id, const char *end, const char *const *arguments);

#endif
