/* Access checks: the headers Host and Origin, then the token. Checking Host stops DNS rebinding: if another site makes
   its name resolve to this machine, requests of its pages have that name in Host. Checking Origin stops pages of other
   sites from using this server: browsers send the origin of the page with every WebSocket and POST. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "http/http_internal.h"

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

bool carry_http_is_loopback(const char *name, size_t length) {
    length = without_port(name, length);
    if (is_text(name, length, "localhost") || is_text(name, length, "[::1]")) {
        return true;
    }
    const size_t suffix = strlen(".localhost");
    if (length > suffix && is_text(name + length - suffix, suffix, ".localhost")) {
        return true;
    }
    int dots = 0;
    for (size_t i = 0; i < length; i++) { /* 127.0.0.1.example.com is another machine */
        dots += name[i] == '.';
        if (name[i] != '.' && !isdigit((unsigned char)name[i])) {
            return false;
        }
    }
    return dots == 3 && length > 4 && strncmp(name, "127.", 4) == 0;
}

bool carry_http_same_secret(const char *given, const char *secret) {
    size_t given_length = strlen(given), length = strlen(secret);
    volatile unsigned char difference = given_length != length;
    for (size_t i = 0; i < length; i++) { /* compares in constant time */
        difference = (unsigned char)(difference | (given[given_length > 0 ? i % given_length : 0] ^ secret[i]));
    }
    return difference == 0;
}

static bool is_public(const carry_http_server *server, const char *path) {
    const char *const *one = server->options.public_paths;
    while (one != NULL && *one != NULL && strcmp(*one, path) != 0) {
        one++;
    }
    return one != NULL && *one != NULL;
}

static bool is_listed(char *const *list, const char *name) {
    for (; list != NULL && *list != NULL; list++) {
        if (strcasecmp(*list, name) == 0) {
            return true;
        }
    }
    return false;
}

/* True for addresses such as "192.0.2.1:80" and "[2001:db8::1]", which DNS cannot redirect. */
static bool is_numeric(const char *host) {
    size_t length = without_port(host, strlen(host));
    return length > 0 && (host[0] == '[' || strspn(host, "0123456789.") >= length);
}

/* With a token any host name is allowed: a foreign page does not know the token. */
static bool allows_host(const carry_http_server *server, const char *host) {
    char name[CARRY_HTTP_HEADERS + 1];
    size_t length = without_port(host, strlen(host));
    if (carry_http_is_loopback(host, strlen(host))) {
        return true;
    }
    memcpy(name, host, length);
    name[length] = '\0';
    if (is_listed(server->hosts, host) || is_listed(server->hosts, name)) {
        return true;
    }
    return !server->loopback && (server->token != NULL || is_numeric(host));
}

bool carry_http_allows_origin(const carry_http_server *server, const char *origin) {
    return is_listed(server->origins, origin);
}

static bool same_origin(const char *origin, const char *host) {
    if (strncasecmp(origin, "http://", 7) == 0) {
        origin += 7;
    } else if (strncasecmp(origin, "https://", 8) == 0) { /* the server is behind a proxy */
        origin += 8;
    } else {
        return false;
    }
    return strcasecmp(origin, host) == 0;
}

/* Returns the token of a request, or NULL. */
static const char *given_token(const carry_http_request *request, char buffer[CARRY_HTTP_TOKEN]) {
    const char *bearer = "Bearer ";
    if (request->authorization != NULL && strncasecmp(request->authorization, bearer, strlen(bearer)) == 0) {
        return request->authorization + strlen(bearer);
    }
    if (request->api_key != NULL) {
        return request->api_key;
    }
    return carry_http_query(request, "token", buffer, CARRY_HTTP_TOKEN) ? buffer : NULL;
}

/* The right token is always accepted, so that one client cannot lock out others at its address. A token of
   CARRY_HTTP_TOKEN_LEAST characters cannot be guessed. */
static carry_http_refusal check_token(const carry_http_server *server, carry_http_address *address,
                                      const carry_http_request *request) {
    char buffer[CARRY_HTTP_TOKEN];
    const char *given = given_token(request, buffer);
    if (given != NULL && carry_http_same_secret(given, server->token)) {
        return (carry_http_refusal){0};
    }
    if (given != NULL && !carry_http_may_guess(address)) {
        return (carry_http_refusal){429, "too many wrong tokens from this address: wait some seconds"};
    }
    if (given != NULL) {
        carry_http_guessed_wrong(address);
    }
    return (carry_http_refusal){401, "a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN"};
}

/* True for a browser's question whether a page of another origin may send a request; it comes without the token. */
static bool is_preflight(const carry_http_request *request) {
    return strcmp(request->method, "OPTIONS") == 0 && request->origin != NULL &&
           carry_http_header(request, "access-control-request-method") != NULL;
}

carry_http_refusal carry_http_guard(const carry_http_server *server, carry_http_address *address,
                                    const carry_http_request *request) {
    if (request->host == NULL || *request->host == '\0') {
        return (carry_http_refusal){400, "the request has no Host header"};
    }
    if (!allows_host(server, request->host)) {
        return (carry_http_refusal){403, "Host: expected a name of this machine, such as localhost"};
    }
    if (request->origin != NULL && !same_origin(request->origin, request->host) &&
        !carry_http_allows_origin(server, request->origin)) {
        return (carry_http_refusal){403, "this request comes from a page of another origin"};
    }
    if (server->token == NULL || is_preflight(request) || is_public(server, request->path)) {
        return (carry_http_refusal){0};
    }
    return check_token(server, address, request);
}
