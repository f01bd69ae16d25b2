/* The run store: one SQLite file per project folder, in WAL mode, so that several processes may use it at once.

   A run is begun, grows result by result, and is ended; each of these is one transaction, so that a process killed at
   any moment leaves everything it had stored. If the process of a run has died, the next process that opens the
   store on that machine marks the run as killed. A store written by a newer version is refused and not changed. A
   read-only store can be read. */
#ifndef CARRY_LAB_STORE_H
#define CARRY_LAB_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

struct sqlite3;
typedef struct carry_store carry_store;

/* path NULL: $CARRY_STORE, else .carry/store.db in this folder or the nearest parent that has a .carry or a .git,
   else in this folder. A store found in a folder, not named by CARRY_STORE, that belongs to another user is refused
   (CARRY_EUNSUPPORTED). */
carry_status carry_store_open(carry_ctx *ctx, carry_store **store, const char *path);
void carry_store_close(carry_store *store);
const char *carry_store_path(const carry_store *store);
/* The database, for other tables of the lab (lab/jobs). Report its errors with carry_store_fail. */
struct sqlite3 *carry_store_db(carry_store *store);
carry_status carry_store_fail(carry_store *store, const char *doing);

typedef struct carry_run_start {
    const char *kind;    /* experiment, bench, profile, climb, train, ... */
    const char *name;    /* of the experiment, or a name for people; "sweep/" is numbered: sweep/1 */
    const char *command; /* as typed */
    const char *spec;    /* the YAML text, or NULL */
} carry_run_start;

/* Begins a run. Stores the commit and whether the folder has changes, the machine, the process and the time. */
carry_status carry_store_begin(carry_store *store, int64_t *run, const carry_run_start *start);
/* The resources that a run actually uses, once known; stored with the facts about its machine. */
typedef struct carry_run_used {
    int threads;        /* per rank; 0: those of the store's own context */
    int ranks;          /* 0: not recorded */
    const char *device; /* NULL: not recorded */
    const char *spec;   /* replaces the spec given at the start of the run; NULL: keeps it */
} carry_run_used;
carry_status carry_store_used(carry_store *store, int64_t run, const carry_run_used *used);
/* Ends a run. state: done, failed, interrupted. decision and note may be NULL. */
carry_status carry_store_end(carry_store *store, int64_t run, const char *state, const char *decision,
                             const char *note);

/* Continues a run that has ended, on this machine or another, so that results can be added: its state is running again,
   its criteria are deleted, and the artefact CARRY_STORE_INVOCATIONS records the command, the machine and the time.
   *invocation receives the number of these records, with the new one. Refuses, and changes nothing, if the run is still
   running (CARRY_EARGUMENT) or is from another commit than that of this folder (CARRY_EUNSUPPORTED). */
#define CARRY_STORE_INVOCATIONS "invocations.json"
carry_status carry_store_resume(carry_store *store, int64_t run, const char *command, int *invocation);

/* The result of one method on one problem. Missing figures are NaN. */
typedef struct carry_stored_result {
    const char *problem, *method, *device;
    const char *reason; /* why it was not measured, or "" */
    bool planned;
    int64_t products;
    double median, spread; /* seconds; interquartile range over the median */
    double flops, bytes, workspace, tokens;
    double share; /* share of the binding ceiling */
    double error, error_absolute, bound;
    double gemm_gflops, copy_gbytes_s; /* ceilings of this run */
} carry_stored_result;

carry_status carry_store_result(carry_store *store, int64_t run, const carry_stored_result *result,
                                const double *samples, int count);

/* Replaces the result with this index (from 0), its samples and the metrics of that step, or appends it after the
   last. */
carry_status carry_store_result_at(carry_store *store, int64_t run, int64_t place, const carry_stored_result *result,
                                   const double *samples, int count);

typedef struct carry_stored_criterion {
    const char *side; /* success or failure */
    const char *text; /* as written */
    double value, bound;
    const char *verdict; /* met, not met, not measured */
    const char *reason;  /* why, or "" */
} carry_stored_criterion;

