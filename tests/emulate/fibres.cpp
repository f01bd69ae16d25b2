/* The threads of a block as fibres. Each has its own stack and runs until it waits or ends. A warp continues when all
   lanes that its instruction names have arrived, a block when all its threads that have not ended are at the barrier.
   If nothing can continue, the kernel would hang on a GPU: the process ends and prints the kernel's name and where
   threads wait. */
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

struct fibre {
    thread me;
    unsigned mask, present; /* lanes to wait for; lanes that have arrived */
    const void *given; /* NULL: the word */
    size_t given_bytes;
    uint64_t word;
    int warp, lane;
    void *at; /* its stack, with its registers, or its context */
};

/* Threads of a warp by what they do, a bit for each lane. */
struct warp_state {
    unsigned ready, at_warp, at_block, ended;
};

fibre *fibres;
fibre *current;
warp_state warps[MOST / 32];
const std::function<void()> *kernel;
int threads;
bool any, any_now; /* true if any value at the last barrier was; at the barrier that threads arrive at */
struct given {
    alignas(8) char bytes[GIVEN];
};
given snapshot[MOST / 32][32]; /* values that the lanes of each warp gave at its last instruction */
alignas(1024) char shared_memory[SHARED];

void body();

/* Leaves a fibre, or what runs them, for another: registers that a function keeps are on its stack. */
#if defined(__x86_64__) || defined(__aarch64__)

extern "C" void carry_emulate_switch(void **from, void *to);
#ifdef __x86_64__
asm(".text\n"
    ".hidden carry_emulate_switch\n"
    ".globl carry_emulate_switch\n"
    ".type carry_emulate_switch, @function\n"
    "carry_emulate_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n"
    ".size carry_emulate_switch, .-carry_emulate_switch\n");
constexpr int SAVED = 8, ENTRY = 6; /* words; where the address to continue at is. A word more aligns the stack. */
#else
asm(".text\n"
    ".hidden carry_emulate_switch\n"
    ".globl carry_emulate_switch\n"
    ".type carry_emulate_switch, %function\n"
    "carry_emulate_switch:\n"
    "    sub sp, sp, #160\n"
    "    stp x19, x20, [sp]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
    "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n    stp d12, d13, [sp, #128]\n"
    "    stp d14, d15, [sp, #144]\n"
    "    mov x9, sp\n"
    "    str x9, [x0]\n"
    "    mov sp, x1\n"
    "    ldp x19, x20, [sp]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
    "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n    ldp d12, d13, [sp, #128]\n"
    "    ldp d14, d15, [sp, #144]\n"
    "    add sp, sp, #160\n"
    "    ret\n"
    ".size carry_emulate_switch, .-carry_emulate_switch\n");
constexpr int SAVED = 20, ENTRY = 11;
#endif

void *new_context(char *stack, size_t bytes) {
    uint64_t *at = (uint64_t *)(stack + bytes) - SAVED;
    memset(at, 0, SAVED * sizeof *at);
    at[ENTRY] = (uint64_t)(uintptr_t)&body;
    return at;
}

#else

void carry_emulate_switch(void **from, void *to) {
    ucontext_t here;
    *from = &here;
    (void)swapcontext(&here, (ucontext_t *)to);
}

void *new_context(char *stack, size_t bytes) {
    ucontext_t *c = new ucontext_t();
    (void)getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = bytes;
    c->uc_link = NULL;
    makecontext(c, body, 0);
    return c;
}

#endif

void *home; /* what runs the fibres */

void make_fibres() {
    fibres = new fibre[MOST]();
    char *stacks =
        (char *)mmap(NULL, STACK * MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        abort();
    }
    for (int i = 0; i < MOST; i++) {
        fibres[i].warp = i / 32;
        fibres[i].lane = i % 32;
        /* Their ends are not a power of two apart: else the same few lines of the caches would hold them all. */
        fibres[i].at = new_context(stacks + (size_t)i * STACK, STACK - (size_t)(i % 64) * 448);
    }
}

int lanes_of(int warp) {
    return threads - 32 * warp < 32 ? threads - 32 * warp : 32;
}

/* Releases each waiting lane if all other lanes of its mask wait, too, or have ended or do not exist. */
bool release_warp(int warp) {
    fibre *f = fibres + 32 * warp;
    warp_state *w = &warps[warp];
    const int lanes = lanes_of(warp);
    const unsigned there = lanes == 32 ? ~0u : (1u << lanes) - 1u;
    const unsigned missing = there & ~w->ended & ~w->at_warp;
    unsigned go = 0;
    for (unsigned left = w->at_warp; left != 0; left &= left - 1) {
        const int i = __builtin_ctz(left);
        go |= (unsigned)((f[i].mask & missing) == 0) << i;
    }
    for (unsigned left = go; left != 0; left &= left - 1) {
        const int i = __builtin_ctz(left);
        if (f[i].given == NULL) {
            memcpy(snapshot[warp][i].bytes, &f[i].word, sizeof f[i].word);
        } else {
            memcpy(snapshot[warp][i].bytes, f[i].given, f[i].given_bytes);
        }
        f[i].present = go & f[i].mask;
    }
    w->at_warp &= ~go;
    w->ready |= go;
    return go != 0;
}

