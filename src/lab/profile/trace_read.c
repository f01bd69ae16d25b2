/* Reads the hotspots back from a trace. The file is untrusted: sizes are limited before memory is allocated, and
   every number is checked. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "core/context.h"
#include "lab/profile/trace.h"
#include "core/json.h"

#define GZIP 16
#define MOST_COUNT 1e15
#define MOST_FIGURE 1e300

static carry_status not_a_trace(carry_ctx *ctx, const char *name, const char *why) {
    return carry_fail(ctx, CARRY_EFORMAT, "%s is not a trace of carry profile: %s", name, why);
}

/* Expands one gzip member, which must end at the end of the file. The caller frees *text. */
static carry_status expand(carry_ctx *ctx, char **text, size_t *text_length, const unsigned char *bytes, size_t length,
                           const char *name) {
    z_stream stream = {.next_in = (unsigned char *)(uintptr_t)bytes, .avail_in = (unsigned)length};
    size_t size = 0;
    int code = inflateInit2(&stream, MAX_WBITS + GZIP);
    char *out = NULL;
    *text_length = 0;
    while (code == Z_OK && size < CARRY_TRACE_BYTES) {
        size = size > 0 ? 2 * size : (size_t)1 << 16;
        char *more = realloc(out, size);
        if (more == NULL) {
            code = Z_MEM_ERROR;
            break;
        }
        out = more;
        stream.next_out = (unsigned char *)out + *text_length;
        stream.avail_out = (unsigned)(size - *text_length);
        code = inflate(&stream, Z_NO_FLUSH);
        *text_length = size - stream.avail_out;
        if (code == Z_OK && stream.avail_out > 0) { /* the input is used up before the end of the stream */
            code = Z_BUF_ERROR;
        }
    }
    bool whole = code == Z_STREAM_END && stream.avail_in == 0;
    (void)inflateEnd(&stream);
    if (whole) {
        *text = out;
        return CARRY_OK;
    }
    free(out);
    if (code == Z_MEM_ERROR) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: reading %s", name);
    }
    return not_a_trace(ctx, name,
                       code == Z_OK           ? "it holds more text than such a trace can have"
                       : code == Z_BUF_ERROR  ? "it ends too early"
                       : code == Z_STREAM_END ? "something follows its end"
                                              : "its gzip data is damaged");
}

static bool is_array(const carry_json *node) {
    return node != NULL && node->kind == CARRY_JSON_ARRAY;
}

/* True if a key occurs twice; objects here have few members. */
static bool has_duplicates(const carry_json *object) {
    for (const carry_json *at = carry_json_first(object); at != NULL && at->key != NULL; at = at->next) {
        if (carry_json_find(object, at->key) != at) {
            return true;
        }
    }
    return false;
}

static bool read_text(const carry_json *object, const char *key, char *to, size_t size) {
    const char *text = carry_json_string(carry_json_find(object, key));
    if (text == NULL || strlen(text) >= size) {
        return false;
    }
    for (const char *at = text; *at != '\0'; at++) { /* it may be printed on a terminal */
        if (*at < 0x20 || *at > 0x7e) {
            return false;
        }
    }
    (void)snprintf(to, size, "%s", text);
    return true;
}

static bool read_number(const carry_json *object, const char *key, double least, double most, double *to) {
    const carry_json *value = carry_json_find(object, key);
    *to = carry_json_number(value);
    return *to >= least && *to <= most;
}

static bool read_integer(const carry_json *object, const char *key, double most, int64_t *to) {
    const carry_json *value = carry_json_find(object, key);
    const bool is_whole = value != NULL && value->kind == CARRY_JSON_NUMBER && value->whole;
    *to = is_whole ? value->as.number.integer : 0;
    return is_whole && *to >= 0 && (double)*to <= most;
}

static bool read_spot(const carry_json *from, carry_hotspot *spot) {
    int64_t line;
    bool ok = read_text(from, "category", spot->category, sizeof spot->category) &&
              read_text(from, "name", spot->name, sizeof spot->name) &&
              read_text(from, "file", spot->file, sizeof spot->file) && spot->file[0] != '\0' &&
              read_integer(from, "line", 1e7, &line) && read_integer(from, "calls", MOST_COUNT, &spot->calls) &&
              read_number(from, "total_s", 0.0, MOST_FIGURE, &spot->total) &&
              /* self may be slightly negative: a span and the spans inside it are timed by separate clock readings */
              read_number(from, "self_s", -1.0, MOST_FIGURE, &spot->self) &&
              read_number(from, "outer_s", 0.0, MOST_FIGURE, &spot->outer) &&
              read_number(from, "flops", 0.0, MOST_FIGURE, &spot->flops) &&
              read_number(from, "tokens", 0.0, MOST_FIGURE, &spot->tokens);
    spot->line = ok ? (int)line : 0;
    spot->wall = spot->total; /* older traces have no wall time; total is used */
    return ok &&
           (carry_json_find(from, "wall_s") == NULL || read_number(from, "wall_s", 0.0, MOST_FIGURE, &spot->wall));
}

static bool read_kernel(const carry_json *from, carry_hotspot *kernel) {
    bool ok = read_text(from, "category", kernel->category, sizeof kernel->category) &&
              read_text(from, "name", kernel->name, sizeof kernel->name) &&
              read_integer(from, "calls", MOST_COUNT, &kernel->calls) &&
              read_number(from, "total_s", 0.0, MOST_FIGURE, &kernel->total);
    kernel->wall = kernel->self = kernel->outer = kernel->total;
    (void)snprintf(kernel->file, sizeof kernel->file, "gpu");
    return ok;
}

