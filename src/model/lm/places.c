/* Groups of rows, and parts of states in a pool. */
#include "model/lm/places.h"

#include <inttypes.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"

carry_status carry_lm_places_check(const carry_lm_pass *pass, const carry_lm_places *p) {
    const carry_lm_pass_options *o = &pass->options;
    if (p == NULL || p->sequences < 1 || p->sequences > o->pooled || p->steps < 0 || p->steps > p->sequences ||
        p->starts[p->sequences] > pass->most || p->pool->types.activations != o->dtype ||
        (p->pool->types.caches == CARRY_F8) != o->f8_caches || p->pool->lm != pass->lm ||
        carry_lm_places_wanted(p) > o->pooled) {
        return carry_fail(pass->ctx, CARRY_EARGUMENT,
                          "a pass for up to %" PRId64 " tokens of up to %" PRId64
                          " sequences in a pool of its model and type was called with others",
                          pass->most, o->pooled);
    }
    for (int64_t i = 1; i < p->waves; i++) {
        if (p->wave[0] != 0 || p->wave[p->waves] != p->steps || p->wave[i + 1] <= p->wave[i] ||
            p->wave[i + 1] - p->wave[i] > p->wave[i] - p->wave[i - 1]) {
            return carry_fail(pass->ctx, CARRY_EARGUMENT, "wave %" PRId64 " of a call has more steps than the last", i);
        }
    }
    for (int64_t i = 0; i < p->sequences; i++) {
        const int64_t count = p->starts[i + 1] - p->starts[i];
        if (count < 1 || (i < p->steps && count != 1) || p->starts[0] != 0 || p->slots[i] < 0 ||
            p->slots[i] >= p->pool->batch || p->lengths[i] < 0 || p->lengths[i] + count > o->context) {
            return carry_fail(pass->ctx, CARRY_ERANGE,
                              "sequence %" PRId64 " of a call: %" PRId64 " tokens after %" PRId64 " in slot %" PRId32
                              ", of a context of %" PRId64 " and %" PRId64 " slots",
                              i, count, p->lengths[i], p->slots[i], o->context, p->pool->batch);
        }
    }
    return CARRY_OK;
}

int64_t carry_lm_places_wanted(const carry_lm_places *p) {
    return p->wanted != NULL ? p->wanted_count : p->starts[p->sequences];
}

bool carry_lm_group_at(const carry_lm_pass *pass, const carry_lm_args *args, int64_t index, carry_lm_group *group) {
    const carry_lm_places *p = args->places;
    if (p == NULL) {
        *group = (carry_lm_group){.batch = pass->options.batch, .tokens = pass->options.tokens, .sequence = -1};
        return index == 0;
    }
    if (index < p->waves) {
        *group = (carry_lm_group){.first = p->wave[index],
                                  .batch = p->wave[index + 1] - p->wave[index],
                                  .tokens = 1,
                                  .sequence = p->wave[index]};
        return true;
    }
    if (p->steps > 0 && index == 0) {
        *group = (carry_lm_group){.batch = p->steps, .tokens = 1};
        return true;
    }
    const int64_t sequence = index + p->steps - (p->waves > 0 ? p->waves : p->steps > 0 ? 1 : 0);
    if (sequence >= p->sequences) {
        return false;
    }
    *group = (carry_lm_group){.first = p->starts[sequence],
                              .batch = 1,
                              .tokens = p->starts[sequence + 1] - p->starts[sequence],
                              .sequence = sequence};
    return true;
}

bool carry_lm_group_pack(const carry_lm_args *args, carry_lm_group *group) {
    const carry_lm_places *p = args->places;
    if (p == NULL || p->borders == NULL || group->sequence != p->steps || p->sequences - p->steps < 2) {
        return false;
    }
    *group = (carry_lm_group){.first = p->starts[p->steps],
                              .batch = 1,
                              .tokens = p->starts[p->sequences] - p->starts[p->steps],
                              .sequence = p->steps,
                              .packed = p->sequences - p->steps};
    return true;
}

