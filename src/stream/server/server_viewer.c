/* Viewers, connected by WebSocket. A viewer gets the reply to its message first, then a new state, then a frame. */
#include <stdlib.h>
#include <string.h>

#include "stream/server/server_internal.h"

#define HEADER 32 /* bytes before the JPEG */
#define TRY_AGAIN_LATER 1013

typedef struct viewer {
    carry_http_socket *socket;
    carry_viewer *frames;
    char *reply;         /* text to send; NULL: none */
    uint64_t state_sent; /* serial number of the last state sent to it */
} viewer;

static void *opened(void *user, carry_http_socket *socket) {
    carry_server *server = user;
    viewer *v = calloc(1, sizeof *v);
    carry_status status = v != NULL ? carry_hub_join(server->hub, &v->frames) : CARRY_EMEMORY;
    if (status == CARRY_ERANGE && carry_http_socket_replace(socket)) {
        status = carry_hub_join(server->hub, &v->frames);
    }
    if (status != CARRY_OK) {
        free(v);
        server->refused++;
        carry_http_socket_close(socket, TRY_AGAIN_LATER, "there are too many viewers");
        return NULL;
    }
    v->socket = socket;
    carry_http_socket_ask(socket);
    return v;
}

static void closed(void *user, void *data) {
    (void)user;
    viewer *v = data;
    if (v != NULL) {
        free(v->reply);
        carry_hub_leave(v->frames);
        free(v);
    }
}

/* A viewer has at most one pending reply. A success does not replace an error. */
static void set_reply(viewer *v, const char *why) {
    carry_json_text text = {0};
    if (why[0] == '\0' && v->reply != NULL) {
        return;
    }
    if (why[0] == '\0') {
        carry_json_put_raw(&text, "{\"done\":true}");
    } else {
        carry_json_put_raw(&text, "{\"error\":");
        carry_json_put_string(&text, why);
        carry_json_put_raw(&text, "}");
    }
    if (text.failed) {
        carry_json_text_free(&text);
    }
    free(v->reply);
    v->reply = text.bytes;
}

static void message(void *user, void *data, const char *bytes, size_t length) {
    carry_server *server = user;
    char why[600] = "";
    if (carry_controls_apply(server->controls, bytes, length, why, sizeof why) != CARRY_OK) {
        server->refused++;
        carry_log(server->ctx, CARRY_LOG_INFO, "a viewer's message is refused: %s", why);
    }
    set_reply(data, why);
    carry_server_new_state(server); /* all viewers see the change */
    carry_http_ask_all(server->http);
}

static void put64(unsigned char *at, uint64_t value) {
    for (int i = 0; i < 8; i++) {
        at[i] = (unsigned char)(value >> 8 * i);
    }
}

static bool send_text(viewer *v, const char *text, size_t length) {
    unsigned char *out = carry_http_socket_buffer(v->socket, length);
    if (out == NULL) {
        return false;
    }
    memcpy(out, text, length);
    return carry_http_socket_send(v->socket, false, length);
}

static bool send_frame(viewer *v) {
    carry_frame frame;
    if (!carry_viewer_take(v->frames, &frame)) {
        return false;
    }
    unsigned char *out = carry_http_socket_buffer(v->socket, HEADER + frame.size);
    bool sent = false;
    if (out != NULL) {
        uint64_t seconds;
        memcpy(&seconds, &frame.seconds, sizeof seconds);
        put64(out, frame.number);
        put64(out + 8, frame.chunk_index);
        put64(out + 16, frame.cache_epoch);
        put64(out + 24, seconds);
        memcpy(out + HEADER, frame.bytes, frame.size);
        sent = carry_http_socket_send(v->socket, true, HEADER + frame.size);
    }
    carry_viewer_give_back(v->frames);
    return sent;
}

static bool writable(void *user, void *data) {
    carry_server *server = user;
    viewer *v = data;
    if (v->reply != NULL) {
        bool sent = send_text(v, v->reply, strlen(v->reply));
        free(v->reply);
        v->reply = NULL;
        return sent;
    }
    if (v->state_sent != server->state_serial && !server->state.failed && server->state.bytes != NULL) {
        v->state_sent = server->state_serial;
        return send_text(v, server->state.bytes, server->state.length);
    }
    return send_frame(v);
}

const carry_http_endpoint carry_server_viewers = {.path = "/ws",
                                                  .message_limit = CARRY_SERVER_BODY,
                                                  .opened = opened,
                                                  .message = message,
                                                  .writable = writable,
                                                  .closed = closed};
