/* Chain: each position passes the state on to the next, in blocks of columns, which are independent of each other.
   While one block is multiplied, the previous one is sent. M never leaves its rank, and the bytes that a rank receives
   do not grow with the number of ranks. "serial" is the chain with one block.

   Blocks are whole heads, or columns of heads if there are more blocks than heads. A block of heads is contiguous in
   memory, so f32 needs no copy at either end. A rank in which a sequence starts (CARRY_ALL_SCAN_CUT) sends L at once. A
   rank without tokens (CARRY_ALL_SCAN_PASS) forwards the bytes that it received. */
#include "scan/all_scan/all_scan.h"

typedef struct layout {
    char *in, *out; /* message buffers */
    float *block;   /* the state that leaves, before it is narrowed */
} layout;

/* The start of part `index` when `count` is divided into `parts` parts whose sizes differ by at most one. */
static int64_t part_begin(int64_t count, int64_t parts, int64_t index) {
    const int64_t each = count / parts, rest = count % parts;
    return each * index + (index < rest ? index : rest);
}

static carry_all_scan_block block_at(const carry_all_scan_problem *p, int64_t blocks, int64_t index) {
    if (blocks <= p->heads) {
        const int64_t head = part_begin(p->heads, blocks, index);
        return (carry_all_scan_block){
            .head = head, .heads = part_begin(p->heads, blocks, index + 1) - head, .columns = p->value};
    }
    /* The last `blocks % heads` heads have one block more than the others, so that block 0 is one of the largest. */
    const int64_t each = blocks / p->heads, few = p->heads - blocks % p->heads;
    const bool early = index < few * each;
    const int64_t head = early ? index / each : few + (index - few * each) / (each + 1);
    const int64_t parts = early ? each : each + 1, part = index - head * each - (early ? 0 : head - few);
    const int64_t column = part_begin(p->value, parts, part);
    return (carry_all_scan_block){
        .head = head, .heads = 1, .column = column, .columns = part_begin(p->value, parts, part + 1) - column};
}

static int64_t block_floats(const carry_all_scan_problem *p, carry_all_scan_block block) {
    return block.heads * p->key * block.columns;
}

static int64_t largest_block(const carry_all_scan_problem *p, int64_t blocks) {
    return block_floats(p, block_at(p, blocks, 0));
}

/* The number of floats before this block in the message layout. */
static int64_t block_offset(const carry_all_scan_problem *p, carry_all_scan_block block) {
    return block.head * p->key * p->value + p->key * block.column;
}

static bool is_contiguous(const carry_all_scan_problem *p, carry_all_scan_block block) {
    return block.columns == p->value;
}

/* True if the block is sent and received without a copy. */
static bool is_in_place(const carry_all_scan_problem *p, carry_all_scan_block block) {
    return p->wire == CARRY_F32 && is_contiguous(p, block);
}

static layout lay_out(const carry_all_scan_plan *plan, carry_arena *arena) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    layout l;
    l.in = carry_arena_take(arena, 1, carry_all_scan_state_bytes(p));
    l.out = carry_arena_take(arena, 1, carry_all_scan_state_bytes(p));
    l.block = carry_arena_take(arena, (size_t)largest_block(p, plan->blocks), sizeof(float));
    return l;
}

static layout layout_of(const carry_all_scan_plan *plan) {
    carry_arena arena = carry_arena_over(plan->area, plan->area_bytes);
    return lay_out(plan, &arena);
}

static bool applies(const carry_all_scan_shape *shape, int64_t blocks, char *why, size_t why_size) {
    const carry_all_scan_problem *p = &shape->problem;
    return carry_all_scan_fits((size_t)largest_block(p, blocks) * carry_dtype_size(p->wire), why, why_size);
}

/* P-1 hops for the first block, plus the overhead and the time of the slowest hop without its latency for each further
   block: the latency of further blocks is hidden. */
