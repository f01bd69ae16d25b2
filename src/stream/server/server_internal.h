/* Internals of the stream's server: routes (server_routes.c), viewers (server_viewer.c), recordings
   (server_record.c), state and metrics (server_metrics.c). Everything here runs on the thread of http/. */
#ifndef CARRY_STREAM_SERVER_INTERNAL_H
#define CARRY_STREAM_SERVER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/context.h"
#include "http/http.h"
#include "stream/server/recording.h"
#include "stream/server/server.h"

#define CARRY_SERVER_CONNECTIONS (CARRY_HUB_VIEWERS + 64)
/* Limit of a body or message: eight prompts with every byte escaped fit. */
#define CARRY_SERVER_BODY ((size_t)256 << 10)

struct carry_server {
    carry_ctx *ctx; /* used by the thread of http/ */
    carry_http_server *http;
    carry_hub *hub;
    carry_controls *controls;
    uint64_t name; /* random: tells this server from an earlier one, whose frames had other numbers */
    char *record_to;
    double next_state;     /* when to make the next state */
    carry_json_text state; /* the JSON that viewers get */
    uint64_t state_serial;
    carry_film *film;
    carry_film_state filmed; /* state of `film`, or of the last recording */
    uint64_t frames_seen;    /* for the health check: number of frames, and the time of the last one */
    double frames_at;
    uint64_t refused; /* number of refused viewers and messages */
};

void carry_server_new_state(carry_server *server); /* renews server->state and asks all viewers to send it */

/* server_routes.c */
extern const carry_http_route carry_server_routes[];
extern const size_t carry_server_route_count;

/* server_viewer.c */
extern const carry_http_endpoint carry_server_viewers;

/* server_record.c. Takes {"path": ...} or {"stop": true}. Returns 0, or an HTTP status with an error message in
   `why`. */
int carry_server_record(carry_server *server, const char *json, size_t length, char *why, size_t why_size);
void carry_server_film_look(carry_server *server); /* stops a recording that has ended with an error */

/* server_metrics.c */
void carry_server_state(carry_server *server,
                        carry_json_text *text); /* {"stream", "controls", "figures", "recording"} */
void carry_server_metrics(carry_server *server, carry_json_text *text);
bool carry_server_healthy(carry_server *server, const char **why);
double carry_server_quiet(const carry_server *server); /* seconds without a frame that still count as healthy */

/* The page, built from page/. @NONCE@ stands for the nonce of its content security policy. */
extern const unsigned char carry_page[];
extern const size_t carry_page_size;

#endif
