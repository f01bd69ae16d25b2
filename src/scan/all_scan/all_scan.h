/* The internals of All-Scan: the interface of an algorithm, and the types and functions that it uses.

   Algorithms work with positions, which are ranks in the order of the recurrence: position 0 has `initial`, and
   carry_all_scan_rank alone handles the reversed order. An algorithm posts all its receives in begin and does in poll
   what the messages that have arrived allow, or everything if it may wait. The message that it handles next never
   depends on timing, so neither do the bits of its results.

   Algorithms access states, maps and messages only through carry_all_scan_arith, so that a simulator can charge time
   instead of computing. Message sizes are functions of problem, blocks, position and round. */
#ifndef CARRY_SCAN_ALL_SCAN_H
#define CARRY_SCAN_ALL_SCAN_H

#include <string.h>

#include "carry/all_scan.h"
#include "carry/device.h"
#include "comm/rates.h"
#include "core/memory.h"
#include "core/span.h"
#include "ops/kernels/kernels.h"

/* The rates and times that predictions use. */
typedef struct carry_all_scan_machine {
    double latency;   /* seconds for an empty message one way, between the slowest pair */
    double overhead;  /* seconds for each further message that is passed on behind another */
    double bandwidth; /* bytes/s from one rank to the next while all send, for the slowest pair */
    /* Latency from one rank to the next, averaged over all: most neighbours may be near each other. */
    double mean_latency;
    double mean_bandwidth;              /* 0: use latency and bandwidth for both means */
    double near_bandwidth;              /* bandwidth for the fastest pair; 0: the same everywhere */
    double far_latency[CARRY_COMM_FAR]; /* between ranks that are 2^i apart; 0: as latency and bandwidth */
    double far_bandwidth[CARRY_COMM_FAR];
    double product;     /* seconds of M S for one head with V columns, on one thread */
    double compose;     /* seconds of M M for one head, on one thread */
    double memory;      /* bytes/s, read and written, that one thread packs or unpacks */
    double start;       /* seconds of an empty launch on a GPU; 0: unknown, or the CPU */
    double step;        /* seconds of one position of a walk over a rank's share of heads; 0: that of a product */
    double message;     /* seconds by which each further message delays its sender; 0: unknown */
    double speed, fork; /* speed-up by all threads of a rank, and seconds to start them; 0: one thread */
} carry_all_scan_machine;

typedef struct carry_all_scan_shape {
    carry_all_scan_problem problem;
    int ranks;
    int threads;
} carry_all_scan_shape;

/* Some columns of one head, or whole heads. */
typedef struct carry_all_scan_block {
    int64_t head, heads, column, columns;
} carry_all_scan_block;

/* Floats of several heads: row r of head h starts at data + h*head + r*row. */
typedef struct carry_all_scan_view {
    float *data;
    ptrdiff_t head, row;
} carry_all_scan_view;

typedef struct carry_all_scan_map {
    carry_all_scan_kind kind;
    const float *M, *W, *Y, *gamma;
} carry_all_scan_map;

#define CARRY_ALL_SCAN_WALKED 512 /* largest K: a block keeps some columns of a state in shared memory */

/* Processes positions 0..count-1 in order, for some heads: states[q] = M[q] states[q-1] + L[q], or L[q] alone, or
   states[q-1], depending on role[q]. The state before position 0 is zero. states, L: [count, heads, K, V]; M: [count,
   heads, map]. states must not be L. */
typedef struct carry_all_scan_walk {
    float *states;
    const float *L, *M;
    unsigned char *role; /* [count] */
    int64_t heads;
    int count;
} carry_all_scan_walk;

