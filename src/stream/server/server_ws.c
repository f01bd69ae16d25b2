/* Viewers. What a viewer gets next: an answer to what it said, else the state when there is a new one, else a frame.
   One message is under way at a time; libwebsockets calls again when the socket takes more, so that a viewer that does
   not read holds one frame and misses the rest. */
#include "stream/server/server_internal.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

#define HEADER 32   /* bytes before the JPEG */
#define STALLED 1.0 /* seconds without taking anything, to be ended before others of its address */

static bool collect(carry_peer *peer, const void *bytes, size_t length) {
    if (length > CARRY_SERVER_BODY || peer->length + length > CARRY_SERVER_BODY) {
        return false;
    }
    if (peer->length + length + 1 > peer->room) {
        size_t room = 2 * (peer->length + length) + 1;
        char *grown = realloc(peer->body, room);
        if (grown == NULL) {
            return false;
        }
        peer->body = grown;
        peer->room = room;
    }
    if (length > 0) {
        memcpy(peer->body + peer->length, bytes, length);
    }
    peer->length += length;
    peer->body[peer->length] = '\0';
    return true;
}

static void forget(carry_peer *peer) {
    free(peer->body);
    peer->body = NULL;
    peer->length = peer->room = 0;
}

static void ask(carry_peer *peer) {
    if (peer->waiting == 0.0) {
        peer->waiting = carry_seconds();
    }
    (void)lws_callback_on_writable(peer->wsi);
}

static int hang_up(struct lws *wsi, enum lws_close_status status, const char *why) {
    lws_close_reason(wsi, status, (unsigned char *)(uintptr_t)why, strlen(why));
    return -1;
}

int carry_server_join(carry_server *server, struct lws *wsi, carry_peer *peer) {
    *peer = (carry_peer){.wsi = wsi, .address = lws_get_opaque_user_data(wsi), .heard = carry_seconds()};
    carry_status joined = carry_hub_join(server->hub, &peer->viewer);
    if (joined == CARRY_ERANGE && peer->address != NULL && carry_server_end_viewer_for(server, peer->address)) {
        joined = carry_hub_join(server->hub, &peer->viewer);
    }
    if (joined != CARRY_OK) {
        server->refused++; /* told when it can be written to: here it would be hung up on without a word */
        (void)lws_callback_on_writable(wsi);
        return 0;
    }
    peer->next = server->viewers;
    peer->before = &server->viewers;
    if (peer->next != NULL) {
        peer->next->before = &peer->next;
    }
    server->viewers = peer;
    if (peer->address != NULL) {
        peer->address->viewers++;
    }
    ask(peer);
    return 0;
}

void carry_server_leave(carry_peer *peer) {
    forget(peer);
    free(peer->reply);
    peer->reply = NULL;
    carry_hub_leave(peer->viewer);
    peer->viewer = NULL;
    if (peer->before != NULL) {
        *peer->before = peer->next;
        if (peer->next != NULL) {
            peer->next->before = peer->before;
        }
        peer->before = NULL;
        if (peer->address != NULL) {
            peer->address->viewers--;
        }
    }
}

/* One that takes nothing is ended before one that does, then the one that has been silent for longest. */
static bool ends_before(const carry_peer *a, const carry_peer *b, double now) {
    const bool a_waits = a->waiting > 0.0 && now - a->waiting > STALLED;
    const bool b_waits = b->waiting > 0.0 && now - b->waiting > STALLED;
    return a_waits != b_waits ? a_waits : a->heard < b->heard;
}

bool carry_server_end_viewer_for(carry_server *server, const carry_address *newcomer) {
    const carry_address *most = newcomer;
    carry_peer *chosen = NULL;
    double now = carry_seconds();
    for (carry_peer *peer = server->viewers; peer != NULL; peer = peer->next) {
        most = peer->address != NULL && peer->address->viewers > most->viewers ? peer->address : most;
    }
    if (most->viewers < newcomer->viewers + 2) {
        return false;
    }
    for (carry_peer *peer = server->viewers; peer != NULL; peer = peer->next) {
        if (peer->address == most && (chosen == NULL || ends_before(peer, chosen, now))) {
            chosen = peer;
        }
    }
    carry_log(server->ctx, CARRY_LOG_INFO, "a viewer of an address with %d viewers is ended for one of another address",
              most->viewers);
    server->stalled++;
    carry_server_leave(chosen); /* it is told when it can be written to, and has a second for it */
    (void)lws_callback_on_writable(chosen->wsi);
    lws_set_timeout(chosen->wsi, PENDING_TIMEOUT_KILLED_BY_PARENT, 1);
    return true;
}

