/* Writes the climb log: figures, texts, the chain of checksums. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "lab/climb/climb_fields.h"
#include "bench/sample.h"

#define HEAD(name, code) \
    { #name, offsetof(carry_climb_head, name), code }
#define FIELD(name, code) \
    { #name, offsetof(carry_climb_entry, name), code }

const carry_climb_field_at carry_climb_head_fields[] = {
    HEAD(metric, false),
    HEAD(profile, true),
    HEAD(tests, true),
    HEAD(build, true),
    HEAD(repeats, false),
    HEAD(threshold, false),
    {0},
};

const carry_climb_field_at carry_climb_entry_fields[] = {
    FIELD(date, false),
    FIELD(commit, false),
    FIELD(hypothesis, false),
    FIELD(change, false),
    FIELD(tests, true),
    FIELD(result, false),
    FIELD(profile, true),
    FIELD(job, false),
    FIELD(trace, false),
    FIELD(hotspots, false),
    FIELD(throughput, false),
    FIELD(mfu, false),
    {"against baseline", offsetof(carry_climb_entry, against_baseline), false},
    {"against best", offsetof(carry_climb_entry, against_best), false},
    FIELD(decision, false),
    FIELD(reason, false),
    FIELD(next, false),
    FIELD(samples, false),
    {"best samples", offsetof(carry_climb_entry, best_samples), false},
    {"best mfu", offsetof(carry_climb_entry, best_mfu), false},
    FIELD(on, false),
    FIELD(run, false),
    FIELD(checksum, false),
    {0},
};

const char carry_climb_preface[] =
    "# Climb\n"
    "\n"
    "Written by `carry climb`, one entry per iteration; entries are only ever added. Every entry ends with a checksum "
    "of\n"
    "all the text above it, so that `carry climb lint` finds what was edited by hand. Samples are throughputs, one "
    "for\n"
    "each run of the profile command; `best samples` are those of the best commit so far. Gains against the baseline\n"
    "are chained over the entries that were kept.\n"
    "\n";

/* Writes code in a fence longer than any run of backticks inside. */
static void print_code(FILE *to, const char *text) {
    if (strcmp(text, "none") == 0) {
        (void)fputs(text, to);
        return;
    }
    size_t longest = 0;
    for (const char *at = text; *at != '\0'; at++) {
        size_t here = strspn(at, "`");
        longest = here > longest ? here : longest;
    }
    const char *pad = longest > 0 ? " " : "";
    for (int side = 0; side < 2; side++) {
        (void)fputs(side == 1 ? pad : "", to);
        for (size_t i = 0; i <= longest; i++) {
            (void)fputc('`', to);
        }
        (void)fputs(side == 0 ? pad : "", to);
        (void)fputs(side == 0 ? text : "", to);
    }
}

static void print_fields(FILE *to, const carry_climb_field_at *fields, void *record) {
    for (const carry_climb_field_at *field = fields; field->name != NULL; field++) {
        const char *value = *carry_climb_at(record, field);
        value = value != NULL && *value != '\0' ? value : "none";
        if (strcmp(field->name, "checksum") == 0) {
            return; /* the checksum needs the complete text before it */
        }
        (void)fprintf(to, "- %s: ", field->name);
        if (field->code) {
            print_code(to, value);
        } else {
            (void)fputs(value, to);
        }
        (void)fputc('\n', to);
    }
}

static const char *number_text(char text[32], double number) {
    (void)snprintf(text, 32, isfinite(number) ? "%.9g" : "none", number);
    return text;
}

/* "1, 2.5, 3", or "none". The caller frees it. */
static char *samples_text(const double *samples, int count) {
    size_t room = 32 * (size_t)count + 8;
    char *text = malloc(room);
    size_t used = 0;
    if (text != NULL && count == 0) {
        (void)snprintf(text, room, "none");
    }
    for (int i = 0; text != NULL && i < count; i++) {
        used += (size_t)snprintf(text + used, room - used, "%s%.9g", i > 0 ? ", " : "", samples[i]);
    }
    return text;
}

static double median_of(const double *samples, int count) {
    double copy[CARRY_CLIMB_SAMPLES];
    if (count < 1 || count > CARRY_CLIMB_SAMPLES) {
        return (double)NAN;
    }
    memcpy(copy, samples, (size_t)count * sizeof *copy);
    return carry_climb_rounded(carry_summarise(copy, count).median);
}

static void print_entry(FILE *to, const carry_climb_log *log, const carry_climb_head *head, carry_climb_entry *entry) {
    if (log == NULL) {
        carry_climb_head copy = *head;
        (void)fputs(carry_climb_preface, to);
        print_fields(to, carry_climb_head_fields, &copy);
    } else {
        (void)fwrite(log->text, 1, log->length, to);
    }
    (void)fprintf(to, "\n## %d. %s\n\n", entry->number, entry->title);
    print_fields(to, carry_climb_entry_fields, entry);
}

