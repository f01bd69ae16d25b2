#include "stream/mesh.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/crc32c.h"
#include "core/memory.h"
#include "core/span.h"
#include "stream/call.h"

#define SHUTDOWN_BYTES 4096 /* more than the size of an envelope without tensors */

struct carry_mesh {
    carry_ctx *ctx;
    carry_comm *comm;
    carry_generator *generator;
    const carry_dit *dit;
    carry_mesh_options options;
    carry_envelope_order order;
    int64_t position; /* index of the next frame; below 0 before the first call */
    bool is_shut;
    double since;       /* time at which the leader began to wait */
    unsigned char *box; /* a worker's buffer for envelopes */
    int64_t lora;       /* LoRA of the next call */
    int64_t lora_used;

    /* Prompts that arrive during a call. */
    carry_link *link; /* the leader's link during a call; NULL on workers */
    uint16_t *text;   /* [text_len, text_dim] bf16 */
    uint64_t rows;    /* rows of the pending prompt; 0: no prompt is pending */
    uint64_t texts;   /* conditionings used so far, including those of envelopes */
    /* A copy of the envelope's steps, whose bytes are overwritten by the next message. */
    int64_t step[CARRY_ENVELOPE_STEPS];
};

static size_t row_bytes(const carry_mesh *mesh) {
    return (size_t)mesh->options.text_dim * sizeof(uint16_t);
}

static carry_status keep_text(carry_mesh *mesh, const carry_message *message) {
    carry_text_head head = {0};
    const size_t bytes = message->size < sizeof head ? 0 : message->size - sizeof head;
    const unsigned char *rows = (const unsigned char *)message->bytes + sizeof head;
    if (message->size >= sizeof head) {
        memcpy(&head, message->bytes, sizeof head);
    }
    if (head.rows < 1 || head.rows > (uint64_t)mesh->options.text_len || bytes != head.rows * row_bytes(mesh)) {
        return carry_fail(mesh->ctx, CARRY_ESHAPE,
                          "a late prompt of %zu bytes says that it has %u rows: 1 to %" PRId64 " of %" PRId64
                          " numbers were agreed on",
                          message->size, head.rows, mesh->options.text_len, mesh->options.text_dim);
    }
    if (carry_crc32c(0, rows, bytes) != head.crc) {
        return carry_fail(mesh->ctx, CARRY_EFORMAT, "a late prompt is damaged: its CRC32C is not the one it came with");
    }
    memcpy(mesh->text, rows, bytes);
    mesh->rows = head.rows;
    mesh->texts++;
    return CARRY_OK;
}

/* The carry_generator_take function; a collective of the mesh. */
static carry_status take_late(void *user, carry_tensor *text) {
    carry_mesh *mesh = user;
    if (mesh->link != NULL) {
        CARRY_TRY(mesh->options.look != NULL ? mesh->options.look(mesh->options.user) : CARRY_OK);
        bool is_next;
        CARRY_TRY(carry_link_next_is(mesh->link, CARRY_MESSAGE_TEXT, &is_next));
        while (is_next) { /* the newest pending prompt is kept */
            carry_message message;
            CARRY_TRY(carry_link_receive(mesh->link, &message));
            CARRY_TRY(keep_text(mesh, &message));
            CARRY_TRY(carry_link_next_is(mesh->link, CARRY_MESSAGE_TEXT, &is_next));
        }
    }
    if (mesh->comm != NULL) {
        CARRY_TRY(carry_broadcast(mesh->comm, &mesh->rows, sizeof mesh->rows, 0));
        if (mesh->rows > (uint64_t)mesh->options.text_len) {
            return carry_fail(mesh->ctx, CARRY_ERANGE,
                              "mesh: a prompt of %" PRIu64 " rows where %" PRId64 " is the most", mesh->rows,
                              mesh->options.text_len);
        }
        if (mesh->rows > 0) {
            CARRY_TRY(carry_broadcast(mesh->comm, mesh->text, mesh->rows * row_bytes(mesh), 0));
        }
    }
    *text = mesh->rows > 0 ? carry_view_2d(mesh->text, CARRY_BF16, (int64_t)mesh->rows, mesh->options.text_dim)
                           : (carry_tensor){0};
    mesh->rows = 0;
    return CARRY_OK;
}

