/* Gather: LASP-2's all-gather, with transitions. Every position sends its pair (M, L) to all later positions. Each
   position applies the pairs of all earlier positions in order, as they arrive. A pair costs K K V multiply-adds per
   head; maps are never multiplied with each other. The depth is one message, but the bytes that a rank receives and its
   work grow with the number of ranks.

   It sends less than an all-gather: pairs go only to later positions, position 0 folds `initial` in and sends no M, and
   maps given as factors are sent as factors if that is smaller. */
#include "scan/all_scan/all_scan.h"

#define AT_ONCE 2 /* sends in flight at once */

typedef struct layout {
    char *out;
    char *in; /* position q's pair, q > 0, is at pair_at(q) */
    float *other;
    float *map; /* of a group of heads, f32 */
    int64_t group;
} layout;

static bool factors_travel(const carry_all_scan_problem *p) {
    return p->kind == CARRY_ALL_SCAN_FACTORS && 2 * p->rows < p->key;
}

static int64_t map_numbers(const carry_all_scan_problem *p) {
    return factors_travel(p) ? 2 * p->rows * p->key + 1 : carry_all_scan_map_floats(p);
}

static size_t pair_bytes(const carry_all_scan_problem *p, int position) {
    return carry_all_scan_pair_bytes(p, position > 0 ? map_numbers(p) : 0);
}

static layout lay_out(const carry_all_scan_plan *plan, carry_arena *arena) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    layout l = {.group = p->heads < plan->shape.threads ? p->heads : plan->shape.threads};
    const size_t others = plan->position > 0 ? (size_t)plan->position - 1 : 0;
    l.out = carry_arena_take(arena, 1, pair_bytes(p, plan->position));
    l.other = carry_arena_take(arena, (size_t)carry_all_scan_state_floats(p), sizeof(float));
    l.map = carry_arena_take(arena, (size_t)l.group, (size_t)map_numbers(p) * sizeof(float));
    l.in = carry_arena_take(arena, 1, pair_bytes(p, 0));
    (void)carry_arena_take(arena, others, pair_bytes(p, 1));
    return l;
}

static layout layout_of(const carry_all_scan_plan *plan) {
    carry_arena arena = carry_arena_over(plan->area, plan->area_bytes);
    return lay_out(plan, &arena);
}

static char *pair_at(const carry_all_scan_problem *p, const layout *l, int position) {
    return position == 0 ? l->in : l->in + pair_bytes(p, 0) + (size_t)(position - 1) * pair_bytes(p, 1);
}

static bool applies(const carry_all_scan_shape *shape, int64_t blocks, char *why, size_t why_size) {
    (void)blocks;
    return carry_all_scan_fits(pair_bytes(&shape->problem, shape->ranks > 1), why, why_size);
}

/* The time of each further pair. AT_ONCE pairs are in flight at a time, so each waits for its share of the latency. */
static double travel_cost(const carry_all_scan_machine *machine, int far, double bytes) {
    return machine->overhead + carry_all_scan_far_latency(machine, far) / AT_ONCE +
           bytes * carry_all_scan_far_byte(machine, far);
}

/* The cost of the last position: its P-1 pairs arrive over one link, from near and far, and are applied while later
   ones arrive. */
static double cost(const carry_all_scan_shape *shape, const carry_all_scan_machine *machine, int64_t blocks) {
    (void)blocks;
    const carry_all_scan_problem *p = &shape->problem;
    const double product = carry_all_scan_spread(machine, (double)p->heads * machine->product);
    const double pair = (double)pair_bytes(p, 1), first = (double)pair_bytes(p, 0);
    const double handled = (1.0 + sizeof(float) / (double)carry_dtype_size(p->wire)) / machine->memory;
    const double apply = product + handled * pair, later = (double)(shape->ranks - 2);
    if (shape->ranks == 1) {
        return product;
    }
    double travel = 0, last = 0;
    int far = 0;
    for (int64_t distance = 1; distance <= shape->ranks - 2; distance *= 2, far++) {
        const int64_t beyond = shape->ranks - 1 - distance, some = beyond < distance ? beyond : distance;
        last = travel_cost(machine, far, pair);
        travel += (double)some * last;
    }
    far = far > 0 ? far - 1 : 0;
    const double start = product + handled * (pair + first) + carry_all_scan_far_latency(machine, far) +
                         first * carry_all_scan_far_byte(machine, far);
    const double applied = later * apply;
    return later > 0 ? start + (travel + apply > applied + last ? travel + apply : applied + last) : start;
}

static int64_t requests(const carry_all_scan_shape *shape, int64_t blocks) {
    (void)blocks;
    return shape->ranks - 1;
}

static bool workspace(const carry_all_scan_plan *plan, size_t *bytes) {
    carry_arena arena = carry_arena_over(NULL, 0);
    (void)lay_out(plan, &arena);
    return carry_arena_total(&arena, bytes);
}

