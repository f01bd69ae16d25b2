/* /v1/states: saves states of conversations as files, and loads them by name. Saving runs the conversation through the
   model (using cached prefixes) and writes its state. Loading adds the state to the prefix cache: requests whose
   prompts begin with the conversation continue from the state. Names are checked, so that every path is inside the
   folder of states. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/context.h"
#include "core/file.h"
#include "serve/openai.h"
#include "serve/server_internal.h"

#define SUFFIX ".state"
#define NAME_MOST 64

bool carry_serve_is_name(const char *name) {
    size_t length = 0;
    for (; name[length] != '\0'; length++) {
        const char c = name[length];
        const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (length == NAME_MOST || (!is_plain && (length == 0 || strchr("._-", c) == NULL))) {
            return false;
        }
    }
    return length > 0;
}

/* A request about a state, passed to the engine's thread. */
typedef struct state_work {
    carry_serve_command command;
    carry_lm_server *server;
    carry_http_response *response;
    carry_serve_request request; /* for saving only */
    uint64_t state;
    carry_engine_reason reason;
    int64_t tokens, cached;
    char failure[160];
    char name[NAME_MOST + 1];
    char path[CARRY_FILE_PATH];
} state_work;

static void free_work(state_work *w) {
    carry_serve_request_free(&w->request);
    free(w);
}

static void reply_state(state_work *w, bool is_loaded) {
    carry_json_text text = {0};
    struct stat about;
    carry_json_begin(&text, NULL, '{');
    carry_json_add_text(&text, "object", "state");
    carry_json_add_text(&text, "name", w->name);
    carry_json_add_integer(&text, "tokens", w->tokens);
    if (!is_loaded) {
        carry_json_add_integer(&text, "cached_tokens", w->cached);
    }
    if (stat(w->path, &about) == 0) {
        carry_json_add_integer(&text, "bytes", (int64_t)about.st_size);
    }
    carry_json_end(&text, '}');
    carry_serve_reply_json(w->server, w->response, 200, &text);
    free_work(w);
}

static void refuse_work(state_work *w, carry_serve_refusal *refusal) {
    carry_serve_reply_refusal(w->server, w->response, NULL, refusal);
    free_work(w);
}

static int status_of(carry_status status) {
    switch (status) {
    case CARRY_ENOTFOUND:
        return 404;
    case CARRY_EFORMAT:
    case CARRY_EARGUMENT:
    case CARRY_EUNSUPPORTED:
        return 409;
    case CARRY_ESIZE:
        return 507;
    default:
        return 500;
    }
}

/* Makes the path of a name. Returns false with a refusal. */
static bool find_path(const carry_lm_server *s, const char *name, char path[CARRY_FILE_PATH],
                      carry_serve_refusal *refusal) {
    if (s->states == NULL) {
        return carry_serve_refuse(refusal, 501, "", "states are not kept: start the server with --states DIR");
    }
    if (name == NULL || !carry_serve_is_name(name)) {
        return carry_serve_refuse(refusal, 400, "name",
                                  "name: expected 1 to %d letters, digits, '.', '_' and '-', a letter or digit first",
                                  NAME_MOST);
    }
    if (snprintf(path, CARRY_FILE_PATH, "%s/%s%s", s->states, name, SUFFIX) >= CARRY_FILE_PATH) {
        return carry_serve_refuse(refusal, 500, "", "the folder of states has a name that is too long");
    }
    return true;
}

/* Saving is a request of the engine that generates nothing; its state is written when it ends. */

static void finish_save(carry_lm_server *s, carry_serve_command *command) {
    state_work *w = (state_work *)command;
    carry_serve_refusal refusal = {0};
    carry_status status = CARRY_OK;
    if (w->state == 0) {
        const char *reason = w->reason == CARRY_REASON_CANCELLED ? "the request was cancelled before its text was read"
                                                                 : "out of memory: the state to save";
        (void)carry_serve_refuse(&refusal, 500, "", "%s", w->failure[0] != '\0' ? w->failure : reason);
    } else {
        (void)mkdir(s->states, 0700);
        status = carry_engine_state_save(s->engine, w->state, w->path);
        if (status != CARRY_OK) {
            (void)carry_serve_refuse(&refusal, status_of(status), "", "%s", carry_ctx_error(s->engine->ctx));
        }
        (void)carry_engine_state_drop(s->engine, w->state);
    }
    if (refusal.status != 0) {
        refuse_work(w, &refusal);
    } else {
        reply_state(w, false);
    }
}

