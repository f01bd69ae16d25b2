/* Internals of the server: threads, queues, counters. */
#ifndef CARRY_SERVE_SERVER_INTERNAL_H
#define CARRY_SERVE_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/engine_inside.h"
#include "http/http.h"
#include "serve/answer.h"
#include "serve/request.h"
#include "serve/server.h"
#include "tokenizer/chat.h"

#define CARRY_SERVE_LANES 2     /* of requests that wait for a preparing thread: short bodies, long bodies */
#define CARRY_SERVE_PREPARERS 4 /* thread i serves lane i % CARRY_SERVE_LANES */
#define CARRY_SERVE_GONE 499    /* the status of a refusal: the client has gone, and nothing is sent */
#define CARRY_SERVE_ROUTES 32
#define CARRY_SERVE_BUCKETS 14
#define CARRY_SERVE_STATUSES 600

typedef enum carry_serve_phase { CARRY_SERVE_LOADING, CARRY_SERVE_READY, CARRY_SERVE_DRAINING } carry_serve_phase;

struct carry_serve_preparer;

/* A request whose body was received. */
typedef struct carry_serve_job {
    struct carry_serve_job *next;
    /* Answers the request on a preparing thread. Takes ownership of the response, but not of the job. */
    void (*work)(struct carry_serve_preparer *preparer, struct carry_serve_job *job);
    const carry_serve_dialect *dialect; /* for a generation; else NULL */
    carry_http_response *response;
    char *rest; /* rest of the path */
    char *body; /* NUL-terminated */
    size_t length;
    double received;
} carry_serve_job;

/* Requests that wait for a preparing thread. */
typedef struct carry_serve_lane {
    carry_serve_job *first, *last;
    int64_t count;
    size_t bytes;
} carry_serve_lane;

/* A preparing thread. */
typedef struct carry_serve_preparer {
    carry_lm_server *server;
    carry_ctx *ctx;
    int lane;
    carry_encoder *encoder; /* NULL: no tokenizer, or not used yet */
    atomic_bool is_gone;    /* the client of the current job has gone, or the server stops */
    pthread_t thread;
    bool is_started;
} carry_serve_preparer;

/* Messages to the output thread. */
typedef enum carry_serve_message_kind {
    CARRY_MESSAGE_EVENT,     /* an engine event for `run` */
    CARRY_MESSAGE_SUBMITTED, /* all choices have been submitted */
    CARRY_MESSAGE_DRAINED,   /* the client reads again */
    CARRY_MESSAGE_FREE,      /* the last message of its answer */
} carry_serve_message_kind;

typedef struct carry_serve_message {
    struct carry_serve_message *next;
    carry_serve_message_kind kind;
    carry_serve_answer *answer;
    carry_serve_run *run;
    bool is_end;
    carry_engine_reason reason;
    int64_t stop; /* with CARRY_REASON_STOP: the index of the stop text */
    carry_status status;
    int64_t prompt_tokens, cached_tokens, tokens;
    double first_s, seconds;
    bool has_token;
    carry_serve_token token;
    char failure[160];
    size_t length;
    char text[];
} carry_serve_message;

typedef struct carry_serve_messages {
    carry_serve_message *first, *last;
} carry_serve_messages;

/* Work for the engine's thread. */
typedef struct carry_serve_command {
    struct carry_serve_command *next;
    void (*run)(carry_lm_server *server, struct carry_serve_command *command);
} carry_serve_command;

typedef struct carry_serve_histogram {
    atomic_ullong count[CARRY_SERVE_BUCKETS + 1];
    _Atomic double sum;
} carry_serve_histogram;

typedef struct carry_serve_counters {
    atomic_ullong responses[CARRY_SERVE_STATUSES]; /* counted by HTTP status */
    atomic_ullong disconnected;
    carry_serve_histogram first, between, whole; /* seconds */
} carry_serve_counters;

typedef struct carry_serve_defaults {
    double temperature, top_p, min_p, repetition;
    int64_t top_k;
} carry_serve_defaults;

struct carry_lm_server {
    carry_lm_server_options options;
    char *model, *states;
    int64_t created; /* seconds since 1970 */
    carry_http_server *http;
    carry_http_route routes[CARRY_SERVE_ROUTES];
    size_t route_count;
    atomic_int phase;
    carry_engine *engine; /* does not change once READY */
    carry_chat chat;
    bool has_chat;
    char no_chat[256]; /* the reason why there is no chat template */
    int64_t ends[CARRY_MODEL_ENDS + 3];
    carry_serve_defaults defaults;
    int64_t end_count, chat_end_count; /* tokens in `ends` for texts; for chats, with the template's */
    carry_serve_counters counters;
    atomic_llong answers; /* responses that have not ended */
    atomic_int connections;
    uint64_t secret[2]; /* for making ids */
    atomic_ullong next_id;

