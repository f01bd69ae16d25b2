/* Instructions of Hopper GPUs that need assembly: barriers in shared memory that count bytes, copies of tiles by the
   tensor copy engine (TMA), and products of a warpgroup (four warps) with operands in shared memory.

   Tiles have the layout that the copy engine writes with its 128-byte swizzle: columns are split into bands of 64
   elements; a band is a sequence of rows of 128 bytes, and eight rows are one atom of 1024 bytes. */
#ifndef CARRY_DEVICE_HOPPER_CUH
#define CARRY_DEVICE_HOPPER_CUH

#include <cuda.h>
#include <stdint.h>

/* Element type of products. A file may define it as "f16" before it includes this header. */
#ifndef HOPPER_ELEMENT
#define HOPPER_ELEMENT "bf16"
#endif
#define HOPPER_K16 "k16.f32." HOPPER_ELEMENT "." HOPPER_ELEMENT " {"

namespace hopper {

static __device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

static __device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

static __device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Waits until the phase of this parity is over. */
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni over;\n"
                 "bra.uni again;\n"
                 "over:\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Synchronises the `threads` threads of the block that use barrier `id`; arrive does not wait. */
static __device__ __forceinline__ void group_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void group_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Returns whether `is` holds for any of them. */
static __device__ __forceinline__ bool group_any(int id, int threads, bool is) {
    int any;
    asm volatile("{\n.reg .pred p, q;\n"
                 "setp.ne.b32 p, %1, 0;\n"
                 "bar.red.or.pred q, %2, %3, p;\n"
                 "selp.b32 %0, 1, 0, q;\n}\n"
                 : "=r"(any)
                 : "r"((int)is), "r"(id), "r"(threads)
                 : "memory");
    return any != 0;
}

/* The same for threads that arrive at different instructions: `bar` requires that all of them execute the same one. */
static __device__ __forceinline__ void group_meet(int id, int threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void group_tell(int id, int threads) {
    asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ uint4 shared_load(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

static __device__ __forceinline__ void shared_store(uint32_t to, const uint4 &v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Makes ordinary writes to shared memory visible to the copy engine and to products. */
static __device__ __forceinline__ void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Copies the tile of all bands at (row, head) of a map of [head, band, row, 64]. Rows outside the tensor are zeros. */
static __device__ __forceinline__ void copy_tile(uint32_t to, const CUtensorMap *map, int row, int head,
                                                 uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(0), "r"(row), "r"(0), "r"(head), "r"(barrier)
                 : "memory");
}

/* The same for a map with one more index, [batch, head, band, row, 64]. Copies as many bands, from `band` on, as the
   map's box has. */
static __device__ __forceinline__ void copy_tile(uint32_t to, const CUtensorMap *map, int row, int band, int head,
                                                 int batch, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
                 "l"(map), "r"(0), "r"(row), "r"(band), "r"(head), "r"(batch), "r"(barrier)
                 : "memory");
}

/* Copies contiguous bytes. Addresses and sizes are multiples of 16. */
static __device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Stores from shared memory. A thread's copies since its last commit are one group. stores_wait_read waits only until
   the source may be overwritten; the data may not have arrived yet. */
static __device__ __forceinline__ void store_bytes(void *to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}
/* Stores the tile at (row, band, head, batch) of a map of five indices. Rows outside the tensor are skipped. */
static __device__ __forceinline__ void store_tile(const CUtensorMap *map, uint32_t from, int row, int band, int head,
                                                  int batch) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
                 "r"(from), "r"(0), "r"(row), "r"(band), "r"(head), "r"(batch)
                 : "memory");
}
static __device__ __forceinline__ void stores_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
static __device__ __forceinline__ void stores_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* The descriptor of an operand of a product: its address, the bytes from one band to the next (ignored if its rows
   run along k), and the bytes from eight rows to the next eight. */
static __device__ __forceinline__ uint64_t describe(uint32_t address, int band) {
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(band >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

static __device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

template <int REGISTERS> static __device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> static __device__ __forceinline__ void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* d[64, N] = or += a b over 16 elements of k, asynchronously. `both`: a and b are in shared memory, and rows of both
   run along k. `right`: a is in registers, and rows of b run across k. There is one overload per N, since every
   element of the accumulator is an operand of the instruction. */
#define F8(d, i)                                                                                                \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define F32(d, i) F8(d, i), F8(d, i + 8), F8(d, i + 16), F8(d, i + 24)
#define R0_31                                                              \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R32_63                                                                         \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define R32_47 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define R32_39 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define R64_127                                                                                    \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define R88_95 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define R64_71 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define R72_79 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define R80_87 ", %80, %81, %82, %83, %84, %85, %86, %87"

#define PRODUCT_BOTH(N, REGISTERS, A, B, ADD, ...)                                                           \
    static __device__ __forceinline__ void product_both(float(&d)[N / 2], uint64_t a, uint64_t b, int add) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                        \
                     "wgmma.mma_async.sync.aligned.m64n" #N HOPPER_K16 REGISTERS "}, " A ", " B              \
                     ", p, 1, 1, 0, 0;\n}\n"                                                                 \
                     : __VA_ARGS__                                                                           \
                     : "l"(a), "l"(b), "r"(add));                                                            \
    }
#define PRODUCT_RIGHT(N, REGISTERS, A, B, ADD, ...)                                                                    \
    static __device__ __forceinline__ void product_right(float(&d)[N / 2], const uint32_t *a, uint64_t b, int add) {   \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                  \
                     "wgmma.mma_async.sync.aligned.m64n" #N HOPPER_K16 REGISTERS "}, {" A "}, " B ", p, 1, 1, 1;\n}\n" \
                     : __VA_ARGS__                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                  \
    }

/* As `both`, but rows of b run across k. */
#define PRODUCT_ACROSS(N, REGISTERS, A, B, ADD, ...)                                                           \
    static __device__ __forceinline__ void product_across(float(&d)[N / 2], uint64_t a, uint64_t b, int add) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #N HOPPER_K16 REGISTERS "}, " A ", " B                \
                     ", p, 1, 1, 0, 1;\n}\n"                                                                   \
                     : __VA_ARGS__                                                                             \
                     : "l"(a), "l"(b), "r"(add));                                                              \
    }
