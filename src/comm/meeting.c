/* A rank listens at a socket named after it, connects to all ranks below it, and accepts connections from those above.
   It polls all accepted connections for their first bytes, so one that sends nothing delays no other. */
#include "comm/meeting.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "comm/ranks.h"
#include "core/clock.h"
#include "core/error.h"

static int joined; /* number of the next meeting of this process */

static int number_of(const char *name, int least, int most) {
    const char *text = getenv(name);
    char *end = NULL;
    const long value = text != NULL ? strtol(text, &end, 10) : -1;
    return text != NULL && end != text && *end == '\0' && value >= least && value <= most ? (int)value : -1;
}

carry_status carry_meeting_find(carry_ctx *ctx, int *rank, int *size) {
    *size = number_of("CARRY_RANKS", 1, CARRY_RANKS);
    *rank = number_of("CARRY_RANK", 0, *size - 1);
    if (*size < 0 || *rank < 0 || getenv("CARRY_MEET") == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "\"processes\" needs CARRY_RANK, CARRY_RANKS (1 to %d) and CARRY_MEET, a folder, in the "
                          "environment: carry --processes N sets them",
                          CARRY_RANKS);
    }
    return CARRY_OK;
}

static carry_status address_of(carry_ctx *ctx, struct sockaddr_un *address, int meeting, int rank) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int length =
        snprintf(address->sun_path, sizeof address->sun_path, "%s/%d.%d", getenv("CARRY_MEET"), meeting, rank);
    if (length < 0 || (size_t)length >= sizeof address->sun_path) {
        return carry_fail(ctx, CARRY_EARGUMENT, "CARRY_MEET: the folder's name has %d characters too many: '%s'",
                          length + 1 - (int)sizeof address->sun_path, getenv("CARRY_MEET"));
    }
    return CARRY_OK;
}

static carry_status failed(carry_ctx *ctx, const char *what) {
    return carry_fail(ctx, CARRY_EUNSUPPORTED, "processes cannot meet in '%s': %s: %s", getenv("CARRY_MEET"), what,
                      strerror(errno));
}

static carry_status missing(carry_ctx *ctx, int rank, double deadline) {
    return carry_fail(ctx, CARRY_ETIMEOUT, "open: rank %d did not come within the deadline (%.3f s waited)", rank,
                      deadline);
}

