/* The forward pass on a GPU, token by token, for every size and option.

   A block takes 16 columns of the state of one value head of one sequence and keeps them in registers (columns.cuh).
   Tokens are read in tiles through shared memory; the next tile is loaded while the current one is processed. For a
   range (carry_delta_range), the columns of M follow those of V: they start as the identity, and their values are
   zero. */
#include "delta/cuda/plain/columns.cuh"

namespace {

constexpr int THREADS = 128;
constexpr int COLUMNS = THREADS / LANES;

template <int KR, bool KEYS> struct tile {
    static constexpr int KP = KR * LANES;
    static constexpr int TOKENS = KR >= 32 ? 8 : 16;
    alignas(16) float k[TOKENS * KP];
    alignas(16) float q[TOKENS * KP];
    alignas(16) float decay[KEYS ? TOKENS * KP : TOKENS];
    float beta[TOKENS];
    float v[TOKENS * COLUMNS]; /* later o */
};

/* The number of tokens of the sequence after which snapshot i is taken. */
__device__ int64_t snapshot_position(const carry_delta_job &job, int64_t length, int64_t i) {
    if (i >= job.snapshot_count) {
        return INT64_MAX;
    }
    if (job.snapshot_every > 0) {
        int64_t at = (i + 1) * job.snapshot_every;
        return at < length ? at : length;
    }
    int64_t at = length - job.snapshot_last + 1 + i;
    return at > 0 ? at : 0;
}

template <int KR, bool KEYS> struct unit {
    const carry_delta_job &job;
    tile<KR, KEYS> &s;
    int64_t sequence, head;
    delta_place place;
    int first;     /* the block's first column */
    int column, r; /* of this thread */
    float S[KR];
    int64_t next, due; /* the next snapshot, and the number of tokens after which it is due */
    delta_tile<tile<KR, KEYS>::TOKENS, tile<KR, KEYS>::KP, THREADS> k, q; /* for the next tile */
    delta_tile<tile<KR, KEYS>::TOKENS, COLUMNS, THREADS> v;
    delta_gates<tile<KR, KEYS>::TOKENS, tile<KR, KEYS>::KP, THREADS, KEYS> gates;

    /* The index of this head's state among all states. */
    __device__ __forceinline__ int64_t state() const {
        return (job.slots != nullptr ? job.slots[sequence] : sequence) * job.value_heads + head;
    }

    __device__ void start() {
        if (column >= job.value) { /* the column belongs to M */
#pragma unroll
            for (int e = 0; e < KR; e++) {
                S[e] = row_of(r, e) == column - job.value ? 1.0f : 0.0f;
            }
        } else if (job.initial != nullptr) {
            load_column<KR>(S, job, job.initial, state(), column, r, job.transposed);
        } else {
#pragma unroll
            for (int e = 0; e < KR; e++) {
                S[e] = 0.0f;
            }
        }
        next = 0;
        due = job.snapshots != nullptr ? snapshot_position(job, place.length, 0) : INT64_MAX;
    }

    __device__ void finish() {
        int64_t at = state();
        if (job.final_state != nullptr) {
            store_column<KR>(job.final_state, at, S, job, column, r, job.transposed);
        }
        if (job.maps != nullptr && column >= job.value && column < job.value + job.key) {
#pragma unroll
            for (int e = 0; e < KR; e++) {
                int row = row_of(r, e);
                if (row < job.key) {
                    job.maps[(at * job.key + row) * job.key + column - job.value] = S[e];
                }
            }
        }
    }

    /* Stores the snapshots that are due after t tokens. */
    __device__ void keep(int64_t t) {
        for (; due <= t; due = snapshot_position(job, place.length, next)) {
            store_column<KR>(job.snapshots, (sequence * job.snapshot_count + next) * job.value_heads + head, S, job,
                             column, r, job.transposed);
            next++;
        }
        if (job.kept != nullptr && t % CARRY_DELTA_KEEP == 0 && t < place.length) {
            int64_t slot = kept_of(place, sequence) + t / CARRY_DELTA_KEEP;
            store_column<KR>(job.kept, slot * job.kept_heads + head, S, job, column, r, false);
        }
    }

    __device__ int count_from(int64_t t) const {
        constexpr int TOKENS = tile<KR, KEYS>::TOKENS;
        return place.length - t < TOKENS ? (int)(place.length - t) : TOKENS;
    }

    /* Starts to load the tile at token t of the sequence. */
    __device__ void fetch(int64_t t) {
        if (t >= place.length) {
            return;
        }
        int64_t token = place.start + t;
        k.fetch(job.k, place.batch, token, head / job.group, count_from(t), 0, job.key);
        if (job.o.data != nullptr) {
            q.fetch(job.q, place.batch, token, head / job.group, count_from(t), 0, job.key);
        }
        v.fetch(job.v, place.batch, token, head, count_from(t), first, job.value);
        gates.fetch(job, place.batch, token, head, count_from(t));
    }

    /* Writes the loaded tile to shared memory. */
    __device__ void put(int count) {
        constexpr int KP = tile<KR, KEYS>::KP;
        k.put(s.k, job.k);
        if (job.o.data != nullptr) {
            q.put(s.q, job.q);
        }
        v.put(s.v, job.v);
        gates.put(s.decay, s.beta, job, head);
        __syncthreads();
        if (job.l2norm) {
            normalise_tile<KP>(s.k, count);
            if (job.o.data != nullptr) {
                normalise_tile<KP>(s.q, count);
            }
            __syncthreads();
        }
    }

    __device__ void store(int64_t t, int count) {
        __syncthreads();
        for (int i = (int)threadIdx.x; job.o.data != nullptr && i < count * COLUMNS; i += THREADS) {
            int at = first + i % COLUMNS;
            if (at < job.value) {
                carry_store_any(job.o.data, job.o.dtype,
                                at_of(job.o, place.batch, place.start + t + i / COLUMNS, head) + at, s.v[i]);
            }
        }
        __syncthreads();
    }

    __device__ void run() {
        constexpr int KP = tile<KR, KEYS>::KP;
        constexpr int TOKENS = tile<KR, KEYS>::TOKENS;
        fetch(0);
        start();
        for (int64_t t = 0; t < place.length; t += TOKENS) {
            int count = count_from(t);
            put(count);
            fetch(t + TOKENS);
            for (int i = 0; i < count; i++) {
                const float4 *row = reinterpret_cast<const float4 *>(s.k + i * KP);
                float *here = s.v + i * COLUMNS + (int)threadIdx.x / LANES;
                keep(t + i);
                float seen = fade_and_see<KR, KEYS>(S, row, s.decay + (KEYS ? i * KP : i), r);
                add_outer<KR>(S, row, s.beta[i] * (*here - seen), r);
                if (job.o.data != nullptr) {
                    float o = see<KR>(S, reinterpret_cast<const float4 *>(s.q + i * KP), r);
                    __syncwarp();
                    if (r == 0) {
                        *here = job.scale * o;
                    }
                }
            }
            store(t, count);
        }
        keep(place.length);
        finish();
    }
};

template <int KR, bool KEYS>
__global__ void __launch_bounds__(THREADS, KR >= 32   ? 2
                                           : KR >= 16 ? 3
                                                      : 4)
    delta_recurrent(const __grid_constant__ carry_delta_job job, int64_t units, int blocks) {
    __shared__ tile<KR, KEYS> s;
    for (int64_t i = blockIdx.x; i < units; i += gridDim.x) {
        int64_t head = i / blocks % job.value_heads;
        int64_t sequence = i / blocks / job.value_heads;
        int first = (int)(i % blocks) * COLUMNS;
        unit<KR, KEYS> u = {job,
                            s,
                            sequence,
                            head,
                            place_of(job, sequence),
                            first,
                            first + (int)threadIdx.x / LANES,
                            (int)threadIdx.x % LANES};
        u.run();
    }
}

template <int KR> void launch(const carry_delta_job *job, cudaStream_t stream) {
    int columns = job->value + (job->maps != nullptr ? job->key : 0);
    int blocks = (columns + COLUMNS - 1) / COLUMNS;
    int64_t units = job->sequences * job->value_heads * blocks;
    unsigned grid = (unsigned)(units < INT32_MAX ? units : INT32_MAX);
    if (job->by_key) {
        delta_recurrent<KR, true><<<grid, THREADS, 0, stream>>>(*job, units, blocks);
    } else {
        delta_recurrent<KR, false><<<grid, THREADS, 0, stream>>>(*job, units, blocks);
    }
}

} // namespace

cudaError_t carry_delta_recurrent_launch(const carry_delta_job *job, cudaStream_t stream) {
    if (job->key <= 32) {
        launch<4>(job, stream);
    } else if (job->key <= 64) {
        launch<8>(job, stream);
    } else if (job->key <= 128) {
        launch<16>(job, stream);
    } else {
        launch<32>(job, stream);
    }
    return cudaGetLastError();
}
