/* Heads: every position scans some heads over all positions. Each position sends every other position its pair (M, L)
   for the receiver's heads, and gets back, for those heads, the state that enters its own position. This takes two
   exchanges between all ranks, for any number of ranks, and each rank receives (P-1)/P of one pair and of one state.
   The walk over positions is one launch on a GPU.

   Inside a node, latency decides: the chain waits for P-1 messages one after the other, this algorithm for two. With
   gather, the last rank receives and applies the pairs of all other ranks; here every rank handles a P-th of each.
   Across nodes, the messages are many and small.

   The role of a pair (carry_all_scan_role) says that M is zero, since a sequence starts in the rank, or that M is the
   identity, since the rank has no tokens. Position 0 applies its pair to `initial` and sends the resulting state. Maps
   given as factors are made dense. */
#include "scan/all_scan/all_scan.h"

typedef struct layout {
    char *out, *in;       /* pairs by position: those that others receive, those that this one receives */
    char *back, *arrived; /* states, sent and received in the same way */
    float *states; /* [ranks, own heads, K, V]: first the states that leave each position, later those that enter it */
    float *map;    /* this rank's map made dense, if it was given as factors */
    float *L, *M;  /* one pair in f32 */
} layout;

static int64_t first_head(const carry_all_scan_plan *plan, int position) {
    return plan->shape.problem.heads * position / plan->shape.ranks;
}

static int64_t heads_of(const carry_all_scan_plan *plan, int position) {
    return first_head(plan, position + 1) - first_head(plan, position);
}

static int64_t most_heads(const carry_all_scan_problem *p, int ranks) {
    return (p->heads + ranks - 1) / ranks;
}

static size_t padded(size_t bytes) {
    return (bytes + CARRY_ALIGN - 1) / CARRY_ALIGN * CARRY_ALIGN;
}

/* The bytes of a message with `heads` heads from a position. Position 0 sends no map. */
static size_t pair_bytes(const carry_all_scan_problem *p, int64_t heads, int position) {
    carry_all_scan_problem some = *p;
    some.heads = heads;
    return carry_all_scan_pair_bytes(&some, position > 0 ? carry_all_scan_map_floats(p) : 0);
}

static size_t state_bytes(const carry_all_scan_problem *p, int64_t heads) {
    return (size_t)(heads * p->key * p->value) * carry_dtype_size(p->wire);
}

/* The buffer for each position's message has the size of the largest. */
static size_t pair_room(const carry_all_scan_plan *plan) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    return pair_bytes(p, most_heads(p, plan->shape.ranks), 1);
}

static size_t state_room(const carry_all_scan_plan *plan) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    return padded(state_bytes(p, most_heads(p, plan->shape.ranks)));
}

static layout lay_out(const carry_all_scan_plan *plan, carry_arena *arena) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const size_t ranks = (size_t)plan->shape.ranks, own = (size_t)most_heads(p, plan->shape.ranks);
    const size_t state = (size_t)(p->key * p->value) * sizeof(float);
    const size_t map = (size_t)carry_all_scan_map_floats(p) * sizeof(float);
    layout l;
    l.out = carry_arena_take(arena, ranks, pair_room(plan));
    l.in = carry_arena_take(arena, ranks, pair_room(plan));
    l.back = carry_arena_take(arena, ranks, state_room(plan));
    l.arrived = carry_arena_take(arena, ranks, state_room(plan));
    l.states = carry_arena_take(arena, (ranks + 1) * own, state);
    l.map = carry_arena_take(arena, p->kind == CARRY_ALL_SCAN_FACTORS ? (size_t)p->heads : 0, map);
    l.L = carry_arena_take(arena, ranks * own, state);
    l.M = carry_arena_take(arena, ranks * own, map);
    return l;
}

static layout layout_of(const carry_all_scan_plan *plan) {
    carry_arena arena = carry_arena_over(plan->area, plan->area_bytes);
    return lay_out(plan, &arena);
}

