#include "http/request.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define KEY 24 /* length of 16 bytes in base64 */

size_t carry_http_head_length(const char *text, size_t length) {
    const char *end = memmem(text, length, "\r\n\r\n", 4);
    return end != NULL ? (size_t)(end - text) + 4 : 0;
}

/* RFC 9110, token: letters, digits and other tchar. */
static bool is_token(const char *text) {
    if (*text == '\0') {
        return false;
    }
    for (; *text != '\0'; text++) {
        if (!isalnum((unsigned char)*text) && strchr("!#$%&'*+-.^_`|~", *text) == NULL) {
            return false;
        }
    }
    return true;
}

static const carry_http_refusal malformed = {400, "this is not an HTTP request"};

static carry_http_refusal parse_first_line(carry_http_request *request, char *line) {
    char *target = strchr(line, ' ');
    char *version = target != NULL ? strchr(target + 1, ' ') : NULL;
    if (version == NULL) {
        return malformed;
    }
    *target++ = '\0';
    *version++ = '\0';
    if (!is_token(line) || (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)) {
        return malformed;
    }
    if (*target != '/') {
        return (carry_http_refusal){400, "the path of a request must start with /"};
    }
    char *query = strchr(target, '?');
    if (query != NULL) {
        *query++ = '\0';
    }
    request->method = line;
    request->path = target;
    request->query = query != NULL ? query : "";
    request->is_http10 = strcmp(version, "HTTP/1.0") == 0;
    return (carry_http_refusal){0};
}

static carry_http_refusal parse_field(carry_http_request *request, char *line) {
    const struct {
        const char *name;
        const char **to;
    } known[] = {
        {"host", &request->host},
        {"origin", &request->origin},
        {"authorization", &request->authorization},
        {"x-api-key", &request->api_key},
        {"upgrade", &request->upgrade},
        {"connection", &request->connection},
        {"sec-websocket-key", &request->key},
        {"sec-websocket-version", &request->version},
        {"content-length", &request->content_length},
        {"transfer-encoding", &request->transfer_encoding},
        {"expect", &request->expect},
    };
    char *value = strchr(line, ':');
    if (value == NULL) {
        return malformed;
    }
    *value++ = '\0';
    if (!is_token(line)) {
        return malformed;
    }
    value += strspn(value, " \t");
    for (size_t end = strlen(value); end > 0 && (value[end - 1] == ' ' || value[end - 1] == '\t'); end--) {
        value[end - 1] = '\0';
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcasecmp(line, known[i].name) != 0) {
            continue;
        }
        if (*known[i].to != NULL) {
            return (carry_http_refusal){400, "duplicate header"};
        }
        *known[i].to = value;
    }
    return (carry_http_refusal){0};
}

carry_http_refusal carry_http_parse(carry_http_request *request, char *head, size_t length) {
    *request = (carry_http_request){.rest = "", .body = "", .fields_end = head + length};
    for (size_t i = 0; i < length; i++) { /* CR LF and tabs are the only control characters */
        unsigned char c = (unsigned char)head[i];
        bool ends = c == '\r' ? i + 1 < length && head[i + 1] == '\n' : c == '\n' && i > 0 && head[i - 1] == '\r';
        if ((c < 0x20 && c != '\t' && !ends) || c == 0x7F) {
            return malformed;
        }
    }
    bool first = true;
    for (char *line = head; line < head + length - 2;) {
        char *end = memchr(line, '\r', (size_t)(head + length - line));
        *end = '\0'; /* end is not NULL: the head ends with a line end */
        carry_http_refusal refusal = first ? parse_first_line(request, line) : parse_field(request, line);
        if (refusal.status != 0) {
            return refusal;
        }
        line = end + 2;
        request->fields = first ? line : request->fields;
        first = false;
    }
    return first ? malformed : (carry_http_refusal){0};
}

static int hex(char c) {
    const char *digits = "0123456789abcdef";
    const char *found = c != '\0' ? strchr(digits, tolower((unsigned char)c)) : NULL;
    return found != NULL ? (int)(found - digits) : -1;
}

static bool decode(const char *from, size_t length, char *value, size_t capacity) {
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        int c = (unsigned char)from[i];
        if (c == '%') {
            int high = i + 2 < length ? hex(from[i + 1]) : -1, low = i + 2 < length ? hex(from[i + 2]) : -1;
            if (high < 0 || low < 0) {
                return false;
            }
            c = 16 * high + low;
            i += 2;
        }
        if (c == 0 || used + 1 >= capacity) {
            return false;
        }
        value[used++] = (char)c;
    }
    value[used] = '\0';
    return true;
}

/* Parsing has put a NUL after names and values; lines still end with a line feed. The last line, which is empty, has no
   NUL and is not compared. */
const char *carry_http_header(const carry_http_request *request, const char *name) {
    for (const char *line = request->fields; line != NULL && line < request->fields_end - 2;) {
        const char *end = memchr(line, '\n', (size_t)(request->fields_end - line));
        if (end == NULL) {
            break;
        }
        if (strcasecmp(line, name) == 0) {
            const char *value = line + strlen(line) + 1;
            return value + strspn(value, " \t");
        }
        line = end + 1;
    }
    return NULL;
}

bool carry_http_query(const carry_http_request *request, const char *name, char *value, size_t capacity) {
    size_t length = strlen(name);
    for (const char *at = request->query; *at != '\0';) {
        size_t part = strcspn(at, "&");
        if (part > length && at[length] == '=' && strncmp(at, name, length) == 0) {
            return decode(at + length + 1, part - length - 1, value, capacity);
        }
        at += part + (at[part] == '&');
    }
    return false;
}

bool carry_http_is_upgrade(const carry_http_request *request) {
    if (request->key == NULL || request->version == NULL || request->connection == NULL ||
        strcmp(request->method, "GET") != 0 || strcmp(request->version, "13") != 0 || strlen(request->key) != KEY ||
        strcasestr(request->connection, "upgrade") == NULL) {
        return false;
    }
    for (size_t i = 0; i < KEY; i++) {
        char c = request->key[i];
        if (!isalnum((unsigned char)c) && c != '+' && c != '/' && !(c == '=' && i >= KEY - 2)) {
            return false;
        }
    }
    return true;
}
