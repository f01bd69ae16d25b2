/* Internals of the engine of carry/engine.h. */
#ifndef CARRY_ENGINE_ENGINE_INSIDE_H
#define CARRY_ENGINE_ENGINE_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "carry/engine.h"
#include "engine/model_folder.h"
#include "engine/scheduler.h"
#include "engine/decoded.h"
#include "engine/text_rule.h"

/* A request from its submission to its end. */
typedef struct carry_engine_job {
    struct carry_engine_job *next; /* in the inbox */
    carry_sequence *sequence;      /* owned by the job while it is in the inbox, then by the scheduler */
    uint64_t id;
    bool (*on_event)(void *user, const carry_engine_event *event);
    void *user;
    carry_decoded text;
    char *stop_bytes;
    const char **stops;
    size_t told; /* number of bytes of the text that were reported */
    bool is_stopped;
    carry_text_rule rule;
    bool is_complete; /* its rule allows no more tokens */
    int64_t prompt_tokens;
} carry_engine_job;

typedef struct carry_engine_note {
    struct carry_engine_note *next;
    carry_engine_event event;
    int32_t top_tokens[CARRY_RUN_LOGPROBS];
    float top_logprobs[CARRY_RUN_LOGPROBS];
    char message[256];
    char text[];
} carry_engine_note;

struct carry_engine {
    carry_ctx *ctx;
    carry_model model; /* lm is borrowed if is_borrowed */
    bool is_borrowed;
    carry_lm *heads; /* multi-token heads; NULL: none */
    carry_runner *runner;
    carry_scheduler *scheduler;
    int32_t ends[CARRY_MODEL_ENDS + 2]; /* of the model */
    int64_t end_count;
    uint32_t *allowed; /* NULL: every id of the vocabulary is a token */
    int64_t queue;
    int64_t texts;                   /* maximum number of active texts */
    carry_engine_note *first, *last; /* events */
    carry_engine_note *shown;        /* the event that carry_engine_next returned last */
    /* The fields below are shared with the threads that submit and cancel: */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    carry_engine_job *inbox, *inbox_last;
    uint64_t *cancelled;
    size_t cancelled_count, cancelled_room;
    uint64_t next_id;
    int64_t unfinished;    /* requests without an end */
    atomic_bool is_driven; /* a step, or a function that may read results, is in progress */
    bool has_lock;
    bool is_closing; /* events are dropped */
};

/* Makes an engine from an open model. The engine owns the model on success. After a failure, the caller owns *model,
   which is empty if it has been closed with the engine. */
carry_status carry_engine_adopt(carry_ctx *ctx, carry_engine **engine, carry_model *model, carry_dtype dtype,
                                const carry_engine_options *options);

void carry_engine_job_free(carry_engine_job *job);
/* The scheduler's callback; user is the engine. */
void carry_engine_on_event(void *user, const carry_sequence_event *event);
void carry_engine_free_events(carry_engine *engine);

#endif