/* Each function handles `heads` heads, the first ones of its arguments. */
typedef struct carry_all_scan_arith {
    /* out = M S + L; L may be out. */
    void (*apply)(carry_all_scan_plan *plan, carry_all_scan_view out, const carry_all_scan_map *map,
                  carry_all_scan_view S, carry_all_scan_view L, int64_t heads, int64_t columns);
    /* out = the map of `first` followed by `second`. Both are packed, dense or diagonal, and transposed if the problem
       is. */
    void (*compose)(carry_all_scan_plan *plan, float *out, const float *second, const float *first, int64_t heads);
    /* out = gamma (I - W^T Y) */
    void (*densify)(carry_all_scan_plan *plan, float *out, const carry_all_scan_map *map, int64_t heads);
    void (*copy)(carry_all_scan_plan *plan, carry_all_scan_view to, carry_all_scan_view from, int64_t heads,
                 int64_t rows, int64_t columns); /* from.data NULL: zero */
    void (*pack)(carry_all_scan_plan *plan, void *wire, carry_all_scan_view from, int64_t heads, int64_t rows,
                 int64_t columns);
    void (*unpack)(carry_all_scan_plan *plan, carry_all_scan_view to, const void *wire, int64_t heads, int64_t rows,
                   int64_t columns);
    void (*walk)(carry_all_scan_plan *plan, const carry_all_scan_walk *walk); /* NULL: walk position by position */
    /* Writes zero bytes, so that no uninitialised ones are sent. */
    void (*clear)(carry_all_scan_plan *plan, void *bytes, size_t count);
} carry_all_scan_arith;

typedef struct carry_all_scan_algorithm {
    const char *name, *about;
    carry_span_site span; /* span of its begin and end calls */
    bool cuts;            /* it divides states into blocks: a given number, or one that it chooses */
    /* Returns true if it applies; otherwise writes the reason, which is never empty, to `why`. */
    bool (*applies)(const carry_all_scan_shape *shape, int64_t blocks, char *why, size_t why_size);
    double (*cost)(const carry_all_scan_shape *shape, const carry_all_scan_machine *machine, int64_t blocks);
    int64_t (*requests)(const carry_all_scan_shape *shape, int64_t blocks); /* requests in each direction */
    bool (*workspace)(const carry_all_scan_plan *plan, size_t *bytes);      /* false: overflow */
    carry_status (*begin)(carry_all_scan_plan *plan);
    /* Goes as far as it can. Sets *done once nothing is left, which is always so with `wait`. */
    carry_status (*poll)(carry_all_scan_plan *plan, bool wait, bool *done);
} carry_all_scan_algorithm;

typedef enum carry_all_scan_state {
    CARRY_ALL_SCAN_IDLE,
    CARRY_ALL_SCAN_UNDER_WAY,
    CARRY_ALL_SCAN_DONE, /* finished, but end was not called */
    CARRY_ALL_SCAN_FAILED,
} carry_all_scan_state;

struct carry_all_scan_plan {
    carry_comm *comm;
    carry_ctx *ctx;
    const carry_kernels *kernels;
    carry_all_scan_shape shape;
    const carry_all_scan_algorithm *algorithm;
    const carry_all_scan_arith *arith;
    void *arith_user; /* used by the simulator */
    carry_all_scan_machine machine;
    int64_t blocks;
    int position, tag;
    double seconds;
    size_t workspace_bytes, area_bytes;
    int64_t requests;
    carry_request *receives, *sends; /* [requests] each */
    char about[256];

    /* On a GPU (all_scan_device.c). Roles of pairs are separate messages in host memory, since the CPU reads them. Work
       and messages run on a separate stream of the plan. */
    carry_comm *host; /* communicator of the same ranks on the host; equal to comm on the CPU */
    int device;
    carry_stream *stream, *callers; /* callers: set while a function of the plan runs */
    carry_event *before, *reached, *after;
    carry_event *closing, *left;               /* as reached and after, for an end that follows arrive */
    bool is_marked;                            /* `after` was recorded when the state was ready */
    bool arriving, has_arrived;                /* arrive is running, has run */
    carry_request *role_receives, *role_sends; /* [requests], as receives and sends */
    unsigned char *roles_got, *roles_sent;     /* [requests] */
    carry_status broken;                       /* the first error of the arithmetic */

