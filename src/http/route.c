/* Finds the handler of a request and calls it. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/http_internal.h"

#define METHODS 128 /* bytes of a list of methods */

int carry_http_refuse(carry_http_server *server, carry_http_connection *connection, int status, const char *message) {
    connection->response = carry_http_response_new(server, &connection->request);
    if (connection->response == NULL) {
        return -1;
    }
    connection->response->handling = true;
    carry_http_reply_error(connection->response, status, message);
    connection->response->handling = false; /* ended: only the connection still refers to it */
    return 0;
}

int carry_http_handle(carry_http_server *server, carry_http_connection *connection) {
    carry_http_response *response = carry_http_response_new(server, &connection->request);
    if (response == NULL) {
        return -1;
    }
    connection->response = response;
    response->handling = true;
    connection->route->handle(server->options.user, response, &connection->request);
    (void)pthread_mutex_lock(&response->lock); /* valid: the connection still refers to it */
    response->handling = false;
    (void)pthread_mutex_unlock(&response->lock);
    return 0;
}

const carry_http_endpoint *carry_http_endpoint_of(const carry_http_server *server, const char *path) {
    for (size_t i = 0; i < server->options.endpoint_count; i++) {
        if (strcmp(server->options.endpoints[i].path, path) == 0) {
            return &server->options.endpoints[i];
        }
    }
    return NULL;
}

/* Returns the part of path that '*' in the pattern matches, "" if the pattern has no '*', or NULL if the path does not
   match. */
static const char *match(const char *pattern, const char *path) {
    size_t length = strlen(pattern);
    if (length > 0 && pattern[length - 1] == '*') {
        return strncmp(pattern, path, length - 1) == 0 ? path + length - 1 : NULL;
    }
    return strcmp(pattern, path) == 0 ? "" : NULL;
}

static bool accepts(const char *route, const char *method) {
    return strcmp(route, method) == 0 || (strcmp(route, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

/* Lists the methods of a path, as in Allow; "" if the path has no route. */
static void list_methods(const carry_http_server *server, const char *path, char list[METHODS]) {
    size_t used = 0;
    list[0] = '\0';
    for (size_t i = 0; i < server->options.route_count; i++) {
        const carry_http_route *route = &server->options.routes[i];
        if (match(route->path, path) != NULL && strstr(list, route->method) == NULL) {
            int more = snprintf(list + used, METHODS - used, "%s%s%s", used > 0 ? ", " : "", route->method,
                                strcmp(route->method, "GET") == 0 ? ", HEAD" : "");
            used = more > 0 && (size_t)more < METHODS - used ? used + (size_t)more : used;
            list[used] = '\0';
        }
    }
}

/* Starts to read a body, or refuses it. */
static int begin_body(carry_http_server *server, carry_http_connection *connection) {
    const char *digits = connection->request.content_length;
    size_t limit = connection->route->body_limit;
    if (digits == NULL || connection->request.transfer_encoding != NULL) {
        return carry_http_refuse(server, connection, 411, "a body needs a Content-Length and no Transfer-Encoding");
    }
    if (*digits == '\0' || strspn(digits, "0123456789") != strlen(digits)) {
        return carry_http_refuse(server, connection, 400, "Content-Length: expected a number");
    }
    unsigned long length = strlen(digits) <= 9 ? strtoul(digits, NULL, 10) : ULONG_MAX;
    if (length > limit) {
        char message[96];
        bool whole = limit % 1024 == 0;
        (void)snprintf(message, sizeof message, "the body is larger than %zu %s", whole ? limit / 1024 : limit,
                       whole ? "KiB" : "bytes");
        return carry_http_refuse(server, connection, 413, message);
    }
    if (length == 0) {
        return carry_http_refuse(server, connection, 400, "the body is empty");
    }
    connection->body_length = length;
    return 0;
}

static int refuse_method(carry_http_server *server, carry_http_connection *connection, const char *methods) {
    char message[METHODS + 64];
    connection->response = carry_http_response_new(server, &connection->request);
    if (connection->response == NULL) {
        return -1;
    }
    (void)snprintf(message, sizeof message, "method %.20s: expected %s", connection->request.method, methods);
    connection->response->handling = true;
    (void)carry_http_add_header(connection->response, "Allow", methods);
    carry_http_reply_error(connection->response, 405, message);
    connection->response->handling = false;
    return 0;
}

/* Called only for origins that guard.c has admitted. */
static int reply_preflight(carry_http_server *server, carry_http_connection *connection, const char *methods) {
    connection->response = carry_http_response_new(server, &connection->request);
    if (connection->response == NULL) {
        return -1;
    }
    connection->response->handling = true;
    (void)carry_http_add_header(connection->response, "Access-Control-Allow-Methods", methods);
    (void)carry_http_add_header(connection->response, "Access-Control-Allow-Headers",
                                "Authorization, Content-Type, X-Api-Key");
    carry_http_reply(connection->response, 204, NULL, NULL, 0);
    connection->response->handling = false;
    return 0;
}

int carry_http_route_request(carry_http_server *server, carry_http_connection *connection) {
    carry_http_request *request = &connection->request;
    carry_http_refusal refusal = carry_http_guard(server, connection->address, request);
    if (refusal.status != 0) {
        return carry_http_refuse(server, connection, refusal.status, refusal.message);
    }
    for (size_t i = 0; i < server->options.route_count; i++) {
        const carry_http_route *route = &server->options.routes[i];
        const char *rest = match(route->path, request->path);
        if (rest != NULL && accepts(route->method, request->method)) {
            request->rest = rest;
            connection->route = route;
            return route->body_limit > 0 ? begin_body(server, connection) : carry_http_handle(server, connection);
        }
    }
    char methods[METHODS];
    list_methods(server, request->path, methods);
    if (methods[0] != '\0' && strcmp(request->method, "OPTIONS") == 0 && request->origin != NULL) {
        return reply_preflight(server, connection, methods);
    }
    if (methods[0] != '\0') {
        return refuse_method(server, connection, methods);
    }
    return carry_http_endpoint_of(server, request->path) != NULL
               ? carry_http_refuse(server, connection, 400, "this path accepts WebSockets only")
               : carry_http_refuse(server, connection, 404, "not found");
}
