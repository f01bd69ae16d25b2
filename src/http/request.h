/* Parses the head of an HTTP/1.1 request strictly: lines end in CR LF, no folding, no duplicate of a header that is
   used here. Anything ambiguous is refused, because request smuggling relies on two parsers that disagree. */
#ifndef CARRY_HTTP_REQUEST_H
#define CARRY_HTTP_REQUEST_H

#include "http/http.h"

/* An HTTP status and an error message; status 0 means that the request is accepted. */
typedef struct carry_http_refusal {
    int status;
    const char *message;
} carry_http_refusal;

/* Returns the length up to and including the empty line; 0 if the empty line has not arrived. */
size_t carry_http_head_length(const char *text, size_t length);
/* head: those bytes, which are split into strings in place. */
carry_http_refusal carry_http_parse(carry_http_request *request, char *head, size_t length);
/* True for a request for a WebSocket that can be granted. */
bool carry_http_is_upgrade(const carry_http_request *request);

#endif
