/* The server's thread. libwebsockets polls. The listening socket is our own, so that a port in use is reported with its
   reason, no socket option lets two servers share the port, and connections are counted before they use resources. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/thread.h"
#include "http/http_internal.h"

#define TICK 500000 /* microseconds between checks for slow clients */
#define PATIENCE 30.0

/* libwebsockets' log has no user pointer, but a server logs only on its own thread. */
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

static void call_woken(carry_http_server *server) {
    if (server->options.woken != NULL) {
        server->options.woken(server->options.user);
    }
}

static void alarm_is_due(lws_sorted_usec_list_t *timer) {
    call_woken(lws_container_of(timer, carry_http_server, alarm));
}

void carry_http_wake_after(carry_http_server *server, double seconds) {
    lws_sul_schedule(server->lws, 0, &server->alarm, alarm_is_due, (lws_usec_t)(seconds * 1e6) + 1);
}

static void tick(lws_sorted_usec_list_t *timer) {
    carry_http_server *server = lws_container_of(timer, carry_http_server, tick);
    carry_http_drop_stalled(server);
    carry_http_drop_slow(server);
    lws_sul_schedule(server->lws, 0, &server->tick, tick, TICK);
}

static int listener_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t length) {
    (void)user;
    (void)in;
    (void)length;
    if (reason == LWS_CALLBACK_RAW_RX_FILE) {
        carry_http_accept(lws_context_user(lws_get_context(wsi)));
    }
    return 0;
}

static int socket_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t length) {
    carry_http_server *server = lws_context_user(lws_get_context(wsi));
    switch ((int)reason) {
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED:
        atomic_store(&server->is_waking, false); /* cleared first: output that comes later wakes the thread again */
        carry_http_send_connections(server);
        if (atomic_exchange(&server->woken, false)) {
            call_woken(server);
        }
        return 0;
    case LWS_CALLBACK_SERVER_NEW_CLIENT_INSTANTIATED:
        carry_http_opened(server, wsi);
        return 0;
    case LWS_CALLBACK_WSI_DESTROY: /* called for every protocol */
        carry_http_closed(server, wsi);
        return 0;
    case LWS_CALLBACK_HTTP: /* unreachable: libwebsockets gets only requests for WebSockets */
        return -1;
    default:
        return carry_http_socket_callback(server, wsi, reason, user, in, length);
    }
}

static bool start_lws(carry_http_server *server) {
    static const struct lws_protocols protocols[] = {
        {.name = "socket",
         .callback = socket_callback,
         .per_session_data_size = sizeof(carry_http_socket),
         .rx_buffer_size = 4096},
        {.name = "listener", .callback = listener_callback},
        {.name = "connection",
         .callback = carry_http_connection_callback,
         .per_session_data_size = sizeof(carry_http_connection)},
        {0},
    };
    unsigned seconds = server->options.patience > 1.0 ? (unsigned)server->options.patience : 1;
    unsigned connections = (unsigned)server->options.connections;
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN_SERVER,
        .protocols = protocols,
        .user = server,
        .gid = -1,
        .uid = -1,
        .max_http_header_data2 = CARRY_HTTP_HEADERS,
        .max_http_header_pool2 = (unsigned short)connections, /* slow requests do not delay others */
        .timeout_secs = seconds,
        .timeout_secs_ah_idle = seconds,
        .fd_limit_per_thread = 2 * connections + 64, /* a WebSocket uses two while it is handed over */
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
    lws_sul_schedule(server->lws, 0, &server->tick, tick, TICK);
    carry_http_wake_after(server, 0.0);
    return true;
}

static void *serve(void *argument) {
    carry_http_server *server = argument;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, set_log);
    log_to = server->ctx;
    server->failed = !start_lws(server);
    bool going = !server->failed;
    (void)sem_post(&server->ready);
    while (going && !atomic_load(&server->stop)) {
        going = lws_service(server->lws, 0) >= 0;
        carry_http_ask_blocked(server);
    }
    if (!server->failed) {
        while (sem_wait(&server->stopping) != 0) { /* waits until carry_http_stop no longer uses the context */
        }
    }
    carry_http_detach_all(server);
    if (server->lws != NULL) {
        lws_sul_cancel(&server->tick);
        lws_sul_cancel(&server->alarm);
        lws_context_destroy(server->lws); /* closes the listener too */
    }
    log_to = NULL;
    return NULL;
}

static bool copy(char **to, const char *from) {
    *to = from != NULL ? strdup(from) : NULL;
    return from == NULL || *to != NULL;
}

