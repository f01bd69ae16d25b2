/* A block of a video transformer on a device: its tensors, the keys it attends to, and the rows where its keys go. */
#include "bench/family/block_side.h"

#include "carry/device.h"
#include "core/context.h"
#include "core/memory.h"

carry_dit_config carry_block_config(const carry_block_sizes *it) {
    return (carry_dit_config){.dim = it->heads * it->head,
                              .ffn_dim = it->ffn,
                              .num_heads = it->heads,
                              .num_layers = 1,
                              .in_dim = 16,
                              .out_dim = 16,
                              .text_len = it->text,
                              .text_dim = 8,
                              .freq_dim = 8,
                              .patch = {1, 2, 2},
                              .eps = 1e-6,
                              .qk_norm = true,
                              .cross_attn_norm = true};
}

static carry_tensor take(const carry_block_side *s, carry_arena *arena, int tensor) {
    const carry_block_sizes *it = s->sizes;
    const int device = s->dit->own.device;
    const carry_dtype dtype = s->dtype;
    const int64_t D = it->heads * it->head;
    switch (tensor) {
    case CARRY_BLOCK_X:
        return s->room.x;
    case CARRY_BLOCK_MODULATION:
        return carry_arena_tensor(arena, device, CARRY_F32, 2, (const int64_t[]){1, CARRY_DIT_SHIFTS * D});
    case CARRY_BLOCK_TABLE:
        return carry_arena_tensor(arena, device, CARRY_F32, 3, (const int64_t[]){s->rows, it->head / 2, 2});
    default:
        return carry_arena_tensor(
            arena, device, dtype, 2,
            (const int64_t[]){tensor == CARRY_BLOCK_K || tensor == CARRY_BLOCK_V ? it->keys : it->text, D});
    }
}

static carry_attention_args see(const carry_dit_call *call, const carry_dit_rows *r, bool is_cross) {
    const carry_block_side *s = call->owner;
    const carry_block_sizes *it = s->sizes;
    const carry_tensor k = s->t[is_cross ? CARRY_BLOCK_TEXT_K : CARRY_BLOCK_K];
    const carry_tensor v = s->t[is_cross ? CARRY_BLOCK_TEXT_V : CARRY_BLOCK_V];
    return (carry_attention_args){.o = carry_dit_heads(s->dit, is_cross ? r->co : r->o, 0, s->rows),
                                  .q = carry_dit_heads(s->dit, is_cross ? r->cq : r->q, 0, s->rows),
                                  .k = carry_dit_heads(s->dit, k, 0, k.shape[0]),
                                  .v = carry_dit_heads(s->dit, v, 0, v.shape[0]),
                                  .run = it->run,
                                  .runs = is_cross ? 0 : it->runs};
}

static carry_attention_args see_cache(const carry_dit_call *call, int64_t block, const carry_dit_rows *r, int64_t group,
                                      carry_key_run *run) {
    (void)block, (void)group, (void)run;
    return see(call, r, false);
}

static carry_attention_args see_text(const carry_dit_call *call, int64_t block, const carry_dit_rows *r, int64_t group,
                                     carry_key_run *run) {
    (void)block, (void)group, (void)run;
    return see(call, r, true);
}

/* The rows of the cache for keys and values: all tokens go to its end, and chosen tokens each to their own row. */
static int64_t place(const carry_dit_call *call, int64_t block, int64_t group, int64_t at, carry_tensor *k,
                     carry_tensor *v) {
    const carry_block_side *s = call->owner;
    const int64_t first = s->sizes->keys - s->sizes->queries + (s->token != NULL ? s->token[at] : at);
    const int64_t count = s->token != NULL ? 1 : s->rows - at;
    (void)block, (void)group;
    *k = carry_slice(s->t[CARRY_BLOCK_K], first, count);
    *v = carry_slice(s->t[CARRY_BLOCK_V], first, count);
    return count;
}

carry_status carry_block_side_run(carry_block_side *s) {
    const int64_t row[] = {0, s->rows};
    const carry_dit_call call = {.dit = s->dit,
                                 .groups = 1,
                                 .row = row,
                                 .table = s->t[CARRY_BLOCK_TABLE],
                                 .owner = s,
                                 .self = see_cache,
                                 .place = place,
                                 .cross_groups = 1,
                                 .cross = see_text,
                                 .scratch = s->scratch,
                                 .scratch_bytes = s->scratch_bytes};
    carry_dit_rows rows = carry_dit_rows_in(&s->room, s->dit, s->rows);
    rows.m = s->t[CARRY_BLOCK_MODULATION];
    return carry_dit_block_forward(&call, 0, &rows, false);
}

static void lay_out(carry_block_side *s, carry_arena *arena) {
    const carry_dit_call call = {.owner = s};
    carry_dit_room_take(&s->room, s->dit, arena, s->dtype, s->rows);
    for (int i = 0; i < CARRY_BLOCK_TENSORS; i++) {
        s->t[i] = take(s, arena, i);
    }
    const carry_dit_rows rows = carry_dit_rows_in(&s->room, s->dit, s->rows);
    const carry_attention_args self = see(&call, &rows, false);
    const carry_attention_args cross = see(&call, &rows, true);
    const size_t one = carry_attention_workspace(&self);
    const size_t other = carry_attention_workspace(&cross);
    s->scratch_bytes = one > other ? one : other;
    s->scratch = carry_arena_take(arena, s->scratch_bytes, 1);
}

carry_status carry_block_side_take(carry_block_side *s) {
    carry_arena arena = carry_arena_over(NULL, 0);
    lay_out(s, &arena);
    if (!carry_arena_total(&arena, &s->bytes) ||
        carry_device_alloc(s->dit->ctx, &s->memory, s->dit->own.device, s->bytes) != CARRY_OK) {
        return carry_fail(s->dit->ctx, CARRY_EMEMORY, "%.3g GB of memory cannot be allocated: reduce h, ff, q or kv",
                          1e-9 * (double)s->bytes);
    }
    arena = carry_arena_over(s->memory, s->bytes);
    lay_out(s, &arena);
    return CARRY_OK;
}

void carry_block_side_give(carry_block_side *s) {
    if (s->dit != NULL) {
        carry_device_free(s->dit->ctx, s->dit->own.device, s->memory);
        carry_dit_free(s->dit);
    }
    s->dit = NULL;
    s->memory = NULL;
}
