/* Arbitrary bytes as the head of an HTTP request: refused with a status and a message, or split into strings inside the
   head. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "http/request.h"

static void check_within(const char *text, const char *head, size_t length) {
    if (text != NULL && *text != '\0' && (text < head || text + strlen(text) >= head + length)) {
        abort();
    }
}

static void check(const carry_http_request *r, const char *head, size_t length) {
    const char *const texts[] = {
        r->method,  r->path,       r->query, r->host,    r->origin,         r->authorization,     r->api_key,
        r->upgrade, r->connection, r->key,   r->version, r->content_length, r->transfer_encoding, r->expect};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        check_within(texts[i], head, length);
    }
    if (r->path[0] != '/' || r->method[0] == '\0' || carry_http_header(r, "host") != r->host ||
        carry_http_header(r, "CONTENT-LENGTH") != r->content_length) {
        abort();
    }
    char value[16];
    if (carry_http_query(r, "token", value, sizeof value) && strlen(value) >= sizeof value) {
        abort();
    }
    (void)carry_http_is_upgrade(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *head = malloc(size + 1);
    carry_http_request request;
    if (head == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(head, data, size);
    }
    size_t length = carry_http_head_length(head, size);
    if (length > 0) {
        carry_http_refusal refusal = carry_http_parse(&request, head, length);
        if ((refusal.status != 0) != (refusal.message != NULL)) {
            abort();
        }
        if (refusal.status == 0) {
            check(&request, head, length);
        }
    }
    free(head);
    return 0;
}