carry_status carry_mesh_new(carry_ctx *ctx, carry_mesh **made, carry_comm *comm, carry_generator *generator,
                            const carry_dit *dit, const carry_mesh_options *options) {
    carry_mesh *mesh = calloc(1, sizeof *mesh);
    unsigned char *box = carry_aligned_new(options->envelope_most);
    size_t bytes = 0;
    const int64_t shape[] = {options->text_len, options->text_dim};
    uint16_t *text = carry_size_product(&bytes, shape, 2, sizeof *text) ? carry_aligned_new(bytes) : NULL;
    *made = mesh;
    if (mesh == NULL || box == NULL || text == NULL) {
        free(mesh);
        free(box);
        free(text);
        *made = NULL;
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: envelopes of %zu bytes", options->envelope_most);
    }
    *mesh = (carry_mesh){.ctx = ctx,
                         .comm = comm != NULL && carry_comm_size(comm) > 1 ? comm : NULL,
                         .generator = generator,
                         .dit = dit,
                         .options = *options,
                         .position = -1,
                         .since = carry_seconds(),
                         .box = box,
                         .text = text};
    if (generator != NULL) {
        carry_generator_set_late(generator, take_late, mesh);
    }
    return CARRY_OK;
}

void carry_mesh_free(carry_mesh *mesh) {
    if (mesh != NULL) {
        free(mesh->box);
        free(mesh->text);
        free(mesh);
    }
}

static carry_call call_of(const carry_envelope *e) {
    return (carry_call){
        .group = "mesh", .call_id = e->call_id, .chunk_index = e->chunk_index, .cache_epoch = e->cache_epoch};
}

/* Sent to the workers before each envelope. */
typedef struct notice {
    uint64_t size;
    int64_t lora;
} notice;

static carry_status spread(carry_mesh *mesh, const void *bytes, size_t size) {
    notice announced = {.size = size, .lora = mesh->lora};
    if (mesh->comm == NULL) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_broadcast(mesh->comm, &announced, sizeof announced, 0));
    /* The root of a broadcast only reads its buffer. */
    return carry_broadcast(mesh->comm, (void *)(uintptr_t)bytes, size, 0);
}

static carry_status meet(carry_mesh *mesh) {
    return mesh->comm != NULL ? carry_barrier(mesh->comm) : CARRY_OK;
}

static carry_status check_sizes(const carry_mesh *mesh, const carry_envelope *e) {
    const carry_mesh_options *o = &mesh->options;
    carry_ctx *ctx = mesh->ctx;
    if (e->height != o->height || e->width != o->width || e->latents_in.shape[0] != o->channels ||
        e->latents_in.shape[1] != o->chunk) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "latents_in is [%" PRId64 ", %" PRId64 ", %d, %d] where [%" PRId64 ", %" PRId64 ", %" PRId64
                          ", %" PRId64 "] was agreed on",
                          e->latents_in.shape[0], e->latents_in.shape[1], e->height, e->width, o->channels, o->chunk,
                          o->height, o->width);
    }
    if (e->reset_cross_cache && (e->conditioning.shape[0] > o->text_len || e->conditioning.shape[1] != o->text_dim)) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "conditioning is [%" PRId64 ", %" PRId64 "] where up to %" PRId64 " rows of %" PRId64
                          " were agreed on",
                          e->conditioning.shape[0], e->conditioning.shape[1], o->text_len, o->text_dim);
    }
    if (e->do_recompute && (e->context_frames.shape[1] > o->context || e->context_frames.shape[1] % o->chunk != 0)) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "context_frames are %" PRId64 " where chunks of %" PRId64 ", %" PRId64 " at most, were "
                          "agreed on",
                          e->context_frames.shape[1], o->chunk, o->context);
    }
    return CARRY_OK;
}

