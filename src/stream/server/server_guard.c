/* Who may ask. Three questions, in this order: is the request for a name of this machine (a page elsewhere that has its
   name pointed here, "DNS rebinding", asks under its own name); does it come from our own page (a browser tells the
   origin of every WebSocket and POST); does it know the token. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "stream/server/server_internal.h"

static size_t without_port(const char *name, size_t length) {
    if (length > 0 && name[0] == '[') {
        const char *end = memchr(name, ']', length);
        return end != NULL ? (size_t)(end - name) + 1 : 0;
    }
    const char *colon = memchr(name, ':', length);
    return colon != NULL ? (size_t)(colon - name) : length;
}

static bool is_text(const char *name, size_t length, const char *text) {
    return length == strlen(text) && strncasecmp(name, text, length) == 0;
}

bool carry_server_is_loopback(const char *name, size_t length) {
    length = without_port(name, length);
    if (is_text(name, length, "localhost") || is_text(name, length, "[::1]")) {
        return true;
    }
    const size_t suffix = strlen(".localhost");
    if (length > suffix && is_text(name + length - suffix, suffix, ".localhost")) {
        return true;
    }
    int dots = 0;
    for (size_t i = 0; i < length; i++) { /* 127.0.0.1.example.com is somebody else's */
        dots += name[i] == '.';
        if (name[i] != '.' && !isdigit((unsigned char)name[i])) {
            return false;
        }
    }
    return dots == 3 && length > 4 && strncmp(name, "127.", 4) == 0;
}

bool carry_server_same_secret(const char *given, const char *secret) {
    size_t given_length = strlen(given), length = strlen(secret);
    volatile unsigned char difference = given_length != length;
    for (size_t i = 0; i < length; i++) { /* as long for every guess */
        difference = (unsigned char)(difference | (given[given_length > 0 ? i % given_length : 0] ^ secret[i]));
    }
    return difference == 0;
}

static bool same_origin(const char *origin, const char *host) {
    if (strncasecmp(origin, "http://", 7) == 0) {
        origin += 7;
    } else if (strncasecmp(origin, "https://", 8) == 0) { /* behind somebody's proxy */
        origin += 8;
    } else {
        return false;
    }
    return strcasecmp(origin, host) == 0;
}

/* The token that was given, or NULL. */
static const char *given_token(const carry_http_request *request, char room[CARRY_SERVER_TOKEN]) {
    const char *bearer = "Bearer ";
    if (request->authorization != NULL && strncasecmp(request->authorization, bearer, strlen(bearer)) == 0) {
        return request->authorization + strlen(bearer);
    }
    return carry_http_request_argument(request, "token", room, CARRY_SERVER_TOKEN) ? room : NULL;
}

/* Wrong tokens are counted for each address. The right one always passes, so that an address that several people share
   is not locked out by one of them; no number of guesses finds a token of CARRY_SERVER_TOKEN_LEAST characters. */
static carry_refusal check_token(const carry_server *server, carry_address *address,
                                 const carry_http_request *request) {
    char room[CARRY_SERVER_TOKEN];
    const char *given = given_token(request, room);
    if (given != NULL && carry_server_same_secret(given, server->token)) {
        return (carry_refusal){0};
    }
    if (given != NULL && !carry_server_may_guess(address)) {
        return (carry_refusal){429, "too many wrong tokens came from this address: wait some seconds"};
    }
    if (given != NULL) {
        carry_server_guessed_wrong(address);
    }
    return (carry_refusal){401, "a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN"};
}

carry_refusal carry_server_guard(const carry_server *server, carry_address *address,
                                 const carry_http_request *request) {
    if (request->host == NULL || *request->host == '\0') {
        return (carry_refusal){400, "the request has no Host header"};
    }
    if (server->loopback && !carry_server_is_loopback(request->host, strlen(request->host))) {
        return (carry_refusal){403, "this server answers to names of this machine only, such as localhost"};
    }
    if (request->origin != NULL && !same_origin(request->origin, request->host)) {
        return (carry_refusal){403, "this request comes from a page of another origin"};
    }
    return server->token != NULL ? check_token(server, address, request) : (carry_refusal){0};
}