    /* State of the scan in progress. */
    carry_all_scan_state state;
    carry_all_scan_args args;
    void *area;                     /* the algorithm's part of the workspace */
    float *scratch;                 /* for maps given as factors: [threads, rows, value] */
    int64_t next;                   /* the first block, position or round that is not done */
    int64_t posted, sent;           /* sends that were posted, and those that have completed */
    carry_all_scan_role role;       /* of the pair so far (doubling) */
    carry_all_scan_role sent_role;  /* of the pair that is sent */
    carry_all_scan_role roles_seen; /* of this rank's own pair (heads) */
    unsigned char *walked;          /* [ranks]: roles for the walk (heads) */
    const float *M;                 /* map of the pair (doubling, heads) */
    float *S;                       /* the state so far (gather) */
    carry_all_scan_counts counts;
};

/* all_scan_table.c; NULL past the end, and for an unknown name. */
const carry_all_scan_algorithm *carry_all_scan_at(int index);
const carry_all_scan_algorithm *carry_all_scan_find(const char *name);

/* True if work of `seconds` on one thread is faster on all threads. */
static inline bool carry_all_scan_spreads(const carry_all_scan_machine *m, double seconds) {
    return m->speed > 1 && seconds / m->speed + m->fork < seconds;
}

static inline double carry_all_scan_spread(const carry_all_scan_machine *m, double seconds) {
    return carry_all_scan_spreads(m, seconds) ? seconds / m->speed + m->fork : seconds;
}

/* Seconds for a message between ranks that are 2^i apart: for an empty one, and for each byte. */
static inline double carry_all_scan_far_latency(const carry_all_scan_machine *m, int i) {
    const bool known = i < CARRY_COMM_FAR && m->far_latency[i] > 0;
    return known ? m->far_latency[i] : m->latency;
}

static inline double carry_all_scan_far_byte(const carry_all_scan_machine *m, int i) {
    const bool known = i < CARRY_COMM_FAR && m->far_bandwidth[i] > 0;
    return 1.0 / (known ? m->far_bandwidth[i] : m->bandwidth);
}

/* all_scan_plan.c: estimates the number of nodes from the share of neighbours with the slowest link; 1: all ranks are
   near. */
double carry_all_scan_nodes(const carry_all_scan_machine *machine, int ranks);
/* all_scan_plan.c: returns the predicted seconds. If *blocks is 0 and the algorithm divides states into blocks, it is
   set to the number that is fastest. */
double carry_all_scan_predict(const carry_all_scan_algorithm *algorithm, const carry_all_scan_problem *problem,
                              int ranks, const carry_all_scan_machine *machine, int64_t *blocks);
/* Sets algorithm, blocks, seconds and about of a plan whose machine is known. */
carry_status carry_all_scan_choose(carry_all_scan_plan *plan, const carry_all_scan_options *options);
void carry_all_scan_put_far(carry_all_scan_machine *machine, const carry_comm_rates *rates);
/* Measures the machine. Collective: the slowest rank counts. */
carry_status carry_all_scan_measure(carry_all_scan_plan *plan);

/* all_scan.c: creates a plan for a given machine, or NULL to measure this one. */
carry_status carry_all_scan_plan_new_on(carry_comm *comm, carry_all_scan_plan **plan,
                                        const carry_all_scan_problem *problem, const carry_all_scan_options *options,
                                        const carry_all_scan_machine *machine);
/* The same without comparing with the other ranks, which are known to pass the same arguments. */
carry_status carry_all_scan_plan_new_for(carry_comm *comm, carry_all_scan_plan **plan,
                                         const carry_all_scan_problem *problem, const carry_all_scan_options *options,
                                         const carry_all_scan_machine *machine);