    pthread_mutex_t lock; /* guards all fields below */
    pthread_cond_t has_job[CARRY_SERVE_LANES], has_message;
    bool is_stopping;
    carry_serve_lane lanes[CARRY_SERVE_LANES];
    carry_serve_messages messages;
    carry_serve_command *commands, *last_command;
    carry_engine_stats stats; /* as of the last step */

    carry_serve_messages batch; /* messages of this step; engine's thread only */
    carry_serve_preparer preparers[CARRY_SERVE_PREPARERS];
    pthread_t output;
    bool has_output, has_lock;
};

/* routes.c */
void carry_serve_add_routes(carry_lm_server *server);
void carry_serve_write_error(void *user, const char *path, int status, const char *message, carry_json_text *body);
/* Sends a refusal and counts it, in the dialect's form, or OpenAI's if NULL. CARRY_SERVE_GONE closes the connection
   instead. (ends the response) */
void carry_serve_reply_refusal(carry_lm_server *server, carry_http_response *response,
                               const carry_serve_dialect *dialect, const carry_serve_refusal *refusal);
void carry_serve_reply_json(carry_lm_server *server, carry_http_response *response, int status, carry_json_text *text);
void carry_serve_count(carry_lm_server *server, int status);
/* Returns the dialect of a POST route. */
const carry_serve_dialect *carry_serve_dialect_of(const char *path);

/* page.c */
void carry_serve_add_page(carry_lm_server *server);
#define CARRY_SERVE_PAGE_PATHS "/", "/chat.css", "/chat.js", "/chat.svg"

/* prepare.c */
bool carry_serve_start_preparers(carry_lm_server *server);
void carry_serve_stop_preparers(carry_lm_server *server);
/* Copies the body into a job and queues it, or refuses with 429, 503 or 500. On the HTTP thread. */
void carry_serve_queue(carry_lm_server *server, carry_http_response *response, const carry_http_request *request,
                       void (*work)(carry_serve_preparer *preparer, carry_serve_job *job),
                       const carry_serve_dialect *dialect);
void carry_serve_job_free(carry_serve_job *job);
/* The preparing thread no longer watches the client: call this before handing the response to another thread. */
void carry_serve_unwatch(carry_serve_job *job);
/* Parses the JSON of a body, with a limit on the number of values. Returns NULL with a refusal. */
carry_json *carry_serve_parse_body(carry_serve_preparer *preparer, const carry_serve_job *job,
                                   carry_serve_refusal *refusal);
/* Makes the prompt of a request: the ids, and for a chat also the rendered text. */
bool carry_serve_tokenize(carry_serve_preparer *preparer, carry_serve_request *request, char **prompt,
                          size_t *prompt_length, carry_serve_refusal *refusal);
carry_status carry_serve_encoder(carry_serve_preparer *preparer);

/* generate.c: handles the job of a dialect. */
void carry_serve_generate(carry_serve_preparer *preparer, carry_serve_job *job);
void carry_serve_make_id(carry_lm_server *server, char id[40]);

/* output.c */
bool carry_serve_start_output(carry_lm_server *server);
void carry_serve_stop_output(carry_lm_server *server);
void carry_serve_post(carry_lm_server *server, carry_serve_messages *messages);
void carry_serve_post_one(carry_lm_server *server, carry_serve_message *message);
void carry_serve_append(carry_serve_messages *to, carry_serve_message *message);

/* answer.c */
carry_serve_answer *carry_serve_answer_new(carry_lm_server *server, carry_http_response *response,
                                           carry_serve_request *request);
void carry_serve_answer_free(carry_serve_answer *answer);
void carry_serve_answer_take(carry_serve_answer *answer, carry_serve_message *message);
/* Returns the HTTP status for a request that carry_engine_submit refused. */
int carry_serve_status_of(carry_status status, const char *message);

/* run.c */
void carry_serve_command_post(carry_lm_server *server, carry_serve_command *command);
/* The engine's callback; user is the carry_serve_run. */
bool carry_serve_on_event(void *user, const carry_engine_event *event);

/* texts.c, states.c: handle jobs. */
void carry_serve_tokenize_text(carry_serve_preparer *preparer, carry_serve_job *job);
void carry_serve_detokenize(carry_serve_preparer *preparer, carry_serve_job *job);
void carry_serve_state_save(carry_serve_preparer *preparer, carry_serve_job *job);
void carry_serve_state_load(carry_serve_preparer *preparer, carry_serve_job *job);
void carry_serve_state_delete(carry_serve_preparer *preparer, carry_serve_job *job);
void carry_serve_state_list(carry_serve_preparer *preparer, carry_serve_job *job);
/* True for a name of 1 to 64 letters, digits, '.', '_' and '-' that begins with a letter or digit. */
bool carry_serve_is_name(const char *name);

/* defaults.c */
void carry_serve_read_defaults(carry_lm_server *server);
void carry_serve_use_defaults(const carry_lm_server *server, carry_serve_request *request);

/* metrics.c */
void carry_serve_observe(carry_serve_histogram *histogram, double seconds);
void carry_serve_write_metrics(carry_lm_server *s, carry_json_text *to);

#endif