/* One answer waits: where messages come faster than they are answered, a refusal is not lost to what went well. */
static void set_reply(carry_peer *peer, const char *why) {
    carry_json_text text = {0};
    if (why[0] == '\0' && peer->reply != NULL) {
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
    free(peer->reply);
    peer->reply = text.bytes;
}

static void obey(carry_server *server, carry_peer *peer) {
    char why[600] = "";
    server->messages++;
    if (carry_controls_apply(server->controls, peer->body, peer->length, why, sizeof why) != CARRY_OK) {
        server->refused++;
        carry_log(server->ctx, CARRY_LOG_INFO, "a viewer's message is refused: %s", why);
    }
    set_reply(peer, why);
    carry_json_text_free(&server->state); /* a viewer sees what was changed */
    carry_server_state(server, &server->state);
    server->state_serial++;
    carry_server_ask_all(server);
}

int carry_server_message(carry_server *server, struct lws *wsi, carry_peer *peer, const void *bytes, size_t length) {
    if (peer->viewer == NULL) {
        return 0;
    }
    if (lws_frame_is_binary(wsi)) {
        return hang_up(wsi, LWS_CLOSE_STATUS_UNACCEPTABLE_OPCODE, "messages are JSON, as text");
    }
    size_t more = lws_remaining_packet_payload(wsi);
    if (peer->length + length > CARRY_SERVER_BODY || more > CARRY_SERVER_BODY - length ||
        !collect(peer, bytes, length)) {
        server->refused++;
        carry_log(server->ctx, CARRY_LOG_INFO, "a viewer's message of over 256 KiB ends its connection");
        return hang_up(wsi, LWS_CLOSE_STATUS_MESSAGE_TOO_LARGE, "a message has at most 256 KiB");
    }
    peer->heard = carry_seconds();
    if (more == 0 && lws_is_final_fragment(wsi)) {
        if (peer->length > 0) {
            obey(server, peer);
        }
        forget(peer);
    }
    return 0;
}

static void put64(unsigned char *at, uint64_t value) {
    for (int i = 0; i < 8; i++) {
        at[i] = (unsigned char)(value >> 8 * i);
    }
}

static int send_message(carry_server *server, struct lws *wsi, const char *text, size_t length) {
    unsigned char *out = carry_server_room(server, length);
    if (out == NULL) {
        return -1;
    }
    memcpy(out, text, length);
    return lws_write(wsi, out, length, LWS_WRITE_TEXT) < 0 ? -1 : 1;
}

static int send_frame(carry_server *server, struct lws *wsi, carry_viewer *viewer) {
    carry_frame frame;
    if (!carry_viewer_take(viewer, &frame)) {
        return 0;
    }
    unsigned char *out = carry_server_room(server, HEADER + frame.size);
    int result = -1;
    if (out != NULL) {
        uint64_t seconds;
        memcpy(&seconds, &frame.seconds, sizeof seconds);
        put64(out, frame.number);
        put64(out + 8, frame.chunk_index);
        put64(out + 16, frame.cache_epoch);
        put64(out + 24, seconds);
        memcpy(out + HEADER, frame.bytes, frame.size);
        result = lws_write(wsi, out, HEADER + frame.size, LWS_WRITE_BINARY) < 0 ? -1 : 1;
    }
    carry_viewer_give_back(viewer);
    return result;
}

int carry_server_writable(carry_server *server, struct lws *wsi, carry_peer *peer) {
    if (peer->viewer == NULL) {
        return hang_up(wsi, (enum lws_close_status)1013, "there are too many viewers");
    }
    peer->waiting = 0.0;
    int sent; /* 1: something, 0: there is nothing */
    if (peer->reply != NULL) {
        sent = send_message(server, wsi, peer->reply, strlen(peer->reply));
        free(peer->reply);
        peer->reply = NULL;
    } else if (peer->state_sent != server->state_serial && !server->state.failed && server->state.bytes != NULL) {
        peer->state_sent = server->state_serial;
        sent = send_message(server, wsi, server->state.bytes, server->state.length);
    } else {
        sent = send_frame(server, wsi, peer->viewer);
    }
    if (sent > 0) {
        ask(peer);
    }
    return sent < 0 ? -1 : 0;
}

void carry_server_ask_all(carry_server *server) {
    for (carry_peer *peer = server->viewers; peer != NULL; peer = peer->next) {
        ask(peer);
    }
}

void carry_server_drop_stalled(carry_server *server) {
    double now = carry_seconds();
    for (carry_peer *peer = server->viewers; peer != NULL; peer = peer->next) {
        if (peer->waiting > 0.0 && now - peer->waiting > server->patience) {
            carry_log(server->ctx, CARRY_LOG_INFO, "a viewer that took nothing for %.0f s is hung up on",
                      now - peer->waiting);
            server->stalled++;
            peer->waiting = now + 1e9; /* once */
            lws_set_timeout(peer->wsi, PENDING_TIMEOUT_KILLED_BY_PARENT, LWS_TO_KILL_ASYNC);
        }
    }
}