/* True if the other side is a process of this user. */
static bool is_ours(int line) {
    struct ucred who;
    socklen_t length = sizeof who;
    return getsockopt(line, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.uid == geteuid();
}

/* Tries to connect until the peer listens. The socket does not block, since connect would otherwise wait while the
   peer's queue of connections is full. */
static carry_status call(carry_ctx *ctx, int *line, int meeting, int rank, int peer, double until, double deadline) {
    struct sockaddr_un address;
    const int32_t self = rank;
    CARRY_TRY(address_of(ctx, &address, meeting, peer));
    *line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*line < 0) {
        return failed(ctx, "no socket");
    }
    while (connect(*line, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno != ENOENT && errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
            return failed(ctx, "cannot connect to a rank");
        }
        if (carry_seconds() > until) {
            return missing(ctx, peer, deadline);
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (!is_ours(*line)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "processes cannot meet in '%s': rank %d belongs to another user",
                          getenv("CARRY_MEET"), peer);
    }
    return send(*line, &self, sizeof self, MSG_NOSIGNAL) == (ssize_t)sizeof self ? CARRY_OK
                                                                                 : failed(ctx, "a rank hung up");
}

/* lines[0] listens. The others have connected and not yet sent their rank. */
typedef struct callers {
    struct pollfd lines[1 + CARRY_RANKS];
    int count;
} callers;

/* Waits until another process connects or sends something. */
static bool is_ready(callers *c, double until) {
    for (;;) {
        const double left = until - carry_seconds();
        const int count =
            poll(c->lines, (nfds_t)c->count, left > 0 ? (left < 1e3 ? (int)(1e3 * left) + 1 : 1000000) : 0);
        if (count > 0 || left <= 0) {
            return count > 0;
        }
    }
}

static void forget(callers *c, int index) {
    memmove(c->lines + index, c->lines + index + 1, (size_t)(c->count - index - 1) * sizeof c->lines[0]);
    c->count--;
}

/* If the list is full, closes the connection that has been silent longest. */
static carry_status answer(carry_ctx *ctx, callers *c) {
    const int line = accept4(c->lines[0].fd, NULL, NULL, SOCK_CLOEXEC);
    if (line < 0) {
        return errno == EINTR || errno == ECONNABORTED ? CARRY_OK : failed(ctx, "cannot accept a connection");
    }
    if (!is_ours(line)) {
        (void)close(line);
        return CARRY_OK;
    }
    if (c->count == 1 + CARRY_RANKS) {
        (void)close(c->lines[1].fd);
        forget(c, 1);
    }
    c->lines[c->count++] = (struct pollfd){.fd = line, .events = POLLIN};
    return CARRY_OK;
}

/* Reads the rank of one of the connections. Closes the connection unless it is a rank above this one. */
static void listen_to(callers *c, int index, int *sockets, int rank, int size) {
    int32_t peer = -1;
    const int line = c->lines[index].fd;
    forget(c, index);
    if (recv(line, &peer, sizeof peer, MSG_DONTWAIT) != (ssize_t)sizeof peer || peer <= rank || peer >= size ||
        sockets[peer] >= 0) {
        (void)close(line);
        return;
    }
    sockets[peer] = line;
}

static int first_missing(const int *sockets, int rank, int size) {
    for (int i = rank + 1; i < size; i++) {
        if (sockets[i] < 0) {
            return i;
        }
    }
    return -1;
}

static carry_status meet(carry_ctx *ctx, int listening, int *sockets, int rank, int size, double deadline) {
    const double until = carry_seconds() + deadline;
    for (int peer = 0; peer < rank; peer++) {
        CARRY_TRY(call(ctx, &sockets[peer], joined, rank, peer, until, deadline));
    }
    callers c = {.lines = {{.fd = listening, .events = POLLIN}}, .count = 1};
    carry_status status = CARRY_OK;
    for (int peer; status == CARRY_OK && (peer = first_missing(sockets, rank, size)) >= 0;) {
        if (!is_ready(&c, until)) {
            status = missing(ctx, peer, deadline);
        }
        for (int i = c.count - 1; i > 0 && status == CARRY_OK; i--) {
            if (c.lines[i].revents != 0) {
                listen_to(&c, i, sockets, rank, size);
            }
        }
        if (status == CARRY_OK && c.lines[0].revents != 0) {
            status = answer(ctx, &c);
        }
    }
    for (int i = 1; i < c.count; i++) {
        (void)close(c.lines[i].fd);
    }
    return status;
}

carry_status carry_meeting_join(carry_ctx *ctx, int *sockets, double deadline) {
    int rank, size;
    struct sockaddr_un address;
    CARRY_TRY(carry_meeting_find(ctx, &rank, &size));
    CARRY_TRY(address_of(ctx, &address, joined, rank));
    for (int i = 0; i < size; i++) {
        sockets[i] = -1;
    }
    const int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listening < 0) {
        return failed(ctx, "no socket");
    }
    carry_status status = CARRY_OK;
    (void)fchmod(listening, S_IRUSR | S_IWUSR); /* the permissions that bind gives the socket's file */
    if (bind(listening, (struct sockaddr *)&address, sizeof address) != 0) {
        status = failed(ctx, "this rank cannot create its socket");
    } else {
        status = listen(listening, size) == 0 ? meet(ctx, listening, sockets, rank, size, deadline)
                                              : failed(ctx, "this rank cannot listen");
        (void)unlink(address.sun_path);
    }
    (void)close(listening);
    joined++;
    for (int i = 0; i < size && status != CARRY_OK; i++) {
        if (sockets[i] >= 0) {
            (void)close(sockets[i]);
        }
    }
    return status;
}
