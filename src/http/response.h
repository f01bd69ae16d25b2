/* Internals of a response. The connection and the responder, which may be on another thread, both hold a reference to
   it. */
#ifndef CARRY_HTTP_RESPONSE_H
#define CARRY_HTTP_RESPONSE_H

#include <pthread.h>

#include "http/http.h"

#define CARRY_HTTP_FIELDS 1024 /* at most this many bytes of added headers */

struct carry_http_response {
    /* Constants. */
    pthread_t thread; /* the server's thread */
    bool is_head, is_http10;
    char *path; /* path of the request */
    size_t queue_limit;
    void (*write_error)(void *user, const char *path, int status, const char *message, carry_json_text *body);
    void *user;

    pthread_mutex_t lock;    /* guards all fields below */
    pthread_cond_t returned; /* signals that a callback has returned */
    int holders;
    carry_http_server *server; /* NULL: the client has gone, or the server is stopping */
    char fields[CARRY_HTTP_FIELDS];
    size_t fields_length;
    bool has_policy; /* fields has Content-Security-Policy */
    bool handling;   /* its handler is running: the connection will send the queue afterwards, so no wake is needed */
    bool begun;      /* streamed */
    bool ended, failed;
    unsigned char *out; /* bytes from sent to length are queued */
    size_t sent, length, capacity;
    bool full; /* a write was refused */
    carry_http_watch watch;
    bool calling; /* a callback is running */
};

void carry_http_release(carry_http_response *response);

#endif
