/* Divides a backward pass into parts so that its workspace stays below one and a half times the inputs, and lays out
   the workspace.

   If the results of all heads do not fit and half of the heads fill the GPU, the halves are done one after the other in
   the same workspace. If the results of all chunks of a round do not fit, a round has some of the segments, or the
   walks are done in parts (ring, device.cuh). If the workspace is still too large, a round has fewer heads; if one head
   is too large, there are more rounds of segments, or fewer segments; if that is not enough either, a round has fewer
   sequences. A packed sequence that does not fit together with others is done alone, as an unpacked one. */
#ifndef CARRY_DELTA_CHUNK_ROUNDS_CUH
#define CARRY_DELTA_CHUNK_ROUNDS_CUH

#include "delta/cuda/chunk/host.cuh"

namespace DELTA_CHUNK {

struct layout {
    size_t states, values, dstates, between, partial, numbers, dots, pairs, bytes;
};

/* How a round is done: its segments, the parts of the walks, and the layout of its workspace. */
struct back_way {
    shape s;
    ring r;
    layout l;
};

/* The workspace may have at most 1.5 times the bytes of q, k, v and do, or LARGE bytes if that is more. The borders of
   packed sequences are not counted here, so chunks are fitted into slightly less than the limit (COUNTED). */
constexpr double MOST = 1.497, LARGE = 32e6, COUNTED = 0.999;
constexpr int LEAST = 8;      /* fewest chunks in a part of a ring */
constexpr int FEW_ROUNDS = 3; /* rounds of segments that cost little */

static inline double inputs_of(const carry_delta_job *job) {
    return (double)(job->batch * job->tokens) * 4.0 * (double)(job->heads * job->key + job->value_heads * job->value);
}

static inline double most_of(const carry_delta_job *job) {
    double most = MOST * inputs_of(job);
    return most > LARGE ? most : LARGE;
}

/* Bytes that the walks store for one chunk of a walked value head: for states, and for values. */
static inline size_t state_bytes_of(const carry_delta_job *job) {
    return (size_t)(job->key / 64 * (part_size(job) / 64)) * BAND;
}
static inline size_t value_bytes_of(const carry_delta_job *job) {
    return (size_t)(part_size(job) / 64) * BAND;
}
static inline double room_bytes(const carry_delta_job *job) {
    return (double)(2 * state_bytes_of(job) + value_bytes_of(job));
}
/* Floats for a state that is passed from one part of a ring to the next. */
static inline size_t between_floats(const carry_delta_job *job) {
    return (size_t)(D * (job->key > D ? job->key : D));
}
/* The number of floats, per chunk of a head, for the sums to which both halves of 256 keys contribute (gradient_args).
   The same for value heads and for heads of q and k. */
static inline size_t shared_floats(const carry_delta_job *job) {
    return job->key > D ? 2 * C : 0;
}
/* Bytes for a chunk of a value head, without the results that the walks store. */
static inline double tile_bytes(const carry_delta_job *job) {
    return CHUNK_BYTES + 8 + 2.0 * (double)shared_floats(job) * sizeof(float);
}

/* The number of chunks of walked value heads for which the results of both walks fit into `most` bytes. */
static inline double rooms_of(const carry_delta_job *job, int segments, double most) {
    double tiles = (double)(slots_of(job) * job->value_heads);
    return (COUNTED * most - tiles * tile_bytes(job) - (double)pair_bytes(job, segments, true)) / room_bytes(job);
}

static inline bool all_fit(const carry_delta_job *job, double rooms) {
    return rooms >= (double)(slots_of(job) * walked_heads(job));
}

/* Returns the number of segments of each sequence in a round so that rounds are about equal, or 0 if that needs more
   than most_rounds. */
static inline int segments_at_once(const carry_delta_job *job, const shape &s, double rooms, int most_rounds) {
    int most = (int)(rooms / ((double)(job->sequences * walked_heads(job)) * (double)s.segment_chunks));
    int rounds = most > 0 ? (s.segments + most - 1) / most : 0;
    return rounds > 0 && rounds <= most_rounds ? (s.segments + rounds - 1) / rounds : 0;
}

/* Chooses the ring. each = count = 0: no ring is needed or possible. */
static inline ring ring_of(const carry_delta_job *job, const shape &s, double most, int most_rounds) {
    ring r = {};
    double rooms = rooms_of(job, s.segments, most);
    /* split: other ranks wait for the results. */
    if (job->borders != NULL || job->split > 0 || all_fit(job, rooms)) {
        return r;
    }
    r.count = s.segments > 1 ? segments_at_once(job, s, rooms, most_rounds) : 0;
    if (r.count > 0) {
        r.rooms[0] = r.rooms[1] = s.segment_chunks;
        return r;
    }
    if (s.segment_chunks < 2 * LEAST) {
        return r;
    }
    rooms = rooms / (double)(job->sequences * s.segments * walked_heads(job)) -
            2.0 * (double)between_floats(job) * sizeof(float) / room_bytes(job);
    r.half = (s.segment_chunks + 1) / 2;
    int room = rooms - r.half > LEAST ? (int)(rooms - r.half) : LEAST, parts = (r.half + room - 1) / room;
    r.each = (r.half + parts - 1) / parts;
    r.rooms[0] = r.half + r.each;
    r.rooms[1] = s.segment_chunks - r.half + r.each;
    return r;
}

static inline layout layout_of(const carry_delta_job *job, const shape &s, const ring &r) {
    size_t tiles = (size_t)(slots_of(job) * job->value_heads), kept = tiles << s.shift, back = kept;
    size_t walks = (size_t)(job->sequences * s.segments * walked_heads(job));
    if (r.each > 0 || r.count > 0) {
        size_t lanes = r.count > 0 ? walks / (size_t)s.segments * (size_t)r.count : walks;
        kept = lanes * (size_t)r.rooms[0];
        back = lanes * (size_t)r.rooms[1];
    }
    layout l;
    l.states = tiles * CHUNK_BYTES;
    l.values = l.states + kept * state_bytes_of(job);
    l.dstates = l.values + kept * value_bytes_of(job);
    l.between = l.dstates + back * state_bytes_of(job);
    l.partial = l.between + (r.each > 0 ? 2 * walks * between_floats(job) * sizeof(float) : 0);
    l.numbers = l.partial + (tiles * 2 * sizeof(float) + 15) / 16 * 16;
    l.dots = l.numbers + tiles * shared_floats(job) * sizeof(float);
    l.pairs = l.dots + (size_t)(slots_of(job) * job->heads) * shared_floats(job) * sizeof(float);
    l.bytes = l.pairs + pair_bytes(job, s.segments, true);
    return l;
}

static inline back_way way_with(const carry_delta_job *job, int segments, double most, int most_rounds) {
    back_way way;
    way.s = shape_of(job);
    set_segments(job, segments, &way.s);
    way.r = ring_of(job, way.s, most, most_rounds);
    way.l = layout_of(job, way.s, way.r);
    return way;
}

/* Returns the fastest division. With `thorough`, returns the first one that fits, or the smallest if none does. */
static inline back_way way_of(const carry_delta_job *job, int units, double most, bool thorough) {
    int segments = segments_of(job, units, true);
    back_way best = way_with(job, segments, most, FEW_ROUNDS);
    for (int g = segments; thorough && g >= 1 && (double)best.l.bytes > most; g--) {
        back_way way = way_with(job, g, most, g);
        best = way.l.bytes < best.l.bytes ? way : best;
    }
    return best;
}

/* The backward pass is split into rounds so that its workspace fits: rounds over heads and over sequences, or, where
   sequences are packed, the number of slots in a round (0: all fit in one). */
struct back_rounds {
    int heads, batches;
    int64_t slots;
    bool thorough;
    double most;
};

static inline carry_delta_job some_heads(const carry_delta_job *job, int64_t rounds) {
    carry_delta_job part = *job;
    part.heads = job->heads / rounds;
    part.value_heads = job->value_heads / rounds;
    return part;
}

/* The job of one packed sequence as long as all of them together: an upper bound for a sequence done alone. */
static inline carry_delta_job alone(const carry_delta_job *job, int64_t tokens) {
    carry_delta_job part = *job;
    part.batch = part.sequences = 1;
    part.tokens = tokens;
    part.borders = NULL;
    return part;
}

/* Divides the heads into the smallest number of equal rounds for which the workspace of a round fits. Uses at least two
   rounds if half of the heads fill the GPU and a single round of all heads would need a ring. Returns false if the
   workspace does not fit even with one head a round. */
static inline bool find_heads(const carry_delta_job *job, int units, back_rounds *found) {
    bool many = part_size(job) / 64 * job->sequences * walked_heads(job) * 20 >= (int64_t)units * 19;
    many = many && !all_fit(job, rooms_of(job, segments_of(job, units, true), found->most)) && job->heads % 2 == 0;
    for (int64_t rounds = many ? 2 : 1; rounds <= job->heads; rounds++) {
        carry_delta_job part = some_heads(job, rounds);
        found->heads = (int)rounds;
        if (job->heads % rounds == 0 &&
            (double)way_of(&part, units, found->most, found->thorough).l.bytes <= found->most) {
            return true;
        }
    }
    return false;
}

/* Divides sequences into rounds. Called when not even one head at a time fits. */
static inline void find_sequences(const carry_delta_job *job, int units, back_rounds *found) {
    carry_delta_job part = some_heads(job, found->heads);
    if (job->borders != NULL) {
        double each = tile_bytes(job) * (double)part.value_heads + room_bytes(job) * (double)walked_heads(&part);
        found->slots = (int64_t)(COUNTED * found->most / each);
        found->slots = found->slots > 2 ? found->slots : 2;
        return;
    }
    for (int64_t count = job->batch - 1; count > 0; count--) { /* count: sequences of a round */
        part.batch = part.sequences = count;
        if (count == 1 || (double)way_of(&part, units, found->most, true).l.bytes <= found->most) {
            found->batches = (int)((job->batch + count - 1) / count);
            return;
        }
    }
}

static inline back_rounds rounds_of(const carry_delta_job *job, int units) {
    back_rounds found = {1, 1, 0, false, most_of(job)};
    if (job->split > 0) {
        return found;
    }
    if (!find_heads(job, units, &found)) {
        found.thorough = true;
        if (!find_heads(job, units, &found)) {
            find_sequences(job, units, &found);
        }
    }
    return found;
}

/* The bytes of workspace that the largest round needs. */
static inline size_t round_bytes(const carry_delta_job *job, int units, const back_rounds &rounds) {
    carry_delta_job part = some_heads(job, rounds.heads);
    if (rounds.slots > 0) {
        carry_delta_job one = alone(&part, job->tokens);
        size_t bytes = way_of(&one, units, rounds.most, true).l.bytes;
        part.tokens = 0;
        part.sequences = rounds.slots;
        size_t many = way_of(&part, units, rounds.most, true).l.bytes, most = (size_t)rounds.most;
        bytes = many > bytes ? many : bytes;
        return most > bytes ? most : bytes; /* a shorter sequence may need more than `bytes`, but at most `most` */
    }
    part.batch = (job->batch + rounds.batches - 1) / rounds.batches;
    part.sequences = job->borders != NULL ? job->sequences : part.batch;
    return way_of(&part, units, rounds.most, rounds.thorough).l.bytes;
}

} // namespace DELTA_CHUNK

#endif
