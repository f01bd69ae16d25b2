/* Requests: defaults, reading fields of JSON objects, refusals. */
#include "serve/request.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool carry_serve_refuse(carry_serve_refusal *refusal, int status, const char *field, const char *format, ...) {
    if (refusal->status == 0) {
        va_list arguments;
        refusal->status = status;
        (void)snprintf(refusal->field, sizeof refusal->field, "%s", field != NULL ? field : "");
        va_start(arguments, format);
        (void)vsnprintf(refusal->message, sizeof refusal->message, format, arguments);
        va_end(arguments);
    }
    return false;
}

void carry_serve_request_init(carry_serve_request *request, const carry_serve_dialect *dialect) {
    *request = (carry_serve_request){.dialect = dialect,
                                     .choices = 1,
                                     .max_tokens = -1,
                                     .temperature = 1.0,
                                     .top_p = 1.0,
                                     .repetition = 1.0,
                                     .logprobs = -1};
}

void carry_serve_request_free(carry_serve_request *request) {
    carry_json_free(request->body);
    carry_json_free(request->variables);
    free(request->ids);
    free(request->bias_tokens);
    free(request->biases);
    *request = (carry_serve_request){0};
}

const carry_json *carry_serve_member(const carry_json *object, const char *key) {
    const carry_json *found = carry_json_find(object, key);
    return found != NULL && found->kind != CARRY_JSON_NULL ? found : NULL;
}

bool carry_serve_read_number(const carry_json *object, const char *key, double *value, double least, double most,
                             carry_serve_refusal *refusal) {
    const carry_json *found = carry_serve_member(object, key);
    char shown[CARRY_JSON_SHOWN];
    if (found == NULL) {
        return true;
    }
    const double number = carry_json_number(found);
    if (!(number >= least && number <= most) || !isfinite(number)) {
        return carry_serve_refuse(refusal, 400, key, "%s is %s: expected a number from %g to %g", key,
                                  carry_json_show(shown, found), least, most);
    }
    *value = number;
    return true;
}

bool carry_serve_read_integer(const carry_json *object, const char *key, int64_t *value, int64_t least, int64_t most,
                              carry_serve_refusal *refusal) {
    const carry_json *found = carry_serve_member(object, key);
    char shown[CARRY_JSON_SHOWN];
    if (found == NULL) {
        return true;
    }
    if (found->kind != CARRY_JSON_NUMBER || !found->whole || found->as.number.integer < least ||
        found->as.number.integer > most) {
        return carry_serve_refuse(refusal, 400, key, "%s is %s: expected a whole number from %" PRId64 " to %" PRId64,
                                  key, carry_json_show(shown, found), least, most);
    }
    *value = found->as.number.integer;
    return true;
}

bool carry_serve_read_bool(const carry_json *object, const char *key, bool *value, carry_serve_refusal *refusal) {
    const carry_json *found = carry_serve_member(object, key);
    char shown[CARRY_JSON_SHOWN];
    if (found != NULL && found->kind != CARRY_JSON_BOOL) {
        return carry_serve_refuse(refusal, 400, key, "%s is %s: expected true or false", key,
                                  carry_json_show(shown, found));
    }
    *value = found != NULL ? found->truth : *value;
    return true;
}

bool carry_serve_read_text(const carry_json *object, const char *key, const char **value,
                           carry_serve_refusal *refusal) {
    const carry_json *found = carry_serve_member(object, key);
    char shown[CARRY_JSON_SHOWN];
    *value = carry_json_string(found);
    if (found != NULL && *value == NULL) {
        return carry_serve_refuse(refusal, 400, key, "%s is %s: expected a text without zero bytes", key,
                                  carry_json_show(shown, found));
    }
    return true;
}

bool carry_serve_check(const carry_json *object, const char *path, const char *key, carry_json_kind kind,
                       bool is_required, carry_serve_refusal *refusal) {
    const carry_json *found = carry_serve_member(object, key);
    const char *expected = kind == CARRY_JSON_STRING ? "a text" : kind == CARRY_JSON_ARRAY ? "a list" : "an object";
    char field[CARRY_SERVE_FIELD];
    char shown[CARRY_JSON_SHOWN];
    if (found == NULL && !is_required) {
        return true;
    }
    if (found != NULL && found->kind == kind && (kind != CARRY_JSON_STRING || carry_json_string(found) != NULL)) {
        return true;
    }
    (void)snprintf(field, sizeof field, "%s.%s", path, key);
    return found == NULL ? carry_serve_refuse(refusal, 400, field, "%s is missing: expected %s", field, expected)
                         : carry_serve_refuse(refusal, 400, field, "%s is %s: expected %s", field,
                                              carry_json_show(shown, found), expected);
}

bool carry_serve_add_stop(carry_serve_request *request, const carry_json *stop, const char *key,
                          carry_serve_refusal *refusal) {
    const char *text = carry_json_string(stop);
    char shown[CARRY_JSON_SHOWN];
    if (text == NULL) {
        return carry_serve_refuse(refusal, 400, key, "%s has %s: expected texts without zero bytes", key,
                                  carry_json_show(shown, stop));
    }
    if (request->stop_count == CARRY_SERVE_STOPS) {
        return carry_serve_refuse(refusal, 400, key, "%s has more than %d texts", key, CARRY_SERVE_STOPS);
    }
    if (stop->as.text.length > CARRY_SERVE_STOP_BYTES) {
        return carry_serve_refuse(refusal, 400, key, "%s has a text of %zu bytes: expected at most %d", key,
                                  stop->as.text.length, CARRY_SERVE_STOP_BYTES);
    }
    if (text[0] != '\0') {
        request->stops[request->stop_count++] = text;
    }
    return true;
}

bool carry_serve_read_stops(const carry_json *object, const char *key, carry_serve_request *request,
                            carry_serve_refusal *refusal) {
    const carry_json *found = carry_serve_member(object, key);
    if (found == NULL) {
        return true;
    }
    if (found->kind != CARRY_JSON_ARRAY) {
        return carry_serve_add_stop(request, found, key, refusal);
    }
    for (const carry_json *stop = carry_json_first(found); stop != NULL; stop = stop->next) {
        if (!carry_serve_add_stop(request, stop, key, refusal)) {
            return false;
        }
    }
    return true;
}