void carry_all_scan_set_arith(carry_all_scan_plan *plan, const carry_all_scan_arith *arith);

/* all_scan_check.c */
carry_status carry_all_scan_check_problem(carry_ctx *ctx, const carry_all_scan_problem *problem,
                                          const carry_all_scan_options *options);
carry_status carry_all_scan_check_args(const carry_all_scan_plan *plan, const carry_all_scan_args *args);
/* Collective. */
carry_status carry_all_scan_agree(carry_comm *comm, const carry_all_scan_problem *problem,
                                  const carry_all_scan_options *options);

/* all_scan_message.c: sends to, and receives from, a position. */
carry_status carry_all_scan_send(carry_all_scan_plan *plan, int64_t request, const void *from, size_t bytes,
                                 int position);
carry_status carry_all_scan_receive(carry_all_scan_plan *plan, int64_t request, void *to, size_t bytes, int position);
/* Sets *here once the request has completed, which is always so with `wait`. */
carry_status carry_all_scan_arrived(carry_all_scan_plan *plan, carry_request *request, bool wait, bool *here);

/* The size in bytes of a pair (L and the map M) in a message: 64 bytes for the role, then L, then the map with
   `numbers` elements for each head (0: no map), both in the type of messages and padded to a multiple of 64 bytes. */
#define CARRY_ALL_SCAN_LINE 64
size_t carry_all_scan_pair_bytes(const carry_all_scan_problem *problem, int64_t numbers);
/* put_role writes the role into a message that is about to be packed and sent; get_role reads it from the message of a
   completed request. */
void carry_all_scan_put_role(carry_all_scan_plan *plan, void *message, size_t bytes, carry_all_scan_role role);
carry_all_scan_role carry_all_scan_get_role(const carry_all_scan_plan *plan, int64_t request, const void *message);
carry_status carry_all_scan_send_pair(carry_all_scan_plan *plan, int64_t request, const void *from, size_t bytes,
                                      int position);
carry_status carry_all_scan_receive_pair(carry_all_scan_plan *plan, int64_t request, void *to, size_t bytes,
                                         int position);
char *carry_all_scan_pair_L(void *message);
char *carry_all_scan_pair_map(const carry_all_scan_problem *problem, void *message);
bool carry_all_scan_fits(size_t bytes, char *why, size_t why_size); /* true if `bytes` fit into one message */

/* all_scan_device.c: a plan on a GPU. enter and exit surround all code that enqueues work on streams. */
carry_status carry_all_scan_device_open(carry_all_scan_plan *plan);
void carry_all_scan_device_close(carry_all_scan_plan *plan);
carry_status carry_all_scan_enter(carry_all_scan_plan *plan, bool begins);
carry_status carry_all_scan_exit(carry_all_scan_plan *plan, bool ends);
/* Measures the seconds of a product and of a composition of all heads, the seconds for each byte that packing reads or
   writes (rate), and the seconds for a position of a walk. */
carry_status carry_all_scan_device_measure(carry_all_scan_plan *plan, double *product, double *compose, double *rate,
                                           double *step);
/* cuda/all_scan.cu: creates a stream with high priority, since other ranks wait for its work. */
carry_status carry_all_scan_stream_new(carry_ctx *ctx, carry_stream **stream, int device);
/* Records in the plan's stream that the state is ready. */
carry_status carry_all_scan_mark(carry_all_scan_plan *plan);
/* all_scan.c: called between begin and end on a GPU. The caller's stream continues once it has the state, while the
   scan passes the state on. The scan uses its memory until the end. */
carry_status carry_all_scan_arrive(carry_all_scan_plan *plan);
/* Seconds that the caller's stream waited at the end of the scan, measured by events; waits for them. 0 on the CPU. */
carry_status carry_all_scan_exposed(carry_all_scan_plan *plan, double *seconds);

