/* A request of the language model server, from JSON to the events of its answer.

       body --dialect->parse--> carry_serve_request --chat template, tokenizer--> engine, one request per choice
       engine --tokens, text--> parser --parts--> dialect->part (streamed) or choice (whole) --dialect--> client

   A dialect is one of the HTTP interfaces: OpenAI's chat and text completions (openai_*.c), Anthropic's messages. All
   dialects fill the same request, and each writes the same parts in its own form. Each choice has two modules:

   - Constraint: carry_serve_constrain (constrain.h) makes it from `format` and `tool_choice`, if these
     restrict the answer. The engine's thread asks it before each token of the choice which tokens may follow.
   - Parser: carry_serve_parser_open (parser.h) makes it from the request and the prompt. It splits the text of the
     choice into content, reasoning and tool calls.

   Threads: the HTTP thread takes bodies; preparing threads parse, render and tokenize; the engine's thread runs steps
   and masks; the output thread parses texts and writes answers. A request does not change once it is submitted. */
#ifndef CARRY_SERVE_REQUEST_H
#define CARRY_SERVE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carry/engine.h"
#include "core/json.h"
#include "core/json_write.h"

#define CARRY_SERVE_CHOICES 64 /* largest n */
#define CARRY_SERVE_STOPS 64   /* largest number of stop texts */
#define CARRY_SERVE_STOP_BYTES 4096
#define CARRY_SERVE_BIASES 4096 /* largest number of logit_bias entries */
#define CARRY_SERVE_FIELD 128

/* Why a request is refused; status 0: it is not refused. */
typedef struct carry_serve_refusal {
    int status;                    /* HTTP status */
    const char *type;              /* a constant such as "invalid_request_error"; NULL: chosen by the status */
    const char *code;              /* a constant such as "context_length_exceeded"; NULL: none */
    char field[CARRY_SERVE_FIELD]; /* the field concerned, such as "messages[2].content"; "": none */
    char message[512];
} carry_serve_refusal;

/* Fills in the refusal unless it is already set. Always returns false. */
bool carry_serve_refuse(carry_serve_refusal *refusal, int status, const char *field, const char *format, ...)
    CARRY_PRINTF(4, 5);

typedef enum carry_serve_format_kind {
    CARRY_FORMAT_TEXT,        /* no constraint */
    CARRY_FORMAT_JSON_OBJECT, /* any JSON object */
    CARRY_FORMAT_JSON_SCHEMA, /* `schema` */
    CARRY_FORMAT_REGEX,       /* `pattern` */
} carry_serve_format_kind;

typedef struct carry_serve_format {
    carry_serve_format_kind kind;
    const carry_json *schema; /* points into the request's body */
    const char *pattern;
    size_t pattern_length;
} carry_serve_format;

typedef enum carry_serve_tool_choice {
    CARRY_TOOLS_AUTO,
    CARRY_TOOLS_NONE,     /* the model does not see the tools */
    CARRY_TOOLS_REQUIRED, /* a tool must be called */
    CARRY_TOOLS_NAMED,    /* tool_name must be called */
} carry_serve_tool_choice;

typedef struct carry_serve_dialect carry_serve_dialect;

typedef struct carry_serve_request {
    const carry_serve_dialect *dialect;
    carry_json *body;  /* owned; pointers without an owner of their own point into it */
    const char *model; /* the name that the client gave, or NULL */

    /* The prompt: the variables of a chat template, a text, or tokens. */
    carry_json *variables; /* owned: an object with messages, tools and others (tokenizer/chat.h); NULL: not a chat */
    const char *text;      /* not NUL-terminated */
    size_t text_length;
    int64_t *ids; /* owned */
    int64_t id_count;

    int64_t choices;    /* n */
    int64_t max_tokens; /* -1: up to the limit of the context */
    double temperature, top_p, min_p, repetition;
    double frequency, presence; /* penalties */
    int64_t top_k;
    uint64_t seed;
    bool has_seed;
    int logprobs; /* as in carry_engine_request; -1: none */
    bool ignores_ends;
    const char *stops[CARRY_SERVE_STOPS];
    int64_t stop_count;
    int64_t *bias_tokens; /* owned */
    float *biases;        /* owned */
    int64_t bias_count;

    bool is_streamed, includes_usage;
    bool echoes;         /* text completions: the prompt is part of the answer */
    bool has_no_opening; /* chats: the template does not open an answer (add_generation_prompt is false) */

    const carry_json *tools; /* a list in OpenAI's form ({type, function}), or NULL; in `variables` or in `body` */
    carry_serve_tool_choice tool_choice;
    const char *tool_name;
    bool no_parallel_tools; /* at most one call */
    carry_serve_format format;
} carry_serve_request;

/* Sets the defaults of all fields. */
void carry_serve_request_init(carry_serve_request *request, const carry_serve_dialect *dialect);
void carry_serve_request_free(carry_serve_request *request);

