/* Reads the climb log. The chain of checksums is checked first, so that an edited log is always reported as edited. */
#include "lab/climb/climb_log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "lab/climb/climb_fields.h"

#define CHECKSUM "- checksum: "
#define CHECKSUM_LENGTH (sizeof CHECKSUM - 1)
#define MOST_ENTRIES 100000

typedef struct reader {
    carry_ctx *ctx;
    const char *name;
    char *at; /* the rest of log->pieces */
    int line; /* the last line read */
    carry_climb_log *log;
    int room;
} reader;

static carry_status edited(reader *r, int line, const char *what) {
    return carry_fail(r->ctx, CARRY_EFORMAT, "%s was edited by hand or is damaged: line %d %s (git diff shows how)",
                      r->name, line, what);
}

/* Compares every checksum line with the text before it; the last one must end the file. */
static carry_status follow_chain(reader *r) {
    const char *text = r->log->text;
    const char *end = text + r->log->length;
    const char *checked = text;
    uint32_t crc = 0;
    bool closed = false;
    int line = 1;
    for (const char *at = text; at < end; line++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (newline == NULL) {
            return edited(r, line, "is cut off");
        }
        closed = (size_t)(newline - at) >= CHECKSUM_LENGTH && memcmp(at, CHECKSUM, CHECKSUM_LENGTH) == 0;
        if (closed) {
            char expected[16];
            crc = carry_crc32c(crc, checked, (size_t)(at - checked));
            checked = at;
            (void)snprintf(expected, sizeof expected, "%08" PRIx32, crc);
            if ((size_t)(newline - at) != CHECKSUM_LENGTH + 8 || memcmp(at + CHECKSUM_LENGTH, expected, 8) != 0) {
                return edited(r, line, "is not the checksum of the text above it");
            }
        }
        at = newline + 1;
    }
    return closed ? CARRY_OK : edited(r, line > 1 ? line - 1 : 1, "is not the checksum of an entry's end");
}

/* The next line, or NULL at the end. */
static char *next_line(reader *r) {
    if (*r->at == '\0') {
        return NULL;
    }
    char *line = r->at;
    char *newline = strchr(line, '\n');
    r->line++;
    *newline = '\0'; /* follow_chain has checked that every line ends with a newline */
    r->at = newline + 1;
    return line;
}

static carry_status no_log(reader *r, const char *expected) {
    return carry_fail(r->ctx, CARRY_EFORMAT, "%s is not a climb log that this version reads: line %d should be %s",
                      r->name, r->line, expected);
}

/* Removes the fence of `code` or `` co`de `` in place, and returns the text inside. */
static char *without_fence(char *text) {
    size_t fence = strspn(text, "`");
    size_t length = strlen(text);
    size_t pad = fence > 1 ? 1 : 0;
    if (strcmp(text, "none") == 0) {
        return text;
    }
    if (fence == 0 || length < 2 * (fence + pad) + 1) {
        return NULL;
    }
    for (size_t i = length - fence; i < length; i++) {
        if (text[i] != '`') {
            return NULL;
        }
    }
    text[length - fence - pad] = '\0';
    return text + fence + pad;
}

static carry_status read_fields(reader *r, const carry_climb_field_at *fields, void *record) {
    for (const carry_climb_field_at *field = fields; field->name != NULL; field++) {
        char expected[64];
        char *line = next_line(r);
        size_t name = (size_t)snprintf(expected, sizeof expected, "- %s: ", field->name);
        if (line == NULL || strncmp(line, expected, name) != 0 || line[name] == '\0') {
            return no_log(r, expected);
        }
        const char *value = field->code ? without_fence(line + name) : line + name;
        if (value == NULL) {
            return no_log(r, "a command between backticks, or none");
        }
        *carry_climb_at(record, field) = value;
    }
    return CARRY_OK;
}

static carry_status read_preface(reader *r) {
    char expected[128];
    for (const char *from = carry_climb_preface; *from != '\0';) {
        size_t length = strcspn(from, "\n");
        const char *line = next_line(r);
        if (line == NULL || strlen(line) != length || strncmp(line, from, length) != 0) {
            (void)snprintf(expected, sizeof expected, "'%.*s'", (int)(length < 60 ? length : 60), from);
            return no_log(r, expected);
        }
        from += length + 1;
    }
    return CARRY_OK;
}

static bool read_number(const char *text, double *number) {
    char *end;
    errno = 0;
    *number = (double)NAN;
    if (strcmp(text, "none") == 0) {
        return true;
    }
    *number = strtod(text, &end);
    return errno == 0 && end != text && *end == '\0' && isfinite(*number);
}

