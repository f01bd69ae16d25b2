/* An HTTP client that works on raw bytes, so it can send requests that a library would not. Reads have a deadline: a
   silent server fails a test instead of hanging it. */
#ifndef CARRY_TESTS_HTTP_CLIENT_H
#define CARRY_TESTS_HTTP_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "support.h"

#define PATIENCE SUPPORT_PATIENCE

static inline int knock(int port) {
    int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(to >= 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(to, (struct sockaddr *)&at, sizeof at), 0);
    return to;
}

/* False if the server closes the connection meanwhile. */
static inline bool say(int to, const void *bytes, size_t length) {
    const char *from = bytes;
    while (length > 0) {
        ssize_t sent = send(to, from, length, MSG_NOSIGNAL);
        if (sent <= 0) {
            return false;
        }
        from += sent;
        length -= (size_t)sent;
    }
    return true;
}

/* The number of bytes read, 0 if the other side has closed, -1 if nothing came in time. */
static inline ssize_t hear(int from, void *bytes, size_t room, double seconds) {
    struct pollfd wait = {.fd = from, .events = POLLIN};
    if (poll(&wait, 1, (int)(seconds * 1000.0)) <= 0) {
        return -1;
    }
    ssize_t got = recv(from, bytes, room, 0);
    return got < 0 ? 0 : got;
}

typedef struct reply {
    int status; /* 0: closed without an answer */
    size_t length;
    char text[64 << 10]; /* head and body, as much as fits */
    const char *body;
} reply;

static inline size_t content_length(const char *head) {
    const char *at = strstr(head, "Content-Length: ");
    return at != NULL ? (size_t)strtoul(at + 16, NULL, 10) : 0;
}

/* Reads one answer from a connection that may stay open. */
static inline void hear_reply(int from, reply *r) {
    r->length = 0;
    r->body = "";
    r->status = 0;
    size_t whole = sizeof r->text - 1;
    while (r->length < whole) {
        ssize_t got = hear(from, r->text + r->length, sizeof r->text - 1 - r->length, PATIENCE);
        if (got < 0) {
            fail_msg("the server says nothing, after %zu bytes", r->length);
        }
        if (got == 0) {
            break;
        }
        r->length += (size_t)got;
        r->text[r->length] = '\0';
        const char *end = strstr(r->text, "\r\n\r\n");
        if (end != NULL) {
            whole = (size_t)(end + 4 - r->text) + content_length(r->text);
            whole = whole < sizeof r->text - 1 ? whole : sizeof r->text - 1;
        }
    }
    r->text[r->length] = '\0';
    if (sscanf(r->text, "HTTP/1.1 %d ", &r->status) == 1) {
        const char *end = strstr(r->text, "\r\n\r\n");
        r->body = end != NULL ? end + 4 : "";
    }
}

static inline reply *exchange(int port, const char *request, size_t length) {
    static reply r;
    int to = knock(port);
    (void)say(to, request, length);
    hear_reply(to, &r);
    (void)close(to);
    return &r;
}

/* headers: further lines, each with its line end; body may be NULL. */
static inline reply *ask_for(int port, const char *method, const char *path, const char *headers, const char *body) {
    static char request[600 << 10];
    int length =
        snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: localhost:%d\r\n%s", method, path, port, headers);
    if (body != NULL) {
        length += snprintf(request + length, sizeof request - (size_t)length, "Content-Length: %zu\r\n\r\n%s",
                           strlen(body), body);
    } else {
        length += snprintf(request + length, sizeof request - (size_t)length, "\r\n");
    }
    return exchange(port, request, (size_t)length);
}