/* Reads the GPU activity from the trace of a run that used GPUs. */
static const char *read_gpus(const carry_json *section, carry_hotspots *h) {
    const carry_json *kernels = carry_json_find(section, "kernels");
    int64_t gpus;
    if (kernels == NULL) {
        return NULL;
    }
    if (!is_array(kernels) || carry_json_count(kernels) > CARRY_ACTIVITY_NAMES + 1) {
        return "it has more kernels than such a trace can have";
    }
    if (!read_integer(section, "gpus", 1e6, &gpus) ||
        !read_number(section, "gpu_busy_s", 0.0, MOST_FIGURE, &h->gpu_busy) ||
        !read_integer(section, "gpu_events", MOST_COUNT, &h->gpu_events) ||
        !read_integer(section, "gpu_dropped", MOST_COUNT, &h->gpu_dropped) ||
        !read_integer(section, "gpu_lost", MOST_COUNT, &h->gpu_lost)) {
        return "a figure of its GPUs is missing or absurd";
    }
    h->gpus = (int)gpus;
    h->kernel = calloc((size_t)carry_json_count(kernels) + 1, sizeof *h->kernel);
    for (const carry_json *at = carry_json_first(kernels); h->kernel != NULL && at != NULL; at = at->next) {
        if (!read_kernel(at, &h->kernel[h->kernels])) {
            return "a kernel is incomplete or absurd";
        }
        h->kernels++;
    }
    return h->kernel != NULL ? NULL : "out of memory: kernels";
}

static const char *read_section(const carry_json *root, carry_hotspots *h) {
    const carry_json *section = carry_json_find(root, "carry");
    const carry_json *spots = carry_json_find(section, "hotspots");
    int64_t version;
    int64_t ranks;
    int64_t threads;
    if (!is_array(carry_json_find(root, "traceEvents"))) {
        return "it has no traceEvents";
    }
    if (!is_array(spots) || !read_integer(section, "version", MOST_COUNT, &version)) {
        return "it has no hotspots";
    }
    if (version != 1) {
        return "it was written by a newer version";
    }
    if (!read_integer(section, "ranks", 1e6, &ranks) || !read_integer(section, "threads", 1e6, &threads) ||
        !read_number(section, "wall_s", 0.0, MOST_FIGURE, &h->wall) ||
        !read_integer(section, "events", MOST_COUNT, &h->events) ||
        !read_integer(section, "dropped", MOST_COUNT, &h->dropped) ||
        !read_number(section, "gemm_gflops", 0.0, MOST_FIGURE, &h->gemm_gflops)) {
        return "a figure of its summary is missing or absurd";
    }
    h->ranks = (int)ranks;
    h->threads = (int)threads;
    if (carry_json_count(spots) > CARRY_HOTSPOTS) {
        return "it has more hotspots than such a trace can have";
    }
    h->spot = calloc((size_t)carry_json_count(spots) + 1, sizeof *h->spot);
    for (const carry_json *at = carry_json_first(spots); h->spot != NULL && at != NULL; at = at->next) {
        if (!read_spot(at, &h->spot[h->count])) {
            return "a hotspot is incomplete or absurd";
        }
        h->count++;
    }
    return h->spot != NULL ? read_gpus(section, h) : "out of memory: hotspots";
}

static carry_status parse(carry_ctx *ctx, carry_hotspots *hotspots, const char *text, size_t length, const char *name) {
    carry_json *root = NULL;
    if (carry_json_parse(ctx, &root, text, length, "its text") != CARRY_OK) {
        char why[256];
        (void)snprintf(why, sizeof why, "%s", carry_ctx_error(ctx));
        for (char *at = why; *at != '\0'; at++) { /* text quoted from the file may be printed on a terminal */
            *at = (char)(*at < 0x20 || *at > 0x7e ? '?' : *at);
        }
        return not_a_trace(ctx, name, why);
    }
    const char *why = root->kind != CARRY_JSON_OBJECT ? "it is not a JSON object"
                      : has_duplicates(root) || has_duplicates(carry_json_find(root, "carry"))
                          ? "it has a duplicate key"
                          : read_section(root, hotspots);
    carry_json_free(root);
    if (why != NULL) {
        carry_hotspots_free(hotspots);
        return not_a_trace(ctx, name, why);
    }
    carry_hotspots_finish(hotspots);
    return CARRY_OK;
}

carry_status carry_trace_read(carry_ctx *ctx, carry_hotspots *hotspots, const void *bytes, size_t length,
                              const char *name) {
    const unsigned char *first = bytes;
    *hotspots = (carry_hotspots){0};
    if (length > CARRY_TRACE_BYTES) {
        return not_a_trace(ctx, name, "it is larger than such a trace can be");
    }
    if (length < 2 || first[0] != 0x1f || first[1] != 0x8b) {
        return parse(ctx, hotspots, bytes, length, name);
    }
    char *text = NULL;
    size_t text_length;
    CARRY_TRY(expand(ctx, &text, &text_length, bytes, length, name));
    carry_status status = parse(ctx, hotspots, text, text_length, name);
    free(text);
    return status;
}