static bool applies(const carry_all_scan_shape *shape, int64_t blocks, char *why, size_t why_size) {
    (void)blocks;
    return carry_all_scan_fits(pair_bytes(&shape->problem, most_heads(&shape->problem, shape->ranks), 1), why,
                               why_size);
}

/* All-to-all messages compete for ports, and messages behind one that waits are delayed too. Returns the factor by
   which the exchange takes longer, from simulations (docs/attempts/ranks.md). If all ranks have heads, the factor grows
   with the number of nodes, and more so if some ranks have one head more than others. */
static double crowding(const carry_all_scan_shape *shape, double nodes) {
    const int64_t heads = shape->problem.heads;
    if (nodes < 2.5) {
        return nodes > 1 ? 1.25 : 1.3;
    }
    return heads < shape->ranks ? 1.5 : 1.3 + (heads % shape->ranks != 0 ? 0.25 : 0.1) * (nodes < 8 ? nodes : 8);
}

/* Two exchanges, each with the latency of the farthest pair and the bytes of a rank's link, plus the walk with one
   product for each position. */
static double cost(const carry_all_scan_shape *shape, const carry_all_scan_machine *m, int64_t blocks) {
    (void)blocks;
    const carry_all_scan_problem *p = &shape->problem;
    const double own = (double)most_heads(p, shape->ranks), product = carry_all_scan_spread(m, own * m->product);
    if (shape->ranks == 1) {
        return (double)p->heads * m->product;
    }
    int far = 0;
    while (((int64_t)2 << far) < shape->ranks) {
        far++;
    }
    const double others = shape->ranks - 1.0;
    const double bytes = others * (double)(pair_bytes(p, (int64_t)own, 1) + state_bytes(p, (int64_t)own));
    const double handled = 2.0 * (1.0 + sizeof(float) / (double)carry_dtype_size(p->wire)) * bytes / m->memory;
    const double messages = 2.0 * (carry_all_scan_far_latency(m, far) + (others - 1.0) * m->message);
    const double walk = m->start + others * (m->step > 0 ? m->step : product);
    const double nodes = carry_all_scan_nodes(m, shape->ranks);
    /* Share of messages to other nodes. */
    const double beyond = nodes > 1 ? (shape->ranks - shape->ranks / nodes) / others : 1.0;
    const double byte = beyond * carry_all_scan_far_byte(m, far) + (nodes > 1 ? (1.0 - beyond) / m->near_bandwidth : 0);
    return messages + crowding(shape, nodes) * bytes * byte + handled + walk;
}

static int64_t requests(const carry_all_scan_shape *shape, int64_t blocks) {
    (void)blocks;
    return 2 * (int64_t)shape->ranks;
}

static bool workspace(const carry_all_scan_plan *plan, size_t *bytes) {
    carry_arena arena = carry_arena_over(NULL, 0);
    (void)lay_out(plan, &arena);
    return carry_arena_total(&arena, bytes);
}

static carry_all_scan_view map_view(const carry_all_scan_problem *p, const float *M) {
    const int64_t numbers = carry_all_scan_map_floats(p);
    return (carry_all_scan_view){.data = (float *)M, .head = numbers, .row = numbers};
}

/* Writes this position's pair for another position's heads into its message. Position 0 sends a state. */
static void put_pair(carry_all_scan_plan *plan, const layout *l, int to) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_role role = plan->role;
    const int64_t head = first_head(plan, to), heads = heads_of(plan, to);
    char *message = l->out + (size_t)to * pair_room(plan);
    carry_all_scan_problem some = *p;
    some.heads = heads;
    const carry_all_scan_block block = {.head = head, .heads = heads, .columns = p->value};
    carry_all_scan_put_role(plan, message, pair_bytes(p, heads, plan->position), role);
    if (plan->position == 0) { /* the pair is folded into a state */
        const carry_all_scan_view L = carry_all_scan_packed(p, l->states);
        carry_all_scan_leave(plan, L, carry_all_scan_view_at(carry_all_scan_packed(p, plan->args.state.data), block),
                             block);
        plan->arith->pack(plan, carry_all_scan_pair_L(message), L, heads, p->key, p->value);
        return;
    }
    if (role != CARRY_ALL_SCAN_PASS) {
        plan->arith->pack(plan, carry_all_scan_pair_L(message),
                          carry_all_scan_view_at(carry_all_scan_packed(p, plan->args.L.data), block), heads, p->key,
                          p->value);
    }
    if (role == CARRY_ALL_SCAN_MAP) {
        plan->arith->pack(plan, carry_all_scan_pair_map(&some, message),
                          map_view(p, plan->M + head * carry_all_scan_map_floats(p)), heads, 1,
                          carry_all_scan_map_floats(p));
    }
}

