/* The threads of a block as fibres. Each has its own stack and runs until it waits or ends. A warp continues when all
   lanes that its instruction names have arrived, a block when all its threads that have not ended are at the barrier.
   If nothing can continue, the kernel would hang on a GPU: the process ends and prints the kernel's name and where
   threads wait. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "runtime.h"

namespace emulate {

thread *self;

namespace {

constexpr size_t STACK = 256 << 10;
constexpr int MOST = 1024; /* threads of a block */
constexpr size_t SHARED = 228 << 10;
constexpr size_t GIVEN = 64; /* most bytes that a lane gives */

enum state { READY, AT_WARP, AT_BLOCK, ENDED };

struct fibre {
    thread me;
    state is;
    unsigned mask, present; /* lanes to wait for; lanes that have arrived */
    const void *given;
    size_t given_bytes;
    bool value; /* at the block's barrier */
    ucontext_t start;
    jmp_buf at;
    bool begun;
};

fibre *fibres;
fibre *current;
jmp_buf scheduler;
ucontext_t home;
const std::function<void()> *kernel;
int threads;
bool any; /* true if any value at the last barrier was */
struct given {
    alignas(8) char bytes[GIVEN];
};
given snapshot[MOST / 32][32]; /* values that the lanes of each warp gave at its last instruction */
alignas(1024) char shared_memory[SHARED];

void body() {
    for (;;) {
        (*kernel)();
        current->is = ENDED;
        if (_setjmp(current->at) == 0) {
            _longjmp(scheduler, 1);
        }
    }
}

void make_fibres() {
    fibres = new fibre[MOST]();
    char *stacks =
        (char *)mmap(NULL, STACK * MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        abort();
    }
    for (int i = 0; i < MOST; i++) {
        (void)getcontext(&fibres[i].start);
        fibres[i].start.uc_stack.ss_sp = stacks + (size_t)i * STACK;
        fibres[i].start.uc_stack.ss_size = STACK;
        fibres[i].start.uc_link = NULL;
        makecontext(&fibres[i].start, body, 0);
    }
}

void resume(fibre *f) {
    current = f;
    self = &f->me;
    if (_setjmp(scheduler) == 0) {
        if (f->begun) {
            _longjmp(f->at, 1);
        }
        f->begun = true;
        (void)swapcontext(&home, &f->start);
    }
}

void pause() {
    fibre *f = current;
    if (_setjmp(f->at) == 0) {
        _longjmp(scheduler, 1);
    }
}

int lanes_of(int warp) {
    return threads - 32 * warp < 32 ? threads - 32 * warp : 32;
}

/* Releases each waiting lane if all other lanes of its mask wait, too, or have ended or do not exist. */
bool release_warp(int warp) {
    fibre *f = fibres + 32 * warp;
    const int lanes = lanes_of(warp);
    unsigned waiting = 0, ended = 0, go = 0;
    for (int i = 0; i < lanes; i++) {
        waiting |= (unsigned)(f[i].is == AT_WARP) << i;
        ended |= (unsigned)(f[i].is == ENDED) << i;
    }
    const unsigned there = lanes == 32 ? ~0u : (1u << lanes) - 1u;
    for (int i = 0; i < lanes; i++) {
        if (f[i].is == AT_WARP && (f[i].mask & there & ~ended & ~waiting) == 0) {
            go |= 1u << i;
        }
    }
    for (int i = 0; i < lanes; i++) {
        if ((go >> i & 1u) != 0) {
            memcpy(snapshot[warp][i].bytes, f[i].given, f[i].given_bytes);
            f[i].present = go & f[i].mask;
            f[i].is = READY;
        }
    }
    return go != 0;
}

void run_warp(int warp) {
    do {
        for (int i = 0; i < lanes_of(warp); i++) {
            fibre *f = &fibres[32 * warp + i];
            if (f->is == READY) {
                resume(f);
            }
        }
    } while (release_warp(warp));
}

[[noreturn]] void hangs(const char *name) {
    int at[4] = {};
    for (int i = 0; i < threads; i++) {
        at[fibres[i].is]++;
    }
    fprintf(stderr,
            "emulated GPU: %s would hang: of %d threads %d wait within their warp, %d for the block, %d have ended\n",
            name, threads, at[AT_WARP], at[AT_BLOCK], at[ENDED]);
    abort();
}

/* Releases the threads at the barrier; true if all threads have ended. */
bool release_block(const char *name) {
    int at_barrier = 0, ended = 0;
    any = false;
    for (int i = 0; i < threads; i++) {
        at_barrier += fibres[i].is == AT_BLOCK;
        ended += fibres[i].is == ENDED;
        any = any || (fibres[i].is == AT_BLOCK && fibres[i].value);
    }
    if (at_barrier + ended != threads) {
        hangs(name);
    }
    for (int i = 0; i < threads; i++) {
        fibres[i].is = fibres[i].is == AT_BLOCK ? READY : fibres[i].is;
    }
    return ended == threads;
}

/* Waits for the other lanes of the mask; their values are then in the snapshot. */
void give(unsigned mask, const void *data, size_t bytes) {
    current->mask = mask;
    current->given = data;
    current->given_bytes = bytes;
    current->is = AT_WARP;
    pause();
}

int warp_of_current() {
    return (int)(current - fibres) / 32;
}

} // namespace