carry_tensor carry_lm_group_flat(const carry_lm_group *group, carry_tensor rows) {
    return rows.data != NULL ? carry_slice(rows, group->first, group->batch * group->tokens) : rows;
}

carry_tensor carry_lm_group_rows(const carry_lm_group *group, carry_tensor rows, int rank, const int64_t *shape) {
    int64_t all[8] = {group->batch, group->tokens};
    if (rows.data == NULL) {
        return rows;
    }
    for (int i = 0; i < rank; i++) {
        all[2 + i] = shape[i];
    }
    const carry_tensor flat = carry_slice(rows, group->first, group->batch * group->tokens);
    carry_tensor view = carry_reshape(flat, rank + 2, all);
    if (!carry_tensor_is_packed(&flat, 0)) { /* the row stride is larger than the row */
        view.stride[1] = flat.stride[0];
        view.stride[0] = flat.stride[0] * group->tokens;
    }
    return view;
}

bool carry_lm_group_is_steps(const carry_lm_args *args, const carry_lm_group *group) {
    return args->places != NULL && group->first < args->places->steps; /* a step has one row */
}

int64_t carry_lm_place_before(const carry_lm_places *p, int64_t sequence) {
    int64_t wave = 0;
    while (wave + 1 < p->waves && sequence >= p->wave[wave + 1]) {
        wave++;
    }
    return wave > 0 && sequence < p->steps ? p->wave[wave - 1] + sequence - p->wave[wave] : -1;
}

/* The slots on the device whose states a group of steps continues from; NULL: the group's own slots. */
static const int32_t *slots_before(const carry_lm_places *p, const carry_lm_group *group) {
    const int64_t before = carry_lm_place_before(p, group->sequence);
    return before >= 0 ? p->there.slots + before : NULL;
}

carry_status carry_lm_follow(const carry_lm_call *call, const carry_lm_group *group, int part) {
    const carry_lm_places *p = call->args->places;
    const int32_t *from = p != NULL ? slots_before(p, group) : NULL;
    if (from == NULL) {
        return CARRY_OK;
    }
    const carry_tensor *states = &p->pool->part[call->layer][part];
    const int64_t slots = states->shape[0];
    const int64_t slices = p->pool->about[call->layer][part].slices > 0 ? p->pool->about[call->layer][part].slices : 1;
    const carry_tensor rows = carry_reshape_2d(*states, slices * slots, carry_tensor_count(states) / slots / slices);
    for (int64_t i = 0; i < slices; i++) {
        CARRY_TRY(carry_copy_slots(call->pass->ctx, carry_slice(rows, i * slots, slots), p->there.slots + group->first,
                                   from, group->batch));
    }
    return CARRY_OK;
}

carry_lm_pooled_call carry_lm_pooled(const carry_lm_call *call, const carry_lm_group *group, int part) {
    const carry_lm_places *p = call->args->places;
    const bool is_step = group->packed == 0 && carry_lm_group_is_steps(call->args, group);
    const bool has_slots = group->packed > 0 || is_step;
    return (carry_lm_pooled_call){.batch = group->batch,
                                  .tokens = group->tokens,
                                  .packed = group->packed,
                                  .borders = group->packed > 0 ? p->borders : NULL,
                                  .pool = p->pool->part[call->layer][part],
                                  .slots = has_slots ? p->there.slots + group->sequence : NULL,
                                  .slot = p->slots[group->sequence],
                                  .ring = is_step && p->rings ? p->pool->ring[call->layer] : NULL};
}

