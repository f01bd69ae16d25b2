/* The server's thread: connections come in, libwebsockets serves them, the hub wakes it when frames are there.

   The listening socket is our own and not libwebsockets', so that a port that is taken is told with its reason, no
   socket option lets two servers share it, and connections can be counted before they cost anything. */
#include "http/http_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"

#define TICK 500000 /* microseconds between states */
#define PATIENCE 30.0

/* libwebsockets' log has no user pointer; a server's lines come on its own thread. */
static _Thread_local carry_ctx *log_to;

static void log_line(int level, const char *line) {
    if (log_to == NULL) {
        return;
    }
    int length = (int)strcspn(line, "\n");
    carry_log(log_to, level & (LLL_ERR | LLL_WARN) ? CARRY_LOG_INFO : CARRY_LOG_DEBUG, "libwebsockets: %.*s", length,
              line);
}

static void set_log(void) {
    lws_set_log_level(LLL_ERR | LLL_WARN, log_line);
}

unsigned char *carry_server_room(carry_server *server, size_t length) {
    if (server->out_room < LWS_PRE + length) {
        size_t room = LWS_PRE + length + length / 2;
        unsigned char *grown = realloc(server->out, room);
        if (grown == NULL) {
            return NULL;
        }
        server->out = grown;
        server->out_room = room;
    }
    return server->out + LWS_PRE;
}

static void frames_are_due(lws_sorted_usec_list_t *timer);

/* Viewers are asked for, and the timer set for what is not released yet. */
static void look_at_hub(carry_server *server) {
    carry_server_ask_all(server);
    double until = carry_hub_next_release(server->hub);
    if (until >= 0.0) {
        lws_sul_schedule(server->lws, 0, &server->release, frames_are_due, (lws_usec_t)(until * 1e6) + 1);
    }
}

static void frames_are_due(lws_sorted_usec_list_t *timer) {
    look_at_hub(lws_container_of(timer, carry_server, release));
}

static void tick(lws_sorted_usec_list_t *timer) {
    carry_server *server = lws_container_of(timer, carry_server, tick);
    carry_server_film_look(server);
    const char *why;
    (void)carry_server_healthy(server, &why); /* notes when frames came */
    carry_json_text_free(&server->state);
    carry_server_state(server, &server->state);
    server->state_serial++;
    carry_server_drop_stalled(server);
    carry_server_drop_slow(server);
    look_at_hub(server);
    lws_sul_schedule(server->lws, 0, &server->tick, tick, TICK);
}

static int listener_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t length) {
    (void)user;
    (void)in;
    (void)length;
    if (reason == LWS_CALLBACK_RAW_RX_FILE) {
        carry_server_accept(lws_context_user(lws_get_context(wsi)));
    }
    return 0;
}

static int viewer_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t length) {
    carry_server *server = lws_context_user(lws_get_context(wsi));
    switch ((int)reason) {
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED:
        look_at_hub(server);
        return 0;
    case LWS_CALLBACK_SERVER_NEW_CLIENT_INSTANTIATED:
        carry_server_opened(server, wsi);
        return 0;
    case LWS_CALLBACK_WSI_DESTROY: /* of every protocol */
        carry_server_closed(server, wsi);
        return 0;
    case LWS_CALLBACK_HTTP: /* nobody gets here but with a request for a WebSocket, which was made by us */
        return -1;
    case LWS_CALLBACK_ESTABLISHED:
        return carry_server_join(server, wsi, user);
    case LWS_CALLBACK_RECEIVE:
        return carry_server_message(server, wsi, user, in, length);
    case LWS_CALLBACK_SERVER_WRITEABLE:
        return carry_server_writable(server, wsi, user);
    case LWS_CALLBACK_CLOSED:
        carry_server_leave(user);
        return 0;
    default:
        return 0;
    }
}

static bool start_lws(carry_server *server) {
    static const struct lws_protocols protocols[] = {
        {.name = "viewer",
         .callback = viewer_callback,
         .per_session_data_size = sizeof(carry_peer),
         .rx_buffer_size = 4096},
        {.name = "listener", .callback = listener_callback},
        {.name = "client", .callback = carry_server_client_callback, .per_session_data_size = sizeof(carry_client)},
        {0},
    };
    unsigned seconds = server->patience > 1.0 ? (unsigned)server->patience : 1;
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN_SERVER,
        .protocols = protocols,
        .user = server,
        .gid = -1,
        .uid = -1,
        .max_http_header_data2 = CARRY_SERVER_HEADERS,
        .max_http_header_pool2 = CARRY_SERVER_CONNECTIONS, /* nobody waits because others are slow */
        .timeout_secs = seconds,
        .timeout_secs_ah_idle = seconds,
        .fd_limit_per_thread = 2 * CARRY_SERVER_CONNECTIONS + 64, /* a WebSocket has two while it is handed over */
        .vhost_name = "carry",
        .options = LWS_SERVER_OPTION_NO_LWS_SYSTEM_STATES | LWS_SERVER_OPTION_FALLBACK_TO_APPLY_LISTEN_ACCEPT_CONFIG,
        .listen_accept_role = "raw-skt",
        .listen_accept_protocol = "not-http",
    };
    server->lws = lws_create_context(&info);
    if (server->lws == NULL) {
        return false;
    }
    server->vhost = lws_get_vhost_by_name(server->lws, "carry");
    lws_sock_file_fd_type file = {.filefd = server->listener};
    if (server->vhost == NULL ||
        lws_adopt_descriptor_vhost(server->vhost, LWS_ADOPT_RAW_FILE_DESC, file, "listener", NULL) == NULL) {
        return false;
    }
    lws_sul_schedule(server->lws, 0, &server->tick, tick, 1);
    return true;
}

