/* Doubling: in round r, each position sends the combined effect of the 2^r positions up to it, as one pair (M, L), to
   the position 2^r after it, which composes the pairs. After ceil(log2 (P-1)) rounds each position but the last has
   the state that leaves it, and sends it to the next (the hand-over).

   Position 0 folds `initial` into its L, so a pair that reaches back to position 0 is complete: its M is zero and is
   not sent, and the pair of its receiver is complete too. Position and round determine which pairs are complete. No
   rank needs the pair of the last position, which only receives the hand-over. The role of a pair (carry_all_scan_role)
   says that M is zero, since a sequence starts in the rank, or that M is the identity, since the rank has no tokens.

   Maps given as factors are made dense, since composed factors would grow. Transposed maps stay as stored and are
   composed in reverse order. */
#include "scan/all_scan/all_scan.h"

typedef struct layout {
    char *out;
    char *in;           /* messages of all rounds, then of the hand-over */
    float *L, *M[2];    /* the pair so far; two buffers alternate for M */
    float *L_in, *M_in; /* of a group of heads, f32 */
    int64_t group;
} layout;

/* ceil(log2(P - 1)): the rounds that all positions but the last need. */
static int rounds_of(int ranks) {
    int rounds = 0;
    while (((int64_t)1 << rounds) < ranks - 1) {
        rounds++;
    }
    return rounds;
}

static bool is_complete(int64_t position, int round) {
    return position < (int64_t)1 << round;
}

static size_t bytes_from(const carry_all_scan_problem *p, int64_t position, int round) {
    return carry_all_scan_pair_bytes(p, is_complete(position, round) ? 0 : carry_all_scan_map_floats(p));
}

/* sender, receiver: the position that a round's message comes from or goes to, or -1 for no message. Round rounds_of()
   is the hand-over to the next position. */
static int64_t sender(const carry_all_scan_plan *plan, int round) {
    const int rounds = rounds_of(plan->shape.ranks);
    if (round == rounds) {
        return plan->position - 1;
    }
    const int64_t from = plan->position - ((int64_t)1 << round);
    return from >= 0 && !carry_all_scan_is_last(plan) ? from : -1;
}

static int64_t receiver(const carry_all_scan_plan *plan, int round) {
    const int last = plan->shape.ranks - 1;
    if (round == rounds_of(plan->shape.ranks)) {
        return plan->position < last ? plan->position + 1 : -1;
    }
    const int64_t to = plan->position + ((int64_t)1 << round);
    return to < last ? to : -1;
}

/* The hand-over always sends a complete pair. */
static size_t message_bytes(const carry_all_scan_plan *plan, int64_t position, int round) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    return round == rounds_of(plan->shape.ranks) ? carry_all_scan_pair_bytes(p, 0) : bytes_from(p, position, round);
}

static layout lay_out(const carry_all_scan_plan *plan, carry_arena *arena) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int rounds = rounds_of(plan->shape.ranks);
    const size_t map = (size_t)carry_all_scan_map_floats(p) * sizeof(float);
    layout l = {.group = p->heads < plan->shape.threads ? p->heads : plan->shape.threads};
    l.out = carry_arena_take(arena, 1, bytes_from(p, plan->position, 0));
    l.L = carry_arena_take(arena, (size_t)carry_all_scan_state_floats(p), sizeof(float));
    l.M[0] = carry_arena_take(arena, (size_t)p->heads, map);
    l.M[1] = carry_arena_take(arena, (size_t)p->heads, map);
    l.L_in = carry_arena_take(arena, (size_t)l.group, (size_t)(p->key * p->value) * sizeof(float));
    l.M_in = carry_arena_take(arena, (size_t)l.group, map);
    l.in = carry_arena_take(arena, 0, 1);
    for (int round = 0; round <= rounds; round++) {
        const int64_t from = sender(plan, round);
        (void)carry_arena_take(arena, from >= 0 ? 1 : 0, message_bytes(plan, from, round));
    }
    return l;
}

static layout layout_of(const carry_all_scan_plan *plan) {
    carry_arena arena = carry_arena_over(plan->area, plan->area_bytes);
    return lay_out(plan, &arena);
}

static char *message_of(const carry_all_scan_plan *plan, const layout *l, int round) {
    char *at = l->in;
    for (int r = 0; r < round; r++) {
        const int64_t from = sender(plan, r);
        at += from >= 0 ? message_bytes(plan, from, r) : 0;
    }
    return at;
}

static bool applies(const carry_all_scan_shape *shape, int64_t blocks, char *why, size_t why_size) {
    (void)blocks;
    const int64_t numbers = shape->ranks > 1 ? carry_all_scan_map_floats(&shape->problem) : 0;
    return carry_all_scan_fits(carry_all_scan_pair_bytes(&shape->problem, numbers), why, why_size);
}