double carry_climb_rounded(double number) {
    char text[32];
    return isfinite(number) ? strtod(number_text(text, number), NULL) : number;
}

void carry_climb_figures(const carry_climb_log *log, carry_climb_entry *entry) {
    entry->median = median_of(entry->sample, entry->count);
    entry->best_median = median_of(entry->best_sample, entry->best_count);
    if (log == NULL) {
        entry->gain_best = entry->gain_baseline = entry->count > 0 ? 1.0 : (double)NAN;
        return;
    }
    entry->gain_best = entry->median / entry->best_median;
    entry->gain_baseline = entry->gain_best * log->entry[log->best].gain_baseline;
}

const char *carry_climb_difference(char text[96], double gain, double share, double other_share) {
    char throughput[32] = "none";
    char points[48] = "none";
    if (isfinite(gain)) {
        (void)snprintf(throughput, sizeof throughput, "%+.2f %%", 100.0 * (gain - 1.0));
    }
    if (isfinite(share) && isfinite(other_share)) {
        (void)snprintf(points, sizeof points, "%+.2f points", 100.0 * (share - other_share));
    }
    (void)snprintf(text, 96, "throughput %s, MFU %s", throughput, points);
    return text;
}

carry_status carry_climb_log_append(carry_ctx *ctx, char **text, size_t *length, const carry_climb_log *log,
                                    const carry_climb_head *head, const carry_climb_entry *entry) {
    carry_climb_entry e = *entry;
    char throughput[32];
    char mfu[32];
    char best_mfu[32];
    char against[2][96];
    e.number = log != NULL ? log->count : 0;
    carry_climb_figures(log, &e);
    e.throughput = number_text(throughput, e.median);
    e.mfu = number_text(mfu, e.share);
    e.best_mfu = number_text(best_mfu, e.best_share);
    double baseline_share = log != NULL ? log->entry[0].share : e.share;
    double best_share = log != NULL ? e.best_share : e.share;
    e.against_baseline = carry_climb_difference(against[0], e.gain_baseline, e.share, baseline_share);
    e.against_best = carry_climb_difference(against[1], e.gain_best, e.share, best_share);
    char *samples = samples_text(e.sample, e.count);
    char *best_samples = samples_text(e.best_sample, e.best_count);
    e.samples = samples;
    e.best_samples = best_samples;
    *text = NULL;
    FILE *to = samples != NULL && best_samples != NULL ? open_memstream(text, length) : NULL;
    if (to != NULL) {
        print_entry(to, log, head, &e);
        (void)fflush(to);
        (void)fprintf(to, "- checksum: %08" PRIx32 "\n", *text != NULL ? carry_crc32c(0, *text, *length) : 0);
    }
    free(samples);
    free(best_samples);
    if (to == NULL || fclose(to) != 0 || *text == NULL) {
        free(*text);
        *text = NULL;
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: an entry of the climb log");
    }
    if (*length > CARRY_CLIMB_LOG_BYTES) {
        free(*text);
        *text = NULL;
        return carry_fail(ctx, CARRY_ESIZE, "the climb log would have more than %zu bytes: begin another with --log",
                          CARRY_CLIMB_LOG_BYTES);
    }
    carry_climb_log *again; /* an entry that cannot be read back must not be written */
    carry_status status = carry_climb_log_parse(ctx, &again, *text, *length, "the new entry");
    if (status != CARRY_OK) {
        free(*text);
        *text = NULL;
    }
    carry_climb_log_free(again);
    return status;
}

const char *carry_climb_field(int index, const carry_climb_entry *entry, const char **value) {
    carry_climb_entry copy = *entry;
    const carry_climb_field_at *field = &carry_climb_entry_fields[index];
    *value = field->name != NULL ? *carry_climb_at(&copy, field) : NULL;
    return field->name;
}

const char *carry_climb_line(char *to, size_t size, const char *from) {
    size_t used = 0;
    bool space = false;
    for (const unsigned char *at = (const unsigned char *)from; *at != '\0' && used + 2 < size; at++) {
        if (isspace(*at) || iscntrl(*at)) {
            space = used > 0;
            continue;
        }
        if (space) {
            to[used++] = ' ';
            space = false;
        }
        to[used++] = (char)*at;
    }
    to[used] = '\0';
    if (used + 2 >= size) { /* never cuts a character */
        while (used > 0 && ((unsigned char)to[used - 1] & 0xC0) == 0x80) {
            used--;
        }
        to[used > 0 && ((unsigned char)to[used - 1] & 0x80) != 0 ? used - 1 : used] = '\0';
    }
    return to;
}
