/* WebSockets. One message is sent at a time, and libwebsockets calls again when the socket can take another. So nothing
   is queued here for a client that does not read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "http/http_internal.h"

#define STALLED 1.0    /* seconds without taking a message, */
#define UNANSWERED 3.0 /* or without answering a ping, after which a socket is silent */
#define PING_EVERY 10.0
#define TRY_AGAIN_LATER 1013

/* Appends the next part of a message. Returns false if it exceeds the limit, or if out of memory. */
static bool collect(carry_http_socket *socket, const void *bytes, size_t length) {
    size_t limit = socket->endpoint->message_limit;
    if (length > limit || socket->length > limit - length) {
        return false;
    }
    if (socket->length + length + 1 > socket->capacity) {
        size_t capacity = 2 * (socket->length + length) + 1;
        char *grown = realloc(socket->message, capacity);
        if (grown == NULL) {
            return false;
        }
        socket->message = grown;
        socket->capacity = capacity;
    }
    if (length > 0) {
        memcpy(socket->message + socket->length, bytes, length);
    }
    socket->length += length;
    socket->message[socket->length] = '\0';
    return true;
}

static void drop_message(carry_http_socket *socket) {
    free(socket->message);
    socket->message = NULL;
    socket->length = socket->capacity = 0;
}

static int close_now(carry_http_socket *socket) {
    lws_close_reason(socket->wsi, (enum lws_close_status)socket->close_status,
                     (unsigned char *)(uintptr_t)socket->close_reason, strlen(socket->close_reason));
    return -1;
}

static void ask(carry_http_socket *socket) {
    if (socket->waiting == 0.0) {
        socket->waiting = carry_seconds();
    }
    (void)lws_callback_on_writable(socket->wsi);
}

void carry_http_socket_ask(carry_http_socket *socket) {
    ask(socket);
}

void carry_http_ask_all(carry_http_server *server) {
    for (carry_http_socket *one = server->sockets; one != NULL; one = one->next) {
        ask(one);
    }
}

void carry_http_socket_close(carry_http_socket *socket, int status, const char *reason) {
    socket->close_status = status;
    socket->close_reason = reason;
    ask(socket); /* the status can be sent only when the socket is writable */
}

/* Finds the endpoint from the path that connection.c has written: its index. */
static const carry_http_endpoint *endpoint_of(const carry_http_server *server, struct lws *wsi) {
    char path[32] = "";
    size_t index = server->options.endpoint_count;
    if (lws_hdr_copy(wsi, path, (int)sizeof path, WSI_TOKEN_GET_URI) <= 0 || sscanf(path, "/%zu", &index) != 1 ||
        index >= server->options.endpoint_count) {
        return NULL;
    }
    return &server->options.endpoints[index];
}

static void unlink_socket(carry_http_server *server, carry_http_socket *socket) {
    if (socket->before != NULL) {
        *socket->before = socket->next;
        if (socket->next != NULL) {
            socket->next->before = socket->before;
        }
        socket->before = NULL;
        if (socket->address != NULL) {
            socket->address->sockets--;
        }
        socket->endpoint->closed(server->options.user, socket->data);
    }
}

static int open_socket(carry_http_server *server, struct lws *wsi, carry_http_socket *socket) {
    const carry_http_endpoint *endpoint = endpoint_of(server, wsi);
    *socket = (carry_http_socket){.wsi = wsi,
                                  .server = server,
                                  .endpoint = endpoint,
                                  .address = lws_get_opaque_user_data(wsi),
                                  .active = carry_seconds(),
                                  .wants_ping = true};
    if (endpoint == NULL) {
        return -1;
    }
    socket->next = server->sockets;
    socket->before = &server->sockets;
    if (socket->next != NULL) {
        socket->next->before = &socket->next;
    }
    server->sockets = socket;
    if (socket->address != NULL) {
        socket->address->sockets++;
    }
    socket->data = endpoint->opened(server->options.user, socket);
    ask(socket);
    return 0;
}

