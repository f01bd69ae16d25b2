/* The head of an HTTP/1.1 request, read strictly: lines end in CR LF, nothing is folded, nothing that matters comes
   twice. What is doubtful is refused: two readers that understand a request differently are how requests are smuggled.
 */
#ifndef CARRY_STREAM_SERVER_REQUEST_H
#define CARRY_STREAM_SERVER_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct carry_http_request {
    const char *method, *path, *query;                                                /* query: "" when there is none */
    const char *host, *origin, *authorization, *upgrade, *connection, *key, *version; /* NULL: not there */
    const char *length, *encoding, *expect;                                           /* of the body, as they stand */
} carry_http_request;

/* Why a request is not answered: an HTTP status and an error message; 0 when it is. */
typedef struct carry_refusal {
    int status;
    const char *why;
} carry_refusal;

/* Bytes up to and with the empty line, or 0 when it has not come. */
size_t carry_http_request_end(const char *text, size_t length);
/* head: those bytes, which are cut into strings. */
carry_refusal carry_http_request_parse(carry_http_request *request, char *head, size_t length);
/* The value of name in the query, with %xx undone, into value. False: it is not there, or too long, or malformed. */
bool carry_http_request_argument(const carry_http_request *request, const char *name, char *value, size_t room);
/* A request for a WebSocket that can be granted. */
bool carry_http_request_is_upgrade(const carry_http_request *request);

#endif