/* A part of an answer, emitted by a parser. */
typedef enum carry_serve_part_kind {
    CARRY_PART_TEXT,
    CARRY_PART_REASONING,
    CARRY_PART_CALL,      /* a tool call begins; `call`, `id` and `name` are set */
    CARRY_PART_ARGUMENTS, /* more JSON text of the arguments of call number `call` */
} carry_serve_part_kind;

typedef struct carry_serve_part {
    carry_serve_part_kind kind;
    const char *text; /* UTF-8, not NUL-terminated */
    size_t length;
    int call;              /* number of the tool call in its choice, from 0 */
    const char *id, *name; /* with CARRY_PART_CALL; NUL-terminated */
} carry_serve_part;

typedef void (*carry_serve_emit)(void *user, const carry_serve_part *part);

/* A generated token, kept if log probabilities were requested. */
typedef struct carry_serve_token {
    int32_t id;
    float logprob;
    int64_t at; /* bytes of the text before it */
    int top_count;
    int32_t top[20];
    float top_logprob[20];
} carry_serve_token;

typedef struct carry_serve_call {
    char *id, *name;
    carry_json_text arguments;
} carry_serve_call;

/* A choice so far. In a streamed answer, texts and the arguments of calls are not collected, and `tokens` are those
   that were not reported yet. */
typedef struct carry_serve_choice {
    int64_t index;
    carry_json_text text, reasoning; /* raw bytes, not escaped */
    carry_serve_call *calls;
    int call_count;
    carry_serve_token *tokens;
    size_t token_count, token_capacity;
    int64_t text_length;   /* bytes of text so far, before it is split into parts */
    int block, block_kind; /* in Anthropic's streams: the current content block */
    bool is_ended;
    carry_engine_reason reason;
    int64_t stop; /* with CARRY_REASON_STOP: the index of the stop text */
    int64_t completion_tokens, cached_tokens;
} carry_serve_choice;

typedef struct carry_serve_answer carry_serve_answer; /* answer.h: the client, the choices, the counts */

/* One HTTP interface. parse runs on a preparing thread, write_error on any thread, all others on the output thread. */
struct carry_serve_dialect {
    const char *name; /* label in /metrics */
    /* Fills `request` from its body. Returns false with a refusal if the body is invalid. */
    bool (*parse)(carry_ctx *ctx, carry_serve_request *request, carry_serve_refusal *refusal);
    /* Writes a whole answer. */
    void (*write)(carry_serve_answer *answer, carry_json_text *body);
    /* Events of a streamed answer, sent with carry_serve_send. begin: before the first part of any choice. part: one
       part of a choice. end_choice: the choice has its finish reason. end: all choices have ended. */
    void (*begin)(carry_serve_answer *answer);
    void (*part)(carry_serve_answer *answer, carry_serve_choice *choice, const carry_serve_part *part);
    void (*end_choice)(carry_serve_answer *answer, carry_serve_choice *choice);
    void (*end)(carry_serve_answer *answer);
    /* Reports a failure after the first event. */
    void (*fail)(carry_serve_answer *answer, const carry_serve_refusal *refusal);
    /* Writes the body of an error response. */
    void (*write_error)(const carry_serve_refusal *refusal, carry_json_text *body);
};

/* For dialects: read fields of JSON objects. If the field is absent or null, the value is unchanged. Return false with
   a refusal of 400 that names the field. */
bool carry_serve_read_number(const carry_json *object, const char *key, double *value, double least, double most,
                             carry_serve_refusal *refusal);
bool carry_serve_read_integer(const carry_json *object, const char *key, int64_t *value, int64_t least, int64_t most,
                              carry_serve_refusal *refusal);
bool carry_serve_read_bool(const carry_json *object, const char *key, bool *value, carry_serve_refusal *refusal);
/* *value is NULL if absent; texts with NUL characters are refused. */
bool carry_serve_read_text(const carry_json *object, const char *key, const char **value, carry_serve_refusal *refusal);
/* Adds a stop text; an empty one is dropped. */
bool carry_serve_add_stop(carry_serve_request *request, const carry_json *stop, const char *key,
                          carry_serve_refusal *refusal);
/* Reads a text or a list of texts; empty ones are dropped. */
bool carry_serve_read_stops(const carry_json *object, const char *key, carry_serve_request *request,
                            carry_serve_refusal *refusal);
/* Checks the kind of a member: CARRY_JSON_STRING (without zero bytes), CARRY_JSON_ARRAY or CARRY_JSON_OBJECT. An absent
   or null member is refused if is_required. path: the name of the object, such as "messages[2]"; the refusal names
   path.key. */
bool carry_serve_check(const carry_json *object, const char *path, const char *key, carry_json_kind kind,
                       bool is_required, carry_serve_refusal *refusal);
/* Returns the member, or NULL if it is absent or null. */
const carry_json *carry_serve_member(const carry_json *object, const char *key);

#endif