static bool on_save_event(void *user, const carry_engine_event *event) {
    state_work *w = user;
    if (event->token < 0) {
        w->state = event->state;
        w->tokens = event->prompt_tokens;
        w->cached = event->cached_tokens;
        w->reason = event->reason;
        (void)snprintf(w->failure, sizeof w->failure, "%s", event->message);
        w->command.run = finish_save; /* runs later, not inside the step that reports the event */
        carry_serve_command_post(w->server, &w->command);
    }
    return true;
}

/* {"name": ..., "messages": [...]} or {"name": ..., "prompt": ...}. */
static bool read_save(carry_serve_preparer *p, carry_serve_job *job, state_work *w, carry_serve_refusal *refusal) {
    carry_serve_request *r = &w->request;
    const char *name;
    char *prompt = NULL;
    size_t length;
    carry_serve_request_init(r, NULL);
    r->body = carry_serve_parse_body(p, job, refusal);
    if (r->body == NULL || !carry_serve_read_text(r->body, "name", &name, refusal) ||
        !find_path(p->server, name, w->path, refusal)) {
        return false;
    }
    (void)snprintf(w->name, sizeof w->name, "%s", name);
    const carry_json *text = carry_serve_member(r->body, "prompt");
    if (carry_serve_member(r->body, "messages") != NULL) {
        r->has_no_opening = true; /* the state after the last message is saved */
        if (!carry_serve_openai_format(r, refusal) || !carry_serve_openai_messages(p->ctx, r, refusal)) {
            return false;
        }
    } else if (text == NULL || text->kind != CARRY_JSON_STRING) {
        return carry_serve_refuse(refusal, 400, "messages", "expected messages, or a text as prompt");
    } else {
        r->text = text->as.text.bytes;
        r->text_length = text->as.text.length;
    }
    const bool is_done = carry_serve_tokenize(p, r, &prompt, &length, refusal);
    free(prompt);
    return is_done;
}

void carry_serve_state_save(carry_serve_preparer *p, carry_serve_job *job) {
    carry_serve_refusal refusal = {0};
    state_work *w = calloc(1, sizeof *w);
    uint64_t id;
    if (w == NULL) {
        (void)carry_serve_refuse(&refusal, 500, "", "out of memory");
        carry_serve_reply_refusal(p->server, job->response, NULL, &refusal);
        return;
    }
    w->server = p->server;
    w->response = job->response;
    if (!read_save(p, job, w, &refusal)) {
        refuse_work(w, &refusal);
        return;
    }
    carry_serve_unwatch(job);
    const carry_engine_request request = {CARRY_INIT(carry_engine_request),
                                          .ids = w->request.ids,
                                          .id_count = w->request.id_count,
                                          .logprobs = -1,
                                          .keep_state = true,
                                          .on_event = on_save_event,
                                          .user = w};
    const carry_status status = carry_engine_submit(p->ctx, p->server->engine, &request, &id);
    if (status != CARRY_OK) { /* on success, the engine has copied the ids, and the end event frees w */
        (void)carry_serve_refuse(&refusal, carry_serve_status_of(status, carry_ctx_error(p->ctx)), "", "%s",
                                 carry_ctx_error(p->ctx));
        refuse_work(w, &refusal);
    }
}

/* POST /v1/states/NAME/load. */

static void load(carry_lm_server *s, carry_serve_command *command) {
    state_work *w = (state_work *)command;
    carry_serve_refusal refusal = {0};
    carry_status status = carry_engine_state_load(s->engine, &w->state, w->path);
    if (status == CARRY_OK) {
        status = carry_engine_state_length(s->engine, w->state, &w->tokens);
        status = status == CARRY_OK ? carry_engine_state_cache(s->engine, w->state) : status;
        if (status != CARRY_OK) {
            (void)carry_serve_refuse(&refusal, status_of(status), "", "%s", carry_ctx_error(s->engine->ctx));
        }
        (void)carry_engine_state_drop(s->engine, w->state);
    } else {
        (void)carry_serve_refuse(&refusal, status_of(status), "name", "state '%s': %s", w->name,
                                 carry_ctx_error(s->engine->ctx));
    }
    if (refusal.status != 0) {
        refuse_work(w, &refusal);
    } else {
        reply_state(w, true);
    }
}