static void close_socket(carry_http_server *server, carry_http_socket *socket) {
    drop_message(socket);
    unlink_socket(server, socket);
}

/* Sends a ping, unless one is unanswered or the last answer came within these seconds. */
static void want_ping(carry_http_socket *socket, double now, double seconds) {
    if (!socket->wants_ping && socket->active >= socket->pinged && now - socket->active > seconds) {
        socket->wants_ping = true;
        ask(socket);
    }
}

static bool is_stalled(const carry_http_socket *socket, double now) {
    return socket->waiting > 0.0 && now - socket->waiting > STALLED;
}

/* True if nothing shows that a client is there: it takes nothing, has not answered the last ping, or has sent
   nothing at all. A browser answers pings by itself. */
static bool is_silent(const carry_http_socket *socket, double now) {
    const bool is_unanswered = socket->active < socket->pinged && now - socket->pinged > UNANSWERED;
    return is_stalled(socket, now) || is_unanswered || !socket->has_spoken;
}

/* True if a is to be closed before b: sockets of the address with the most come first, then stalled ones, then those
   that have sent nothing at all, then the one that sent something longest ago. */
static bool closes_before(const carry_http_socket *a, const carry_http_socket *b, double now) {
    if (a->address->sockets != b->address->sockets) {
        return a->address->sockets > b->address->sockets;
    }
    if (is_stalled(a, now) != is_stalled(b, now)) {
        return is_stalled(a, now);
    }
    return a->has_spoken != b->has_spoken ? !a->has_spoken : a->active < b->active;
}

bool carry_http_drop_socket(carry_http_server *server, const carry_http_endpoint *endpoint, int least) {
    carry_http_socket *silent = NULL;
    carry_http_socket *active = NULL;
    int total = 0;
    double now = carry_seconds();
    for (carry_http_socket *one = server->sockets; one != NULL; one = one->next, total++) {
        if (one->address == NULL || one->address->sockets <= least || one->close_status != 0 ||
            (endpoint != NULL && one->endpoint != endpoint)) {
            continue;
        }
        carry_http_socket **chosen = is_silent(one, now) ? &silent : &active;
        if (chosen == &active) {
            want_ping(one, now, UNANSWERED); /* it may be silent at the next try */
        }
        *chosen = *chosen == NULL || closes_before(one, *chosen, now) ? one : *chosen;
    }
    const bool holds_most = active != NULL && 2 * active->address->sockets > total;
    carry_http_socket *closing = silent != NULL ? silent : holds_most ? active : NULL;
    if (closing == NULL) {
        return false;
    }
    carry_log(server->ctx, CARRY_LOG_INFO, "%s WebSocket of an address with %d of %d is closed for another address",
              closing == silent ? "a silent" : "an active", closing->address->sockets, total);
    server->counts.stalled++;
    unlink_socket(server, closing);
    drop_message(closing);
    carry_http_socket_close(closing, TRY_AGAIN_LATER, "closed for a client of another address");
    lws_set_timeout(closing->wsi, PENDING_TIMEOUT_KILLED_BY_PARENT, 1); /* seconds until it is killed */
    return true;
}

bool carry_http_socket_replace(carry_http_socket *newcomer) {
    return newcomer->address != NULL &&
           carry_http_drop_socket(newcomer->server, newcomer->endpoint, newcomer->address->sockets);
}

static int refuse(carry_http_server *server, carry_http_socket *socket, int status, const char *reason) {
    server->counts.refused++;
    carry_log(server->ctx, CARRY_LOG_INFO, "message refused, WebSocket closed: %s", reason);
    socket->close_status = status;
    socket->close_reason = reason;
    return close_now(socket);
}

static void note_activity(carry_http_socket *socket) {
    socket->active = carry_seconds();
    socket->has_spoken = true;
}

