/* A connection reads the head and the body of one request, writes the response and is closed. A request for a WebSocket
   is passed to libwebsockets under a second descriptor, with a head that is written here. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "http/http_internal.h"

#define LINGER 2.0         /* seconds */
#define HEAD_SECONDS 5.0   /* limit for receiving the head of a request, if less than patience */
#define IGNORED (64 << 10) /* bytes tolerated after a request until it is answered; more closes the connection */
#define BODY_FIRST 16384   /* size of the first buffer of a body, in bytes */

void carry_http_add_connection(carry_http_server *server, struct lws *wsi, int file) {
    carry_http_connection *connection = lws_wsi_user(wsi);
    *connection = (carry_http_connection){
        .wsi = wsi, .address = server->arriving, .file = file, .since = carry_seconds(), .next = server->connections};
    connection->before = &server->connections;
    if (connection->next != NULL) {
        connection->next->before = &connection->next;
    }
    server->connections = connection;
}

static void forget(carry_http_connection *connection) {
    free(connection->body);
    connection->body = NULL;
    if (connection->before != NULL) {
        *connection->before = connection->next;
        if (connection->next != NULL) {
            connection->next->before = connection->before;
        }
        connection->before = NULL;
    }
    if (connection->response != NULL) {
        carry_http_response *response = connection->response;
        connection->response = NULL;
        carry_http_detach(response);
    }
}

void carry_http_detach_all(carry_http_server *server) {
    for (carry_http_connection *one = server->connections; one != NULL; one = one->next) {
        if (one->response != NULL) {
            carry_http_response *response = one->response;
            one->response = NULL;
            carry_http_detach(response);
        }
    }
}

/* Returns -1 if sending failed or the client has gone. */
static int send_out(carry_http_server *server, carry_http_connection *connection) {
    bool progress = false;
    carry_http_flush result = carry_http_send_queued(connection->response, connection->file, &progress);
    if (result == CARRY_HTTP_FLUSH_FAILED) {
        return -1;
    }
    if (result != CARRY_HTTP_FLUSH_BLOCKED) {
        connection->blocked = 0.0;
    } else if (connection->blocked == 0.0 || progress) {
        connection->blocked = carry_seconds();
    }
    server->has_blocked |= result == CARRY_HTTP_FLUSH_BLOCKED;
    if (result == CARRY_HTTP_FLUSH_DONE && !connection->lingering) {
        connection->lingering = true; /* closing a socket with unread input resets it, and the response is lost */
        connection->since = carry_seconds();
        (void)shutdown(connection->file, SHUT_WR);
    }
    return 0;
}

/* Gives libwebsockets a duplicate descriptor, because it closes the one that it is given. */
static int hand_over(carry_http_server *server, carry_http_connection *connection,
                     const carry_http_endpoint *endpoint) {
    char head[256];
    int length = snprintf(head, sizeof head,
                          "GET /%zu HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                          "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n",
                          (size_t)(endpoint - server->options.endpoints), connection->request.key);
    int file = dup(connection->file);
    if (file < 0) {
        return -1;
    }
    forget(connection);
    server->arriving = connection->address;
    (void)lws_adopt_socket_vhost_readbuf(server->vhost, file, head, (size_t)length); /* closes the socket if it fails */
    return -1;
}

static int upgrade(carry_http_server *server, carry_http_connection *connection, bool more) {
    const carry_http_request *request = &connection->request;
    if (strcasecmp(request->upgrade, "websocket") != 0) {
        return carry_http_refuse(server, connection, 400, "Upgrade: expected websocket");
    }
    const carry_http_endpoint *endpoint = carry_http_endpoint_of(server, request->path);
    if (endpoint == NULL) {
        return carry_http_refuse(server, connection, 404, "this path has no WebSocket");
    }
    carry_http_refusal refusal = carry_http_guard(server, connection->address, request);
    if (refusal.status != 0) {
        return carry_http_refuse(server, connection, refusal.status, refusal.message);
    }
    if (!carry_http_is_upgrade(request) || more) {
        return carry_http_refuse(server, connection, 400,
                                 "expected WebSocket version 13, and no data before the reply");
    }
    return hand_over(server, connection, endpoint);
}