static carry_all_scan_view numbers_of(const float *data, int64_t a_head) {
    return (carry_all_scan_view){.data = (float *)data, .head = a_head, .row = a_head};
}

static void put_map(carry_all_scan_plan *plan, const layout *l, char *wire) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_arith *arith = plan->arith;
    const carry_all_scan_map map = carry_all_scan_own_map(plan, 0);
    const size_t item = carry_dtype_size(p->wire);
    const int64_t numbers = map_numbers(p), factor = p->rows * p->key;
    if (factors_travel(p)) {
        arith->pack(plan, wire, numbers_of(map.W, factor), p->heads, 1, factor);
        arith->pack(plan, wire + (size_t)(p->heads * factor) * item, numbers_of(map.Y, factor), p->heads, 1, factor);
        arith->pack(plan, wire + (size_t)(2 * p->heads * factor) * item, numbers_of(map.gamma, 1), p->heads, 1, 1);
        return;
    }
    if (p->kind != CARRY_ALL_SCAN_FACTORS) {
        arith->pack(plan, wire, numbers_of(map.M, numbers), p->heads, 1, numbers);
        return;
    }
    for (int64_t head = 0; head < p->heads; head += l->group) {
        const int64_t heads = p->heads - head < l->group ? p->heads - head : l->group;
        const carry_all_scan_map some = carry_all_scan_own_map(plan, head);
        arith->densify(plan, l->map, &some, heads);
        arith->pack(plan, wire + (size_t)(head * numbers) * item, numbers_of(l->map, numbers), heads, 1, numbers);
    }
}

static void put_pair(carry_all_scan_plan *plan, const layout *l) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_role role = carry_all_scan_role_of(plan);
    carry_all_scan_view L = carry_all_scan_packed(p, plan->args.L.data);
    if (plan->position == 0) {
        L = carry_all_scan_packed(p, l->other);
        carry_all_scan_leave(plan, L, carry_all_scan_packed(p, plan->args.state.data), carry_all_scan_whole(p));
        carry_all_scan_put_role(plan, l->out, 0, CARRY_ALL_SCAN_CUT);
    } else {
        carry_all_scan_put_role(plan, l->out, pair_bytes(p, plan->position), role);
    }
    if (plan->position == 0 || role != CARRY_ALL_SCAN_PASS) {
        plan->arith->pack(plan, carry_all_scan_pair_L(l->out), L, p->heads, p->key, p->value);
    }
    if (plan->position > 0 && role == CARRY_ALL_SCAN_MAP) {
        put_map(plan, l, carry_all_scan_pair_map(p, l->out));
    }
}

/* The map of some heads in a message, converted to f32 if needed. */
static carry_all_scan_map get_map(carry_all_scan_plan *plan, const layout *l, const char *wire, int64_t head,
                                  int64_t heads) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t factor = p->rows * p->key, numbers = map_numbers(p);
    const bool as_factors = factors_travel(p), widens = p->wire != CARRY_F32;
    const int64_t sizes[3] = {as_factors ? factor : numbers, factor, 1};
    const float *parts[3] = {NULL};
    float *to = l->map;
    for (int i = 0; i < (as_factors ? 3 : 1); i++) {
        const char *from = wire + (size_t)(head * sizes[i]) * carry_dtype_size(p->wire);
        parts[i] = widens ? to : (const float *)(const void *)from;
        if (widens) {
            plan->arith->unpack(plan, numbers_of(to, sizes[i]), from, heads, 1, sizes[i]);
        }
        to += heads * sizes[i];
        wire += (size_t)(p->heads * sizes[i]) * carry_dtype_size(p->wire);
    }
    if (as_factors) {
        return (carry_all_scan_map){.kind = CARRY_ALL_SCAN_FACTORS, .W = parts[0], .Y = parts[1], .gamma = parts[2]};
    }
    return (carry_all_scan_map){
        .kind = p->kind == CARRY_ALL_SCAN_DIAGONAL ? CARRY_ALL_SCAN_DIAGONAL : CARRY_ALL_SCAN_DENSE, .M = parts[0]};
}

/* S = M S + L with a received pair, from one of two states into the other. */
static void apply_pair(carry_all_scan_plan *plan, const layout *l, int position) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    char *message = pair_at(p, l, position);
    const carry_all_scan_role role =
        position == 0 ? CARRY_ALL_SCAN_CUT : carry_all_scan_get_role(plan, position, message);
    const char *L = carry_all_scan_pair_L(message);
    if (role == CARRY_ALL_SCAN_PASS) {
        return;
    }
    if (role == CARRY_ALL_SCAN_CUT) {
        plan->arith->unpack(plan, carry_all_scan_packed(p, plan->S), L, p->heads, p->key, p->value);
        return;
    }
    float *out = plan->S == l->other ? plan->args.state.data : l->other;
    for (int64_t head = 0; head < p->heads; head += l->group) {
        const carry_all_scan_block block = {
            .head = head, .heads = p->heads - head < l->group ? p->heads - head : l->group, .columns = p->value};
        const carry_all_scan_view to = carry_all_scan_view_at(carry_all_scan_packed(p, out), block);
        const int64_t offset = head * p->key * p->value;
        plan->arith->unpack(plan, to, L + (size_t)offset * carry_dtype_size(p->wire), block.heads, p->key, p->value);
        const carry_all_scan_map map = get_map(plan, l, carry_all_scan_pair_map(p, message), head, block.heads);
        carry_all_scan_apply(plan, to, &map, carry_all_scan_view_at(carry_all_scan_packed(p, plan->S), block), to,
                             block.heads, p->value);
    }
    plan->S = out;
}