/* cuda/all_scan.cu */
extern const carry_all_scan_arith carry_all_scan_on_gpu;

/* all_scan_apply.c: calls of `arith` that also count work and open spans. */
extern const carry_all_scan_arith carry_all_scan_real;
void carry_all_scan_apply(carry_all_scan_plan *plan, carry_all_scan_view out, const carry_all_scan_map *map,
                          carry_all_scan_view S, carry_all_scan_view L, int64_t heads, int64_t columns);
void carry_all_scan_compose(carry_all_scan_plan *plan, float *out, const float *second, const float *first,
                            int64_t heads);
/* Uses the walk of `arith` if it has one. */
void carry_all_scan_walk_run(carry_all_scan_plan *plan, const carry_all_scan_walk *walk);
/* Writes to out the state that leaves this rank, by its role, if S enters it. */
void carry_all_scan_leave(carry_all_scan_plan *plan, carry_all_scan_view out, carry_all_scan_view S,
                          carry_all_scan_block block);
/* Sets the state of position 0 to initial, or to zero. */
void carry_all_scan_start(carry_all_scan_plan *plan);

/* Converts a position to a rank, or a rank to a position. */
static inline int carry_all_scan_rank(const carry_all_scan_plan *plan, int position) {
    return plan->shape.problem.reversed ? plan->shape.ranks - 1 - position : position;
}

static inline bool carry_all_scan_is_last(const carry_all_scan_plan *plan) {
    return plan->position == plan->shape.ranks - 1;
}

/* The role of this rank's pair. Without `initial`, nothing enters position 0, so its map becomes a cut. */
static inline carry_all_scan_role carry_all_scan_role_of(const carry_all_scan_plan *plan) {
    const bool nothing = plan->position == 0 && plan->args.initial.data == NULL;
    return nothing && plan->args.role == CARRY_ALL_SCAN_MAP ? CARRY_ALL_SCAN_CUT : plan->args.role;
}

static inline int64_t carry_all_scan_state_floats(const carry_all_scan_problem *p) {
    return p->heads * p->key * p->value;
}

static inline size_t carry_all_scan_state_bytes(const carry_all_scan_problem *p) { /* bytes in a message */
    return (size_t)carry_all_scan_state_floats(p) * carry_dtype_size(p->wire);
}

/* Floats of one head's map in memory: dense (also for a map given as factors) or diagonal. */
static inline int64_t carry_all_scan_map_floats(const carry_all_scan_problem *p) {
    return p->kind == CARRY_ALL_SCAN_DIAGONAL ? p->key : p->key * p->key;
}

static inline carry_all_scan_block carry_all_scan_whole(const carry_all_scan_problem *p) {
    return (carry_all_scan_block){.head = 0, .heads = p->heads, .column = 0, .columns = p->value};
}

/* Views of a whole state, and of a block in it. */
static inline carry_all_scan_view carry_all_scan_packed(const carry_all_scan_problem *p, const void *data) {
    return (carry_all_scan_view){.data = (float *)data, .head = p->key * p->value, .row = p->value};
}

static inline carry_all_scan_view carry_all_scan_view_at(carry_all_scan_view view, carry_all_scan_block block) {
    view.data += block.head * view.head + block.column;
    return view;
}

static inline carry_all_scan_map carry_all_scan_own_map(const carry_all_scan_plan *plan, int64_t head) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const carry_all_scan_args *a = &plan->args;
    carry_all_scan_map map;
    memset(&map, 0, sizeof map);
    map.kind = p->kind;
    if (p->kind == CARRY_ALL_SCAN_FACTORS) {
        map.W = (const float *)a->W.data + head * p->rows * p->key;
        map.Y = (const float *)a->Y.data + head * p->rows * p->key;
        map.gamma = (const float *)a->gamma.data + head;
    } else {
        map.M = (const float *)a->M.data + head * carry_all_scan_map_floats(p);
    }
    return map;
}

#endif