/* Some clients wait up to a second for this before they send the body. */
static void send_continue(const carry_http_connection *connection) {
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (connection->request.expect != NULL && strcasecmp(connection->request.expect, "100-continue") == 0) {
        (void)send(connection->file, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

/* Makes room for more bytes of the body. The buffer grows as bytes arrive, so a large Content-Length alone costs no
   memory. */
static bool grow_body(carry_http_connection *connection) {
    if (connection->body_got < connection->body_capacity) {
        return true;
    }
    size_t capacity = connection->body_capacity > 0 ? 2 * connection->body_capacity : BODY_FIRST;
    capacity = capacity < connection->body_length ? capacity : connection->body_length;
    char *grown = realloc(connection->body, capacity + 1);
    if (grown == NULL) {
        return false;
    }
    connection->body = grown;
    connection->body_capacity = capacity;
    return true;
}

/* Calls the handler once the body is complete, and sends its answer. */
static int proceed(carry_http_server *server, carry_http_connection *connection) {
    if (connection->response == NULL && connection->body_got == connection->body_length) {
        connection->body[connection->body_length] = '\0';
        connection->request.body = connection->body;
        connection->request.body_length = connection->body_length;
        if (carry_http_handle(server, connection) != 0) {
            return -1;
        }
    }
    return connection->response != NULL ? send_out(server, connection) : 0;
}

static int refuse_head(carry_http_server *server, carry_http_connection *connection, int status, const char *message) {
    connection->request = (carry_http_request){.method = "GET", .path = "/", .query = "", .rest = "", .body = ""};
    return carry_http_refuse(server, connection, status, message);
}

/* Handles a complete head; the first bytes of the body may have arrived with it. */
static int take_head(carry_http_server *server, carry_http_connection *connection, size_t head) {
    size_t more = connection->length - head;
    const char *rest = connection->head + head;
    server->counts.requests++;
    carry_http_refusal refusal = carry_http_parse(&connection->request, connection->head, head);
    connection->length = head;
    if (refusal.status != 0) {
        return refuse_head(server, connection, refusal.status, refusal.message);
    }
    if (connection->request.upgrade != NULL) {
        return upgrade(server, connection, more > 0);
    }
    if (carry_http_route_request(server, connection) != 0) {
        return -1;
    }
    if (connection->response == NULL) {
        more = more < connection->body_length ? more : connection->body_length;
        if (!grow_body(connection)) { /* holds all bytes that can arrive together with a head */
            return -1;
        }
        memcpy(connection->body, rest, more);
        connection->body_got = more;
        if (more == 0) {
            send_continue(connection);
        }
    }
    return 0;
}

static int take_bytes(carry_http_server *server, carry_http_connection *connection, size_t got) {
    connection->length += got;
    size_t head = carry_http_head_length(connection->head, connection->length);
    if (head > 0) {
        return take_head(server, connection, head) != 0 ? -1 : proceed(server, connection);
    }
    bool letter = connection->head[0] >= 'A' && connection->head[0] <= 'Z'; /* TLS, for one, never ends a head */
    if (letter && connection->length < CARRY_HTTP_HEADERS) {
        return 0;
    }
    int bad = letter ? refuse_head(server, connection, 431, "the headers are larger than 8 KiB")
                     : refuse_head(server, connection, 400, "this is not an HTTP request");
    return bad != 0 ? -1 : proceed(server, connection);
}

/* Drops input after the request. The end of the input means that the client has gone. */
static int ignore(carry_http_connection *connection) {
    static _Thread_local char waste[16 << 10];
    ssize_t got = recv(connection->file, waste, sizeof waste, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return 0;
    }
    connection->ignored += got > 0 ? (size_t)got : 0;
    return got <= 0 || (!connection->lingering && connection->ignored > IGNORED) ? -1 : 0;
}

static int readable(carry_http_server *server, carry_http_connection *connection) {
    bool in_head = connection->request.method == NULL;
    if (!in_head && connection->response != NULL) {
        return ignore(connection);
    }
    if (!in_head && !grow_body(connection)) {
        return -1;
    }
    char *to = in_head ? connection->head + connection->length : connection->body + connection->body_got;
    size_t room = in_head ? CARRY_HTTP_HEADERS - connection->length : connection->body_capacity - connection->body_got;
    ssize_t got = recv(connection->file, to, room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return 0;
    }
    if (got <= 0) {
        return -1;
    }
    if (in_head) {
        return take_bytes(server, connection, (size_t)got);
    }
    connection->body_got += (size_t)got;
    return proceed(server, connection);
}

int carry_http_connection_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                                   size_t length) {
    (void)in;
    (void)length;
    carry_http_server *server = lws_context_user(lws_get_context(wsi));
    carry_http_connection *connection = user;
    switch ((int)reason) {
    case LWS_CALLBACK_RAW_ADOPT_FILE:
        carry_http_opened(server, wsi);
        return 0;
    case LWS_CALLBACK_RAW_RX_FILE:
        return connection->before != NULL ? readable(server, connection) : -1;
    case LWS_CALLBACK_RAW_WRITEABLE_FILE:
        return connection->response != NULL ? send_out(server, connection) : 0;
    case LWS_CALLBACK_RAW_CLOSE_FILE:
        forget(connection);
        return 0;
    default:
        return 0;
    }
}

/* Called after the callbacks of a poll: libwebsockets 4.1 ignores lws_callback_on_writable if it is called inside a
   callback of the same connection. */
void carry_http_ask_blocked(carry_http_server *server) {
    if (!server->has_blocked) {
        return;
    }
    server->has_blocked = false;
    for (carry_http_connection *one = server->connections; one != NULL; one = one->next) {
        if (one->blocked > 0.0) {
            (void)lws_callback_on_writable(one->wsi);
        }
    }
}

/* Sends queued output directly and not in the callback for writing: with a stream on every connection, each callback
   costs a poll of all sockets. The callback sends output that the socket did not take here, and closes failed
   connections. */
void carry_http_send_connections(carry_http_server *server) {
    for (carry_http_connection *one = server->connections; one != NULL; one = one->next) {
        if (one->response != NULL && !one->lingering && carry_http_has_output(one->response) &&
            (send_out(server, one) != 0 || one->blocked > 0.0)) {
            one->blocked = one->blocked > 0.0 ? one->blocked : carry_seconds(); /* kept until it has been sent */
            (void)lws_callback_on_writable(one->wsi);
        }
    }
}

/* Returns the seconds by which the connection has kept the server waiting beyond its limit; below 0: within the
   limit. */
static double excess(const carry_http_server *server, const carry_http_connection *connection, double now) {
    double patience = server->options.patience;
    if (connection->lingering) {
        return now - connection->since - LINGER;
    }
    if (connection->response != NULL) { /* the client waits for the server, or reads slowly */
        return connection->blocked > 0.0 ? now - connection->blocked - patience : -1.0;
    }
    bool in_head = connection->request.method == NULL;
    return now - connection->since - (in_head && patience > HEAD_SECONDS ? HEAD_SECONDS : patience);
}

/* Spares a connection whose input is still unread, because the server itself was late, as on an overloaded machine. A
   connection is spared only once, so that a client cannot stay open by sending a byte now and then. */
static bool spare(carry_http_connection *connection, double now) {
    int waiting = 0;
    if (connection->spared || connection->lingering || connection->response != NULL ||
        ioctl(connection->file, FIONREAD, &waiting) != 0 || waiting <= 0) {
        return false;
    }
    connection->spared = true;
    connection->since = now;
    return true;
}

/* A socket that was shut down becomes readable, and the callback above then closes it. */
void carry_http_drop_slow(carry_http_server *server) {
    double now = carry_seconds();
    for (carry_http_connection *one = server->connections; one != NULL; one = one->next) {
        if (excess(server, one, now) > 0.0 && !spare(one, now)) {
            if (!one->lingering) {
                carry_log(server->ctx, CARRY_LOG_INFO, "a connection that kept the server waiting is closed");
                server->counts.stalled++;
            }
            one->since = now;
            one->lingering = true;
            (void)shutdown(one->file, SHUT_RDWR);
        }
    }
}