/* The position that receives this position's pair in a step. The order of receivers is rotated by the sender's
   position, so that in every step each position receives about one pair and no link delivers many at once. */
static int receiver_at(const carry_all_scan_plan *plan, int64_t step) {
    const int64_t others = plan->shape.ranks - 1 - plan->position;
    const int64_t before_last = (step - plan->position % others + others) % others;
    return plan->shape.ranks - 1 - (int)before_last;
}

static carry_status send_on(carry_all_scan_plan *plan, const layout *l) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t others = plan->shape.ranks - 1 - plan->position;
    for (; plan->posted < others && plan->posted - plan->sent < AT_ONCE; plan->posted++) {
        CARRY_TRY(carry_all_scan_send_pair(plan, plan->posted, l->out, pair_bytes(p, plan->position),
                                           receiver_at(plan, plan->posted)));
    }
    return CARRY_OK;
}

static carry_status begin(carry_all_scan_plan *plan) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const layout l = layout_of(plan);
    for (int q = 0; q < plan->position; q++) {
        CARRY_TRY(carry_all_scan_receive_pair(plan, q, pair_at(p, &l, q), pair_bytes(p, q), q));
    }
    if (plan->position == 0) {
        carry_all_scan_start(plan);
    }
    /* Without cuts, the last of the position - 1 products then writes to the state. */
    plan->S = plan->position > 0 && plan->position % 2 == 0 ? l.other : plan->args.state.data;
    if (!carry_all_scan_is_last(plan)) {
        put_pair(plan, &l);
    }
    return send_on(plan, &l);
}

static void finish_state(carry_all_scan_plan *plan, const layout *l) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_view state = carry_all_scan_packed(p, plan->args.state.data);
    if (plan->S != plan->args.state.data) {
        plan->arith->copy(plan, state, carry_all_scan_packed(p, plan->S), p->heads, p->key, p->value);
    }
    if (plan->args.leaving.data == NULL) {
        return;
    }
    const carry_all_scan_view leaving = carry_all_scan_packed(p, plan->args.leaving.data);
    if (plan->position == 0 && plan->posted > 0) { /* it was already computed in order to be sent */
        plan->arith->copy(plan, leaving, carry_all_scan_packed(p, l->other), p->heads, p->key, p->value);
    } else {
        carry_all_scan_leave(plan, leaving, state, carry_all_scan_whole(p));
    }
}

/* Checks for completed sends, and posts others in their place. */
static carry_status poll_sends(carry_all_scan_plan *plan, const layout *l, bool wait, bool *over) {
    bool here = true;
    *over = false;
    for (; plan->sent < plan->posted; plan->sent++) {
        CARRY_TRY(carry_all_scan_arrived(plan, &plan->sends[plan->sent], wait, &here));
        if (!here) {
            return CARRY_OK;
        }
        CARRY_TRY(send_on(plan, l));
    }
    *over = true;
    return CARRY_OK;
}

static carry_status poll_pairs(carry_all_scan_plan *plan, bool wait, bool *done) {
    const layout l = layout_of(plan);
    bool here = true;
    *done = false;
    for (; plan->next < plan->position; plan->next++) {
        CARRY_TRY(carry_all_scan_arrived(plan, &plan->receives[plan->next], false, &here));
        if (!here) {
            bool over;
            CARRY_TRY(poll_sends(plan, &l, wait, &over)); /* later positions must not wait for what arrives here */
            CARRY_TRY(carry_all_scan_arrived(plan, &plan->receives[plan->next], wait, &here));
        }
        if (!here) {
            return CARRY_OK;
        }
        apply_pair(plan, &l, (int)plan->next);
    }
    if (plan->next == plan->position) {
        finish_state(plan, &l);
        plan->next++;
    }
    return poll_sends(plan, &l, wait, done);
}

const carry_all_scan_algorithm carry_all_scan_gather = {
    .name = "gather",
    .about = "every rank receives the pairs (M, L) of all ranks before it, as in LASP-2",
    .span = CARRY_SPAN_SITE("scan", "all_scan gather"),
    .applies = applies,
    .cost = cost,
    .requests = requests,
    .workspace = workspace,
    .begin = begin,
    .poll = poll_pairs,
};