/* The cost of a round's message, including packing and unpacking. */
static double message_cost(const carry_all_scan_problem *p, const carry_all_scan_machine *machine, int round,
                           int64_t numbers) {
    const double widening = 2.0 * (1.0 + sizeof(float) / (double)carry_dtype_size(p->wire));
    const double per_byte = carry_all_scan_far_byte(machine, round) + widening / machine->memory;
    return carry_all_scan_far_latency(machine, round) + (double)carry_all_scan_pair_bytes(p, numbers) * per_byte;
}

static double cost(const carry_all_scan_shape *shape, const carry_all_scan_machine *machine, int64_t blocks) {
    (void)blocks;
    const carry_all_scan_problem *p = &shape->problem;
    const double heads = (double)p->heads, product = carry_all_scan_spread(machine, heads * machine->product);
    if (shape->ranks == 1) {
        return product;
    }
    double seconds = product + message_cost(p, machine, 0, 0); /* folding `initial` in, and the hand-over */
    for (int round = 0; round < rounds_of(shape->ranks); round++) {
        const bool composes = (int64_t)2 << round <= shape->ranks - 2; /* some rank still composes maps in this round */
        const int64_t numbers = composes ? carry_all_scan_map_floats(p) : 0;
        seconds += product + (composes ? carry_all_scan_spread(machine, heads * machine->compose) : 0.0) +
                   message_cost(p, machine, round, numbers);
    }
    return seconds;
}

static int64_t requests(const carry_all_scan_shape *shape, int64_t blocks) {
    (void)blocks;
    return rounds_of(shape->ranks) + 1;
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

/* Sets the pair to this rank's own. */
static void start_pair(carry_all_scan_plan *plan, const layout *l) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_view L = carry_all_scan_packed(p, l->L);
    plan->M = plan->args.M.data;
    plan->role = plan->args.role;
    if (plan->position == 0) {
        carry_all_scan_leave(plan, L, carry_all_scan_packed(p, plan->args.state.data), carry_all_scan_whole(p));
        plan->role = CARRY_ALL_SCAN_CUT;
        return;
    }
    if (plan->role != CARRY_ALL_SCAN_PASS) {
        plan->arith->copy(plan, L, carry_all_scan_packed(p, plan->args.L.data), p->heads, p->key, p->value);
    }
    if (plan->role == CARRY_ALL_SCAN_MAP && p->kind == CARRY_ALL_SCAN_FACTORS) {
        const carry_all_scan_map map = carry_all_scan_own_map(plan, 0);
        plan->arith->densify(plan, l->M[0], &map, p->heads);
        plan->M = l->M[0];
    }
}

static carry_status send_pair(carry_all_scan_plan *plan, const layout *l, int round, int64_t to) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const size_t bytes = message_bytes(plan, plan->position, round);
    carry_all_scan_put_role(plan, l->out, bytes, plan->role);
    if (plan->role != CARRY_ALL_SCAN_PASS) {
        plan->arith->pack(plan, carry_all_scan_pair_L(l->out), carry_all_scan_packed(p, l->L), p->heads, p->key,
                          p->value);
    }
    if (plan->role == CARRY_ALL_SCAN_MAP) {
        plan->arith->pack(plan, carry_all_scan_pair_map(p, l->out), map_view(p, plan->M), p->heads, 1,
                          carry_all_scan_map_floats(p));
    }
    return carry_all_scan_send_pair(plan, 0, l->out, bytes, (int)to);
}

/* The pair so far is the identity: it becomes the received one. */
static void take_pair(carry_all_scan_plan *plan, const layout *l, char *message, carry_all_scan_role role) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    plan->role = role;
    if (plan->role != CARRY_ALL_SCAN_PASS) {
        plan->arith->unpack(plan, carry_all_scan_packed(p, l->L), carry_all_scan_pair_L(message), p->heads, p->key,
                            p->value);
    }
    if (plan->role == CARRY_ALL_SCAN_MAP) {
        plan->arith->unpack(plan, map_view(p, l->M[0]), carry_all_scan_pair_map(p, message), p->heads, 1,
                            carry_all_scan_map_floats(p));
        plan->M = l->M[0];
    }
}