static void free_list(char **list) {
    for (char **one = list; list != NULL && *one != NULL; one++) {
        free(*one);
    }
    free(list);
}

static bool copy_list(char ***to, const char *const *from) {
    size_t count = 0;
    while (from != NULL && from[count] != NULL) {
        count++;
    }
    *to = calloc(count + 1, sizeof **to);
    bool good = *to != NULL;
    for (size_t i = 0; good && i < count; i++) {
        good = copy(&(*to)[i], from[i]);
    }
    return good;
}

static carry_status set_options(carry_ctx *ctx, carry_http_server *server) {
    carry_http_options *options = &server->options;
    options->address = options->address != NULL ? options->address : "127.0.0.1";
    server->loopback =
        carry_http_is_loopback(options->address, strlen(options->address)) || strcmp(options->address, "::1") == 0;
    CARRY_TRY(carry_http_check_options(ctx, options, options->address, server->loopback));
    options->patience = options->patience > 0.0 ? options->patience : PATIENCE;
    options->connections = options->connections > 0 ? options->connections : CARRY_HTTP_CONNECTIONS;
    options->queue = options->queue > 0 ? options->queue : CARRY_HTTP_QUEUE;
    int reserved = options->connections > 2 * CARRY_HTTP_RESERVED ? CARRY_HTTP_RESERVED : options->connections / 2;
    server->share = options->connections - reserved;
    server->address_count = options->connections + 64;
    server->addresses = calloc((size_t)server->address_count, sizeof *server->addresses);
    carry_ctx_options own = {CARRY_INIT(carry_ctx_options), .threads = 1, .log_level = ctx->log_level, .log = ctx->log,
                             .log_user = ctx->log_user};
    if (server->addresses == NULL || !copy(&server->token, options->token) ||
        !copy_list(&server->hosts, options->hosts) || !copy_list(&server->origins, options->origins) ||
        carry_ctx_new(&server->ctx, &own) != CARRY_OK) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: HTTP server");
    }
    return CARRY_OK;
}

static carry_status start(carry_ctx *ctx, carry_http_server *server) {
    const char *address = server->options.address;
    CARRY_TRY(carry_http_listen(ctx, server, address, server->options.port));
    int error = carry_thread_start(&server->thread, serve, server);
    if (error != 0) {
        return carry_fail(ctx, CARRY_EMEMORY, "cannot start a thread for the HTTP server: %s", strerror(error));
    }
    while (sem_wait(&server->ready) != 0) {
    }
    server->options.address = NULL; /* borrowed from the caller of start */
    if (server->failed) {
        server->listener = -1;
        (void)pthread_join(server->thread, NULL);
        return carry_fail(ctx, CARRY_EIO, "libwebsockets does not start on port %d of %s", server->port, address);
    }
    return CARRY_OK;
}

static void server_free(carry_http_server *server) {
    carry_ctx_free(server->ctx);
    (void)sem_destroy(&server->ready);
    (void)sem_destroy(&server->stopping);
    if (server->spare >= 0) {
        (void)close(server->spare);
    }
    free(server->token);
    free_list(server->hosts);
    free_list(server->origins);
    free(server->addresses);
    free(server->out);
    free(server);
}

carry_status carry_http_start(carry_ctx *ctx, carry_http_server **made, const carry_http_options *options) {
    *made = NULL;
    carry_http_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: HTTP server");
    }
    server->options = *options;
    server->listener = -1;
    server->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)sem_init(&server->ready, 0, 0);
    (void)sem_init(&server->stopping, 0, 0);
    *made = server;
    carry_status status = set_options(ctx, server);
    if (status == CARRY_OK) {
        status = start(ctx, server);
    }
    if (status != CARRY_OK) {
        *made = NULL;
        if (server->listener >= 0) {
            (void)close(server->listener);
        }
        server_free(server);
    }
    return status;
}

int carry_http_port(const carry_http_server *server) {
    return server->port;
}

void carry_http_wake(carry_http_server *server) {
    atomic_store(&server->woken, true);
    lws_cancel_service(server->lws);
}

void carry_http_counts_read(const carry_http_server *server, carry_http_counts *counts) {
    *counts = server->counts;
    counts->refused += atomic_load(&server->errors);
}

void carry_http_stop(carry_http_server *server) {
    if (server == NULL) {
        return;
    }
    atomic_store(&server->stop, true);
    lws_cancel_service(server->lws);
    (void)sem_post(&server->stopping);
    (void)pthread_join(server->thread, NULL);
    server_free(server);
}