static carry_status read_samples(reader *r, const char *text, double **samples, int *count) {
    *samples = calloc(CARRY_CLIMB_SAMPLES, sizeof **samples);
    *count = 0;
    if (*samples == NULL) {
        return carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: the climb log");
    }
    for (const char *at = text; strcmp(text, "none") != 0;) {
        char *end;
        errno = 0;
        double number = strtod(at, &end);
        if (errno != 0 || end == at || !isfinite(number) || !(number > 0.0) || *count == CARRY_CLIMB_SAMPLES) {
            return no_log(r, "preceded by samples above 0, separated by commas");
        }
        (*samples)[(*count)++] = number;
        if (*end == '\0') {
            break;
        }
        if (strncmp(end, ", ", 2) != 0) {
            return no_log(r, "preceded by samples, separated by commas");
        }
        at = end + 2;
    }
    return CARRY_OK;
}

static carry_status make_room(reader *r) {
    carry_climb_log *log = r->log;
    if (log->count == MOST_ENTRIES) {
        return carry_fail(r->ctx, CARRY_ESIZE, "%s has more than %d entries", r->name, MOST_ENTRIES);
    }
    if (log->count == r->room) {
        r->room = r->room > 0 ? 2 * r->room : 16;
        carry_climb_entry *grown = realloc(log->entry, (size_t)r->room * sizeof *grown);
        if (grown == NULL) {
            return carry_fail(r->ctx, CARRY_EMEMORY, "out of memory: %d entries of %s", r->room, r->name);
        }
        log->entry = grown;
    }
    log->entry[log->count] = (carry_climb_entry){.number = log->count};
    return CARRY_OK;
}

static carry_status read_entry(reader *r) {
    carry_climb_log *log = r->log;
    char expected[64];
    char *line = next_line(r);
    if (line == NULL || *line != '\0') {
        return no_log(r, "empty");
    }
    CARRY_TRY(make_room(r));
    carry_climb_entry *e = &log->entry[log->count];
    size_t length = (size_t)snprintf(expected, sizeof expected, "## %d. ", log->count);
    line = next_line(r);
    if (line == NULL || strncmp(line, expected, length) != 0 || line[length] == '\0') {
        (void)snprintf(expected, sizeof expected, "'## %d. ' and a title", log->count);
        return no_log(r, expected);
    }
    e->title = line + length;
    line = next_line(r);
    if (line == NULL || *line != '\0') {
        return no_log(r, "empty");
    }
    log->count++; /* from here on its samples are freed with the log */
    CARRY_TRY(read_fields(r, carry_climb_entry_fields, e));
    CARRY_TRY(read_samples(r, e->samples, &e->sample, &e->count));
    CARRY_TRY(read_samples(r, e->best_samples, &e->best_sample, &e->best_count));
    if (!read_number(e->mfu, &e->share) || !read_number(e->best_mfu, &e->best_share)) {
        return no_log(r, "preceded by an MFU that is a number or none");
    }
    carry_climb_figures(e->number > 0 ? log : NULL, e);
    if (strcmp(e->decision, "kept") == 0) {
        log->best = e->number;
    }
    return CARRY_OK;
}

static carry_status read_all(reader *r) {
    CARRY_TRY(follow_chain(r));
    CARRY_TRY(read_preface(r));
    CARRY_TRY(read_fields(r, carry_climb_head_fields, &r->log->head));
    do {
        CARRY_TRY(read_entry(r));
    } while (*r->at != '\0');
    return CARRY_OK;
}

carry_status carry_climb_log_parse(carry_ctx *ctx, carry_climb_log **log, const char *text, size_t length,
                                   const char *name) {
    carry_climb_log *made = calloc(1, sizeof *made);
    reader r = {.ctx = ctx, .name = name, .log = made};
    *log = NULL;
    if (made != NULL && length < CARRY_CLIMB_LOG_BYTES) {
        made->text = malloc(length + 1);
        made->pieces = malloc(length + 1);
        made->length = length;
    }
    carry_status status = CARRY_OK;
    if (made == NULL || made->text == NULL || made->pieces == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: %s (%zu bytes)", name, length);
    } else if (memchr(text, '\0', length) != NULL) {
        status = carry_fail(ctx, CARRY_EFORMAT, "%s is not a climb log: it has a 0 byte", name);
    }
    if (status == CARRY_OK) {
        memcpy(made->text, text, length);
        memcpy(made->pieces, text, length);
        made->text[length] = made->pieces[length] = '\0';
        r.at = made->pieces;
        status = read_all(&r);
    }
    if (status != CARRY_OK) {
        carry_climb_log_free(made);
        return status;
    }
    *log = made;
    return CARRY_OK;
}

void carry_climb_log_free(carry_climb_log *log) {
    for (int i = 0; log != NULL && i < log->count; i++) {
        free(log->entry[i].sample);
        free(log->entry[i].best_sample);
    }
    if (log != NULL) {
        free(log->entry);
        free(log->text);
        free(log->pieces);
    }
    free(log);
}
