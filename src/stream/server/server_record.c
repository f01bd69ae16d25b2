/* Recordings started by viewers: all in one folder, one at a time. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "stream/server/server_internal.h"

#define RECORD_NAME 128 /* bytes */

/* True for a bare name that stays in the folder, is not hidden, and has no control characters. */
static bool is_file_name(const carry_json *name) {
    if (name == NULL || name->kind != CARRY_JSON_STRING || name->as.text.length > RECORD_NAME ||
        name->as.text.length < 5 || name->as.text.bytes[0] == '.' || name->as.text.bytes[0] == '-') {
        return false;
    }
    for (size_t i = 0; i < name->as.text.length; i++) {
        unsigned char c = (unsigned char)name->as.text.bytes[i];
        if (c < 0x20 || c == 0x7F || c == '/' || c == '\\') {
            return false;
        }
    }
    return strcmp(name->as.text.bytes + name->as.text.length - 4, ".avi") == 0;
}

static int record(carry_server *server, const carry_json *asked, char *why, size_t why_size) {
    const carry_json *stop = carry_json_find(asked, "stop"), *name = carry_json_find(asked, "path");
    const bool is_one = asked->kind == CARRY_JSON_OBJECT && asked->as.inside.count == 1;
    if (is_one && stop != NULL && stop->kind == CARRY_JSON_BOOL && stop->truth) {
        carry_film_stop(server->film, &server->filmed);
        server->film = NULL;
        if (server->filmed.ended) {
            (void)snprintf(why, why_size, "%s", server->filmed.why);
        }
        return server->filmed.ended ? 507 : 0;
    }
    if (!is_one || !is_file_name(name)) {
        (void)snprintf(why, why_size,
                       "give {\"path\": \"name.avi\"}, a name of at most %d bytes without folders, or {\"stop\": true}",
                       RECORD_NAME);
        return 400;
    }
    if (server->film != NULL) {
        (void)snprintf(why, why_size, "a recording is under way, of %s: stop it first", server->filmed.path);
        return 409;
    }
    char path[CARRY_FILE_PATH];
    if (carry_file_in(server->ctx, path, server->record_to, name->as.text.bytes) != CARRY_OK ||
        carry_film_start(server->ctx, &server->film, server->hub, path, 0) != CARRY_OK) {
        (void)snprintf(why, why_size, "%s", carry_ctx_error(server->ctx));
        return 409;
    }
    carry_film_look(server->film, &server->filmed);
    return 0;
}

int carry_server_record(carry_server *server, const char *json, size_t length, char *why, size_t why_size) {
    if (server->record_to == NULL) {
        (void)snprintf(why, why_size, "recording is off: start with --record-to FOLDER");
        return 403;
    }
    carry_json *asked;
    if (carry_json_parse(server->ctx, &asked, json, length, "the request") != CARRY_OK) {
        (void)snprintf(why, why_size, "%s", carry_ctx_error(server->ctx));
        return 400;
    }
    int status = record(server, asked, why, why_size);
    carry_json_free(asked);
    return status;
}

void carry_server_film_look(carry_server *server) {
    if (server->film == NULL) {
        return;
    }
    carry_film_look(server->film, &server->filmed);
    if (server->filmed.ended) {
        carry_film_stop(server->film, &server->filmed);
        server->film = NULL;
    }
}
