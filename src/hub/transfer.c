/* Fetches ranges of files over several connections at once. Each range is written to its position in blobs/HASH.carry.
   When it is complete, its byte in blobs/HASH.carry.parts is set, so that a later call requests only the missing
   ranges. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "hub/transfer.h"

#define ATTEMPTS 6 /* attempts for a range without a byte of progress */

typedef struct connection {
    struct transfer *of;
    CURL *curl;
    struct curl_slist *headers;
    carry_hub_file *file; /* NULL: free */
    int64_t part, start, end, at;
    int data; /* descriptor of the file */
    bool ignores_range, is_broken;
    double not_before; /* earliest time of the next attempt */
    int attempts;
} connection;

typedef struct transfer {
    carry_ctx *ctx;
    carry_hub_pull *pull;
    const char *folder;
    CURLM *multi;
    connection slot[CARRY_HUB_CONNECTIONS];
    int64_t file, part; /* the next range to look at */
    int64_t done;       /* bytes of complete ranges, of this call and earlier ones */
    carry_status status;
} transfer;

carry_status carry_hub_blob(carry_ctx *ctx, char path[CARRY_FILE_PATH], const char *folder, const carry_hub_file *file,
                            const char *suffix) {
    char name[128];
    (void)snprintf(name, sizeof name, "blobs/%s%s", file->hash, suffix);
    return carry_file_in(ctx, path, folder, name);
}

static size_t take_bytes(char *bytes, size_t one, size_t count, void *user) {
    connection *c = user;
    size_t length = one * count;
    long code = 0;
    (void)curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200 && code != 206) {
        return length; /* ignores the body of an error */
    }
    c->ignores_range = code == 200 && c->file->parts > 1;
    if (c->ignores_range || (int64_t)length > c->end - c->at) {
        return 0;
    }
    for (size_t written = 0; written < length;) {
        ssize_t now = pwrite(c->data, bytes + written, length - written, c->at);
        if (now <= 0) {
            c->is_broken = errno != EINTR;
            if (c->is_broken) {
                return 0;
            }
            continue;
        }
        written += (size_t)now;
        c->at += now;
    }
    c->of->pull->fetched_bytes += (int64_t)length;
    return length;
}

static carry_status begin(transfer *t, connection *c) {
    carry_hub_pull *pull = t->pull;
    char path[CARRY_FILE_PATH], range[64];
    char *escaped_path = NULL, *url = NULL;
    CARRY_TRY(carry_hub_blob(t->ctx, path, t->folder, c->file, CARRY_HUB_DATA));
    c->data = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    c->curl = curl_easy_init();
    if (c->data < 0 || c->curl == NULL) {
        return carry_fail(t->ctx, CARRY_EIO, "%s cannot be written: %s", path, strerror(errno));
    }
    escaped_path = curl_easy_escape(c->curl, c->file->path, 0);
    /* Slashes in the path are not escaped. */
    for (char *at = escaped_path != NULL ? strstr(escaped_path, "%2F") : NULL; at != NULL; at = strstr(at, "%2F")) {
        *at = '/';
        memmove(at + 1, at + 3, strlen(at + 3) + 1);
    }
    if (escaped_path == NULL ||
        asprintf(&url, "%s/%s/resolve/%s/%s", pull->endpoint, pull->model.name, pull->commit, escaped_path) < 0) {
        curl_free(escaped_path);
        return carry_fail(t->ctx, CARRY_EMEMORY, "out of memory: %s", c->file->path);
    }
    c->start = c->part * c->file->part;
    c->end = c->start + c->file->part < c->file->size ? c->start + c->file->part : c->file->size;
    c->at = c->start;
    c->ignores_range = c->is_broken = false;
    (void)snprintf(range, sizeof range, "%lld-%lld", (long long)c->start, (long long)c->end - 1);
    c->headers = carry_hub_prepare(pull, c->curl, url);
    (void)curl_easy_setopt(c->curl, CURLOPT_RANGE, range);
    (void)curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, take_bytes);
    (void)curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    (void)curl_easy_setopt(c->curl, CURLOPT_PRIVATE, c);
    (void)curl_multi_add_handle(t->multi, c->curl);
    curl_free(escaped_path);
    free(url);
    return CARRY_OK;
}

/* Ends the request of a connection; the connection keeps its range. */
static void drop(transfer *t, connection *c) {
    if (c->curl != NULL) {
        (void)curl_multi_remove_handle(t->multi, c->curl);
        curl_easy_cleanup(c->curl);
        curl_slist_free_all(c->headers);
    }
    if (c->data >= 0) {
        (void)close(c->data);
    }
    c->curl = NULL;
    c->headers = NULL;
    c->data = -1;
}

/* Chooses the next missing range. Returns false if all are complete or taken. */
static bool choose(transfer *t, connection *c) {
    carry_hub_pull *pull = t->pull;
    for (; t->file < pull->count; t->file++, t->part = 0) {
        carry_hub_file *file = &pull->files[t->file];
        for (; !file->is_present && t->part < file->parts; t->part++) {
            if (file->done[t->part] == 0) {
                *c = (connection){.of = t, .file = file, .part = t->part++, .data = -1};
                return true;
            }
        }
    }
    return false;
}

