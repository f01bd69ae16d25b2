/* Files of the chat page. They need no API key: the page asks for it and sends it with its requests. */
#include "serve/page.h"

#include <string.h>

#include "serve/server_internal.h"

/* Trusted Types make a browser refuse plain strings as HTML or script, so that no model output can become either. */
#define POLICY                                                                                                       \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " \
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

static const struct {
    const char *path, *type;
    const unsigned char *bytes;
    const size_t *size;
} files[] = {
    {"/", "text/html; charset=utf-8", carry_chat_html, &carry_chat_html_size},
    {"/chat.css", "text/css; charset=utf-8", carry_chat_css, &carry_chat_css_size},
    {"/chat.js", "text/javascript; charset=utf-8", carry_chat_js, &carry_chat_js_size},
    {"/chat.svg", "image/svg+xml", carry_chat_icon, &carry_chat_icon_size},
};

#define FILES (sizeof files / sizeof files[0])

static void get_file(void *user, carry_http_response *response, const carry_http_request *request) {
    for (size_t i = 0; i < FILES; i++) {
        if (strcmp(request->path, files[i].path) == 0) {
            (void)carry_http_add_header(response, "Content-Security-Policy", POLICY);
            carry_serve_count(user, 200);
            carry_http_reply(response, 200, files[i].type, files[i].bytes, *files[i].size);
            return;
        }
    }
    carry_http_reply_error(response, 404, "not found"); /* unreachable: only paths in the table have routes */
}

void carry_serve_add_page(carry_lm_server *s) {
    for (size_t i = 0; i < FILES && s->route_count < CARRY_SERVE_ROUTES; i++) {
        s->routes[s->route_count++] = (carry_http_route){"GET", files[i].path, get_file, 0};
    }
}