static carry_status begin(carry_all_scan_plan *plan) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const layout l = layout_of(plan);
    const int ranks = plan->shape.ranks, self = plan->position;
    const int64_t own = heads_of(plan, self);
    for (int step = 1; step < ranks; step++) {
        const int from = (self + ranks - step) % ranks;
        if (own > 0 && from < ranks - 1) { /* no rank needs the state that leaves the last position */
            CARRY_TRY(carry_all_scan_receive_pair(plan, from, l.in + (size_t)from * pair_room(plan),
                                                  pair_bytes(p, own, from), from));
        }
        if (heads_of(plan, from) > 0 && self > 0) {
            CARRY_TRY(carry_all_scan_receive(plan, ranks + from, l.arrived + (size_t)from * state_room(plan),
                                             state_bytes(p, heads_of(plan, from)), from));
        }
    }
    if (self == 0) {
        carry_all_scan_start(plan);
    }
    plan->role = self == 0 ? CARRY_ALL_SCAN_CUT : carry_all_scan_role_of(plan);
    plan->M = plan->args.M.data;
    if (plan->role == CARRY_ALL_SCAN_MAP && p->kind == CARRY_ALL_SCAN_FACTORS) {
        const carry_all_scan_map map = carry_all_scan_own_map(plan, 0);
        plan->arith->densify(plan, l.map, &map, p->heads);
        plan->M = l.map;
    }
    /* Starts with the next position, ends with itself. */
    for (int step = 1; step <= ranks && self < ranks - 1; step++) {
        const int to = (self + step) % ranks;
        if (heads_of(plan, to) == 0) {
            continue;
        }
        put_pair(plan, &l, to);
        if (to != self) {
            CARRY_TRY(carry_all_scan_send_pair(plan, to, l.out + (size_t)to * pair_room(plan),
                                               pair_bytes(p, heads_of(plan, to), self), to));
        }
    }
    plan->roles_seen = plan->role;
    return CARRY_OK;
}

/* Unpacks the pair of a position for this rank's heads to f32, which a walk needs. */
static void take_pair(carry_all_scan_plan *plan, const layout *l, int position, carry_all_scan_walk *walk) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t own = heads_of(plan, plan->position), state = own * p->key * p->value;
    const int64_t numbers = carry_all_scan_map_floats(p);
    const bool is_own = position == plan->position;
    char *message = (is_own ? l->out : l->in) + (size_t)position * pair_room(plan);
    carry_all_scan_problem some = *p;
    some.heads = own;
    walk->role[position] = (unsigned char)(position == 0 ? CARRY_ALL_SCAN_CUT
                                           : is_own      ? plan->roles_seen
                                                         : carry_all_scan_get_role(plan, position, message));
    if (walk->role[position] != CARRY_ALL_SCAN_PASS) {
        plan->arith->unpack(plan, carry_all_scan_packed(p, l->L + position * state), carry_all_scan_pair_L(message),
                            own, p->key, p->value);
    }
    if (walk->role[position] == CARRY_ALL_SCAN_MAP) {
        plan->arith->unpack(plan, map_view(p, l->M + position * own * numbers), carry_all_scan_pair_map(&some, message),
                            own, 1, numbers);
    }
}