static carry_status note_part(transfer *t, const connection *c) {
    char path[CARRY_FILE_PATH];
    const char mark = '1';
    CARRY_TRY(carry_hub_blob(t->ctx, path, t->folder, c->file, CARRY_HUB_LIST));
    int list = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    bool written = list >= 0 && pwrite(list, &mark, 1, c->part) == 1;
    if (list >= 0) {
        (void)close(list);
    }
    c->file->done[c->part] = 1;
    c->file->parts_done++;
    return written ? CARRY_OK : carry_fail(t->ctx, CARRY_EIO, "%s cannot be written: %s", path, strerror(errno));
}

static carry_status finish(transfer *t, connection *c, CURLcode result) {
    long code = 0;
    carry_hub_file *file = c->file;
    (void)curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &code);
    bool moved = c->at > c->start, complete = result == CURLE_OK && (code == 206 || code == 200) && c->at == c->end;
    int64_t length = c->end - c->start;
    drop(t, c);
    if (complete) {
        CARRY_TRY(note_part(t, c));
        t->done += length;
        c->file = NULL;
        return CARRY_OK;
    }
    if (c->is_broken) {
        return carry_fail(t->ctx, CARRY_EIO, "%s cannot be written: %s", file->path, strerror(errno));
    }
    if (c->ignores_range) {
        return carry_fail(t->ctx, CARRY_EUNSUPPORTED, "%s: the server does not answer ranges", file->path);
    }
    bool is_final = result == CURLE_OK && code >= 400 && code < 500 && code != 429 && code != 408;
    c->attempts = moved ? 1 : c->attempts + 1;
    if (is_final || c->attempts >= ATTEMPTS) {
        if (result != CURLE_OK) {
            return carry_fail(t->ctx, CARRY_EIO, "%s: %s", file->path, curl_easy_strerror(result));
        }
        return carry_hub_refusal(t->ctx, t->pull, code, file->path);
    }
    c->not_before = carry_seconds() + (moved ? 0 : 0.25 * (1 << c->attempts));
    return CARRY_OK;
}

static carry_status start_waiting(transfer *t, int *busy) {
    *busy = 0;
    for (int i = 0; i < CARRY_HUB_CONNECTIONS; i++) {
        connection *c = &t->slot[i];
        if (c->file == NULL && !choose(t, c)) {
            continue;
        }
        (*busy)++;
        if (c->curl == NULL && carry_seconds() >= c->not_before) {
            CARRY_TRY(begin(t, c));
        }
    }
    return CARRY_OK;
}

static carry_status step(transfer *t, int *busy) {
    int running, left;
    CARRY_TRY(start_waiting(t, busy));
    if (curl_multi_perform(t->multi, &running) != CURLM_OK ||
        curl_multi_poll(t->multi, NULL, 0, 200, NULL) != CURLM_OK) {
        return carry_fail(t->ctx, CARRY_EIO, "libcurl cannot wait for its connections");
    }
    for (CURLMsg *message; (message = curl_multi_info_read(t->multi, &left)) != NULL;) {
        char *private = NULL;
        CURLcode result = message->data.result;
        if (message->msg == CURLMSG_DONE &&
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &private) == CURLE_OK) {
            CARRY_TRY(finish(t, (connection *)(void *)private, result));
        }
    }
    int64_t now = t->done;
    for (int i = 0; i < CARRY_HUB_CONNECTIONS; i++) {
        now += t->slot[i].file != NULL ? t->slot[i].at - t->slot[i].start : 0;
    }
    if (t->pull->on_progress != NULL && !t->pull->on_progress(t->pull->user, now, t->pull->bytes)) {
        return carry_fail(t->ctx, CARRY_EINTERRUPTED, "interrupted: the next carry pull goes on from here");
    }
    return CARRY_OK;
}

carry_status carry_hub_transfer(carry_ctx *ctx, carry_hub_pull *pull, const char *folder) {
    transfer *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: connections");
    }
    *t = (transfer){.ctx = ctx, .pull = pull, .folder = folder, .multi = curl_multi_init()};
    for (int i = 0; i < CARRY_HUB_CONNECTIONS; i++) {
        t->slot[i].data = -1;
    }
    for (int64_t i = 0; i < pull->count; i++) {
        carry_hub_file *file = &pull->files[i];
        for (int64_t k = 0; k < file->parts; k++) {
            int64_t rest = file->size - k * file->part;
            t->done += file->is_present || file->done[k] != 0 ? (rest < file->part ? rest : file->part) : 0;
        }
    }
    int busy = 1;
    carry_status status = t->multi != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: connections");
    while (status == CARRY_OK && busy > 0) {
        status = step(t, &busy);
    }
    for (int i = 0; i < CARRY_HUB_CONNECTIONS; i++) {
        drop(t, &t->slot[i]);
    }
    (void)curl_multi_cleanup(t->multi);
    free(t);
    return status;
}