void run_block(const config &c, const char *name, const std::function<void()> &run, dim3 block) {
    if (fibres == NULL) {
        make_fibres();
    }
    kernel = &run;
    threads = (int)(c.block.x * c.block.y * c.block.z);
    memset(shared_memory, 0xff, c.shared < SHARED ? c.shared : SHARED); /* NaN: kernels must not assume any contents */
    int i = 0;
    for (unsigned z = 0; z < c.block.z; z++) {
        for (unsigned y = 0; y < c.block.y; y++) {
            for (unsigned x = 0; x < c.block.x; x++, i++) {
                fibres[i].me = thread{dim3(x, y, z), block, c.block, c.grid};
                fibres[i].is = READY;
            }
        }
    }
    do {
        for (int warp = 0; 32 * warp < threads; warp++) {
            run_warp(warp);
        }
    } while (!release_block(name));
}

const char *refusal(const config &c) {
    const unsigned long count = (unsigned long)c.block.x * c.block.y * c.block.z;
    return count < 1 || count > MOST                                              ? "threads of a block"
           : c.grid.x < 1 || c.grid.x > 0x7fffffffu                               ? "blocks along x"
           : c.grid.y < 1 || c.grid.y > 65535 || c.grid.z < 1 || c.grid.z > 65535 ? "blocks along y or z"
           : c.shared > SHARED - 1024                                             ? "shared memory"
                                                                                  : NULL;
}

void *dynamic_shared() {
    return shared_memory;
}

char *shared_base() {
    return shared_memory;
}

bool wait_block_any(bool value) {
    current->is = AT_BLOCK;
    current->value = value;
    pause();
    return any;
}

void wait_block() {
    (void)wait_block_any(false);
}

int lane() {
    return (int)(current - fibres) % 32;
}

void wait_warp(unsigned mask) {
    give(mask, "", 0);
}

uint64_t exchange(unsigned mask, uint64_t value, int from) {
    give(mask, &value, sizeof value);
    if (from >= 0 && from < 32 && (current->present >> from & 1u) != 0) {
        memcpy(&value, snapshot[warp_of_current()][from].bytes, sizeof value);
    }
    return value;
}

unsigned ballot(unsigned mask, bool value) {
    unsigned all = 0;
    give(mask, &value, sizeof value);
    for (int i = 0; i < 32; i++) {
        all |= (current->present >> i & 1u) != 0 && snapshot[warp_of_current()][i].bytes[0] != 0 ? 1u << i : 0;
    }
    return all;
}

void load_blocks(unsigned &d0, unsigned &d1, unsigned &d2, unsigned &d3, unsigned row, bool transposed) {
    give(~0u, &row, sizeof row);
    unsigned *to[] = {&d0, &d1, &d2, &d3};
    for (int m = 0; m < 4; m++) {
        uint16_t pair[2];
        for (int j = 0; j < 2; j++) {
            const int at_row = transposed ? 2 * (lane() % 4) + j : lane() / 4;
            const int at_column = transposed ? lane() / 4 : 2 * (lane() % 4) + j;
            unsigned address;
            memcpy(&address, snapshot[warp_of_current()][8 * m + at_row].bytes, sizeof address);
            if (address % 16 != 0) {
                fprintf(stderr, "emulated GPU: ldmatrix from an address that is not a multiple of 16\n");
                abort();
            }
            memcpy(&pair[j], (char *)pointer_of(address) + 2 * at_column, 2);
        }
        *to[m] = pair[0] | (unsigned)pair[1] << 16;
    }
}

unsigned transpose_block(unsigned given) {
    give(~0u, &given, sizeof given);
    uint16_t pair[2];
    for (int j = 0; j < 2; j++) { /* element lane() / 4 of row 2 (lane() % 4) + j */
        const int row = 2 * (lane() % 4) + j, column = lane() / 4;
        memcpy(&pair[j], snapshot[warp_of_current()][4 * row + column / 2].bytes + 2 * (column % 2), 2);
    }
    return pair[0] | (unsigned)pair[1] << 16;
}

namespace {

struct operands {
    unsigned a[4], b[2];
};

/* d = a b + c. A lane has rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and the next one. A register has EACH
   elements. */
template <int EACH, typename Widen>
void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], Widen widen) {
    operands mine;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    give(~0u, &mine, sizeof mine);
    const given *all = snapshot[warp_of_current()];
    const int row = lane() / 4, column = 2 * (lane() % 4);
    double sum[4] = {c[0], c[1], c[2], c[3]};
    for (int k = 0; k < 8 * EACH; k++) {
        const int quarter = k / EACH % 4, upper = k / (4 * EACH);
        const operands *left = (const operands *)all[4 * row + quarter].bytes;
        for (int j = 0; j < 2; j++) {
            const operands *right = (const operands *)all[4 * (column + j) + quarter].bytes;
            const double b_kj = (double)widen(right->b[upper], k % EACH);
            sum[j] += (double)widen(left->a[2 * upper], k % EACH) * b_kj;
            sum[2 + j] += (double)widen(left->a[2 * upper + 1], k % EACH) * b_kj;
        }
    }
    for (int i = 0; i < 4; i++) {
        d[i] = (float)sum[i];
    }
}

} // namespace

void multiply_16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], bool is_bf16) {
    multiply<2>(d, a, b, c, [is_bf16](unsigned bits, int which) {
        const uint16_t half = (uint16_t)(bits >> (16 * which));
        return is_bf16 ? carry_f32_from_bf16(half) : carry_f32_from_f16(half);
    });
}

void multiply_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4]) {
    multiply<1>(d, a, b, c, [](unsigned bits, int) { return float_of(bits & 0xffffe000u); });
}

} // namespace emulate
