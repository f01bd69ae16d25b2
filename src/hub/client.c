/* Single requests, for lists of files. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "hub/transfer.h"

#define ANSWER_MOST ((size_t)64 << 20)
#define ATTEMPTS 4

typedef struct answer {
    char *text;
    size_t length, room;
    char *next;
    size_t next_size;
    bool failed;
} answer;

static size_t take_bytes(char *bytes, size_t one, size_t count, void *user) {
    answer *to = user;
    size_t length = one * count;
    if (length > ANSWER_MOST - to->length) {
        to->failed = true;
        return 0;
    }
    if (to->length + length + 1 > to->room) {
        size_t room = 2 * (to->length + length) + 4096;
        char *grown = realloc(to->text, room);
        if (grown == NULL) {
            to->failed = true;
            return 0;
        }
        to->text = grown;
        to->room = room;
    }
    memcpy(to->text + to->length, bytes, length);
    to->length += length;
    to->text[to->length] = '\0';
    return length;
}

/* Link: <URL>; rel="next" */
static size_t take_header(char *bytes, size_t one, size_t count, void *user) {
    answer *to = user;
    size_t length = one * count;
    const char *open = memchr(bytes, '<', length);
    const char *close = open != NULL ? memchr(open, '>', length - (size_t)(open - bytes)) : NULL;
    if (length > 5 && strncasecmp(bytes, "link:", 5) == 0 && close != NULL &&
        memmem(close, length - (size_t)(close - bytes), "rel=\"next\"", 10) != NULL &&
        (size_t)(close - open - 1) < to->next_size) {
        memcpy(to->next, open + 1, (size_t)(close - open - 1));
        to->next[close - open - 1] = '\0';
    }
    return length;
}

struct curl_slist *carry_hub_prepare(const carry_hub_pull *pull, CURL *curl, const char *url) {
    char header[1024];
    struct curl_slist *headers = NULL;
    const size_t length = strlen(pull->endpoint);
    const bool is_there = strncmp(url, pull->endpoint, length) == 0 && url[length] == '/';
    if (is_there && pull->token != NULL && *pull->token != '\0' && strlen(pull->token) < sizeof header - 64) {
        /* Other hosts do not get it: neither that of the next page of a list, nor, by libcurl, that of a redirect. */
        (void)snprintf(header, sizeof header, "Authorization: Bearer %s", pull->token);
        headers = curl_slist_append(NULL, header);
        (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    }
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 5L);
    (void)curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 30L);
    (void)curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, pull->stall >= 1 ? (long)pull->stall : 60L);
    (void)curl_easy_setopt(curl, CURLOPT_USERAGENT, "carry");
    return headers;
}

carry_status carry_hub_refusal(carry_ctx *ctx, const carry_hub_pull *pull, long code, const char *what) {
    if (code == 401 || code == 403) {
        return carry_fail(
            ctx, CARRY_EARGUMENT,
            "%s: the hub answers %ld: %s is private, gated or does not exist; set HF_TOKEN to a token that may read it",
            what, code, pull->model.name);
    }
    if (code == 404) {
        return carry_fail(ctx, CARRY_ENOTFOUND, "%s: the hub answers 404: %s has no revision '%s', or no such file",
                          what, pull->model.name, pull->model.revision);
    }
    return carry_fail(ctx, CARRY_EIO, "%s: the hub answers %ld", what, code);
}

carry_status carry_hub_get(carry_ctx *ctx, const carry_hub_pull *pull, const char *url, char **text, size_t *length,
                           char *next, size_t next_size) {
    answer to = {.next = next, .next_size = next_size};
    long code = 0;
    CURLcode result = CURLE_FAILED_INIT;
    *next = '\0';
    for (int attempt = 0; attempt < ATTEMPTS && (result != CURLE_OK || code >= 500 || code == 429); attempt++) {
        CURL *curl = curl_easy_init();
        if (curl == NULL) {
            break;
        }
        to.length = 0;
        struct curl_slist *headers = carry_hub_prepare(pull, curl, url);
        (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_bytes);
        (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, &to);
        (void)curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
        (void)curl_easy_setopt(curl, CURLOPT_HEADERDATA, &to);
        result = curl_easy_perform(curl);
        (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
        curl_slist_free_all(headers);
        curl_easy_cleanup(curl);
    }
    *text = to.text;
    *length = to.length;
    if (result == CURLE_OK && code == 200 && to.text != NULL) {
        return CARRY_OK;
    }
    free(to.text);
    *text = NULL;
    if (result != CURLE_OK) {
        return carry_fail(ctx, CARRY_EIO, "%s: %s", url, curl_easy_strerror(result));
    }
    return carry_hub_refusal(ctx, pull, code, url);
}
