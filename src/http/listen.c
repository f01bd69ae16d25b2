/* Checks of the options, and the listening socket. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "core/error.h"
#include "http/http_internal.h"

#define BACKLOG 128
#define CONNECTIONS 4096 /* largest number of connections */

carry_status carry_http_listen(carry_ctx *ctx, carry_http_server *server, const char *address, int port) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *found;
    char number[16];
    (void)snprintf(number, sizeof number, "%d", port);
    if (getaddrinfo(strcmp(address, "localhost") == 0 ? "127.0.0.1" : address, number, &hints, &found) != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "'%s' is not a numeric address: expected one such as 127.0.0.1 or ::1",
                          address);
    }
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound;
    memset(&bound, 0, sizeof bound);
    socklen_t size = sizeof bound;
    int one = 1;
    server->listener = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool good = server->listener >= 0 &&
                setsockopt(server->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                bind(server->listener, found->ai_addr, found->ai_addrlen) == 0 &&
                listen(server->listener, BACKLOG) == 0 && getsockname(server->listener, &bound.any, &size) == 0;
    int error = errno;
    freeaddrinfo(found);
    if (!good) {
        return carry_fail(ctx, CARRY_EIO, "cannot listen on port %d of %s: %s", port, address, strerror(error));
    }
    server->port = ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
    return CARRY_OK;
}

carry_status carry_http_check_options(carry_ctx *ctx, const carry_http_options *options, const char *address,
                                      bool loopback) {
    if (options->port < 0 || options->port > 65535) {
        return carry_fail(ctx, CARRY_EARGUMENT, "port %d: expected 0 (any) to 65535", options->port);
    }
    if (options->token == NULL && !loopback && !options->open) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "the address %s can be reached from other machines: a token or an API key is needed%s%s",
                          address, options->advice != NULL ? ": " : "", options->advice != NULL ? options->advice : "");
    }
    size_t length = options->token != NULL ? strlen(options->token) : CARRY_HTTP_TOKEN_LEAST;
    for (size_t i = 0; options->token != NULL && i < length; i++) {
        if (options->token[i] <= ' ' || options->token[i] >= 0x7F) {
            return carry_fail(ctx, CARRY_EARGUMENT, "a token has visible ASCII characters only");
        }
    }
    if (length < CARRY_HTTP_TOKEN_LEAST || length >= CARRY_HTTP_TOKEN) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a token has %d to %d characters, not %zu", CARRY_HTTP_TOKEN_LEAST,
                          CARRY_HTTP_TOKEN - 1, length);
    }
    if (!(options->patience >= 0.0 && options->patience <= 3600.0)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "patience %g: expected 0 (30 s) to 3600 s", options->patience);
    }
    if (options->connections < 0 || options->connections > CONNECTIONS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "connections %d: expected 0 (%d) to %d", options->connections,
                          CARRY_HTTP_CONNECTIONS, CONNECTIONS);
    }
    for (size_t i = 0; i < options->route_count; i++) {
        if (options->routes[i].body_limit > CARRY_HTTP_BODY_LIMIT) {
            return carry_fail(ctx, CARRY_EARGUMENT, "route %s: a body limit of over %zu bytes", options->routes[i].path,
                              CARRY_HTTP_BODY_LIMIT);
        }
    }
    return CARRY_OK;
}