/* The mesh tracks its position: after the flags of the envelope are applied, it must equal the envelope's. */
static carry_status check_position(carry_mesh *mesh, const carry_envelope *e, bool is_new_epoch) {
    carry_ctx *ctx = mesh->ctx;
    if (mesh->position < 0 && !(e->init_cache && e->reset_cross_cache)) {
        return carry_fail(ctx, CARRY_EPEER, "the first call has no init_cache or no reset_cross_cache");
    }
    if (is_new_epoch && !(e->reset_cache || e->init_cache)) {
        return carry_fail(ctx, CARRY_EPEER, "a new cache_epoch without reset_cache");
    }
    int64_t at = e->init_cache || e->reset_cache ? 0 : mesh->position;
    at = e->do_recompute ? e->context_frames.shape[1] : at;
    if (e->current_start_frame != at) {
        return carry_fail(ctx, CARRY_EPEER, "current_start_frame is %d and the mesh is at frame %" PRId64,
                          e->current_start_frame, at);
    }
    if (at + mesh->options.chunk > CARRY_DIT_POSITIONS) {
        return carry_fail(ctx, CARRY_ERANGE, "frame %" PRId64 " is past the %d that have a position",
                          at + mesh->options.chunk - 1, CARRY_DIT_POSITIONS);
    }
    mesh->position = at + mesh->options.chunk;
    return CARRY_OK;
}

static carry_status validate(carry_mesh *mesh, carry_envelope *e, const void *bytes, size_t size) {
    const carry_envelope_order before = mesh->order;
    CARRY_TRY(carry_envelope_decode(mesh->ctx, e, bytes, size));
    CARRY_TRY(carry_envelope_follow(mesh->ctx, &mesh->order, e));
    if (e->action != CARRY_INFER) {
        return CARRY_OK;
    }
    if (mesh->is_shut) {
        return carry_fail(mesh->ctx, CARRY_EPEER, "INFER after SHUTDOWN");
    }
    CARRY_TRY(check_sizes(mesh, e));
    return check_position(mesh, e, before.any && e->cache_epoch != before.cache_epoch);
}

/* Shuts the mesh down, so that no rank waits, then sends the refusal to stage 0. The message stays in the context. */
static carry_status refuse(carry_mesh *mesh, carry_link *link, carry_status status, const carry_envelope *e) {
    const carry_call call = call_of(e);
    char why[512];
    carry_call_fail(mesh->ctx, status, &call);
    (void)snprintf(why, sizeof why, "%s", carry_ctx_error(mesh->ctx));
    if (!mesh->is_shut) {
        const carry_envelope shutdown = {.version = CARRY_ENVELOPE_VERSION,
                                         .action = CARRY_SHUTDOWN,
                                         .call_id = mesh->order.call_id + 1,
                                         .cache_epoch = mesh->order.cache_epoch};
        _Alignas(CARRY_ALIGN) unsigned char bytes[SHUTDOWN_BYTES];
        size_t size;
        if (carry_envelope_encode(mesh->ctx, bytes, sizeof bytes, &size, &shutdown) == CARRY_OK &&
            spread(mesh, bytes, size) == CARRY_OK) {
            (void)meet(mesh);
        }
        mesh->is_shut = true;
    }
    if (carry_link_tell(link, CARRY_MESSAGE_REFUSAL, why, strlen(why)) == CARRY_OK) {
        (void)carry_link_flush(link);
    }
    return carry_fail(mesh->ctx, status, "%s", why);
}

/* Handles a call that failed midway: every rank of the mesh fails with it or is notified, and so is stage 0. */
static carry_status give_up(carry_mesh *mesh, carry_link *link, carry_status status, const carry_envelope *e) {
    const carry_call call = call_of(e);
    char why[512];
    carry_call_fail(mesh->ctx, status, &call);
    (void)snprintf(why, sizeof why, "%s", carry_ctx_error(mesh->ctx));
    if (status != CARRY_ETIMEOUT && carry_link_tell(link, CARRY_MESSAGE_REFUSAL, why, strlen(why)) == CARRY_OK) {
        (void)carry_link_flush(link);
    }
    return carry_fail(mesh->ctx, status, "%s", why);
}

