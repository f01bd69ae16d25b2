/* Diagonal transitions, step after step: one thread takes its channels through all steps and keeps the loads of the
   next steps in flight while it computes the current ones. Every byte moves once, so with enough channels to fill the
   GPU no method is faster. */
#include "scan/cuda/diagonal.cuh"

namespace {

constexpr int THREADS = 128;
constexpr int AHEAD = 8; /* steps; 4 and 16 were slower with 16-bit channels (322 and 609 us against 289 for 1 GB) */

template <int V, typename TA, typename TB, typename TH>
__global__ void __launch_bounds__(THREADS, 4) walk(const carry_diagonal d) {
    int channel = (int)(blockIdx.x * THREADS + threadIdx.x) * V;
    int item = (int)blockIdx.y;
    if (channel >= d.channels) {
        return;
    }
    const TA *a = static_cast<const TA *>(d.A.data) + item * d.A.item + carry_row(d, channel);
    const TB *b = static_cast<const TB *>(d.b.data) + item * d.b.item + channel;
    TH *h = static_cast<TH *>(d.h.data) + item * d.h.item + channel;
    float state[V];
    carry_initial<V>(state, d, item, channel);
    carry_segment<V, AHEAD, TA, TB> slots[2];
    int64_t blocks = d.steps / AHEAD;
    auto fetch = [&](int slot) {
        slots[slot].load(a, d.A.step, b, d.b.step);
        a += (int64_t)AHEAD * d.A.step;
        b += (int64_t)AHEAD * d.b.step;
    };
    auto advance = [&](const carry_segment<V, AHEAD, TA, TB> &s, int64_t count) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (i < count) {
                float added[V];
                float decay = carry_to_float(s.decay[i]);
                s.value[i].expand(added);
#pragma unroll
                for (int v = 0; v < V; v++) {
                    state[v] = fmaf(decay, state[v], added[v]);
                }
                carry_pack<V, TH> packed;
                packed.pack(state);
                packed.store(h);
                h += d.h.step;
            }
        }
    };
    if (blocks > 0) {
        fetch(0);
    }
    int64_t block = 0;
    for (; block + 2 <= blocks; block += 2) { /* two at a time, so that slot indices are compile-time constants */
        fetch(1);
        advance(slots[0], AHEAD);
        if (block + 2 < blocks) {
            fetch(0);
        }
        advance(slots[1], AHEAD);
    }
    if (block < blocks) {
        advance(slots[0], AHEAD);
    }
    int64_t left = d.steps - blocks * AHEAD;
    if (left > 0) {
        slots[0].load_some(a, d.A.step, b, d.b.step, left);
        advance(slots[0], left);
    }
}

} // namespace

cudaError_t carry_diagonal_sequential(const carry_diagonal &d, bool wide, cudaStream_t stream) {
#define LAUNCH(V, TA, TB, TH)                                                               \
    do {                                                                                    \
        dim3 grid((unsigned)((d.channels / V + THREADS - 1) / THREADS), (unsigned)d.items); \
        walk<V, TA, TB, TH><<<grid, THREADS, 0, stream>>>(d);                               \
    } while (0)
    if (wide) {
        CARRY_DIAGONAL_TYPES(d, 4, 8, LAUNCH);
    } else {
        CARRY_DIAGONAL_TYPES(d, 1, 1, LAUNCH);
    }
#undef LAUNCH
    return cudaGetLastError();
}