/* Continues with a thread of the warp if one can: those after `lane` first. Else with what runs the fibres. */
void go_on(void **from, int warp, int lane) {
    warp_state *w = &warps[warp];
    const unsigned after = lane < 31 ? w->ready & (~0u << (lane + 1)) : 0;
    if (after == 0 && w->ready == 0 && (w->at_warp == 0 || !release_warp(warp))) {
        if (from != &home) {
            carry_emulate_switch(from, home);
        }
        return;
    }
    const int next = __builtin_ctz(after != 0 ? after : w->ready);
    fibre *f = &fibres[32 * warp + next];
    w->ready &= ~(1u << next);
    current = f;
    self = &f->me;
    if (from != &f->at) {
        carry_emulate_switch(from, f->at);
    }
}

/* Its bit is set in the state that it waits in. */
void pause() {
    fibre *f = current;
    go_on(&f->at, f->warp, f->lane);
}

void body() {
    for (;;) {
        (*kernel)();
        warps[current->warp].ended |= 1u << current->lane;
        pause();
    }
}

void run_warp(int warp) {
    go_on(&home, warp, 31);
}

[[noreturn]] void hangs(const char *name) {
    int at_warp = 0, at_block = 0, ended = 0;
    for (int i = 0; i < MOST / 32; i++) {
        at_warp += __builtin_popcount(warps[i].at_warp);
        at_block += __builtin_popcount(warps[i].at_block);
        ended += __builtin_popcount(warps[i].ended);
    }
    fprintf(stderr,
            "emulated GPU: %s would hang: of %d threads %d wait within their warp, %d for the block, %d have ended\n",
            name, threads, at_warp, at_block, ended);
    abort();
}

/* Releases the threads at the barrier; true if all threads have ended. */
bool release_block(const char *name) {
    unsigned left = 0;
    for (int warp = 0; 32 * warp < threads; warp++) {
        if (warps[warp].at_warp != 0) {
            hangs(name);
        }
        left |= warps[warp].ready = warps[warp].at_block;
        warps[warp].at_block = 0;
    }
    any = any_now;
    any_now = false;
    return left == 0;
}

/* Waits for the other lanes of the mask; their values are then in the snapshot. */
void give(unsigned mask, const void *data, size_t bytes) {
    current->mask = mask;
    current->given = data;
    current->given_bytes = bytes;
    warps[current->warp].at_warp |= 1u << current->lane;
    pause();
}

void give_word(unsigned mask, uint64_t word) {
    current->word = word;
    give(mask, NULL, 0);
}

int warp_of_current() {
    return current->warp;
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
            }
        }
    }
    for (int warp = 0; warp < MOST / 32; warp++) {
        const int lanes = lanes_of(warp);
        warps[warp] = {lanes >= 32 ? ~0u : lanes > 0 ? (1u << lanes) - 1u : 0, 0, 0, 0};
    }
    any_now = false;
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
    warps[current->warp].at_block |= 1u << current->lane;
    any_now = any_now || value;
    pause();
    return any;
}

void wait_block() {
    (void)wait_block_any(false);
}

int lane() {
    return current->lane;
}

void wait_warp(unsigned mask) {
    give_word(mask, 0);
}

uint64_t exchange(unsigned mask, uint64_t value, int from) {
    give_word(mask, value);
    if (from >= 0 && from < 32 && (current->present >> from & 1u) != 0) {
        memcpy(&value, snapshot[warp_of_current()][from].bytes, sizeof value);
    }
    return value;
}

unsigned ballot(unsigned mask, bool value) {
    unsigned all = 0;
    give_word(mask, value ? 1 : 0);
    for (int i = 0; i < 32; i++) {
        uint64_t word;
        memcpy(&word, snapshot[warp_of_current()][i].bytes, sizeof word);
        all |= (current->present >> i & 1u) != 0 && word != 0 ? 1u << i : 0;
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

/* d = a b + c. A lane has rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and the next one. A register has EACH
   elements; they are widened by the lane that has them. */
template <int EACH>
struct operands {
    float a[4][EACH], b[2][EACH];
};

template <int EACH, typename Widen>
void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], Widen widen) {
    operands<EACH> mine;
    static_assert(sizeof mine <= GIVEN, "a lane gives it");
    for (int e = 0; e < EACH; e++) {
        for (int i = 0; i < 4; i++) {
            mine.a[i][e] = widen(a[i], e);
        }
        for (int i = 0; i < 2; i++) {
            mine.b[i][e] = widen(b[i], e);
        }
    }
    give(~0u, &mine, sizeof mine);
    const given *all = snapshot[warp_of_current()];
    const given *left = all + lane() / 4 * 4, *right = all + 2 * (lane() % 4) * 4;
    double sum[4] = {c[0], c[1], c[2], c[3]};
    for (int upper = 0; upper < 2; upper++) {
        for (int quarter = 0; quarter < 4; quarter++) {
            const auto *l = (const operands<EACH> *)left[quarter].bytes;
            const auto *r = (const operands<EACH> *)right[quarter].bytes;
            const auto *next = (const operands<EACH> *)right[4 + quarter].bytes;
            for (int e = 0; e < EACH; e++) {
                const double low = (double)l->a[2 * upper][e], high = (double)l->a[2 * upper + 1][e];
                sum[0] += low * (double)r->b[upper][e];
                sum[1] += low * (double)next->b[upper][e];
                sum[2] += high * (double)r->b[upper][e];
                sum[3] += high * (double)next->b[upper][e];
            }
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
