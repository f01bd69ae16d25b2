/* An answer in progress: the client, the choices, the counts. Owned by the output thread, except for members marked
   otherwise. */
#ifndef CARRY_SERVE_ANSWER_H
#define CARRY_SERVE_ANSWER_H

#include <stdatomic.h>

#include "http/http.h"
#include "serve/constrain.h"
#include "serve/parser.h"
#include "serve/request.h"

struct carry_lm_server;

/* A choice, and its state outside the dialect. */
typedef struct carry_serve_run {
    carry_serve_answer *answer;
    carry_serve_choice choice;
    carry_serve_parser *parser;
    carry_serve_constraint *constraint; /* used by the engine's thread; or NULL */
    atomic_ullong id;                   /* id of the engine's request; 0: not submitted */
    struct carry_serve_message *last;   /* reserved for its end, in case memory runs out. Engine's thread */
} carry_serve_run;

struct carry_serve_answer {
    struct carry_lm_server *server;
    carry_http_response *response;
    carry_serve_request request;
    const char *model; /* the served model's name */
    char id[40];       /* the id without its prefix ("chatcmpl-"): 32 hexadecimal digits */
    int64_t created;   /* seconds since 1970 */
    int64_t prompt_tokens;
    char *prompt; /* the rendered chat, for parsers; or NULL */
    size_t prompt_length;
    carry_serve_run *runs; /* [request.choices] */
    int64_t unfinished;    /* choices that have not ended, plus one while choices are being submitted */
    bool has_begun;        /* streamed: the response has begun */
    bool is_over;          /* nothing more is written: the client has gone, or the answer has failed */
    carry_serve_refusal refusal;
    /* Output that the client has not read yet. */
    unsigned char *backlog;
    size_t backlog_length, backlog_capacity;
    bool is_blocked; /* waiting for `drained` */
    bool is_ending;  /* end the response when drained */
    double started;
    double last_part;        /* seconds, for /metrics */
    atomic_bool is_gone;     /* set by any thread */
    atomic_bool is_draining; /* the message below is in the output thread's queue */
    struct carry_serve_message *drained;
};

int64_t carry_serve_completion_tokens(const carry_serve_answer *answer);
int64_t carry_serve_cached_tokens(const carry_serve_answer *answer);
/* Sends an event of a streamed answer. name may be NULL (OpenAI's events have none). */
void carry_serve_send(carry_serve_answer *answer, const char *name, const carry_json_text *data);
void carry_serve_send_raw(carry_serve_answer *answer, const char *name, const char *data);
/* Appends the text of a token as a JSON string. The token is decoded alone, with U+FFFD for bytes that are not a
   character. */
void carry_serve_put_token(const carry_serve_answer *answer, carry_json_text *to, const char *key, int32_t id);
/* Appends the bytes of a token as a list of numbers; null without a tokenizer. */
void carry_serve_put_token_bytes(const carry_serve_answer *answer, carry_json_text *to, const char *key, int32_t id);
/* Returns the number of kept tokens that may be reported now, as some of their text is in the answer; at the end, all
   of them, except those that a stop text has cut off. */
size_t carry_serve_ready_tokens(const carry_serve_choice *choice);
void carry_serve_drop_tokens(carry_serve_choice *choice, size_t count); /* after they were reported */

#endif