#define assert_reply(r, expected, words)                                                              \
    do {                                                                                              \
        const reply *support_reply = (r);                                                             \
        if (support_reply->status != (expected) || !strstr(support_reply->text, (words))) {           \
            fail_msg("%s: expected %d with '%s', got: %s", #r, expected, words, support_reply->text); \
        }                                                                                             \
    } while (0)

/* Upgrades a new connection to a WebSocket. Returns the connection after status 101; else -1, with the status in
 *status. */
static inline int ws_upgrade(int to, int port, const char *path, const char *headers, int *status) {
    char request[2048];
    int length = snprintf(request, sizeof request,
                          "GET %s HTTP/1.1\r\nHost: localhost:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                          "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n",
                          path, port, headers);
    assert_true(say(to, request, (size_t)length));
    char head[4096];
    size_t got = 0;
    while (got < sizeof head - 1 && (got < 4 || strstr(head, "\r\n\r\n") == NULL)) {
        ssize_t one =
            hear(to, head + got, 1, PATIENCE); /* byte by byte, so that no byte of the first message is read */
        if (one <= 0) {
            break;
        }
        got++;
        head[got] = '\0';
    }
    *status = 0;
    (void)sscanf(head, "HTTP/1.1 %d ", status);
    if (*status == 101) {
        assert_non_null(strstr(head, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")); /* RFC 6455's own example */
        return to;
    }
    (void)close(to);
    return -1;
}

static inline int ws_open(int port, const char *path, const char *headers, int *status) {
    return ws_upgrade(knock(port), port, path, headers, status);
}

static inline int ws_join(int port) {
    int status, to = ws_open(port, "/ws", "", &status);
    assert_int_equal(status, 101);
    return to;
}

/* Sends the header of a frame that claims `claimed` bytes, masked with zeros, and then `length` bytes. */
static inline bool ws_say(int to, int opcode, bool final, uint64_t claimed, const void *bytes, size_t length) {
    unsigned char head[14] = {(unsigned char)((final ? 0x80 : 0) | opcode)};
    size_t size = 2;
    if (claimed < 126) {
        head[1] = (unsigned char)(0x80 | claimed);
    } else {
        head[1] = 0x80 | 127;
        for (int i = 0; i < 8; i++) {
            head[size++] = (unsigned char)(claimed >> (56 - 8 * i));
        }
    }
    size += 4;
    return say(to, head, size) && say(to, bytes, length);
}

static inline bool ws_text(int to, const char *text) {
    return ws_say(to, 1, true, strlen(text), text, strlen(text));
}

typedef struct message {
    int opcode; /* 0: the connection has ended */
    size_t length;
    unsigned char bytes[256 << 10];
} message;

static inline bool hear_all(int from, unsigned char *bytes, size_t length) {
    for (size_t got = 0; got < length;) {
        ssize_t more = hear(from, bytes + got, length - got, PATIENCE);
        if (more < 0) {
            fail_msg("the server says nothing");
        }
        if (more == 0) {
            return false;
        }
        got += (size_t)more;
    }
    return true;
}

static inline void ws_hear_any(int from, message *m) {
    unsigned char head[10];
    m->opcode = 0;
    m->length = 0;
    if (!hear_all(from, head, 2)) {
        return;
    }
    uint64_t length = head[1] & 0x7F;
    int more = length == 126 ? 2 : length == 127 ? 8 : 0;
    if (!hear_all(from, head + 2, (size_t)more)) {
        return;
    }
    for (int i = 0; i < more; i++) {
        length = (i == 0 ? 0 : length << 8) | head[2 + i];
    }
    assert_true(length < sizeof m->bytes);
    assert_int_equal(head[1] & 0x80, 0); /* a server does not mask */
    if (hear_all(from, m->bytes, (size_t)length)) {
        m->opcode = head[0] & 0x0F;
        m->length = (size_t)length;
        m->bytes[length] = '\0';
    }
}

/* The next message; pings are answered, as browsers do. */
static inline void ws_hear(int from, message *m) {
    for (ws_hear_any(from, m); m->opcode == 9; ws_hear_any(from, m)) {
        (void)ws_say(from, 10, true, m->length, m->bytes, m->length);
    }
}

/* The next message of this kind; others are skipped. */
static inline void ws_hear_kind(int from, int opcode, message *m) {
    do {
        ws_hear(from, m);
    } while (m->opcode != 0 && m->opcode != opcode);
    assert_int_equal(m->opcode, opcode);
}

/* Reads the text message that answers the last one sent, and skips state messages. */
static inline void ws_hear_answer(int from, message *m) {
    do {
        ws_hear_kind(from, 1, m);
    } while (strncmp((char *)m->bytes, "{\"done\"", 7) != 0 && strncmp((char *)m->bytes, "{\"error\"", 8) != 0);
}

static inline uint64_t little64(const unsigned char *at) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) {
        value = value << 8 | at[i];
    }
    return value;
}

/* The code of the close message, or 0 if the connection ended without one. */
static inline int ws_hear_close(int from) {
    static message m;
    do {
        ws_hear(from, &m);
    } while (m.opcode != 0 && m.opcode != 8);
    return m.opcode == 8 && m.length >= 2 ? m.bytes[0] << 8 | m.bytes[1] : 0;
}

#endif
