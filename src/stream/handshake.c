/* The handshake of a stream: one table of fields is used to fill, compare and print the records. */
#include "stream/handshake.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "stream/envelope.h"

#define TEXT 64
#define MESSAGE_BYTES 480 /* the length of the message that a context keeps */

/* Sent without conversion: opening the communicator has already compared byte order and compiler. */
typedef struct record {
    uint64_t version, mesh, model, dtype, height, width, chunk, window, sink, depth, has_weights, weights;
    char build[TEXT];
} record;

typedef enum form { NUMBER, DIGEST, DTYPE, WORDS, WEIGHTS } form;

typedef struct item {
    const char *name;
    size_t in;
    form form;
} item;

#define IN(member) offsetof(record, member)
static const item table[] = {
    {"envelopes of version", IN(version), NUMBER},
    {"a mesh of", IN(mesh), NUMBER},
    {"model", IN(model), DIGEST},
    {"type", IN(dtype), DTYPE},
    {"latents of height", IN(height), NUMBER},
    {"latents of width", IN(width), NUMBER},
    {"a chunk of", IN(chunk), NUMBER},
    {"a window of", IN(window), NUMBER},
    {"a sink of", IN(sink), NUMBER},
    {"a depth of", IN(depth), NUMBER},
    {"build", IN(build), WORDS},
    {"common weights", IN(weights), WEIGHTS}, /* compared among the ranks that have them */
};
enum { ITEMS = sizeof table / sizeof table[0] };

uint64_t carry_handshake_model(const carry_dit_config *c) {
    int64_t number[32] = {c->dim,           c->ffn_dim,     c->num_heads, c->num_layers,      c->in_dim,
                          c->out_dim,       c->text_len,    c->text_dim,  c->freq_dim,        c->patch[0],
                          c->patch[1],      c->patch[2],    c->qk_norm,   c->cross_attn_norm, c->chunk_frames,
                          c->window_frames, c->sink_frames, c->steps};
    double real[2] = {c->eps, c->shift};
    unsigned char bytes[sizeof number + sizeof real + sizeof c->step];
    memcpy(bytes, number, sizeof number);
    memcpy(bytes + sizeof number, real, sizeof real);
    memcpy(bytes + sizeof number + sizeof real, c->step, sizeof c->step);
    return (uint64_t)carry_stream_digest(bytes, sizeof bytes);
}

static void fill(record *r, const carry_handshake *mine) {
    *r = (record){
        .version = CARRY_ENVELOPE_VERSION,
        .mesh = (uint64_t)mine->mesh,
        .model = mine->model,
        .dtype = (uint64_t)mine->dtype,
        .height = (uint64_t)mine->cache.height,
        .width = (uint64_t)mine->cache.width,
        .chunk = (uint64_t)mine->cache.chunk,
        .window = (uint64_t)mine->cache.window,
        .sink = (uint64_t)mine->cache.sink,
        .depth = (uint64_t)mine->depth,
        .has_weights = mine->has_weights,
        .weights = mine->weights,
    };
    (void)snprintf(r->build, sizeof r->build, "%s", mine->build != NULL ? mine->build : "");
}

static const char *show(char text[TEXT + 2], const item *i, const record *r) {
    const unsigned char *at = (const unsigned char *)r + i->in;
    uint64_t number = 0;
    if (i->form != WORDS) {
        memcpy(&number, at, sizeof number);
    }
    switch (i->form) {
    case NUMBER:
        (void)snprintf(text, TEXT + 2, "%" PRId64, (int64_t)number);
        break;
    case DIGEST:
    case WEIGHTS:
        (void)snprintf(text, TEXT + 2, "%016" PRIx64, number);
        break;
    case DTYPE:
        (void)snprintf(text, TEXT + 2, "%s", number <= CARRY_I64 ? carry_dtype_name((carry_dtype)number) : "?");
        break;
    case WORDS:
        (void)snprintf(text, TEXT + 2, "'%s'", (const char *)at);
        break;
    }
    return text;
}

static bool takes_part(const item *i, const record *r) {
    return i->form != WEIGHTS || r->has_weights != 0;
}

static bool is_same(const item *i, const record *a, const record *b) {
    const size_t bytes = i->form == WORDS ? TEXT : sizeof(uint64_t);
    return memcmp((const unsigned char *)a + i->in, (const unsigned char *)b + i->in, bytes) == 0;
}

typedef struct verdict {
    int differences, told;
    size_t used;
    char text[MESSAGE_BYTES];
} verdict;

/* Appends a difference to the message. Differences that do not fit are only counted. */
static void add(verdict *v, const item *i, int rank, const record *r, int first, const record *f) {
    char here[TEXT + 2];
    char there[TEXT + 2];
    char text[256];
    const int length = snprintf(text, sizeof text, "%srank %d has %s %s, rank %d has %s", v->told > 0 ? "; " : "", rank,
                                i->name, show(here, i, r), first, show(there, i, f));
    v->differences++;
    if (length > 0 && v->used + (size_t)length < sizeof v->text) {
        memcpy(v->text + v->used, text, (size_t)length + 1);
        v->used += (size_t)length;
        v->told++;
    }
}

/* Compares one field of every participating rank with that of the lowest participating rank. */
static void compare(verdict *v, const item *i, const record *all, int ranks) {
    int first = 0;
    while (first < ranks && !takes_part(i, &all[first])) {
        first++;
    }
    for (int rank = first + 1; rank < ranks; rank++) {
        if (takes_part(i, &all[rank]) && !is_same(i, &all[first], &all[rank])) {
            add(v, i, rank, &all[rank], first, &all[first]);
        }
    }
}

/* Every rank judges the same records and therefore reaches the same result. */
static carry_status judge(carry_ctx *ctx, record *all, int ranks) {
    verdict v = {0};
    for (int rank = 0; rank < ranks; rank++) {
        all[rank].build[TEXT - 1] = '\0';
    }
    for (int i = 0; i < ITEMS; i++) {
        compare(&v, &table[i], all, ranks);
    }
    if (v.differences == 0) {
        return CARRY_OK;
    }
    char more[32] = "";
    if (v.told < v.differences) {
        (void)snprintf(more, sizeof more, "; and %d more", v.differences - v.told);
    }
    return carry_fail(ctx, CARRY_EARGUMENT, "%s%s", v.text, more);
}

carry_status carry_handshake_run(carry_comm *world, const carry_handshake *mine) {
    carry_ctx *ctx = carry_comm_ctx(world);
    const int ranks = carry_comm_size(world);
    record own;
    size_t bytes = 0;
    fill(&own, mine);
    record *all = carry_size_mul(&bytes, (size_t)ranks, sizeof *all) ? malloc(bytes) : NULL;
    if (all == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the handshake of %d ranks", ranks);
    }
    carry_status status = carry_all_gather(world, all, &own, sizeof own);
    if (status == CARRY_OK) {
        status = judge(ctx, all, ranks);
    }
    free(all);
    return status;
}
