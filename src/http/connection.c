/* A connection: its head is read, then its body, the answer is written, and it ends. One request each: a page makes
   few, and what follows a request is nobody's business then. A request for a WebSocket is handed to libwebsockets under
   a second descriptor, with a head that was made here. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "http/http_internal.h"

#define LINGER 2.0       /* seconds */
#define HEAD_SECONDS 5.0 /* for the head of a request to come, or patience if that is less */

void carry_server_add_client(carry_server *server, struct lws *wsi, int file) {
    carry_client *client = lws_wsi_user(wsi);
    *client = (carry_client){
        .wsi = wsi, .address = server->arriving, .file = file, .since = carry_seconds(), .next = server->clients};
    client->before = &server->clients;
    if (client->next != NULL) {
        client->next->before = &client->next;
    }
    server->clients = client;
}

static void forget(carry_client *client) {
    free(client->body);
    free(client->out);
    client->body = NULL;
    client->out = NULL;
    if (client->before != NULL) {
        *client->before = client->next;
        if (client->next != NULL) {
            client->next->before = client->before;
        }
        client->before = NULL;
    }
}

/* -1: done with, or gone. */
static int send_out(carry_client *client) {
    while (client->out_sent < client->out_length) {
        ssize_t sent = send(client->file, client->out + client->out_sent, client->out_length - client->out_sent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            (void)lws_callback_on_writable(client->wsi);
            return 0;
        }
        if (sent <= 0) {
            return -1;
        }
        client->out_sent += (size_t)sent;
    }
    if (!client->lingering) { /* a socket closed with bytes unread is reset, and the answer with it */
        client->lingering = true;
        client->since = carry_seconds();
        (void)shutdown(client->file, SHUT_WR);
    }
    return 0;
}

/* libwebsockets gets a descriptor of its own, for it closes what it was given. */
static int hand_over(carry_server *server, carry_client *client) {
    char head[256];
    int length = snprintf(head, sizeof head,
                          "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                          "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n",
                          client->request.key);
    int file = dup(client->file);
    if (file < 0) {
        return -1;
    }
    forget(client);
    server->arriving = client->address;
    (void)lws_adopt_socket_vhost_readbuf(server->vhost, file, head, (size_t)length); /* closes it where it fails */
    return -1;
}

static int upgrade(carry_server *server, carry_client *client, bool more) {
    const carry_http_request *request = &client->request;
    if (strcasecmp(request->upgrade, "websocket") != 0) {
        return carry_server_refuse(server, client, 400, "this server speaks HTTP/1.1 and WebSocket");
    }
    if (strcmp(request->path, "/ws") != 0) {
        return carry_server_refuse(server, client, 404, "WebSockets are at /ws");
    }
    carry_refusal refusal = carry_server_guard(server, client->address, request);
    if (refusal.status != 0) {
        return carry_server_refuse(server, client, refusal.status, refusal.why);
    }
    if (!carry_http_request_is_upgrade(request) || more) {
        return carry_server_refuse(server, client, 400, "expected WebSocket version 13, and no data before the reply");
    }
    return hand_over(server, client);
}

/* The body may come: some clients wait to be told so, for a second. One that is not told sends it after that. */
static void go_on(const carry_client *client) {
    static const char words[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (client->request.expect != NULL && strcasecmp(client->request.expect, "100-continue") == 0) {
        (void)send(client->file, words, sizeof words - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

/* The head has come, and perhaps some of the body. */
static int take_head(carry_server *server, carry_client *client, size_t head) {
    size_t more = client->length - head;
    char *rest = client->head + head;
    server->requests++;
    carry_refusal refusal = carry_http_request_parse(&client->request, client->head, head);
    client->length = head; /* whatever comes now is not of the head */
    if (refusal.status != 0) {
        client->request = (carry_http_request){.method = "GET", .path = "/", .query = ""};
        return carry_server_refuse(server, client, refusal.status, refusal.why);
    }
    if (client->request.upgrade != NULL) {
        return upgrade(server, client, more > 0);
    }
    if (carry_server_request(server, client) != 0) {
        return -1;
    }
    if (client->out == NULL) {
        client->body_got = more < client->body_length ? more : client->body_length;
        memcpy(client->body, rest, client->body_got);
        if (more == 0) {
            go_on(client);
        }
    }
    return 0;
}

static int have_enough(carry_server *server, carry_client *client) {
    if (client->out == NULL && client->body != NULL && client->body_got == client->body_length &&
        client->post(server, client) != 0) {
        return -1;
    }
    return client->out != NULL ? send_out(client) : 0;
}

static int take_bytes(carry_server *server, carry_client *client, size_t got) {
    client->length += got;
    size_t head = carry_http_request_end(client->head, client->length);
    if (head > 0) {
        return take_head(server, client, head) != 0 ? -1 : have_enough(server, client);
    }
    bool letter = client->head[0] >= 'A' && client->head[0] <= 'Z'; /* TLS, say, has no end to wait for */
    if (letter && client->length < CARRY_SERVER_HEADERS) {
        return 0;
    }
    client->request = (carry_http_request){.method = "GET", .path = "/", .query = ""};
    int bad = letter ? carry_server_refuse(server, client, 431, "the headers are larger than 8 KiB")
                     : carry_server_refuse(server, client, 400, "this is not an HTTP request");
    return bad != 0 ? -1 : have_enough(server, client);
}

static int readable(carry_server *server, carry_client *client) {
    static _Thread_local char waste[16 << 10];
    bool in_head = client->request.method == NULL;
    bool in_body = !in_head && client->out == NULL;
    char *to = in_head ? client->head + client->length : in_body ? client->body + client->body_got : waste;
    size_t room = in_head   ? CARRY_SERVER_HEADERS - client->length
                  : in_body ? client->body_length - client->body_got
                            : sizeof waste;
    ssize_t got = recv(client->file, to, room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return 0;
    }
    if (got <= 0) {
        return -1;
    }
    if (in_head) {
        return take_bytes(server, client, (size_t)got);
    }
    client->body_got += in_body ? (size_t)got : 0;
    return in_body ? have_enough(server, client) : 0;
}

int carry_server_client_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                                 size_t length) {
    (void)in;
    (void)length;
    carry_server *server = lws_context_user(lws_get_context(wsi));
    carry_client *client = user;
    switch ((int)reason) {
    case LWS_CALLBACK_RAW_ADOPT_FILE:
        carry_server_opened(server, wsi);
        return 0;
    case LWS_CALLBACK_RAW_RX_FILE:
        return client->before != NULL ? readable(server, client) : -1;
    case LWS_CALLBACK_RAW_WRITEABLE_FILE:
        return client->out != NULL ? send_out(client) : 0;
    case LWS_CALLBACK_RAW_CLOSE_FILE:
        forget(client);
        return 0;
    default:
        return 0;
    }
}

static double allowed(const carry_server *server, const carry_client *client) {
    bool in_head = client->request.method == NULL;
    return client->lingering ? LINGER : in_head && server->patience > HEAD_SECONDS ? HEAD_SECONDS : server->patience;
}

/* Shut, a socket can be read to its end, and the callback above ends it. */
void carry_server_drop_slow(carry_server *server) {
    double now = carry_seconds();
    for (carry_client *client = server->clients; client != NULL; client = client->next) {
        if (now - client->since > allowed(server, client)) {
            if (!client->lingering) {
                carry_log(server->ctx, CARRY_LOG_INFO, "a request that takes over %.0f s is hung up on",
                          allowed(server, client));
                server->stalled++;
            }
            client->since = now;
            client->lingering = true;
            (void)shutdown(client->file, SHUT_RDWR);
        }
    }
}