static void rest(double seconds) {
    const struct timespec pause = {.tv_sec = (time_t)seconds,
                                   .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    if (seconds > 0.0) {
        (void)nanosleep(&pause, NULL);
    }
}

static carry_status keep_lora(carry_mesh *mesh, const carry_message *message) {
    int64_t which = -1;
    if (message->size == sizeof which) {
        memcpy(&which, message->bytes, sizeof which);
    }
    if (which < 0 || which > CARRY_LORAS || (which > 0 && mesh->options.loras == NULL)) {
        return carry_fail(mesh->ctx, CARRY_ERANGE, "LoRA %" PRId64 ": the mesh has no file of this number", which);
    }
    mesh->lora = which;
    return CARRY_OK;
}

/* Applies the call's LoRA to the weights before the call. Waits for the clean pass of the previous call. */
static carry_status use_lora(carry_mesh *mesh) {
    if (mesh->lora == mesh->lora_used || mesh->options.loras == NULL) {
        return CARRY_OK;
    }
    CARRY_SPAN(mesh->ctx, "stream", "LoRA");
    CARRY_TRY(carry_dit_loras_use(mesh->options.loras, (int)mesh->lora));
    CARRY_TRY(carry_generator_reload(mesh->generator));
    mesh->lora_used = mesh->lora;
    return CARRY_OK;
}

static carry_status infer(carry_mesh *mesh, carry_result *result, carry_generator_times *times, carry_envelope *e) {
    CARRY_SPAN(mesh->ctx, "stream", "call");
    if (mesh->options.fail_at > 0 && e->chunk_index == (uint64_t)mesh->options.fail_at) {
        return carry_fail(mesh->ctx, CARRY_EMEMORY, "out of memory, as was asked for");
    }
    memcpy(mesh->step, e->steps.data, (size_t)e->num_denoise_steps * sizeof *mesh->step);
    e->steps.data = mesh->step;
    if (e->reset_cross_cache) {
        mesh->texts++;
        mesh->rows = 0; /* the envelope has a newer prompt */
    }
    CARRY_TRY(use_lora(mesh));
    CARRY_TRY(carry_generator_run(mesh->generator, result, times, e));
    CARRY_TRY(carry_generator_agree(mesh->generator, result));
    rest(mesh->options.slow);
    return CARRY_OK;
}

static carry_status answer(carry_mesh *mesh, carry_link *link, carry_result *result,
                           const carry_generator_times *times) {
    void *room;
    size_t size;
    const carry_dit_counts counts = mesh->dit != NULL ? mesh->dit->counts : (carry_dit_counts){0};
    const carry_about about = {.call_id = result->call_id,
                               .denoise = times->denoise,
                               .recompute = times->recompute,
                               .clean = times->clean,
                               .forwards = counts.forwards,
                               .large = counts.large,
                               .small = counts.small,
                               .texts = mesh->texts,
                               .is_again = carry_generator_did_again(mesh->generator)};
    CARRY_TRY(carry_link_tell(link, CARRY_MESSAGE_ABOUT, &about, sizeof about));
    CARRY_TRY(carry_link_slot(link, &room));
    CARRY_TRY(carry_result_encode(mesh->ctx, room, carry_link_capacity(link), &size, result));
    return carry_link_send(link, CARRY_MESSAGE_RESULT, size);
}

static carry_status turn_infer(carry_mesh *mesh, carry_link *link, carry_envelope *e, const carry_message *message,
                               double start) {
    char text[CARRY_CALL_TEXT];
    const carry_call call = call_of(e);
    carry_result result;
    carry_generator_times times;
    const double idle = start - mesh->since;
    carry_status status = spread(mesh, message->bytes, message->size);
    mesh->link = link;
    status = status == CARRY_OK ? infer(mesh, &result, &times, e) : status;
    mesh->link = NULL;
    if (status != CARRY_OK) {
        return give_up(mesh, link, status, e);
    }
    result.mesh_idle_ms = 1e3 * (idle > 0.0 ? idle : 0.0);
    result.stage1_ms = 1e3 * (carry_seconds() - start);
    carry_log(mesh->ctx, CARRY_LOG_DEBUG, "%s: %d calls in %.1f ms after %.1f ms of waiting",
              carry_call_text(text, &call), result.observed_generator_calls, result.stage1_ms, result.mesh_idle_ms);
    status = answer(mesh, link, &result, &times);
    mesh->since = carry_seconds();
    return status == CARRY_OK ? CARRY_OK : carry_call_fail(mesh->ctx, status, &call);
}

carry_status carry_mesh_turn(carry_mesh *mesh, carry_link *link, bool *closed) {
    carry_message message;
    carry_envelope e = {0};
    *closed = false;
    CARRY_TRY(carry_link_receive(link, &message));
    const double start = carry_seconds();
    if (message.kind == CARRY_MESSAGE_CLOSE && mesh->is_shut) {
        *closed = true;
        return CARRY_OK;
    }
    carry_status status = CARRY_OK;
    if (message.kind == CARRY_MESSAGE_TEXT && !mesh->is_shut) {
        status = keep_text(mesh, &message);
        return status == CARRY_OK ? CARRY_OK : refuse(mesh, link, status, &e);
    }
    if (message.kind == CARRY_MESSAGE_LORA && !mesh->is_shut) {
        status = keep_lora(mesh, &message);
        return status == CARRY_OK ? CARRY_OK : refuse(mesh, link, status, &e);
    }
    if (message.kind == CARRY_MESSAGE_ENVELOPE) {
        status = validate(mesh, &e, message.bytes, message.size);
    } else {
        status =
            carry_fail(mesh->ctx, CARRY_EPEER, "message of kind %d where an envelope is needed", (int)message.kind);
    }
    if (status != CARRY_OK) {
        return refuse(mesh, link, status, &e);
    }
    if (e.action == CARRY_INFER) {
        return turn_infer(mesh, link, &e, &message, start);
    }
    if (!mesh->is_shut) {
        const carry_call call = call_of(&e);
        status = spread(mesh, message.bytes, message.size);
        status = status == CARRY_OK ? meet(mesh) : status;
        if (status != CARRY_OK) {
            return carry_call_fail(mesh->ctx, status, &call);
        }
    }
    if (e.action == CARRY_SHUTDOWN) {
        mesh->is_shut = true;
        carry_link_stop_heartbeats(link); /* stage 0 reads nothing after the answer to SHUTDOWN */
    }
    return carry_link_tell(link, CARRY_MESSAGE_PULSE, &e.call_id, sizeof e.call_id);
}

carry_status carry_mesh_lead(carry_mesh *mesh, carry_link *link) {
    for (bool closed = false; !closed;) {
        CARRY_TRY(carry_mesh_turn(mesh, link, &closed));
    }
    return carry_link_flush(link);
}

static carry_status take(carry_mesh *mesh, carry_envelope *e) {
    notice next;
    CARRY_TRY(carry_broadcast(mesh->comm, &next, sizeof next, 0));
    if (next.size > mesh->options.envelope_most) {
        return carry_fail(mesh->ctx, CARRY_ERANGE, "mesh: an envelope of %" PRIu64 " bytes where %zu is the most",
                          next.size, mesh->options.envelope_most);
    }
    mesh->lora = next.lora;
    CARRY_TRY(carry_broadcast(mesh->comm, mesh->box, next.size, 0));
    return carry_envelope_decode(mesh->ctx, e, mesh->box, next.size);
}

carry_status carry_mesh_work(carry_mesh *mesh) {
    carry_result result;
    carry_generator_times times;
    for (;;) {
        carry_envelope e;
        CARRY_TRY(take(mesh, &e));
        const carry_call call = call_of(&e);
        const carry_status status = e.action == CARRY_INFER ? infer(mesh, &result, &times, &e) : meet(mesh);
        if (status != CARRY_OK) {
            return carry_call_fail(mesh->ctx, status, &call);
        }
        if (e.action == CARRY_SHUTDOWN) {
            return CARRY_OK;
        }
    }
}
