/* Connections as they come in, and how many there may be: in all, of one address, and of one address without a request.
   The oldest of those gives way to a new one, and viewers of the address that has the most to viewers of others, so
   that silent connections cannot lock others out. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "stream/server/server_internal.h"

#define SEND_BUFFER (128 << 10) /* bytes in the kernel a viewer may be behind: a few frames, not seconds */
#define AT_ONCE 16              /* accepted before those that are there are read from again */
#define PAUSE 20000             /* microseconds, where nothing can be accepted and nothing can be given up for it */

void carry_server_opened(carry_server *server, struct lws *wsi) {
    lws_set_opaque_user_data(wsi, server->arriving);
    if (server->arriving != NULL) {
        server->arriving->open++;
        server->connections++;
    }
}

void carry_server_closed(carry_server *server, struct lws *wsi) {
    carry_address *address = lws_get_opaque_user_data(wsi);
    if (address != NULL) {
        address->open--;
        server->connections--;
    }
}

static bool is_half_open(const carry_client *client) {
    return client->request.method == NULL && !client->lingering;
}

/* The oldest connection without a request, of one address or (NULL) of all, is hung up on when there are `least`. */
static void drop_oldest(carry_server *server, const carry_address *address, int least) {
    carry_client *oldest = NULL;
    int count = 0;
    for (carry_client *client = server->clients; client != NULL; client = client->next) { /* the newest first */
        if (is_half_open(client) && (address == NULL || client->address == address)) {
            oldest = client;
            count++;
        }
    }
    if (oldest != NULL && count >= least) {
        oldest->since = carry_seconds();
        oldest->lingering = true;
        server->stalled++;
        (void)shutdown(oldest->file, SHUT_RDWR); /* its callback sees the end and closes it */
    }
}

static void refuse(carry_server *server, int file, const char *why) {
    if (!server->refusing) {
        server->refusing = true;
        carry_log(server->ctx, CARRY_LOG_WARNING, "%d connections are open, %s: more are hung up on",
                  server->connections, why);
    }
    server->refused++;
    (void)close(file);
}

/* A file descriptor that libwebsockets does not take stays ours: only sockets are closed by a failed adoption, and this
   one is adopted as a file. */
static void adopt(carry_server *server, int file) {
    lws_sock_file_fd_type given = {.filefd = file};
    int one = 1, room = SEND_BUFFER;
    (void)setsockopt(file, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    (void)setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct lws *wsi = lws_adopt_descriptor_vhost(server->vhost, LWS_ADOPT_RAW_FILE_DESC, given, "client", NULL);
    if (wsi == NULL) {
        refuse(server, file, "and libwebsockets takes no more");
        return;
    }
    carry_server_add_client(server, wsi, file);
}

static void admit(carry_server *server, int file, const struct sockaddr_storage *from) {
    carry_address *address = carry_server_address(server, from);
    if (address == NULL || server->connections >= CARRY_SERVER_CONNECTIONS) {
        drop_oldest(server, NULL, 1);
        if (address != NULL) { /* for its next attempt */
            (void)carry_server_end_viewer_for(server, address);
        }
        refuse(server, file, "as many as there may be");
        return;
    }
    if (address->open >= CARRY_SERVER_SHARE) {
        drop_oldest(server, address, 1);
        refuse(server, file, "most of them of one address");
        return;
    }
    server->refusing = false;
    drop_oldest(server, address, CARRY_SERVER_HALF_OPEN);
    server->arriving = address;
    adopt(server, file);
}

/* No descriptor is left. The caller in front is hung up on by means of the spare one, else it would stay in front and
   wake us for ever. */
static bool shed_one(carry_server *server) {
    drop_oldest(server, NULL, 1);
    if (server->spare >= 0) {
        (void)close(server->spare);
        int file = accept4(server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (file >= 0) {
            refuse(server, file, "and this process may open no more files");
        }
    }
    server->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return server->spare >= 0;
}

void carry_server_accept(carry_server *server) {
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
