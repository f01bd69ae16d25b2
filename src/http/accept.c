/* Accepts connections and limits their number: in total, per address, and per address before the request's head is
   complete. A connection beyond the total or the limit of its address is refused, but makes room for the client's next
   try: the oldest connection without a complete head is closed and, at the total limit, also a WebSocket of the address
   that has the most of them, if it has at least two more than the client's address. At the limit of incomplete heads,
   the new connection replaces the oldest of them. Silent connections therefore cannot lock out other clients. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "http/http_internal.h"

#define SEND_BUFFER (128 << 10) /* bytes in the kernel; small, so that a slow client is noticed early */
#define AT_ONCE 16              /* at most this many are accepted before other sockets are read again */
#define PAUSE 20000             /* microseconds to wait when nothing can be accepted or closed */

void carry_http_opened(carry_http_server *server, struct lws *wsi) {
    lws_set_opaque_user_data(wsi, server->arriving);
    if (server->arriving != NULL) {
        server->arriving->open++;
        server->counts.connections++;
    }
}

void carry_http_closed(carry_http_server *server, struct lws *wsi) {
    carry_http_address *address = lws_get_opaque_user_data(wsi);
    if (address != NULL) {
        address->open--;
        server->counts.connections--;
    }
}

static bool is_half_open(const carry_http_connection *connection) {
    return connection->request.method == NULL && !connection->lingering;
}

/* Closes the oldest connection without a complete head, if there are at least `least` such connections. address:
   considers only connections from this address; NULL: all. */
static void drop_oldest(carry_http_server *server, const carry_http_address *address, int least) {
    carry_http_connection *oldest = NULL;
    int count = 0;
    for (carry_http_connection *one = server->connections; one != NULL; one = one->next) { /* the newest first */
        if (is_half_open(one) && (address == NULL || one->address == address)) {
            oldest = one;
            count++;
        }
    }
    if (oldest != NULL && count >= least) {
        oldest->since = carry_seconds();
        oldest->lingering = true;
        server->counts.stalled++;
        (void)shutdown(oldest->file, SHUT_RDWR); /* its callback sees the end and closes it */
    }
}

static void refuse(carry_http_server *server, int file, const char *why) {
    if (!server->refusing) {
        server->refusing = true;
        carry_log(server->ctx, CARRY_LOG_WARNING, "%d connections are open, %s: new ones are closed",
                  server->counts.connections, why);
    }
    server->counts.refused++;
    (void)close(file);
}

/* The file descriptor is adopted as a file, not as a socket: if the adoption fails, libwebsockets does not close it. */
static void adopt(carry_http_server *server, int file) {
    lws_sock_file_fd_type given = {.filefd = file};
    int one = 1, size = SEND_BUFFER;
    (void)setsockopt(file, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    (void)setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct lws *wsi = lws_adopt_descriptor_vhost(server->vhost, LWS_ADOPT_RAW_FILE_DESC, given, "connection", NULL);
    if (wsi == NULL) {
        refuse(server, file, "and libwebsockets accepts no more");
        return;
    }
    carry_http_add_connection(server, wsi, file);
}

static void admit(carry_http_server *server, int file, const struct sockaddr_storage *from) {
    carry_http_address *address = carry_http_address_of(server, from);
    if (address == NULL || server->counts.connections >= server->options.connections) {
        drop_oldest(server, NULL, 1);
        (void)carry_http_drop_socket(server, NULL, address != NULL ? address->sockets + 1 : 1); /* for its next try */
        refuse(server, file, "the limit");
        return;
    }
    if (address->open >= server->share) {
        drop_oldest(server, address, 1);
        refuse(server, file, "the limit of one address");
        return;
    }
    server->refusing = false;
    drop_oldest(server, address, CARRY_HTTP_HALF_OPEN);
    server->arriving = address;
    adopt(server, file);
}

/* Called when no file descriptor is left. Closes the spare descriptor, accepts the first connection in the backlog
   with it and closes that connection, which would otherwise stay in the backlog and wake the server forever. */
static bool shed_one(carry_http_server *server) {
    drop_oldest(server, NULL, 1);
    if (server->spare >= 0) {
        (void)close(server->spare);
        int file = accept4(server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (file >= 0) {
            refuse(server, file, "and this process cannot open more files");
        }
    }
    server->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return server->spare >= 0;
}

void carry_http_accept(carry_http_server *server) {
    for (int i = 0; i < AT_ONCE; i++) {
        struct sockaddr_storage from = {0};
        socklen_t size = sizeof from;
        int file = accept4(server->listener, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (file >= 0) {
            admit(server, file, &from);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno == EMFILE || errno == ENFILE) {
            if (!shed_one(server)) {
                (void)usleep(PAUSE);
                return;
            }
        } else if (errno != EINTR && errno != ECONNABORTED) {
            (void)usleep(PAUSE);
            return;
        }
    }
}
