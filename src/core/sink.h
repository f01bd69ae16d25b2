/* Where metrics are sent: layers below the program report to a sink, and the program connects its run store. Only
   one thread calls a sink. Names are short and the same in every run: loss, tokens_per_s. */
#ifndef CARRY_CORE_SINK_H
#define CARRY_CORE_SINK_H

#include <stddef.h>
#include <stdint.h>

/* Either function may be NULL if it is not needed. */
typedef struct carry_sink {
    void *user;
    void (*metric)(void *user, int64_t step, const char *name, double value);
    void (*note)(void *user, int64_t step, const char *line); /* a message for the user, without a newline */
} carry_sink;

static inline void carry_sink_metric(const carry_sink *sink, int64_t step, const char *name, double value) {
    if (sink != NULL && sink->metric != NULL) {
        sink->metric(sink->user, step, name, value);
    }
}

static inline void carry_sink_note(const carry_sink *sink, int64_t step, const char *line) {
    if (sink != NULL && sink->note != NULL) {
        sink->note(sink->user, step, line);
    }
}

#endif