/* L = M L' + L and M = M M', where the received pair (M', L') comes before this one. */
static void compose_pair(carry_all_scan_plan *plan, const layout *l, char *message, bool is_cut) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_kind kind =
        p->kind == CARRY_ALL_SCAN_DIAGONAL ? CARRY_ALL_SCAN_DIAGONAL : CARRY_ALL_SCAN_DENSE;
    const int64_t numbers = carry_all_scan_map_floats(p), state = p->key * p->value;
    const size_t item = carry_dtype_size(p->wire);
    float *M_out = plan->M == l->M[0] ? l->M[1] : l->M[0];
    for (int64_t head = 0; head < p->heads; head += l->group) {
        const int64_t heads = p->heads - head < l->group ? p->heads - head : l->group;
        const carry_all_scan_view L = carry_all_scan_packed(p, l->L + head * state);
        const carry_all_scan_view L_in = carry_all_scan_packed(p, l->L_in);
        const carry_all_scan_map map = {.kind = kind, .M = plan->M + head * numbers};
        plan->arith->unpack(plan, L_in, carry_all_scan_pair_L(message) + (size_t)(head * state) * item, heads, p->key,
                            p->value);
        carry_all_scan_apply(plan, L, &map, L_in, L, heads, p->value);
        if (!is_cut) {
            plan->arith->unpack(plan, map_view(p, l->M_in),
                                carry_all_scan_pair_map(p, message) + (size_t)(head * numbers) * item, heads, 1,
                                numbers);
            carry_all_scan_compose(plan, M_out + head * numbers, map.M, l->M_in, heads);
        }
    }
    plan->M = is_cut ? NULL : M_out;
    plan->role = is_cut ? CARRY_ALL_SCAN_CUT : CARRY_ALL_SCAN_MAP;
}

/* Composes a round's pair. If the message has no M, the role in it is ignored and the pair is a cut. */
static void combine(carry_all_scan_plan *plan, const layout *l, int round) {
    char *message = message_of(plan, l, round);
    const carry_all_scan_role role =
        is_complete(sender(plan, round), round) ? CARRY_ALL_SCAN_CUT : carry_all_scan_get_role(plan, round, message);
    if (plan->role == CARRY_ALL_SCAN_PASS) {
        take_pair(plan, l, message, role);
    } else if (plan->role == CARRY_ALL_SCAN_MAP && role != CARRY_ALL_SCAN_PASS) {
        compose_pair(plan, l, message, role == CARRY_ALL_SCAN_CUT);
    }
}

static carry_status begin(carry_all_scan_plan *plan) {
    const layout l = layout_of(plan);
    for (int round = 0; round <= rounds_of(plan->shape.ranks); round++) {
        const int64_t from = sender(plan, round);
        if (from >= 0) {
            CARRY_TRY(carry_all_scan_receive_pair(plan, round, message_of(plan, &l, round),
                                                  message_bytes(plan, from, round), (int)from));
        }
    }
    if (plan->position == 0) {
        carry_all_scan_start(plan);
    }
    if (!carry_all_scan_is_last(plan)) {
        start_pair(plan, &l);
    }
    return CARRY_OK;
}

static void finish_state(carry_all_scan_plan *plan, const layout *l, char *message) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_view state = carry_all_scan_packed(p, plan->args.state.data);
    const carry_all_scan_view leaving = carry_all_scan_packed(p, plan->args.leaving.data);
    if (plan->position > 0) {
        plan->arith->unpack(plan, state, carry_all_scan_pair_L(message), p->heads, p->key, p->value);
    }
    if (leaving.data != NULL && carry_all_scan_is_last(plan)) {
        carry_all_scan_leave(plan, leaving, state, carry_all_scan_whole(p));
    } else if (leaving.data != NULL) {
        plan->arith->copy(plan, leaving, carry_all_scan_packed(p, l->L), p->heads, p->key, p->value);
    }
}

/* There is one send buffer for all rounds, so the previous send must have completed before it is packed again. */
static carry_status poll_rounds(carry_all_scan_plan *plan, bool wait, bool *done) {
    const layout l = layout_of(plan);
    const int rounds = rounds_of(plan->shape.ranks);
    bool here = true;
    *done = false;
    for (; plan->next <= rounds; plan->next++) {
        const int round = (int)plan->next;
        const int64_t to = receiver(plan, round);
        if (to >= 0 && plan->posted == plan->next) {
            CARRY_TRY(carry_all_scan_arrived(plan, &plan->sends[0], wait, &here));
            if (!here) {
                return CARRY_OK;
            }
            CARRY_TRY(send_pair(plan, &l, round, to));
        }
        plan->posted = plan->next + 1;
        if (sender(plan, round) >= 0) {
            CARRY_TRY(carry_all_scan_arrived(plan, &plan->receives[round], wait, &here));
            if (!here) {
                return CARRY_OK;
            }
        }
        if (round == rounds) {
            finish_state(plan, &l, message_of(plan, &l, round));
        } else if (sender(plan, round) >= 0) {
            combine(plan, &l, round);
        }
    }
    CARRY_TRY(carry_all_scan_arrived(plan, &plan->sends[0], wait, done));
    return CARRY_OK;
}

const carry_all_scan_algorithm carry_all_scan_doubling = {
    .name = "doubling",
    .about = "pairs (M, L) are combined over doubling distances, in log2 P rounds",
    .span = CARRY_SPAN_SITE("scan", "all_scan doubling"),
    .applies = applies,
    .cost = cost,
    .requests = requests,
    .workspace = workspace,
    .begin = begin,
    .poll = poll_rounds,
};
