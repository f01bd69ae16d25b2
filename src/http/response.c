/* The connection's side of responses: created with a request, sent as the client reads, detached when the client goes.
   The queue is one buffer, guarded by the response's lock; both sides hold the lock only to copy, or to send without
   waiting. A callback runs without the lock and with `calling` set: a responder on another thread that ends the
   response waits for the callback, so that the callback's user pointer may be freed afterwards. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "http/http_internal.h"
#include "http/response.h"

carry_http_response *carry_http_response_new(carry_http_server *server, const carry_http_request *request) {
    carry_http_response *response = calloc(1, sizeof *response);
    if (response == NULL) {
        return NULL;
    }
    bool allowed = request->origin != NULL && carry_http_allows_origin(server, request->origin);
    (void)pthread_mutex_init(&response->lock, NULL);
    (void)pthread_cond_init(&response->returned, NULL);
    response->holders = 2;
    response->thread = pthread_self();
    response->server = server;
    response->queue_limit = server->options.queue;
    response->write_error = server->options.write_error;
    response->user = server->options.user;
    response->is_head = strcmp(request->method, "HEAD") == 0;
    response->is_http10 = request->is_http10;
    response->path = strdup(request->path);
    if (response->path == NULL) {
        response->holders = 1;
        carry_http_release(response);
        return NULL;
    }
    if (allowed) {
        (void)carry_http_add_header(response, "Access-Control-Allow-Origin", request->origin);
        (void)carry_http_add_header(response, "Vary", "Origin");
    }
    return response;
}

void carry_http_release(carry_http_response *response) {
    (void)pthread_mutex_lock(&response->lock);
    bool last = --response->holders == 0;
    (void)pthread_mutex_unlock(&response->lock);
    if (last) {
        (void)pthread_mutex_destroy(&response->lock);
        (void)pthread_cond_destroy(&response->returned);
        free(response->path);
        free(response->out);
        free(response);
    }
}

/* The caller holds the lock, which is released while the callback runs. */
static void call(carry_http_response *response, void (*callback)(void *user)) {
    void *user = response->watch.user;
    if (callback == NULL) {
        return;
    }
    response->calling = true;
    (void)pthread_mutex_unlock(&response->lock);
    callback(user);
    (void)pthread_mutex_lock(&response->lock);
    response->calling = false;
    (void)pthread_cond_broadcast(&response->returned);
}

void carry_http_detach(carry_http_response *response) {
    (void)pthread_mutex_lock(&response->lock);
    response->server = NULL;
    if (!response->ended) {
        call(response, response->watch.gone);
    }
    (void)pthread_mutex_unlock(&response->lock);
    carry_http_release(response);
}

bool carry_http_has_output(carry_http_response *response) {
    (void)pthread_mutex_lock(&response->lock);
    bool has = response->sent < response->length || response->ended || response->failed;
    (void)pthread_mutex_unlock(&response->lock);
    return has;
}

/* Returns false if the connection has failed. */
static bool send_some(carry_http_response *response, int file, bool *blocked) {
    while (response->sent < response->length) {
        ssize_t sent =
            send(file, response->out + response->sent, response->length - response->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            *blocked = true;
            return true;
        }
        if (sent <= 0) {
            return false;
        }
        response->sent += (size_t)sent;
    }
    response->sent = response->length = 0;
    return true;
}

carry_http_flush carry_http_send_queued(carry_http_response *response, int file, bool *progress) {
    bool blocked = false;
    (void)pthread_mutex_lock(&response->lock);
    size_t waiting = response->length - response->sent;
    bool good = !response->failed && send_some(response, file, &blocked);
    *progress = response->begun && response->length - response->sent < waiting;
    if (good && !blocked && response->full && !response->ended) {
        response->full = false;
        call(response, response->watch.drained);
        blocked = response->length > 0; /* written by the callback: sent when the socket is writable again */
    }
    bool ended = response->ended;
    (void)pthread_mutex_unlock(&response->lock);
    return !good     ? CARRY_HTTP_FLUSH_FAILED
           : blocked ? CARRY_HTTP_FLUSH_BLOCKED
           : ended   ? CARRY_HTTP_FLUSH_DONE
                     : CARRY_HTTP_FLUSH_WAIT;
}