static double cost(const carry_all_scan_shape *shape, const carry_all_scan_machine *machine, int64_t blocks) {
    const carry_all_scan_problem *p = &shape->problem;
    const carry_all_scan_block block = block_at(p, blocks, 0);
    const double numbers = (double)block_floats(p, block), wire = (double)carry_dtype_size(p->wire);
    const double handled = is_in_place(p, block) ? 0.0 : 2.0 * numbers * (sizeof(float) + wire);
    /* Kernels process 16 columns at a time, so fewer columns cost as much. */
    const double columns = (double)((block.columns + 15) / 16 * 16), all = (double)((p->value + 15) / 16 * 16);
    const double product = carry_all_scan_spread(machine, machine->product * (double)block.heads * columns / all);
    const double work = product + handled / machine->memory;
    const double slow = numbers * wire / machine->bandwidth + work;
    const double hop = machine->mean_bandwidth > 0
                           ? machine->mean_latency + numbers * wire / machine->mean_bandwidth + work
                           : machine->latency + slow;
    return shape->ranks == 1 ? product * (double)blocks
                             : (double)(shape->ranks - 1) * hop + (double)(blocks - 1) * (machine->overhead + slow);
}

static int64_t requests(const carry_all_scan_shape *shape, int64_t blocks) {
    return shape->ranks > 1 ? blocks : 0;
}

static bool workspace(const carry_all_scan_plan *plan, size_t *bytes) {
    carry_arena arena = carry_arena_over(NULL, 0);
    (void)lay_out(plan, &arena);
    return carry_arena_total(&arena, bytes);
}

/* The address at which a block arrives: in the state itself, or in the message buffer. */
static void *arrives_at(const carry_all_scan_plan *plan, const layout *l, carry_all_scan_block block) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    if (is_in_place(p, block)) {
        return (float *)plan->args.state.data + block_offset(p, block);
    }
    return l->in + (size_t)block_offset(p, block) * carry_dtype_size(p->wire);
}

static carry_status send_block(carry_all_scan_plan *plan, const void *from, carry_all_scan_block block, int64_t index) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const size_t bytes = (size_t)block_floats(p, block) * carry_dtype_size(p->wire);
    CARRY_TRY(carry_all_scan_send(plan, index, from, bytes, plan->position + 1));
    plan->posted = index + 1;
    return CARRY_OK;
}

/* Sends floats that do not change until the end of the scan. */
static carry_status send_view(carry_all_scan_plan *plan, const layout *l, const void *whole, carry_all_scan_block block,
                              int64_t index) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_view from = carry_all_scan_view_at(carry_all_scan_packed(p, whole), block);
    if (is_in_place(p, block)) {
        return send_block(plan, from.data, block, index);
    }
    void *wire = l->out + (size_t)block_offset(p, block) * carry_dtype_size(p->wire);
    plan->arith->pack(plan, wire, from, block.heads, p->key, block.columns);
    return send_block(plan, wire, block, index);
}

/* Computes M S + L of a block into the message buffer, and into `leaving` if that is wanted. */
static carry_status send_product(carry_all_scan_plan *plan, const layout *l, carry_all_scan_view S,
                                 carry_all_scan_block block, int64_t index) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    void *wire = l->out + (size_t)block_offset(p, block) * carry_dtype_size(p->wire);
    if (plan->args.leaving.data != NULL) {
        carry_all_scan_leave(plan, carry_all_scan_view_at(carry_all_scan_packed(p, plan->args.leaving.data), block), S,
                             block);
        return send_view(plan, l, plan->args.leaving.data, block, index);
    }
    const bool is_f32 = p->wire == CARRY_F32; /* then the product is written directly to the message buffer */
    const carry_all_scan_view out = {
        .data = is_f32 ? (float *)wire : l->block, .head = p->key * block.columns, .row = block.columns};
    carry_all_scan_leave(plan, out, S, block);
    if (!is_f32) {
        plan->arith->pack(plan, wire, out, block.heads, p->key, block.columns);
    }
    return send_block(plan, wire, block, index);
}