void carry_serve_state_load(carry_serve_preparer *p, carry_serve_job *job) {
    carry_serve_refusal refusal = {0};
    char path[CARRY_FILE_PATH];
    char *slash = strchr(job->rest, '/');
    bool is_there = slash != NULL && strcmp(slash, "/load") == 0;
    if (is_there) {
        *slash = '\0';
        is_there = find_path(p->server, job->rest, path, &refusal);
    } else {
        (void)carry_serve_refuse(&refusal, 404, "", "expected /v1/states/NAME/load");
    }
    if (is_there && access(path, R_OK) != 0) {
        is_there = carry_serve_refuse(&refusal, 404, "name", "there is no state '%s'", job->rest);
    }
    state_work *w = is_there ? calloc(1, sizeof *w) : NULL;
    if (w == NULL) {
        (void)carry_serve_refuse(&refusal, 500, "", "out of memory");
        carry_serve_reply_refusal(p->server, job->response, NULL, &refusal);
        return;
    }
    w->server = p->server;
    w->response = job->response;
    w->command.run = load;
    (void)snprintf(w->name, sizeof w->name, "%s", job->rest);
    memcpy(w->path, path, sizeof path);
    carry_serve_unwatch(job);
    carry_serve_command_post(p->server, &w->command);
}

void carry_serve_state_delete(carry_serve_preparer *p, carry_serve_job *job) {
    carry_serve_refusal refusal = {0};
    char path[CARRY_FILE_PATH];
    carry_json_text text = {0};
    bool is_done = find_path(p->server, job->rest, path, &refusal);
    if (is_done && unlink(path) != 0) {
        is_done = errno == ENOENT
                      ? carry_serve_refuse(&refusal, 404, "name", "there is no state '%s'", job->rest)
                      : carry_serve_refuse(&refusal, 500, "name", "state '%s': %s", job->rest, strerror(errno));
    }
    if (!is_done) {
        carry_serve_reply_refusal(p->server, job->response, NULL, &refusal);
        return;
    }
    carry_json_begin(&text, NULL, '{');
    carry_json_add_text(&text, "object", "state.deleted");
    carry_json_add_text(&text, "name", job->rest);
    carry_json_add_bool(&text, "deleted", true);
    carry_json_end(&text, '}');
    carry_serve_reply_json(p->server, job->response, 200, &text);
}

/* GET /v1/states. */

static void add_state(const carry_lm_server *s, carry_json_text *to, const char *file) {
    char path[CARRY_FILE_PATH];
    char name[NAME_MOST + sizeof SUFFIX];
    struct stat about;
    const size_t length = strlen(file);
    const size_t suffix = strlen(SUFFIX);
    if (length <= suffix || length >= sizeof name || strcmp(file + length - suffix, SUFFIX) != 0 ||
        snprintf(path, sizeof path, "%s/%s", s->states, file) >= CARRY_FILE_PATH || stat(path, &about) != 0) {
        return;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)(length - suffix), file);
    if (carry_serve_is_name(name)) {
        carry_json_begin(to, NULL, '{');
        carry_json_add_text(to, "object", "state");
        carry_json_add_text(to, "name", name);
        carry_json_add_integer(to, "bytes", (int64_t)about.st_size);
        carry_json_add_integer(to, "created", (int64_t)about.st_mtime);
        carry_json_end(to, '}');
    }
}

void carry_serve_state_list(carry_serve_preparer *p, carry_serve_job *job) {
    const carry_lm_server *s = p->server;
    carry_serve_refusal refusal = {0};
    carry_json_text text = {0};
    if (s->states == NULL) {
        (void)carry_serve_refuse(&refusal, 501, "", "states are not kept: start the server with --states DIR");
        carry_serve_reply_refusal(p->server, job->response, NULL, &refusal);
        return;
    }
    DIR *folder = opendir(s->states);
    carry_json_begin(&text, NULL, '{');
    carry_json_add_text(&text, "object", "list");
    carry_json_begin(&text, "data", '[');
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        add_state(s, &text, entry->d_name);
    }
    carry_json_end(&text, ']');
    carry_json_end(&text, '}');
    if (folder != NULL) {
        (void)closedir(folder);
    }
    carry_serve_reply_json(p->server, job->response, 200, &text);
}
