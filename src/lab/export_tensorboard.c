/* Event files for TensorBoard.

   A file is a sequence of records: the length (8 bytes), its masked CRC-32C (4), the bytes, their masked CRC-32C (4),
   all little-endian. Each record is a protocol buffer:

       Event    1: wall_time (double)  2: step (varint)  3: file_version (text)  5: Summary
       Summary  1: Value, repeated
       Value    1: tag (text)  2: simple_value (float)  8: TensorProto  9: SummaryMetadata

   The first event contains only wall_time and file_version. A text is a tensor of strings, whose metadata names the
   plugin that shows it. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/file.h"
#include "lab/export.h"
#include "lab/export_internal.h"

#define MASK UINT32_C(0xa282ead8)
#define VERSION "brain.Event:2"
#define STRINGS 7 /* DT_STRING */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* protocol buffer wire types */

/* A message that grows; running out of memory is recorded in it. */
typedef struct message {
    unsigned char *bytes;
    size_t length, room;
    bool failed;
} message;

static void put(message *m, const void *bytes, size_t length) {
    if (m->length + length > m->room) {
        const size_t room = 2 * (m->length + length) + 64;
        unsigned char *larger = realloc(m->bytes, room);
        if (larger == NULL) {
            m->failed = true;
            return;
        }
        m->bytes = larger;
        m->room = room;
    }
    if (length > 0) {
        memcpy(m->bytes + m->length, bytes, length);
        m->length += length;
    }
}

static void put_little(message *m, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)(value >> (8 * i));
        put(m, &byte, 1);
    }
}

