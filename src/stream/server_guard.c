/* Who may ask. Three questions, in this order: is the request for a name of this machine (a page elsewhere that has its
   name pointed here, "DNS rebinding", asks under its own name); does it come from our own page (a browser tells the
   origin of every WebSocket and POST); does it know the token. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "stream/server_internal.h"

#define NAME 512 /* bytes of a Host or Origin that are looked at */

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

static bool knows_token(const carry_server *server, struct lws *wsi) {
    char given[CARRY_SERVER_TOKEN + 16];
    const char *bearer = "Bearer ";
    if (lws_hdr_copy(wsi, given, sizeof given, WSI_TOKEN_HTTP_AUTHORIZATION) > 0 &&
        strncasecmp(given, bearer, strlen(bearer)) == 0) {
        return carry_server_same_secret(given + strlen(bearer), server->token);
    }
    const char *argument = lws_get_urlarg_by_name(wsi, "token=", given, sizeof given);
    return argument != NULL && carry_server_same_secret(argument, server->token);
}

carry_refusal carry_server_guard(carry_server *server, struct lws *wsi) {
    char host[NAME], origin[NAME];
    if (lws_hdr_total_length(wsi, WSI_TOKEN_HOST) <= 0 || lws_hdr_copy(wsi, host, sizeof host, WSI_TOKEN_HOST) <= 0) {
        return (carry_refusal){400, "a request says in Host whom it asks"};
    }
    if (server->loopback && !carry_server_is_loopback(host, strlen(host))) {
        return (carry_refusal){403, "this server answers to names of this machine only, such as localhost"};
    }
    if (lws_hdr_total_length(wsi, WSI_TOKEN_ORIGIN) > 0 &&
        (lws_hdr_copy(wsi, origin, sizeof origin, WSI_TOKEN_ORIGIN) <= 0 || !same_origin(origin, host))) {
        return (carry_refusal){403, "this request comes from a page of another origin"};
    }
    if (server->token != NULL && !knows_token(server, wsi)) {
        return (carry_refusal){401, "a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN"};
    }
    return (carry_refusal){0};
}