/* states[q] = the state that leaves position q, for this rank's heads. */
static carry_status walk_positions(carry_all_scan_plan *plan, const layout *l) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t own = heads_of(plan, plan->position);
    carry_all_scan_walk walk = {
        .states = l->states, .L = l->L, .M = l->M, .heads = own, .count = plan->shape.ranks - 1};
    walk.role = plan->walked;
    for (int q = 0; q < walk.count; q++) {
        take_pair(plan, l, q, &walk);
    }
    carry_all_scan_walk_run(plan, &walk);
    for (int step = 1; step <= walk.count; step++) {
        const int to = 1 + (plan->position + step) % walk.count;
        const carry_all_scan_view from = carry_all_scan_packed(p, l->states + (to - 1) * own * p->key * p->value);
        if (to == plan->position) {
            const carry_all_scan_block block = {.head = first_head(plan, to), .heads = own, .columns = p->value};
            plan->arith->copy(plan, carry_all_scan_view_at(carry_all_scan_packed(p, plan->args.state.data), block),
                              from, own, p->key, p->value);
            continue;
        }
        char *message = l->back + (size_t)to * state_room(plan);
        plan->arith->pack(plan, message, from, own, p->key, p->value);
        CARRY_TRY(carry_all_scan_send(plan, plan->shape.ranks + to, message, state_bytes(p, own), to));
    }
    return CARRY_OK;
}

static void finish_state(carry_all_scan_plan *plan, const layout *l, int from) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_block block = {
        .head = first_head(plan, from), .heads = heads_of(plan, from), .columns = p->value};
    plan->arith->unpack(plan, carry_all_scan_view_at(carry_all_scan_packed(p, plan->args.state.data), block),
                        l->arrived + (size_t)from * state_room(plan), block.heads, p->key, p->value);
}

/* plan->next counts the pairs that have arrived (0..P-1), then states (P..2P-1), then sends (2P..4P-1). */
static carry_status poll(carry_all_scan_plan *plan, bool wait, bool *done) {
    const layout l = layout_of(plan);
    const int ranks = plan->shape.ranks;
    const int64_t own = heads_of(plan, plan->position);
    bool here = true;
    *done = false;
    for (; plan->next < ranks; plan->next++) {
        if (plan->next < ranks - 1) {
            CARRY_TRY(carry_all_scan_arrived(plan, &plan->receives[plan->next], wait, &here));
            if (!here) {
                return CARRY_OK;
            }
        } else if (own > 0 && ranks > 1) {
            CARRY_TRY(walk_positions(plan, &l));
        }
    }
    for (; plan->next < 2 * (int64_t)ranks; plan->next++) {
        const int from = (int)(plan->next - ranks);
        if (from == plan->position || plan->position == 0 || heads_of(plan, from) == 0) {
            continue;
        }
        CARRY_TRY(carry_all_scan_arrived(plan, &plan->receives[plan->next], wait, &here));
        if (!here) {
            return CARRY_OK;
        }
        finish_state(plan, &l, from);
    }
    for (; plan->next < 4 * (int64_t)ranks; plan->next++) {
        CARRY_TRY(carry_all_scan_arrived(plan, &plan->sends[plan->next - 2 * ranks], wait, &here));
        if (!here) {
            return CARRY_OK;
        }
    }
    if (plan->args.leaving.data != NULL && plan->next == 4 * (int64_t)ranks) {
        const carry_all_scan_problem *p = &plan->shape.problem;
        carry_all_scan_leave(plan, carry_all_scan_packed(p, plan->args.leaving.data),
                             carry_all_scan_packed(p, plan->args.state.data), carry_all_scan_whole(p));
        plan->next++;
    }
    *done = true;
    return CARRY_OK;
}

const carry_all_scan_algorithm carry_all_scan_heads = {
    .name = "heads",
    .about = "every rank combines all pairs for some heads: two all-to-all exchanges",
    .span = CARRY_SPAN_SITE("scan", "all_scan heads"),
    .applies = applies,
    .cost = cost,
    .requests = requests,
    .workspace = workspace,
    .begin = begin,
    .poll = poll,
};