/* Called when a block of the state has arrived: sends the block that leaves. */
static carry_status pass_on(carry_all_scan_plan *plan, const layout *l, carry_all_scan_block block, int64_t index) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_role role = carry_all_scan_role_of(plan);
    const carry_all_scan_view S = carry_all_scan_view_at(carry_all_scan_packed(p, plan->args.state.data), block);
    const bool sends = !carry_all_scan_is_last(plan);
    if (sends && role == CARRY_ALL_SCAN_MAP) {
        return send_product(plan, l, S, block, index);
    }
    if (plan->args.leaving.data != NULL) {
        carry_all_scan_leave(plan, carry_all_scan_view_at(carry_all_scan_packed(p, plan->args.leaving.data), block), S,
                             block);
    }
    if (!sends || role == CARRY_ALL_SCAN_CUT) { /* then L has already been sent */
        return CARRY_OK;
    }
    return plan->position > 0 ? send_block(plan, arrives_at(plan, l, block), block, index)
                              : send_view(plan, l, plan->args.state.data, block, index);
}

static carry_status begin(carry_all_scan_plan *plan) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const layout l = layout_of(plan);
    for (int64_t i = 0; i < plan->blocks && plan->position > 0; i++) {
        const carry_all_scan_block block = block_at(p, plan->blocks, i);
        CARRY_TRY(carry_all_scan_receive(plan, i, arrives_at(plan, &l, block),
                                         (size_t)block_floats(p, block) * carry_dtype_size(p->wire),
                                         plan->position - 1));
    }
    if (plan->position == 0) {
        carry_all_scan_start(plan);
    }
    const bool is_cut = carry_all_scan_role_of(plan) == CARRY_ALL_SCAN_CUT;
    for (int64_t i = 0; i < plan->blocks && is_cut && !carry_all_scan_is_last(plan); i++) {
        CARRY_TRY(send_view(plan, &l, plan->args.L.data, block_at(p, plan->blocks, i), i));
    }
    return CARRY_OK;
}

static carry_status poll_blocks(carry_all_scan_plan *plan, bool wait, bool *done) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const layout l = layout_of(plan);
    bool here = true;
    *done = false;
    for (; plan->next < plan->blocks; plan->next++) {
        const carry_all_scan_block block = block_at(p, plan->blocks, plan->next);
        if (plan->position > 0) {
            CARRY_TRY(carry_all_scan_arrived(plan, &plan->receives[plan->next], wait, &here));
            if (!here) {
                return CARRY_OK;
            }
            if (!is_in_place(p, block)) {
                const carry_all_scan_view to = carry_all_scan_packed(p, plan->args.state.data);
                plan->arith->unpack(plan, carry_all_scan_view_at(to, block), arrives_at(plan, &l, block), block.heads,
                                    p->key, block.columns);
            }
        }
        if (plan->next + 1 == plan->blocks) {
            CARRY_TRY(carry_all_scan_mark(plan)); /* the blocks that are passed on come later in the stream */
        }
        CARRY_TRY(pass_on(plan, &l, block, plan->next));
    }
    for (; plan->sent < plan->posted; plan->sent++) {
        CARRY_TRY(carry_all_scan_arrived(plan, &plan->sends[plan->sent], wait && !plan->arriving, &here));
        if (!here) {
            return CARRY_OK;
        }
    }
    *done = true;
    return CARRY_OK;
}

const carry_all_scan_algorithm carry_all_scan_chain = {
    .name = "chain",
    .about = "each rank passes the state on, pipelined in blocks of columns; M is never sent",
    .span = CARRY_SPAN_SITE("scan", "all_scan chain"),
    .cuts = true,
    .applies = applies,
    .cost = cost,
    .requests = requests,
    .workspace = workspace,
    .begin = begin,
    .poll = poll_blocks,
};

const carry_all_scan_algorithm carry_all_scan_serial = {
    .name = "serial",
    .about = "the chain in one block, as in LASP-1",
    .span = CARRY_SPAN_SITE("scan", "all_scan serial"),
    .applies = applies,
    .cost = cost,
    .requests = requests,
    .workspace = workspace,
    .begin = begin,
    .poll = poll_blocks,
};