static int receive(carry_http_server *server, carry_http_socket *socket, const void *bytes, size_t length) {
    size_t limit = socket->endpoint->message_limit, more = lws_remaining_packet_payload(socket->wsi);
    if (socket->close_status != 0) {
        return 0;
    }
    if (lws_frame_is_binary(socket->wsi) && !socket->endpoint->binary) {
        return refuse(server, socket, LWS_CLOSE_STATUS_UNACCEPTABLE_OPCODE, "expected text messages");
    }
    if (length > limit || more > limit - length || !collect(socket, bytes, length)) {
        return refuse(server, socket, LWS_CLOSE_STATUS_MESSAGE_TOO_LARGE, "the message is too large");
    }
    note_activity(socket);
    if (more == 0 && lws_is_final_fragment(socket->wsi)) {
        if (socket->length > 0) {
            server->counts.messages++;
            socket->endpoint->message(server->options.user, socket->data, socket->message, socket->length);
        }
        drop_message(socket);
    }
    return 0;
}

static int send_ping(carry_http_socket *socket, double now) {
    unsigned char payload[LWS_PRE + 1] = {0}; /* one byte: libwebsockets 4.1 does not report answers without any */
    socket->wants_ping = false;
    socket->pinged = now;
    if (lws_write(socket->wsi, payload + LWS_PRE, 1, LWS_WRITE_PING) < 0) {
        return -1;
    }
    ask(socket); /* for a message that waits */
    return 0;
}

static int send_next(carry_http_server *server, carry_http_socket *socket) {
    if (socket->close_status != 0) {
        return close_now(socket);
    }
    const double now = carry_seconds();
    socket->waiting = 0.0;
    if (socket->wants_ping || (socket->active >= socket->pinged && now - socket->pinged > PING_EVERY)) {
        return send_ping(socket, now);
    }
    if (socket->endpoint->writable(server->options.user, socket->data)) {
        ask(socket);
    }
    return socket->failed ? -1 : 0;
}

int carry_http_socket_callback(carry_http_server *server, struct lws *wsi, enum lws_callback_reasons reason,
                               carry_http_socket *socket, void *in, size_t length) {
    switch ((int)reason) {
    case LWS_CALLBACK_ESTABLISHED:
        return open_socket(server, wsi, socket);
    case LWS_CALLBACK_RECEIVE:
        return receive(server, socket, in, length);
    case LWS_CALLBACK_RECEIVE_PONG:
        note_activity(socket);
        return 0;
    case LWS_CALLBACK_SERVER_WRITEABLE:
        return send_next(server, socket);
    case LWS_CALLBACK_CLOSED:
        close_socket(server, socket);
        return 0;
    default:
        return 0;
    }
}

unsigned char *carry_http_socket_buffer(carry_http_socket *socket, size_t length) {
    carry_http_server *server = socket->server;
    if (server->out_capacity < LWS_PRE + length) {
        size_t capacity = LWS_PRE + length + length / 2;
        unsigned char *grown = realloc(server->out, capacity);
        if (grown == NULL) {
            socket->failed = true;
            return NULL;
        }
        server->out = grown;
        server->out_capacity = capacity;
    }
    return server->out + LWS_PRE;
}

bool carry_http_socket_send(carry_http_socket *socket, bool binary, size_t length) {
    int sent =
        lws_write(socket->wsi, socket->server->out + LWS_PRE, length, binary ? LWS_WRITE_BINARY : LWS_WRITE_TEXT);
    socket->failed |= sent < 0;
    return sent >= 0;
}

void carry_http_drop_stalled(carry_http_server *server) {
    double now = carry_seconds();
    for (carry_http_socket *one = server->sockets; one != NULL; one = one->next) {
        if (one->waiting > 0.0 && now - one->waiting > server->options.patience) {
            carry_log(server->ctx, CARRY_LOG_INFO, "a WebSocket that took nothing for %.0f s is closed",
                      now - one->waiting);
            server->counts.stalled++;
            one->waiting = now + 1e9; /* once */
            lws_set_timeout(one->wsi, PENDING_TIMEOUT_KILLED_BY_PARENT, LWS_TO_KILL_ASYNC);
        }
    }
}
