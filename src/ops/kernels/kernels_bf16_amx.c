/* bf16 products by AMX's TDPBF16PS (Sapphire Rapids and later). Linux gives the tile registers only to a process
   that requests them, and may refuse: then the next slower entry of the table is used. */
#include <stdint.h>

#include "ops/kernels/bf16.h"

#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* clang until 14 */
#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct amx_tiles {
    char unused;
} amx_tiles;

/* Eight tiles of 16 rows of 64 bytes. */
typedef struct amx_shape {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} amx_shape;

_Static_assert(sizeof(amx_shape) == 64, "LDTILECFG reads 64 bytes");

/* gcc knows only part of the memory that loadconfig reads, and none of the memory that tile loads and stores access.
   Without barriers it could move or drop the stores whose data these instructions read. */
#define MEMORY_BARRIER __asm__ volatile("" ::: "memory")

static void tiles_open(void) {
    amx_shape shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = 64;
        shape.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&shape) : "memory");
    _tile_loadconfig(&shape);
}

#define TILES_OPEN tiles_open()
#define TILES_CLOSE _tile_release()
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, from, bytes)        \
    do {                                 \
        MEMORY_BARRIER;                  \
        _tile_loadd(t, (from), (bytes)); \
    } while (0)
#define TILE_STREAM(t, from, bytes)             \
    do {                                        \
        MEMORY_BARRIER;                         \
        _tile_stream_loadd(t, (from), (bytes)); \
    } while (0)
#define TILE_STORE(t, to, bytes)        \
    do {                                \
        _tile_stored(t, (to), (bytes)); \
        MEMORY_BARRIER;                 \
    } while (0)
#define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)

#include "ops/kernels/bf16_tile_amx.h"

#define REQUEST_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define GET_PERMISSION 0x1022     /* ARCH_GET_XCOMP_PERM */
#define TILE_DATA 18              /* XFEATURE_XTILEDATA; 17 is the configuration */

/* Reads XCR0: the registers that the system saves when it switches threads. */
static uint64_t saved_state(void) {
    uint32_t low;
    uint32_t high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static const char *ask(void) {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    const unsigned amx_bf16 = 1u << 22;
    const unsigned amx_tile = 1u << 24;
    const unsigned osxsave = 1u << 27;
    const uint64_t both = UINT64_C(3) << (TILE_DATA - 1);
    unsigned long granted = 0;
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"); /* for packing */
    if (!avx512 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & amx_bf16) == 0 || (d & amx_tile) == 0) {
        return "this processor has no AMX with bf16";
    }
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & osxsave) == 0 || (saved_state() & both) != both) {
        return "the system does not save AMX tiles";
    }
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) != 0) {
        return "the system refuses AMX (arch_prctl ARCH_REQ_XCOMP_PERM)";
    }
    if (syscall(SYS_arch_prctl, GET_PERMISSION, &granted) != 0 || (granted >> TILE_DATA & 1) == 0) {
        return "the system did not grant AMX (arch_prctl ARCH_GET_XCOMP_PERM)";
    }
    return NULL;
}

/* Determined once: the permission belongs to the process and holds for its threads. */
static const char *missing(void) {
    static const char granted[] = "";
    static _Atomic(const char *) answer;
    const char *known = atomic_load(&answer);
    if (known == NULL) {
        known = ask();
        known = known != NULL ? known : granted;
        atomic_store(&answer, known);
    }
    return known != granted ? known : NULL;
}
#else
#define AMX_BF16 .rows = 1, .columns = 1, .unit = 1

static const char *missing(void) {
    return "the compiler of this build has no AMX";
}
#endif

extern const carry_bf16 carry_bf16_amx;
const carry_bf16 carry_bf16_amx = {
    .name = "amx", .about = "x86-64 AMX tiles, bf16 products of 32 x 32", .missing = missing, AMX_BF16};