static void put_varint(message *m, uint64_t value) {
    do {
        const unsigned char byte = (unsigned char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        put(m, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

static void put_key(message *m, int field, int wire) {
    put_varint(m, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_bytes(message *m, int field, const void *bytes, size_t length) {
    put_key(m, field, BYTES);
    put_varint(m, length);
    put(m, bytes, length);
}

/* Texts must be UTF-8: invalid bytes become question marks. */
static void put_text(message *m, int field, const char *text) {
    char *plain = strdup(text);
    char *const end = plain != NULL ? plain + strlen(plain) : NULL;
    for (char *at = plain; at < end;) {
        const int length = carry_json_utf8_length(at, end);
        *at = length > 0 ? *at : '?';
        at += length > 0 ? length : 1;
    }
    m->failed = m->failed || plain == NULL;
    put_bytes(m, field, plain != NULL ? plain : "", (size_t)(end - plain));
    free(plain);
}

static void put_message(message *m, int field, message *inner) {
    m->failed = m->failed || inner->failed;
    put_bytes(m, field, inner->bytes, inner->length);
    free(inner->bytes);
    *inner = (message){0};
}

static void put_double(message *m, int field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, FIXED64);
    put_little(m, bits, 8);
}

static void put_float(message *m, int field, double value) {
    const float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    put_key(m, field, FIXED32);
    put_little(m, bits, 4);
}

static uint32_t masked(uint32_t crc) {
    return ((crc >> 15) | (crc << 17)) + MASK;
}

/* The file being written. */
typedef struct events {
    carry_ctx *ctx;
    const carry_run *run;
    carry_file_writing file;
    carry_status status;
} events;

static void write_record(events *e, message *event) {
    message record = {0};
    put_little(&record, event->length, 8);
    put_little(&record, masked(carry_crc32c(0, record.bytes, record.failed ? 0 : 8)), 4);
    put(&record, event->bytes, event->length);
    put_little(&record, masked(carry_crc32c(0, event->bytes, event->length)), 4);
    if (e->status == CARRY_OK && (record.failed || event->failed)) {
        e->status = carry_fail(e->ctx, CARRY_EMEMORY, "out of memory: export of run %lld", (long long)e->run->id);
    }
    if (e->status == CARRY_OK) {
        e->status = carry_file_write(e->ctx, &e->file, record.bytes, record.length);
    }
    free(record.bytes);
    free(event->bytes);
    *event = (message){0};
}

static void write_version(events *e) {
    message event = {0};
    put_double(&event, 1, e->run->started);
    put_text(&event, 3, VERSION);
    write_record(e, &event);
}

/* Writes one value at one step. */
static void write_value(events *e, int64_t step, message *value) {
    message summary = {0};
    message event = {0};
    put_message(&summary, 1, value);
    put_double(&event, 1, carry_export_time(e->run, step));
    put_key(&event, 2, VARINT);
    put_varint(&event, (uint64_t)step);
    put_message(&event, 5, &summary);
    write_record(e, &event);
}

static void write_scalar(events *e, int64_t step, const char *tag, double number) {
    message value = {0};
    put_text(&value, 1, tag);
    put_float(&value, 2, number);
    write_value(e, step, &value);
}

static void write_text(events *e, const char *tag, const char *text) {
    message value = {0};
    message plugin = {0};
    message metadata = {0};
    message size = {0};
    message shape = {0};
    message tensor = {0};
    if (*text == '\0') {
        return;
    }
    put_text(&plugin, 1, "text");
    put_message(&metadata, 1, &plugin);
    put_key(&size, 1, VARINT);
    put_varint(&size, 1);
    put_message(&shape, 2, &size);
    put_key(&tensor, 1, VARINT);
    put_varint(&tensor, STRINGS);
    put_message(&tensor, 2, &shape);
    put_text(&tensor, 8, text);
    put_text(&value, 1, tag);
    put_message(&value, 8, &tensor);
    put_message(&value, 9, &metadata);
    write_value(e, 0, &value);
}

static void write_run(events *e) {
    const carry_run *run = e->run;
    write_version(e);
    write_text(e, "command", run->command);
    write_text(e, "spec", run->spec);
    for (int i = 0; i < run->metrics && e->status == CARRY_OK; i++) {
        const carry_run_metric *m = &run->metric[i];
        if (isfinite(m->value)) {
            write_scalar(e, m->step, m->name, m->value);
        }
    }
    for (int i = 0; i < run->results; i++) {
        const carry_run_result *r = &run->result[i];
        char tag[256];
        (void)snprintf(tag, sizeof tag, "seconds/%.200s/%.40s", r->is.problem, r->is.method);
        for (int j = 0; j < r->samples && e->status == CARRY_OK; j++) {
            write_scalar(e, j, tag, r->sample[j]);
        }
    }
}

static carry_status make_folder(carry_ctx *ctx, const char *path, bool is_new) {
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && !is_new)) {
        return CARRY_OK;
    }
    if (errno == EEXIST) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%s exists already, and event files in it would mix: remove it or give another folder "
                          "(nothing was changed)",
                          path);
    }
    return carry_fail(ctx, CARRY_EIO, "the folder %s cannot be made: %s", path, strerror(errno));
}

/* Makes a folder name from the safe characters of the run's name, followed by its number. */
static void name_folder(char name[160], const carry_run *run) {
    size_t at = 0;
    for (const char *c = run->name; *c != '\0' && at < 100; c++) {
        name[at++] = (char)(isalnum((unsigned char)*c) || strchr("_-", *c) != NULL ? *c : '_');
    }
    (void)snprintf(name + at, 160 - at, "%s%lld", at > 0 ? "-" : "run-", (long long)run->id);
}

carry_status carry_export_tensorboard(carry_ctx *ctx, const char *folder, const carry_run *run, char path[4096]) {
    char name[160];
    char inside[CARRY_FILE_PATH];
    events e = {.ctx = ctx, .run = run};
    name_folder(name, run);
    CARRY_TRY(carry_file_in(ctx, inside, folder, name));
    CARRY_TRY(make_folder(ctx, folder, false));
    CARRY_TRY(make_folder(ctx, inside, true));
    (void)snprintf(name, sizeof name, "events.out.tfevents.%.0f.carry", floor(run->started));
    e.status = carry_file_in(ctx, path, inside, name);
    e.status = e.status == CARRY_OK ? carry_file_begin(ctx, &e.file, path) : e.status;
    if (e.status == CARRY_OK) {
        write_run(&e);
        e.status = e.status == CARRY_OK ? carry_file_commit(ctx, &e.file) : e.status;
        carry_file_abandon(&e.file);
    }
    if (e.status != CARRY_OK) {
        (void)rmdir(inside); /* removes the folder if it is empty: the file could not be written */
    }
    return e.status;
}