static void *serve(void *argument) {
    carry_server *server = argument;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, set_log);
    log_to = server->ctx;
    server->failed = !start_lws(server);
    bool going = !server->failed;
    (void)sem_post(&server->ready);
    while (going && !atomic_load(&server->stop)) {
        going = lws_service(server->lws, 0) >= 0;
    }
    if (!server->failed) {
        while (sem_wait(&server->told) != 0) { /* the thread that stops us is done with the context */
        }
    }
    if (server->lws != NULL) {
        lws_sul_cancel(&server->tick);
        lws_sul_cancel(&server->release);
        lws_context_destroy(server->lws); /* closes the listener too */
    }
    log_to = NULL;
    return NULL;
}

static carry_status copy(carry_ctx *ctx, char **to, const char *from) {
    *to = from != NULL ? strdup(from) : NULL;
    return from == NULL || *to != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "no memory for the server");
}

static carry_status start(carry_ctx *ctx, carry_server *server, const carry_server_options *options) {
    const char *address = options->address != NULL ? options->address : "127.0.0.1";
    server->loopback = carry_server_is_loopback(address, strlen(address)) || strcmp(address, "::1") == 0;
    CARRY_TRY(carry_server_check(ctx, options, address, server->loopback));
    server->patience = options->patience > 0.0 ? options->patience : PATIENCE;
    CARRY_TRY(copy(ctx, &server->token, options->token));
    CARRY_TRY(copy(ctx, &server->record_to, options->record_to));
    carry_ctx_options own = {.threads = 1, .log_level = ctx->log_level, .log = ctx->log, .log_user = ctx->log_user};
    if (carry_ctx_new(&server->ctx, &own) != CARRY_OK) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for the server");
    }
    CARRY_TRY(carry_server_listen(ctx, server, address, options->port));
    int bad = carry_film_thread(&server->thread, serve, server);
    if (bad != 0) {
        return carry_fail(ctx, CARRY_EMEMORY, "no thread for the server: %s", strerror(bad));
    }
    while (sem_wait(&server->ready) != 0) {
    }
    if (server->failed) {
        server->listener = -1;
        (void)pthread_join(server->thread, NULL);
        return carry_fail(ctx, CARRY_EIO, "libwebsockets does not start on port %d of %s", server->port, address);
    }
    return CARRY_OK;
}

static void server_free(carry_server *server) {
    carry_film_stop(server->film, NULL);
    carry_json_text_free(&server->state);
    carry_ctx_free(server->ctx);
    (void)sem_destroy(&server->ready);
    (void)sem_destroy(&server->told);
    if (server->spare >= 0) {
        (void)close(server->spare);
    }
    free(server->token);
    free(server->record_to);
    free(server->out);
    free(server);
}

static void wake(void *user) {
    lws_cancel_service(((carry_server *)user)->lws);
}

carry_status carry_server_start(carry_ctx *ctx, carry_server **made, const carry_server_options *options,
                                carry_hub *hub, carry_controls *controls) {
    *made = NULL;
    carry_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for the server");
    }
    server->hub = hub;
    server->controls = controls;
    server->listener = -1;
    server->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (getrandom(&server->name, sizeof server->name, 0) != (ssize_t)sizeof server->name) {
        server->name = (uint64_t)(1e9 * carry_seconds());
    }
    (void)sem_init(&server->ready, 0, 0);
    (void)sem_init(&server->told, 0, 0);
    carry_status status = start(ctx, server, options);
    if (status != CARRY_OK) {
        if (server->listener >= 0) {
            (void)close(server->listener);
        }
        server_free(server);
        return status;
    }
    carry_hub_set_wake(hub, wake, server);
    *made = server;
    return CARRY_OK;
}

int carry_server_port(const carry_server *server) {
    return server->port;
}

void carry_server_stop(carry_server *server) {
    if (server == NULL) {
        return;
    }
    carry_hub_set_wake(server->hub, NULL, NULL);
    atomic_store(&server->stop, true);
    lws_cancel_service(server->lws);
    (void)sem_post(&server->told);
    (void)pthread_join(server->thread, NULL);
    server_free(server);
}