static carry_status convolve_steps(const carry_lm_call *call, const carry_lm_group *group, const carry_lm_conv *convs,
                                   int count) {
    const carry_lm_places *p = call->args->places;
    carry_conv_step_args step = {.maps = count, .slots = p->there.slots + group->first, .from = slots_before(p, group)};
    for (int i = 0; i < count; i++) {
        step.map[i] = (carry_conv_step_map){.y = carry_lm_group_flat(group, convs[i].y),
                                            .x = carry_lm_group_flat(group, convs[i].x),
                                            .w = convs[i].w,
                                            .tails = p->pool->part[call->layer][i],
                                            .activation = convs[i].activation};
    }
    return carry_conv_step(call->pass->ctx, &step);
}

/* All pieces of the call. */
static carry_status convolve_pieces(const carry_lm_call *call, const carry_lm_conv *convs, int count) {
    const carry_lm_places *p = call->args->places;
    carry_conv_pieces_args pieces = {
        .maps = count, .pieces = p->sequences - p->steps, .starts = p->starts + p->steps, .slots = p->slots + p->steps};
    for (int i = 0; i < count; i++) {
        pieces.map[i] = (carry_conv_step_map){.y = convs[i].y,
                                              .x = convs[i].x,
                                              .w = convs[i].w,
                                              .tails = p->pool->part[call->layer][i],
                                              .activation = convs[i].activation};
    }
    return carry_conv_pieces(call->pass->ctx, &pieces);
}

/* A group whose tails are not in a pool: without places, or with convolutions of width 1, which have no tails. */
static carry_status convolve_one(const carry_lm_call *call, const carry_lm_group *group, const carry_lm_conv *c,
                                 int part) {
    const int64_t channels = c->x.shape[1];
    carry_conv_args conv = {.y = carry_lm_group_rows(group, c->y, 1, &channels),
                            .x = carry_lm_group_rows(group, c->x, 1, &channels),
                            .w = c->w,
                            .cu_seqlens = call->args->places == NULL ? call->pass->cuts : (carry_tensor){0},
                            .activation = c->activation};
    if (call->args->state != NULL) {
        conv.before = conv.after = call->args->state->part[call->layer][part];
    }
    return carry_conv(call->pass->ctx, &conv);
}

carry_status carry_lm_convolve(const carry_lm_call *call, const carry_lm_conv *convs, int count) {
    const carry_lm_places *p = call->args->places;
    const bool has_tails =
        p != NULL && p->pool->part[call->layer][0].data != NULL; /* false for convolutions of width 1 */
    carry_lm_group group;
    for (int64_t i = 0; carry_lm_group_at(call->pass, call->args, i, &group); i++) {
        if (has_tails && !carry_lm_group_is_steps(call->args, &group)) {
            return convolve_pieces(call, convs, count); /* pieces are the last groups */
        }
        if (has_tails) {
            CARRY_TRY(convolve_steps(call, &group, convs, count));
            continue;
        }
        for (int j = 0; j < count; j++) {
            CARRY_TRY(convolve_one(call, &group, &convs[j], j));
        }
    }
    return CARRY_OK;
}

carry_status carry_lm_pages_put(const carry_lm_call *call, int part, carry_tensor from) {
    const carry_lm_places *p = call->args->places;
    const carry_tensor *pages = &p->pool->part[call->layer][part];
    const int64_t rows = pages->shape[0] * pages->shape[1];
    const int64_t width = carry_tensor_count(pages) / rows;
    if (pages->dtype == CARRY_F8) {
        const int64_t heads = pages->shape[2];
        const carry_f8_pool to = {.numbers = carry_reshape_3d(*pages, rows, heads, width / heads),
                                  .scales = carry_reshape_2d(p->pool->part[call->layer][part + 2], rows, heads)};
        return carry_put_rows_f8(call->pass->ctx, to, carry_reshape_3d(from, call->pass->tokens, heads, width / heads),
                                 p->there.rows);
    }
    return carry_put_rows(call->pass->ctx, carry_reshape_2d(*pages, rows, width),
                          carry_reshape_2d(from, call->pass->tokens, width), p->there.rows);
}
