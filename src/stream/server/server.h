/* The page, over HTTP and WebSocket: live frames, controls, figures.

   GET /                the page (one file without external resources)
   GET /frame.jpg       the newest frame
   GET /healthz         200 while frames arrive or the stream is paused, else 503; /health too
   GET /metrics         Prometheus text
   GET /api/state       controls and figures as JSON
   POST /api/controls   the controls of controls.h: 204, or 400 with an error message
   POST /api/record     {"path": "name.avi"} or {"stop": true}: records to the folder of --record-to; 403 without one
   WS /ws               sends frames (binary) and figures (text); receives controls

   A binary message is u64 frame, u64 chunk, u64 epoch, f64 seconds, little-endian, then the JPEG.

   The server has one thread. Limits apply to the sizes of requests, headers and messages, to the number of viewers,
   and to the time of a slow request; each viewer has its own backpressure (hub.h). On addresses other than loopback
   a token is needed, in `Authorization: Bearer`, `X-Api-Key` or `?token=`; it is compared in constant time. Requests
   from other origins are refused. */
#ifndef CARRY_STREAM_SERVER_H
#define CARRY_STREAM_SERVER_H

#include "stream/controls.h"
#include "stream/server/hub.h"

typedef struct carry_server_options {
    const char *address;   /* NULL: 127.0.0.1 */
    int port;              /* 0: any free port */
    const char *token;     /* NULL: no token, which is only allowed on loopback */
    const char *record_to; /* folder for recordings; NULL: recording is refused */
    double patience;       /* seconds for which a client may keep the server waiting; 0: 30 */
} carry_server_options;

typedef struct carry_server carry_server;
/* CARRY_EIO with the port and the reason, for example a port in use. */
carry_status carry_server_start(carry_ctx *ctx, carry_server **made, const carry_server_options *options,
                                carry_hub *hub, carry_controls *controls);
int carry_server_port(const carry_server *server);
void carry_server_stop(carry_server *server); /* returns when the server's thread has ended, within two seconds */

#endif