carry_status carry_store_criterion(carry_store *store, int64_t run, const carry_stored_criterion *criterion);
/* Stores bytes as an artefact; name is a file name such as trace.json.gz. At most 64 MiB. */
carry_status carry_store_artefact(carry_store *store, int64_t run, const char *name, const void *bytes, size_t length);
carry_status carry_store_metric(carry_store *store, int64_t run, int64_t step, const char *name, double value);
/* Deletes all steps of a metric. */
carry_status carry_store_forget_metric(carry_store *store, int64_t run, const char *name);

/* There is no git or no repository, or git did not answer. */
#define CARRY_CHANGES_UNKNOWN (-1)

/* Imports the runs of a file that carry_export_json wrote, one run per line. A run that is already in the store
   (with the same kind, name, command, commit and start) is left unchanged. CARRY_EFORMAT: damaged;
   CARRY_EUNSUPPORTED: a newer format; in both cases the store is unchanged. The caller frees *all. */
#define CARRY_EXPORT_FORMAT 1
typedef struct carry_imported {
    int64_t run, results;
    bool is_new;
    char name[128];
} carry_imported;
carry_status carry_store_import(carry_store *store, const char *path, carry_imported **all, int *count);

/* Reading: a run with everything that belongs to it, as one object. Texts are never NULL. */
typedef struct carry_run_result {
    carry_stored_result is;
    int samples;
    double *sample; /* seconds, in the order taken */
} carry_run_result;

typedef struct carry_run_artefact {
    char *name;
    int64_t bytes;
    char *text; /* the content if it is text of at most 64 KiB, which exports include; else NULL */
} carry_run_artefact;

typedef struct carry_run_metric {
    int64_t step;
    char *name;
    double value;
} carry_run_metric;

typedef struct carry_run_fact {
    char *name, *value;
} carry_run_fact;

typedef struct carry_run {
    int64_t id;
    char *kind, *name, *command, *spec, *folder, *commit, *state, *decision, *note;
    int dirty;             /* 1: the folder had uncommitted changes; 0: it had none; CARRY_CHANGES_UNKNOWN */
    double started, ended; /* seconds since 1970; ended 0 while it runs */
    int results, criteria, artefacts, metrics, facts;
    carry_run_result *result;
    carry_stored_criterion *criterion;
    carry_run_artefact *artefact;
    carry_run_metric *metric;
    carry_run_fact *fact; /* the machine: cpu, cores, memory, gpu, compiler, flags, sqlite, ... */
} carry_run;

/* Finds a run by its name on the command line: a number, "last", or a name (the newest with that name).
   CARRY_ENOTFOUND with an error message. */
carry_status carry_store_find(carry_store *store, int64_t *run, const char *text);
carry_status carry_store_load(carry_store *store, carry_run **run, int64_t id);
void carry_run_free(carry_run *run);
/* A short description of a run. */
typedef struct carry_run_line {
    int64_t id;
    char kind[32], name[128], state[16], decision[16], commit[64];
    int dirty;             /* as in carry_run */
    double started, ended; /* likewise */
    int64_t results;
    int64_t others; /* not 0: the run has metrics or artefacts */
} carry_run_line;

/* Lists runs, newest first, without loading their contents; the caller frees *lines. kind NULL: all. prefix: the
   start of their names, NULL: any. limit 0: all. */
carry_status carry_store_lines(carry_store *store, carry_run_line **lines, int *count, const char *kind,
                               const char *prefix, int limit);
/* Run ids, newest first; the caller frees *ids. kind NULL: all. limit 0: all. */
carry_status carry_store_ids(carry_store *store, int64_t **ids, int *count, const char *kind, int limit);
/* Reads an artefact; the caller frees *bytes. */
carry_status carry_store_artefact_read(carry_store *store, int64_t run, const char *name, void **bytes, size_t *length);
carry_status carry_store_delete(carry_store *store, int64_t run);
/* Returns the space of deleted runs to the disk. */
carry_status carry_store_compact(carry_store *store);

#endif
