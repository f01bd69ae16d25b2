/* The climb log: a Markdown file that is only ever appended to, with one entry per iteration.

       # Climb                                  a description; then the head: the commands that judge every iteration
       - profile: `carry bench --json ...`
       ## 0. Baseline                            the entry that all others are compared with
       - date: 2026-03-01T12:00:00Z              one line per field, always all of them, always in this order
       ...
       - checksum: 5f3a9c10                      CRC-32C of everything above this line

   A checksum covers all the text before it, so entries form a chain: an edit anywhere is detected at the next
   checksum. The figures are kept as samples, from which every stored difference can be computed again.

   Gains are chained. An entry is measured against the best so far, in turns if possible; its gain over the baseline
   is that ratio times the gain of that best. A machine that is slower today than when the baseline was fixed
   therefore does not change the gains. */
#ifndef CARRY_LAB_CLIMB_LOG_H
#define CARRY_LAB_CLIMB_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/context.h"

#define CARRY_CLIMB_SAMPLES 200
#define CARRY_CLIMB_LOG_BYTES ((size_t)16 << 20)

/* Each text is one line; "none" for an empty one. */
typedef struct carry_climb_head {
    const char *metric; /* throughput */
    const char *profile, *tests, *build;
    const char *repeats, *threshold; /* numbers, as text */
} carry_climb_head;

typedef struct carry_climb_entry {
    int number;
    const char *title;
    const char *date;   /* 2026-03-01T12:00:00Z */
    const char *commit; /* commit of the change, or none */
    const char *hypothesis, *change;
    const char *tests, *result; /* the test command, and its result */
    const char *profile, *job, *trace, *hotspots;
    const char *throughput, *samples, *best_samples, *mfu, *best_mfu; /* the numbers below, as text */
    const char *against_baseline, *against_best;
    const char *decision; /* baseline, kept or refused */
    const char *reason;
    const char *on;  /* the commit that was changed */
    const char *run; /* in the run store */
    const char *next;
    const char *checksum;

    int count, best_count;        /* samples; 0 when nothing was measured */
    double *sample, *best_sample; /* throughput in the order measured; that of the best it was compared with */
    double median, best_median;
    double share, best_share;        /* model flops utilisation, 0 to 1; NaN when not measured */
    double gain_best, gain_baseline; /* ratios; NaN when nothing was measured */
} carry_climb_entry;

typedef struct carry_climb_log {
    carry_climb_head head;
    int count;
    carry_climb_entry *entry;
    int best;            /* index of the newest kept entry, or 0, the baseline */
    char *text, *pieces; /* the file as read; a copy cut into the strings above */
    size_t length;
} carry_climb_log;

/* Parses a whole log; messages call it `name`. CARRY_EFORMAT with the line: it was edited or is not a log. Nothing
   is repaired. */
carry_status carry_climb_log_parse(carry_ctx *ctx, carry_climb_log **log, const char *text, size_t length,
                                   const char *name);
void carry_climb_log_free(carry_climb_log *log);

/* Checks the content of a log: dates must not go back, decisions must follow from the figures, and differences must
   match the samples. CARRY_ERANGE with the entry's number. */
carry_status carry_climb_log_check(carry_ctx *ctx, const carry_climb_log *log, const char *name);

/* Makes the text of a log with one more entry. log NULL: a new log with the given head; the entry is then the
   baseline. The caller fills in the entry's texts up to `hotspots`, decision, reason, on, run and next, and sample and
   best_sample with their counts, share and best_share; number, throughput, differences and checksum are computed here.
   NULL texts become "none". The caller frees *text. */
carry_status carry_climb_log_append(carry_ctx *ctx, char **text, size_t *length, const carry_climb_log *log,
                                    const carry_climb_head *head, const carry_climb_entry *entry);

/* Rounds a number to nine significant digits, as the log stores it, so that values computed before writing and after
   reading are equal. */
double carry_climb_rounded(double number);

/* Computes the median and the gains from the samples, relative to the log so far (NULL: a baseline). */
void carry_climb_figures(const carry_climb_log *log, carry_climb_entry *entry);
/* "throughput +2.10 %, MFU +0.31 points". */
const char *carry_climb_difference(char text[96], double gain, double share, double other_share);

/* The name of an entry's field by index, and its value, for printing; NULL past the end. */
const char *carry_climb_field(int index, const carry_climb_entry *entry, const char **value);

/* Makes one line for a log: each run of white space becomes one space, leading and trailing space is removed, and
   the result is cut to `size`. */
const char *carry_climb_line(char *to, size_t size, const char *from);

#endif