/* As `across`, but rows of a run across k too. */
#define PRODUCT_TURNED(N, REGISTERS, A, B, ADD, ...)                                                           \
    static __device__ __forceinline__ void product_turned(float(&d)[N / 2], uint64_t a, uint64_t b, int add) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #N HOPPER_K16 REGISTERS "}, " A ", " B                \
                     ", p, 1, 1, 1, 1;\n}\n"                                                                   \
                     : __VA_ARGS__                                                                             \
                     : "l"(a), "l"(b), "r"(add));                                                              \
    }
/* As `right`, but rows of b run along k. */
#define PRODUCT_ALONG(N, REGISTERS, A, B, ADD, ...)                                                                    \
    static __device__ __forceinline__ void product_along(float(&d)[N / 2], const uint32_t *a, uint64_t b, int add) {   \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                  \
                     "wgmma.mma_async.sync.aligned.m64n" #N HOPPER_K16 REGISTERS "}, {" A "}, " B ", p, 1, 1, 0;\n}\n" \
                     : __VA_ARGS__                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                  \
    }

PRODUCT_BOTH(8, "%0, %1, %2, %3", "%4", "%5", "%6", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]))
PRODUCT_BOTH(64, R0_31, "%32", "%33", "%34", F32(d, 0))
PRODUCT_BOTH(80, R0_31 R32_39, "%40", "%41", "%42", F32(d, 0), F8(d, 32))
PRODUCT_BOTH(96, R0_31 R32_47, "%48", "%49", "%50", F32(d, 0), F8(d, 32), F8(d, 40))
PRODUCT_BOTH(192, R0_31 R32_63 R64_71 R72_79 R80_87 R88_95, "%96", "%97", "%98", F32(d, 0), F32(d, 32), F32(d, 64))
PRODUCT_BOTH(128, R0_31 R32_63, "%64", "%65", "%66", F32(d, 0), F32(d, 32))
PRODUCT_BOTH(144, R0_31 R32_63 R64_71, "%72", "%73", "%74", F32(d, 0), F32(d, 32), F8(d, 64))
PRODUCT_BOTH(160, R0_31 R32_63 R64_71 R72_79, "%80", "%81", "%82", F32(d, 0), F32(d, 32), F8(d, 64), F8(d, 72))
PRODUCT_BOTH(176, R0_31 R32_63 R64_71 R72_79 R80_87, "%88", "%89", "%90", F32(d, 0), F32(d, 32), F8(d, 64), F8(d, 72),
             F8(d, 80))
PRODUCT_BOTH(256, R0_31 R32_63 R64_127, "%128", "%129", "%130", F32(d, 0), F32(d, 32), F32(d, 64), F32(d, 96))
PRODUCT_RIGHT(64, R0_31, "%32, %33, %34, %35", "%36", "%37", F32(d, 0))
PRODUCT_RIGHT(128, R0_31 R32_63, "%64, %65, %66, %67", "%68", "%69", F32(d, 0), F32(d, 32))
PRODUCT_RIGHT(256, R0_31 R32_63 R64_127, "%128, %129, %130, %131", "%132", "%133", F32(d, 0), F32(d, 32), F32(d, 64),
              F32(d, 96))
PRODUCT_ACROSS(64, R0_31, "%32", "%33", "%34", F32(d, 0))
PRODUCT_ACROSS(128, R0_31 R32_63, "%64", "%65", "%66", F32(d, 0), F32(d, 32))
PRODUCT_ACROSS(256, R0_31 R32_63 R64_127, "%128", "%129", "%130", F32(d, 0), F32(d, 32), F32(d, 64), F32(d, 96))
PRODUCT_TURNED(64, R0_31, "%32", "%33", "%34", F32(d, 0))
PRODUCT_TURNED(128, R0_31 R32_63, "%64", "%65", "%66", F32(d, 0), F32(d, 32))
PRODUCT_ALONG(64, R0_31, "%32, %33, %34, %35", "%36", "%37", F32(d, 0))

#undef PRODUCT_ALONG
#undef PRODUCT_ACROSS
#undef PRODUCT_TURNED
#undef PRODUCT_BOTH
#undef PRODUCT_RIGHT
#undef F8
#undef F32

/* Keeps the compiler from moving reads of these sums above this line. Place it after the wait for the products that
   compute them. */
template <int N> static __device__ __forceinline__ void keep_below(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

} // namespace hopper

#endif
